"""Who masks with whom, who holds whose shares, and how many must be left.

With up to `MAX_COMPLETE_GRAPH` members, every member is a neighbour of every other (Bonawitz et al.
2017). With more, the members form a ring, in an order that a hash draws, and each is a neighbour of
the `half` next ones on either side (the Harary graph of Bell et al. 2020). A member also holds a
share of its own secrets.

Fewer than a third of the members may collude with the server (gamma), up to a third may be lost
(delta). Two conditions keep that safe against a server that names the lost as it likes:

- **One list.** ceil(2 n / 3) members must confirm the same survivors, and an honest one confirms
  one list only. Two lists would need 2 ceil(2 n / 3) <= n + c signatures, which c < n / 3 excludes
  (the condition 2 t > n + c of Bonawitz et al., Theorem 6.5). So each honest site opens one secret
  of every other site, never both. Of three members all must confirm: that bears one in league.
- **No gap.** In a ring, every `half` places in a row have `least` survivors or more. Of colluding
  members they have fewer, but for a chance of 2^-40 over all such rows (hypergeometric tail): so
  every row has an honest survivor. The honest survivors are then connected, and the 2 half holders
  of a secret have fewer than the threshold of 2 least colluding ones and at least as many left.
  Of a third lost by chance every row keeps `least`, but for 2^-30.
"""

import hashlib
from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from fedapp.protocol.secure_aggregation.context import MaskError, SumContext

MAX_COMPLETE_GRAPH = 500
"""Members up to which a ring would spare little: of 500 it links each to 466."""
SECURITY_BITS, CORRECTNESS_BITS = 40, 30
"""Chance, as a power of 1/2, of too many colluding members in some row; of too few left."""


def quorum(members: int) -> int:
    """Return how many must confirm: ceil(2 n / 3), so that a third may be lost; of three all.

    So twice as many are more than the members and those in league together: fewer than a third, or
    one of three.
    """
    return max(-(-2 * members // 3), (members + 1) // 2 + 1)


@dataclass(frozen=True)
class Graph:
    """The neighbours of one sum's members.

    ring: the members, in a ring's order. half: neighbours on either side; 0: all are neighbours.
    least: survivors in every `half` places in a row; 0: not asked for.
    """

    ring: tuple[int, ...]
    half: int = 0
    least: int = 0

    @cached_property
    def _places(self) -> dict[int, int]:
        return {site: place for place, site in enumerate(self.ring)}

    @property
    def threshold(self) -> int:
        """How many shares open a secret."""
        return 2 * self.least if self.half else quorum(len(self.ring))

    def holders(self, site: int) -> list[int]:
        """Return who holds shares of a member's secrets: its neighbours and itself, ascending."""
        if not self.half:
            return sorted(self.ring)
        at, count = self._places[site], len(self.ring)
        return sorted(self.ring[(at + i) % count] for i in range(-self.half, self.half + 1))

    def check(self, survivors: frozenset[int]) -> None:
        """Raise MaskError where so few are left that the sum would not be safe, or not open."""
        count, needed = len(self.ring), quorum(len(self.ring))
        if len(survivors) < needed:
            raise MaskError(
                f"{len(survivors)} of {count} sites are left in a masked sum, {needed} must be: "
                "repeat it when more sites are online"
            )
        if self.half:
            there = np.array([site in survivors for site in self.ring * 2])
            sums = np.concatenate([[0], np.cumsum(there)])
            fewest = int((sums[self.half :] - sums[: -self.half]).min())
            if fewest < self.least:
                raise MaskError(
                    f"the sites lost in a masked sum lie too close together: {fewest} of "
                    f"{self.half} in a row are left, {self.least} must be; repeat the sum"
                )


@lru_cache(maxsize=8)
def neighbour_graph(context: SumContext, members: tuple[int, ...]) -> Graph:
    """Return the graph of these members, ascending. Nobody chooses it: a hash draws the ring."""
    half, least = ring_parameters(len(members)) if len(members) > MAX_COMPLETE_GRAPH else (0, 0)
    order = context.digest("ring", list(members))
    drawn = {site: hashlib.sha256(f"{order} {site}".encode()).digest() for site in members}
    return Graph(tuple(sorted(members, key=drawn.__getitem__)) if half else members, half, least)


@lru_cache(maxsize=8)
def ring_parameters(members: int) -> tuple[int, int]:
    """Return the smallest safe (half, least) of a ring; members: above `MAX_COMPLETE_GRAPH`."""
    from scipy.stats import hypergeom  # half a second, for large cohorts alone

    colluding, left = (members - 1) // 3, members - members // 3
    unsafe, few = 2.0**-SECURITY_BITS / members, 2.0**-CORRECTNESS_BITS / members

    def least(half: int) -> int:
        # Not `isf`: so far out it can be one too small.
        tails = hypergeom.sf(np.arange(half + 2) - 1, members, colluding, half)
        return int(np.argmax(tails <= unsafe))

    def sure(half: int) -> bool:
        return bool(hypergeom.cdf(least(half) - 1, members, left, half) <= few)

    half = bisect_left(range(members // 2), True, key=sure)
    return half, least(half)
