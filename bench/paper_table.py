"""Comparisons over a frozen encoder, from docs/results: pages and pictures, in seconds.

    python -m bench.paper_table [--study encoder_table2 FOLDER ...]

A page has a table for each setting that was run, beside what a paper prints for it. Folders of
`fedapp compare` are first taken into the numbers of a study.
"""

import csv
import math
from collections.abc import Iterator
from io import BytesIO, StringIO
from itertools import pairwise
from pathlib import Path
from statistics import mean, stdev
from typing import Annotated, Any

import typer
import yaml
from matplotlib.figure import Figure
from PIL import Image

from bench.command import carry_out
from bench.record import csv_rows
from fedapp.core.disk import write_atomic
from fedapp.core.errors import DataError
from fedapp.reports.comparison.differences import MARGIN
from fedapp.reports.comparison.figures import WIDTH_ONE, png, styled
from fedapp.reports.comparison.paper import (
    BEST,
    FEDSIAM,
    FLEXPROTO,
    OTHERS,
    PAPER,
    read_printed,
)
from fedapp.reports.comparison.style import looks

RESULTS = Path(__file__).parents[1] / "docs/results"
STUDIES = (
    *("encoder_table1", "encoder_table2"),
    *("encoder_labels", "encoder_labels_cifar10", "encoder_labels_xrays"),
)
PAGE, GAINS = "table.md", "gains.png"
MARK = "<!-- Below: python -m bench.paper_table -->"
"""The line of a page that ends what is written by hand."""
SHOWN = "alpha=0.5"
"""The setting of the picture: the one for which rates were tuned."""
BESIDE = 4
"""Settings beside each other in a table of accuracies."""
NETWORK, FORM_ALONE = "local_only", "closed form alone"
"""The method that trains a network alone; the row of `one_round` before any exchange."""
JOINED = ("One round", "Recommended", "FedAvg fine-tuned", "FedAvg, logits adjusted", "UM-pFSSL")
"""Whose gains by labels are drawn."""
SEARCHES, BUT = "um_pfssl", "um_pfssl_no_search"
"""How the names of methods begin that search helpers by uncertainty, and the one that does not."""
COLUMNS = {
    "by validation": "selected_test_accuracy",
    "last": "final_test_accuracy",
    "best": "best_test_accuracy",
    "worst tenth": "selected_worst_decile",
}
ALONE = "alone_selected_test_accuracy"
BY_LABELS = {"gain: no label": 0, "to 20": 20, "to 100": 100, "to 180": 180, "more": math.inf}
"""Columns of the mean gain over the better way alone, and the most labels that their sites have. A
site without labels has a guess alone."""
COST = ("seconds", "MB a site")
PUBLISHED = {**OTHERS[FLEXPROTO], **OTHERS[FEDSIAM]}
"""Names of methods that have none in a comparison's figures."""
KEY = ("setting", "method", "seed")
"""What names a run in a study's numbers."""
BY_SITE, NONE = ("labelled", "accuracy", "alone", "alone_validation"), "-"
"""Columns of sites.csv with a number for each site, and what stands there where a site has none."""
DIGITS = 4
"""Decimals of sites.csv, to which gains are rounded, so that one point is not more than one."""
RED, BLUE, BLACK = "#c44e52", "#4c72b0", "#333333"
"""Methods that search helpers by uncertainty, sites alone, and all others."""
RATE = "training.learning_rate"

Row = dict[str, Any]


def grid_of(study: Path) -> dict[str, Any]:
    """Return the study's grid, with the tuned rates."""
    found: dict[str, Any] = yaml.safe_load((study / f"{study.name}.yaml").read_text("utf-8"))
    return found


def settings_of(grid: dict[str, Any], setting: str, method: str) -> dict[str, Any]:
    """Return a method's own settings, which may be others in each setting of a grid."""
    in_setting = grid["settings"][setting].get("methods", {}).get(method, {})
    return {**grid["methods"][method], **in_setting}


