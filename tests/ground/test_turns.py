"""Functions that take turns: who is answered with whom, in which order, and what stays apart."""

import threading
from contextvars import ContextVar

import pytest
import torch

from fedapp.ground.turns import Raised, Turns, ask, seat


def doubled(requests: list[int]) -> list[int]:
    SEEN.append(list(requests))
    return [2 * request for request in requests]


def negated(requests: list[int]) -> list[int]:
    SEEN.append([-request for request in requests])
    return [-request for request in requests]


SEEN: list[list[int]] = []


@pytest.fixture(autouse=True)
def nothing_seen():
    SEEN.clear()


def carry_out(seats, works):
    with Turns(seats) as turns:
        return list(turns.carry_out(works))


def test_all_that_is_asked_is_answered_at_once_lot_by_lot():
    works = [lambda k=k: ask(k, doubled) + ask(10 * k, doubled) for k in range(5)]
    assert carry_out(3, works) == [22 * k for k in range(5)]
    assert SEEN == [[0, 1, 2], [0, 10, 20], [3, 4], [30, 40]]


def test_one_by_itself_is_answered_alone():
    assert ask(3, doubled) == 6 and SEEN == [[3]] and seat() == 0


def test_kinds_of_requests_are_answered_apart_and_those_who_ask_none_just_end():
    works = [lambda: ask(1, doubled), lambda: ask(2, negated), lambda: 7, lambda: ask(3, doubled)]
    assert carry_out(4, works) == [2, -2, 7, 6]
    assert SEEN == [[1, 3], [-2]]


def test_each_has_a_seat_variables_and_draws_of_its_own():
    variable: ContextVar[int] = ContextVar("variable", default=0)

    def work(number: int):
        torch.default_generator.manual_seed(number)
        variable.set(number)
        with torch.set_grad_enabled(number % 2 == 0):
            first = torch.rand(1).item()
            ask(number, doubled)
            return seat(), variable.get(), torch.is_grad_enabled(), first, torch.rand(1).item()

    torch.manual_seed(99)
    before = torch.default_generator.get_state()
    found = carry_out(2, [lambda k=k: work(k) for k in (4, 5)])
    assert torch.equal(torch.default_generator.get_state(), before) and variable.get() == 0
    for place, number in enumerate((4, 5)):
        draws = torch.rand(2, generator=torch.Generator().manual_seed(number)).tolist()
        assert found[place] == (place, number, number % 2 == 0, *draws)


def test_only_one_runs_at_a_time():
    running = []

    def work():
        running.append(1)
        assert sum(running) == 1
        running.append(-1)
        ask(1, doubled)
        running.append(1)
        assert sum(running) == 1
        running.append(-1)

    carry_out(8, [work] * 20)


def test_an_answer_may_be_one_persons_trouble():
    def answers(requests):
        return [Raised(ValueError("odd")) if request % 2 else request for request in requests]

    def work(number):
        try:
            return ask(number, answers)
        except ValueError as error:
            return str(error)

    assert carry_out(3, [lambda k=k: work(k) for k in range(3)]) == [0, "odd", 2]


def test_answers_that_fail_are_everybodys_trouble():
    def broken(requests):
        raise OSError("no answers")

    def work():
        with pytest.raises(OSError, match="no answers"):
            ask(1, broken)
        return "heard"

    assert carry_out(2, [work, work]) == ["heard", "heard"]
    with pytest.raises(OSError, match="no answers"):
        ask(1, broken)


def test_what_a_function_raises_comes_out_once_the_others_are_done():
    done = []

    def bad():
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        carry_out(2, [bad, lambda: done.append(ask(1, doubled))])
    assert done == [2]


def test_an_interrupt_ends_the_threads_even_those_that_wait():
    threads = set(threading.enumerate())

    def interrupted(requests):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        carry_out(4, [lambda: ask(1, interrupted)] * 3)
    for thread in set(threading.enumerate()) - threads:
        thread.join(timeout=10)
        assert not thread.is_alive()
