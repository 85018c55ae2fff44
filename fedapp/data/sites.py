"""What one site may touch: its own images, the labels it may see, and an audit of the others."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise

import numpy as np
import torch
from torch import Tensor

from fedapp.data.images import ImageSet
from fedapp.data.manifest import TRAIN, VAL, Manifest, labels_digest
from fedapp.data.shift import shifted
from fedapp.ground.errors import DataError


class Audit:
    """The only door to hidden labels: it counts errors and hands out no label.

    For metrics in simulation; a real site has none.
    """

    __slots__ = ("_hidden",)

    def __init__(self, hidden: Tensor) -> None:
        """Keep the labels withheld from a site: int64 [n_u], in the order of its D_u."""
        self._hidden = hidden

    def pseudo_label_errors(self, predicted: Tensor, of: Tensor | None = None) -> tuple[int, int]:
        """Return (wrong, total) for predicted classes, int64 [m].

        of: int64 [m], which images of D_u they are of; None: all, in the order of D_u.
        """
        hidden = self._hidden if of is None else self._hidden[of.to(self._hidden.device)]
        if predicted.shape != hidden.shape or predicted.dtype != torch.int64:
            raise DataError(
                f"pseudo-labels are {predicted.dtype} {list(predicted.shape)}, must be int64 "
                f"{list(hidden.shape)}, one class per unlabelled image: pass the arg max"
            )
        return int((predicted.to(hidden.device) != hidden).sum()), len(hidden)

    def to(self, device: torch.device) -> "Audit":
        """Return the same audit with its labels on `device`."""
        return Audit(self._hidden.to(device))


@dataclass(frozen=True, eq=False)
class SiteData:
    """One site's data, every part possibly empty; images uint8 [n, C, H, W], labels int64 [n].

    labelled, labels: D_s. unlabelled: D_u. mean, std: per channel, of pixels / 255.
    audit: hidden labels of D_u, for metrics in simulation only; None on a real site.
    name: of the site, where it has one.
    """

    site: int
    labelled: Tensor
    labels: Tensor
    unlabelled: Tensor
    val: Tensor
    val_labels: Tensor
    test: Tensor
    test_labels: Tensor
    num_classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    audit: Audit | None
    name: str = ""

    @property
    def mu(self) -> float:
        """mu_k = |D_s| / (|D_s| + |D_u|), in [0, 1]; 0.0 where there are no training images."""
        total = len(self.labelled) + len(self.unlabelled)
        return len(self.labelled) / total if total else 0.0

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256, 16 hex digits, of all that a model's score here depends on besides the model.

        That is D_s with its labels, D_u, the number of classes and the normalisation; not the
        site's number, its val and test data, or hidden labels.
        """
        total = hashlib.sha256(repr((self.num_classes, self.mean, self.std)).encode())
        for part in (self.labelled, self.labels, self.unlabelled):
            total.update(repr(tuple(part.shape)).encode())
            total.update(part.cpu().contiguous().numpy().data)
        return total.hexdigest()[:16]

    @cached_property
    def digest(self) -> str:
        """SHA-256, in hex, of all the site's data, its val and test images too."""
        total = hashlib.sha256(self.fingerprint.encode())
        for part in (self.val, self.val_labels, self.test, self.test_labels):
            total.update(repr(tuple(part.shape)).encode())
            total.update(part.cpu().contiguous().numpy().data)
        return total.hexdigest()

    def to(self, device: torch.device) -> "SiteData":
        """Return the same data on `device`; nothing is copied where they are there already."""
        labelled = self.labelled.to(device)
        if labelled is self.labelled:  # so that the fingerprint is not computed again
            return self
        return replace(
            self,
            labelled=labelled,
            labels=self.labels.to(device),
            unlabelled=self.unlabelled.to(device),
            val=self.val.to(device),
            val_labels=self.val_labels.to(device),
            test=self.test.to(device),
            test_labels=self.test_labels.to(device),
            audit=None if self.audit is None else self.audit.to(device),
        )


