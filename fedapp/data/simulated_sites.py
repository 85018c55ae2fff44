"""All simulated sites of one process, cut from one data set as a manifest says."""

from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedapp.core import rng
from fedapp.core.errors import DataError
from fedapp.data.bag_proportions import proportions_of, with_noise
from fedapp.data.feature_shift import shift_sites
from fedapp.data.inputs import UNKNOWN, DataSet
from fedapp.data.sites import BAGS, PARTS, UNLABELLED, Audit, Bags, Part, SiteData, Supervision
from fedapp.data.split.manifest import TRAIN, VAL, Manifest, labels_digest
from fedapp.protocol.messages import SERVER_SITE

_HIDDEN = np.array([name in (UNLABELLED, BAGS) for name in PARTS])
"""Which parts have labels that their site may not see."""


class SimulatedSites:
    """All sites of one process, as views of one tensor on the device.

    The pool is sorted once by site and part; the server's own data come last. Hidden labels lie in
    a separate tensor, so that the memory behind a site's labels contains no label that a site may
    not see.
    """

    def __init__(
        self,
        data: DataSet,
        manifest: Manifest,
        device: torch.device,
        feature_shift: float = 0.0,
        shift_kinds: Sequence[str] = (),
        prior_noise: float = 0.0,
        names: Sequence[str] = (),
    ) -> None:
        """Deal the pool. Raises DataError where the manifest was made for other data.

        feature_shift, shift_kinds: how strongly, in [0, 1], and in which ways the images of each
            site are changed (`feature_shift.shift_sites`).
        prior_noise: how wrong the class proportions of the bags are that sites receive
            (`with_noise`).
        names: of the sites, by number; empty: they have none.
        """
        _check_same_pool(data, manifest)
        owner, bag, sample = manifest.places()
        part = _part_of(manifest, bag, sample)
        row = np.where(owner == SERVER_SITE, manifest.num_clients, owner)
        group = row.astype(np.int64) * len(PARTS) + part
        order = np.argsort(group, kind="stable")
        hidden = torch.from_numpy(_HIDDEN[part[order]])
        labels = data.labels[sample[order]]
        # Before the pool is divided, because a changed image must not depend on who sees its label.
        inputs = shift_sites(data.inputs, manifest.site, manifest.seed, feature_shift, shift_kinds)
        self._inputs = inputs[sample[order]].to(device)
        self._known = labels[~hidden].to(device)
        if bool((self._known == UNKNOWN).any()):
            raise DataError(
                f"the manifest of {manifest.dataset} shows labels of inputs whose class is not "
                "known: set split.labels=some, or make the split again"
            )
        self._whose: tuple[Tensor, Tensor] | None = None
        if data.patients is not None:
            whose = data.patients[sample[order]]
            self._whose = whose[~hidden], whose[hidden]
        self._hidden = labels[hidden].to(device)
        self._bag = torch.from_numpy(bag[order]).long()[hidden].to(device)
        cells = (manifest.num_clients + 1) * len(PARTS)
        self._counts = np.bincount(group, minlength=cells).reshape(-1, len(PARTS))
        self._num_classes = len(data.classes)
        self._told = _announced_proportions(manifest, len(data.classes), prior_noise)
        self._mean, self._std = data.mean, data.std
        self._names = names
        self._sites: dict[int, SiteData] = {}

    def site(self, k: int) -> SiteData:
        """Return the data of site k, in [0, K), or of `SERVER_SITE`; the same object in every call.

        The server's own data have no validation or test part. Raises DataError where the server has
        no data, and where there is no such site.
        """
        last = len(self._counts) - 1
        if k == SERVER_SITE and not self._counts[last].any():
            raise DataError(
                "the manifest gives the server nothing: give a larger split.server_share"
            )
        if not 0 <= k < last and k != SERVER_SITE:
            raise DataError(
                f"site {k}: the manifest deals to sites 0 to {last - 1}: "
                "start as many sites as split.num_clients"
            )
        if k not in self._sites:
            self._sites[k] = self._cut(k, last if k == SERVER_SITE else k)
        return self._sites[k]

    def _cut(self, site: int, row: int) -> SiteData:
        every = np.ones(len(PARTS), np.bool_)
        inputs = self._pieces(self._inputs, row, every)
        labels = self._pieces(self._known, row, ~_HIDDEN)
        hidden = self._pieces(self._hidden, row, _HIDDEN)
        whose: dict[str, Tensor] = {}
        if self._whose is not None:
            seen, unseen = self._whose
            whose = self._pieces(seen, row, ~_HIDDEN) | self._pieces(unseen, row, _HIDDEN)
        known: dict[str, Supervision] = {**labels, UNLABELLED: None}
        if len(hidden[BAGS]):
            bag = self._pieces(self._bag, row, _HIDDEN)[BAGS]
            known[BAGS] = Bags(bag, self._told[row].to(bag.device))
        return SiteData(
            site=site,
            parts={name: Part(inputs[name], known[name]) for name in PARTS if name in known},
            num_classes=self._num_classes,
            mean=self._mean,
            std=self._std,
            audit=Audit(hidden[BAGS if BAGS in known else UNLABELLED]),
            name=self._names[site] if self._names and site != SERVER_SITE else "",
            patients={name: of for name, of in whose.items() if name in known},
        )

    def _pieces(self, pool: Tensor, row: int, held: NDArray[np.bool_]) -> dict[str, Tensor]:
        """Return a site's views of a pool that contains these parts of every site, by part."""
        start, counts = int(self._counts[:row, held].sum()), self._counts[row, held].tolist()
        names = (name for name, there in zip(PARTS, held, strict=True) if there)
        borders = pairwise(accumulate(counts, initial=start))
        return {name: pool[a:b] for name, (a, b) in zip(names, borders, strict=True)}


def _part_of(
    manifest: Manifest, bag: NDArray[np.int32], sample: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the part, an index into `PARTS`, of each sample in the order of `Manifest.places`."""
    labelled, unlabelled, bags, val, test = range(len(PARTS))
    visible, split = manifest.visible[sample], manifest.split[sample]
    training = np.select([visible, bag >= 0], [labelled, bags], unlabelled)
    return np.select([split == TRAIN, split == VAL], [training, val], test)


def _announced_proportions(manifest: Manifest, classes: int, noise: float) -> list[Tensor]:
    """Return the bag proportions that each site receives, float64 [B, classes].

    They are exact, or have noise.
    """
    if manifest.bagged is None:
        return []
    counts, absent = manifest.bagged.counts, classes - manifest.num_classes
    exact = [proportions_of(np.pad(of_site, ((0, 0), (0, absent)))) for of_site in counts]
    return [
        with_noise(told, noise, rng.numpy_stream(manifest.seed, "prior-noise", site))
        if noise
        else told
        for site, told in enumerate(exact)
    ]


def _check_same_pool(data: DataSet, manifest: Manifest) -> None:
    count = len(data.labels)
    if len(manifest.site) != count or manifest.num_classes > len(data.classes):
        raise DataError(
            f"manifest of {manifest.dataset} is for {len(manifest.site)} images of "
            f"{manifest.num_classes} classes, the data are {count} images of "
            f"{len(data.classes)} classes: use its own data or make the split again"
        )
    if manifest.labels_sha256 not in ("", labels_digest(data.labels.cpu().numpy())):
        raise DataError(
            f"manifest of {manifest.dataset} was made for other labels or another order of the "
            "images: use its own data or make the split again"
        )
