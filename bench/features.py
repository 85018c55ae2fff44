"""What are fixed features worth in a closed form? `python -m bench.features DATA [--images N]`.

Linear discriminant analysis over all sites' images in one place (sums are additive: the federated
answer is the same): class means of the labelled half, second moment of all; the within-class
scatter's eigenvalues are cut at 0, and lambda times their mean is added; no prior, no class mix.
lambda is chosen on validation images, a tenth of what is learned from and 1,000 at least. Up to
10,000 other images are the test. Right answers in %, lambda, numbers of an image, seconds of
processor time a thousand images: to learn the features, to make them.

Written to bench/results/features-DATA-PIXELS-N.json, with all that was run.
"""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import torch
import typer
from torch import Tensor

from bench.command import Quick, carry_out, several
from bench.record import Cells, Row, save
from fedapp.data.datasets import load_dataset
from fedapp.data.inputs import normalise
from fedapp.ground.rng import torch_stream
from fedapp.ground.settings import DataSettings
from fedapp.learn.features import build_features
from fedapp.learn.features.base import FeatureMap, LearnedFeatures
from fedapp.learn.features.patches import Patches
from fedapp.methods.closed_form._discriminant import Classes, Sums, added

LAMBDAS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30)
TEST = 10_000
Parts = dict[str, tuple[Tensor, Tensor]]
"""Images as they are stored, and labels, by "train", "validation", "test"."""


@dataclass(frozen=True)
class Data:
    """A data set in its parts, and how a network would get it."""

    parts: Parts
    ready: Callable[[Tensor], Tensor]
    classes: int
    inputs: tuple[int, ...]

    def pieces(self, part: str, count: int = 2000) -> Iterator[tuple[Tensor, Tensor]]:
        """Return the images as features get them, and labels, some at a time."""
        images, labels = self.parts[part]
        for start in range(0, len(images), count):
            some = slice(start, start + count)
            yield self.ready(images[some]), labels[some]


