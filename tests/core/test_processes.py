"""A signal that asks a program to end is not lost, wherever its exception is raised."""

import gc
import os
import signal
import sys
import time
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

import pytest

from fedapp.core.processes import signals_as_exit, termination_as_interrupt

KEYBOARD = KeyboardInterrupt
HANDLERS = [
    (partial(signals_as_exit, interrupt=True), signal.SIGINT, SystemExit),
    (partial(signals_as_exit, interrupt=True), signal.SIGTERM, SystemExit),
    (partial(signals_as_exit, interrupt=True), signal.SIGHUP, SystemExit),
    (partial(signals_as_exit, interrupt=False), signal.SIGINT, KEYBOARD),
    (partial(signals_as_exit, interrupt=False), signal.SIGTERM, SystemExit),
    (termination_as_interrupt, signal.SIGINT, KEYBOARD),
    (termination_as_interrupt, signal.SIGTERM, KEYBOARD),
]


def in_destructor(number: int) -> None:
    class Ends:
        def __del__(self) -> None:
            os.kill(os.getpid(), number)
            time.sleep(0)

    Ends()


def in_weak_callback(number: int) -> None:
    class Ends:
        pass

    def callback(_reference: object) -> None:
        os.kill(os.getpid(), number)
        time.sleep(0)

    ends = Ends()
    kept = weakref.ref(ends, callback)
    del ends
    gc.collect()
    assert kept() is None


@pytest.mark.parametrize("place", [in_destructor, in_weak_callback])
@pytest.mark.parametrize(("handler", "number", "expected"), HANDLERS)
def test_a_signal_in_a_place_that_no_exception_leaves_is_not_lost(
    handler: Callable[[], AbstractContextManager[None]],
    number: int,
    expected: type[BaseException],
    place: Callable[[int], None],
) -> None:
    hook = sys.unraisablehook
    with pytest.raises(expected) as caught, handler():
        place(number)
        time.sleep(20)
    if expected is SystemExit:
        assert caught.value.code == 128 + number
    assert sys.unraisablehook is hook


def test_other_lost_exceptions_are_reported_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    reported = []
    monkeypatch.setattr(sys, "unraisablehook", lambda lost: reported.append(lost.exc_value))

    class Fails:
        def __del__(self) -> None:
            raise ValueError("of no signal")

    with signals_as_exit():
        Fails()
    assert [str(error) for error in reported] == ["of no signal"]
