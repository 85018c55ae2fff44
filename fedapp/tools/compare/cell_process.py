"""Runs one cell in a process of its own: `python -m fedapp.tools.compare.cell_process`.

The job is one line of JSON on standard input, which stays open as long as the comparison runs. When
it closes, for whatever reason, this process ends too. A run that is cut so loses at most its last
round.
"""

import json
import os
import signal
import sys
import threading
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self, TextIO

from fedapp.core.devices import torch_threads
from fedapp.core.errors import FedAppError
from fedapp.core.process_tuning import tune_own_process
from fedapp.experiment.config import from_plain, to_plain
from fedapp.experiment.preset_files import Scalar
from fedapp.simulation import flower_local
from fedapp.simulation.loopback import run_loopback
from fedapp.simulation.resources import as_texts
from fedapp.tools.compare.cells import Cell
from fedapp.tools.compare.ensemble import write_mix

Driver = Literal["loopback", "flower"]


@dataclass(frozen=True)
class Job:
    """A cell to finish.

    run: the cell's folder. preset and overrides, or experiment: the same experiment twice, as
    Flower takes it and as `to_plain` returns it. digest: the cell's. parents: for Mix, the run
    folder and the experiment of each cell whose models it uses.
    """

    run: str
    preset: str
    overrides: dict[str, Scalar]
    experiment: dict[str, Any]
    digest: str
    parents: list[tuple[str, dict[str, Any]]]
    driver: Driver

    @classmethod
    def of(cls, cell: Cell, driver: Driver) -> Self:
        """Return the job that finishes a cell. A run that was begun goes on."""
        resume = cell.state() == "begun"
        runtime = replace(cell.experiment.runtime, resume=resume)
        return cls(
            run=str(cell.folder),
            preset=cell.preset,
            overrides={**cell.overrides, "runtime.resume": resume},
            experiment=to_plain(replace(cell.experiment, runtime=runtime)),
            digest=cell.digest,
            parents=[(str(p.folder), to_plain(p.experiment)) for p in cell.parents],
            driver=driver,
        )

    def to_line(self) -> str:
        """Return the job as a line of JSON."""
        return json.dumps(asdict(self)) + "\n"

    @classmethod
    def from_line(cls, line: str) -> Self:
        """Return the job that `to_line` wrote down."""
        return cls(**json.loads(line))


def do(job: Job) -> None:
    """Run a cell to its end, unless it has its summary already."""
    run, experiment = Path(job.run), from_plain(job.experiment, "the comparison's job")
    with torch_threads(experiment.runtime.threads):
        if not (run / "summary.json").exists():
            if job.parents:
                parents = [(Path(path), from_plain(e, path)) for path, e in job.parents]
                write_mix(run, parents, job.digest)
            elif job.driver == "flower":
                app = Path(flower_local.__file__).resolve().parents[2]
                if flower_local.run(app, job.preset, as_texts(job.overrides)):
                    raise SystemExit(1)  # it has printed the reason
            else:
                run_loopback(experiment)


def main() -> None:
    """Run the job on standard input. If it fails, the last line with "error:" says why."""
    tune_own_process()
    # Standard input is moved away, because programs that Flower starts inherit it.
    words = os.fdopen(os.dup(0), encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    job = Job.from_line(words.readline())
    threading.Thread(target=_end_with, args=[words], daemon=True).start()
    try:
        do(job)
    except FedAppError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(1) from None


def _end_with(parent: TextIO) -> None:
    """Wait until the parent has ended; then end this process with SIGTERM."""
    parent.read()
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
