"""The graph of a masked sum: who masks with whom, who holds whose shares, how many must be left.

With up to `MAX_COMPLETE_GRAPH` members, every member is a neighbour of every other (Bonawitz et al.
2017). With more, the members form a ring, in an order that a hash draws, and each is a neighbour of
the `half` next ones on either side (the Harary graph of Bell et al. 2020). A member also holds a
share of its own secrets.

Fewer than a third of the members may collude with the server (gamma), and up to a third may drop
out (delta). Two conditions keep the sum safe from a server that reports drop-outs as it likes:

- **One list.** ceil(2 n / 3) members must confirm the same survivors, and an honest member confirms
  only one list. With c colluding members, two lists would need 2 ceil(2 n / 3) <= n + c signatures,
  which c < n / 3 excludes (the condition 2 t > n + c of Bonawitz et al., Theorem 6.5). Each honest
  site therefore opens one secret of every other site and never both. Of three members all must
  confirm, which tolerates one colluding member.
- **No gap.** In a ring, every `half` consecutive places must have `least` survivors or more. They
  have fewer than `least` colluding members, except with a probability of 2^-40 over all such
  stretches (hypergeometric tail), so that every stretch has an honest survivor. The honest
  survivors are then connected. Of the 2 half holders of a secret, fewer than the threshold of
  2 least collude, and at least that many are left. If a third drops out by chance, every stretch
  keeps `least` survivors except with a probability of 2^-30.
"""

import hashlib
from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from fedapp.protocol.secure_aggregation.context import MaskError, SumContext

MAX_COMPLETE_GRAPH = 500
"""Up to so many members a ring would save little: with 500 it links each of them to 466."""
SECURITY_BITS, CORRECTNESS_BITS = 40, 30
"""-log2 of the accepted probabilities: that colluding members fill some stretch of the ring, and
that chance leaves too few survivors in one."""


def quorum(members: int) -> int:
    """Return how many members must confirm: ceil(2 n / 3), so that a third may drop out.

    Of three members all must. Twice the quorum is then more than all members and the colluding ones
    (fewer than a third, or one of three) together.
    """
    return max(-(-2 * members // 3), (members + 1) // 2 + 1)


@dataclass(frozen=True)
class Graph:
    """The neighbours of each member of a sum.

    ring: the members in the order of the ring. half: number of neighbours on either side; 0: all
    members are neighbours. least: survivors that every `half` consecutive places must have; 0: no
    such condition.
    """

    ring: tuple[int, ...]
    half: int = 0
    least: int = 0

    @cached_property
    def _places(self) -> dict[int, int]:
        return {site: place for place, site in enumerate(self.ring)}

    @property
    def threshold(self) -> int:
        """Number of shares that reconstruct a secret."""
        return 2 * self.least if self.half else quorum(len(self.ring))

    def holders(self, site: int) -> list[int]:
        """Return who holds shares of a member's secrets: its neighbours and itself, ascending."""
        if not self.half:
            return sorted(self.ring)
        at, count = self._places[site], len(self.ring)
        return sorted(self.ring[(at + i) % count] for i in range(-self.half, self.half + 1))

    def check(self, survivors: frozenset[int]) -> None:
        """Raise MaskError if too few members are left to open the sum, or to open it safely."""
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
    """Return the graph of these members, ascending. A hash draws the ring, so nobody chooses it."""
    half, least = ring_parameters(len(members)) if len(members) > MAX_COMPLETE_GRAPH else (0, 0)
    order = context.digest("ring", list(members))
    drawn = {site: hashlib.sha256(f"{order} {site}".encode()).digest() for site in members}
    return Graph(tuple(sorted(members, key=drawn.__getitem__)) if half else members, half, least)


@lru_cache(maxsize=8)
def ring_parameters(members: int) -> tuple[int, int]:
    """Return the smallest safe (half, least) of a ring; members: above `MAX_COMPLETE_GRAPH`."""
    from scipy.stats import hypergeom  # the import takes half a second; only large cohorts need it

    colluding, left = (members - 1) // 3, members - members // 3
    unsafe, few = 2.0**-SECURITY_BITS / members, 2.0**-CORRECTNESS_BITS / members

    def least(half: int) -> int:
        # `hypergeom.isf` can be too small by one so far out in the tail.
        tails = hypergeom.sf(np.arange(half + 2) - 1, members, colluding, half)
        return int(np.argmax(tails <= unsafe))

    def sure(half: int) -> bool:
        return bool(hypergeom.cdf(least(half) - 1, members, left, half) <= few)

    half = bisect_left(range(members // 2), True, key=sure)
    return half, least(half)
