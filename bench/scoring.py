"""Scoring a model at a site by dropout samples: how much faster it is than Eq. 9 taken literally.

`python -m bench.scoring [--quick]`, on one CPU thread, ResNet-9 on Fashion-MNIST images: T dropout
samples of every image, by T passes through the whole network in batches of the best size (`plain`),
and as `mc_probabilities` does it (`ours`). `ratio`: how many times faster ours is.
"""

from functools import partial

import torch
from torch import Tensor

from bench.command import Quick, carry_out
from bench.measure import side_by_side
from bench.record import Row, save
from bench.workload import Workload, workload
from fedapp.learn.networks import Network
from fedapp.learn.uncertainty import CACHE_BATCH, mc_probabilities

PASSES = 10


def main(quick: Quick = False) -> None:
    """Measure and save the table."""
    data, repetitions = ("digits", 1) if quick else ("fashion_mnist", 5)
    counts = (2, 3) if quick else (5, 10, 20, 50)
    wide, narrow = (4, 2) if quick else (64, 8)
    works = [workload(data, width, 40 if quick else 128) for width in (wide, narrow)]
    rows = [row for work in works for row in against_plain(work, counts, repetitions)]
    save("scoring", rows, quick=quick)


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


if __name__ == "__main__":
    carry_out(main)
