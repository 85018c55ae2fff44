"""Scoring a model at a site by dropout samples: its speed, and that of other ways to do it.

`python -m bench.scoring [--quick]`, on one CPU thread, ResNet-9 on Fashion-MNIST images.

- `scoring`: T dropout samples of every image, by T passes through the whole network (Eq. 9 taken
  literally, in batches of the best size) and as `mc_probabilities` does it (`ours`). `ratio`: how
  many times faster ours is.
- `scoring-alternatives`: other ways to do the same at T = 10. `ratio`: their time over that of
  ours; for several models, over that of scoring one after the other. `difference`: the largest
  difference of a probability, where the random draws are the same.
"""

from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state
from torch.nn.utils.fusion import fuse_conv_bn_eval

from bench.command import Quick, carry_out
from bench.measure import beside, side_by_side
from bench.record import Row, save
from bench.workload import Workload, standard_layout, workload
from fedapp.learn import uncertainty
from fedapp.learn.networks import Network
from fedapp.learn.networks.resnet9 import ResNet9
from fedapp.learn.uncertainty import CACHE_BATCH, SCORING_BATCH, dropout_sample, mc_probabilities

PASSES = 10
MODELS = 4
"""Number of models that are scored together: a list holds about so many helpers."""


def main(quick: Quick = False) -> None:
    """Measure and save both tables."""
    data, repetitions = ("digits", 1) if quick else ("fashion_mnist", 5)
    counts = (2, 3) if quick else (5, 10, 20, 50)
    wide, narrow = (4, 2) if quick else (64, 8)
    works = [workload(data, width, 40 if quick else 128) for width in (wide, narrow)]
    rows = [row for work in works for row in against_plain(work, counts, repetitions)]
    save("scoring", rows, quick=quick)
    larger = [workload(data, width, 70 if quick else 256) for width in (wide, narrow)]
    rows = [row for work in larger for row in alternatives(work, repetitions)]
    save("scoring-alternatives", rows, quick=quick)


def against_plain(work: Workload, counts: tuple[int, ...], repetitions: int) -> list[Row]:
    """Return one row for each number of passes."""
    model = work.model()
    rows: list[Row] = []
    for passes in counts:
        cases = {
            "plain": partial(plain, model, work, passes),
            "ours": partial(ours, model, work, passes),
        }
        times = side_by_side(cases, repetitions)
        row: dict[str, float] = {"width": work.width, "images": len(work.images), "T": passes}
        row["n"] = repetitions
        for name, taken in times.items():
            found = taken.row("ms_per_image", each=1e3 / len(work.images))
            for end in ("median", "min", "max"):
                place = f"{name}_ms_per_image" + ("" if end == "median" else f"_{end}")
                row[place] = round(found[f"{end}_ms_per_image"], 4)
        rows.append({**row, **times["plain"].over(times["ours"])})
    return rows


@torch.inference_mode()
def plain(model: Network, work: Workload, passes: int) -> Tensor:
    """Score by Eq. 9 taken literally: each sample is a pass through the whole network."""
    model.eval()
    model.dropout.train()
    out = []
    for batch in work.images.split(CACHE_BATCH):
        samples = [torch.softmax(model(work.normalise(batch)), 1) for _ in range(passes)]
        out.append(torch.stack(samples).mean(0))
    return torch.cat(out)


def ours(model: Network, work: Workload, passes: int = PASSES) -> Tensor:
    """Score the model as a site does, with the same draws each time."""
    torch.manual_seed(0)
    return mc_probabilities(model, work.images, passes, work.normalise)


# --- what else was tried --------------------------------------------------------------------------


