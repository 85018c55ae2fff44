"""What does a hospital gain that joins a finished federation, all its labels hidden?

`python -m bench.onboarding [--quick] [--seeds 3] [--minutes 5]` trains, for each seed, two
federations of which the same sites are no part: one by UM-pFSSL, one by the recommended method.
Then each of those sites is onboarded (`fedapp onboard`) with no label in its training data: onto
the first with either label variant, from the same peers, and onto the second. What it answers with,
round by round, stands beside what it could have had. From peers: its helpers' mean before training,
the peer that the relation ranks first, the mean over peers, the plain average of all weights, the
ensemble, and the best single peer by the test images themselves, which nobody can know. From the
common model: that model as it is, its answer times the site's class mix, and the model tuned.

Work goes on where an earlier call stopped; `--minutes` ends a call between two pieces of it.
"""

import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from shutil import rmtree
from statistics import fmean, stdev
from typing import Annotated, Any

import numpy as np
import typer
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from bench.command import Quick, Seeds, carry_out
from bench.measure import spread
from bench.record import Cells, Row, save
from bench.runs import carried_through
from fedapp.data.manifest import TEST, TRAIN, Manifest
from fedapp.experiment.config import load_experiment
from fedapp.experiment.experiment import Experiment
from fedapp.experiment.presetfiles import Scalar
from fedapp.experiment.runfolder import RunFolder
from fedapp.experiment.runpaths import out_root
from fedapp.ground.progress import Progress
from fedapp.ground.rng import numpy_stream
from fedapp.methods.um_pfssl.method import UmPfssl
from fedapp.server.peers import finished_run
from fedapp.site.federation import federation_of
from fedapp.tools.onboard.plan import NewSite, plan_for
from fedapp.tools.onboard.run import RESULT, onboard

RECOMMENDED = "recommended"
VARIANTS = ("published", "mutual_information", RECOMMENDED)
"""UM-pFSSL's two ways to label images, and the recommended method."""
LEAST_TEST_IMAGES = 50
"""A site with fewer is not left out: its accuracy would be mostly chance."""
BESIDE = {
    "untrained": "its helpers' mean in the last round, before training",
    "first": "peer that the relation ranks first",
    "mean_peer": "mean over single peers",
    "average": "plain average of all peers' weights",
    "ensemble": "ensemble of all peers",
    "best_peer": "best single peer (by the test images)",
    "common": "common model times the site's class mix, no training",
    "common_as_is": "common model as it is",
    "tuned": "common model tuned at the site, times its class mix",
}


@dataclass(frozen=True)
class Size:
    """The benchmark's size: preset and changes, sites left out of a federation, rounds, seeds.

    recommended: further changes for the federation by the recommended method.
    """

    preset: str
    overrides: Mapping[str, Scalar]
    recommended: Mapping[str, Scalar]
    left_out: int
    rounds: int
    seeds: tuple[int, ...]


FULL = Size(
    "fashion_mnist_small",
    {"runtime.device": "cpu", "rounds.num_rounds": 12},
    {"method.preset": RECOMMENDED, "training.learning_rate": 0.03},
    5,
    5,
    (),
)
QUICK = Size(
    "digits_demo",
    {
        "runtime.device": "cpu",
        "rounds.num_rounds": 2,
        "training.warmup_epochs": 2,
        "method.preset": "um_pfssl",
    },
    {"method.preset": RECOMMENDED},
    1,
    2,
    (0,),
)


@dataclass(frozen=True)
class Trial:
    """One federation and the sites that are no part of it, whose training labels are hidden.

    variants: those in which these are onboarded onto it.
    """

    experiment: Experiment
    left_out: tuple[int, ...]
    variants: tuple[str, ...]

    @property
    def folder(self) -> Path:
        """Its run folder."""
        return out_root(self.experiment) / self.experiment.runtime.run_name

    def done(self, site: int, variant: str) -> Path:
        """Where the result of onboarding a site is, or will be."""
        return self.folder.with_name(f"{self.folder.name}-site-{site}-{variant}") / RESULT


