"""A run searches for garbage less often, and leaves the collector as it was."""

import gc

import pytest

from fedapp.drivers.loopback import run_loopback
from fedapp.ground.garbage import seldom_searched
from fedapp.server.engine import Engine
from tests.small import small


def test_what_was_there_is_left_out_until_the_end():
    before = gc.get_threshold()
    with seldom_searched():
        assert gc.get_freeze_count() > 1000 and gc.get_threshold()[0] > before[0]
    assert gc.get_freeze_count() == 0 and gc.get_threshold() == before


def test_garbage_of_a_run_is_found():
    class Circle:
        alive = 0

        def __init__(self):
            Circle.alive += 1
            self.itself = self

        def __del__(self):
            Circle.alive -= 1

    with seldom_searched():
        Circle()
        gc.collect()
        assert Circle.alive == 0


def test_an_error_leaves_it_as_it_was():
    with pytest.raises(ZeroDivisionError), seldom_searched():
        raise ZeroDivisionError
    assert gc.get_freeze_count() == 0


def test_a_run_is_one_such_time(monkeypatch, tmp_path):

    seen = []
    measured = Engine._round
    monkeypatch.setattr(
        Engine,
        "_round",
        lambda *given: seen.append(gc.get_freeze_count()) or measured(*given),
    )
    run_loopback(small(rounds__num_rounds=1, runtime__out=str(tmp_path)))
    assert seen and min(seen) > 1000
