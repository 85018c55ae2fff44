"""Can those who see a site's model tell which images it was trained on?

`python -m bench.membership [--quick] [--methods M,...] [--seeds N,...]`: membership inference
against the model that each site uploaded last, in bench.hostile's setting, without and with
`privacy.clip`. Members are the site's labelled training images, non-members its own test images.
Two attacks need no other model: an image counts as a member if the model's loss is low (Yeom et al.
2018; the attacker knows the label), or if the entropy of its answer is low (the attacker does not).

Measured at each site with at least 20 images of both kinds, then averaged over sites and seeds:
`auc`, which is 0.5 for guessing, and `advantage`, the largest true positive rate minus false
positive rate over all thresholds. An attacker would have to choose the threshold without knowing
the members, so the advantage is an upper bound, and above 0 without any leak. `chance` is its value
on the same scores with members drawn at random. Results are kept; the table is in
docs/results/benchmarks.md.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Annotated, Any

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score, roc_curve
from torch import Tensor

from bench.command import Quick, carry_out, several
from bench.hostile import FULL, QUICK, experiment_of
from bench.record import Cells, Row, save
from bench.runs import Run, codes, finished, kept_runs, scale
from fedapp.core.rng import numpy_stream
from fedapp.experiment.experiment import Experiment
from fedapp.experiment.preset_files import Scalar
from fedapp.learn.metrics import predict

FEWEST_IMAGES = 20
"""Least number of members, and of non-members, at a site that is attacked."""
SHUFFLES = 20
METHODS = ("fedavg", "um_pfssl", "recommended")
CLIPS: Mapping[str, Mapping[str, Scalar]] = {"without": {}, "C = 3": {"privacy.clip": 3.0}}


def losses(answers: Tensor, labels: Tensor) -> NDArray[np.float64]:
    """Return -ln p_y of probabilities [n, C], float64 [n]. p is bounded, so no loss is infinite."""
    given = answers.double().gather(1, labels[:, None])[:, 0]
    found: NDArray[np.float64] = -given.clamp(min=np.finfo(np.float64).tiny).log().numpy()
    return found


def entropies(answers: Tensor) -> NDArray[np.float64]:
    """Return the entropy of each row of probabilities [n, C] in nats, float64 [n]."""
    found: NDArray[np.float64] = torch.special.entr(answers.double()).sum(1).numpy()
    return found


def attacked(
    members: NDArray[np.float64], others: NDArray[np.float64], draws: np.random.Generator
) -> dict[str, float]:
    """Return advantage, chance and AUC of the guess that low scores belong to members."""
    scores = -np.concatenate([members, others])
    truth = np.arange(len(scores)) < len(members)
    return {
        "advantage": advantage(truth, scores),
        "chance": fmean(advantage(draws.permutation(truth), scores) for _ in range(SHUFFLES)),
        "auc": float(roc_auc_score(truth, scores)),
    }


def advantage(truth: NDArray[np.bool_], scores: NDArray[np.float64]) -> float:
    """Return the largest true minus false positive rate over all thresholds, in [0, 1]."""
    false, true, _ = roc_curve(truth, scores)
    return float((true - false).max())


def measured(experiment: Experiment) -> dict[str, Any]:
    """Run once; return the sites' mean accuracy and every attack on every site's last upload."""
    with finished(experiment) as run:
        counts = {k: (len(run.data(k).labels), len(run.data(k).test_labels)) for k in run.sites}
        final = [row["final_accuracy"] for row in run.folder.per_site() if row["test"]]
        return {
            "accuracy": fmean(final),
            "attacks": {
                k: on_site(run, k) for k, both in counts.items() if min(both) >= FEWEST_IMAGES
            },
        }


def on_site(run: Run, site: int) -> dict[str, dict[str, float]]:
    """Attack a site's last upload in both ways."""
    data, model = run.data(site), run.holding(run.model(site))
    members, others = (predict(model, images, scale(data)) for images in (data.labelled, data.test))
    draws = numpy_stream(run.experiment.seed, "membership", site)
    return {
        "loss": attacked(losses(members, data.labels), losses(others, data.test_labels), draws),
        "entropy": attacked(entropies(members), entropies(others), draws),
    }


def rows_of(results: Mapping[tuple[str, str, int], Mapping[str, Any]]) -> list[Row]:
    """Return a row for each method and clip: mean over sites and seeds, accuracy in %."""
    rows: list[Row] = []
    for method, clip in dict.fromkeys((method, clip) for method, clip, _ in results):
        found = [r for (m, c, _), r in results.items() if (m, c) == (method, clip)]
        sites = [attacks for result in found for attacks in result["attacks"].values()]
        row: Cells = {
            "method": method,
            "clip": clip,
            "accuracy_%": round(100 * fmean(result["accuracy"] for result in found), 1),
            "sites": len(sites),
        }
        for attack in ("loss", "entropy"):
            for value in ("advantage", "chance", "auc"):
                every = [site[attack][value] for site in sites]
                row[f"{attack}_{value}"] = round(fmean(every), 3) if every else None
        rows.append(row)
    return rows


def main(
    quick: Quick = False,
    methods: Annotated[str, typer.Option(help="methods")] = ",".join(METHODS),
    seeds: Annotated[str, typer.Option(help="seeds")] = "",
) -> None:
    """Run what has not been run, then record the table."""
    size = QUICK if quick else FULL
    numbers: Sequence[int] = list(map(int, several(seeds))) or size.seeds
    cases = {
        (method, clip, seed): experiment_of(size, method, seed, changes=CLIPS[clip])
        for seed in numbers
        for method in several(methods)
        for clip in CLIPS
    }
    results = kept_runs("membership", size.overrides, cases, lambda _, one: measured(one))
    notes = {
        "setting": [size.preset, *(f"{key}={value}" for key, value in size.overrides.items())],
        "seeds": list(numbers),
        "runs by code": codes(results),
    }
    save("membership", rows_of(results), notes, quick=quick)


if __name__ == "__main__":
    carry_out(main)
