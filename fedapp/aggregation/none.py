"""The weighted mean: no protection against bad models (McMahan et al. 2017).

It holds the running sum and one model in memory.
"""

from collections.abc import Collection
from dataclasses import dataclass

from fedapp.aggregation.base import Average, Member, Memory, Rule
from fedapp.learn.params import Params, WeightedSum


@dataclass(frozen=True)
class Mean(Rule[WeightedSum]):
    """The weighted mean sum_k a_k w_k / sum_k a_k."""

    def start(self, own: Params) -> WeightedSum:
        """Return zeros."""
        return WeightedSum(own)

    def accumulate(self, total: WeightedSum, member: Member) -> WeightedSum:
        """Add a_k w_k."""
        total.add(member.weight, member.read())
        return total

    def finish(
        self, total: WeightedSum, own: Params, trained: Collection[str], memory: Memory
    ) -> Average:
        """Divide by the sum of the weights."""
        return Average(total.mean(), memory)


RULE = Mean()
