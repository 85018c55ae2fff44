"""The paper's Fashion-MNIST setting in the loopback driver, in as many sittings as it takes."""

import time
from collections.abc import Callable
from dataclasses import replace

import torch

from bench.record import Row
from fedapp.drivers.loopback import Loopback
from fedapp.experiment.experiment import Experiment
from fedapp.experiment.runfolder import open_run
from fedapp.experiment.runpaths import out_root
from fedapp.ground.devices import pick_device
from fedapp.ground.errors import FedAppError
from fedapp.ground.progress import Progress
from fedapp.messages.ledger import Ledger
from fedapp.messages.store import ModelStore
from fedapp.server.engine import Engine
from fedapp.server.standings import Row as Summary
from fedapp.site.federation import Federation

PAPER = {
    "best": (79.00, "final version, Table I, FashionMNIST, alpha 0.5, best test accuracy"),
    "final": (78.38, "preprint, Table 1, FashionMNIST, alpha 0.5, final test accuracy"),
    "best_by_validation": (None, ""),
}
"""Mean test accuracy of UM-pFSSL in percent, by what our summary calls it, and where it stands."""


class TimeUpError(Exception):
    """No further round fits into the time given; the last one is saved."""


class Timed(Progress):
    """Progress that ends the run after a whole round when the longest so far would not fit again.

    deadline: seconds of `clock`; None: never.
    """

    def __init__(self, deadline: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(clock=clock)
        self._deadline = deadline
        self._now = clock
        self._last = clock()
        self._longest = 0.0

    def round_done(self, row: Summary) -> None:
        """Show the round, which is saved by now; raise TimeUpError where no other fits."""
        super().round_done(row)
        now = self._now()
        self._longest, self._last = max(self._longest, now - self._last), now
        if self._deadline is not None and now + self._longest > self._deadline:
            raise TimeUpError


def has_begun(experiment: Experiment) -> bool:
    """Whether the run's folder is there."""
    return (out_root(experiment) / experiment.runtime.run_name / "run.json").exists()


def run_rows(
    experiment: Experiment, federation: Federation, deadline: float | None
) -> list[Row] | None:
    """Run, or go on with, the experiment; return its rows, None where `deadline` came first."""
    runtime = replace(experiment.runtime, resume=has_begun(experiment))
    experiment = replace(experiment, runtime=runtime)
    folder = open_run(experiment, federation.manifest)
    store = ModelStore(folder.pool_root)
    try:
        with Timed(deadline) as progress:
            progress.note(f"run folder {folder.path}")
            transport = Loopback(experiment, federation, store, folder.sites_root)
            summary = Engine(experiment, transport, folder, store, progress, Ledger()).run()
    except TimeUpError:
        return None
    except FedAppError:
        folder.discard_unless_begun()
        raise
    return rows_of(summary, experiment)


def rows_of(summary: Summary, experiment: Experiment) -> list[Row]:
    """Return what a finished run came to, beside the paper's figures."""
    accuracy = summary["mean_test_accuracy"]
    rows: list[Row] = [
        {
            "what": f"mean test accuracy, {name.replace('_', ' ')} round, %",
            "here": accuracy[name] and round(100 * accuracy[name], 2),
            "paper": paper,
            "where": where,
        }
        for name, (paper, where) in PAPER.items()
    ]
    rows.append({"what": "wall time, min", "here": round(summary["wall_seconds"] / 60, 2)})
    rows.append({"what": "rounds", "here": summary["rounds"]})
    sent = summary["models_sent"] + summary["models_up"]
    bound = summary.get("cost_bound_models")
    rows.append({"what": "models sent", "here": sent, "paper": bound, "where": "Eq. 28, a bound"})
    if pick_device(experiment.runtime.device).type == "cuda":
        peak = torch.cuda.max_memory_allocated() / 2**20
        rows.append({"what": "peak GPU memory of the last sitting, MiB", "here": round(peak, 1)})
    return rows
