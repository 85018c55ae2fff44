"""`fedapp compare` as a person meets it; cells' processes are stand-ins but in the slow tests."""

import csv
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock
from typer.testing import CliRunner

from fedapp import cli
from fedapp.core.errors import ConfigError, RunError
from fedapp.experiment.config import load_experiment
from fedapp.experiment.run_folder import RunFolder
from fedapp.reports.comparison import document
from fedapp.simulation import memory_probe
from fedapp.simulation.loopback import run_loopback
from fedapp.simulation.resources import WorkerNeed
from fedapp.tools.compare import execute
from fedapp.tools.compare.cell_process import Job, do
from fedapp.tools.compare.compare import compare
from fedapp.tools.compare.execute import INTERRUPTED, _outcome
from tests.tools.compare.tiny import cells, grid_file, stand_in

ROOT = Path(__file__).parents[3]


@pytest.fixture
def pretend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Put stand-ins in the processes' place; the report is only noted."""

    def put(**behaviour: str) -> None:
        monkeypatch.setattr(execute, "COMMAND", stand_in(tmp_path / "calls", behaviour))

    monkeypatch.setattr(document, "write_report", lambda out: [out / "tables.md"])
    put()
    return put


def run(path: Path, **named) -> int:
    return compare(str(path), {}, **{"jobs": 2, **named})


# --- the screen -----------------------------------------------------------------------------------


def test_it_ends_with_a_table_and_the_files(tmp_path: Path, pretend, capsys, away_from_home: Path):
    path = grid_file(tmp_path, title="Trial", seeds=[0, 1])
    assert run(path) == 0
    out = away_from_home / "runs" / "compare-tiny"
    said = capsys.readouterr().out
    assert f"Trial: 4 cells, 0 done before, in {out}" in said
    assert "base / fixavg / seed 0: 50.0 % selected by validation, 1 s" in said
    assert "fixavg    50.0 ± 0.0" in said
    assert said.endswith(
        f"Files in {out}\n  results.csv sites.csv rounds.csv comparison.json tables.md\n"
    )
    assert run(path) == 0
    assert "Trial: 4 cells, 4 done before" in capsys.readouterr().out
    assert len((tmp_path / "calls").read_text().split()) == 4


def test_without_validation_images_a_cell_says_its_last_round():
    done = {"selected_test_accuracy": 0.75, "selected_by": "last round", "wall_seconds": 61.0}
    assert _outcome(done) == "75.0 % after the last round, 1 min 01 s"


def test_a_failed_cell_gives_exit_code_1_its_last_words_and_its_log(
    tmp_path: Path, pretend, capsys
):
    pretend(um_pfssl="fail")
    out = tmp_path / "out"
    assert run(grid_file(tmp_path), out=out) == 1
    said = capsys.readouterr()
    log = out / "cells" / "base" / "um_pfssl" / "seed-0.log"
    assert said.err == (f"failed: base / um_pfssl / seed 0: error: out of luck\n  its log: {log}\n")
    assert log.read_text() == "first line\nerror: out of luck\n"
    assert "fixavg    50.0" in said.out and "um_pfssl     -" in said.out
    pretend()
    assert run(grid_file(tmp_path), out=out) == 0
    assert (tmp_path / "calls").read_text().split()[-1] == "um_pfssl/seed-0+"


def test_where_every_cell_fails_there_is_no_table(tmp_path: Path, pretend, capsys):
    pretend(um_pfssl="fail", fixavg="fail")
    assert run(grid_file(tmp_path), out=tmp_path / "out") == 1
    said = capsys.readouterr()
    assert "±" not in said.out and "tables.md" not in said.out and "out of luck" not in said.out
    assert said.err.count("out of luck") == 1 and " and 1 more: error:" in said.err, "a reason once"


def test_ctrl_c_ends_the_processes_and_says_how_to_go_on(
    tmp_path: Path, pretend, capsys, monkeypatch: pytest.MonkeyPatch
):
    pretend(um_pfssl="hang")
    out, started = tmp_path / "out", []
    popen = execute.subprocess.Popen

    def noted(*words, **named):
        started.append(popen(*words, **named))
        return started[-1]

    monkeypatch.setattr(execute.subprocess, "Popen", noted)
    begun, results = out / "cells/base/um_pfssl/seed-0/checkpoint.json", out / "results.csv"

    def interrupt() -> None:
        while not (begun.exists() and results.exists() and "fixavg" in results.read_text()):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    assert run(grid_file(tmp_path), out=out) == INTERRUPTED
    assert (
        "interrupted: 1 of 2 cells are done; the same command continues" in capsys.readouterr().out
    )
    assert [process.poll() is None for process in started] == [False, False]
    pretend()
    assert run(grid_file(tmp_path), out=out) == 0
    calls = (tmp_path / "calls").read_text().split()
    assert calls[-1] == "um_pfssl/seed-0+" and len(calls) == 3


