"""Splits a pool over sites (paper, Sec. VI-A): label skew by Dir_K, labelled share by Dir_2.

In addition to the paper, there are labelled images for the server, splits with exact counts
(`exact`), sites with bags in place of labels, and sites with unlabelled data only.

Every draw has its own key (class; class and part; site), so the share of a class or a site does not
depend on the draws of others. No draw is repeated until it fits: a site without images is a valid
result, so no setting can make the split hang.
"""

from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedapp.core import rng
from fedapp.core.errors import DataError
from fedapp.core.settings import LABELS, SplitSettings
from fedapp.data.inputs import UNKNOWN, NaturalSites
from fedapp.data.split.bags import put_into_bags
from fedapp.data.split.exact import deal_exactly
from fedapp.data.split.groups import dealt_by_patient
from fedapp.data.split.manifest import TEST, TRAIN, VAL, Manifest, labels_digest
from fedapp.data.split.natural import deal_naturally
from fedapp.data.split.shares import apportion, by_owner, dirichlet
from fedapp.protocol.messages import SERVER_SITE


def partition(
    labels: NDArray[np.integer] | Tensor,
    settings: SplitSettings,
    seed: int,
    dataset: str,
    patients: NDArray[np.int64] | None = None,
    sites: NaturalSites | None = None,
) -> Manifest:
    """Return a manifest that says who owns each of N samples.

    labels: integers [N], N >= 1, each at least 0 or `UNKNOWN`.
    patients: [N], from 0, which samples belong to one patient, or are copies of one image; then
        these groups are distributed as wholes (`split.groups`).

    The pool is divided at random into train, val and test. All three distribute class c over the
    sites by the same p_c ~ Dir_K(dirichlet_alpha). The training data of each site are divided into
    labelled and unlabelled by (p_s, p_u) ~ Dir_2(label_alpha), with p_s times 2 label_share. Other
    values of `deal` have rules of their own. Before this, the server takes server_share of the
    training data, all labelled.

    A site that knows bags sees no label; its training data are put into bags (`split.bags`). A site
    that knows nothing has unlabelled training data only.

    With `split.deal=natural` each sample stays where `sites` says that it comes from
    (`split.natural`).

    All this applies to samples whose class is known. The others are distributed evenly over all
    sites, as unlabelled training data. Raises DataError where there is too little data.
    """
    classes = _checked(labels, dataset)
    if settings.deal == "natural":
        if sites is None or UNKNOWN in classes:
            raise DataError(
                f"{dataset}: split.deal=natural needs to know of every sample its class and where "
                "it comes from: choose another deal"
            )
        return _natural(classes, sites, settings, seed, dataset)
    if patients is not None:
        deal = partial(_partition, settings=settings, seed=seed, dataset=dataset)
        return dealt_by_patient(classes, patients, settings, deal)
    known = classes != UNKNOWN
    if known.all():
        return _partition(classes, settings, seed, dataset)
    _check_unknown(len(classes) - int(known.sum()), settings, dataset)
    rest = _partition(classes[known], settings, seed, dataset)
    site, split = np.empty(len(classes), np.int32), np.full(len(classes), TRAIN, np.uint8)
    visible = np.zeros(len(classes), np.bool_)
    site[known], split[known], visible[known] = rest.site, rest.split, rest.visible
    others = rng.numpy_stream(seed, "unknown").permutation(np.flatnonzero(~known))
    site[others] = np.arange(len(others)) % settings.num_clients
    digest = labels_digest(classes)
    return replace(rest, site=site, split=split, visible=visible, labels_sha256=digest)


def _natural(
    classes: NDArray[np.int64],
    sites: NaturalSites,
    settings: SplitSettings,
    seed: int,
    dataset: str,
) -> Manifest:
    """Return who owns each of N samples where each stays where it comes from."""
    split, visible = deal_naturally(classes, sites, settings, seed)
    return Manifest(
        dataset=dataset,
        num_clients=len(sites.names),
        num_classes=int(classes.max()) + 1,
        seed=seed,
        site=sites.owner.astype(np.int32),
        split=split,
        visible=visible,
        labels_sha256=labels_digest(classes),
    )


def _partition(
    classes: NDArray[np.int64], settings: SplitSettings, seed: int, dataset: str
) -> Manifest:
    """Return who owns each of N samples with classes int64 [N], all of which are known."""
    split = _cut(len(classes), settings, seed)
    if settings.deal == "dirichlet":
        site = _deal(classes, split, settings, seed)
        visible = _label(site, split, settings, seed)
    else:
        site = _reserve(classes, split, settings, seed)
        free = site != SERVER_SITE
        owner, visible = deal_exactly(classes, split, free, settings, seed)
        site[free] = owner[free]
    knows = np.array([settings.known_at(k) == LABELS for k in range(settings.num_clients)])
    visible &= (split != TRAIN) | (site == SERVER_SITE) | knows[np.maximum(site, 0)]
    bagged = put_into_bags(classes, site, ~visible, settings, seed) if settings.bags else None
    return Manifest(
        dataset=dataset,
        num_clients=settings.num_clients,
        num_classes=int(classes.max()) + 1,
        seed=seed,
        site=site,
        split=split,
        visible=visible,
        labels_sha256=labels_digest(classes),
        bagged=bagged,
    )


