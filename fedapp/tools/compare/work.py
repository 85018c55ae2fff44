"""One cell in a process of its own: `python -m fedapp.tools.compare.work`, its job on stdin.

Standard input stays open as long as the comparison runs: when it closes, whatever ended the
comparison, this process ends too. A run so cut loses at most its last round.
"""

import os
import signal
import sys
import threading
from pathlib import Path
from typing import TextIO

from fedapp.drivers import flower_local
from fedapp.drivers.loopback import run_loopback
from fedapp.drivers.need import as_texts
from fedapp.experiment.config import from_plain
from fedapp.ground.devices import torch_threads
from fedapp.ground.errors import FedAppError
from fedapp.tools.compare.features import write_latent
from fedapp.tools.compare.job import Job
from fedapp.tools.compare.mix import write_mix


def do(job: Job) -> None:
    """Finish a cell."""
    run, experiment = Path(job.run), from_plain(job.experiment, "the comparison's job")
    with torch_threads(experiment.runtime.threads):
        if not (run / "summary.json").exists():
            if job.parents:
                parents = [(Path(path), from_plain(e, path)) for path, e in job.parents]
                write_mix(run, parents, job.digest)
            elif job.driver == "flower":
                app = Path(flower_local.__file__).resolve().parents[2]
                if flower_local.run(app, job.preset, as_texts(job.overrides)):
                    raise SystemExit(1)  # it has said why
            else:
                run_loopback(experiment)
        if job.latent:
            write_latent(run, experiment, run / "latent.npz")


def main() -> None:
    """Entry point: where it fails, the last line that begins with "error:" says why."""
    # Nobody else may read it: Flower's programs inherit standard input.
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
    """Wait for the parent to end; then end this process, as by a polite kill."""
    parent.read()
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
