"""TensorBoard and MLflow hold the numbers of metrics.jsonl: read back by their own readers."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fedapp.core.errors import RunError, StoreError
from fedapp.tools.track import numbers, runs_of, track

STARTED = "2026-03-01T12:00:00+00:00"
SECONDS = 1772366400.0
"""STARTED since 1970."""
CONFIG = """\
name: trial
seed: 3
method: {name: um_pfssl, num_replaced: 2}
rounds: {num_rounds: 4}
"""
pytestmark = pytest.mark.filterwarnings("ignore")
"""Both libraries warn of their own dependencies."""


def row(number: int, **more: Any) -> dict[str, Any]:
    return {
        "round": number,
        "mean_test_accuracy": 0.1 * number + 1 / 3,
        "mean_val_accuracy": None,
        "trained": 3,
        "skipped": {"2": "late"} if number == 1 else {},
        "wall_seconds": 10.0 * (number + 1),
        **more,
    }


def begun(folder: Path, rounds: int) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(CONFIG)
    (folder / "run.json").write_text(json.dumps({"started": STARTED}))
    add(folder, *range(rounds))
    return folder


def add(folder: Path, *numbers: int) -> None:
    with (folder / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(row(number)) + "\n" for number in numbers)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDAPP_OUT", str(tmp_path / "runs"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return begun(tmp_path / "runs" / "first", 3)


def test_a_round_is_its_numbers() -> None:
    assert numbers(row(1, pseudo_label_error=0.25)) == {
        "mean_test_accuracy": 0.1 + 1 / 3, "trained": 3.0, "pseudo_label_error": 0.25,
        "skipped": 1.0,
    }  # fmt: skip


def test_what_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="holds no run that has begun"):
        runs_of(tmp_path)
    folder = begun(tmp_path / "x", 1)
    (folder / "run.json").write_text("{}")
    with pytest.raises(RunError, match=r"run\.json: damaged"):
        track(str(folder), "tensorboard", None)


# --- TensorBoard ----------------------------------------------------------------------------------


def scalars(folder: Path) -> dict[str, list[tuple[int, float, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder)).Reload()
    return {
        key: [(s.step, s.value, s.wall_time) for s in read.Scalars(key)]
        for key in read.Tags()["scalars"]
    }


def test_event_files_hold_the_numbers_once(run: Path) -> None:
    for _ in range(2):  # again is as once
        track("first", "tensorboard", None)
    found = scalars(run / "tensorboard" / "first")
    assert found.keys() == {"mean_test_accuracy", "trained", "skipped"}
    assert [step for step, _, _ in found["trained"]] == [0, 1, 2]
    assert [v for _, v, _ in found["mean_test_accuracy"]] == pytest.approx(
        [1 / 3, 0.4333333, 0.533333]
    )
    assert [at - SECONDS for _, _, at in found["skipped"]] == [10.0, 20.0, 30.0]
    add(run, 3)
    track("first", "tensorboard", None)
    assert [step for step, _, _ in scalars(run / "tensorboard" / "first")["skipped"]] == [
        0,
        1,
        2,
        3,
    ]


def test_files_of_others_stay(run: Path, tmp_path: Path) -> None:
    mine = tmp_path / "events" / "first" / "events.out.tfevents.1.mine"
    mine.parent.mkdir(parents=True)
    mine.write_text("x")
    track("first", "tensorboard", tmp_path / "events")
    assert mine.read_text() == "x" and len([*mine.parent.iterdir()]) == 2


def test_a_folder_that_cannot_be_is_one_line(run: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be"):
        track("first", "tensorboard", tmp_path / "file")


def test_the_cells_of_a_comparison_that_have_begun(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs" / "compare-small"
    for method in ("fixavg", "um_pfssl"):
        begun(out / "cells" / "base" / method / "seed-0", 2)
    (out / "cells" / "base" / "fedper" / "seed-0").mkdir(parents=True)
    track("compare-small", "tensorboard", None)
    places = {p.parent.relative_to(out / "tensorboard").as_posix()
              for p in out.rglob("events.out.tfevents*")}  # fmt: skip
    assert places == {"base/fixavg/seed-0", "base/um_pfssl/seed-0"}


# --- MLflow ---------------------------------------------------------------------------------------


def stored(store: Path, experiment: str = "trial") -> list[Any]:
    from mlflow import MlflowClient

    client = MlflowClient(store.as_uri())
    found = client.get_experiment_by_name(experiment)
    return [
        (one, {m: client.get_metric_history(one.info.run_id, m) for m in one.data.metrics})
        for one in client.search_runs([found.experiment_id])
    ]


def test_mlflow_holds_the_numbers_once(run: Path, tmp_path: Path) -> None:
    store = tmp_path / "runs" / "mlruns"
    for _ in range(2):
        track("first", "mlflow", None)
    ((one, history),) = stored(store)
    assert one.info.run_name == "first" and one.info.status == "RUNNING"
    assert one.data.params == {"seed": "3", "method.name": "um_pfssl", "method.num_replaced": "2"}
    assert [(m.step, m.value) for m in history["mean_test_accuracy"]] == [
        (k, 0.1 * k + 1 / 3) for k in range(3)
    ]
    assert [m.timestamp for m in history["skipped"]] == [1000 * (SECONDS + s) for s in (10, 20, 30)]
    add(run, 3)
    (run / "summary.json").write_text("{}")
    (run / "config.yaml").write_text(CONFIG.replace("num_rounds: 4", "num_rounds: 9"))
    track("first", "mlflow", None)
    ((one, history),) = stored(store)
    assert one.info.status == "FINISHED" and one.data.tags["rounds.num_rounds"] == "9"
    assert [m.step for m in history["trained"]] == [0, 1, 2, 3]


def test_the_store_that_is_asked_for(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "theirs").as_uri())
    track("first", "mlflow", None)
    assert len(stored(tmp_path / "theirs")) == 1
    track("first", "mlflow", tmp_path / "mine")
    assert len(stored(tmp_path / "mine")) == 1
    assert not (tmp_path / "runs" / "mlruns").exists()


def test_a_server_that_is_not_there_is_one_line(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(StoreError, match=r"MLflow at http://127.0.0.1:9 refused") as error:
        track("first", "mlflow", None)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("to", "lacking"), [("tensorboard", "tensorboard"), ("mlflow", "mlflow")])
def test_without_the_extra_one_line_says_which(run: Path, to: str, lacking: str) -> None:
    program = (
        f"import sys; sys.modules[{lacking!r}] = None; sys.argv = ['fedapp', 'track', '--to', "
        f"{to!r}]; from fedapp.__main__ import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr.startswith(
        f"fedapp: {lacking} is not installed: pip install 'fedapp[track]'"
    )
