"""What a comparison shows: plain lines in a log, bars on a terminal."""

from io import StringIO

import pytest
from rich.console import Console

from fedapp.tools.compare.execute import LOG_LINE_S, ComparisonProgress


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
    assert out.getvalue() == "0 of 1 cells  a warm-up\n"


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
