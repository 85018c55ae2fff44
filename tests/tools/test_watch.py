"""Watching: what a run's folder tells, as a screen and as lines; the run is left alone."""

import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from rich.console import Console

from fedapp.core.errors import ConfigError, RunError
from fedapp.experiment.run_folder import SERVER_LOCK, is_running
from fedapp.tools import watch as watching
from fedapp.tools.watch import RunState, curve, run_state, screen, watch

CONFIG = """\
name: trial
seed: 0
method: {name: um_pfssl}
split: {num_clients: 3}
rounds: {num_rounds: 4}
"""
SUMMARY = {"preset": "trial", "method": "um_pfssl", "sites": 3, "rounds": 4, "seed": 0}


def row(number: int, seconds: float, **more: Any) -> dict[str, Any]:
    accuracy = {"mean_test_accuracy": 0.5 + number / 10, "mean_val_accuracy": 0.6}
    traffic = {"bytes_down": 2000, "bytes_up": 1000, "wall_seconds": seconds}
    return {"round": number, **accuracy, **traffic, "trained": 3, "skipped": {}, **more}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDAPP_OUT", str(tmp_path))
    monkeypatch.setattr(watching, "EVERY_S", 0.0)
    folder = tmp_path / "trial"
    folder.mkdir()
    (folder / "config.yaml").write_text(CONFIG)
    (folder / "run.json").write_text("{}")
    return folder


@pytest.fixture
def held(run: Path) -> Iterator[FileLock]:
    with FileLock(run / SERVER_LOCK) as lock:
        yield lock


def add(run: Path, *rows: dict[str, Any]) -> None:
    with (run / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(one) + "\n" for one in rows)


def end(run: Path) -> None:
    (run / "summary.json").write_text(json.dumps(SUMMARY))


def watched(run: str = "", **more: Any) -> tuple[int, str]:
    file = io.StringIO()
    return watch(run, Console(file=file, width=80, **more)), file.getvalue()


def test_whether_a_server_is_at_work(run: Path) -> None:
    assert not is_running(run)
    with FileLock(run / SERVER_LOCK):
        assert is_running(run)
    assert not is_running(run)
    assert FileLock(run / SERVER_LOCK).acquire(timeout=0), "looking leaves the lock free"


def test_how_a_run_stands(run: Path, held: FileLock) -> None:
    """Rounds of 2, 4 and 6 seconds, one to go: 4 seconds less those since the last row."""
    add(run, row(0, 100.0), row(1, 102.0), row(2, 106.0), row(3, 112.0))
    now = os.stat(run / "metrics.jsonl").st_mtime
    os.utime(run / "metrics.jsonl", (now - 1.0, now - 1.0))
    seen = run_state(run)
    assert (seen.done, seen.rounds, seen.working, seen.ended) == (3, 4, True, False)
    assert seen.round_s == pytest.approx(4.0)
    assert seen.left_s == pytest.approx(3.0, abs=0.9)
    assert seen.accuracies("test") == pytest.approx([0.5, 0.6, 0.7, 0.8])


def test_before_the_first_round_nothing_is_said_of_time(run: Path, held: FileLock) -> None:
    assert (run_state(run).done, run_state(run).round_s, run_state(run).left_s) == (-1, None, None)
    add(run, row(0, 9.0))
    assert (run_state(run).done, run_state(run).round_s, run_state(run).left_s) == (0, None, None)


def test_a_longer_run_is_not_over_while_its_first_summary_is_there(run: Path) -> None:
    end(run)
    assert run_state(run).ended
    with FileLock(run / SERVER_LOCK):
        assert not run_state(run).ended


def test_curves() -> None:
    assert curve([], 9) == ""
    assert curve([0.5, 0.5], 9, "abc") == "aa"
    assert curve([0.0, 0.5, 1.0], 9, "abc") == "abc"
    assert curve([0, 0, 2, 2, 4, 4], 3, "abc") == "abc", "two values a column"
    assert len(curve([*range(1000)], 36)) == 36


