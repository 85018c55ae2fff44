"""What does a site cost the server in a round in which it does nothing?

`python -m bench.idle [--repetitions N] [--rounds N] [--quick]`: UM-pFSSL after its search, 5
sites that train in every round beside 20, 500 and 2,000 that do not. The server is the real one;
the sites answer at once with made-up models, so that the server's work is all there is. CPU time of
the process from a round's end to the next one's; the cases take turns.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from statistics import fmean, median
from tempfile import TemporaryDirectory

import torch

from bench.command import Quick, Rounds, Turns, carry_out
from bench.measure import in_turns, laps
from bench.record import Row, save
from fedapp.drivers.calls import carried
from fedapp.experiment.experiment import Experiment
from fedapp.experiment.runfolder import open_run
from fedapp.ground.progress import Progress
from fedapp.ground.settings import RoundSettings, RuntimeSettings, SplitSettings
from fedapp.learn.networks import initial_params
from fedapp.learn.networks.resnet9 import ResNet9Settings
from fedapp.learn.params import Params, digest_of, to_bytes
from fedapp.messages.codec import decode_request
from fedapp.messages.protocol import (
    Evaluation,
    Incoming,
    Outgoing,
    Reply,
    ScoredRef,
    SiteFacts,
    Task,
)
from fedapp.messages.store import ModelStore
from fedapp.methods.um_pfssl.method import SEARCH, UmPfssl
from fedapp.server.engine import Engine

ACTIVE = 5
"""Sites that train in a round."""
IDLE = (20, 500, 2000)
CLASSES, IMAGES = 10, 10
INPUTS = (1, 8, 8)
METHOD = UmPfssl(search_rounds=1, update_every=10**6)
"""Nobody searches and no list is refreshed in the rounds that count."""


class Clock(Progress):
    """Reads the process's CPU time at the end of every round."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[float] = []

    def round_done(self, row: Row) -> None:
        """Note the time; print nothing."""
        self.ends.append(time.process_time())


@dataclass(frozen=True)
class StandIns:
    """Sites that answer at once, with models of one number and the same evaluation each time."""

    experiment: Experiment

    @cached_property
    def _w_0(self) -> Params:
        return initial_params(self.experiment.model, INPUTS, CLASSES, self.experiment.seed)

    def introduce(self) -> Sequence[SiteFacts]:
        """Return facts of equal sites."""
        names = tuple(map(str, range(CLASSES)))
        return [
            SiteFacts(k, INPUTS, names, IMAGES, IMAGES, IMAGES, IMAGES, "0" * 64)
            for k in range(self.experiment.split.num_clients)
        ]

    def newcomers(self) -> Sequence[SiteFacts]:
        """Return nobody."""
        return ()

    def leave_out(self, site: int) -> None:
        """Nothing to note."""

    def exchange(
        self, outbox: Sequence[Outgoing], fetch: object, deadline_s: float
    ) -> Iterable[tuple[int, Incoming]]:
        """Answer every task."""
        for outgoing in outbox:
            task = decode_request(outgoing.head)
            assert isinstance(task, Task)
            yield task.site, carried(self._answer(task))

    def _answer(self, task: Task) -> Incoming:
        offered = [*task.models.get("helpers", ()), *task.models.get("newcomers", ())]
        listed = tuple(ScoredRef(ref, 0.5) for ref in offered[: METHOD.helper_list_size - 1])
        if task.action == SEARCH:
            return Incoming(Reply(task.site, task.round, task.own.digest, listed))
        at = float(task.site * 10_000 + task.round)
        blob = to_bytes({n: torch.full_like(t, at) for n, t in self._w_0.items()})
        digest = digest_of(blob)
        result = Evaluation(
            tuple(tuple(int(a == b) for b in range(CLASSES)) for a in range(CLASSES)),
            *((0,) * 14 + (IMAGES,),) * 2,
            (0.0,) * 14 + (float(IMAGES),),
        )
        evaluations = {"val": result, "test": result}
        return Incoming(
            Reply(task.site, task.round, digest, listed, evaluations=evaluations, learned=True),
            {digest: blob},
        )


def main(rounds: Rounds = 30, repetitions: Turns = 3, quick: Quick = False) -> None:
    """Run every case; save CPU milliseconds per round and what a round costs more by idle sites."""
    if quick:
        rounds, repetitions = 2, 1
    taken = in_turns({idle: partial(milliseconds, idle, rounds) for idle in IDLE}, repetitions)
    medians = {idle: list(map(median, runs)) for idle, runs in taken.items()}
    least = median(medians[min(IDLE)])
    rows = [
        {
            "idle_sites": idle,
            "n": len(runs),
            "median_ms": round(median(medians[idle]), 2),
            "min_ms": round(min(medians[idle]), 2),
            "max_ms": round(max(medians[idle]), 2),
            "mean_ms": round(median(map(fmean, runs)), 2),
            "more_than_least_ms": round(median(medians[idle]) - least, 2),
        }
        for idle, runs in taken.items()
    ]
    save("idle", rows, {"active_sites": ACTIVE, "rounds": rounds}, quick=quick)


def milliseconds(idle: int, rounds: int) -> list[float]:
    """Return the CPU time of each round after the search."""
    sites = ACTIVE + idle
    settled = METHOD.search_rounds + 1
    with TemporaryDirectory(prefix="bench-") as out:
        experiment = Experiment(
            name="idle",
            method=METHOD,
            split=SplitSettings(num_clients=sites),
            model=ResNet9Settings(width=1),
            rounds=RoundSettings(num_rounds=settled + rounds, sample_rate=ACTIVE / sites),
            runtime=RuntimeSettings(device="cpu", out=out),
        )
        folder, clock = open_run(experiment), Clock()
        store = ModelStore(folder.pool_root)
        Engine(experiment, StandIns(experiment), folder, store, clock).run()
    return [1000 * lap for lap in laps(clock.ends[settled:])]


if __name__ == "__main__":
    carry_out(main)
