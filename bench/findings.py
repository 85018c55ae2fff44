"""What do methods find in images that show several things, of which most were not read?

`python -m bench.findings [--quick] [--methods M,...] [--setting S] [--seeds N,...]`: two MNIST
digits side by side, 14 x 28 pixels; the findings are the ten digits, and an eleventh that nobody
has. Six sites of 150 labelled, 60 validation and 200 test images, each of a digit mix of its own
(Dirichlet, alpha 1). A share of all findings, drawn at random, was not read; and one site in three
never reads 7, 8 and 9. `SETTINGS` may add images of which nothing was read, and findings written
down wrongly. A run for each method and seed. Measured of the models that sites
keep, asked for the same 1,000 images of an even mix, all findings read, of digits that no site has:
AUROC, average precision and balanced accuracy, means over the ten findings and the sites. Every
run's result is kept, so the same command goes on where it was cut.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from statistics import fmean, stdev
from typing import Annotated, Any

import numpy as np
import torch
import typer
from numpy.random import Generator
from torch import Tensor

import fedapp
from bench.command import Quick, carry_out, several
from bench.record import Row, save
from bench.runs import codes, finished, kept_runs
from fedapp.data.datasets import load_dataset
from fedapp.data.images import resize
from fedapp.experiment.config import load_experiment
from fedapp.experiment.experiment import Experiment
from fedapp.experiment.presetfiles import CONF, Scalar
from fedapp.ground.rng import numpy_stream
from fedapp.ground.settings import DataSettings
from fedapp.learn.findings import by_finding, measured
from fedapp.learn.metrics import evaluation
from fedapp.learn.quality import macro

DIGITS, SITES, PARTS = 10, 6, (150, 60, 200)
NAMES = [*map(str, range(DIGITS)), "a letter"]
RARELY_READ = [7, 8, 9]
EVEN = 1000
STUDY: Mapping[str, Scalar] = {
    "model.width": 8,
    "training.warmup_epochs": 15,
    "training.local_steps": 30,
    "rounds.num_rounds": 10,
    "rounds.chosen_by": "balanced_accuracy",
    "runtime.device": "cpu",
}
QUICK: Mapping[str, Scalar] = {
    "model.width": 2, "rounds.num_rounds": 1, "training.local_steps": 1,
    "training.warmup_epochs": 1,
}  # fmt: skip
Case = tuple[str, str, int]


@dataclass(frozen=True)
class Setting:
    """What sites know.

    unread: share of findings that nobody read. unlabelled: images of a site beside, of which none
    was. missed, invented: probabilities that a finding that is there was written down as absent,
    and one that is absent as there, in images for training and validation.
    """

    unread: float = 0.5
    unlabelled: int = 0
    missed: float = 0.0
    invented: float = 0.0


SETTINGS: Mapping[str, Setting] = {
    "all-read": Setting(unread=0.0),
    "half-read": Setting(),
    "unlabelled": Setting(unlabelled=300),
    "wrong-labels": Setting(missed=0.2, invented=0.02),
}


@dataclass(frozen=True, eq=False)
class Study:
    """Sites' data, and the images that all models are asked for: uint8 [n, 1, 14, 28], [n, F]."""

    federation: fedapp.Federation
    images: Tensor
    labels: Tensor


@cache
def study(name: str, seed: int) -> Study:
    """Return what is drawn with a seed; name: of `SETTINGS`. Other settings draw the same else."""
    setting = SETTINGS[name]
    pool = load_dataset(DataSettings(name="mnist"), seed=0)
    order = numpy_stream(seed, "bench findings", "order").permutation(20_000)
    small = resize(pool.inputs[order], 14)
    labels = pool.labels[order].numpy()
    draws, others, noise = (
        numpy_stream(seed, "bench findings", purpose) for purpose in ("tiles", "others", "noise")
    )

    def tiles(count: int, mix: Any, places: Any, draws: Generator = draws) -> tuple[Tensor, Tensor]:
        of = [places[labels[places] == digit] for digit in range(DIGITS)]
        shown = draws.choice(DIGITS, (count, 2), p=mix)
        chosen = np.array([[draws.choice(of[one]) for one in pair] for pair in shown])
        images = torch.cat([small[chosen[:, 0]], small[chosen[:, 1]]], dim=3)
        found = np.zeros((count, len(NAMES)), np.int64)
        found[np.arange(count)[:, None], shown] = 1
        return images, torch.from_numpy(found)

    sites, places = [], np.array_split(np.arange(15_000), SITES)
    for number in range(SITES):
        mix = draws.dirichlet(np.ones(DIGITS))
        parts = []
        for count in PARTS:
            images, found = tiles(count, mix, places[number])
            unread = torch.from_numpy(draws.random(found.shape)) < setting.unread
            if count != PARTS[-1]:
                found = written_down(found, setting, noise)
            found[unread] = -1
            if number % 3 == 0:
                found[:, RARELY_READ] = -1
            parts.append((images, found))
        labelled, val, test = parts
        rest = None
        if setting.unlabelled:
            rest = tiles(setting.unlabelled, mix, places[number], others)[0]
        sites.append(fedapp.Site(labelled, rest, val, test))
    even = tiles(EVEN, np.full(DIGITS, 1 / DIGITS), np.arange(15_000, 20_000))
    return Study(fedapp.Federation(sites, classes=NAMES), *even)


