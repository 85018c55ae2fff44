"""Images per second and TFLOP/s of scoring and training on a device, beside the card's limit."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from unittest.mock import patch

import torch
from torch.utils.flop_counter import FlopCounterMode

from bench import scoring, training
from bench.measure import Times, side_by_side
from bench.record import Cells, Row
from bench.workload import Workload
from fedapp.data.inputs import normalise
from fedapp.experiment.experiment import Experiment
from fedapp.ground.devices import pick_device, pick_dtype
from fedapp.learn.networks import build_model
from fedapp.learn.networks.resnet9 import ResNet9Settings
from fedapp.learn.uncertainty import SCORING_BATCH
from fedapp.methods.um_pfssl.method import UmPfssl

PRECISIONS = ("float32", "bfloat16")
SIDE, CLASSES = 28, 10
PRODUCTS = 10
PLAIN = "scoring by whole passes"


@dataclass(frozen=True)
class Size:
    """How much is measured.

    scored: images. trained: images of a site. matrix: rows and columns of the product.
    """

    scored: int
    trained: int
    matrix: int
    repetitions: int


@dataclass(frozen=True)
class Case:
    """A piece of work on `images` (or products), each of `flop` multiplications and additions."""

    what: str
    precision: str
    images: int
    flop: float
    run: Callable[[], object]


def on_device(width: int, count: int, device: torch.device) -> Workload:
    """Return a network of this width with `count` random images, on the device."""
    shape, generator = (count, 1, SIDE, SIDE), torch.Generator().manual_seed(0)
    images = torch.randint(256, shape, dtype=torch.uint8, generator=generator).to(device)
    labels = torch.arange(count, device=device) % CLASSES
    return Workload(width, images, labels, CLASSES, partial(normalise, mean=(0.286,), std=(0.353,)))


def throughput(experiment: Experiment, size: Size) -> list[Row]:
    """Time scoring and training in both precisions, and the limit, in turns; return their rows.

    per_s: images, or products. ratio: how many times faster scoring is than by whole passes.
    """
    device = pick_device(experiment.runtime.device)
    cases = [_product(size.matrix, device)]
    for precision in PRECISIONS:
        cases += [*_scoring(experiment, size, precision), _training(experiment, size, precision)]
    named = {f"{case.what} {case.precision}": case for case in cases}
    times = side_by_side({n: c.run for n, c in named.items()}, size.repetitions, device=device)
    limit = PRODUCTS * cases[0].flop / next(iter(times.values())).median
    rows: list[Row] = []
    for name, case in named.items():
        row = _row(case, times[name], limit, device)
        if case.what == "scoring":
            row |= times[f"{PLAIN} {case.precision}"].over(times[name])
        rows.append(row)
    return rows


def flop_per_image(experiment: Experiment) -> tuple[float, float, float]:
    """Return what an image takes: scored, scored by whole passes, trained on once."""
    inputs = (1, SIDE, SIDE)
    model, pair = build_model(experiment.model, inputs, CLASSES), torch.rand(2, *inputs)
    trunk, tail, both_ways = (FlopCounterMode(display=False) for _ in range(3))
    with torch.inference_mode():
        with trunk:
            features = model.trunk(pair)
        with tail:
            model.tail(features)
    with both_ways:
        model(pair).sum().backward()
    once, again, step = (counter.get_total_flops() / 2 for counter in (trunk, tail, both_ways))
    passes = _passes(experiment)
    return once + passes * again, passes * (once + again), step


def _passes(experiment: Experiment) -> int:
    assert isinstance(experiment.method, UmPfssl)
    return experiment.method.mc_samples


def _width(experiment: Experiment) -> int:
    assert isinstance(experiment.model, ResNet9Settings)
    return experiment.model.width


def _product(side: int, device: torch.device) -> Case:
    """Return the limit: bfloat16 products of random matrices, which run slower than zeros."""
    left, right = torch.randn(2, side, side, device=device, dtype=torch.bfloat16)

    def run() -> None:
        for _ in range(PRODUCTS):
            left @ right

    return Case(f"{side} x {side} product", "bfloat16", PRODUCTS, 2.0 * side**3, run)


def _scoring(experiment: Experiment, size: Size, precision: str) -> list[Case]:
    """Return scoring as a site does it, and by T passes through the whole network."""
    device, passes = pick_device(experiment.runtime.device), _passes(experiment)
    work = on_device(_width(experiment), size.scored, device)
    model = work.model(pick_dtype(precision, device))

    def plain() -> None:
        with patch.object(scoring, "CACHE_BATCH", SCORING_BATCH):  # small pieces suit a CPU alone
            scoring.plain(model, work, passes)

    flop, plain_flop, _ = flop_per_image(experiment)
    return [
        Case("scoring", precision, size.scored, flop, lambda: scoring.ours(model, work, passes)),
        Case(PLAIN, precision, size.scored, plain_flop, plain),
    ]


def _training(experiment: Experiment, size: Size, precision: str) -> Case:
    """Return a local epoch of a site."""
    device = pick_device(experiment.runtime.device)
    work = on_device(_width(experiment), size.trained, device)
    model = work.model(pick_dtype(precision, device))
    flop = flop_per_image(experiment)[2]
    return Case("training", precision, size.trained, flop, lambda: training.epoch(model, work))


def _row(case: Case, times: Times, limit: float, device: torch.device) -> Cells:
    rate = case.images / times.median
    return {
        "what": case.what,
        "precision": case.precision,
        **times.row(),
        "per_s": round(rate, 1),
        "tflop_per_s": rate * case.flop / 1e12,
        "of_bfloat16_product": round(rate * case.flop / limit, 4),
        "peak_mib": _peak_mib(case, device),
    }


def _peak_mib(case: Case, device: torch.device) -> float | None:
    """Run once more; return the most memory it took beside the weights and images there before."""
    if device.type != "cuda":
        return None
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    case.run()
    return round((torch.cuda.max_memory_allocated(device) - before) / 2**20, 1)