def alternatives(work: Workload, repetitions: int) -> list[dict[str, Any]]:
    """Return one row for each other way, with its time over that of ours."""
    model = work.model()
    ways: dict[str, Callable[[], Tensor]] = {"as it is": partial(ours, model, work)}
    for size in (8, 16, 64, 128, SCORING_BATCH):
        ways[f"trunk in pieces of {size}"] = partial(
            with_constant, "CACHE_BATCH", size, model, work
        )
    with standard_layout():
        ways["not channels-last"] = partial(in_rows, work.model(), work)
    ways["batch norm folded into the convolutions"] = partial(ours, folded(model), work)
    ways["bfloat16"] = partial(ours, work.model(torch.bfloat16), work)
    same_draws = tuple(ways)
    ways["tail in batches of 64"] = partial(with_constant, "SCORING_BATCH", 64, model, work)
    ways["torch's dropout"] = partial(with_torch_dropout, model, work)
    ways["5 samples stacked in one tail"] = partial(stacked_samples, model, work, 5)

    rows = timed(work, ways, "as it is", repetitions)
    expected = ways["as it is"]()
    for row in rows:
        if row["way"] in same_draws:
            row["difference"] = (ways[row["way"]]() - expected).abs().max().item()
    models = [work.model() for _ in range(MODELS)]
    together: dict[str, Callable[[], object]] = {
        f"{MODELS} models one after the other": lambda: [ours(m, work) for m in models],
        f"{MODELS} models stacked, torch.func.vmap": partial(stacked_models, models, work),
    }
    return rows + timed(work, together, next(iter(together)), repetitions)


def timed(
    work: Workload, ways: Mapping[str, Callable[[], object]], base: str, repetitions: int
) -> list[dict[str, Any]]:
    """Time the ways in turns; return a row for each, with its ratio over the way `base`."""
    times = side_by_side(ways, repetitions)
    return beside(times, base, width=work.width, images=len(work.images))


def with_constant(name: str, value: int, model: Network, work: Workload) -> Tensor:
    """Score with another size of pieces or batches."""
    with patch.object(uncertainty, name, value):
        return ours(model, work)


def in_rows(model: Network, work: Workload) -> Tensor:
    """Score with activations in torch's standard layout."""
    with standard_layout():
        return ours(model, work)


def folded(model: Network) -> ResNet9:
    """Return a copy of a ResNet-9 with its batch norms folded into the convolutions."""
    model = deepcopy(model).eval()
    assert isinstance(model, ResNet9)
    for block in [*model.children(), *model.res1, *model.res2]:
        if hasattr(block, "norm"):
            block.conv = fuse_conv_bn_eval(block.conv, block.norm)
            block.norm = nn.Identity()
    return model


def with_torch_dropout(model: Network, work: Workload) -> Tensor:
    """Score with masks that torch's own dropout draws."""
    with patch.object(uncertainty, "dropout_sample", nn.functional.dropout):
        return ours(model, work)


@torch.inference_mode()
def stacked_samples(model: Network, work: Workload, stack: int) -> Tensor:
    """Run the tail on several samples of every image at a time."""
    model.eval()
    h, skip = uncertainty.features_of(model, work.images, work.normalise)
    repeated = torch.cat([h] * stack), torch.cat([skip] * stack)
    total = torch.zeros(len(h), work.classes)
    for _ in range(PASSES // stack):
        rows = torch.softmax(model.tail(repeated, dropout_sample), 1)
        total += rows.view(stack, len(h), -1).sum(0)
    return total / PASSES


class Scorer(nn.Module):
    """Scoring as a module, so that torch.func can stack several models' weights."""

    def __init__(self, model: Network) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """[n, c, h, w] -> P(y|x) [n, C]."""
        features = self.model.trunk(x)

        def sample(
            h: Tensor, p: float
        ) -> Tensor:  # as dropout_sample, of operations that vmap knows
            return h * (torch.rand_like(h) >= p) / (1 - p)

        tails = (torch.softmax(self.model.tail(features, sample), 1) for _ in range(PASSES))
        return sum(tails, torch.zeros(()))


@torch.inference_mode()
def stacked_models(models: list[Network], work: Workload) -> Tensor:
    """Score several models over the same images together: [models, n, C]."""
    scorers = [Scorer(model.eval()) for model in models]
    weights, buffers = stack_module_state(scorers)

    def score(own_weights: dict[str, Tensor], own_buffers: dict[str, Tensor], x: Tensor) -> Tensor:
        scored: Tensor = functional_call(scorers[0], (own_weights, own_buffers), (x,))
        return scored

    together = torch.vmap(score, in_dims=(0, 0, None), randomness="different")
    pieces = work.images.split(CACHE_BATCH)
    return torch.cat([together(weights, buffers, work.normalise(p)) for p in pieces], 1) / PASSES


if __name__ == "__main__":
    carry_out(main)
