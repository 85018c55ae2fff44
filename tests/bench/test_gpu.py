"""bench.gpu: its pieces at toy size on the CPU, and that each is done once."""

import json
import math
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
import torch
import typer
from typer.testing import CliRunner

from bench import measure, record, tables
from bench.gpu import check, groups, main, paper, pieces, sites, speed
from bench.gpu.pieces import Session
from bench.throughput import Size, flop_per_image, throughput
from fedapp.ground.errors import ConfigError, RunError
from fedapp.results.comparison.record import read_comparison
from fedapp.tools.compare.grid import read_grid
from tests.small import small

pytestmark = pytest.mark.usefixtures("no_collection")

ROOT = Path(__file__).parents[2]
TINY = Size(scored=8, trained=8, matrix=16, repetitions=1)
SETTINGS = ("rounds.num_rounds=1", "data.subset=200")


@pytest.fixture
def no_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Collecting a test process's garbage before each case takes longer than all cases."""
    monkeypatch.setattr(measure.gc, "collect", lambda: 0)


def toy(out: Path, deadline: float | None = None, given: tuple[str, ...] = SETTINGS) -> Session:
    return Session(out, True, given, deadline, None)


def said(*words: str) -> tuple[int, str]:
    app = typer.Typer()
    app.command()(main.main)
    done = CliRunner().invoke(app, list(words))
    return done.exit_code, done.stderr


# --- the command ----------------------------------------------------------------------------------


