"""bench.gpu: the paths that a GPU takes, at toy size on the CPU."""

import math
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import typer
from typer.testing import CliRunner

from bench import gpu, measure, paper_run, record, tables
from bench.throughput import Size, flop_per_image, throughput
from fedapp.data.sites import SiteData
from fedapp.experiment.experiment import Experiment
from fedapp.ground.errors import RunError
from fedapp.site.federation import federation_of
from tests.small import small

pytestmark = pytest.mark.usefixtures("no_collection")

ROOT = Path(__file__).parents[2]
TINY = Size(scored=8, trained=8, matrix=16, repetitions=1)


@pytest.fixture
def no_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Collecting a test process's garbage before each case takes longer than all cases."""
    monkeypatch.setattr(measure.gc, "collect", lambda: 0)


def toy(out: Path, *overrides: str) -> Experiment:
    return gpu.experiment_of(overrides, toy=True, away=str(out))


def cli() -> typer.Typer:
    app = typer.Typer()
    app.command()(gpu.main)
    return app


# --- the command ----------------------------------------------------------------------------------


def test_the_whole_runs_without_flower_and_records_nothing(tmp_path):
    hidden = "import gc, runpy, sys; sys.modules['flwr'] = sys.modules['ray'] = None; "
    quick = "gc.collect = lambda *_: 0; "  # as in no_collection
    run = "runpy.run_module('bench.gpu', run_name='__main__', alter_sys=True)"
    command = [sys.executable, "-c", hidden + quick + run, "--toy", "rounds.num_rounds=1"]
    before = sorted(record.RESULTS.glob("*"))
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for said in ("projected: ", "round 1/1", "final version, Table I", "straightforward loop"):
        assert said in done.stdout
    assert sorted(record.RESULTS.glob("*")) == before