class Dealt:
    """All sites of one process, as views of one uint8 tensor on the device.

    The pool is sorted once by site and part (D_s, D_u, val, test). Hidden labels lie in a tensor
    of their own: the storage behind a site's labels holds no label that some site may not see.
    """

    def __init__(
        self,
        images: ImageSet,
        manifest: Manifest,
        device: torch.device,
        feature_shift: float = 0.0,
        shift_kinds: Sequence[str] = (),
    ) -> None:
        """Deal the pool; `DataError` where the manifest was made for other data.

        feature_shift, in [0, 1], and shift_kinds: how each site's images are changed (`shifted`).
        """
        _check_same_pool(images, manifest)
        part = np.where(
            manifest.split == TRAIN,
            np.where(manifest.visible, 0, 1),
            np.where(manifest.split == VAL, 2, 3),
        )
        group = manifest.site.astype(np.int64) * 4 + part
        order = torch.from_numpy(np.argsort(group, kind="stable"))
        hidden = torch.from_numpy(part == 1)[order]
        labels = images.labels[order]
        # Before the parts are told apart: what an image becomes does not depend on who sees labels.
        pixels = shifted(images.images, manifest.site, manifest.seed, feature_shift, shift_kinds)
        self._images = pixels[order].to(device)
        self._known = labels[~hidden].to(device)
        self._hidden = labels[hidden].to(device)
        self._counts = np.bincount(group, minlength=4 * manifest.num_clients).reshape(-1, 4)
        self._num_classes = len(images.classes)
        self._mean, self._std = images.mean, images.std
        self._sites: dict[int, SiteData] = {}

    def site(self, k: int) -> SiteData:
        """Return the data of site k, in [0, K); the same value each time."""
        if not 0 <= k < len(self._counts):
            raise DataError(
                f"site {k}: the manifest deals to sites 0 to {len(self._counts) - 1}: "
                "start as many sites as split.num_clients"
            )
        if k not in self._sites:
            self._sites[k] = self._cut(k)
        return self._sites[k]

    def _cut(self, k: int) -> SiteData:
        count = self._counts[k].tolist()
        before = self._counts[:k].sum(0).tolist()
        images = _pieces(self._images, sum(before), count)
        labels = _pieces(self._known, sum(before) - before[1], [count[0], *count[2:]])
        return SiteData(
            site=k,
            labelled=images[0],
            labels=labels[0],
            unlabelled=images[1],
            val=images[2],
            val_labels=labels[1],
            test=images[3],
            test_labels=labels[2],
            num_classes=self._num_classes,
            mean=self._mean,
            std=self._std,
            audit=Audit(_pieces(self._hidden, before[1], count[1:2])[0]),
        )


def normalise(images: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Return (images / 255 - mean) / std, float32 [n, C, H, W], on the images' device.

    images: uint8 [n, C, H, W]; mean, std: one value per channel, std above 0.
    """
    # One multiplication and one addition in place: no third float copy of the batch.
    scale, shift = _scale_and_shift(mean, std, images.device)
    return images.to(torch.float32).mul_(scale).add_(shift)


@lru_cache(maxsize=8)
def _scale_and_shift(
    mean: tuple[float, ...], std: tuple[float, ...], device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return `normalise`'s constants [C, 1, 1], kept on the device: no copy to it per batch."""
    scale = torch.tensor([1 / (255 * s) for s in std], device=device)
    shift = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)], device=device)
    return scale.view(-1, 1, 1), shift.view(-1, 1, 1)


def _pieces(pool: Tensor, start: int, counts: list[int]) -> list[Tensor]:
    """Return consecutive views of the pool, of these lengths."""
    return [pool[a:b] for a, b in pairwise(accumulate(counts, initial=start))]


def _check_same_pool(images: ImageSet, manifest: Manifest) -> None:
    count = len(images.labels)
    if len(manifest.site) != count or manifest.num_classes > len(images.classes):
        raise DataError(
            f"manifest of {manifest.dataset} is for {len(manifest.site)} images of "
            f"{manifest.num_classes} classes, the data are {count} images of "
            f"{len(images.classes)} classes: use its own data or make the split again"
        )
    if manifest.labels_sha256 not in ("", labels_digest(images.labels.cpu().numpy())):
        raise DataError(
            f"manifest of {manifest.dataset} was made for other labels or another order of the "
            "images: use its own data or make the split again"
        )