def rows(study: Path, setting: str) -> list[Row]:
    """Return each method's accuracies in %, means over seeds, the best by validation first."""
    grid = grid_of(study)
    wanted = grid["settings"][setting].get("paper", {"table": "", "dataset": ""})
    theirs = {
        one.method: float(one.value)
        for one in read_printed()
        if (one.paper, one.table, one.dataset, one.setting, one.metric)
        == (PAPER, wanted["table"], wanted["dataset"], setting, BEST)
    }
    runs = [row for row in csv_rows(study / "results.csv") if row["setting"] == setting]
    found, of_sites = [], site_gains(study, setting, grid["methods"])
    names = looks(list(dict.fromkeys(row["method"] for row in runs)))
    for method, look in names.items():
        own = [row for row in runs if row["method"] == method]
        found.append({
            "method": look.label if look.label != method else PUBLISHED.get(method, method),
            **{name: _mean(own, column) for name, column in COLUMNS.items()},
            "printed": theirs.get(look.label),
            "rate": settings_of(grid, setting, method).get(RATE),
            **by_sites(of_sites.get(method, [])),
            "spread": _spread(own, COLUMNS["by validation"]),
            "seconds": mean(float(run["wall_seconds"]) for run in own),
            "MB a site": mean(megabytes(run) for run in own),
            "seeds": len(own),
            "searches": method.startswith(SEARCHES) and method != BUT,
            "alone": method == NETWORK,
        })  # fmt: skip
        if settings_of(grid, setting, method).get("method.preset") == "one_round":
            lone = _mean(own, ALONE)
            name = FORM_ALONE if method == "one_round" else f"{FORM_ALONE}, {method}"
            empty = {"worst tenth": None, **by_sites([]), "method": name, "alone": True}
            spread = {"spread": _spread(own, ALONE), **dict.fromkeys(COST)}
            found.append({**found[-1], **dict.fromkeys(COLUMNS, lone), **empty, **spread})
    return sorted(found, key=lambda row: -row["by validation"])


def every_setting(study: Path) -> dict[str, list[Row]]:
    """Return the rows of each setting that was run."""
    settings = grid_of(study)["settings"]
    return {setting: found for setting in settings if (found := rows(study, setting))}


def site_gains(
    study: Path, setting: str, methods: dict[str, Any]
) -> dict[str, list[tuple[int, float]]]:
    """Return each method's sites: labelled images alone, and the gain over the better way alone.

    Alone: a network, or the closed form of the method's own features, if it has one: the one with
    more of the site's validation images right, of two alike the closed form. A network on features
    that the method does not have is no way of its sites. Gains are differences of accuracies, in
    [-1, 1]. Sites that have no way alone are left out, and methods whose runs' sites were not kept.

    sites.csv has a row for each run, and in its columns a number for each site, in order.
    methods: each method's own settings in the grid.
    """
    found: dict[str, dict[str, dict[str, list[str]]]] = {}
    for row in csv_rows(study / "sites.csv"):
        if row["setting"] == setting:
            sites = {name: row[name].split() for name in BY_SITE}
            found.setdefault(row["method"], {})[row["seed"]] = sites
    body = {name: (own or {}).get("model.body") for name, own in methods.items()}
    gains: dict[str, list[tuple[int, float]]] = {}
    for method in [name for name in found if name != NETWORK]:
        form = method if any(run["alone"] for run in found[method].values()) else "one_round"
        ways = (form, NETWORK) if body.get(method) == body.get(NETWORK) else (form,)
        for seed, run in found[method].items():
            alone = [found[way][seed] for way in ways if seed in found.get(way, {})]
            for site, right in enumerate(run["accuracy"]):
                tried = [one for one in alone if one["alone"][site] != NONE]
                if right == NONE or not tried:
                    continue
                best = max(tried, key=lambda one: float(one["alone_validation"][site]))
                gain = round(float(right) - float(best["alone"][site]), DIGITS)
                gains.setdefault(method, []).append((int(best["labelled"][site]), gain))
    return gains


def by_sites(gains: list[tuple[int, float]]) -> dict[str, float | None]:
    """Return in % how many sites lose more than a point, and the mean gains by labels, in points.

    gains: as of `site_gains`. Where there is no such site, the number is None.
    """
    found = {"sites worse": [float(gain < -MARGIN) for _, gain in gains]}
    for (_, low), (name, high) in pairwise([("", -1), *BY_LABELS.items()]):
        found[name] = [gain for labelled, gain in gains if low < labelled <= high]
    return {name: 100 * mean(of) if of else None for name, of in found.items()}


def _mean(runs: list[Row], column: str) -> float | None:
    """Return the mean in %; None where a run has no number, as one model's answer for all sites."""
    return None if "" in (v := [run[column] for run in runs]) else 100 * mean(map(float, v))


def megabytes(run: Row) -> float:
    """Return what a site sent and got in a run, measuring left out, in MB."""
    return (float(run["bytes_down"]) + float(run["bytes_up"])) / float(run["sites"]) / 1e6


def _spread(runs: list[Row], column: str) -> float | None:
    """Return the standard deviation over seeds in %; None for one seed."""
    return 100 * stdev(float(run[column]) for run in runs) if len(runs) > 1 else None


