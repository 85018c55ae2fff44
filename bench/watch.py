"""Watch a run from outside: the memory of its processes by role, its pool on disk, its rounds.

Memory is PSS, the proportional set size: a page that n processes share counts 1/n in each, so that
the sum over processes is what the run takes. Linux only.
"""

import shutil
import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.measure import laps
from fedapp.experiment.records import Records
from fedapp.ground.processes import descendants

ROLES = (
    ("fedapp.cli", "server and sites"),
    ("fedapp.drivers.preparing", "measuring before the start"),
    ("flwr-simulation", "server"),
    ("ray::ClientAppActor", "sites"),
    ("ray::", "Ray"),
    ("/ray/", "Ray"),
)
"""What a command line holds, and the role of its process; the first that fits."""

OTHER = "SuperLink and launcher"
LEAST_FREE = 10 * 2**30
"""Bytes of disk that a run must leave free."""

MIB = 2**20


@dataclass(frozen=True)
class Sample:
    """One look at a run.

    seconds: since its start. rounds: whole ones so far, -1 while the warm-up is under way.
    mib: PSS by role. highest_mib: by role, the most that one process ever had (resident set: shared
    pages count whole), so that no peak between two looks is missed. pool_mib: models on disk.
    """

    seconds: float
    rounds: int
    mib: Mapping[str, float]
    highest_mib: Mapping[str, float]
    pool_mib: float

    @property
    def total_mib(self) -> float:
        """PSS of all processes."""
        return sum(self.mib.values())


@dataclass(frozen=True)
class Watched:
    """A run from start to end. round_s: seconds of each round, the warm-up first."""

    samples: tuple[Sample, ...]
    round_s: tuple[float, ...]

    @property
    def roles(self) -> list[str]:
        """Every role that was seen, the largest first."""
        most = Counter[str]()
        for sample in self.samples:
            most |= Counter(sample.mib)
        return [role for role, _ in most.most_common()]

    def lines(self, most: int = 300) -> list[str]:
        """Return at most `most` samples, evenly spaced, as lines of CSV with a head."""
        roles = self.roles
        head = ",".join(["seconds", "rounds", *(f"{role} MiB" for role in roles), "pool MiB"])
        step = -(-len(self.samples) // most)
        rows = (
            [s.seconds, s.rounds, *(s.mib.get(role, 0) for role in roles), s.pool_mib]
            for s in self.samples[::step]
        )
        return [head, *(",".join(f"{value:.1f}".removesuffix(".0") for value in r) for r in rows)]


def watch(command: Sequence[str], run: Path, every_s: float) -> Watched:
    """Run a command that writes the run folder `run`; look at it every `every_s` seconds.

    Raises SystemExit where it fails, and where it leaves less than `LEAST_FREE`: it is ended then.
    """
    began = time.monotonic()
    samples = []
    log = run.with_suffix(".log")
    with log.open("wb") as sink:
        process = subprocess.Popen(command, stdout=sink, stderr=subprocess.STDOUT)
    try:
        while process.poll() is None:
            samples.append(look(process.pid, run, time.monotonic() - began))
            if shutil.disk_usage(run.parent).free < LEAST_FREE:
                raise SystemExit(f"{run}: less than {LEAST_FREE // MIB} MiB of disk left; ended")
            time.sleep(every_s)
    finally:
        process.terminate()  # nothing where it has ended
        process.wait()
    if process.returncode:
        said = log.read_text(errors="replace")[-4000:]
        raise SystemExit(f"{' '.join(command)}\nexit code {process.returncode}\n{said}")
    ends = [0.0, *(row["wall_seconds"] for row in Records(run).metrics())]
    return Watched(tuple(samples), tuple(laps(ends)))


def look(root: int, run: Path, seconds: float) -> Sample:
    """Return what a process and those below it take now."""
    now, highest = defaultdict[str, float](float), dict[str, float]()
    for pid in {root} | descendants({root}):
        process = Path(f"/proc/{pid}")
        role = role_of(_read(process / "cmdline").replace("\0", " "))
        now[role] += _mib(process / "smaps_rollup", "Pss:")
        highest[role] = max(highest.get(role, 0), _mib(process / "status", "VmHWM:"))
    rounds = _read(run / "metrics.jsonl").count("\n") - 1
    pool = sum(map(_size, (run / "pool").glob("*/*"))) / MIB
    return Sample(seconds, rounds, dict(now), highest, pool)


def role_of(command_line: str) -> str:
    """Return the role of the process with this command line."""
    return next((role for mark, role in ROLES if mark in command_line), OTHER)


def _mib(path: Path, field: str) -> float:
    lines = (line.split() for line in _read(path).splitlines())
    return next((int(words[1]) / 1024 for words in lines if words[0] == field), 0.0)


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:  # not there yet, or gone
        return ""


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # gone since the folder was listed
        return 0
