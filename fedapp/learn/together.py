"""Sites' trainings as one batch (`learn/grouped`): those whose next steps have equal shapes.

A training that cannot be grouped is done by itself, by the same loop as ever.
"""

import logging
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import groupby
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedapp.ground.devices import draws_of
from fedapp.ground.errors import RunError
from fedapp.ground.settings import TrainSettings
from fedapp.ground.turns import Raised, Turns
from fedapp.learn.grouped import Grouped, why_not
from fedapp.learn.limits import LONGEST_GRADIENT, Penalty
from fedapp.learn.losses import cross_entropy
from fedapp.learn.networks.base import Network
from fedapp.learn.params import tensors_of
from fedapp.learn.sgd import Sgd
from fedapp.learn.steps import Step

log = logging.getLogger(__name__)

MEMBERS = 16
"""Networks of a group, at most: with 8 to 32 none is faster, and a core's cache holds no more."""
SIZES = (2, 4, 8, 16)
"""Of groups: three networks with inputs of one channel have three, for which a library has other
kernels."""
MOST_BYTES = 4 * 2**20
"""Of a network's tensors: a larger one fills a core by itself."""

CHANGED = (
    "the method changes its network between two steps, which a group of sites cannot have: set "
    "runtime.grouped to false"
)

One = TypeVar("One")
Alone = Callable[[nn.Module, Iterable[Step], TrainSettings, Penalty | None], float | None]
"""Trains one network by itself: see `training.descend`."""


class _LossError(Exception):
    """A loss asks of its network more than the answers to its batch."""


@dataclass
class Training:
    """What one site asks for: these steps, in place, on its network.

    context: the site's own, in which its steps are made and counted. draws: dropout's, from torch's
    generator of the network's device on, which was at `begun`.
    """

    model: Network
    steps: Iterator[Step]
    settings: TrainSettings
    penalty: Penalty | None
    context: Context = field(default_factory=copy_context)
    begun: Tensor = field(init=False)
    draws: torch.Generator = field(init=False)
    step: Step | None = None
    losses: list[Tensor] = field(default_factory=list)
    velocity: list[Tensor | None] = field(default_factory=list)
    failed: Exception | None = None

    def __post_init__(self) -> None:
        """Note how far the draws are."""
        generator = draws_of(known_of(self.model).device)
        self.begun, self.draws = generator.get_state(), generator.clone_state()

    def go_on(self) -> bool:
        """Make the next step; whether there is one."""
        try:
            self.step = self.context.run(next, self.steps, None)
        except Exception as error:  # this site's alone
            self.step, self.failed = None, error
        return self.step is not None

    def rest(self) -> Iterator[Step]:
        """Yield the step at hand and those after it."""
        while self.step is not None:
            yield self.step
            self.go_on()

    def kind(self) -> Hashable:
        """Return what those have in common whose steps can be one batch."""
        assert self.step is not None
        moving = tuple(v is not None for v in self.velocity)
        rate = self.settings.learning_rate, self.settings.momentum, self.settings.weight_decay
        known = known_of(self.model)
        return known.kind, known.modes(), known.free(), moving, rate, self.step.batch[0].shape

    def answer(self) -> float | Raised | None:
        """Return the mean loss over the steps; None without any."""
        if self.failed is not None:
            return Raised(self.failed)
        return torch.stack(self.losses).mean().item() if self.losses else None


@dataclass(frozen=True)
class Known:
    """A network's layers: torch looks for them anew each time, which takes as long as a step.

    kind: what networks of one group have in common, beside their mode.
    """

    head: nn.Module
    kind: Hashable
    modules: tuple[nn.Module, ...]
    parameters: tuple[nn.Parameter, ...]
    tensors: tuple[Tensor, ...]
    device: torch.device

    def modes(self) -> tuple[bool, ...]:
        """Return which modules are in training mode."""
        return tuple(module.training for module in self.modules)

    def free(self) -> tuple[bool, ...]:
        """Return which parameters are to learn."""
        return tuple(parameter.requires_grad for parameter in self.parameters)


_NETWORKS: WeakKeyDictionary[Network, Known] = WeakKeyDictionary()


def known_of(model: Network) -> Known:
    """Return a network's layers and tensors; looked for once."""
    found = _NETWORKS.get(model)
    if found is None or found.head is not model.head:  # others may answer in its place for a while
        tensors, device = tensors_of(model), model.head.weight.device
        shapes = tuple((name, tuple(tensor.shape)) for name, tensor in tensors.items())
        kind = type(model), shapes, model.dropout.p, model.compute, device
        layers, parameters = tuple(model.modules()), tuple(model.parameters())
        found = Known(model.head, kind, layers, parameters, tuple(tensors.values()), device)
        _NETWORKS[model] = found
    return found


