"""Deal a pool of images to sites (paper, Sec. VI-A): label skew by Dir_K, label share by Dir_2.

Every draw has its own key (class, class and split, site), so one class's or one site's share does
not depend on how many draws others made. Nothing is drawn again until it fits: a site with no
images is a legal result, so no setting can make the split hang.
"""

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedapp.data.manifest import TEST, TRAIN, VAL, Manifest, labels_digest
from fedapp.ground import rng
from fedapp.ground.errors import DataError
from fedapp.ground.settings import SplitSettings


def partition(
    labels: NDArray[np.integer] | Tensor, settings: SplitSettings, seed: int, dataset: str
) -> Manifest:
    """Return who owns each of N samples.

    labels: integers [N] >= 0, N >= 1. The pool is cut at random into train, val and test; all three
    deal class c by the same p_c ~ Dir_K(dirichlet_alpha); each site's training data are cut into
    labelled and unlabelled by (p_s, p_u) ~ Dir_2(label_alpha), p_s times 2 label_share.
    """
    classes = _checked(labels, dataset)
    split = _cut(len(classes), settings, seed)
    site = _deal(classes, split, settings, seed)
    return Manifest(
        dataset=dataset,
        num_clients=settings.num_clients,
        num_classes=int(classes.max()) + 1,
        seed=seed,
        site=site,
        split=split,
        visible=_label(site, split, settings, seed),
        labels_sha256=labels_digest(classes),
    )


def dirichlet(draw: np.random.Generator, alpha: float, size: int) -> NDArray[np.float64]:
    """Draw from the symmetric Dir_size(alpha): [size], >= 0, sums to 1; any alpha > 0.

    Works on logarithms of gamma variates, Gamma(a) = Gamma(a + 1) * U ** (1 / a): at a small alpha
    the variates themselves underflow to 0 and their shares to NaN. Below 1e-300 alpha counts as
    1e-300: one entry has it all either way.
    """
    alpha = max(alpha, 1e-300)
    uniform = 1.0 - draw.random(size)  # in (0, 1]: the logarithm is finite
    logs = np.log(draw.standard_gamma(alpha + 1.0, size)) + np.log(uniform) / alpha
    shares = np.exp(logs - logs.max())
    normalised: NDArray[np.float64] = shares / shares.sum()
    return normalised


def apportion(
    draw: np.random.Generator, count: int, shares: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Share out `count` things in whole numbers: [len(shares)], >= 0, sums to `count`.

    Systematic rounding: the cumulative shares are cut at the integers after one random shift. Each
    number is within 1 of count * share and its expectation is exactly that. Largest remainders
    would give every small share 0 in a small split each time, so that a site with few training
    images would as a rule have no test images.
    """
    edges = np.floor(np.cumsum(shares) * count + draw.random()).astype(np.int64)
    edges[-1] = count  # the sum of the shares may miss 1 by a rounding error
    return np.diff(np.minimum(edges, count), prepend=0)


def _checked(labels: NDArray[np.integer] | Tensor, dataset: str) -> NDArray[np.int64]:
    array = labels.cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if array.ndim != 1 or len(array) == 0 or not np.issubdtype(array.dtype, np.integer):
        raise DataError(
            f"{dataset}: labels are {array.dtype} {list(array.shape)}, must be integers [N], "
            "N >= 1: check the data set"
        )
    if array.min() < 0:
        raise DataError(f"{dataset}: label {array.min()} is negative: number the classes from 0")
    return array.astype(np.int64)


def _cut(count: int, settings: SplitSettings, seed: int) -> NDArray[np.uint8]:
    """Cut the pool at random into train, val and test: uint8 [N]."""
    train = round(count * settings.train_share)
    val = round(count * (settings.train_share + settings.val_share)) - train
    split = np.full(count, TEST, np.uint8)
    order = rng.numpy_stream(seed, "split").permutation(count)
    split[order[:train]] = TRAIN
    split[order[train : train + val]] = VAL
    return split


def _deal(
    classes: NDArray[np.int64], split: NDArray[np.uint8], settings: SplitSettings, seed: int
) -> NDArray[np.int32]:
    """Give every sample an owner, int32 [N]: one p_c per class, used for all three splits."""
    site = np.empty(len(classes), np.int32)
    sites = np.arange(settings.num_clients, dtype=np.int32)
    for label in np.unique(classes).tolist():
        stream = rng.numpy_stream(seed, "class-shares", label)
        shares = dirichlet(stream, settings.dirichlet_alpha, settings.num_clients)
        for part in (TRAIN, VAL, TEST):
            members = np.flatnonzero((classes == label) & (split == part))
            draw = rng.numpy_stream(seed, "deal", label, part)
            counts = apportion(draw, len(members), shares)
            site[draw.permutation(members)] = np.repeat(sites, counts)
    return site


def _label(
    site: NDArray[np.int32], split: NDArray[np.uint8], settings: SplitSettings, seed: int
) -> NDArray[np.bool_]:
    """Draw each site's labelled share of its training samples: bool [N], True outside training.

    No draw depends on `label_share`: what is labelled at a smaller one is labelled at a larger one.
    """
    visible: NDArray[np.bool_] = split != TRAIN
    training = np.flatnonzero(split == TRAIN)
    owned = training[np.argsort(site[training], kind="stable")]
    ends = np.cumsum(np.bincount(site[training], minlength=settings.num_clients))
    for owner, samples in enumerate(np.split(owned, ends[:-1])):
        if len(samples) == 0:
            continue
        draw = rng.numpy_stream(seed, "label-share", owner)
        # Times 1.0 exactly at the paper's 0.5.
        share = dirichlet(draw, settings.label_alpha, 2)[0] * (2 * settings.label_share)
        labelled, _ = apportion(draw, len(samples), np.array([share, 1 - share]))
        visible[draw.permutation(samples)[:labelled]] = True
    return visible
