"""An averaging rule: the server goes a part of the way to the mean, a shorter one each time."""

from dataclasses import dataclass

import torch

from fedapp.aggregation.base import Average, Memory, Rule
from fedapp.learn.params import WeightedSum

TIMES = "slowing.times"


@dataclass(frozen=True)
class Slowing(Rule):
    def start(self, own):
        return WeightedSum(own)

    def accumulate(self, total, member):
        total.add(member.weight, member.read())
        return total

    def finish(self, total, own, trained, memory):
        times = memory.tensors.get(TIMES, torch.zeros(())) + 1
        mean = total.mean()
        way = {name: own[name] + (mean[name] - own[name]) / times.sqrt() for name in trained}
        return Average({**mean, **way}, Memory(tensors={TIMES: times}))
