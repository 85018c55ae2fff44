"""One turn of a contender, in a process of its own: `python -m bench.peers.turn REQUEST` (JSON)."""

import json
import sys
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path

import torch


@dataclass(frozen=True)
class Request:
    """The instructions for a turn.

    Attributes:
        module: a module of this package with `run(problem, mark)`.
        path: a folder that is put in front of Python's path; empty: none.
        folder: the problem's folder.
        out: the result goes to `<out>.json`, the model after the first round to
            `<out>.safetensors`.
        evaluate: whether the contender evaluates in every round.
        rounds: number of rounds, at least one.
    """

    module: str
    path: str
    folder: str
    out: str
    evaluate: bool
    rounds: int

    def as_text(self) -> str:
        """Return the request as the command's argument."""
        return json.dumps(asdict(self))


def main() -> None:
    """Run the contender; write its times, page faults, images and memory."""
    request = Request(**json.loads(sys.argv[1]))
    if request.path:
        sys.path.insert(0, request.path)
    # Imported only now, because another checkout of this project may be in front of this one.
    from bench.peers.probes import EnoughError, Marks
    from bench.peers.problem import Problem

    torch.set_num_threads(1)
    problem = Problem.load(Path(request.folder), request.evaluate, request.rounds)
    marks = Marks(request.rounds, problem.classes, Path(f"{request.out}.safetensors"))
    try:
        import_module(f"bench.peers.{request.module}").run(problem, marks)
    except EnoughError:
        pass
    answer = {
        "seconds": marks.seconds,
        "faults": marks.faults,
        "images": marks.images,
        "peak_mib": peak_mib(Path("/proc/self/status").read_text()),
    }
    Path(f"{request.out}.json").write_text(json.dumps(answer))


def peak_mib(status: str) -> float:
    """Return the peak memory of a process in MiB, from the text of its /proc/PID/status."""
    [line] = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) / 1024  # kB


if __name__ == "__main__":
    main()