def table(found: list[Row]) -> Iterator[str]:
    """Yield the lines of a Markdown table.

    Without a column by validation where the last round is judged, or of a paper that has no number.
    """
    names = [*COLUMNS, "sites worse", *BY_LABELS, *COST, "printed"]
    if all(row["by validation"] == row["last"] for row in found):
        names.remove("by validation")
    if all(row["printed"] is None for row in found):
        names.remove("printed")
    heads = ["printed, best" if name == "printed" else name for name in (*names, "rate")]
    yield f"| method | {' | '.join(heads)} |"
    yield f"| --- |{' ---: |' * len(heads)}"
    for row in found:
        values = [row[name] for name in names]
        cells = ["" if value is None else f"{value:.1f}" for value in values]
        yield f"| {row['method']} | {' | '.join(cells)} | {row['rate'] or ''} |"


def overview(found: dict[str, list[Row]]) -> Iterator[str]:
    """Yield the lines of a table of settings: by validation, and in brackets as printed.

    found: by setting, as of `rows`; the order is that of the first.
    """
    yield f"| method | {' | '.join(found)} |"
    yield f"| --- |{' ---: |' * len(found)}"
    for method in dict.fromkeys(row["method"] for each in found.values() for row in each):
        cells = []
        for each in found.values():
            row = next((row for row in each if row["method"] == method), None)
            spread = f" ± {row['spread']:.1f}" if row and row["spread"] is not None else ""
            printed = f" ({row['printed']:.1f})" if row and row["printed"] is not None else ""
            cells.append(f"{row['by validation']:.1f}{spread}{printed}" if row else "")
        yield f"| {method} | {' | '.join(cells)} |"


@styled
def picture(found: list[Row]) -> Figure:
    """Draw each method: the round that validation chose (dot), the last (line), printed (ring)."""
    figure = Figure(figsize=(WIDTH_ONE, 0.22 * len(found) + 1))
    axes = figure.subplots()
    for place, row in enumerate(reversed(found)):
        colour = RED if row["searches"] else BLUE if row["alone"] else BLACK
        chosen = row["by validation"]
        axes.plot([row["last"], chosen], [place] * 2, color=colour, lw=2, alpha=0.4)
        axes.plot(chosen, place, "o", color=colour, ms=5)
        axes.annotate(f"{chosen:.1f}", (chosen + 0.8, place), va="center", size=7)
        if row["printed"] is not None:
            axes.plot(row["printed"], place, "o", mfc="none", color=colour, ms=5)
    axes.set_yticks(range(len(found)), [row["method"] for row in reversed(found)], fontsize=7)
    least = min(row["printed"] or row["last"] for row in found)
    most = max(row["by validation"] for row in found)
    axes.set(xlim=(least - 3, most + 5), ylim=(-1, len(found)))
    figure.supxlabel(
        "accuracy, %: by validation (dot), last round (line's end), printed (ring);\n"
        "red: search helpers; blue: sites alone",
        size=8,
    )
    return figure


@styled
def curves(found: dict[str, list[Row]]) -> Figure:
    """Draw each method's accuracy against the share of labels, for each alpha.

    found: by setting, whose names are as "alpha=0.5, labels=0.05".
    """
    points: dict[str, dict[str, dict[float, float]]] = {}
    for setting, each in found.items():
        alpha, labels = setting.split(", labels=")
        for row in each:
            line = points.setdefault(alpha, {}).setdefault(row["method"], {})
            line[float(labels)] = row["by validation"]
    figure = Figure(figsize=(WIDTH_ONE * 1.6, 3.2))
    for axes, (alpha, lines) in zip(
        figure.subplots(1, len(points), sharey=True, squeeze=False)[0], points.items(), strict=True
    ):
        for method, line in sorted(lines.items()):
            shares = sorted(line)
            style = "--" if FORM_ALONE in method or method == "LocalOnly" else "-"
            axes.plot(shares, [line[share] for share in shares], style, marker="o", label=method)
        axes.set(xscale="log", title=alpha.replace("=", " = "), xlabel="share of labels")
        axes.set_xticks(shares, [f"{share:.0%}" for share in shares])
        axes.minorticks_off()
    figure.axes[0].set_ylabel("accuracy, %")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right center", fontsize=7)
    return figure


