"""Averaging rules as a user writes them, outside of the package: each is one class."""

from dataclasses import dataclass

import torch

from fedapp.aggregation.base import Average, Memory, Rule
from fedapp.learn.params import WeightedSum


@dataclass(frozen=True)
class Latest(Rule):
    """The last member's model; how often each site was the last, and the weights before."""

    def start(self, own):
        return None

    def accumulate(self, total, member):
        return member

    def finish(self, total, own, trained, memory):
        often = {total.site: memory.sites.get(total.site, 0.0) + 1}
        kept = {f"latest.{name}": own[name] for name in trained}
        return Average(total.read(), Memory({**memory.sites, **often}, kept))


@dataclass(frozen=True)
class MaskedSum(Rule):
    """The plain mean of models that hide behind masks, which cancel in the sum."""

    @property
    def masked(self):
        return True

    def start(self, own):
        return WeightedSum(own)

    def accumulate(self, total, member):
        total.add(1.0, member.read())
        return total

    def finish(self, total, own, trained, memory):
        return Average(total.mean(), memory)


@dataclass(frozen=True)
class Wrong(Rule):
    """What it gives is no model of the run."""

    def start(self, own):
        return None

    def accumulate(self, total, member):
        return None

    def finish(self, total, own, trained, memory):
        return Average({"weight": torch.zeros(1)}, memory)


@dataclass(frozen=True)
class Half(Rule):
    """It lacks a function."""

    def start(self, own):
        return None

    def accumulate(self, total, member):
        return None


@dataclass(frozen=True)
class NoRule:
    """It is not made from `Rule`."""

    name: str = "none"