def data_of(settings: DataSettings, images: int, seed: int) -> Data:
    """Draw the parts. images: to learn from, validation included; 0: all but the test's."""
    pool = load_dataset(settings, seed)
    order = torch.randperm(len(pool.labels), generator=torch_stream(seed, "parts"))
    test = order[: min(TEST, len(order) // 4)]
    learning = order[len(test) :][: images or None]
    held = min(max(1000, len(learning) // 10), len(learning) // 4)
    chosen = {"validation": learning[:held], "train": learning[held:], "test": test}
    return Data(
        {name: (pool.inputs[which], pool.labels[which]) for name, which in chosen.items()},
        partial(normalise, mean=pool.mean, std=pool.std),
        len(pool.classes),
        tuple(pool.inputs.shape[1:]),
    )


def learn(features: LearnedFeatures, data: Data) -> float:
    """Learn by sums, as sites of 2,000 images would; return seconds of processor time."""
    began = time.process_time()
    for step in range(features.exchanges()):
        total: dict[str, Tensor] = {}
        for x, _ in data.pieces("train"):
            for name, tensor in features.sums(step, x).items():
                total[name] = total[name] + tensor if name in total else tensor
        features.learned(step, total)
    return time.process_time() - began


def right(of: Callable[[Tensor], Tensor], data: Data, seed: int) -> tuple[float, float, float]:
    """Return the share of right test answers, %, the chosen lambda, and the share at lambda 1."""
    count = len(data.parts["train"][1])
    labelled = torch.zeros(count, dtype=torch.bool)
    labelled[torch.randperm(count, generator=torch_stream(seed, "labelled"))[: count // 2]] = True
    pieces, done = [], 0
    for x, labels in data.pieces("train"):
        found, known = of(x), labelled[done : done + len(x)]
        pieces.append(Sums.of(found[known], labels[known], found[~known], data.classes))
        done += len(x)
    weights, biases = heads(added(pieces))
    shares = {}
    for part in ("validation", "test"):
        x = torch.cat([of(images) for images, _ in data.pieces(part)]).double()
        answers = (x @ weights.transpose(1, 2) + biases[:, None]).argmax(2)
        shares[part] = 100 * (answers == data.parts[part][1]).double().mean(1)
    best = int(shares["validation"].argmax())
    test = shares["test"].tolist()
    return test[best], LAMBDAS[best], test[LAMBDAS.index(1)]


def heads(sums: Sums) -> tuple[Tensor, Tensor]:
    """Return a head for each lambda; a class's share is what it has of the labelled images."""
    mean = sums.total / sums.images
    means, shares = sums.by_class / sums.counts[:, None], sums.counts / sums.counts.sum()
    apart = means - shares @ means
    within = sums.second / sums.images - mean.outer(mean) - (apart.T * shares) @ apart
    return Classes(sums.counts, means, within, sums.images).heads(LAMBDAS)


def rows_of(data: Data, wanted: set[str], seed: int) -> Iterator[Row]:
    """Return a row for each of the features."""
    hog = build_features("hog", data.inputs)
    thousands = len(data.parts["train"][1]) / 1000

    def row(name: str, maps: list[FeatureMap], learned: float) -> Row:
        some, _ = next(data.pieces("test"))
        began = time.process_time()
        both(maps, some)
        taken = time.process_time() - began
        share, factor, at_one = right(partial(both, maps), data, seed)
        cells: Cells = {"features": name, "right, %": round(share, 1), "lambda": factor}
        cells |= {"at lambda 1": round(at_one, 1), "d": sum(each.size for each in maps)}
        cells["s / 1,000 to learn"] = round(learned / thousands, 2)
        cells["s / 1,000"] = round(taken / len(some) * 1000, 2)
        return cells

    if "hog" in wanted:
        yield row("hog", [hog], 0)
    for name, filters, rounds in (
        ("random", 200, 0), ("1 round", 200, 1), ("3 rounds", 200, 3), ("patches", 200, 10),
        ("400 filters", 400, 10),
    ):  # fmt: skip
        both_wanted = name == "patches" and "both" in wanted
        if name in wanted or both_wanted:
            features = Patches(data.inputs, seed, filters, rounds).eval().requires_grad_(False)
            seconds = learn(features, data)
            if name in wanted:
                yield row(f"patches: {filters} filters, {rounds} rounds", [features], seconds)
            if both_wanted:
                yield row("hog and patches side by side", [hog, features], seconds)


def both(maps: list[FeatureMap], x: Tensor) -> Tensor:
    """Return the features of all maps side by side, at most of the norm 1."""
    found: Tensor = torch.cat([features.of(x) for features in maps], 1)
    return found / math.sqrt(len(maps))


def main(
    data: Annotated[str, typer.Argument(help="data.name: fashion_mnist, folder, ...")],
    root: Annotated[str, typer.Option(help="data.root")] = "",
    images: Annotated[int, typer.Option(min=0, help="to learn from; 0: all")] = 14_000,
    size: Annotated[int, typer.Option(min=0, help="pixels a side; 0: as stored")] = 0,
    features: Annotated[str, typer.Option(help="commas between")] = (
        "hog,random,1 round,3 rounds,patches,400 filters,both"
    ),
    seed: Annotated[int, typer.Option(min=0)] = 0,
    quick: Quick = False,
) -> None:
    """Measure on one thread; print and write down."""
    torch.set_num_threads(1)
    if quick:
        images = 1000
    settings = DataSettings(name=data, root=root, image_size=size, download=False)
    found = data_of(settings, images, seed)
    count = sum(len(found.parts[part][1]) for part in ("train", "validation"))
    rows = []
    for row in rows_of(found, set(several(features)), seed):
        print(*row.values(), flush=True)
        rows.append(row)
    save(
        f"features-{data}-{found.inputs[-1]}-{count}",
        rows,
        {"images": count, "seed": seed},
        quick=quick,
    )


if __name__ == "__main__":
    carry_out(main)
