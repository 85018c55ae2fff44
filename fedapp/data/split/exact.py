"""Splits with exact counts, as in FedSiam (Long et al., Sec. 4.1), FedUL and FedMatch.

Whatever a site learns from, all sites test on the same distribution: validation and test images are
distributed evenly, so that the mean over sites is the accuracy on all of them. Training images are
distributed as `split.deal` says:

- `iid`: evenly, class by class; `label_share` of the images of each site are labelled, evenly over
  its classes.
- `two_classes` (Non-IID-I): a site has two classes. Each class is cut into equal slices, one for
  each site that has it.
- `two_labelled_classes` (Non-IID-II): labelled images as before; all others at random.
- `uneven_labels` (Non-IID-III): images as for `iid`, but at most sites only the share
  `UNEVEN_LABELS_SHARE` is labelled.
- `majority` (FedUL's Non-IID, Table D.5 there): most of a class belongs to one site, or to a few if
  there are more sites than classes; all others have little of it. Labels as for `iid`.
- `ten_mixes` (FedMatch, FlexProtoFSSL): labelled images as for `iid`; among the others, site i has
  the classes with the frequencies `TEN_CLASS_MIX`, rotated by i places.
- `dirichlet_unlabelled`: labelled images as for `iid`; the others by Dir_K(`dirichlet_alpha`) for
  each class.
"""

import math

import numpy as np
from numpy.typing import NDArray

from fedapp.core import rng
from fedapp.core.errors import DataError
from fedapp.core.settings import UNEVEN_LABELS_SHARE, SplitSettings
from fedapp.data.split.manifest import TEST, TRAIN, VAL
from fedapp.data.split.shares import apportion, by_owner, dirichlet

Indices = NDArray[np.int64]

TEN_CLASS_MIX = np.array([0.50, 0.15, 0.03, 0.03, 0.03, 0.02, 0.03, 0.03, 0.03, 0.15])
"""Shares of ten classes among the unlabelled images of site 0 (FedMatch's code)."""
MAJORITY_FACTOR = 80.0
"""How many times more samples of a class its majority sites get under `split.deal=majority`."""


def deal_exactly(
    classes: NDArray[np.int64],
    split: NDArray[np.uint8],
    free: NDArray[np.bool_],
    settings: SplitSettings,
    seed: int,
) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    """Return the owner of every free sample, int32 [N], and which labels are visible, bool [N].

    classes: [N].
    split: the part of each sample.
    free: [N], the samples to distribute; all others have owner 0 and are visible.
    Raises DataError where `settings.deal` is impossible for this number of classes.
    """
    sites = settings.num_clients
    owner = np.zeros(len(classes), np.int32)
    for part in (VAL, TEST):
        members = _shuffled(np.flatnonzero(split == part), classes, seed, part)
        owner[members] = _round_robin(len(members), sites)
    training = _shuffled(np.flatnonzero((split == TRAIN) & free), classes, seed, TRAIN)
    if settings.deal in ("two_classes", "two_labelled_classes"):
        _two_classes(owner, training, classes, sites, seed)
    elif settings.deal == "majority":
        _majority(owner, training, classes, sites, seed)
    else:
        owner[training] = _round_robin(len(training), sites)
    visible = (split != TRAIN) | ~free
    shares = _label_shares(settings, seed)
    owned_by_site = by_owner(training, owner, sites)
    for site, (owned, share) in enumerate(zip(owned_by_site, shares, strict=True)):
        there = len(np.unique(classes[owned]))
        visible[owned[_evenly_spaced(len(owned), share, site, there)]] = True
    if settings.deal == "two_labelled_classes":
        others = np.flatnonzero(~visible)
        draw = rng.numpy_stream(seed, "exact-unlabelled")
        owner[draw.permutation(others)] = _round_robin(len(others), sites)
    if settings.deal in ("ten_mixes", "dirichlet_unlabelled"):
        for label in range(int(classes.max()) + 1):
            draw = rng.numpy_stream(seed, "exact-mix", label)
            others = draw.permutation(np.flatnonzero(~visible & (classes == label)))
            counts = apportion(draw, len(others), _class_shares(label, classes, settings, draw))
            owner[others] = np.repeat(np.arange(sites, dtype=np.int32), counts)
    return owner, visible


def _shuffled(members: Indices, classes: NDArray[np.int64], seed: int, part: int) -> Indices:
    """Return the samples sorted by class, each class in random order."""
    order = rng.numpy_stream(seed, "exact-deal", part).permutation(members)
    by_class: Indices = order[np.argsort(classes[order], kind="stable")]
    return by_class


def _round_robin(count: int, sites: int) -> NDArray[np.int32]:
    """Return 0, 1, ..., sites - 1, 0, ...: [count]. Samples sorted by class are spread evenly."""
    return (np.arange(count) % sites).astype(np.int32)


