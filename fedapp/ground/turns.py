"""Several functions take turns in one process, so that what they ask for is answered together.

Each runs in a thread of its own, one at a time: until it asks for something (`ask`), or ends. Once
none can go on, all that was asked is answered at once, and each goes on with its answer, in order.
Only one thread ever runs, so nothing needs a lock, and the order is the same every time. Threads,
not generators: a function asks from any depth, and its callers need not know. What is a thread's
own (torch's gradient mode, context variables) stays apart; torch's generators of random numbers,
which are not, are put back at every turn.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Thread
from typing import Any, Self

import torch

from fedapp.ground.devices import draws_of

Answers = Callable[[Sequence[Any]], Sequence[Any]]
"""All requests of one kind that are there -> an answer to each, in the same order."""


@dataclass(frozen=True)
class Raised:
    """An answer that is raised where it was asked for."""

    error: BaseException


_NOW: ContextVar["_Seat | None"] = ContextVar("seat", default=None)


def ask(request: Any, answers: Answers) -> Any:
    """Return the answer to a request, given together with those of the others that take turns.

    answers: a function of a module, since equal ones are called once. Outside of `Turns` it answers
    this request alone. Raises what it raised.
    """
    now = _NOW.get()
    answer = answers([request])[0] if now is None else now.ask(_Asked(request, answers))
    if isinstance(answer, Raised):
        raise answer.error
    return answer


def seat() -> int:
    """Return which of those that take turns is running now; 0 outside of `Turns`.

    What only one may use at a time, such as a network to load weights into, there is once a seat.
    """
    return 0 if (now := _NOW.get()) is None else now.number


class Turns:
    """Up to `seats` functions at a time; a context manager, at whose end the threads end.

    What they ask for is answered where `carry_out` is called.
    """

    def __init__(self, seats: int) -> None:
        self._seats = [_Seat(number) for number in range(seats)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._seats:
            one.leave()

    def carry_out(self, works: Iterable[Callable[[], Any]]) -> Iterator[Any]:
        """Yield what the functions return, in their order.

        They are taken in lots of as many as there are seats. Raises what a function raised.
        """
        lot = []
        for work in works:
            lot.append(work)
            if len(lot) == len(self._seats):
                yield from self._lot(lot)
                lot = []
        yield from self._lot(lot)

    def _lot(self, works: Sequence[Callable[[], Any]]) -> list[Any]:
        before = _drawn()
        said: list[Any] = []
        for one, work in zip(self._seats, works, strict=False):
            _draw_on(before)
            said.append(one.begin(work))
        while asking := [k for k, one in enumerate(said) if isinstance(one, _Asked)]:
            kind = said[asking[0]].answers
            alike = [k for k in asking if said[k].answers == kind]
            try:
                answers = kind([said[k].request for k in alike])
            except Exception as error:  # each that asked must hear of it, and end as it would
                answers = [Raised(error)] * len(alike)
            for k, answer in zip(alike, answers, strict=True):
                said[k] = self._seats[k].go_on(answer)
        _draw_on(before)
        for one in said:
            if isinstance(one, Raised):
                raise one.error
        return said


_Drawn = list[tuple[torch.Generator, torch.Tensor]]


def _drawn() -> _Drawn:
    """Return how far torch's generators are: the CPU's, and the GPU's where one is used."""
    generators = [torch.default_generator]
    if torch.cuda.is_initialized():
        generators.append(draws_of(torch.device("cuda")))
    return [(generator, generator.get_state()) for generator in generators]


def _draw_on(drawn: _Drawn) -> None:
    for generator, state in drawn:
        generator.set_state(state)


@dataclass(frozen=True)
class _Asked:
    request: Any
    answers: Answers


class _Seat:
    """A thread that does one function after the other."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._heard: SimpleQueue[Any] = SimpleQueue()
        self._said: SimpleQueue[Any] = SimpleQueue()
        # A daemon: one that waits for an answer when the process is ended must not hold it up.
        Thread(target=self._live, daemon=True, name=f"turn-{number}").start()

    def begin(self, work: Callable[[], Any]) -> Any:
        """Let the thread run the function; return what it asks, returns or has raised."""
        return self.go_on(work)

    def go_on(self, answer: Any) -> Any:
        """Give the answer to what it asked; return as `begin`."""
        self._heard.put(answer)
        return self._said.get()

    def leave(self) -> None:
        """Let the thread end, also one that waits for an answer."""
        self._heard.put(Raised(SystemExit()))
        self._heard.put(None)

    def ask(self, asked: _Asked) -> Any:
        """Called by the thread: hand over the turn until there is an answer."""
        before = _drawn()
        self._said.put(asked)
        answer = self._heard.get()
        _draw_on(before)
        return answer

    def _live(self) -> None:
        while (work := self._heard.get()) is not None:
            if not isinstance(work, Raised):  # nobody waits: it is the end
                self._said.put(copy_context().run(self._do, work))

    def _do(self, work: Callable[[], Any]) -> Any:
        _NOW.set(self)
        try:
            return work()
        except BaseException as error:
            return Raised(error)
