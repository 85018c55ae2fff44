"""Methods as a user writes them, outside of the package."""

from typing import Annotated, ClassVar

from pydantic import Field
from pydantic.dataclasses import dataclass

from fedapp.core.settings import CLOSED
from fedapp.learn.objectives import supervised
from fedapp.methods.averaging.base import Averaging, work_of
from fedapp.methods.base import Method


@dataclass(frozen=True, config=CLOSED)
class Shy(Averaging):
    """FedAvg from labelled images, in which a site's weight is a power of their number."""

    name: ClassVar[str] = "tests.methods.own_method:Shy"

    power: Annotated[float, Field(ge=0, le=1)] = 1.0

    def weight(self, facts, reply):
        return facts.labelled**self.power

    def steps(self, task, site):
        return supervised(work_of(task, site))


@dataclass(frozen=True, config=CLOSED)
class Misnamed(Shy):
    """Its `name` is not the one by which it is found."""


class Half(Method):
    """It lacks a function."""

    name: ClassVar[str] = "tests.methods.own_method:Half"

    def server_round(self, state, rnd):
        yield []
        return state


class Plain(Half):
    """It is no dataclass."""

    name: ClassVar[str] = "tests.methods.own_method:Plain"

    def site_round(self, task, site):
        return None
