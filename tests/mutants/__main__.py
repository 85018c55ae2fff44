"""Mutants: small faults, put in one at a time, and whether a test notices.

`python -m tests.mutants [--each N] [--seed N] [--minutes N] [--workers N] [--only ROOM ...]`

Of each room N mutants are drawn; a room of --only may also be a pattern of files under fedapp, as
"methods/recommended/*.py". Each is tried in a process of its own by the tests that call the
function it is in, quick ones first; which these are is measured once. What is done lies in
build/mutants: the same command goes on from there, and tries those that survived again after a test
has changed. Exit code 1: in a room too few were killed.
"""

import argparse
import hashlib
import json
import math
import os
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Set
from dataclasses import asdict, dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from scipy.stats import binomtest

from tests.mutants.mutators import Mutant, mutants
from tests.mutants.trial import Trial, warm

ROOT = Path(__file__).parents[2]
OUT = ROOT / "build" / "mutants"
KNOWN = Path(__file__).with_name("known.toml")
ROOMS = {
    "aggregation": ("aggregation/**/*.py",),
    "evaluation": ("evaluation/**/*.py",),
    "learn": ("learn/**/*.py",),
    "privacy": ("privacy/**/*.py",),
    "methods": ("methods/**/*.py",),
    "protocol": ("protocol/**/*.py",),
    "server": (
        "server/pool.py",
        "server/round_pool.py",
        "server/phases.py",
        "server/checks.py",
        "server/masked_sums.py",
    ),
}
TESTS = ("aggregation", "evaluation", "learn", "privacy", "methods", "protocol", "server", "site")
"""Folders of tests that are tried."""
ANYTHING = "*"
"""What a test may call that is not yet measured."""
LONGEST = 60.0
"""Seconds of CPU time of the tests, together, that a mutant is given."""
LEAST = 0.95
"""Share that is to be killed in every room, of those that are no equivalents."""


@dataclass(frozen=True)
class Drawn:
    """A mutant of the sample. key: the same as long as the file is."""

    room: str
    file: str
    mutant: Mutant
    key: str

    def __str__(self) -> str:
        one = self.mutant
        return f"{self.file}:{one.line} {one.function}: {one.change}"


def files_of(room: str) -> list[Path]:
    """Return the files of a room, or of a pattern."""
    return sorted(one for each in ROOMS.get(room, (room,)) for one in (ROOT / "fedapp").glob(each))


def everything(room: str) -> list[Drawn]:
    """Return all mutants of a room, or of the files of a pattern."""
    found = []
    for path in files_of(room):
        text, name = path.read_text(), str(path.relative_to(ROOT))
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        found += [Drawn(room, name, m, f"{digest}:{m.place}") for m in mutants(text)]
    return found


