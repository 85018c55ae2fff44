"""The peers that a site does not list, found without a loop over all peers for every site."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Peers:
    """The sites whose model has been trained, ascending."""

    trained: Sequence[int]

    @cached_property
    def _place(self) -> dict[int, int]:
        return {peer: place for place, peer in enumerate(self.trained)}

    def but(self, listed: Iterable[int]) -> "UnlistedPeers":
        """Return the peers except these sites, some of which may not be peers."""
        places = {self._place[site] for site in listed if site in self._place}
        return UnlistedPeers(self.trained, tuple(sorted(places)))


@dataclass(frozen=True)
class UnlistedPeers:
    """All peers except those at a few positions, ascending.

    Access takes time in proportion to these few.
    """

    peers: Sequence[int]
    left_out: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.peers) - len(self.left_out)

    def __getitem__(self, index: int) -> int:
        """Return the unlisted peer at an index from 0. Raises IndexError as a list does."""
        for place in self.left_out:
            if place > index:
                break
            index += 1
        return self.peers[index]
