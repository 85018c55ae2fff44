"""Scoring and training on a card: rates, and the ways that start fewer kernels beside the plain."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from bench import training
from bench.measure import side_by_side
from bench.record import Row
from bench.throughput import PRECISIONS, Size, on_device, throughput
from bench.workload import Workload
from fedapp.experiment.experiment import Experiment
from fedapp.ground.devices import pick_device, pick_dtype, torch_threads
from fedapp.learn.graphs import USED_BEFORE, graphs_on
from fedapp.learn.networks import Network
from fedapp.learn.networks.resnet9 import ResNet9Settings
from fedapp.learn.passes import in_turn
from fedapp.learn.uncertainty import dropout_sample, on_a_gpu
from fedapp.methods.um_pfssl.method import UmPfssl

CARD = Size(scored=10_000, trained=490, matrix=8192, repetitions=10)
"""490: a site's images, 70,000 times 0.7 over 100 sites."""
TINY = Size(scored=40, trained=40, matrix=64, repetitions=1)


@dataclass(frozen=True)
class Way:
    """A way to do a piece of work. like: the way that must give the same numbers; None: none."""

    name: str
    run: Callable[[], Tensor]
    like: str | None = None


class Operators(TorchDispatchMode):
    """Counts the operators that PyTorch starts inside, those of backward passes too."""

    number = 0

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        self.number += 1
        return func(*args, **(kwargs or {}))


def rates(experiment: Experiment, size: Size) -> list[Row]:
    """Return the rows of `throughput`."""
    with torch_threads(experiment.runtime.threads):
        return throughput(experiment, size)


def ways(experiment: Experiment, size: Size) -> list[Row]:
    """Return a row for each way to train and to score a site's images, in both precisions.

    ratio: the way's time over that of the first. operators: of PyTorch's, that the processor starts
    for one use. difference: the largest, of a weight after the epoch or of a probability, from the
    way that has the same draws.
    """
    device = pick_device(experiment.runtime.device)
    assert isinstance(experiment.model, ResNet9Settings)
    assert isinstance(experiment.method, UmPfssl)
    work = on_device(experiment.model.width, size.trained, device)
    found: list[Row] = []
    with torch_threads(experiment.runtime.threads):
        for precision in PRECISIONS:
            compute, passes = pick_dtype(precision, device), experiment.method.mc_samples
            for what, each in (
                ("a site's epoch", training_ways(work, compute)),
                ("a site's score", scoring_ways(work, compute, passes)),
            ):
                found += beside(what, precision, each, size.repetitions, device)
    return found


def beside(
    what: str, precision: str, ways: Sequence[Way], repetitions: int, device: torch.device
) -> Iterator[Row]:
    """Time the ways in turns, the first uses, in which one is recorded, not counted."""
    cases = {way.name: way.run for way in ways}
    times = side_by_side(cases, repetitions, warmups=USED_BEFORE + 2, device=device)
    results = {way.name: way.run() for way in ways}
    for way in ways:
        row = {"what": f"{what}, {way.name}", "precision": precision, **times[way.name].row()}
        row |= times[way.name].over(times[ways[0].name])
        with Operators() as counted:
            way.run()
        row["operators"] = counted.number
        if way.like is not None:
            row["difference"] = (results[way.name] - results[way.like]).abs().max().item()
        yield row


def training_ways(work: Workload, compute: torch.dtype) -> list[Way]:
    """Return an epoch from the same weights, step by step and recorded; each gives the weights."""

    def way(model: Network) -> Callable[[], Tensor]:
        start = {name: tensor.clone() for name, tensor in model.state_dict().items()}

        def epoch() -> Tensor:
            model.load_state_dict(start)
            torch.manual_seed(0)
            training.epoch(model, work)
            return torch.cat([each.detach().flatten() for each in model.parameters()])

        return epoch

    plain, recorded = _pair(work, compute)
    return [
        Way("step by step", way(plain)),
        Way("recorded", way(recorded), like="step by step"),
    ]


def scoring_ways(work: Workload, compute: torch.dtype, passes: int) -> list[Way]:
    """Return a score: passes in turn, as one batch, and that recorded; each gives the mean."""

    def turn(model: Network) -> Tensor:
        features = model.trunk(work.normalise(work.images))
        return in_turn(model, features, passes, dropout_sample)

    def batch(model: Network) -> Tensor:
        return on_a_gpu(model, work.images, passes, work.normalise)

    def way(score: Callable[[Network], Tensor], model: Network) -> Callable[[], Tensor]:
        @torch.inference_mode()
        def scored() -> Tensor:
            torch.manual_seed(0)
            return score(model.eval())

        return scored

    plain, recorded = _pair(work, compute)
    return [
        Way("passes in turn", way(turn, plain)),
        Way("passes as one batch", way(batch, plain)),
        Way("one batch, recorded", way(batch, recorded), like="passes as one batch"),
    ]


def _pair(work: Workload, compute: torch.dtype) -> tuple[Network, Network]:
    """Return two networks with the same weights, of which the second's work is recorded."""
    plain, recorded = work.model(compute), work.model(compute)
    recorded.graphs = graphs_on(work.images.device)
    return plain, recorded
