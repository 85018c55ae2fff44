"""Who labels a site's images in UM-pFSSL, and what it costs: docs/results/why_um_pfssl.md.

    python -m bench.pseudo_labels [--quick] [--settings base] [--methods um_pfssl,own] [--seeds 740]

Runs the two grids of conf/sweeps/why_um_pfssl.yaml, one run at a time in this
process, on one core; `fedapp compare why_um_pfssl` has the same numbers. Beside each run it notes
for each training whose answers became pseudo-labels and how many were wrong, which a simulation
can tell. Four more rules for labels are here and not in the program. Runs of UM-pFSSL with one seed
and rate share their warm-up, which is the same. A run that was made is kept: the same command goes
on where it was cut.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from importlib import import_module
from itertools import product
from pathlib import Path
from statistics import fmean
from time import process_time
from typing import Annotated, Any, ClassVar, Literal

import torch
import typer
from pydantic.dataclasses import dataclass
from torch import Tensor

from bench.command import Quick, carry_out, several
from bench.gain import by_seed
from bench.record import Cells, Row, save
from bench.runs import codes, finished, kept_before, kept_runs
from fedapp.core.settings import CLOSED
from fedapp.experiment.config import load_experiment
from fedapp.experiment.experiment import Experiment
from fedapp.experiment.preset_files import Scalar
from fedapp.methods.base import SiteContext, SiteReport
from fedapp.methods.um_pfssl.method import UmPfssl
from fedapp.methods.um_pfssl.relation import least_uncertain, most_informative
from fedapp.protocol.messages import ScoredRef, Task
from fedapp.reports.statistics import Difference, Mean, mean_sd, paired_difference
from fedapp.tools.compare.grid import read_grid

GRIDS = "why_um_pfssl", "why_um_pfssl_settings"
VARIANTS = "published", "mutual_information"
WATCHED = "bench.pseudo_labels:Watched"
MANY = 8
"""Classes that a helper must have labels of, for the rule `wide`."""
RULES = {
    "own": "each site's own answers",
    "mean": "the mean of the list's answers",
    "relation": "the same, weighted by relation",
    "wide": f"Eq. 11 among helpers with labels of {MANY} classes or more",
}
"""Rules for labels that the program does not have, with the published relation."""
QUICK: Mapping[str, Scalar] = {
    "data.subset": 600,
    "split.num_clients": 4,
    "model.width": 2,
    "training.local_steps": 1,
    "rounds.num_rounds": 2,
}

KEPT = "pseudo_labels"
"""Begins the name of the folder with the results of single runs."""
BASE, ALONE = "base", "local_only"
COMPARED = "um_pfssl", "um_pfssl_mi_labels"
ITSELF, SEVERAL = -1, 0
"""In the place of a helper's number of classes."""

EARLIER = {
    "second_fashion_mnist": ("alpha=0.5",),
    "results_fashion_mnist": ("alpha=0.1", "alpha=0.5", "alpha=5"),
    "results_cifar10": ("alpha=0.5", "alpha=5"),
}
"""Settings of studies in docs/results with both kinds of UM-pFSSL or more."""
WARM_UP, WRONG = "warmup_test_accuracy", "pseudo_label_error"

Case = tuple[str, str, int]
"""Setting, method, seed."""
Results = Mapping[Case, Mapping[str, Any]]
"""What `measured` returned."""

_trainings: list[dict[str, Any]] = []
"""Of this run: round, site, by the site whose answers became labels (how many, wrong), and how many
would be wrong by each rule."""
_classes: dict[int, int] = {}
"""How many classes each site of this run has labels of: no site knows this of another."""
_at_work: dict[str, Any] = {}
"""The site that trains now, its pseudo-labels, whose they are, and those of each rule."""
_warmed_up: dict[tuple[Any, ...], SiteReport] = {}
"""Warm-ups of this process."""