def test_a_kill_ends_the_processes_too(tmp_path: Path, pretend):
    pretend(um_pfssl="hang", fixavg="hang")
    before = signal.getsignal(signal.SIGTERM)

    def kill() -> None:
        while not list(tmp_path.glob("out/cells/*/*/seed-0/checkpoint.json")):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=kill).start()
    with pytest.raises(SystemExit) as caught:
        run(grid_file(tmp_path), out=tmp_path / "out")
    assert caught.value.code == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before


# --- what is refused ------------------------------------------------------------------------------


def test_one_comparison_at_a_time_in_a_folder(tmp_path: Path, pretend):
    out = tmp_path / "out"
    out.mkdir()
    with FileLock(out / ".lock"):
        with pytest.raises(RunError, match="another comparison is at work there"):
            run(grid_file(tmp_path), out=out)
    assert run(grid_file(tmp_path), out=out) == 0


def test_changed_settings_start_nothing(tmp_path: Path, pretend):
    out = tmp_path / "out"
    assert run(grid_file(tmp_path), out=out) == 0
    with pytest.raises(RunError, match=r"was run with other settings .*: give another --out, or"):
        compare(str(grid_file(tmp_path)), {"rounds.num_rounds": 9}, out=out, jobs=1)
    assert len((tmp_path / "calls").read_text().split()) == 2


@pytest.mark.parametrize(
    ("named", "rule"),
    [
        ({"jobs": 0}, "--jobs 0: must be at least 1"),
        ({"jobs": 2, "driver": "flower"}, "--jobs 2: must be 1 with --driver flower"),
    ],
)
def test_impossible_numbers_of_jobs(tmp_path: Path, pretend, named, rule):
    with pytest.raises(ConfigError, match=rule):
        run(grid_file(tmp_path), out=tmp_path / "out", **named)
    assert not (tmp_path / "out").exists()


def test_the_command_line(tmp_path: Path, pretend, monkeypatch: pytest.MonkeyPatch, capsys):
    path = str(grid_file(tmp_path))
    words = [path, "rounds.num_rounds=2", "--methods", "fedper", "--seeds", "3"]
    found = CliRunner().invoke(cli.app, ["compare", *words, "--jobs", "1", "--out", str(tmp_path)])
    assert found.exit_code == 0, found.output
    assert (tmp_path / "cells" / "base" / "fedper" / "seed-3").is_dir()
    monkeypatch.setattr(sys, "argv", ["fedapp", "compare", path, "--methods", "fedpr"])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 2
    assert capsys.readouterr().err == (
        "fedapp: --methods: 'fedpr': no such method; did you mean 'fedper'?\n"
    )


# --- how many at a time ---------------------------------------------------------------------------


class Quiet:
    def note(self, text: str) -> None:
        """Nobody reads it."""


@pytest.mark.parametrize(
    ("cores", "gib", "need", "number"),
    [
        (4, 100, WorkerNeed(2**30), 4),
        (64, 100, WorkerNeed(2**30), 6),  # six cells
        (4, 100, None, 4),
        (4, 10, WorkerNeed(3 * 2**30), 3),
        (4, 1, WorkerNeed(3 * 2**30), 1),
        (4, 100, WorkerNeed(2**30, 2**30, (3 * 2**30, 99 * 2**30)), 2),  # all on the first GPU
        (1, 1, None, 1),
    ],
)
def test_as_many_as_cores_and_memory_carry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores, gib, need, number
):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    monkeypatch.setattr(execute, "free_ram", lambda: gib * 2**30)
    monkeypatch.setattr(execute, "start_measuring", lambda preset, overrides: preset)
    monkeypatch.setattr(execute, "measured", lambda process: need)
    todo = cells(tmp_path, seeds=[0, 1, 2])
    assert execute._jobs(todo, "loopback", Quiet()) == number
    assert execute._jobs(todo, "flower", Quiet()) == 1


def test_a_cells_settings_can_be_measured(tmp_path: Path):
    (cell,) = cells(tmp_path, methods=["fixbn"])
    need = memory_probe.measure(memory_probe.load_experiment(cell.preset, cell.overrides))
    assert need.ram > 2**20


