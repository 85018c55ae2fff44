"""How much accuracy does image-level privacy cost, and how much do masked sums save?

`python -m bench.privacy [--quick] [--sizes 10x400,...] [--methods M,...] [--epsilons E,...]
[--sums masked,plain] [--seeds N,...] [--encoder FILE]`: real images (Fashion-MNIST, alpha 0.5), a
run for each size of federation, method, epsilon, kind of sums and seed. Epsilon 0 stands for no
noise, and is run once. With `masked` sums each site adds a share of the noise, so that the sum has
all of it; with `plain` sums each site adds all of it.

Measured after the last round, as mean test accuracy over sites: the answer that a site uses at
home, which also learns from its own labels without noise; the common answer times the site's own
class mix; and the common answer as it is, the only one that the epsilon covers. Also measured is
how well membership inference succeeds on the common answer, which everybody sees (`attacked` of
bench.membership; members are all labelled training images, non-members all test images). The result
of every run is kept, so that the same command continues where it was cut; table and picture show
all kept results.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean, stdev
from typing import Annotated, Any

import numpy as np
import torch
import typer
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from torch import Tensor

from bench.command import Quick, carry_out, several
from bench.membership import attacked, losses
from bench.record import Cells, Row, save
from bench.runs import Run, codes, finished, kept_before, kept_runs, scale
from fedapp.core.rng import numpy_stream
from fedapp.data.sites import SiteData
from fedapp.experiment.config import load_experiment
from fedapp.experiment.experiment import Experiment
from fedapp.experiment.preset_files import Scalar
from fedapp.learn.metrics import predict
from fedapp.methods.closed_form._contents import SOLUTION, Solution
from fedapp.methods.closed_form._features import Coordinates, features_for
from fedapp.methods.closed_form.one_round import OneRound
from fedapp.reports.comparison.figures import WIDTH_MORE, styled
from fedapp.reports.comparison.style import PALETTE

SIZES = ("10x400", "20x1000", "100x140")
EPSILONS = (0.0, 8.0, 3.0, 1.0)
STUDY: Mapping[str, Scalar] = {
    "data.image_size": 14,
    "split.dirichlet_alpha": 0.5,
    "runtime.device": "cpu",
    "runtime.models": False,
}
"""As in the sweep results_fashion_mnist."""
FROZEN = "frozen"
METHODS: Mapping[str, Mapping[str, Scalar]] = {
    "one_round": {"method.preset": "one_round"},
    FROZEN: {
        "method.preset": "one_round",
        "method.features": "network",
        "model.name": "encoder",
        "model.body": "resnet18",
        "data.image_size": 0,
    },
    "fedavg": {
        "method.preset": "fedavg",
        "model.name": "mlp",
        "model.hidden": "32",
        "model.dropout": 0.0,
    },
}
"""`FROZEN`: over what a network of other images says, `--encoder`, in place of `hog`. FedAvg has a
small network: the norm of the noise grows with the root of the number of parameters."""
STEPS: Mapping[str, Scalar] = {
    "training.warmup_epochs": 0,
    "training.local_steps": 1,
    "training.learning_rate": 6.0,
    "training.momentum": 0.0,
    "rounds.num_rounds": 40,
    "rounds.sample_rate": 1.0,
    "privacy.sampling": 0.5,
    "privacy.gradient": 0.5,
}
"""FedAvg by DP-SGD: a step a round, so that sites share the noise of a masked sum.

