"""One run as it is seen from outside: its folder, what is under way, what was lost."""

import hashlib
import json
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from fedapp.experiment.run_folder import RunFolder
from tests.flower.results import results, rows

LIMIT_S = 600.0
"""Seconds to wait for any one thing: the machine may be busy; far above what is needed."""
_EFFORT = (
    "models_sent",
    "models_up",
    "bytes_up",
    "bytes_down",
    "bytes_evaluation",
)

Found = TypeVar("Found")


def until(condition: Callable[[], Found], what: str, pause_s: float = 0.02) -> Found:
    """Wait until a condition holds and return its value."""
    end = time.monotonic() + LIMIT_S
    while not (found := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"waited {LIMIT_S:g} s in vain for: {what}")
        if pause_s:
            time.sleep(pause_s)
    return found


@dataclass
class Run:
    """A run that was submitted. stores: each site's `store-path`, by number."""

    path: Path
    submission: subprocess.Popen[bytes]
    log: Path
    stores: Mapping[int, Path]
    seen: dict[str, int] = field(default_factory=dict)
    """Highest version of each site's model in any checkpoint that was looked at."""

    def said(self) -> str:
        """Return what `flwr run --stream` has shown."""
        return self.log.read_text(errors="replace")

    def until(self, condition: Callable[[], Found], what: str, pause_s: float = 0.005) -> Found:
        """Wait for something to happen while the run goes on."""

        def told() -> Found:
            if not (found := condition()) and self.submission.poll() is not None:
                found = condition()
                assert found, f"the run ended before: {what}\n{self.said()[-3000:]}"
            return found

        return until(told, what, pause_s)

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of metrics.jsonl."""
        path = self.path / "metrics.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def round(self) -> int:
        """Return the last round of the checkpoint; -1: none."""
        return (RunFolder(self.path).load_checkpoint() or {"round": -1})["round"]

    def at_work(self, site: int) -> bool:
        """Return whether a site is at work on a task of this run: it holds its lock then."""
        path = self.stores[site] / self.path.name / "sites" / f"site-{site}" / "busy.lock"
        try:
            inode = path.stat().st_ino
        except FileNotFoundError:
            return False
        held = (line.split() for line in Path("/proc/locks").read_text().splitlines())
        return any(words[5].endswith(f":{inode}") for words in held if "->" not in words)

    def at_work_after(self, site: int, done: int) -> bool:
        """Return whether a site is at work in a round after `done`."""
        return self.round() >= done and self.at_work(site)

    def skipped(self, site: int) -> dict[int, str]:
        """Return the rounds that a site was skipped in, and why."""
        found = {row["round"]: row["skipped"].get(str(site)) for row in self.rows()}
        return {number: reason for number, reason in found.items() if reason}

    def back(self, site: int, after: int) -> int:
        """Wait until a site takes part in a round after `after`; return the round."""

        def found() -> list[int]:
            out = self.skipped(site)
            return [r["round"] for r in self.rows() if r["round"] > after and r["round"] not in out]

        return self.until(found, f"site {site} back after round {after}", 0.1)[0]

    def lost(self) -> list[str]:
        """Return the records of the checkpoint whose content is not in the pool, whole.

        Checks also that no site's version is lower than it was when this was called before.
        """
        records = RunFolder(self.path)
        while True:
            saved = records.load_checkpoint() or {"pool": {}}
            missing = [
                f"site {site}, version {version}"
                for site, (version, digest, _) in saved["pool"].items()
                if not self._whole(digest)
            ]
            if records.load_checkpoint() in (None, saved):  # else a round has ended meanwhile
                break
        for site, (version, _, _) in saved["pool"].items():
            assert version >= self.seen.get(site, 0), f"version of site {site} went back"
            self.seen[site] = version
        return missing

    def _whole(self, digest: str) -> bool:
        file = self.path / "pool" / digest[:2] / f"{digest}.safetensors"
        try:
            return hashlib.sha256(file.read_bytes()).hexdigest() == digest
        except FileNotFoundError:
            return False

    def hang_up(self) -> None:
        """End the `flwr run --stream` of a run whose server is gone."""
        self.submission.terminate()
        self.submission.wait()

    def finished(self) -> None:
        """Wait for the end of the run, and that it has a result and lost nothing."""
        end = self.path / "summary.json"
        until(lambda: self.submission.poll() is not None or end.exists(), "the run's end", 0.1)
        until(lambda: self.submission.poll() is not None, "the end of flwr run", 0.1)
        assert end.exists(), self.said()[-3000:]
        assert self.lost() == []


def outcome(folder: Path) -> dict[str, Any]:
    """Return all that a run and its uninterrupted twin have in common: all but clock and effort.

    Every row, every site's model by digest and version, helper lists with scores, evaluations. A
    round that is repeated costs traffic, and fewer scores: a site has kept those it made before.
    """
    found = results(folder)
    del found["traffic"], found["ledger"]
    cut = [{k: v for k, v in row.items() if k not in _EFFORT} for row in rows(folder)]
    # Best rounds are rows too.
    return {**_without(found), "rows": cut}


def _without(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without(inner) for k, inner in value.items() if k not in _EFFORT}
    return [_without(inner) for inner in value] if isinstance(value, list) else value
