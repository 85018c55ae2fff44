"""A long pass of tests that was cut goes on: what passed on the very same files is not run again.

A plugin of pytest's: `python -m pytest -p tests.going_on`, as `make test-all` does. What it notes
says which tests are long too: `python -m tests.going_on` rewrites `tests/long.txt` by it.
"""

import hashlib
import json
import subprocess
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

LONG_S = 5.0
"""Seconds from which on a test is named at the end."""
LEFT_OUT_S = 1.0
"""Seconds, with all its parameters, from which on `make test` leaves a test out."""
ROOT = Path(__file__).parents[1]
LONG = ROOT / "tests" / "long.txt"


def files_digest() -> str:
    """Return what the checkout's files are: its commit, and how they differ from it."""
    asked = (["rev-parse", "HEAD"], ["diff", "HEAD"], ["status", "--porcelain"])
    said = [subprocess.run(["git", *a], cwd=ROOT, capture_output=True, check=True) for a in asked]
    return hashlib.sha256(b"\0".join(done.stdout for done in said)).hexdigest()[:16]


class GoingOn:
    """Notes in a file which tests passed and how long each took, a line a test; leaves these out.

    speaks: whether it notes and says anything. An untracked file counts by its name alone.
    """

    def __init__(self, notes: Path, speaks: bool) -> None:
        self._notes, self._speaks = notes, speaks
        self._seconds: dict[str, float] = {}

    def before(self) -> dict[str, float]:
        """Return the seconds of every test that passed."""
        lines = self._notes.read_text().splitlines() if self._notes.exists() else []
        return dict(json.loads(line) for line in lines if line.endswith("]"))  # else cut in writing

    @pytest.hookimpl(trylast=True)  # the marks have chosen before
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Leave out what passed before."""
        known = self.before()
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in known])
        items[:] = [item for item in items if item.nodeid not in known]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a test whose three steps all passed."""
        if not self._speaks:
            return
        if not report.passed:
            self._seconds.pop(report.nodeid, None)
        elif report.when == "setup":
            self._seconds[report.nodeid] = report.duration
        elif report.nodeid in self._seconds:
            self._seconds[report.nodeid] += report.duration
            if report.when == "teardown":
                line = [report.nodeid, round(self._seconds.pop(report.nodeid), 2)]
                with self._notes.open("a") as notes:
                    notes.write(f"{json.dumps(line)}\n")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say what has passed so far, this time and before."""
        for line in self.words() if self._speaks else ():
            terminalreporter.write_line(line)

    def words(self) -> Iterator[str]:
        """Yield lines: how many tests passed, and the long ones."""
        known = self.before()
        yield f"on these files {len(known)} tests have passed, in {sum(known.values()):.0f} s"
        for name, seconds in sorted(known.items(), key=lambda one: -one[1]):
            if seconds >= LONG_S:
                yield f"{seconds:8.1f} s  {name}"


def pytest_configure(config: pytest.Config) -> None:
    """Begin, or go on; of several processes one writes and speaks."""
    assert config.cache is not None  # a plugin of pytest's own
    folder = config.cache.mkdir("passed")
    config.pluginmanager.register(
        GoingOn(folder / files_digest(), speaks=not hasattr(config, "workerinput"))
    )


def long_tests(seconds: Mapping[str, float]) -> list[str]:
    """Return the tests, without their parameters, that take `LEFT_OUT_S` or more, sorted."""
    whole = defaultdict[str, float](float)
    for name, took in seconds.items():
        whole[name.partition("[")[0]] += took
    return sorted(name for name, took in whole.items() if took >= LEFT_OUT_S)


if __name__ == "__main__":
    newest = max((ROOT / ".pytest_cache/d/passed").iterdir(), key=lambda file: file.stat().st_mtime)
    names = long_tests(GoingOn(newest, speaks=False).before())
    LONG.write_text("".join(f"{name}\n" for name in names))
    print(f"{LONG.name}: {len(names)} tests of {LEFT_OUT_S:g} s or more")
