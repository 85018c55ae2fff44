"""Do thresholds of each class (FlexProtoFSSL) hold where classes are as uneven as in SVHN?

`python -m bench.thresholds [--seeds 2] [--quick] [key=value ...]` runs `flexproto` on MNIST made
like SVHN (`bench.street_numbers`) with two rules for which of the helpers' answers pass: the
paper's, and one threshold for all classes (`method.cap`). In each task of the second half of the
rounds it is counted, by an image's true class, how many images get a target, and how many of these
the right one (hidden labels, through the audit).

Written to bench/results/thresholds.json, in %: accuracy after the last round, mean over sites; of
all unlabelled images and of the most and the least frequent digit's, `used`: those with a target,
and `right`: of those, with the right one; mean T of these digits. Mean and standard deviation over
seeds. A run that is done is not done again.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, ClassVar

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from bench.command import Overrides, Quick, Seeds, carry_out
from bench.measure import spread
from bench.record import Cells, Row, save
from bench.runs import finished, kept_runs
from fedapp.experiment.config import load_experiment, parse_overrides
from fedapp.experiment.experiment import Experiment
from fedapp.experiment.presetfiles import Scalar
from fedapp.ground.settings import CLOSED
from fedapp.learn.prototypes import Prototypes, embedded, log_answers, pseudo_labels
from fedapp.messages.protocol import Task
from fedapp.methods import give
from fedapp.methods.base import SiteContext
from fedapp.methods.prototypes._episodes import Teaching
from fedapp.methods.prototypes.flexproto import FlexProto

DATA = {"rare": "digits as often as in SVHN", "crowded": "parts of others beside them too"}
TOY = {"data.subset": 600, "split.num_clients": 4, "model.width": 2, "rounds.num_rounds": 2}
DIGITS: dict[str, tuple[int, ...]] = {"all": tuple(range(10)), "1s": (1,), "9s": (9,)}
"""1 is the most frequent, 9 the least."""


@dataclass(frozen=True, kw_only=True, config=CLOSED)
class Counted(FlexProto):
    """FlexProtoFSSL that writes down what its sites are taught."""

    name: ClassVar[str] = "counted_flexible"
    told: ClassVar[list[tuple[int, Tensor]]] = []
    """Of each task: its round; by true class, images, those used, those right, and T: [4, C]."""

    def teaching(self, task: Task, site: SiteContext) -> Teaching | None:
        """The method's, written down."""
        found = super().teaching(task, site)
        if found is not None:
            embeddings = embedded(site.model, site.data.unlabelled, site.normalise)
            answers = log_answers(embeddings, found.prototypes, self.distance).exp()
            targets, used = pseudo_labels(answers, found.thresholds, self.temperature)
            self.told.append((task.round, by_class(targets, used, found.thresholds, site)))
        return found


@dataclass(frozen=True, kw_only=True, config=CLOSED)
class CountedFixed(Counted):
    """The same with one threshold for all classes."""

    name: ClassVar[str] = "counted_fixed"

    def thresholds(self, lent: Prototypes, site: SiteContext) -> Tensor:
        """tau, whatever the class."""
        return torch.full(lent.centres.shape[1:2], self.cap)


RULES: dict[str, type[Counted]] = {
    "a threshold for each class": Counted,
    "one threshold": CountedFixed,
}


def experiment_of(data: str, rule: str, seed: int, overrides: Mapping[str, Scalar]) -> Experiment:
    """Return FlexProtoFSSL's small setting on these data, 50 labelled images and 300 at a site."""
    fixed: dict[str, Scalar] = {
        "data.name": f"bench.street_numbers:{data}",
        "data.subset": 5000,
        "split.num_clients": 10,
        "split.label_share": 1 / 7,
        "rounds.sample_rate": 0.5,
        "rounds.num_rounds": 24,
        "runtime.device": "cpu",
        "runtime.models": False,
        "method.name": give(RULES[rule]),
        "seed": seed,
    }
    return load_experiment("flexproto_small", {**fixed, **overrides})


def by_class(targets: Tensor, used: Tensor, limits: Tensor, site: SiteContext) -> Tensor:
    """Return images, those with a target, those with the right one, and T, by class: [4, C]."""
    audit, taught = site.data.audit, targets.argmax(1)
    assert audit is not None
    rows = []
    for label in range(len(limits)):
        groups = (torch.ones_like(used), used, used & (taught == label))
        found = []
        for group in groups:
            places = group.nonzero().flatten()
            wrong, total = audit.pseudo_label_errors(torch.full_like(places, label), places)
            found.append(total - wrong)
        rows.append([*found, float(limits[label])])
    return torch.tensor(rows).T


def measured(experiment: Experiment) -> dict[str, Any]:
    """Run once; return the accuracy and what was counted in the second half of the rounds."""
    Counted.told.clear()
    with finished(experiment) as run:
        final = run.summary["mean_test_accuracy"]["final"]
    half = experiment.rounds.num_rounds // 2
    late = [counts for number, counts in Counted.told if number > half]
    total = torch.stack(late).sum(0)
    return {
        "accuracy": 100 * final,
        "images": total[0].tolist(),
        "used": total[1].tolist(),
        "right": total[2].tolist(),
        "T": (total[3] / len(late)).tolist(),
    }


def rows_of(results: Mapping[tuple[str, str, int], Mapping[str, Any]]) -> list[Row]:
    """Return a row for each data set and rule. results: by data set, rule and seed."""
    rows: list[Row] = []
    for data, rule in dict.fromkeys((data, rule) for data, rule, _ in results):
        runs = [r for (d, which, _), r in results.items() if (d, which) == (data, rule)]
        row: Cells = {"data": DATA[data], "passes": rule}
        row["accuracy"] = spread([run["accuracy"] for run in runs])
        for name, digits in DIGITS.items():
            for key, of in (("used", "images"), ("right", "used")):
                shares = [share(run[key], run[of], digits) for run in runs]
                row[f"{key}, {name}"] = spread([one for one in shares if one is not None])
        row["T of 1s, 9s"] = ", ".join(f"{fmean(r['T'][d] for r in runs):.2f}" for d in (1, 9))
        rows.append(row)
    return rows


def share(part: Sequence[float], whole: Sequence[float], digits: Sequence[int]) -> float | None:
    """Return how many % these digits' part is of their whole; None of nothing."""
    total = sum(whole[digit] for digit in digits)
    return 100 * sum(part[digit] for digit in digits) / total if total else None


def main(overrides: Overrides = None, seeds: Seeds = 2, quick: Quick = False) -> None:
    """Run what has not been run, then record the table."""
    given = {**(TOY if quick else {}), **parse_overrides(overrides or [])}
    cases = {
        (data, rule, seed): experiment_of(data, rule, seed, given)
        for seed in range(seeds)
        for data in DATA
        for rule in RULES
    }
    results = kept_runs("thresholds", given, cases, lambda _, one: measured(one))
    every = {"/".join(map(str, case)): result for case, result in results.items()}
    save("thresholds", rows_of(results), {"by digit": every}, quick=quick)


if __name__ == "__main__":
    carry_out(main)