Network, rates, clip, sampling and rounds have the best mean validation accuracy on seed 200, 10 x
400, over epsilons 8 and 3 and both kinds of sums (docs/results/privacy.md).
"""
Case = tuple[str, str, float, str, int]
ANSWERS = {"home": "accuracy", "common": "common", "as_it_is": "even"}
"""Columns of the table, with the key of each in a kept result."""
DRAWN = {"home": "at home", "as_it_is": "common, as it is"}
"""Answers in the picture."""


def experiment_of(
    size: str,
    method: str,
    epsilon: float,
    sums: str,
    seed: int,
    given: Mapping[str, Scalar],
    encoder: Path | None = None,
) -> Experiment:
    """Return the experiment of a case. encoder: weights of a frozen network."""
    sites, images = map(int, size.split("x"))
    private: dict[str, Scalar] = {"privacy.epsilon": epsilon, "privacy.sums": sums}
    if method == "fedavg":
        private |= STEPS
    weights: dict[str, Scalar] = {}
    if method == FROZEN and encoder is not None:
        sha256 = hashlib.sha256(encoder.read_bytes()).hexdigest()
        weights = {"model.weights": str(encoder), "model.weights_sha256": sha256}
    return load_experiment(
        "fashion_mnist_small",
        {
            **STUDY,
            **METHODS[method],
            **weights,
            **(private if epsilon else {}),
            "data.subset": sites * images,
            "split.num_clients": sites,
            "seed": seed,
            **given,
        },
    )


def measured(experiment: Experiment) -> dict[str, Any]:
    """Run once; return the sites' mean accuracies, and the success of membership inference."""
    with finished(experiment) as run:
        lines = (run.folder.path / "metrics.jsonl").read_text().splitlines()
        every = map(run.data, run.sites)
        right = [
            float((common(run, data, data.test).argmax(1) == data.test_labels).double().mean())
            for data in every
            if len(data.test_labels)
        ]
        return {
            "accuracy": run.summary["mean_test_accuracy"]["final"],
            "common": json.loads(lines[-1])["mean_test_accuracy_common"],
            "even": fmean(right),
            "attack": in_view(run),
        }


def in_view(run: Run) -> dict[str, float]:
    """Return the success of membership inference on the common answer, which everybody sees."""
    members, others = [], []
    for k in run.sites:
        data = run.data(k)
        members.append(losses(common(run, data, data.labelled), data.labels))
        others.append(losses(common(run, data, data.test), data.test_labels))
    draws = numpy_stream(run.experiment.seed, "membership", 0)
    return attacked(np.concatenate(members), np.concatenate(others), draws)


def common(run: Run, data: SiteData, images: Tensor) -> Tensor:
    """Return the common model's probabilities for a site's images, [n, C].

    The common model is the closed form's solution if the method has one, else the server's network.
    """
    found = run.made(SOLUTION)
    if found is None:
        model = run.made()
        assert model is not None
        return predict(run.holding(model), images, scale(data))
    weight, bias = Solution.from_params(found).common
    method = run.experiment.method
    assert isinstance(method, OneRound)
    known = features_for(method.features, run.network)
    features = known.of(scale(data)(images))
    if run.experiment.protection is not None:
        seed = run.experiment.seed
        features = Coordinates.made(known, data, seed, method.features).seen(features)
    return torch.softmax(features @ weight.T + bias, dim=1)


def rows_of(results: Mapping[Case, Mapping[str, Any]]) -> list[Row]:
    """Return a row for each size, method, epsilon and kind of sums: means over seeds, in %."""
    rows: list[Row] = []
    for kind in dict.fromkeys(case[:-1] for case in results):
        found = [result for case, result in results.items() if case[:-1] == kind]
        size, method, epsilon, sums = kind
        row: Cells = {
            "sites x images": size,
            "method": method,
            "epsilon": epsilon or None,
            "sums": sums if epsilon else None,
            "seeds": len(found),
        }
        for name, kept_as in ANSWERS.items():
            accuracy = [100 * result[kept_as] for result in found]
            row[f"{name}_%"] = round(fmean(accuracy), 1)
            row[f"{name}_sd_%"] = round(stdev(accuracy), 1) if len(accuracy) > 1 else None
        for value in ("advantage", "chance", "auc"):
            row[value] = round(fmean(result["attack"][value] for result in found), 3)
        rows.append(row)
    return rows


def _case(size: str, method: str, epsilon: str, sums: str, seed: str) -> Case:
    return size, method, float(epsilon), sums, int(seed)