def reach(folders: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """Return what each test calls and how long it takes: measured once.

    Tests that are no more are left out. Those that came later may call anything; build/mutants
    removed, everything is measured anew.
    """
    file, where = OUT / "reach.json", [f"tests/{folder}" for folder in folders]
    if not file.is_file():
        print("measuring which test calls what, once", flush=True)
        words = [sys.executable, "-m", "pytest", "-q", "-p", "tests.mutants.reach"]
        env = {**os.environ, "FEDAPP_REACH": str(file)}
        subprocess.run([*words, *where], cwd=ROOT, env=env, check=False)
    measured = json.loads(file.read_text())
    listing = [sys.executable, "-m", "pytest", "-q", "--collect-only", *where]
    said = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    names = [line for line in said.splitlines() if "::" in line]
    return {name: measured.get(name, {"seconds": 0.0, "calls": [ANYTHING]}) for name in names}


def tests_of(drawn: Drawn, reached: dict[str, dict[str, Any]]) -> tuple[list[str], float]:
    """Return the tests that call a mutant's function, and their seconds; the likeliest come first.

    Those of the file's own name come before; then quick ones whose file has words of the mutant's
    line that few others have. At the end the others of their files: what a fixture of several tests
    calls, it calls for the first.
    """
    wanted, own = (
        f"{drawn.file}:{drawn.mutant.function}",
        f"test_{Path(drawn.file).name.lstrip('_')}",
    )
    line = (ROOT / drawn.file).read_text().splitlines()[drawn.mutant.line - 1]
    every = {_file(name) for name in reached}
    told = telling(_words(line), {file: _words((ROOT / file).read_text()) for file in every})
    callers = {
        name
        for name, one in reached.items()
        if wanted in one["calls"] or (told[_file(name)] and ANYTHING in one["calls"])
    }
    files = {_file(name) for name in callers}
    chosen, total = [], 0.0
    for name, one in sorted(
        ((name, one) for name, one in reached.items() if _file(name) in files),
        key=lambda test: (
            test[0] not in callers,
            Path(_file(test[0])).name != own,
            -(1 + told[_file(test[0])]) / (0.1 + test[1]["seconds"]),
        ),
    ):
        if chosen and total + one["seconds"] > LONGEST:
            break
        chosen.append(name)
        total += one["seconds"]
    return chosen, total


def telling(words: Set[str], files: dict[str, Set[str]]) -> dict[str, float]:
    """Return how much each file has of these words: the sum of log(files / files that have it)."""
    by_word = {word: [name for name, here in files.items() if word in here] for word in words}
    found = dict.fromkeys(files, 0.0)
    for names in by_word.values():
        for name in names:
            found[name] += math.log(len(files) / len(names))
    return found


def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"[a-z_]{3,}", text.lower()))


def _file(test: str) -> str:
    return test.partition("::")[0]


def results(file: Path) -> dict[str, dict[str, Any]]:
    """Return what is known of mutants, by key."""
    lines = file.read_text().splitlines() if file.is_file() else []
    return {one["key"]: one for one in map(json.loads, lines)}


def tried(sample: list[Drawn], workers: int, deadline: float) -> Iterator[dict[str, Any]]:
    """Try mutants, several at a time; yield what became of each."""
    reached, waiting = reach(TESTS), list(reversed(sample))
    running: dict[Any, tuple[Drawn, Trial, float]] = {}
    warm()
    control(reached)
    while waiting or running:
        while waiting and len(running) < workers and time.monotonic() < deadline:
            drawn = waiting.pop()
            tests, seconds = tests_of(drawn, reached)
            if not tests:
                yield row(drawn, "no test", 0, 0.0)
                continue
            away = OUT / "away" / drawn.key.replace(":", "-")
            trial = Trial(ROOT / drawn.file, drawn.mutant.place, tests, 30 + 3 * seconds, away)
            running[trial.process.sentinel] = drawn, trial, time.monotonic()
        if not running:
            return
        for sentinel in wait(list(running)):
            drawn, trial, began = running.pop(sentinel)
            trial.process.join()
            yield row(drawn, trial.outcome(), len(trial.tests), time.monotonic() - began)


def control(reached: dict[str, dict[str, Any]]) -> None:
    """Try a file as it is. Raises RuntimeError where even that does not survive."""
    tests = sorted(reached, key=lambda name: reached[name]["seconds"])[:20]
    trial = Trial(Path(__file__), -1, tests, 120, OUT / "away" / "control")
    trial.process.join()
    if (outcome := trial.outcome()) != "survived":
        raise RuntimeError(f"without a mutant: {outcome}; its tests must pass before")


def row(drawn: Drawn, outcome: str, tests: int, seconds: float) -> dict[str, Any]:
    """Return what is written down of a mutant."""
    what = {"room": drawn.room, "file": drawn.file, **asdict(drawn.mutant)}
    return {"key": drawn.key, **what, "outcome": outcome, "tests": tests, "s": round(seconds, 1)}