def can_be_grouped(model: Network, settings: TrainSettings) -> bool:
    """Whether a network's training is one for a group, be it of one.

    That goes by the network and the settings alone, so that it is the same in every driver.
    """
    if not model.grouped:
        return False
    if settings.optimiser != "sgd":
        say_one_by_one(f"training.optimiser = {settings.optimiser!r}; groups descend by sgd")
        return False
    return fits(model)


def fits(model: Network) -> bool:
    """Whether what sites ask of such networks is done together; it goes by the network alone."""
    if not model.grouped:
        return False
    return not _hindrance(known_of(model).kind, _Beside(model))


def alike(models: Sequence[Network]) -> list[list[int]]:
    """Return which of the networks have equal tensors: their places, in lists of equal ones."""
    found: list[list[int]] = []
    for place, model in enumerate(models):
        mine = known_of(model)
        for others in found:
            first = known_of(models[others[0]])
            pairs = zip(reversed(mine.tensors), reversed(first.tensors), strict=False)
            if mine.kind == first.kind and all(torch.equal(a, b) for a, b in pairs):
                others.append(place)
                break
        else:
            found.append([place])
    return found


def trained_together(
    trainings: Sequence[Training], alone: Alone
) -> Sequence[float | Raised | None]:
    """Do the trainings; return each one's mean loss, None without steps, or what it has raised.

    All are of networks that `can_be_grouped`. alone: does one whose steps turn out to be none for a
    group.
    """
    apart: dict[int, float | Raised | None] = {}
    waiting = [one for one in trainings if one.go_on()]
    while waiting:
        lots: list[list[Training]] = []
        for _, alike in groupby(sorted(waiting, key=_order(waiting)), key=Training.kind):
            listed = list(alike)
            lots += lots_of(listed)
        waiting = []
        for lot in lots:
            try:
                waiting += _fitting(lot)
            except _LossError as error:
                say_one_by_one(str(error))
                for one in lot:
                    apart[id(one)] = _apart(one, alone)
    return [apart[id(one)] if id(one) in apart else one.answer() for one in trainings]


def _apart(one: Training, alone: Alone) -> float | Raised | None:
    """Do a training by itself, from its first step and with the draws that it came with."""
    draws_of(known_of(one.model).device).set_state(one.begun)
    try:
        return alone(one.model, one.rest(), one.settings, one.penalty)
    except Exception as error:  # this site's alone
        return Raised(error)


def _order(trainings: Sequence[Training]) -> Callable[[Training], int]:
    """Return a key that puts those of a kind beside each other, the first kind first."""
    places: dict[Hashable, int] = {}
    for one in trainings:
        places.setdefault(one.kind(), len(places))
    return lambda one: places[one.kind()]


def _fitting(lot: Sequence[Training]) -> list[Training]:
    """Train as `_trained` does; where memory does not suffice, half of them at a time."""
    try:
        return _trained(lot)
    except (MemoryError, torch.OutOfMemoryError, RuntimeError) as error:
        no_room = not isinstance(error, RuntimeError) or "memory" in str(error)
        if len(lot) == 1 or not no_room or any(one.losses for one in lot):
            raise
    say_one_by_one(f"{len(lot)} sites at a time need more memory than there is: half as many")
    for one in lot:
        one.draws.set_state(one.begun)
    middle = len(lot) // 2
    return _fitting(lot[:middle]) + _fitting(lot[middle:])


def _trained(lot: Sequence[Training]) -> list[Training]:
    """Take steps until one has no more, or steps of another shape; return those that have more."""
    first, known = lot[0], known_of(lot[0].model)
    group, tensors = group_of(first.model, len(lot)), [known_of(one.model).tensors for one in lot]
    group.load(tensors)
    group.modes(known.modes())
    spare = [torch.Generator(known.device)] * (group.size - len(lot))
    group.draws[:] = [one.draws for one in lot] + spare
    rates = first.settings.learning_rate, first.settings.momentum, first.settings.weight_decay
    every = zip(*(one.velocity for one in lot), strict=True)
    velocity = [_stacked(each, group.size) for each in every]
    optimiser, losses = Sgd(group.parameters, *rates, velocity), list[Tensor]()
    going, before = True, [_changes(each) for each in tensors]
    while going:
        losses.append(_step(group, optimiser, lot))
        for one in lot:
            one.go_on()
        for one, each, were in zip(lot, tensors, before, strict=True):
            if _changes(each) != were:  # the group has its weights now
                one.step, one.failed = None, RunError(CHANGED)
        shapes = {None if one.step is None else one.step.batch[0].shape for one in lot}
        going = len(shapes) == 1 and None not in shapes
    group.give(tensors)
    for k, (one, own) in enumerate(zip(lot, torch.stack(losses, dim=1), strict=False)):
        one.losses += own.unbind()
        one.velocity = [None if v is None else v[k] for v in optimiser.velocity]
    return [one for one in lot if one.step is not None]


def _changes(tensors: Sequence[Tensor]) -> list[int]:
    """Return how often each was changed in place so far."""
    return [tensor._version for tensor in tensors]


