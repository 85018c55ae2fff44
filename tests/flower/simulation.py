"""Runs in Flower's real simulation, on a copy of the app with its own folders for everything."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedapp.core import processes
from fedapp.experiment.config import load_experiment
from fedapp.simulation import flower_local
from tests.flower.results import loopback, results

ROOT = Path(__file__).parents[2]

DRIVER = (
    "import sys; from fedapp.simulation import flower_local; {}; "
    "sys.exit(flower_local.main(sys.argv[1:]))"
)


@dataclass(frozen=True)
class Copy:
    """A copy of the app, the home of those who run it, and a folder for Ray.

    scratch: not below the others, since Ray's sockets need a short path.
    """

    app: Path
    home: Path
    scratch: Path

    def left_processes(self) -> dict[int, str]:
        """Processes of runs of this copy, which all carry its mark, and their command lines."""
        return {
            pid: processes.read_proc(pid, "cmdline").replace(b"\0", b" ").decode()
            for pid in processes.with_environment_variable(
                flower_local.MARK, str(self.app / ".flwr")
            )
        }

    def files(self) -> set[Path]:
        """Files of the copy and of the home, but for what Flower keeps in its own folder."""
        found = {path for root in (self.app, self.home) for path in root.rglob("*")}
        return {
            path
            for path in found
            if path.is_file() and not {".flwr", "__pycache__"} & set(path.parts)
        }


@contextmanager
def copy_of_app(folder: Path) -> Iterator[Copy]:
    """Copy what a user has; in the end, check that nothing is left that was not there."""
    scratch = Path(tempfile.mkdtemp(prefix="ray-"))
    copy = Copy(folder / "app", folder / "home", scratch)
    copy.home.mkdir()
    copy.app.mkdir()
    for name in ("fedapp", "server_app", "client_app", "conf"):
        shutil.copytree(ROOT / name, copy.app / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "LICENSE", "README.md"):
        shutil.copy(ROOT / name, copy.app / name)
    before = copy.files()
    try:
        yield copy
        assert copy.left_processes() == {}
        assert copy.files() == before
        assert not list((copy.app / ".flwr").glob("superlink-*"))
    finally:
        for pid in copy.left_processes():
            os.kill(pid, 9)
        shutil.rmtree(scratch, ignore_errors=True)


def simulate(
    copy: Copy,
    arguments: Sequence[str],
    *,
    actors: int | None = None,
    patch: str = "pass",
    watch: Callable[[str, int], None] = lambda line, pid: None,
) -> tuple[int, str]:
    """Run `python -m fedapp.simulation.flower_local`; return its exit code and all that it said.

    actors: cores that the run may use, of which each becomes a Ray actor; None: all.
    patch: a statement about `flower_local` to execute before. watch: is told each line, and the
    process, while the run goes on.
    """

    def fewer_cores() -> None:
        if actors is not None:
            os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[:actors]))

    env = {k: v for k, v in os.environ.items() if not k.startswith(("FLWR_", "RAY_"))}
    process = subprocess.Popen(
        [sys.executable, "-c", DRIVER.format(patch), *arguments],
        cwd=copy.app,
        env=env | {"HOME": str(copy.home), "RAY_TMPDIR": str(copy.scratch)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=fewer_cores,
    )
    lines = []
    with process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                lines.append(line)
                watch(line, process.pid)
        except BaseException:  # also pytest's, where a run hangs
            process.terminate()
            raise
    return process.returncode, "".join(lines)


def simulate_and_loop_back(
    copy: Copy, file: str, pairs: Mapping[str, Any], actors: int = 1
) -> tuple[Path, Path, str]:
    """Run a preset in Flower and in the loopback driver, and check that the results are equal.

    Return the two folders, and what the simulation said.
    """
    words = [f"{key}={value}" for key, value in pairs.items()]
    code, output = simulate(copy, [file, *words, "runtime.run_name=flower"], actors=actors)
    assert code == 0, output
    whole = loopback(load_experiment(file, {**pairs, "runtime.run_name": "loopback"}))
    flower = whole.parent / "flower"
    assert results(flower) == results(whole)
    return flower, whole, output
