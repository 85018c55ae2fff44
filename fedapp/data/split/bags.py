"""The bags of a split: which sample lies in which bag, and how samples are put into bags.

The training samples of a site are put into bags whose class proportions differ and are known
exactly.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedapp.core import rng
from fedapp.core.errors import DataError
from fedapp.core.settings import BAGS, SplitSettings
from fedapp.data.bag_proportions import describe_bags, fit_to_sums, proportions_of
from fedapp.data.split.shares import apportion, by_owner, dirichlet
from fedapp.protocol.messages import SERVER_SITE

BAG_ALPHA = 1.0
"""Parameter of the Dirichlet draws that distribute a class over a site's bags; 1: uniform."""
MIN_WEIGHT = 0.1
"""The weight of a class in a bag is drawn from U[MIN_WEIGHT, 1]. This and the following constants
are those of FedUL's code.
"""
ROUNDING_ERROR = 1e-9
"""Added to numbers of samples before they are rounded down, to undo floating-point errors."""
DOMINANT_FACTOR = 10.0
"""Factor of the weight of class m mod C in bag m."""


@dataclass(frozen=True, eq=False)
class BagAssignment:
    """The bags of a split of N samples over K sites, with B bags at each, and C classes.

    bag: int32 [N], the bag of its owner in which a sample lies, in [0, B); -1: in none.
    repeats: int32 [R, 2], samples that lie in further bags: (position in the pool, bag).
    counts: int32 [K, B, C], the samples of each class in a bag, including repeated ones. The exact
        proportions of the bags follow from them.
    """

    bag: NDArray[np.int32]
    repeats: NDArray[np.int32]
    counts: NDArray[np.int32]

    @property
    def bags(self) -> int:
        """B, the number of bags of each site."""
        return int(self.counts.shape[1])

    def describe(self) -> str:
        """Describe how many bags there are, and how well each site's bags identify its classes."""
        filled = [proportions_of(own[own.any(1)]) for own in self.counts if own.any()]
        return describe_bags(filled) if filled else f"bags: {self.bags} a site, all of them empty"

    def check(
        self, site: NDArray[np.int32], visible: NDArray[np.bool_], sites: int, classes: int
    ) -> None:
        """Raise DataError where the bags do not fit the split.

        site, visible: as in the manifest. sites, classes: K and C.
        """
        shapes = (self.bag.shape, self.repeats.shape[1:], self.counts.shape[::2])
        dtypes = {array.dtype for array in (self.bag, self.repeats, self.counts)}
        if shapes != (site.shape, (2,), (sites, classes)) or dtypes != {np.dtype(np.int32)}:
            raise DataError(
                f"manifest: bag must be int32 [{len(site)}], repeats int32 [R, 2] and bag_counts "
                f"int32 [{sites}, B, {classes}]: make the split again"
            )
        if np.any((self.bag < -1) | (self.bag >= self.bags)) or np.any(visible[self.bag >= 0]):
            raise DataError(
                "manifest: must put samples whose labels are hidden, and no others, into "
                f"{self.bags} bags: make the split again"
            )
        samples, bags = self.repeats.T
        if (
            np.any((samples < 0) | (samples >= len(site)) | (bags < 0) | (bags >= self.bags))
            or np.any(self.bag[samples] < 0)
            or not np.array_equal(self._sizes(site, sites), self.counts.sum(2))
        ):
            raise DataError(
                "manifest: its bags hold other numbers of samples than bag_counts says: "
                "make the split again"
            )

    def _sizes(self, site: NDArray[np.int32], sites: int) -> NDArray[np.int64]:
        """Return the number of samples in each bag, [K, B]."""
        owner, bag, _ = self.places(site)
        inside = (bag >= 0) & (owner != SERVER_SITE)
        cells = owner[inside].astype(np.int64) * self.bags + bag[inside]
        return np.bincount(cells, minlength=sites * self.bags).reshape(sites, self.bags)

    def places(
        self, site: NDArray[np.int32]
    ) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int64]]:
        """Return owner, bag and position in the pool: of all N samples, then of the R repeats.

        site: int32 [N], the owners of the samples.
        """
        again = self.repeats[:, 0].astype(np.int64)
        sample = np.concatenate([np.arange(len(site)), again])
        return site[sample], np.concatenate([self.bag, self.repeats[:, 1]]), sample


