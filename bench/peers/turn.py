"""One contender's turn, in a process of its own: `python -m bench.peers.turn REQUEST`, JSON."""

import json
import sys
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path

import torch


@dataclass(frozen=True)
class Request:
    """What a turn is to do.

    module: in this package, with `run(problem, mark)`. path: what goes in front of Python's path;
    empty: nothing. folder: the problem's. out: the answer goes to `<out>.json`, the model after the
    first round to `<out>.safetensors`. rounds: at least one.
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
    """Run the contender and write what it took."""
    request = Request(**json.loads(sys.argv[1]))
    if request.path:
        sys.path.insert(0, request.path)
    # Only now: another checkout of this project may stand in front of this one.
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
    """Return the most memory that a process has had, from its /proc/PID/status."""
    [line] = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) / 1024  # kB


if __name__ == "__main__":
    main()