def test_without_a_gpu_it_says_so_in_one_line(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    done = CliRunner().invoke(cli(), [])
    assert done.exit_code == 2
    assert (
        done.stderr == "bench.gpu: no GPU: run this where PyTorch finds one, or try it with --toy\n"
    )


def test_on_a_gpu_it_is_the_papers_setting(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    experiment = gpu.experiment_of(["seed=3"], toy=False, away="unused")
    assert (experiment.split.num_clients, experiment.rounds.num_rounds) == (100, 200)
    assert (experiment.split.dirichlet_alpha, experiment.model.width) == (0.5, 64)
    assert (experiment.runtime.device, experiment.runtime.out, experiment.seed) == ("cuda", "", 3)


# --- the run --------------------------------------------------------------------------------------


def test_a_run_in_sittings_ends_like_one_without_a_break(tmp_path, capsys):
    whole, cut = (toy(tmp_path / part, "rounds.num_rounds=2") for part in ("whole", "cut"))
    gpu.bench(whole, [], toy=True, deadline=None)
    assert "stopped" not in capsys.readouterr().out
    for sitting in range(2):  # the warm-up, then one round: no other fits
        gpu.bench(cut, [], toy=True, deadline=0.0)
        said = capsys.readouterr().out
        assert "the same command goes on" in said
        assert ("projected" in said) == (sitting == 0), "measured once, in the first sitting"
    gpu.bench(cut, [], toy=True, deadline=None)
    assert "wall time" in capsys.readouterr().out
    for name in ("per_site.csv", "traffic.csv", "evaluations.json"):
        one, other = (
            (tmp_path / part / whole.runtime.run_name / name).read_text()
            for part in ("whole", "cut")
        )
        assert one == other, name


def test_what_is_recorded_fills_the_tables(tmp_path, monkeypatch):
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    monkeypatch.setattr(gpu, "CARD", TINY)
    given = ["rounds.num_rounds=1"]
    gpu.bench(toy(tmp_path, *given), given, toy=False, deadline=None)
    text = tables.filled(tables.DOCUMENTS[0].read_text(), tmp_path)
    assert "| scoring by whole passes | bfloat16 | 1 |" in text
    assert "| 79 | final version, Table I, " in text
    assert text.count("preset fashion_mnist; setting rounds.num_rounds=1; seed 0.") == 3


def test_a_failing_first_sitting_leaves_nothing_behind(tmp_path):
    experiment = toy(tmp_path, "training.learning_rate=1e30")
    with pytest.raises(RunError):
        paper_run.run_rows(experiment, federation_of(experiment), None)
    assert not paper_run.has_begun(experiment)


def test_it_stops_only_when_a_round_as_long_as_the_longest_would_not_fit():
    now = [0.0]
    progress = paper_run.Timed(125.0, clock=lambda: now[0])
    for end in (50.0, 60.0, 75.0):  # the longest took 50
        now[0] = end
        progress.round_done({"round": 1})
    now[0] = 76.0
    with pytest.raises(paper_run.TimeUpError):
        progress.round_done({"round": 1})


def test_without_a_limit_it_never_stops():
    now = [0.0]
    progress = paper_run.Timed(None, clock=lambda: now[0])
    now[0] = 1e9
    progress.round_done({"round": 1})


def test_the_papers_figures_stand_beside_ours():
    summary = {
        "mean_test_accuracy": {"best": 0.81234, "final": 0.8, "best_by_validation": None},
        "wall_seconds": 90.0,
        "rounds": 200,
        "models_sent": 30,
        "models_up": 12,
        "cost_bound_models": 100.0,
    }
    rows = {row["what"]: row for row in paper_run.rows_of(summary, small())}
    best, final = (rows[f"mean test accuracy, {k} round, %"] for k in ("best", "final"))
    assert (best["here"], best["paper"], final["here"], final["paper"]) == (
        81.23,
        79.0,
        80.0,
        78.38,
    )
    assert rows["mean test accuracy, best by validation round, %"]["here"] is None
    assert (rows["wall time, min"]["here"], rows["models sent"]["here"]) == (1.5, 42)
    assert not any("GPU" in what for what in rows)


# --- throughput -----------------------------------------------------------------------------------


def test_operations_per_image_are_those_counted_by_hand():
    """A 3 x 3 convolution from a to b channels on s x s pixels takes 18 a b s^2 operations."""

    def conv(a: int, b: int, side: int) -> int:
        return 18 * a * b * side**2

    w = 4
    trunk = conv(1, w, 28) + conv(w, 2 * w, 28) + 2 * conv(2 * w, 2 * w, 14)
    trunk += conv(2 * w, 4 * w, 14) + conv(4 * w, 8 * w, 7) + conv(8 * w, 8 * w, 3)
    tail = conv(8 * w, 8 * w, 3) + 2 * 8 * w * 10
    scored, plain, trained = flop_per_image(small(model__width=w))
    passes = small().method.mc_samples
    assert (scored, plain) == (trunk + passes * tail, passes * (trunk + tail))
    # Backwards twice as much, but no gradient of the image itself.
    assert trained == 3 * (trunk + tail) - conv(1, w, 28)


def test_rates_follow_from_times():
    rows = throughput(small(), TINY)
    kinds = ("scoring", "scoring by whole passes", "training")
    assert [(row["what"], row["precision"]) for row in rows] == [
        ("16 x 16 product", "bfloat16"),
        *((kind, precision) for precision in ("float32", "bfloat16") for kind in kinds),
    ]
    assert rows[0]["of_bfloat16_product"] == 1
    for row in rows[1:]:
        assert row["n"] == 1 and row["peak_mib"] is None
        assert ("ratio" in row) == (row["what"] == "scoring")
        flop = row["per_s"] * flop_per_image(small())[kinds.index(row["what"])]
        assert math.isclose(row["tflop_per_s"] * 1e12, flop, rel_tol=0.01)


@pytest.mark.cuda
def test_a_card_is_measured_with_its_memory():
    rows = throughput(small(runtime__device="cuda"), TINY)
    assert all(row["peak_mib"] > 0 for row in rows)


def test_the_projection_counts_what_is_trained_and_scored():
    """By hand: 2 sites of 10 labelled and 30 unlabelled images in all."""
    experiment = small(
        split__num_clients=2,
        rounds__num_rounds=10,
        rounds__sample_rate=0.5,
        training__local_epochs=3,
        training__warmup_epochs=2,
    )

    def site(labelled: int, unlabelled: int) -> SiteData:
        return SimpleNamespace(labelled=range(labelled), unlabelled=range(unlabelled))

    sites = {0: site(10, 5), 1: site(0, 25)}
    federation = SimpleNamespace(dealt=SimpleNamespace(site=sites.__getitem__))
    rows = [
        {"what": what, "precision": precision, "per_s": rate}
        for precision, factor in (("float32", 1), ("bfloat16", 1000))
        for what, rate in (("scoring", 60.0 * factor), ("training", 20.0 * factor))
    ]
    trained = 10 * 0.5 * 3 * 40 + 2 * 10
    models = 2 * 3 * 10 / 2 + 3 * 1 * 2 + 0.5 * 2 * 10  # K M n / nu + F R K + tau K n
    assert gpu.projected(experiment, federation, rows) == pytest.approx(
        trained / 20 + models / 2 * 30 / 60
    )
