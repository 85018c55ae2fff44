"""What do balanced sampling and logit adjustment find of a class that is rare?

`python -m bench.uneven [--quick] [--methods M,...] [--settings S,...] [--seeds N,...]`: real images
(Fashion-MNIST), 500 of each class and 100 shirts, which are the hardest to tell from others; ten
sites, of whose training images half are labelled. A run for each method, value of
`training.uneven` and seed. Measured on all sites' test images together after the last round:
accuracy, balanced accuracy, and the sensitivity for shirts, with its 95 % interval (Wilson) over
the images of all seeds. Every run's result is kept, so the same command goes on where it was cut.
"""

from collections.abc import Mapping
from statistics import fmean
from typing import Annotated, Any

import numpy as np
import typer

from bench.command import Quick, carry_out, several
from bench.record import Row, save
from bench.runs import codes, finished, kept_runs
from fedapp.data.datasets import load_dataset
from fedapp.experiment.config import load_experiment
from fedapp.experiment.experiment import Experiment
from fedapp.experiment.presetfiles import Scalar
from fedapp.ground.settings import DataSettings
from fedapp.learn.metrics import wilson

RARE, FEW, MANY = "Shirt", 100, 500
STUDY: Mapping[str, Scalar] = {
    "data.name": "bench.uneven:with_a_rare_class",
    "data.subset": 0,
    "data.image_size": 14,
    "split.num_clients": 10,
    "split.dirichlet_alpha": 5.0,
    "split.train_share": 0.5,
    "training.warmup_epochs": 20,
    "training.local_steps": 25,
    "training.augment": "weak",
    "training.learning_rate": 0.03,
    "rounds.num_rounds": 10,
    "rounds.sample_rate": 1.0,
    "runtime.device": "cpu",
    "runtime.models": False,
}
QUICK: Mapping[str, Scalar] = {
    "split.num_clients": 3, "model.width": 2, "rounds.num_rounds": 1, "training.local_steps": 1,
    "training.warmup_epochs": 1,
}  # fmt: skip
Case = tuple[str, str, int]


def with_a_rare_class() -> dict[str, Any]:
    """Return `MANY` Fashion-MNIST images of each class, and `FEW` of one, as they come."""
    pool = load_dataset(DataSettings(name="fashion_mnist"), seed=0)
    labels = pool.labels.numpy()
    wanted = [FEW if name == RARE else MANY for name in pool.classes]
    rows = [np.flatnonzero(labels == c)[:most] for c, most in enumerate(wanted)]
    chosen = np.sort(np.concatenate(rows))
    return {
        "inputs": pool.inputs.numpy()[chosen],
        "labels": labels[chosen],
        "classes": list(pool.classes),
    }


def experiment_of(method: str, uneven: str, seed: int, given: Mapping[str, Scalar]) -> Experiment:
    """Return the experiment of a case."""
    said: dict[str, Scalar] = {"method.preset": method, "training.uneven": uneven, "seed": seed}
    return load_experiment("fashion_mnist_small", {**STUDY, **said, **given})


def measured(experiment: Experiment) -> dict[str, Any]:
    """Run once; return what the summary says of all sites' test images together."""
    with finished(experiment) as run:
        classes = run.summary["by_class"]
        images = sum(one["images"] for one in classes)
        right = sum((one["sensitivity"] or 0) * one["images"] for one in classes)
        return {
            "accuracy": right / images,
            "balanced_accuracy": run.summary["pooled"]["balanced_accuracy"]["final"],
            "rare": next(row for row in classes if row["class"] == RARE),
        }


def rows_of(results: Mapping[Case, Mapping[str, Any]]) -> list[Row]:
    """Return a row for each method and setting: means over seeds, and of the rare class."""
    rows: list[Row] = []
    for method, uneven in dict.fromkeys(case[:2] for case in results):
        found = [result for case, result in results.items() if case[:2] == (method, uneven)]
        rare = [result["rare"] for result in found]
        images = sum(one["images"] for one in rare)
        right = sum(round((one["sensitivity"] or 0) * one["images"]) for one in rare)
        low, high = wilson(right, images)
        rows.append(
            {
                "method": method,
                "training.uneven": uneven,
                "accuracy_%": round(100 * fmean(one["accuracy"] for one in found), 1),
                "balanced_%": round(100 * fmean(one["balanced_accuracy"] for one in found), 1),
                "rare_%": round(100 * right / images, 1),
                "interval_%": f"{100 * low:.0f} to {100 * high:.0f}",
                "rare images": images,
                "seeds": len(found),
            }
        )
    return rows


def main(
    quick: Quick = False,
    methods: Annotated[str, typer.Option(help="methods")] = "fedavg,recommended",
    settings: Annotated[str, typer.Option(help="of training.uneven")] = "plain,balanced,adjusted",
    seeds: Annotated[str, typer.Option(help="seeds")] = "110,111,112",
) -> None:
    """Run what has not been run, then record the table."""
    given = QUICK if quick else {}
    cases = {
        (method, uneven, int(seed)): None
        for seed in several("110" if quick else seeds)
        for method in several(methods)
        for uneven in several(settings)
    }
    experiments = {case: experiment_of(*case, given) for case in cases}
    results = kept_runs("uneven", given, experiments, lambda _, one: measured(one))
    save("uneven", rows_of(results), {"runs by code": codes(results)}, quick=quick)


if __name__ == "__main__":
    carry_out(main)
