"""The runner, with stand-ins for the cells' processes, and the progress that it shows."""

from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from fedapp.tools.compare import execute
from fedapp.tools.compare.cells import Cell
from fedapp.tools.compare.execute import LOG_LINE_S, ComparisonProgress, Runner
from tests.tools.compare.tiny import cells, pretend_begun, pretend_done, stand_in

FOUR = ["fixavg", "fixprox", "fixbn", "mix"]


class Bench:
    """Runs cells with stand-ins and tells what was started."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._calls, self._monkeypatch = folder / "calls", monkeypatch
        self.said = StringIO()
        self.done: list[str] = []

    def run(
        self,
        every: Sequence[Cell],
        behaviour: Mapping[str, str] | None = None,
        jobs: int = 2,
        keep_models: bool = False,
    ) -> Runner:
        command = stand_in(self._calls, behaviour or {})
        self._monkeypatch.setattr(execute, "COMMAND", command)
        self._monkeypatch.setattr(execute, "POLL_S", 0.01)
        self._calls.write_text("")
        with ComparisonProgress(Console(file=self.said, width=500)) as board:
            it = Runner(
                every,
                board,
                lambda cell: self.done.append(cell.method),
                driver="loopback",
                keep_models=keep_models,
            )
            it.run(jobs)
        return it

    @property
    def started(self) -> list[str]:
        """<method>/seed-<n>, with a + where it was to go on; sorted."""
        return sorted(self._calls.read_text().split())


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(tmp_path, monkeypatch)


def models(cell: Cell) -> bool:
    return (cell.folder / "pool").exists()


# --- what is started ------------------------------------------------------------------------------


def test_a_cell_that_has_written_no_round_yet_has_none(tmp_path: Path, bench: Bench):
    """Its file is made a moment before its first line is in it."""
    done, new = cells(tmp_path, methods=["um_pfssl"], seeds=[0, 1])
    it = bench.run([done])
    new.folder.mkdir(parents=True)
    (new.folder / "metrics.jsonl").touch()
    assert it._rounds(new) == 0


def test_done_stays_begun_goes_on_and_the_unmade_starts_anew(tmp_path: Path, bench: Bench):
    done, begun, damaged, unmade = cells(tmp_path, seeds=[0, 1, 2, 3], methods=["fixavg"])
    pretend_done(done)
    pretend_begun(begun)
    pretend_begun(damaged)
    (damaged.folder / "checkpoint.json").write_text("{")
    unmade.folder.mkdir(parents=True)
    (unmade.folder / "config.yaml").write_text("half")
    assert not bench.run([done, begun, damaged, unmade]).failed
    assert bench.started == ["fixavg/seed-1+", "fixavg/seed-2", "fixavg/seed-3"]
    assert not (unmade.folder / "config.yaml").exists()
    assert "seed 2: its checkpoint is damaged; it starts again" in bench.said.getvalue()


def test_a_killed_process_is_told_by_its_signal(tmp_path: Path, bench: Bench):
    (cell,) = cells(tmp_path, methods=["fixavg"])
    reason = bench.run([cell], {"fixavg": "killed"}).failed[cell]
    assert reason == "ended by signal 9, which may be for want of memory: lower --jobs"


# --- mix ------------------------------------------------------------------------------------------


def test_mix_waits_for_its_parents(tmp_path: Path, bench: Bench):
    every = cells(tmp_path, methods=FOUR)
    assert not bench.run(every, jobs=4).failed
    assert bench.done[-1] == "mix"


def test_mix_is_not_run_where_a_parent_failed_and_the_others_keep_their_models(
    tmp_path: Path, bench: Bench
):
    every = cells(tmp_path, methods=FOUR)
    failed = bench.run(every, {"fixprox": "fail"}).failed
    assert {c.method for c in failed} == {"fixprox", "mix"}
    assert failed[every[3]] == "not run, because base / fixprox / seed 0 failed"
    assert models(every[0]) and models(every[2])
    assert not bench.run(every).failed
    assert bench.started == ["fixprox/seed-0+", "mix/seed-0"]
    assert not any(map(models, every))


# --- models ---------------------------------------------------------------------------------------


def test_models_stay_where_a_person_wants_them_and_go_later(tmp_path: Path, bench: Bench):
    every = cells(tmp_path)
    bench.run(every, keep_models=True)
    assert all(map(models, every))
    bench.run(every)
    assert (bench.started, any(map(models, every))) == ([], False)
    assert not (every[0].folder / "sites").exists()


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_log_gets_a_line_a_minute_with_the_time_left(clock: Clock):
    out = StringIO()
    with ComparisonProgress(Console(file=out, width=500), clock) as board:
        board.began(total=8, done=2, rounds=60)
        board.show({"a / fixavg / seed 0": (3, 20)}, 2, 0, 56)
        assert out.getvalue() == ""
        clock.now = LOG_LINE_S
        # 10 of 60 rounds in 60 s: 50 are left, 6 s each
        board.show({"a / fixavg / seed 0": (9, 20)}, 2, 1, 50)
    assert out.getvalue() == (
        "2 of 8 cells  1 failed  about 5 min 00 s left  a / fixavg / seed 0 9/20\n"
    )


def test_no_estimate_before_anything_was_done(clock: Clock):
    out = StringIO()
    with ComparisonProgress(Console(file=out, width=500), clock) as board:
        board.began(total=1, done=0, rounds=5)
        clock.now = LOG_LINE_S
        board.show({"a": (-1, 4)}, 0, 0, 5)
    assert out.getvalue() == "0 of 1 cell  a warm-up\n"


def test_a_terminal_gets_a_bar_for_each_running_cell(clock: Clock):
    out = StringIO()
    console = Console(file=out, width=120, force_terminal=True, force_interactive=True)
    with ComparisonProgress(console, clock) as board:
        board.began(total=3, done=1, rounds=10)
        board.show({"a": (-1, 4), "b": (2, 4)}, 1, 0, 10)
        assert board.bar is not None
        assert [t.description for t in board.bar.tasks] == ["cells", "  a", "  b"]
        assert [t.fields["state"] for t in board.bar.tasks] == ["", "warm-up", ""]
        clock.now = 10.0
        board.show({"b": (4, 4)}, 2, 1, 5)
        cells, b = board.bar.tasks
        assert (cells.completed, cells.total) == (2, 3)
        assert cells.fields["state"] == "1 failed  about 10 s left"
        assert (b.description, b.completed, b.fields["state"]) == ("  b", 4, "finishing")
        board.note("said above\x1b[31m")
    assert "said above [31m" in out.getvalue()