@styled
def who_gains(found: dict[str, list[Row]]) -> Figure:
    """Draw the mean gain over the better way alone against the labels of a site, by setting."""
    figure = Figure(figsize=(WIDTH_ONE * 1.6, 3))
    places = range(len(BY_LABELS))
    for axes, (setting, each) in zip(
        figure.subplots(1, len(found), sharey=True, squeeze=False)[0], found.items(), strict=True
    ):
        for row in sorted(each, key=lambda row: str(row["method"])):
            if row["method"] in JOINED:
                gains = [math.nan if row[name] is None else row[name] for name in BY_LABELS]
                axes.plot(places, gains, marker="o", label=row["method"])
        axes.axhline(0, color="black", lw=0.8)
        axes.set_xticks(places, ["0", *list(BY_LABELS)[1:]], fontsize=8)
        axes.set_title(setting.replace("=", " = "))
    figure.axes[0].set_ylabel("gain over the better way alone, points")
    figure.supxlabel("labelled images of a site", size=9)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right center", fontsize=7)
    return figure


def page(study: Path) -> Iterator[str]:
    """Yield the lines of the page below `MARK`: a table for each setting that was run."""
    every = every_setting(study)
    if len(every) > 1:
        yield from ("", "## Side by side")
        for first in range(0, len(every), BESIDE):
            yield from ("", *overview(dict(list(every.items())[first : first + BESIDE])))
    if SHOWN not in every:
        yield from ("", f"![Accuracy against the share of labels]({study.name}.png)")
    for setting, found in every.items():
        seeds = min(row["seeds"] for row in found)
        yield from ("", f"## {setting}", "", f"{len(found)} rows, seeds of each: {seeds}.", "")
        yield from table(found)
        if setting == SHOWN:
            yield from ("", f"![Each method, and as printed]({study.name}.png)")
            yield from ("", f"![Gain by the labels of a site]({GAINS})")


def take_in(study: Path, folder: Path) -> None:
    """Put a comparison's runs into a study, in place of those of the same setting, method and seed.

    folder: of `fedapp compare`, with results.csv and sites.csv. Answers alone are those of
    `one_round` and of the method that trains a network alone, which has no other. Raises DataError
    where the two have other columns.
    """
    runs, sites = csv_rows(folder / "results.csv"), csv_rows(folder / "sites.csv")
    grid, found = grid_of(study), []
    for run in runs:
        settings = settings_of(grid, run["setting"], run["method"])
        if "answer" in settings:  # one model's answer for all sites
            continue
        own = [row for row in sites if all(row[name] == run[name] for name in KEY)]
        columns = {"accuracy": "selected_accuracy"}
        if run["method"] == NETWORK:
            columns |= {"alone": "selected_accuracy", "alone_validation": "val_accuracy"}
        elif settings.get("method.preset") == "one_round":
            columns |= {"alone": "alone_accuracy", "alone_validation": "alone_val_accuracy"}
        if "alone" in columns:
            columns["labelled"] = "labelled"
        shown = {name: " ".join(map(_digits, (row[of] for row in own)))
                 for name, of in columns.items()}  # fmt: skip
        found.append({name: run[name] for name in KEY} | dict.fromkeys(BY_SITE, "") | shown)
    for name, new in (("results.csv", runs), ("sites.csv", found)):
        if not new:
            continue
        old = csv_rows(study / name)
        if old and new[0].keys() != old[0].keys():
            raise DataError(f"{folder / name}: has other columns than {study / name}: run it anew")
        every = {tuple(row[key] for key in KEY): row for row in [*old, *new]}
        text = StringIO(newline="")
        writer = csv.DictWriter(text, list(new[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(every.values())
        write_atomic(study / name, text.getvalue().encode(), durable=False)


def _digits(number: str) -> str:
    """Return a site's number as sites.csv has it."""
    if not number:
        return NONE
    return number if number.isdigit() else f"{float(number):.{DIGITS}f}"


def main(
    folders: Annotated[list[Path] | None, typer.Argument(help="of fedapp compare")] = None,
    study: Annotated[str, typer.Option(help="whose runs those are")] = STUDIES[0],
) -> None:
    """Write the pages, what is above `MARK` as it is, and the pictures; print where."""
    for folder in folders or ():
        take_in(RESULTS / study, folder)
    write_pages()


def write_pages() -> None:
    """Write all studies' pages and pictures."""
    for study in (RESULTS / name for name in STUDIES):
        above = (study / PAGE).read_text("utf-8").partition(MARK)[0]
        text = "\n".join([above + MARK, *page(study)]) + "\n"
        write_atomic(study / PAGE, text.encode(), durable=False)
        every = every_setting(study)
        drawn = {f"{study.name}.png": picture(every[SHOWN]) if SHOWN in every else curves(every)}
        if SHOWN in every:
            drawn[GAINS] = who_gains(every)
        for name, figure in drawn.items():  # few colours: a third of the bytes
            Image.open(BytesIO(png(figure))).quantize(64).save(study / name, optimize=True)
        print(study / PAGE)


if __name__ == "__main__":
    carry_out(main)
