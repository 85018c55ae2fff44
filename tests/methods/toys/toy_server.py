"""A toy: the server trains by itself on labelled images of its own; sites only measure."""

from collections.abc import Generator, Sequence
from typing import ClassVar

from pydantic.dataclasses import dataclass

from fedapp.core.settings import CLOSED
from fedapp.methods.averaging.base import FromLabelled
from fedapp.methods.base import MethodState, Round
from fedapp.protocol.messages import EVALUATE, SERVER_SITE, Reply, Task


@dataclass(frozen=True, config=CLOSED)
class ToyServer(FromLabelled):
    name: ClassVar[str] = "toy_server"

    def server_round(
        self, state: MethodState, rnd: Round
    ) -> Generator[Sequence[Task], Sequence[Reply], MethodState]:
        before = [rnd.pool.latest(SERVER_SITE)]
        yield [rnd.task(site, EVALUATE, server=before) for site in rnd.sites]
        yield [rnd.task(SERVER_SITE, "train", phase=9, server=before)]
        newest = [rnd.pool.latest(SERVER_SITE)]
        yield [rnd.task(site, EVALUATE, server=newest) for site in rnd.sites]
        return state


METHOD = ToyServer
