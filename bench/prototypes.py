"""Do class prototypes serve as well as whole models, to choose peers and to make pseudo-labels?

`python -m bench.prototypes PRESET [--seeds 3] [--quick] [key=value ...]` lets the recommended
method and UM-pFSSL run on a preset. After the last round every site labels its own unlabelled
images in several ways (`bench.labelling`), which differ in what it must be sent.

Written to bench/results/prototypes-PRESET-DATA.json and docs/pictures/prototypes-DATA.png: kB that
a site is sent for it, beside what the method sends; labels that are right (hidden labels, through
the audit), in %; those that are sure, in %; how many of the sure ones are right, in %; how right on
the site's own test images the mean of its model and the chosen peers' is, in %. Means over sites,
then mean and standard deviation over seeds; how many points more labels are right than by the most
related models, and at how many sites, of all seeds, more and fewer are. A run that is done is not
done again: the same command goes on where it was cut.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import typer
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.command import Overrides, Quick, Seeds, carry_out
from bench.labelling import REFERENCE, Sites, asked
from bench.measure import spread
from bench.record import Cells, Row, save
from bench.runs import codes, finished, kept_runs
from fedapp.experiment.config import load_experiment, parse_overrides
from fedapp.experiment.experiment import Experiment
from fedapp.experiment.presetfiles import Scalar
from fedapp.results.comparison.figures import MARKERS, WIDTH_MORE, png, styled

METHODS = {"recommended": "recommended", "um_pfssl_mi": "UM-pFSSL, mutual information"}
"""Preset of the method, and what it is called."""
PICTURES = Path(__file__).parents[1] / "docs" / "pictures"

Preset = Annotated[str, typer.Argument(help="such as fashion_mnist_small")]
TOY: Mapping[str, Scalar] = {
    "data.subset": 600, "split.num_clients": 6, "model.width": 2, "training.warmup_epochs": 1,
    "rounds.num_rounds": 2,
}  # fmt: skip
Measured = Mapping[str, Mapping[str, Any]]
"""By site and way: what the labels are worth."""


def experiment_of(
    preset: str, overrides: Mapping[str, Scalar], method: str, seed: int
) -> Experiment:
    """Return the run whose models are asked."""
    fixed: dict[str, Scalar] = {"runtime.device": "cpu", "runtime.models": False}
    return load_experiment(preset, {**fixed, **overrides, "method.preset": method, "seed": seed})


def measured(experiment: Experiment) -> dict[str, Any]:
    """Run once, ask; return what each site's labels are worth."""
    with finished(experiment) as run:
        sites = Sites(run)
        return {
            "sites": {str(site): asked(sites, site, experiment.seed) for site in sites.asking()}
        }


def rows_of(results: Mapping[tuple[str, int], Measured]) -> list[Row]:
    """Return a row for each method and way. results: by method and seed."""
    rows: list[Row] = []
    for method in dict.fromkeys(method for method, _ in results):
        runs = [sites for (name, _), sites in results.items() if name == method]
        for way, first in next(iter(runs[0].values())).items():
            row: Cells = {"method": METHODS[method], "asked": way}
            row |= {key: spread(by_seed(runs, way, key)) for key in first}
            gains = [gain(site, way) for sites in runs for site in sites.values()]
            better, worse = sum(g > 0 for g in gains), sum(g < 0 for g in gains)
            row["minus by models"] = f"{fmean(gains):+.1f}"
            row["better, worse at"] = f"{better}, {worse} of {len(gains)}"
            rows.append(row)
    return rows


def gain(site: Mapping[str, Any], way: str) -> float:
    """Return how many points more labels are right at a site than by the most related models."""
    more: float = site[way]["right, %"] - site[REFERENCE]["right, %"]
    return more


def by_seed(runs: Sequence[Measured], way: str, key: str) -> list[float]:
    """Return each run's mean over the sites where it is known."""
    every = [[site[way][key] for site in sites.values()] for sites in runs]
    known = [[value for value in values if value is not None] for values in every]
    return [fmean(values) for values in known if values]


@styled
def drawn(results: Mapping[tuple[str, int], Measured], title: str) -> Figure:
    """Draw right labels against bytes, a panel a method: mean and seeds."""
    methods = list(dict.fromkeys(method for method, _ in results))
    figure = Figure(figsize=(WIDTH_MORE, 4.6))
    panels = figure.subplots(1, len(methods), sharey=True, squeeze=False)[0]
    for axes, method in zip(panels, methods, strict=True):
        runs = [sites for (name, _), sites in results.items() if name == method]
        for place, way in enumerate(next(iter(runs[0].values()))):
            size, right = by_seed(runs, way, "kB"), by_seed(runs, way, "right, %")
            marked(axes, place, size, right, way)
        axes.set_xscale("symlog", linthresh=10)
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.set(title=METHODS[method], xlim=(-2, None), xlabel="kB sent to a site for it")
    panels[0].set_ylabel("pseudo-labels that are right, %")
    figure.suptitle(title)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2)
    return figure


def marked(
    axes: Axes, place: int, across: Sequence[float], up: Sequence[float], label: str
) -> None:
    """Mark a way's seeds and, larger, their mean. place: of the way; it has a colour and a mark."""
    colour, marker = f"C{place}", MARKERS[place % len(MARKERS)]
    axes.plot(fmean(across), fmean(up), marker, color=colour, ms=8, label=label)
    axes.plot(across, up, marker, mfc="none", color=colour, ms=4.5, alpha=0.7)


def keep(
    bench: str,
    preset: str,
    first: Experiment,
    rows: Sequence[Row],
    figure: Figure,
    notes: Mapping[str, object],
    quick: bool,
) -> None:
    """Write the table down and the picture; first: any of the runs."""
    save(f"{bench}-{preset}-{first.data.name}", rows, notes, quick=quick)
    if quick:
        return
    picture = PICTURES / f"{bench}-{first.data.name}.png"
    picture.write_bytes(png(figure))
    print(picture)


def main(
    preset: Preset, overrides: Overrides = None, seeds: Seeds = 3, quick: Quick = False
) -> None:
    """Run what has not been run; draw and write down."""
    given = {**(TOY if quick else {}), **parse_overrides(overrides or [])}
    cases = {
        (method, seed): experiment_of(preset, given, method, seed)
        for seed in range(seeds)
        for method in METHODS
    }
    found = kept_runs(f"prototypes-{preset}", given, cases, lambda _, one: measured(one))
    results = {case: result["sites"] for case, result in found.items()}
    first = next(iter(cases.values()))
    figure = drawn(results, f"{first.data.name}, {first.split.num_clients} sites")
    notes = {"seeds": seeds, "runs by code": codes(found)}
    keep("prototypes", preset, first, rows_of(results), figure, notes, quick)


if __name__ == "__main__":
    carry_out(main)
