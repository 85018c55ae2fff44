"""How much do hostile sites cost the honest ones, and how much do robust averages save?

`python -m bench.hostile [--quick|--digits] [--attacks A,...] [--shares S,...] [--methods M,...]
[--seeds N,...] [--jobs 1]`: real images (Fashion-MNIST, 10 sites), one run for each method, attack,
share of hostile sites and seed, and one without hostile sites. The seed decides which sites are
hostile; those of a smaller share are among those of a larger one. A method is a preset of
`conf/methods`, with `+bounded`, `+median` or `+filtered` for `rounds.robust`.

Measured are the mean test accuracy of the honest sites, and its difference in points from the same
sites in the run without hostile ones: after the last round (`hostile`), which depends on the cohort
of that round, and as the mean over all rounds after the warm-up (`hostile-rounds`). Rounds that a
run does not reach, because too few sites can still answer, count as 0 %. The result of every run is
kept, so that the same command continues where it was cut. The tables are in
docs/results/benchmarks.md.
"""

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Annotated, Any

import typer

from bench.attacks import ATTACKS, NOBODY, Hostile, mislabelled
from bench.command import Quick, carry_out, several
from bench.record import Cells, Row, save
from bench.runs import carried_through, kept
from fedapp.core.errors import RunError
from fedapp.core.rng import numpy_stream
from fedapp.experiment.code_hash import code_hash
from fedapp.experiment.config import load_experiment
from fedapp.experiment.experiment import Experiment
from fedapp.experiment.preset_files import Scalar
from fedapp.experiment.run_folder import out_root
from fedapp.site.federation import federation_of

TUNED = "fedavg, own model"
"""Column of FedAvg's runs for the model that each site trained last (`method.answer=tuned`)."""


@dataclass(frozen=True)
class Size:
    """The size of the benchmark: a preset with overrides, and what is run by default.

    rates: learning rate of UM-pFSSL, and of the other methods; None: the preset's.
    """

    preset: str
    overrides: Mapping[str, Scalar]
    rates: tuple[float, float] | None
    attacks: tuple[str, ...] = ("sign", "random", "scaled", "labels", "one_class", "old")
    shares: tuple[float, ...] = (0.1, 0.3, 0.4)
    methods: tuple[str, ...] = (
        "fedavg",
        "um_pfssl",
        "recommended",
        "recommended+median",
        "recommended+filtered",
    )
    seeds: tuple[int, ...] = (60, 61, 62)


STUDY: Mapping[str, Scalar] = {
    "data.image_size": 14,
    "data.subset": 4000,
    "split.num_clients": 10,
    "training.warmup_epochs": 20,
    "training.local_steps": 25,
    "training.augment": "weak",
    "rounds.num_rounds": 10,
}
"""As in the sweep results_fashion_mnist."""
FULL = Size(
    "fashion_mnist_small",
    {**STUDY, "runtime.device": "cpu"},
    (0.01, 0.03),
)
DIGITS = Size(
    "digits_demo",
    {
        "data.subset": 1500,
        "model.width": 4,
        "training.warmup_epochs": 6,
        "training.local_epochs": 2,
        "rounds.num_rounds": 5,
        "runtime.device": "cpu",
    },
    None,
    ("scaled", "x1e3", "x1e6", "x1e30"),
    (0.1, 0.3),
    ("fedavg", "recommended"),
    (70,),
)
QUICK = Size(
    "digits_demo",
    {
        "data.subset": 400,
        "split.num_clients": 4,
        "model.width": 2,
        "training.local_epochs": 1,
        "training.warmup_epochs": 1,
        "training.warmup_rounds": 1,
        "rounds.num_rounds": 1,
        "runtime.device": "cpu",
    },
    None,
    ("sign", "labels"),
    (0.25,),
    ("fedavg", "recommended+filtered"),
    (0,),
)


@dataclass(frozen=True)
class Case:
    """One run. share: of hostile sites, in [0, 1)."""

    method: str
    attack: str
    share: float
    seed: int

    @property
    def name(self) -> str:
        """Name of the file with its result."""
        return f"{self.method}-{self.attack}-{self.share:g}-{self.seed}"

    @property
    def reference(self) -> "Case":
        """The same run without hostile sites."""
        return Case(self.method, NOBODY, 0.0, self.seed)


def experiment_of(
    size: Size,
    method: str,
    seed: int,
    out: Path | str = "",
    changes: Mapping[str, Scalar] = MappingProxyType({}),
) -> Experiment:
    """Return the experiment of a method, such as recommended+median, with these changes."""
    preset, _, rule = method.partition("+")
    own: dict[str, Scalar] = {"method.preset": preset, "seed": seed, "runtime.out": str(out)}
    if rule:
        own["rounds.robust"] = rule
    if size.rates:
        own["training.learning_rate"] = size.rates[preset != "um_pfssl"]
    return load_experiment(size.preset, {**size.overrides, **own, **changes})


def hostile_sites(share: float, seed: int, sites: int) -> frozenset[int]:
    """Return the hostile ones of `sites` sites; their number is rounded."""
    order = numpy_stream(seed, "hostile").permutation(sites)
    return frozenset(order[: round(share * sites)].tolist())