def _evenly_spaced(count: int, share: float, site: int, classes: int) -> NDArray[np.bool_]:
    """Return a mask [count] with round(count * share) entries set, at equal distances.

    The samples are sorted by class. If fewer are marked than there are classes, each site's marks
    begin one class further on. Otherwise all sites would have labels of the same few classes, and
    nobody would have labels of the others.
    """
    marked = round(count * share)
    turn = site * marked * count // classes % count if 0 < marked < classes else 0
    marks = (np.arange(count + 1) * marked + turn) // max(count, 1)
    chosen: NDArray[np.bool_] = np.diff(marks) > 0
    return chosen


def _two_classes(
    owner: NDArray[np.int32],
    training: Indices,
    classes: NDArray[np.int64],
    sites: int,
    seed: int,
) -> None:
    """Give each site slices of two classes. The slices of a class differ by at most one sample."""
    names = np.unique(classes[training])
    if not 2 <= len(names) <= 2 * sites:
        raise DataError(
            f"{sites} sites of two classes each cannot share {len(names)}: choose split.deal=iid "
            "or another split.num_clients"
        )
    pairs = pairs_of_classes(len(names), sites, rng.numpy_stream(seed, "exact-pairs"))
    for index, name in enumerate(names.tolist()):
        takers = np.flatnonzero((pairs == index).any(1))
        slices = np.array_split(training[classes[training] == name], len(takers))
        for site, members in zip(takers, slices, strict=True):
            owner[members] = site


def _majority(
    owner: NDArray[np.int32],
    training: Indices,
    classes: NDArray[np.int64],
    sites: int,
    seed: int,
) -> None:
    """Deal each class by weights U[0.45, 0.55], times `MAJORITY_FACTOR` at its majority sites.

    Site s is a majority site of class c where the intervals [s / K, (s + 1) / K) and [c / C, (c +
    1) / C) overlap.
    """
    count, each = int(classes.max()) + 1, np.arange(sites)
    for name in np.unique(classes[training]).tolist():
        draw, members = (
            rng.numpy_stream(seed, "majority", name),
            training[classes[training] == name],
        )
        mostly = (each * count < (name + 1) * sites) & (name * sites < (each + 1) * count)
        weights = draw.uniform(0.45, 0.55, sites) * np.where(mostly, MAJORITY_FACTOR, 1.0)
        counts = apportion(draw, len(members), weights / weights.sum())
        owner[members] = np.repeat(each, counts)


def pairs_of_classes(classes: int, sites: int, draw: np.random.Generator) -> NDArray[np.int64]:
    """Return two different classes for each site, [sites, 2]; class counts differ by at most one.

    Random orders of all classes are concatenated and cut into pairs. classes: at least 2.
    """
    row: list[int] = []
    while len(row) < 2 * sites:
        order = draw.permutation(classes).tolist()
        if len(row) % 2 and row[-1] == order[0]:  # a pair across two orders
            order[0], order[1] = order[1], order[0]
        row += order
    return np.array(row[: 2 * sites]).reshape(sites, 2)


def _class_shares(
    label: int, classes: NDArray[np.int64], settings: SplitSettings, draw: np.random.Generator
) -> NDArray[np.float64]:
    """Return the share of a class's unlabelled samples that each site gets: [sites], sum 1."""
    if settings.deal == "dirichlet_unlabelled":
        return dirichlet(draw, settings.dirichlet_alpha, settings.num_clients)
    if (there := int(classes.max()) + 1) != len(TEN_CLASS_MIX):
        raise DataError(
            f"split.deal=ten_mixes is for {len(TEN_CLASS_MIX)} classes, the data have {there}: "
            "choose split.deal=dirichlet_unlabelled"
        )
    places = (label - np.arange(settings.num_clients)) % len(TEN_CLASS_MIX)
    shares: NDArray[np.float64] = TEN_CLASS_MIX[places] / TEN_CLASS_MIX[places].sum()
    return shares


def _label_shares(settings: SplitSettings, seed: int) -> NDArray[np.float64]:
    """Return the labelled share of the training samples of each site, [sites]."""
    sites, mean = settings.num_clients, settings.label_share
    if settings.deal != "uneven_labels":
        return np.full(sites, mean)
    many = math.ceil(mean * sites - 1e-9)  # 0.07 * 100 is a little above 7
    shares = np.full(sites, UNEVEN_LABELS_SHARE)
    chosen = rng.numpy_stream(seed, "exact-labels").permutation(sites)[:many]
    shares[chosen] = (mean * sites - UNEVEN_LABELS_SHARE * (sites - many)) / many
    return shares