def _checked(labels: NDArray[np.integer] | Tensor, dataset: str) -> NDArray[np.int64]:
    array = labels.cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if array.ndim != 1 or len(array) == 0 or not np.issubdtype(array.dtype, np.integer):
        raise DataError(
            f"{dataset}: labels are {array.dtype} {list(array.shape)}, must be integers [N], "
            "N >= 1: check the data set"
        )
    if array.min() < UNKNOWN:
        raise DataError(
            f"{dataset}: label {array.min()} is negative: number the classes from 0; {UNKNOWN} is "
            "for what has no known one"
        )
    if array.max() == UNKNOWN:
        raise DataError(f"{dataset}: no input has a known class: give some their labels")
    return array.astype(np.int64)


def _check_unknown(count: int, settings: SplitSettings, dataset: str) -> None:
    """Raise DataError where the split needs the classes of inputs of which `count` are unknown."""
    if settings.bags:
        asked, remedy = f"bags={settings.bags}", "0"
    elif settings.labels == "all":
        asked, remedy = "labels=all", "some"
    else:
        return
    raise DataError(
        f"{dataset}: split.{asked}: the classes of {count} inputs are not known: choose {remedy}"
    )


def _cut(count: int, settings: SplitSettings, seed: int) -> NDArray[np.uint8]:
    """Divide the pool at random into train, val and test: uint8 [N].

    With `test_images`, the last ones of the pool are the test part, and all that is neither test
    nor validation is for training.
    """
    if last := settings.test_images:
        val = round(count * settings.val_share)
        if count <= last + val:
            raise DataError(
                f"{count} images, split.test_images = {last} and {val} for validation: none are "
                "left to learn from: choose fewer"
            )
        split = np.full(count, TRAIN, np.uint8)
        split[-last:] = TEST
        split[rng.numpy_stream(seed, "split").permutation(count - last)[:val]] = VAL
        return split
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
    """Give every sample an owner, int32 [N]: one p_c for each class, used in all three parts."""
    site = _reserve(classes, split, settings, seed)
    free, sites = site != SERVER_SITE, np.arange(settings.num_clients, dtype=np.int32)
    for label in np.unique(classes).tolist():
        stream = rng.numpy_stream(seed, "class-shares", label)
        shares = dirichlet(stream, settings.dirichlet_alpha, settings.num_clients)
        for part in (TRAIN, VAL, TEST):
            members = np.flatnonzero((classes == label) & (split == part) & free)
            draw = rng.numpy_stream(seed, "deal", label, part)
            counts = apportion(draw, len(members), shares)
            site[draw.permutation(members)] = np.repeat(sites, counts)
    return site


def _reserve(
    classes: NDArray[np.int64], split: NDArray[np.uint8], settings: SplitSettings, seed: int
) -> NDArray[np.int32]:
    """Reserve the server's share of training samples: int32 [N], SERVER_SITE or 0.

    Every class contributes the same number, plus or minus one. A class with too few samples
    contributes all of them, and the other classes the rest. A larger share contains every smaller
    one.
    """
    training = np.flatnonzero(split == TRAIN)
    rank = np.empty(len(training), np.int64)  # of a sample in its class's random order
    for label in np.unique(classes[training]).tolist():
        members = np.flatnonzero(classes[training] == label)
        draw = rng.numpy_stream(seed, "server-share", label)
        rank[members] = draw.permutation(len(members))
    taken = np.lexsort((classes[training], rank))[: round(len(training) * settings.server_share)]
    site = np.zeros(len(classes), np.int32)
    site[training[taken]] = SERVER_SITE
    return site


def _label(
    site: NDArray[np.int32], split: NDArray[np.uint8], settings: SplitSettings, seed: int
) -> NDArray[np.bool_]:
    """Draw the labelled share of each site's training samples: bool [N], True outside training.

    No draw depends on `label_share`, so what is labelled at a smaller share is labelled at every
    larger one.
    """
    visible: NDArray[np.bool_] = split != TRAIN
    visible |= site == SERVER_SITE
    for owner, samples in enumerate(by_owner(np.flatnonzero(~visible), site, settings.num_clients)):
        if len(samples) == 0:
            continue
        draw = rng.numpy_stream(seed, "label-share", owner)
        # The factor is exactly 1.0 at the paper's label_share of 0.5.
        share = dirichlet(draw, settings.label_alpha, 2)[0] * (2 * settings.label_share)
        labelled, _ = apportion(draw, len(samples), np.array([share, 1 - share]))
        visible[draw.permutation(samples)[:labelled]] = True
    return visible