def test_without_a_gpu_it_says_so_in_one_line(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    code, error = said("--out", str(tmp_path))
    assert code == 2
    assert error == "bench.gpu: no GPU: run this where PyTorch finds one, or try it with --quick\n"


def test_a_piece_that_there_is_not_is_named():
    assert said("spede", "--quick") == (
        2,
        "bench.gpu: no piece spede; there are check, tests, speed, ways, groups, sites, paper, "
        "table\n",
    )


def test_missing_packages_are_named_with_the_remedy_where_not_even_typer_is():
    hidden = "import runpy, sys; sys.modules['pydantic'] = sys.modules['typer'] = None; "
    run = "runpy.run_module('bench.gpu', run_name='__main__', alter_sys=True)"
    words = [sys.executable, "-c", hidden + run, "check"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    remedy = "pip install --no-index --find-links FOLDER"
    lines = f"pydantic: {remedy} pydantic; typer: {remedy} typer"
    assert (done.returncode, done.stderr) == (2, f"bench.gpu: packages are missing: {lines}\n")


def test_a_setting_that_there_is_not_is_refused_in_one_line(tmp_path):
    code, error = said("sites", "--quick", "--out", str(tmp_path), "rounds.num_round=1")
    assert code == 2 and error.count("\n") == 1 and "rounds.num_rounds" in error


def test_a_folder_of_another_setting_is_refused(tmp_path):
    assert toy(tmp_path).carry_out(["check"])
    with pytest.raises(ConfigError, match="give another --out"):
        toy(tmp_path, given=()).carry_out(["check"])


def test_what_is_done_is_not_done_again_and_no_piece_begins_when_time_is_over(tmp_path, capsys):
    assert not toy(tmp_path, deadline=time.monotonic() - 1).carry_out(["check"])
    assert toy(tmp_path).carry_out(["check"])
    assert toy(tmp_path, deadline=time.monotonic() - 1).carry_out(["check"])
    assert "check: done before" in capsys.readouterr().out


def test_on_a_gpu_it_is_the_papers_setting(tmp_path):
    experiment = Session(tmp_path, False, ("seed=3",), None, None).experiment()
    assert (experiment.split.num_clients, experiment.rounds.num_rounds) == (100, 200)
    assert (experiment.split.dirichlet_alpha, experiment.model.width) == (0.5, 64)
    assert (experiment.runtime.device, experiment.seed) == ("cuda", 3)


def test_releases_of_torch_are_compared_as_numbers():
    assert check._release("2.9.1") < check.LEAST_TORCH < check._release("2.12.1+cu130")


def test_the_oldest_torch_is_that_of_the_package():
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    [torch_of_package] = (one for one in wanted if one.startswith("torch>"))
    assert torch_of_package.startswith("torch>={}.{},".format(*check.LEAST_TORCH))


@pytest.mark.cuda
def test_a_card_is_described():
    assert check.card()["memory, GiB"] > 0


# --- the pieces -----------------------------------------------------------------------------------


def test_failing_tests_end_the_piece_with_a_reason(tmp_path, monkeypatch):
    failed = subprocess.CompletedProcess([], 1, stdout="1 failed")
    monkeypatch.setattr(pieces.subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(RunError, match="tests that need a GPU failed"):
        toy(tmp_path).carry_out(["tests"])


def test_each_way_stands_beside_the_first_and_equal_draws_give_equal_numbers(monkeypatch):
    rows = {row["what"]: row for row in speed.ways(small(), TINY)}
    for name in ("a site's epoch, recorded", "a site's score, one batch, recorded"):
        assert rows[name]["difference"] == 0  # on a CPU nothing is recorded
    assert "difference" not in rows["a site's score, passes as one batch"]
    assert rows["a site's epoch, step by step"]["ratio"] == 1
    turn, batch = (rows[f"a site's score, passes {how}"] for how in ("in turn", "as one batch"))
    assert 0 < batch["operators"] < turn["operators"]


def test_operators_are_counted_forwards_and_backwards():
    """A product is one; a sum and two gradients are three at least."""
    x = torch.ones(3, requires_grad=True)
    with speed.Operators() as forwards:
        y = x * 2
    assert forwards.number == 1
    with speed.Operators() as backwards:
        y.sum().backward()
    assert backwards.number > 2


def test_groups_stand_beside_one_after_the_other(monkeypatch):
    monkeypatch.setattr(groups, "IMAGES", (3,))
    rows = {row["what"]: row for row in groups.rows(small(), (2,), (2, 4), 1)}
    assert list(rows) == [
        "one after the other", "one after the other, recorded", "2 as one", "4 as one",
    ]  # fmt: skip
    assert rows["one after the other"]["ratio"] == 1
    # A group starts as many operators as two sites of it, about; so a site of more has fewer.
    assert rows["4 as one"]["operators"] < rows["2 as one"]["operators"]


def test_sites_at_a_time_are_measured_once_each(tmp_path, monkeypatch):
    asked = []

    def measured(experiment, folder):
        asked.append((experiment.runtime.workers, experiment.runtime.graphs))
        return {"n": len(asked)}

    monkeypatch.setattr(sites, "measured", measured)
    over = iter([False, False, True])
    experiment = toy(tmp_path).experiment
    assert sites.rows(experiment, tmp_path, lambda: next(over), False) is None
    assert asked == [(1, False), (2, False)]
    rows = sites.rows(experiment, tmp_path, lambda: False, False)
    assert [row["n"] for row in rows] == list(range(1, 9))
    assert asked == [(n, graphs) for graphs in (False, True) for n in (1, 2, 4, 8)]


def test_rounds_behind_the_first_are_measured(tmp_path):
    experiment = toy(tmp_path).experiment(rounds__num_rounds=3, data__subset=200)
    row = sites.measured(experiment, tmp_path / "run")
    assert row["n"] == 2 and 0 < row["min_s"] <= row["median_s"] <= row["max_s"]
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The paper's piece, stopped at once and then run to its end, for two methods of a round."""
    out = tmp_path_factory.mktemp("compared")
    with pytest.MonkeyPatch.context() as patch:
        head, _, _ = paper.GRID.read_text().partition("  - um_pfssl")
        rest = 'seeds: [0]\npaper: {table: "I", dataset: digits}\n'
        two = out / "two.yaml"
        two.write_text(f"{head}  - fixavg\n  - local_only\n{rest}")
        patch.setattr(paper, "GRID", two)
        given = toy(out).overrides()
        assert paper.runs(out, given, deadline=time.monotonic()) is None
        assert not list((out / "paper").rglob("summary.json"))
        assert [row["method"] for row in paper.runs(out, given, None)] == ["fixavg", "local_only"]
    return out


# The stop may come between a file's opening and its `with`: Python then closes it late and warns.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_run_that_was_stopped_goes_on(compared):
    assert len(list((compared / "paper").rglob("summary.json"))) == 2


def test_ours_stand_beside_the_papers_numbers(compared, tmp_path):
    """By hand: the paper's FixAvg as 12.50 %; of training alone it has no number."""
    file = tmp_path / "numbers.csv"
    file.write_text(
        "paper,table,dataset,setting,method,metric,value\n"
        "UM-pFSSL,I,digits,alpha=0.5,FixAvg,best_test_acc,12.50\n"
    )
    rows = {row["method"]: row for row in paper.table(compared, file)}
    comparison = read_comparison(compared / "paper")
    best = comparison.cells["alpha=0.5", "fixavg", 0].numbers["best_test_accuracy"]
    assert rows["fixavg"]["the paper, %"] == "12.50"
    assert rows["fixavg"]["difference"] == round(100 * best - 12.5, 2)
    assert rows["local_only"]["the paper, %"] is rows["local_only"]["difference"] is None


def test_the_grid_asks_for_the_papers_table():
    grid = read_grid(str(paper.GRID))
    [setting] = grid.settings
    assert (setting.overrides["split.dirichlet_alpha"], len(grid.methods)) == (0.5, 6)
    assert setting.paper.model_dump(exclude_defaults=True) == {
        "table": "I",
        "dataset": "FashionMNIST",
    }


def test_without_a_run_there_is_no_table(tmp_path):
    with pytest.raises(RunError, match="is missing"):
        paper.table(tmp_path)


def test_what_is_recorded_has_a_place_in_the_tables(tmp_path, monkeypatch):
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    session = Session(tmp_path, False, ("seed=1",), None, None)
    for name in main.PIECES:
        session._keep(name, [{"what": name, "here": 7}])
    text = tables.DOCUMENTS[0].read_text()
    written = sorted(path.stem for path in tmp_path.glob("*.json"))
    assert written == sorted(f"gpu-{name}" for name in pieces.RECORDED)
    assert tables.unplaced(text, tmp_path) == []
    assert tables.filled(text, tmp_path).count("preset fashion_mnist; setting seed=1.") == 5


@pytest.mark.slow
def test_the_whole_runs_without_flower_killed_in_the_middle(tmp_path):
    hidden = "import gc, runpy, sys; sys.modules['flwr'] = sys.modules['ray'] = None; "
    hidden += "sys.modules['matplotlib'] = sys.modules['medmnist'] = None; "
    quick = "gc.collect = lambda *_: 0; "  # as in no_collection
    run = "runpy.run_module('bench.gpu', run_name='__main__', alter_sys=True)"
    words = ["-c", hidden + quick + run, "--quick", "--out", str(tmp_path), *SETTINGS]
    wanted = [name for name in main.PIECES if name != "tests"]
    cut = subprocess.Popen([sys.executable, *words, *wanted], cwd=ROOT, stdout=subprocess.DEVNULL)
    first = tmp_path / "sites" / "1.json"
    while not first.exists() and cut.poll() is None:
        time.sleep(0.1)
    cut.kill()
    cut.wait()
    before = sorted(record.RESULTS.glob("*"))
    done = subprocess.run(
        [sys.executable, *words, *wanted], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "speed: done before" in done.stdout
    assert len(json.loads((tmp_path / "table.json").read_text())) == 6
    assert sorted(record.RESULTS.glob("*")) == before


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