def written_down(found: Tensor, setting: Setting, draws: Generator) -> Tensor:
    """Return findings [n, F], 0 or 1, with the mistakes of who wrote them down."""
    wrong = torch.from_numpy(draws.random(found.shape))
    likely = torch.where(found == 1, setting.missed, setting.invented)
    return torch.where(wrong < likely, 1 - found, found)


def experiment_of(method: str, setting: str, seed: int, given: Mapping[str, Scalar]) -> Experiment:
    """Return the experiment of a case."""
    said = {**STUDY, "method.preset": method, "seed": seed, **given}
    if method == "one_round":  # another round would change nothing
        said |= {"rounds.num_rounds": 1}
    data = study(setting, seed).federation.settings
    return load_experiment(str(CONF / "python" / "in_memory.yaml"), {**data, **said})


def measure(case: Case, experiment: Experiment) -> dict[str, Any]:
    """Run once; return what the sites' kept models answer to the common images."""
    of = study(*case[1:])
    truth = of.labels.numpy()
    with finished(experiment) as run:
        found = []
        for site in run.sites:
            model = fedapp.load_model(run.folder.models_root / str(site))
            said = model.probabilities(of.images)
            each = by_finding(said.double().numpy(), truth, 0.9)
            counts = np.array(evaluation(said, of.labels).confusion)
            found.append(
                {
                    "auroc": macro([one.auroc for one in each]),
                    "precision": macro([one.average_precision for one in each]),
                    "balanced": measured("balanced_accuracy", counts, len(NAMES)),
                }
            )
        nobody = run.summary["by_class"][-1]
        assert nobody["images"] == 0 and nobody["sensitivity"] is None
        means = {name: fmean(one[name] or 0 for one in found) for name in found[0]}
        return {**means, "own": run.summary["pooled"]["balanced_accuracy"]["final"]}


def rows_of(results: Mapping[Case, Mapping[str, Any]]) -> list[Row]:
    """Return a row for each method: means over seeds, and standard deviations."""
    rows: list[Row] = []
    for method in dict.fromkeys(case[0] for case in results):
        found = [result for case, result in results.items() if case[0] == method]
        shown: dict[str, float | None] = {}
        for name in ("auroc", "precision", "balanced", "own"):
            each = [100 * one[name] for one in found]
            shown[f"{name}_%"] = round(fmean(each), 1)
            shown[f"{name}_sd"] = round(stdev(each), 1) if len(each) > 1 else None
        rows.append({"method": method, **shown, "seeds": len(found)})
    return rows


def main(
    quick: Quick = False,
    methods: Annotated[str, typer.Option(help="methods")] = (
        "local_only,fedavg,fedavg_ft,fedprox,one_round,recommended"
    ),
    setting: Annotated[str, typer.Option(help=", ".join(SETTINGS))] = "half-read",
    seeds: Annotated[str, typer.Option(help="seeds")] = "120,121,122",
) -> None:
    """Run what has not been run, then record the table."""
    given = QUICK if quick else {}
    cases = {
        (method, setting, int(seed)): None
        for seed in several("120" if quick else seeds)
        for method in several(methods)
    }
    experiments = {case: experiment_of(*case, given) for case in cases}
    results = kept_runs("findings", given, experiments, measure)
    save(f"findings-{setting}", rows_of(results), {"runs by code": codes(results)}, quick=quick)


if __name__ == "__main__":
    carry_out(main)