def measured(size: Size, case: Case) -> dict[str, Any]:
    """Run once; return each round's accuracies by part and site, and why the run ended early."""
    with TemporaryDirectory() as out:
        experiment = experiment_of(size, case.method, case.seed, out)
        federation = federation_of(experiment)
        hostile = hostile_sites(case.share, case.seed, experiment.split.num_clients)
        if case.attack == "labels":
            federation = mislabelled(federation, hostile)
        found: dict[int, dict[int, dict[str, float]]] = {}
        wrap = partial(Hostile, sites=hostile, attack=case.attack, seed=case.seed, accuracies=found)
        ended = ""
        try:
            carried_through(experiment, wrap, federation)
        except RunError as error:
            ended = str(error)
    rounds = course(found, experiment.rounds.num_rounds)
    return {"case": case.name, "rounds": rounds, "ended": ended, "code": code_hash()[1]}


def course(
    accuracies: Mapping[int, Mapping[int, Mapping[str, float]]], last: int
) -> list[dict[str, dict[str, float]]]:
    """Return the accuracy of the models in use after rounds 0 to `last`, by part and site.

    A site's accuracy stays until it measures again. Rounds that the run did not reach are empty.
    """
    now: dict[str, dict[str, float]] = {}
    rounds = []
    for number in range(last + 1):
        for site, parts in accuracies.get(number, {}).items():
            for part, found in parts.items():
                now.setdefault(part, {})[str(site)] = found
        rounds.append(
            {part: dict(every) for part, every in now.items()} if number in accuracies else {}
        )
    return rounds


def done(size: Size, folder: Path, case: Case) -> dict[str, Any]:
    """Return the result of a case, from its file if it was run before."""
    return kept(folder / f"{case.name}.json", partial(measured, size, case))


def accuracy(result: Mapping[str, Any], part: str, sites: Collection[int], last: bool) -> float:
    """Return the mean accuracy of these sites in %, after the last round or over rounds from 1."""
    every = []
    for parts in result["rounds"][-1:] if last else result["rounds"][1:]:
        found = [a for site, a in parts.get(part, {}).items() if int(site) in sites]
        every.append(100 * fmean(found) if found else 0.0)
    return fmean(every)


def rows_of(
    results: Mapping[Case, Mapping[str, Any]], methods: Sequence[str], sites: int, last: bool
) -> list[Row]:
    """Return a row for each attack and share: the honest sites' accuracy in %, mean over seeds.

    The difference from the run without hostile sites follows in brackets, in points.
    """
    columns = {method: (method, "test") for method in methods}
    if "fedavg" in methods:
        columns[TUNED] = ("fedavg", "test_tuned")
    rows: list[Row] = []
    for attack, share in dict.fromkeys((case.attack, case.share) for case in results):
        row: Cells = {"attack": attack, "share": share}
        for column, (method, part) in columns.items():
            found, changes = [], []
            for case, result in results.items():
                if (case.method, case.attack, case.share) != (method, attack, share):
                    continue
                hostile = hostile_sites(share, case.seed, sites)
                honest = set(range(sites)) - hostile
                found.append(accuracy(result, part, honest, last))
                before = accuracy(results[case.reference], part, honest, last)
                changes.append(found[-1] - before)
            change = "" if attack == NOBODY else f" ({fmean(changes):+.1f})"
            row[column] = f"{fmean(found):.1f}{change}"
        rows.append(row)
    return rows


def main(
    quick: Quick = False,
    attacks: Annotated[str, typer.Option(help=" ".join(ATTACKS))] = "",
    shares: Annotated[str, typer.Option(help="shares of hostile sites")] = "",
    methods: Annotated[str, typer.Option(help="such as fedavg,recommended+median")] = "",
    seeds: Annotated[str, typer.Option(help="seeds")] = "",
    digits: Annotated[bool, typer.Option("--digits", help="handwritten digits, minutes")] = False,
    jobs: Annotated[int, typer.Option(min=1, help="runs at a time, a process each")] = 1,
) -> None:
    """Run what has not been run, then record the table."""
    size = QUICK if quick else DIGITS if digits else FULL
    names, labels = several(attacks) or size.attacks, several(methods) or size.methods
    parts = list(map(float, several(shares))) or size.shares
    numbers = list(map(int, several(seeds))) or size.seeds
    if unknown := [name for name in names if name not in ATTACKS]:
        raise typer.BadParameter(f"no attack {unknown[0]}; there are {', '.join(ATTACKS)}")
    first = experiment_of(size, labels[0], numbers[0])
    cases = [Case(m, NOBODY, 0.0, seed) for seed in numbers for m in labels]
    cases += [
        Case(m, attack, share, seed)
        for seed in numbers
        for share in parts
        for attack in names
        for m in labels
    ]
    folder = out_root(first) / f"bench-hostile-{size.preset}"
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        found = list(pool.map(partial(done, size, folder), cases))
    results = dict(zip(cases, found, strict=True))
    notes = {
        "setting": [size.preset, *(f"{key}={value}" for key, value in size.overrides.items())],
        "learning rate of UM-pFSSL, of the others": size.rates,
        "seeds": list(numbers),
        "runs by code": sorted({result["code"] for result in found}),
        "runs that came to an early end": [r["case"] for r in found if r["ended"]] or "none",
    }
    clients = first.split.num_clients
    save("hostile-rounds", rows_of(results, labels, clients, last=False), notes, quick=quick)
    save("hostile", rows_of(results, labels, clients, last=True), notes, quick=quick)


if __name__ == "__main__":
    carry_out(main)