def group_of(model: Network, members: int) -> Grouped:
    """Return a network of so many such networks or more (`SIZES`); its weights are anybody's."""
    size = next(size for size in SIZES if size >= members)
    return _group(known_of(model).kind, _Beside(model), size)


def lots_of(listed: list[One]) -> Iterator[list[One]]:
    """Cut them into lots of at most `MEMBERS`, few of whose groups must be filled up."""
    while listed:
        number = min(len(listed), MEMBERS)
        # One place in eight may stay empty; of a smaller group half.
        size = max(size for size in (1, *SIZES) if number >= size - size // 8 - (size == 4))
        yield listed[: min(size, number)]
        listed = listed[min(size, number) :]


def _step(group: Grouped, optimiser: Sgd, lot: Sequence[Training]) -> Tensor:
    """Take a step; return each one's loss without its penalty."""
    inputs = [one.step.batch[0] for one in lot if one.step is not None]
    logits = group(inputs + inputs[-1:] * (group.size - len(lot)))[: len(lot)]
    losses = _losses(logits, lot)
    total = losses.sum()
    if any(one.penalty is not None for one in lot):
        each = zip(*(parameter.unbind(0) for parameter in group.parameters), strict=True)
        for one, parameters in zip(lot, each, strict=False):
            if one.penalty is not None:
                total = total + one.penalty(parameters)
    optimiser.zero_grad()
    total.backward()
    _shorten(group.parameters)
    optimiser.step()
    return losses.detach()


def _losses(logits: Tensor, lot: Sequence[Training]) -> Tensor:
    """Return each one's loss [members]. logits: [members, n, C]."""
    steps = [one.step for one in lot if one.step is not None]
    if all(step.loss is cross_entropy for step in steps):
        labels = torch.stack([step.batch[1] for step in steps])
        each = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
        return each.view(labels.shape).mean(1)
    losses = []
    for step, answers in zip(steps, logits.unbind(0), strict=True):
        try:
            losses.append(step.loss(_Answers(step, answers), *step.batch))
        except (AttributeError, TypeError) as error:
            raise _LossError(f"a step's loss asks more of its network ({error})") from None
    return torch.stack(losses)


class _Answers:
    """Stands for a network whose answers to a step's inputs are known."""

    def __init__(self, step: Step, answers: Tensor) -> None:
        self._inputs, self._answers = step.batch[0], answers

    def __call__(self, inputs: Tensor) -> Tensor:
        if inputs is not self._inputs:
            raise _LossError("a step's loss asks its network for more than answers to its batch")
        return self._answers


def _shorten(parameters: Sequence[Tensor]) -> None:
    """Scale the gradients of each member to `LONGEST_GRADIENT` together where they are longer."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    parts = [torch.linalg.vector_norm(gradient.flatten(1), dim=1) for gradient in gradients]
    length = torch.linalg.vector_norm(torch.stack(parts), dim=0)
    if not bool((length <= LONGEST_GRADIENT - 1e-6).all()):  # not: it may be NaN
        factor = (LONGEST_GRADIENT / (length + 1e-6)).clamp(max=1)
        for gradient in gradients:
            gradient.mul_(factor.view(-1, *[1] * (gradient.ndim - 1)))


def _stacked(each: Sequence[Tensor | None], size: int) -> Tensor | None:
    found = [one for one in each if one is not None]
    return torch.stack(found + found[-1:] * (size - len(found))) if found else None


class _Beside:
    """A network that a cache is given beside its key, and does not look at."""

    def __init__(self, model: Network) -> None:
        self.model = model

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Beside)

    def __hash__(self) -> int:
        return 0


@lru_cache(maxsize=8)
def _group(kind: Hashable, beside: _Beside, size: int) -> Grouped:  # noqa: ARG001 the key
    with torch.inference_mode(mode=False):  # it will learn, too
        return Grouped(beside.model, size)


@lru_cache(maxsize=8)
def _hindrance(kind: Hashable, beside: _Beside) -> str:  # noqa: ARG001 the key
    """Return why such networks are not grouped, and say so; empty: they are."""
    size = sum(tensor.nbytes for tensor in tensors_of(beside.model).values())
    too_large = f"a network of {size / 2**20:.0f} MiB keeps a core busy by itself"
    why = too_large if size > MOST_BYTES else why_not(beside.model)
    if why:
        say_one_by_one(why)
    return why


@lru_cache
def say_one_by_one(why: str) -> None:
    """Say, once a process, why sites are not trained as one batch."""
    log.warning("runtime.grouped: sites train one by one: %s", why)


@contextmanager
def side_by_side(grouped: bool) -> Iterator[Callable[..., Iterable[Any]]]:
    """Return how a lot's tasks are done: `map`, or the same by turns, so that sites are grouped."""
    if not grouped:
        yield map
        return
    with Turns(MEMBERS) as turns:
        yield lambda done, lot: turns.carry_out(partial(done, one) for one in lot)