def put_into_bags(
    classes: NDArray[np.int64],
    site: NDArray[np.int32],
    hidden: NDArray[np.bool_],
    settings: SplitSettings,
    seed: int,
) -> BagAssignment:
    """Put the hidden samples of sites that know bags into B bags each, as `bag_mix` says.

    classes, site: [N], the class and the owner of each sample.
    hidden: [N], whether a sample's label is hidden.

    dirichlet: the samples of class c at a site are distributed over its bags by p ~
        Dir_B(BAG_ALPHA).

    dominant: all samples are distributed over bags of equal size, by a table of weights
        U[MIN_WEIGHT, 1], times DOMINANT_FACTOR for class m mod C of bag m.

    official: bag m draws its samples of class c from all n_c samples of that class, so a sample may
        lie in several bags or in none. The number is n / B w_mc / sum_c w_mc of the site's n
        samples, but at most n_c; where all sites have equal distributions it is n_c C / B w_mc /
        sum_m w_mc.
    """
    num_classes, dealer = int(classes.max()) + 1, _Dealer(settings, seed)
    bag = np.full(len(classes), -1, np.int32)
    repeats = [np.empty((0, 2), np.int32)]
    counts = np.zeros((settings.num_clients, settings.bags, num_classes), np.int32)
    for owner, owned in enumerate(by_owner(np.flatnonzero(hidden), site, settings.num_clients)):
        if settings.known_at(owner) != BAGS or len(owned) == 0:
            continue
        of_class = [owned[classes[owned] == label] for label in range(num_classes)]
        places = np.concatenate(list(dealer.places(owner, of_class)))
        np.add.at(counts[owner], (places[:, 1], classes[places[:, 0]]), 1)
        samples, first = np.unique(places[:, 0], return_index=True)
        bag[samples] = places[first, 1]
        repeats.append(np.delete(places, first, 0).astype(np.int32))
    return BagAssignment(bag, np.concatenate(repeats), counts)


class _Dealer:
    """Distributes the samples of one site after another; every draw is keyed by site and class."""

    def __init__(self, settings: SplitSettings, seed: int) -> None:
        self._mix, self._bags, self._seed = settings.bag_mix, settings.bags, seed
        self._alike = settings.deal == "iid"

    def places(
        self, owner: int, of_class: Sequence[NDArray[np.int64]]
    ) -> Iterator[NDArray[np.int64]]:
        """Yield, class by class, pairs of a sample and its bag: [places, 2].

        of_class: the site's samples of each class.
        """
        sizes = np.array([len(members) for members in of_class])
        if self._mix == "dominant":
            rows = np.full(self._bags, sizes.sum() / self._bags)
            fit = fit_to_sums(self._weights(owner, len(sizes)), rows, sizes.astype(np.float64))
        elif self._mix == "official":
            table = self._weights(owner, len(sizes))
            if self._alike:
                fit = table / table.sum(0) * sizes * len(sizes) / self._bags
            else:
                fit = table / table.sum(1, keepdims=True) * sizes.sum() / self._bags
        for label in np.flatnonzero(sizes).tolist():
            draw, members = rng.numpy_stream(self._seed, "bags", owner, label), of_class[label]
            if self._mix == "official":
                wanted = fit[:, label] + ROUNDING_ERROR
                counts = np.minimum(wanted, len(members)).astype(np.int64)
                chosen = np.concatenate([draw.permutation(members)[:count] for count in counts])
            else:
                shares = (
                    dirichlet(draw, BAG_ALPHA, self._bags)
                    if self._mix == "dirichlet"
                    else fit[:, label] / len(members)
                )
                counts = apportion(draw, len(members), shares)
                chosen = draw.permutation(members)
            yield np.stack([chosen, np.repeat(np.arange(self._bags), counts)], 1)

    def _weights(self, owner: int, num_classes: int) -> NDArray[np.float64]:
        """Draw the weights of a site, [B, C], above 0; one table for all where sites are alike."""
        draw = rng.numpy_stream(self._seed, "bag-weights", *(() if self._alike else (owner,)))
        weights = draw.uniform(MIN_WEIGHT, 1, (self._bags, num_classes))
        numbers = np.arange(self._bags)
        weights[numbers, numbers % num_classes] *= DOMINANT_FACTOR
        return weights
