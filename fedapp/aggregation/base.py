"""What an averaging rule is: how the server makes one model of those that its sites sent.

A rule is a frozen value. It takes members one by one, and then gives their average. What it
remembers from one average to the next is given to it and taken from it: the run's checkpoint keeps
that, so a run that is resumed goes on with the same numbers.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from fedapp.learn.params import Params

Total = TypeVar("Total")
"""What a rule holds of the members that it has taken."""


@dataclass(frozen=True)
class Member:
    """One model in an average.

    site: whose model it is. weight: above 0, as a rule a number of images, which sites say of
    themselves. read: returns its tensors, anew at each call; nobody may change them in place. A
    rule that keeps the tensors keeps as much memory as all models of a round need.
    """

    site: int
    weight: float
    read: Callable[[], Params]


@dataclass(frozen=True)
class Memory:
    """What a rule remembers: empty before a run's first average.

    sites: a number of each site, whatever the role. tensors: of the averaged role, of any dtype
    and name; a rule's own names begin with the rule's.
    """

    sites: Mapping[int, float] = field(default_factory=dict)
    tensors: Params = field(default_factory=dict)


@dataclass(frozen=True)
class Average:
    """What a rule made of the members.

    params: the server's next model, with the names, shapes and dtypes of its last one; None: nobody
    was heard, and the last one stays. memory: what the rule remembers from now on. left_out: the
    sites that it did not hear.
    """

    params: Params | None
    memory: Memory
    left_out: tuple[int, ...] = ()


class Rule(ABC, Generic[Total]):
    """How members become the server's next model.

    Every average begins with `start`, goes on with `accumulate` for one member after the other, one
    at least, and ends with `finish`. Whoever moved far beyond the others is left out by the server:
    it then begins anew without them.
    """

    @property
    def masked(self) -> bool:
        """Whether members mean nothing one by one: then nobody can be left out."""
        return False

    @abstractmethod
    def start(self, own: Params) -> Total:
        """Return the total of no members. own: the server's last model, which must stay as it is.

        The total belongs to this average alone and may be changed in place.
        """

    @abstractmethod
    def accumulate(self, total: Total, member: Member) -> Total:
        """Return the total with one member more."""

    @abstractmethod
    def finish(
        self, total: Total, own: Params, trained: Collection[str], memory: Memory
    ) -> Average:
        """Return the average. Integer tensors are as a rule `own`'s.

        own: as in `start`. trained: the tensors that training moves; other floating ones are
        statistics, of which variances must not become negative.
        """


class AtOnce(Rule[list[Member]]):
    """A rule that needs all members at once. It holds where to read their tensors, not these."""

    def start(self, own: Params) -> list[Member]:
        """Nobody."""
        return []

    def accumulate(self, total: list[Member], member: Member) -> list[Member]:
        """Note down the member."""
        total.append(member)
        return total