# --- real cells -----------------------------------------------------------------------------------


def rows(folder: Path) -> list[dict[str, object]]:
    """Return metrics.jsonl but for how long it took."""
    return [{**row, "wall_seconds": 0} for row in RunFolder(folder).metrics()]


@pytest.mark.parametrize("method", ["fixbn", "um_pfssl"])
def test_a_cell_that_was_cut_goes_on_to_the_same_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
):
    (whole,), (cut,) = (cells(tmp_path / name, methods=[method]) for name in _made(tmp_path))
    do(Job.of(whole, "loopback"))
    append = RunFolder.append_metrics

    def until_round_2(self: RunFolder, row) -> None:
        append(self, row)
        if row["round"] == 2:  # the row is there, its checkpoint is not
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(RunFolder, "append_metrics", until_round_2)
        do(Job.of(cut, "loopback"))
    assert cut.state() == "begun"
    job = Job.of(cut, "loopback")
    assert job.overrides["runtime.resume"] is True
    do(job)
    assert cut.state() == "done"
    assert rows(cut.folder) == rows(whole.folder)
    assert RunFolder(cut.folder).per_site() == RunFolder(whole.folder).per_site()


def test_a_cell_gives_the_numbers_of_fedapp_run(tmp_path: Path):
    (cell,) = cells(tmp_path, methods=["um_pfssl"])
    do(Job.of(cell, "loopback"))
    words = {k: v for k, v in cell.overrides.items() if not k.startswith("runtime.")}
    words |= {"runtime.out": str(tmp_path / "runs"), "runtime.device": "cpu"}
    _, folder = run_loopback(load_experiment(cell.preset, words))
    # A cell keeps no models of its sites, which then send no counts for the verdict.
    run, of_cell = (
        [{k: v for k, v in row.items() if not k.startswith("bytes_")} for row in rows(of)]
        for of in (folder, cell.folder)
    )
    assert run == of_cell


def _made(folder: Path) -> tuple[str, str]:
    for name in ("whole", "cut"):
        (folder / name).mkdir()
    return "whole", "cut"


def command_of(path: Path, out: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "fedapp", "compare", str(path), "--out", str(out), *words]


def results(out: Path) -> list[dict[str, str]]:
    with (out / "results.csv").open(newline="") as file:
        return [{**row, "wall_seconds": ""} for row in csv.DictReader(file)]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_interrupted_and_gone_on_is_as_never_interrupted(tmp_path: Path):
    path = grid_file(tmp_path, methods=["fixavg", "fixprox", "fixbn", "mix"])
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    subprocess.run(command_of(path, whole), cwd=ROOT, check=True, capture_output=True)
    with subprocess.Popen(command_of(path, cut), cwd=ROOT, stdout=subprocess.PIPE, text=True) as it:
        try:
            while not list(cut.glob("cells/base/fixprox/seed-0/checkpoint.json")):
                assert it.poll() is None
                time.sleep(0.05)
        finally:
            it.send_signal(signal.SIGINT)
            said, _ = it.communicate()
    assert it.returncode == INTERRUPTED
    assert "interrupted: " in said and "the same command continues" in said
    done = len(results(cut))
    assert done < 4
    again = subprocess.run(
        command_of(path, cut), cwd=ROOT, check=True, capture_output=True, text=True
    )
    found = re.search(r"4 cells, (\d) done before", again.stdout)
    # A cell that ends in the moment of the cut is there, but not yet in the table.
    assert found and done <= int(found[1]) < 4
    assert results(cut) == results(whole)
    for name in ("sites.csv", "rounds.csv"):
        assert (cut / name).read_bytes() == (whole / name).read_bytes()
    assert not list(cut.glob("cells/*/*/*/pool"))


@pytest.mark.slow
def test_a_cells_process_ends_with_the_comparison_however_that_ended(tmp_path: Path):
    path = grid_file(tmp_path, methods=["fixavg"])
    out = tmp_path / "out"
    words = ["rounds.num_rounds=100000", "--jobs", "1"]
    process = subprocess.Popen(command_of(path, out, *words), cwd=ROOT, stdout=subprocess.DEVNULL)
    metrics = out / "cells" / "base" / "fixavg" / "seed-0" / "metrics.jsonl"
    while not metrics.exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.kill()
    process.wait()
    assert any(_still(metrics) for _ in range(100)), "it goes on writing"


def _still(path: Path) -> bool:
    size = path.stat().st_size
    time.sleep(1)
    return path.stat().st_size == size
