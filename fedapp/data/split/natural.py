"""The split that a data set has by itself: each input stays where it comes from.

Every draw is keyed by the site's name and not by its number or by the other sites: which patients a
hospital trains on, and which labels it sees, stay the same whoever else takes part.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedapp.core import rng
from fedapp.core.errors import ConfigError, name_suggestion
from fedapp.core.settings import SplitSettings
from fedapp.data.inputs import DataSet, NaturalSites
from fedapp.data.split.manifest import TEST, TRAIN, VAL


def only_sites(data: DataSet, names: tuple[str, ...], dataset: str) -> DataSet:
    """Return the inputs of these sites alone, in the order of the names; empty: of all.

    Raises ConfigError where the data set does not know where its inputs come from, or knows no such
    site.
    """
    if data.sites is None:
        raise ConfigError(
            f"split.deal = 'natural': {dataset} does not say where its inputs come from: choose "
            "data that do, such as data.name=heart, or another deal"
        )
    known = data.sites.names
    for name in names:
        if name not in known:
            raise ConfigError(
                f"data.sites: {dataset} has no {name!r}; {name_suggestion(name, known)}"
            )
    kept = [np.flatnonzero(data.sites.owner == known.index(name)) for name in names or known]
    owner = np.repeat(np.arange(len(kept)), [len(rows) for rows in kept])
    chosen = data.chosen(np.concatenate(kept))
    assert chosen.sites is not None
    return replace(chosen, sites=replace(chosen.sites, names=names or known, owner=owner))


def deal_naturally(
    classes: NDArray[np.int64], sites: NaturalSites, settings: SplitSettings, seed: int
) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """Return the part of each input, uint8 [N], and whether its site sees its label, bool [N].

    classes: int64 [N]. Each class of a site is cut into train, val and test by `train_share` and
    `val_share`. Where the data set has a test part of its own, that stands, and `val_share` of the
    class is taken from the rest. Of the site's training inputs a share of `label_share`, at
    random, has labels; a smaller share is a part of a larger one.
    """
    split, visible = np.full(len(classes), TRAIN, np.uint8), np.ones(len(classes), np.bool_)
    for site, name in enumerate(sites.names):
        here = sites.owner == site
        for label in np.unique(classes[here]).tolist():
            members = np.flatnonzero(here & (classes == label))
            order = rng.numpy_stream(seed, "natural-split", name, label).permutation(members)
            if sites.test is not None:
                split[order[sites.test[order]]] = TEST
                free = order[~sites.test[order]]
                split[free[: round(len(order) * settings.val_share)]] = VAL
                continue
            train = round(len(order) * settings.train_share)
            both = round(len(order) * (settings.train_share + settings.val_share))
            split[order[train:both]], split[order[both:]] = VAL, TEST
        training = np.flatnonzero(here & (split == TRAIN))
        order = rng.numpy_stream(seed, "natural-labels", name).permutation(training)
        visible[order[round(len(order) * settings.label_share) :]] = False
    return split, visible