def table(sample: list[Drawn], known: dict[str, dict[str, Any]]) -> bool:
    """Print what was killed by room, then who survived; return whether that is enough."""
    why, left = equivalents(), list[Drawn]()
    enough = True
    print("| room | mutants | tried | equivalent | killed | survived | killed, % (95 % interval) |")
    print("|---|---|---|---|---|---|---|")
    for room in dict.fromkeys(d.room for d in sample):
        done = [d for d in sample if d.room == room and d.key in known]
        if not done:
            continue
        alive = [d for d in done if known[d.key]["outcome"] in ("survived", "no test")]
        same = [d for d in alive if _what(d) in why]
        count, killed = len(done) - len(same), len(done) - len(alive)
        low, high = binomtest(killed, count).proportion_ci(method="wilson")
        share = f"{100 * killed / count:.1f} ({100 * low:.1f} to {100 * high:.1f})"
        cells = len(everything(room)), len(done), len(same), killed, count - killed, share
        print("| " + " | ".join(map(str, (room, *cells))) + " |")
        left += alive
        enough &= killed >= LEAST * count
    for drawn in left:
        reason = why.get(_what(drawn))
        outcome = known[drawn.key]["outcome"]
        print(f"{drawn}  [{f'equivalent: {reason}' if reason else outcome}]")
    return enough


def drawn_from(every: list[Drawn], seed: int) -> list[Drawn]:
    """Return mutants in an order by lot; a file that changes does not move those of others."""
    return sorted(every, key=lambda one: hashlib.sha256(f"{seed} {one.key}".encode()).digest())


def equivalents() -> dict[tuple[str, str, str], str]:
    """Return those that no test can kill, by file, function and change: why."""
    reasons = tomllib.loads(KNOWN.read_text())["equivalent"]
    return {(one["file"], one["function"], one["change"]): one["reason"] for one in reasons}


def _what(drawn: Drawn) -> tuple[str, str, str]:
    return drawn.file, drawn.mutant.function, drawn.mutant.change


def main() -> int:
    """Draw, try, print."""
    words = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    words.add_argument("--each", type=int, default=60, help="mutants of each room [60]")
    words.add_argument("--seed", type=int, default=0, help="of the draw [0]")
    words.add_argument("--minutes", type=float, default=600.0, help="begin none after so many")
    words.add_argument("--workers", type=int, default=1, help="mutants at a time [1]")
    words.add_argument("--only", nargs="+", default=list(ROOMS), help="rooms, or patterns of files")
    given = words.parse_args()
    if nothing := [room for room in given.only if not files_of(room)]:
        words.error(f"no room and no file under fedapp: {', '.join(nothing)}; rooms: {[*ROOMS]}")
    deadline = time.monotonic() + 60 * given.minutes
    sample = []
    for room in given.only:
        sample += drawn_from(everything(room), given.seed)[: given.each]
    sample = drawn_from(sample, given.seed)  # a run that is stopped has seen something of each
    OUT.mkdir(parents=True, exist_ok=True)
    file, digest = OUT / "results.jsonl", hashlib.sha256()
    for path in sorted((ROOT / "tests").rglob("*.py")):
        digest.update(path.read_bytes())
    known = results(file)
    settled = {
        key
        for key, one in known.items()
        if one["outcome"] in ("killed", "endless") or one["at"] == digest.hexdigest()[:12]
    }
    hopeless = equivalents()
    settled |= {d.key for d in sample if d.key in known and _what(d) in hopeless}
    with file.open("a") as out:
        todo = [drawn for drawn in sample if drawn.key not in settled]
        todo.sort(key=lambda drawn: drawn.key in known)  # the new ones first
        for number, one in enumerate(tried(todo, given.workers, deadline), 1):
            known[one["key"]] = {**one, "at": digest.hexdigest()[:12]}
            out.write(json.dumps(known[one["key"]]) + "\n")
            out.flush()
            where = f"{one['file']}:{one['line']} {one['change']}"
            print(f"{number}/{len(todo)} {one['outcome']} {one['s']} s {where}", flush=True)
    return 0 if table(sample, known) else 1


if __name__ == "__main__":
    sys.exit(main())
