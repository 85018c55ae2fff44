"""The split as a file, to cite and to share: owner, part and supervision of every sample."""

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import save

from fedapp.core.disk import write_atomic
from fedapp.core.errors import ConfigError, DataError
from fedapp.core.settings import SplitSettings
from fedapp.data.split.bags import BagAssignment
from fedapp.protocol.messages import SERVER_SITE

TRAIN, VAL, TEST = 0, 1, 2
"""Values of `Manifest.split`."""

_FORMAT = "um-pfssl-manifest-1"
_OF_BAGS = ("bag", "repeats", "bag_counts")
"""Names in the file for the arrays of `BagAssignment`."""


@dataclass(frozen=True, eq=False)
class Manifest:
    """Which site owns which sample, and for what; validated on construction (`DataError`).

    dataset: the name of the data set.
    num_clients: K >= 1.
    num_classes: highest label + 1.
    seed: of the random draws, >= 0.
    site: int32 [N], the owner, in [0, K); or SERVER_SITE for the server's own samples, which are
        visible and in TRAIN.
    split: uint8 [N], TRAIN, VAL or TEST.
    visible: bool [N], whether the owner may train on the label (D_s); always True in VAL and TEST.
    labels_sha256: `labels_digest` of the pool that was split, so that the manifest is not applied
        to the same data in another order; empty: unknown and not checked.
    bagged: which of the samples with hidden labels lie in which bags, and the class counts of the
        bags; None: the split has no bags.
    """

    dataset: str
    num_clients: int
    num_classes: int
    seed: int
    site: NDArray[np.int32]
    split: NDArray[np.uint8]
    visible: NDArray[np.bool_]
    labels_sha256: str = ""
    bagged: BagAssignment | None = None

    def __post_init__(self) -> None:
        for name, dtype in (("site", np.int32), ("split", np.uint8), ("visible", np.bool_)):
            array = getattr(self, name)
            if array.dtype != dtype or array.shape != (len(self.site),):
                raise DataError(
                    f"manifest: {name} is {array.dtype} {list(array.shape)}, must be "
                    f"{np.dtype(dtype)} [{len(self.site)}]: make the split again"
                )
        if self.num_clients < 1 or self.num_classes < 1 or self.seed < 0:
            raise DataError(
                f"manifest: {self.num_clients} sites, {self.num_classes} classes, seed {self.seed}:"
                " must be at least 1, 1 and 0: make the split again"
            )
        servers = self.site == SERVER_SITE
        if not np.all(servers | (self.site >= 0) & (self.site < self.num_clients)):
            raise DataError(
                f"manifest: a sample belongs to no site in [0, {self.num_clients - 1}]: "
                "make the split again"
            )
        if not np.all(self.visible[servers] & (self.split[servers] == TRAIN)):
            raise DataError(
                "manifest: the server has samples that are not for training or have no label: "
                "make the split again"
            )
        if np.any(self.split > TEST):
            raise DataError("manifest: split must be 0, 1 or 2: make the split again")
        if not np.all(self.visible | (self.split == TRAIN)):
            raise DataError(
                "manifest: a val or test label is hidden, only training labels may be: "
                "make the split again"
            )
        if self.bagged is not None:
            self.bagged.check(self.site, self.visible, self.num_clients, self.num_classes)

    @property
    def bags(self) -> int:
        """Number of bags of each site; 0: the split has none."""
        return self.bagged.bags if self.bagged else 0

    @property
    def particulars(self) -> str:
        """Describe what sites know of their samples besides labels; empty: nothing."""
        return self.bagged.describe() if self.bagged else ""

    @property
    def made(self) -> str:
        """The setting from which its bags come, as the start of an error; empty without bags."""
        return f"split.bags = {self.bags}: " if self.bags else ""

    def check_settings(self, split: SplitSettings) -> None:
        """Check that a saved split agrees with the settings. Raises ConfigError."""
        reserved = bool((self.site == SERVER_SITE).any())
        for key, value, differ, has in (
            ("bags", split.bags, self.bags != split.bags, f"has {self.bags} bags per site"),
            ("server_share", split.server_share, reserved != bool(split.server_share),
             f"has {'' if reserved else 'no '}images for the server"),
        ):  # fmt: skip
            if differ:
                raise ConfigError(
                    f"split.manifest {split.manifest}: {has}, but split.{key} = {value}; use the "
                    "preset it was made with"
                )

    def digest(self) -> str:
        """Return the SHA-256 of the whole content, in hex; it is the same on every machine."""
        total = hashlib.sha256(json.dumps(self._header(), sort_keys=True).encode())
        for array in self._arrays().values():
            total.update(array.astype("<i4" if array.dtype == np.int32 else "u1").tobytes())
        return total.hexdigest()

    def revealed(self) -> "Manifest":
        """Return the same split with every training label visible, and so without bags."""
        return replace(self, visible=np.ones_like(self.visible), bagged=None)

    def hidden(self) -> "Manifest":
        """Return the same split without visible training labels, except those of the server."""
        return replace(self, visible=(self.split != TRAIN) | (self.site == SERVER_SITE))

    def showing(self, labels: str) -> "Manifest":
        """Return the split with "all" labels visible, with "none", or with "some", unchanged."""
        if labels == "some":
            return self
        return self.revealed() if labels == "all" else self.hidden()

    def indices(self, site: int, split: int, visible: bool | None = None) -> NDArray[np.int64]:
        """Return the positions in the pool, ascending, of a site's samples in one part.

        visible: only samples whose label the site may (True) or may not (False) train on; None:
            all.
        """
        chosen = (self.site == site) & (self.split == split)
        if visible is not None:
            chosen &= self.visible == visible
        return np.flatnonzero(chosen).astype(np.int64)

    def places(self) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int64]]:
        """Return owner, bag (-1: none) and position in the pool of all samples, then of repeats."""
        if self.bagged is not None:
            return self.bagged.places(self.site)
        return self.site, np.full(len(self.site), -1, np.int32), np.arange(len(self.site))

    def save(self, path: Path | str) -> None:
        """Write a safetensors file atomically. Raises StoreError where it cannot be written."""
        header = {key: str(value) for key, value in self._header().items()}
        data = save(
            {name: np.ascontiguousarray(array) for name, array in self._arrays().items()},
            {**header, "digest": self.digest()},
        )
        write_atomic(Path(path), data, durable=True)

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Read a manifest and verify its digest. Raises DataError if it is damaged or missing."""
        try:
            with safe_open(path, framework="np") as file:
                header = file.metadata() or {}
                arrays = {name: file.get_tensor(name) for name in ("site", "split", "visible")}
                bags = [file.get_tensor(name) for name in _OF_BAGS if "bags" in header]
            if header.get("format") != _FORMAT:
                raise ValueError(f"format is {header.get('format')!r}, must be {_FORMAT!r}")
            manifest = cls(
                dataset=header["dataset"],
                num_clients=int(header["num_clients"]),
                num_classes=int(header["num_classes"]),
                seed=int(header["seed"]),
                labels_sha256=header["labels_sha256"],
                bagged=BagAssignment(*bags) if bags else None,
                **arrays,
            )
            if manifest.digest() != header["digest"]:
                raise ValueError("its content differs from its digest")
        except FileNotFoundError as error:
            raise DataError(f"{path}: no such manifest: check the path") from error
        except Exception as error:  # safetensors and numpy raise various types
            reason = " ".join(str(error).split())
            raise DataError(
                f"{path}: not a whole manifest ({reason}): copy it again or make the split again"
            ) from error
        return manifest

    def _arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays with a value for each sample, in the order of the digest."""
        parts: dict[str, NDArray[Any]]
        parts = {"site": self.site, "split": self.split, "visible": self.visible}
        if self.bagged is None:
            return parts
        bags = (self.bagged.bag, self.bagged.repeats, self.bagged.counts)
        return {**parts, **dict(zip(_OF_BAGS, bags, strict=True))}

    def _header(self) -> dict[str, str | int]:
        # Bags appear only if there are some, so that earlier manifests keep their digest.
        bags = {"bags": self.bags} if self.bags else {}
        return {
            **bags,
            "format": _FORMAT,
            "dataset": self.dataset,
            "num_clients": self.num_clients,
            "num_classes": self.num_classes,
            "seed": self.seed,
            "samples": len(self.site),
            "labels_sha256": self.labels_sha256,
        }


def labels_digest(labels: NDArray[np.int64]) -> str:
    """Return the SHA-256, in hex, of the labels [N] in the pool's order."""
    return hashlib.sha256(labels.astype("<i8").tobytes()).hexdigest()
