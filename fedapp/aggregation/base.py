"""What an averaging rule is: how the server makes one model of the models that its sites sent.

A rule is a frozen value without state. It takes the members of an average one by one, and then
returns their average. What it remembers from one average to the next is passed in and returned: the
run's checkpoint keeps it, so that a run that is resumed goes on with the same numbers.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from fedapp.learn.params import Params

Total = TypeVar("Total")
"""What a rule has accumulated of the members that it has taken so far."""


@dataclass(frozen=True)
class Member:
    """One model in an average.

    site: the site that sent it. weight: above 0, usually a number of images, which sites report
    themselves. read: returns the model's tensors, which nobody may change in place; each call reads
    them again. A rule that keeps the tensors of all members needs as much memory as all models of a
    round.
    """

    site: int
    weight: float
    read: Callable[[], Params]


@dataclass(frozen=True)
class Memory:
    """What a rule remembers from one average to the next; empty before a run's first average.

    sites: one number for each site, whatever the role. tensors: of the role that is averaged, of
    any dtype and name; names of a rule's own tensors begin with the rule's name.
    """

    sites: Mapping[int, float] = field(default_factory=dict)
    tensors: Params = field(default_factory=dict)


@dataclass(frozen=True)
class Average:
    """What a rule made of the members.

    params: the server's next model, with the names, shapes and dtypes of the current one; None: no
    member was used, and the current model stays. memory: what the rule remembers from now on.
    left_out: the sites whose models it did not use.
    """

    params: Params | None
    memory: Memory
    left_out: tuple[int, ...] = ()


class Rule(ABC, Generic[Total]):
    """How members become the server's next model.

    Every average begins with `start`, continues with one `accumulate` for each of at least one
    member, and ends with `finish`. Before that the server itself leaves out a member whose change
    is far longer than the others' and starts the average again without it.
    """

    @property
    def masked(self) -> bool:
        """Whether a single member says nothing by itself, because only the sum of all is known.

        Then the server cannot leave out any member.
        """
        return False

    @abstractmethod
    def start(self, own: Params) -> Total:
        """Return the total of no members.

        It belongs to this average alone and may be changed in place. own: the server's current
        model, which must not be changed.
        """

    @abstractmethod
    def accumulate(self, total: Total, member: Member) -> Total:
        """Return the total with one more member."""

    @abstractmethod
    def finish(
        self, total: Total, own: Params, trained: Collection[str], memory: Memory
    ) -> Average:
        """Return the average. Integer tensors are usually those of `own`.

        own: as in `start`. trained: names of the tensors that training changes; the other
        floating-point tensors are statistics, such as variances, which must not become negative.
        """


class AtOnce(Rule[list[Member]]):
    """A rule that needs all members at once.

    It stores how to read their tensors, not the tensors.
    """

    def start(self, own: Params) -> list[Member]:
        """Return an empty list."""
        return []

    def accumulate(self, total: list[Member], member: Member) -> list[Member]:
        """Add the member to the list."""
        total.append(member)
        return total
