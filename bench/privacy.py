"""What does privacy of single images cost, and what do masked sums save of it?

`python -m bench.privacy [--quick] [--sizes 10x400,...] [--methods M,...] [--epsilons E,...]
[--sums masked,plain] [--seeds N,...]`: real images (Fashion-MNIST, alpha 0.5), a run for each size
of federation, method, epsilon, kind of sums and seed; epsilon 0 is no noise, and is run once. With
`masked` sums the noise is in the sum, a share from each site; with `plain` ones each site adds all
of it. Measured: the mean test accuracy of all sites after the last round, and how well a guess at
who was a member succeeds on what everybody sees, the common answer (`attacked` of
bench.membership; the members are all labelled training images, the others all test images). Every
run's result is kept, so the same command goes on where it was cut.
"""

from collections.abc import Mapping
from statistics import fmean, stdev
from typing import Annotated, Any

import numpy as np
import torch
import typer
from torch import Tensor

from bench.command import Quick, carry_out, several
from bench.membership import attacked, losses
from bench.record import Cells, Row, save
from bench.runs import Run, codes, finished, kept_runs, scale
from fedapp.data.sites import SiteData
from fedapp.experiment.config import load_experiment
from fedapp.experiment.experiment import Experiment
from fedapp.experiment.presetfiles import Scalar
from fedapp.ground.rng import numpy_stream
from fedapp.learn.features import build_features
from fedapp.learn.metrics import predict
from fedapp.methods.closed_form._contents import SOLUTION, Solution
from fedapp.methods.closed_form._coordinates import Coordinates

SIZES = ("10x400", "20x1000", "100x140")
EPSILONS = (0.0, 8.0, 3.0, 1.0)
STUDY: Mapping[str, Scalar] = {
    "data.image_size": 14,
    "split.dirichlet_alpha": 0.5,
    "runtime.device": "cpu",
    "runtime.models": False,
}
"""As in the sweep results_fashion_mnist."""
METHODS: Mapping[str, Mapping[str, Scalar]] = {"one_round": {"method.preset": "one_round"}}
Case = tuple[str, str, float, str, int]


def experiment_of(
    size: str, method: str, epsilon: float, sums: str, seed: int, given: Mapping[str, Scalar]
) -> Experiment:
    """Return the experiment of a case."""
    sites, images = map(int, size.split("x"))
    private: dict[str, Scalar] = {"privacy.epsilon": epsilon, "privacy.sums": sums}
    return load_experiment(
        "fashion_mnist_small",
        {
            **STUDY,
            **METHODS[method],
            **(private if epsilon else {}),
            "data.subset": sites * images,
            "split.num_clients": sites,
            "seed": seed,
            **given,
        },
    )


def measured(experiment: Experiment) -> dict[str, Any]:
    """Run once; return the sites' mean accuracy, and how well membership is guessed."""
    with finished(experiment) as run:
        return {"accuracy": run.summary["mean_test_accuracy"]["final"], "attack": in_view(run)}


def in_view(run: Run) -> dict[str, float]:
    """Attack the common answer, which the server and every site know."""
    members, others = [], []
    for k in run.sites:
        data = run.data(k)
        members.append(losses(common(run, data, data.labelled), data.labels))
        others.append(losses(common(run, data, data.test), data.test_labels))
    draws = numpy_stream(run.experiment.seed, "membership", 0)
    return attacked(np.concatenate(members), np.concatenate(others), draws)


def common(run: Run, data: SiteData, images: Tensor) -> Tensor:
    """Return the common answer to a site's images, [n, C]: the closed form's, else the model's."""
    found = run.made(SOLUTION)
    if found is None:
        model = run.made()
        assert model is not None
        return predict(run.holding(model), images, scale(data))
    weight, bias = Solution.from_params(found).common
    hog = build_features("hog", data.inputs)
    features = hog.of(scale(data)(images))
    if run.experiment.protection is not None:
        made = Coordinates.made(hog, data.inputs, run.experiment.seed, "hog")
        features = made.seen(features)
    return torch.softmax(features @ weight.T + bias, dim=1)


def rows_of(results: Mapping[Case, Mapping[str, Any]]) -> list[Row]:
    """Return a row for each size, method, epsilon and kind of sums: over seeds, in %."""
    rows: list[Row] = []
    for kind in dict.fromkeys(case[:-1] for case in results):
        found = [result for case, result in results.items() if case[:-1] == kind]
        accuracy = [100 * result["accuracy"] for result in found]
        size, method, epsilon, sums = kind
        row: Cells = {
            "sites x images": size,
            "method": method,
            "epsilon": epsilon or None,
            "sums": sums if epsilon else None,
            "accuracy_%": round(fmean(accuracy), 1),
            "sd_%": round(stdev(accuracy), 1) if len(accuracy) > 1 else None,
            "seeds": len(found),
        }
        for value in ("advantage", "chance", "auc"):
            row[value] = round(fmean(result["attack"][value] for result in found), 3)
        rows.append(row)
    return rows


def main(
    quick: Quick = False,
    sizes: Annotated[str, typer.Option(help="sites x images")] = ",".join(SIZES),
    methods: Annotated[str, typer.Option(help="methods")] = ",".join(METHODS),
    epsilons: Annotated[str, typer.Option(help="epsilons")] = ",".join(map(str, EPSILONS)),
    sums: Annotated[str, typer.Option(help="kinds of sums")] = "masked,plain",
    seeds: Annotated[str, typer.Option(help="seeds")] = "100,101,102",
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
    experiments = {case: experiment_of(*case, given) for case in cases}
    results = kept_runs("privacy", given, experiments, lambda _, one: measured(one))
    save("privacy", rows_of(results), {"runs by code": codes(results)}, quick=quick)


if __name__ == "__main__":
    carry_out(main)
