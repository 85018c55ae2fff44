import io
from threading import Event

import pytest
from rich.console import Console

from fedapp.core import progress as module
from fedapp.core.progress import Progress, slow_work_notice


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def row(number: int, **others: object) -> dict[str, object]:
    return {
        "round": number,
        "mean_test_accuracy": 0.8125,
        "worst_decile_accuracy": 0.5,
        "pseudo_label_error": None,
        "trained": 10,
        "skipped": {},
        **others,
    }


@pytest.fixture
def clock() -> Clock:
    return Clock()


def log_of(clock: Clock) -> tuple[Progress, io.StringIO]:
    file = io.StringIO()
    return Progress(Console(file=file, force_terminal=False, width=40), clock), file


def test_plain_lines_in_a_log(clock: Clock) -> None:
    progress, file = log_of(clock)
    with progress:
        progress.note("resuming after round 3")
        progress.started("digits_demo", 20, 10)
        clock.now = 100.0
        progress.round_done(row(0))
        clock.now = 102.0
        progress.round_done(row(1, pseudo_label_error=0.123, skipped={3: "late"}, trained=9))
    assert file.getvalue().splitlines() == [
        "resuming after round 3",
        "digits_demo: 10 sites, 20 rounds",
        "warm-up  accuracy 81.2 % (worst tenth of sites 50.0)  10 sites trained",
        "round  1/20  accuracy 81.2 % (worst tenth of sites 50.0)  wrong pseudo-labels 12.3 %"
        "  9 sites trained  1 skipped  38 s left",
    ]


def test_sites_that_only_send_sums_are_not_said_to_have_failed(clock: Clock) -> None:
    progress, file = log_of(clock)
    progress.started("x", 1, 6, module.SOLUTION)
    progress.round_done(row(0, trained=0))
    progress.round_done(row(1, trained=0, skipped={3: "late"}))
    solution, last = file.getvalue().splitlines()[1:]
    assert solution.endswith("  sites sent sums") and last.endswith("  0 sites trained  1 skipped")


def test_time_left_is_the_mean_of_recent_rounds(clock: Clock) -> None:
    progress, file = log_of(clock)
    progress.started("x", 100, 2)
    for number in range(1, 31):
        clock.now += 1000.0 if number <= 20 else 2.0  # the slow ones are long ago
        progress.round_done(row(number))
    assert file.getvalue().splitlines()[-1].endswith("  2 min 20 s left")


def test_a_resumed_run_counts_from_its_own_start(clock: Clock) -> None:
    clock.now = 5000.0
    progress, file = log_of(clock)
    progress.started("x", 20, 2)
    clock.now += 3.0
    progress.round_done(row(18))
    clock.now += 3.0
    progress.round_done(row(19))
    clock.now += 3.0
    progress.round_done(row(20))
    ends = [line.rsplit("  ", 1)[-1] for line in file.getvalue().splitlines()[1:]]
    assert ends == ["6 s left", "3 s left", "10 sites trained"]


def test_phases_speak_in_a_log_only_when_it_is_long_silent(clock: Clock) -> None:
    progress, file = log_of(clock)
    progress.started("x", 1, 10)
    for done in range(10):
        clock.now += module.PHASE_EVERY_S / 4
        progress.phase("train", done, 10)
    assert file.getvalue().splitlines()[1:] == ["train: 3 of 10 sites", "train: 7 of 10 sites"]


def test_unknown_numbers_and_no_rounds(clock: Clock) -> None:
    progress, file = log_of(clock)
    with progress:
        progress.started("x", 0, 1)
        progress.round_done({"round": 0, "mean_test_accuracy": None})
    assert file.getvalue().splitlines()[-1] == (
        "warm-up  accuracy - % (worst tenth of sites -)  0 sites trained"
    )


def test_a_note_is_one_line_of_plain_text(clock: Clock) -> None:
    progress, file = log_of(clock)
    progress.note("site 3 skipped in round 5: [bold]x[/nope] :smile:\n\x1b[2Jgone " + "long " * 30)
    text = file.getvalue()
    assert text.count("\n") == 1
    assert "\x1b" not in text
    assert "[bold]x[/nope] :smile:  [2Jgone" in text


def test_a_log_that_knows_only_ascii(clock: Clock) -> None:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding="ascii", errors="strict")
    progress = Progress(Console(file=file, force_terminal=False), clock)
    progress.note("Zürich skipped")
    assert raw.getvalue() == b"Z?rich skipped\n"


def test_a_bar_on_a_terminal(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "TTY_INTERACTIVE", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=120)
    with Progress(console, clock) as progress:
        progress.note("a note before the start")
        progress.started("digits [demo]", 20, 10)
        progress.phase("train", 4, 10)
        clock.now = 2.0
        progress.round_done(row(1, pseudo_label_error=0.5))
        progress.note("site 3 skipped in round 2: late")
    text = file.getvalue()
    assert "a note before the start" in text
    assert "digits [demo]" in text
    assert "1/20" in text
    assert "accuracy 81.2 %  wrong pseudo-labels 50.0 %  38 s left" in text
    assert "site 3 skipped in round 2: late" in text
    assert text.rstrip("\n").count("\x1b[?25h") == 1  # the cursor is back


def test_the_terminal_is_restored_after_an_error(clock: Clock) -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, force_interactive=True)
    with pytest.raises(KeyboardInterrupt), Progress(console, clock) as progress:
        progress.started("x", 3, 2)
        raise KeyboardInterrupt
    assert "\x1b[?25h" in file.getvalue()


class Heard(io.StringIO):
    """Text, and whether there is any yet."""

    def __init__(self) -> None:
        super().__init__()
        self.any = Event()

    def flush(self) -> None:
        self.any.set()


def test_what_takes_long_says_what_it_does() -> None:
    heard = Heard()
    with slow_work_notice("drawing\n figures", heard, after_s=0):
        assert heard.any.wait(60)
    assert heard.getvalue() == "drawing  figures: 0 s so far\n"


def test_what_is_short_says_nothing_and_an_error_goes_through() -> None:
    heard = Heard()
    with slow_work_notice("reading", heard, after_s=60):
        pass
    with pytest.raises(KeyError), slow_work_notice("reading", heard, after_s=60):
        raise KeyError
    assert heard.getvalue() == ""