def shown(seen: RunState, unicode: bool = True) -> str:
    file = io.StringIO()
    Console(file=file, width=80, color_system=None).print(screen(seen, unicode))
    return file.getvalue()


def test_a_screen_of_80_columns(run: Path, held: FileLock) -> None:
    reason = "no answer within 30 s " + "and more " * 20
    rows = [row(k, k, skipped={str(s): reason for s in range(3)}) for k in range(4)]
    add(run, *rows, row(4, 5.0, skipped={"2": "late\x1b[2J"}))
    text = shown(run_state(run))
    assert max(map(len, text.splitlines())) <= 80
    assert "trial: um_pfssl, 3 sites" in text and "round 4 of 4" in text
    assert "▁▃▄▆█" in text and "90.0 % (best 90.0)" in text
    assert "13 warnings, the latest:" in text and "\x1b" not in text
    assert "2.0 kB to sites, 1.0 kB to the server" in text
    plain = shown(run_state(run), unicode=False)
    assert "_.-=+*%#"[0] in plain and "▁" not in plain


def test_sites_that_send_sums_are_said_to(run: Path) -> None:
    (run / "config.yaml").write_text(CONFIG.replace("um_pfssl", "one_round"))
    add(run, row(0, 100.0, trained=0), row(1, 102.0, trained=0))
    end(run)
    assert "sent sums in the last round" in shown(run_state(run))
    assert watched()[1].splitlines()[1].startswith("solution  accuracy 50.0 %")


def test_a_finished_run_in_a_pipe(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add(run, row(0, 100.0), row(1, 102.0, skipped={"1": "late"}), row(2, 104.0))
    end(run)
    code, text = watched()
    assert code == 0
    assert text.splitlines() == [
        "trial: 3 sites, 4 rounds",
        "warm-up  accuracy 50.0 % (worst tenth of sites -)  3 sites trained",
        "round 1: site 1 skipped: late",
        "round 1/4  accuracy 60.0 % (worst tenth of sites -)  3 sites trained  1 skipped  6 s left",
        "round 2/4  accuracy 70.0 % (worst tenth of sites -)  3 sites trained  4 s left",
    ]
    assert "trial: um_pfssl, 3 sites, 4 rounds" in capsys.readouterr().out


def test_a_run_that_goes_on_is_followed_to_its_end(
    run: Path, held: FileLock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = iter([lambda: add(run, row(0, 1.0)), lambda: add(run, row(1, 2.0)), lambda: end(run)])

    def later(_: float) -> None:
        step = next(ahead, None)
        step() if step else held.release()

    monkeypatch.setattr(watching.time, "sleep", later)
    code, text = watched("trial")
    assert code == 0
    assert [line.split("  ")[0] for line in text.splitlines()[1:]] == ["warm-up", "round 1/4"]


@pytest.mark.parametrize("interactive", [True, False])
def test_a_run_without_a_server_says_how_to_go_on(run: Path, interactive: bool) -> None:
    code, text = watched(force_terminal=interactive, force_interactive=interactive)
    assert code == watching.STOPPED and "it stopped in its warm-up\n" in text
    add(run, row(0, 1.0), row(1, 2.0))
    code, text = watched(force_terminal=interactive, force_interactive=interactive)
    assert code == watching.STOPPED
    assert "after round 1 of 4; continue with runtime.resume=true runtime.run_name=trial" in text


def test_ctrl_c_ends_the_watching_alone(
    run: Path, held: FileLock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pressed(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(watching.time, "sleep", pressed)
    before = sorted(path.name for path in run.iterdir())
    assert watched("trial")[0] == 0
    assert is_running(run) and sorted(path.name for path in run.iterdir()) == before


def test_what_is_no_run(run: Path, tmp_path: Path) -> None:
    (tmp_path / "compare-small" / "cells").mkdir(parents=True)
    for name, says in (("compare-small", "a comparison: name a run of it"), ("trila", "'trial'")):
        with pytest.raises(RunError, match=says):
            watched(name)
    (run / "config.yaml").write_text("name: [")
    with pytest.raises(ConfigError, match=r"config\.yaml"):
        watched("trial")
