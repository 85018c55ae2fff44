"""What do hostile sites cost the honest ones, and what do robust averages save?

`python -m bench.hostile [--quick|--digits] [--attacks A,...] [--shares S,...] [--methods M,...]
[--seeds N,...] [--jobs 1]`: real images (Fashion-MNIST, 10 sites), one run for each method, attack,
share of hostile sites and seed, and one without hostile sites. Who is hostile depends on the seed
alone; those of a smaller share are among those of a larger one. A method is a preset of
`conf/methods` or um_pfssl, with `+bounded`, `+median` or `+filtered` for `rounds.robust`.

Measured: mean test accuracy of the honest sites, and the points by which it differs from the same
sites' in the run without hostile ones; after the last round (`hostile`), which depends on who was
drawn for it, and as the mean over all rounds after the warm-up (`hostile-rounds`). Rounds that a
run does not come to because too few sites can still answer count as 0 %. Every run's result is
kept, so the same command goes on where it was cut; the tables: docs/results/benchmarks.md.
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
"""Column of FedAvg's runs: the model that a site trained last, `method.answer=tuned`."""


@dataclass(frozen=True)
class Size:
    """The benchmark's size: preset and changes, and what is run unless the command says less.

    rates: learning rate of UM-pFSSL and of the others; None: as the preset says.
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
    """One run. share: of sites that are hostile, in [0, 1)."""

    method: str
    attack: str
    share: float
    seed: int

    @property
    def name(self) -> str:
        """What its result is called."""
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
    """Return which of the sites are hostile, a share of them rounded to the nearest."""
    order = numpy_stream(seed, "hostile").permutation(sites)
    return frozenset(order[: round(share * sites)].tolist())


def measured(size: Size, case: Case) -> dict[str, Any]:
    """Run once. Return each round's accuracies by part and site, and why the run ended early."""
    with TemporaryDirectory() as out:
        experiment = experiment_of(size, case.method, case.seed, out)
        federation = federation_of(experiment)
        hostile = hostile_sites(case.share, case.seed, experiment.split.num_clients)
        if case.attack == "labels":
            federation = mislabelled(federation, hostile)
        heard: dict[int, dict[int, dict[str, float]]] = {}
        wrap = partial(Hostile, sites=hostile, attack=case.attack, seed=case.seed, heard=heard)
        ended = ""
        try:
            carried_through(experiment, wrap, federation)
        except RunError as error:
            ended = str(error)
    rounds = course(heard, experiment.rounds.num_rounds)
    return {"case": case.name, "rounds": rounds, "ended": ended, "code": code_hash()[1]}


def course(
    heard: Mapping[int, Mapping[int, Mapping[str, float]]], last: int
) -> list[dict[str, dict[str, float]]]:
    """Return what sites would use after rounds 0 to `last`: accuracy by part and site.

    A site's measure stays until it measures again. Rounds that were not come to are empty.
    """
    now: dict[str, dict[str, float]] = {}
    rounds = []
    for number in range(last + 1):
        for site, parts in heard.get(number, {}).items():
            for part, found in parts.items():
                now.setdefault(part, {})[str(site)] = found
        rounds.append({part: dict(every) for part, every in now.items()} if number in heard else {})
    return rounds


def done(size: Size, folder: Path, case: Case) -> dict[str, Any]:
    """Return the case's result, from its file where it was run before."""
    return kept(folder / f"{case.name}.json", partial(measured, size, case))


def accuracy(result: Mapping[str, Any], part: str, sites: Collection[int], last: bool) -> float:
    """Return the mean accuracy in % of these sites after the last round, or over rounds from 1."""
    every = []
    for parts in result["rounds"][-1:] if last else result["rounds"][1:]:
        found = [a for site, a in parts.get(part, {}).items() if int(site) in sites]
        every.append(100 * fmean(found) if found else 0.0)
    return fmean(every)


def rows_of(
    results: Mapping[Case, Mapping[str, Any]], methods: Sequence[str], sites: int, last: bool
) -> list[Row]:
    """Return a row for each attack and share: the honest sites' accuracy in %, mean over seeds.

    In brackets: how many points that is above (+) or below (-) the run without hostile sites.
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