def trials(size: Size) -> Iterator[Trial]:
    """Yield the trials, two a seed on one split, which is saved."""
    for seed in size.seeds:
        whole = load_experiment(size.preset, {**size.overrides, "seed": seed})
        manifest = federation_of(whole).manifest
        assert manifest is not None  # the program splits these data
        left_out = drawn(manifest, size.left_out, seed)
        root = out_root(whole) / f"bench-onboarding-{size.preset}"
        root.mkdir(parents=True, exist_ok=True)
        path = root / f"split-{seed}.safetensors"
        hidden(manifest, left_out).save(path)
        changes = {**size.overrides, **size.recommended, "seed": seed}
        recommended = load_experiment(size.preset, changes)
        for name, experiment, variants in (
            (f"seed-{seed}", whole, VARIANTS[:-1]),
            (f"seed-{seed}-{RECOMMENDED}", recommended, VARIANTS[-1:]),
        ):
            yield Trial(
                replace(
                    experiment,
                    split=replace(experiment.split, manifest=str(path)),
                    runtime=replace(experiment.runtime, out=str(root), run_name=name),
                ),
                left_out,
                variants,
            )


def drawn(manifest: Manifest, count: int, seed: int) -> tuple[int, ...]:
    """Return sites drawn at random of those with enough test images, ascending."""
    tests = np.bincount(manifest.site[manifest.split == TEST], minlength=manifest.num_clients)
    enough = np.flatnonzero(tests >= LEAST_TEST_IMAGES)
    chosen = numpy_stream(seed, "left-out").permutation(enough)[:count]
    return tuple(sorted(chosen.tolist()))


def hidden(manifest: Manifest, sites: Sequence[int]) -> Manifest:
    """Return the split with all training labels of these sites hidden."""
    theirs = np.isin(manifest.site, sites) & (manifest.split == TRAIN)
    return replace(manifest, visible=manifest.visible & ~theirs)


def federate(federation: Trial) -> None:
    """Train the federation without the sites that are left out, or the rest of its rounds."""
    experiment = federation.experiment
    if (federation.folder / "summary.json").exists():
        return
    begun = RunFolder(federation.folder).load_checkpoint() is not None
    if not begun:
        rmtree(federation.folder, ignore_errors=True)
    experiment = replace(experiment, runtime=replace(experiment.runtime, resume=begun))
    sites = [k for k in range(experiment.split.num_clients) if k not in federation.left_out]
    carried_through(experiment, lambda carrier: carrier, only=sites)


def take_in(federation: Trial, site: int, variant: str, rounds: int) -> None:
    """Onboard a site that was left out."""
    done = federation.done(site, variant)
    if done.exists():
        return
    rmtree(done.parent, ignore_errors=True)  # cut by an earlier call: it takes half a minute
    runtime = federation.experiment.runtime
    overrides: dict[str, Scalar] = {
        "runtime.out": runtime.out,
        "runtime.device": runtime.device,
        "runtime.run_name": done.parent.name,
    }
    if variant != RECOMMENDED:
        overrides["method.label_variant"] = variant
    run = finished_run(federation.folder)
    with Progress() as progress:
        onboard(run, plan_for(run, NewSite(number=site), rounds, overrides), progress)