@dataclass(frozen=True, config=CLOSED)
class Watched(UmPfssl):
    """UM-pFSSL that notes whose answers became labels."""

    name: ClassVar[str] = WATCHED
    rule: Literal["", "own", "mean", "relation", "wide"] = ""
    """How labels are chosen; empty: by `label_variant`."""

    def site_round(self, task: Task, site: SiteContext) -> SiteReport:
        """Do the site's part; a warm-up that was made before is taken from there."""
        data = site.data
        _classes[data.site] = len(data.labels.unique())
        if task.action != "warmup":
            return super().site_round(task, site)
        key = (site.seed, data.fingerprint, task.own.digest, site.training, site.model.dropout.p)
        if key not in _warmed_up:
            _warmed_up[key] = super().site_round(task, site)
        return _warmed_up[key]

    def pseudo_label(
        self, members: Sequence[ScoredRef], answers: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Choose labels by the rule, and note whose they are: -1 where no single helper's."""
        every = {rule: self.by_rule(rule, members, answers) for rule in (*VARIANTS, *RULES)}
        soft, chosen = every[self.rule or self.label_variant]
        sites = torch.tensor([*(member.model.site for member in members), -1])
        said = {rule: soft.argmax(1) for rule, (soft, _) in every.items()}
        _at_work.update(chosen=soft.argmax(1), whose=sites[chosen], said=said)
        return soft, chosen

    def by_rule(
        self, rule: str, members: Sequence[ScoredRef], answers: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Return what `pseudo_label` returns, by one of the rules."""
        if rule == "published":
            return least_uncertain(answers)
        if rule == "mutual_information":
            return most_informative(answers)
        if rule == "wide":
            wide = [i for i, m in enumerate(members) if _classes[m.model.site] >= MANY]
            among = wide or [*range(len(members))]
            soft, place = least_uncertain([answers[i] for i in among])
            return soft, torch.tensor(among)[place]
        given = [_weight(rule, member) for member in members]
        weights = torch.tensor(given if any(given) else [1.0] * len(given)).to(answers[0])
        soft = torch.einsum("m,mnc->nc", weights / weights.sum(), torch.stack([*answers]))
        return soft, torch.full((len(soft),), -1)

    def _train(self, task: Task, site: SiteContext, helpers: tuple[ScoredRef, ...]) -> SiteReport:
        _at_work.clear()
        _at_work["site"] = task.site
        report = super()._train(task, site, helpers)
        if "whose" in _at_work and (audit := site.data.audit) is not None:
            chosen, whose, by = _at_work["chosen"], _at_work["whose"], {}
            for one in whose.unique().tolist():
                at = torch.where(whose == one)[0]
                by[one] = [len(at), audit.pseudo_label_errors(chosen[at], at)[0]]
            rules = {r: audit.pseudo_label_errors(x)[0] for r, x in _at_work["said"].items()}
            _trainings.append({"round": task.round, "site": task.site, "by": by, "rules": rules})
        return report


def _weight(rule: str, member: ScoredRef) -> float:
    if rule == "own":
        return float(member.model.site == _at_work["site"])
    return member.score if rule == "relation" else 1.0


def measured(experiment: Experiment) -> dict[str, Any]:
    """Run once; return accuracies by round in %, the trainings, and seconds of the processor."""
    _trainings.clear()
    _classes.clear()
    began = process_time()
    with finished(experiment) as run:
        rounds = accuracies(run.folder.path)
    return {
        "rounds": rounds,
        "trainings": list(_trainings),
        "classes": dict(_classes),
        "seconds": process_time() - began,
    }


def accuracies(folder: Path) -> list[float]:
    """Return a run's mean test accuracy after each round, in %, the warm-up first."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [100 * json.loads(line)["mean_test_accuracy"] for line in lines]


def watched(preset: str, overrides: Mapping[str, Scalar], rule: str = "") -> Experiment:
    """Return an experiment; UM-pFSSL's as one that is watched, with the same settings."""
    plain = load_experiment(preset, overrides)
    if not isinstance(plain.method, UmPfssl):
        return plain
    fields = {f"method.{key}": value for key, value in asdict(plain.method).items()}
    others = {key: value for key, value in overrides.items() if not key.startswith("method.")}
    named: dict[str, Scalar] = {"method.name": WATCHED, "method.rule": rule}
    return load_experiment(preset, {**others, **fields, **named})


def cases(
    settings: Sequence[str],
    methods: Sequence[str],
    seeds: Sequence[int],
    given: Mapping[str, Scalar],
) -> dict[Case, Experiment]:
    """Return the runs, seed by seed; where nothing is named, all of the grids and rules."""
    found: dict[Case, Experiment] = {}
    for name in GRIDS:
        grid = read_grid(name)
        rules = [*RULES] if name == GRIDS[0] else []
        for setting in [one for one in grid.settings if one.name in settings or not settings]:
            for seed, method in product(seeds or grid.seeds, (*grid.methods, *rules)):
                if method in methods or not methods:
                    rule = method if method in rules else ""
                    of = "um_pfssl" if rule else method
                    overrides = {**grid.overrides(setting, of), **given, "seed": seed}
                    found[setting.name, method, seed] = watched(setting.preset, overrides, rule)
    return found


def rows(results: Results) -> list[Row]:
    """Return a row for each setting and method: the last round, and over alone, paired by seed."""
    made: list[Row] = []
    for setting, method in dict.fromkeys((s, m) for s, m, _ in results):
        of = _by_seed(results, setting, method)
        last = {seed: one["rounds"][-1] for seed, one in of.items()}
        alone = {s: one["rounds"][-1] for s, one in _by_seed(results, setting, ALONE).items()}
        gain = None if method == ALONE else paired_difference(last, alone)
        labels = [one for result in of.values() for one in labelled_by(result)]
        wrong = _share((w for *_, w in labels), (n for _, n, _ in labels))
        peers = [(known * n, n) for known, n, _ in labels if known > 0]
        made.append(
            {
                "setting": setting,
                "method": method,
                "last round, %": _with_sd(mean_sd(last.values())),
                "less alone": _with_interval(gain),
                "warm-up": f"{fmean(one['rounds'][0] for one in of.values()):.1f}",
                "best round": f"{fmean(max(one['rounds']) for one in of.values()):.1f}",
                "wrong labels, %": f"{100 * wrong:.0f}" if labels else "",
                "classes of the helper": f"{_share(*zip(*peers, strict=True)):.1f}"
                if peers
                else "",
                "seeds": len(of),
                "seconds": round(fmean(one["seconds"] for one in of.values())),
            }
        )
    return made


def labelled_by(result: Mapping[str, Any]) -> list[tuple[int, int, int]]:
    """Return (classes that a helper has labels of, its labels, wrong ones) for each training.

    Classes are `ITSELF` for labels that the site gives itself, `SEVERAL` for those of several.
    """
    known = {int(site): count for site, count in result["classes"].items()}
    return [
        (ITSELF if int(by) == training["site"] else known.get(int(by), SEVERAL), many, wrong)
        for training in result["trainings"]
        for by, (many, wrong) in training["by"].items()
    ]


def by_rule(results: Results) -> list[Row]:
    """Return a row for each rule: its wrong labels, %, of the answers in the published runs."""
    every = [one["trainings"] for one in _by_seed(results, BASE, "um_pfssl").values()]
    first = [[one for one in trainings if one["round"] == 1] for trainings in every]
    made: list[Row] = []
    for rule in (*VARIANTS, *RULES):
        row: Cells = {"whose answer": RULES.get(rule, rule)}
        for name, of in (("first round", first), ("all rounds", every)):
            shares = [_share((t["rules"][rule] for t in one), map(count_of, one)) for one in of]
            row[f"{name}: wrong, %"] = _with_sd(mean_sd(100 * share for share in shares))
        made.append({**row, "seeds": len(every)})
    return made


def count_of(training: Mapping[str, Any]) -> int:
    """Return how many images were labelled in a training."""
    return sum(many for many, _ in training["by"].values())


def earlier() -> list[Row]:
    """Return a row for each setting of earlier studies, on seeds that were seen: the last round."""
    made: list[Row] = []
    for study, settings in EARLIER.items():
        for setting in settings:
            row: Cells = {"study": study, "setting": setting}
            for method in (ALONE, "um_pfssl", "um_pfssl_mi", "um_pfssl_mi_labels"):
                row[method] = _with_sd(mean_sd(by_seed(study, setting, method).values()))
            for name, column in (("warm-up", WARM_UP), ("wrong labels, %", WRONG)):
                found = mean_sd(by_seed(study, setting, "um_pfssl", column).values())
                row[f"published: {name}"] = f"{found.value:.1f}" if found else ""
            made.append({**row, "seeds": len(by_seed(study, setting, ALONE))})
    return made


def by_classes(results: Results) -> list[Row]:
    """Return a row for each number of classes of the helper: its labels, and wrong ones, %."""
    made: dict[int, Cells] = {}
    for method in COMPARED:
        of = [p for one in _by_seed(results, BASE, method).values() for p in labelled_by(one)]
        every = sum(many for _, many, _ in of)
        for classes in sorted({known for known, *_ in of}):
            many, wrong = map(sum, zip(*((n, w) for c, n, w in of if c == classes), strict=True))
            name = "the site itself" if classes == ITSELF else classes
            row = made.setdefault(classes, {"classes of the helper": name})
            row[f"{method}: labels, %"] = f"{100 * many / every:.0f}"
            row[f"{method}: wrong, %"] = f"{100 * wrong / max(many, 1):.0f}"
    return [made[classes] for classes in sorted(made)]


def _share(parts: Iterable[int], of: Iterable[int]) -> float:
    return sum(parts) / max(sum(of), 1)


def _by_seed(results: Results, setting: str, method: str) -> dict[int, Mapping[str, Any]]:
    return {seed: found for (s, m, seed), found in results.items() if (s, m) == (setting, method)}


def _with_sd(found: Mean | None) -> str:
    if found is None:
        return ""
    return f"{found.value:.1f}" + ("" if found.sd is None else f" ± {found.sd:.1f}")


def _with_interval(found: Difference | None) -> str:
    if found is None:
        return ""
    spread = "" if found.low is None else f" ({found.low:.1f} to {found.high:.1f})"
    return f"{found.value:+.1f}{spread}"


def main(
    quick: Quick = False,
    settings: Annotated[str, typer.Option(help="of the grids, such as base; empty: all")] = "",
    methods: Annotated[str, typer.Option(help="of the grids, or rules; empty: all")] = "",
    seeds: Annotated[str, typer.Option(help="empty: the grids'")] = "",
    done: Annotated[bool, typer.Option("--done", help="only the table of what was run")] = False,
) -> None:
    """Run what has not been run, then record the tables of all that was."""
    given = QUICK if quick else {}
    numbers = [int(seed) for seed in several(seeds)]
    chosen = cases(several(settings), several(methods), numbers, given)
    if not done:
        kept_runs(KEPT, given, chosen, lambda case, one: measured(one))
    kept = kept_before(KEPT, given, next(iter(chosen.values())))
    results = {(s, m, int(seed)): found for (s, m, seed), found in kept.items()}
    listed = {case: results[case] for case in chosen if case in results}
    notes = {"seeds": sorted({seed for *_, seed in listed}), "runs by code": codes(listed)}
    save("pseudo-labels-earlier", earlier(), quick=quick)
    save("pseudo-labels-by-rule", by_rule(listed), notes, quick=quick)
    save("pseudo-labels", rows(listed), notes, quick=quick)
    save("pseudo-labels-by-classes", by_classes(listed), notes, quick=quick)


if __name__ == "__main__":
    # Of the module in which the method is found, and which notes: this one has another name.
    carry_out(import_module("bench.pseudo_labels").main)