def _place(case: Case) -> tuple[int, int, float, str, int]:
    """Return the sort key of a case in the table."""
    size, method, epsilon, sums, seed = case
    sites = int(size.split("x")[0])
    return sites, [*METHODS].index(method), -(epsilon or math.inf), sums, seed


@styled
def curves(rows: Sequence[Row]) -> Figure:
    """Draw accuracy over epsilon; error bars are one standard deviation over seeds.

    Each size has a column of panels: the answer at home above, the common answer as it is below.
    Without noise epsilon is infinite, which is drawn as a dotted horizontal line.
    """
    sizes = list(dict.fromkeys(row["sites x images"] for row in rows))
    methods = list(dict.fromkeys(row["method"] for row in rows))
    figure = Figure(figsize=(WIDTH_MORE, 6.0))
    panels = figure.subplots(2, len(sizes), sharey=True, squeeze=False)
    for (answer, size), axes in zip(product(DRAWN, sizes), panels.flat, strict=True):
        for method, sums in product(methods, (None, "masked", "plain")):
            own = [
                row
                for row in rows
                if (row["sites x images"], row["method"], row["sums"]) == (size, method, sums)
            ]
            if not own:
                continue
            colour = PALETTE[methods.index(method)]
            height = [float(row[f"{answer}_%"] or 0) for row in own]
            spread = [float(row[f"{answer}_sd_%"] or 0) for row in own]
            if sums is None:
                axes.axhspan(
                    height[0] - spread[0], height[0] + spread[0], color=colour, alpha=0.12, lw=0
                )
                axes.axhline(height[0], color=colour, ls=":", label=f"{method}, no noise")
                continue
            line = {"masked": "o-", "plain": "s--"}[sums]
            words = {"masked": "noise in the sum", "plain": "noise by site"}[sums]
            places = [float(row["epsilon"] or 0) for row in own]
            axes.errorbar(
                places,
                height,
                spread,
                fmt=line,
                color=colour,
                capsize=3,
                label=f"{method}, {words}",
            )
        axes.set(title=f"{size} images".replace("x", " x "), xscale="log", xlabel="epsilon")
        axes.set_xticks(EPSILONS[1:], [f"{value:g}" for value in EPSILONS[1:]], minor=False)
        axes.minorticks_off()
    for left, words in zip(panels[:, 0], DRAWN.values(), strict=True):
        left.set_ylabel(f"{words}, right, %")
    handles: dict[str, Artist] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    figure.legend([*handles.values()], [*handles], loc="outside lower center", ncols=3)
    return figure


def main(
    quick: Quick = False,
    sizes: Annotated[str, typer.Option(help="sites x images")] = ",".join(SIZES),
    methods: Annotated[str, typer.Option(help="methods")] = "one_round,fedavg",
    epsilons: Annotated[str, typer.Option(help="epsilons")] = ",".join(map(str, EPSILONS)),
    sums: Annotated[str, typer.Option(help="kinds of sums")] = "masked,plain",
    seeds: Annotated[str, typer.Option(help="seeds")] = "100,101,102",
    encoder: Annotated[Path | None, typer.Option(help="weights of a ResNet-18, for frozen")] = None,
) -> None:
    """Run what has not been run, then record the table."""
    given: Mapping[str, Scalar] = {"split.num_clients": 6, "data.subset": 600} if quick else {}
    cases = {
        (size, method, epsilon, kind if epsilon else "plain", int(seed)): None
        for seed in several("100" if quick else seeds)
        for method in several(methods)
        for size in several(SIZES[0] if quick else sizes)
        for kind in several(sums)
        for epsilon in map(float, several(epsilons))
    }
    experiments = {case: experiment_of(*case, given, encoder) for case in cases}
    results = kept_runs("privacy", given, experiments, lambda _, one: measured(one))
    for words, result in kept_before("privacy", given, next(iter(experiments.values()))).items():
        results[_case(*words)] = result
    rows = rows_of({case: results[case] for case in sorted(results, key=_place)})
    save("privacy", rows, {"runs by code": codes(results)}, curves(rows), quick)


if __name__ == "__main__":
    carry_out(main)