def rows_of(results: Mapping[str, Sequence[Mapping[str, Any]]], rounds: int) -> list[Row]:
    """Return a row for each way to a model: mean and standard deviation over new sites, in %.

    own: what the site answers with. ahead: at how many sites its own answer beats this way at the
    end. gain: own minus this, in points, with the standard error of the mean. A way is left empty
    where a variant lacks it at any site.
    """
    lines: list[tuple[str, Any]] = [
        (f"own model, round {number}", lambda r, n=number: r["accuracy_by_round"][n])
        for number in range(1, rounds + 1)
    ]
    lines += [(label, lambda r, k=key: r["accuracy"].get(k)) for key, label in BESIDE.items()]
    table: list[Row] = []
    for label, value in lines:
        row: Cells = {"model": label}
        for variant, every in results.items():
            measured = [value(result) for result in every]
            if None in measured:
                continue
            found = [100 * accuracy for accuracy in measured]
            gains = [100 * r["accuracy"]["own"] - f for r, f in zip(every, found, strict=True)]
            row[variant] = spread(found)
            if not label.startswith("own"):
                error = stdev(gains) / math.sqrt(len(gains)) if len(gains) > 1 else 0.0
                row[f"own minus it, {variant}"] = f"{fmean(gains):+.1f} (SE {error:.1f})"
                row[f"own ahead at, {variant}"] = f"{sum(g > 0 for g in gains)} of {len(gains)}"
        table.append(row)
    return table


def figure_of(results: Mapping[str, Sequence[Mapping[str, Any]]]) -> Figure:
    """Draw the own model's accuracy by round, and lines for what it could have had instead."""
    figure = Figure(figsize=(4.5 * len(results), 3.6), layout="tight")
    panels = figure.subplots(1, len(results), sharey=True, squeeze=False)[0]
    for axes, (variant, every) in zip(panels, results.items(), strict=True):
        curves = 100 * np.array([result["accuracy_by_round"] for result in every])
        axes.plot(curves.mean(0), marker="o", color="black", label="own model", zorder=3)
        for number, (key, label) in enumerate(BESIDE.items()):
            if any(result["accuracy"].get(key) is None for result in every):
                continue
            level = fmean(100 * result["accuracy"][key] for result in every)
            axes.axhline(level, color=f"C{number}", linestyle="--", label=label)
        axes.set_title(variant.replace("_", " "), fontsize=10)
        axes.set_xlabel("round of onboarding")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.legend(fontsize=7, loc="lower right")
    panels[0].set_ylabel("accuracy at new sites, %")
    return figure


def main(
    quick: Quick = False,
    seeds: Seeds = 3,
    minutes: Annotated[float, typer.Option(help="no new piece of work after this; 0: all")] = 0.0,
) -> None:
    """Do what is left of the work; once all is done, record it."""
    began, size = time.monotonic(), QUICK if quick else replace(FULL, seeds=tuple(range(seeds)))
    every = list(trials(size))
    pieces: list[Callable[[], None]] = [partial(federate, fed) for fed in every]
    pieces += [
        partial(take_in, fed, site, variant, size.rounds)
        for fed in every
        for site in fed.left_out
        for variant in fed.variants
    ]
    for piece in pieces:
        if minutes and time.monotonic() - began > 60 * minutes:
            print("time is up; run the same command again for the rest", file=sys.stderr)
            raise SystemExit(3)
        piece()
    results = {
        variant: [
            json.loads(fed.done(site, variant).read_bytes())
            for fed in every
            if variant in fed.variants
            for site in fed.left_out
        ]
        for variant in VARIANTS
    }
    first = every[0].experiment
    assert isinstance(first.method, UmPfssl)
    notes = {
        "preset": size.preset,
        "seeds": list(size.seeds),
        "sites": first.split.num_clients,
        "left out of each federation": size.left_out,
        "rounds of the federation": first.rounds.num_rounds,
        "rounds of onboarding": size.rounds,
        "labels of a new site": 0,
        "recommended": " ".join(f"{key}={value}" for key, value in size.recommended.items()),
        "label variant of the federation": first.method.label_variant,
        "peers' accuracies, most related first": [
            [peer["accuracy"] for peer in result["accuracy"]["peers"]]
            for result in results[VARIANTS[0]]
        ],
    }
    save("onboarding", rows_of(results, size.rounds), notes, figure_of(results), quick)


if __name__ == "__main__":
    carry_out(main)
