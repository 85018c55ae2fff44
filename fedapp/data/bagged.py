"""Which sample lies in which bag of its site, and how many of each class every bag holds."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedapp.data.bags import in_words, proportions_of
from fedapp.ground.errors import DataError
from fedapp.messages.protocol import SERVER_SITE


@dataclass(frozen=True, eq=False)
class Bagged:
    """The bags of a split of N samples at K sites, B bags at each, C classes.

    bag: int32 [N], in which one of its owner's a sample lies, in [0, B); -1: in none.
    repeats: int32 [R, 2], samples that lie in further bags: (position in the pool, bag).
    counts: int32 [K, B, C], how many samples of each class a bag holds, repeated ones too: what is
        told of the bags, exactly.
    """

    bag: NDArray[np.int32]
    repeats: NDArray[np.int32]
    counts: NDArray[np.int32]

    @property
    def bags(self) -> int:
        """Bags of each site, B."""
        return int(self.counts.shape[1])

    def in_words(self) -> str:
        """Say how many bags there are, and how well each site's tell its classes apart."""
        filled = [proportions_of(own[own.any(1)]) for own in self.counts if own.any()]
        return in_words(filled) if filled else f"bags: {self.bags} a site, all of them empty"

    def check(
        self, site: NDArray[np.int32], visible: NDArray[np.bool_], sites: int, classes: int
    ) -> None:
        """Raise DataError where the bags do not fit the split.

        site, visible: as the manifest has them. sites, classes: K and C.
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
        """Return how many samples each bag holds, [K, B]."""
        owner, bag, _ = self.places(site)
        inside = (bag >= 0) & (owner != SERVER_SITE)
        cells = owner[inside].astype(np.int64) * self.bags + bag[inside]
        return np.bincount(cells, minlength=sites * self.bags).reshape(sites, self.bags)

    def places(
        self, site: NDArray[np.int32]
    ) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int64]]:
        """Return owner, bag and position in the pool of all N samples, then of the R repeated.

        site: int32 [N], the samples' owners.
        """
        again = self.repeats[:, 0].astype(np.int64)
        sample = np.concatenate([np.arange(len(site)), again])
        return site[sample], np.concatenate([self.bag, self.repeats[:, 1]]), sample
