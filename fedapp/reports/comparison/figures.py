"""Figures of a comparison (curves, harm, sweeps, mistakes) and their common style.

Every function returns a Matplotlib figure, or None where there are no data for it; `png` makes the
file. Nothing is drawn on a screen.
"""

import io
from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import exp, log

import matplotlib.style
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from fedapp.core.errors import RunError
from fedapp.core.untrusted_files import read_json
from fedapp.reports.comparison.paper import COST, PaperNumbers
from fedapp.reports.comparison.record import (
    BEST,
    BEST_ALONE,
    SELECTED,
    WORST_DECILE,
    ComparisonRecord,
)
from fedapp.reports.comparison.style import Look, featured
from fedapp.reports.comparison.sweep import Sweep, looks_of_lines
from fedapp.reports.comparison.tables import relative_costs
from fedapp.reports.statistics import Mean, mean_sd

STYLE = {
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.8,
    "lines.linewidth": 1.7,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
    "figure.dpi": 150,
    "savefig.dpi": 150,
    "text.parse_math": False,  # a name with $ in it is no formula
}
"""Style of every figure: 150 dots an inch, 7 to 10 inches wide, so that 10 points can be read."""

MARKERS = "os^DvP*X"
"""Markers of lines that cross, so that they can be told apart without colours."""
PANEL_COLUMNS = 2
WIDTH_ONE, WIDTH_MORE = 7.0, 10.0
LEGEND_ROW, LEGEND_LINE, LETTER = 0.22, 0.65, 0.08
"""Of the legend, in inches: height of a row, width of a line with the space around it, and of an
average letter of its name."""
MOST_BANDS = 8
"""With more lines than this a panel has no bands, which would hide each other."""

MOST_PANELS = 4
"""Number of confusion matrices of one setting."""
MOST_LINES = 8
"""Number of methods in the figure of harm; more lines would hide each other."""
_MARKS = 8
"""Number of markers on a line."""
_LINEAR = 5
"""The axis of differences is linear up to this many points each way, then logarithmic."""
LABEL_COUNTS = (20, 100, 180)
"""Last number of labels of all groups but the last, in `gain_by_labels_figure`."""
LEAST_SITES = 20
"""Sites of all runs, at least, of which `gain_by_labels_figure` is drawn."""
_TICKS = (-50, -20, -10, -5, -1, 0, 1, 5, 10, 20, 50)
_MOST_OF_GAP, _MOST_OF_AXIS = 0.5, 0.1
"""How far the points of one value may be apart: as a share of the least gap between two values, and
of the whole axis."""
WORDS = {
    "labels": "mean share of labelled training images",
    "shift": "strength of the feature shift between sites",
    "sites": "sites",
    "images": "images of all sites together",
}
"""Label of the axis of each parameter of the data."""

styled = matplotlib.style.context(STYLE, after_reset=True)
"""Decorator: the function draws in the project's style, whatever the caller's style is."""


@styled
def png(figure: Figure) -> bytes:
    """Return a figure as the bytes of a PNG file. The same figure gives the same bytes."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


@styled
def accuracy_curves(comparison: ComparisonRecord) -> Figure | None:
    """Draw mean test accuracy over sites by round (Figs. 4, 5); None without rounds."""
    return _curves(comparison, "mean_test_accuracy", "mean test accuracy over sites, %")


@styled
def error_curves(comparison: ComparisonRecord) -> Figure | None:
    """Draw the share of wrong pseudo-labels by round (Fig. 8); None where no method makes any."""
    return _curves(comparison, "pseudo_label_error", "wrong pseudo-labels, %")


def panels(count: int, height: float, *, share_y: bool = False) -> tuple[Figure, list[Axes]]:
    """Return a figure with `count` panels of `height` inches each, and the panels."""
    columns = min(count, PANEL_COLUMNS)
    rows = -(-count // columns)
    figure = Figure(figsize=(WIDTH_ONE if columns == 1 else WIDTH_MORE, height * rows))
    grid = figure.subplots(rows, columns, squeeze=False, sharey=share_y)
    every = [axes for row in grid for axes in row]
    for unused in every[count:]:
        unused.remove()
    return figure, every[:count]


def _curves(comparison: ComparisonRecord, column: str, label: str) -> Figure | None:
    """Draw a column of rounds.csv: a panel per setting, a line per method, a band of one sd.

    Panels with more than `MOST_BANDS` lines have no bands; the tables have all standard deviations.
    """
    shown: dict[str, dict[str, dict[int, Mean]]] = {}
    for setting in comparison.settings:
        for method in comparison.methods:
            if line := _line(comparison, setting, method, column):
                shown.setdefault(setting, {})[method] = line
    if not shown:
        return None
    names = comparison.looks
    one_data_set = comparison.results["dataset"].nunique() == 1
    figure, every = panels(len(shown), 3.6, share_y=one_data_set)
    for axes, (setting, lines) in zip(every, shown.items(), strict=True):
        for method, line in lines.items():
            _draw_line(axes, names[method], line, len(lines) <= MOST_BANDS)
        axes.set(title=setting, xlabel="round")
        axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True, steps=[1, 2, 5, 10]))
        axes.margins(x=0.02)
    for axes in every[::PANEL_COLUMNS]:
        axes.set_ylabel(label)
    legend(figure, lines_of(every))
    return figure


def _line(comparison: ComparisonRecord, setting: str, method: str, column: str) -> dict[int, Mean]:
    """Return mean and sd in percent by round, over the seeds that measured it."""
    values = 100 * comparison.rows("rounds", setting, method)[column].dropna()
    means = {number: mean_sd(of.tolist()) for number, of in values.groupby(level="round")}
    return {number: mean for number, mean in means.items() if mean}


def _draw_line(axes: Axes, look: Look, line: Mapping[int, Mean], band: bool) -> None:
    rounds, means = list(line), [mean.value for mean in line.values()]
    spreads = [mean.sd or 0.0 for mean in line.values()]
    marker = "o" if len(rounds) == 1 else ""
    axes.plot(rounds, means, look.line, marker=marker, color=look.colour, label=look.label)
    if band and any(spreads):
        low = [mean - sd for mean, sd in zip(means, spreads, strict=True)]
        high = [mean + sd for mean, sd in zip(means, spreads, strict=True)]
        axes.fill_between(rounds, low, high, color=look.colour, alpha=0.13, linewidth=0)


def lines_of(every: Sequence[Axes]) -> dict[str, Artist]:
    """Return the named lines of some panels by name, each once."""
    named: dict[str, Artist] = {}
    for axes in every:
        handles, labels = axes.get_legend_handles_labels()
        named |= dict(zip(labels, handles, strict=True))
    return named


def legend(figure: Figure, named: Mapping[str, Artist]) -> None:
    """Put a legend of these lines below the panels, where it covers nothing.

    It has at most four columns, and fewer where long names would be cut off.
    """
    fit = int(figure.get_figwidth() / (LEGEND_LINE + LETTER * max(map(len, named))))
    columns = max(1, min(len(named), fit, 4))
    figure.set_figheight(figure.get_figheight() + LEGEND_ROW * -(-len(named) // columns))
    figure.legend(list(named.values()), list(named), loc="outside lower center", ncols=columns)


@styled
def harm_figure(comparison: ComparisonRecord, methods: Sequence[str]) -> Figure | None:
    """Draw the sorted differences of all sites from training alone: a line for each method.

    methods: the first `MOST_LINES` of these are drawn, without local_only itself. None where no
    method trains alone.
    """
    shown = [m for m in methods if m != comparison.behind(BEST_ALONE)][:MOST_LINES]
    if not comparison.has_alone:
        return None
    found = {
        setting: lines
        for setting in comparison.settings
        if (lines := _differences(comparison, setting, shown))
    }
    if not found:
        return None
    names = comparison.looks
    figure, every = panels(len(found), 3.6, share_y=True)
    for axes, (setting, lines) in zip(every, found.items(), strict=True):
        axes.axhline(0, color="#222222", linewidth=1)
        for place, method in enumerate(shown):
            if method in lines:
                _draw(axes, names[method], lines[method], place)
        axes.set(title=setting, xlabel="sites, %, from the most harmed", xlim=(0, 100))
        # A site without labels gains 80 points; what is near zero must be seen beside it.
        axes.set_yscale("symlog", linthresh=_LINEAR, linscale=1.5)
        axes.set_yticks(_TICKS, [f"{tick:+d}" if tick else "0" for tick in _TICKS])
        axes.set_yticks([], minor=True)
    for axes in every[::PANEL_COLUMNS]:
        axes.set_ylabel(f"accuracy less {comparison.label(BEST_ALONE)}, points")
    legend(figure, lines_of(every))
    return figure


def _differences(
    comparison: ComparisonRecord, setting: str, methods: Sequence[str]
) -> dict[str, list[float]]:
    """Return each method's differences in points, ascending, over the sites of all seeds."""
    pairs = {method: comparison.site_pairs(setting, method, BEST_ALONE) for method in methods}
    return {
        method: sorted((100 * (of["ours"] - of["theirs"])).tolist())
        for method, of in pairs.items()
        if len(of)
    }


def _draw(axes: Axes, look: Look, differences: Sequence[float], place: int) -> None:
    """Draw one line, with markers that tell it from the others without colours."""
    count = len(differences)
    x = 100 * (np.arange(count) + 0.5) / count
    step = max(count // _MARKS, 1)
    axes.plot(
        *(x, differences, look.line),
        color=look.colour,
        label=look.label,
        marker=MARKERS[place % len(MARKERS)],
        markersize=5,
        markevery=(place * step // MOST_LINES, step),  # beside the others', not on them
    )


@styled
def gain_by_labels_figure(comparison: ComparisonRecord, methods: Sequence[str]) -> Figure | None:
    """Draw each site's gain over its best alone by the number of its labels: who should join.

    Of the first of `methods` that is not local_only. A dot is a site of one run; a line joins the
    means of the groups that `LABEL_COUNTS` ends. Sites without labels have nothing to compare and
    are left out. None where fewer than `LEAST_SITES` sites can be compared.
    """
    found = {}
    method = next((m for m in methods if m != comparison.behind(BEST_ALONE)), "")
    for setting in comparison.settings if comparison.has_alone else ():
        pairs = comparison.site_pairs(setting, method, BEST_ALONE)
        labelled = comparison.rows("sites", setting, method)["labelled"]
        pairs = pairs.join(labelled)[lambda of: of["labelled"] > 0]
        if len(pairs) >= LEAST_SITES:
            found[setting] = pairs["labelled"], 100 * (pairs["ours"] - pairs["theirs"])
    if not found:
        return None
    figure, every = panels(len(found), 3.6, share_y=True)
    look = comparison.looks[method]
    for axes, (setting, (labels, gains)) in zip(every, found.items(), strict=True):
        axes.axhline(0, color="#222222", linewidth=1)
        axes.plot(labels, gains, ".", color=look.colour, alpha=0.35, label="a site of one run")
        groups = np.searchsorted(LABEL_COUNTS, labels)
        present = sorted(set(groups.tolist()))
        middle = [float(labels[groups == group].mean()) for group in present]
        means = [float(gains[groups == group].mean()) for group in present]
        axes.plot(middle, means, "o-", color=look.colour, label="mean of a group of sites")
        for x, y in zip(middle, means, strict=True):
            axes.annotate(
                f"{y:+.1f}",
                (x, y),
                xytext=(0, 7),
                textcoords="offset points",
                ha="center",
                weight="bold",
            )
        for end in LABEL_COUNTS:
            axes.axvline(end, color="#bbbbbb", linewidth=0.8, linestyle=":")
        axes.set(title=setting, xlabel="labelled training images of the site", xlim=(0, None))
    for axes in every[::PANEL_COLUMNS]:
        axes.set_ylabel(f"{look.label} less {comparison.label(BEST_ALONE)}, points")
    legend(figure, lines_of(every))
    return figure


@styled
def sweep_figure(
    comparison: ComparisonRecord, sweep: Sweep, numbers: PaperNumbers
) -> Figure | None:
    """Draw accuracy and relative cost over a parameter's values (Figs. 7, 10, Tables IV, V)."""
    figure, (left, right) = panels(2, 3.6)
    shown = looks_of_lines(comparison, sweep)
    for key, line in sweep.lines.items():
        look, name = shown[key], shown[key].label or "ours"
        _plot(left, {v: comparison.mean(*line[v], SELECTED) for v in sorted(line)}, look, name)
        best = {v: numbers.find(*line[v]) for v in sorted(line)}
        if any(best.values()):
            over = {v: comparison.mean(*line[v], BEST) for v in sorted(line)}
            _plot(left, over, Look("", look.colour, "--"), f"{name}, best over rounds")
            _paper(left, best, look, "paper, best over rounds")
        costs = relative_costs(comparison, line)
        right.plot(sorted(costs), [100 * costs[v] for v in sorted(costs)], "o-", color=look.colour)
        _paper(right, {v: numbers.find(*line[v], COST) for v in sorted(line)}, look, "")
    if not left.has_data():
        return None
    left.set_ylabel("mean test accuracy over sites, %")
    right.set(ylabel="models sent, % of the dearest", ylim=(0, None))
    for axes in (left, right):
        axes.set_xlabel(sweep.parameter)
        _scale(axes, sweep.values)
    legend(figure, lines_of([left]))
    return figure


@styled
def data_figure(comparison: ComparisonRecord, sweep: Sweep) -> Figure | None:
    """Draw accuracy over a parameter of the data: of all sites, and of the worst tenth.

    Points of one value stand side by side, so that their error bars can be told apart.
    """
    figure, every = panels(2, 4.4)
    shown = looks_of_lines(comparison, sweep)
    for axes, column in zip(every, (SELECTED, WORST_DECILE), strict=True):
        for place, (key, line) in enumerate(sweep.lines.items()):
            means = {v: comparison.mean(*line[v], column) for v in sorted(line)}
            moved = _side_by_side(list(means), sweep.values, place, len(sweep.lines))
            beside = dict(zip(moved, means.values(), strict=True))
            look, marker = shown[key], MARKERS[place % len(MARKERS)]
            _plot(axes, beside, look, look.label or "mean over sites", marker)
        axes.set_xlabel(WORDS.get(sweep.parameter, sweep.parameter))
        _scale(axes, sweep.values)
    left, right = every
    if not left.has_data():
        return None
    left.set_ylabel("mean test accuracy over sites, %")
    right.set_ylabel("worst tenth of the sites, %")
    legend(figure, lines_of([left]))
    return figure


def _plot(
    axes: Axes, line: Mapping[float, Mean | None], look: Look, name: str, marker: str = "o"
) -> None:
    known = {value: mean for value, mean in line.items() if mean}
    if known:
        x, y = list(known), [100 * mean.value for mean in known.values()]
        axes.plot(x, y, look.line, marker=marker, color=look.colour, label=name)
        spreads = [100 * (mean.sd or 0.0) for mean in known.values()]
        axes.errorbar(x, y, yerr=spreads, fmt="none", ecolor=look.colour, capsize=2, lw=1)


def _paper(axes: Axes, line: Mapping[float, str | None], look: Look, name: str) -> None:
    known = {value: float(text) for value, text in line.items() if text}
    if known:
        x, y = list(known), list(known.values())
        axes.plot(x, y, "s:", color=look.colour, markerfacecolor="white", label=name or None)


def _side_by_side(
    values: Sequence[float], ticks: Sequence[float], place: int, lines: int
) -> list[float]:
    """Return the x values of line number `place` of `lines`: a little beside the ticks."""
    there, back = (log, exp) if _logarithmic(ticks) else (float, float)
    marks = [there(tick) for tick in ticks]
    least = min(b - a for a, b in pairwise(marks))
    reach = min(_MOST_OF_GAP * least, _MOST_OF_AXIS * (marks[-1] - marks[0]))
    beside = reach * ((place + 0.5) / lines - 0.5)
    return [back(there(value) + beside) for value in values]


def _scale(axes: Axes, values: Sequence[float]) -> None:
    """Put a tick at every value. The axis is logarithmic if the values span a decade or more."""
    if _logarithmic(values):
        axes.set_xscale("log")
    axes.set_xticks(list(values), [f"{value:g}" for value in values])
    axes.set_xticks([], minor=True)


def _logarithmic(values: Sequence[float]) -> bool:
    return values[0] > 0 and values[-1] >= 10 * values[0]


def confusion(comparison: ComparisonRecord, setting: str, method: str) -> NDArray[np.int64] | None:
    """Return counts [C, C], true class by predicted class, of the sites' test images.

    They are summed over sites and seeds, after the last round. None where there is no test image.
    Raises RunError where a cell's evaluations.json is damaged.
    """
    total: NDArray[np.int64] | None = None
    tested = "_".join(filter(None, ["test", comparison.answers.get(method)]))
    for cell in comparison.rows("results", setting, method)["cell"]:
        path = comparison.folder / cell / "evaluations.json"
        if not path.is_file():
            continue
        try:
            sites = read_json(path)
            parts = [site[tested]["confusion"] for site in sites.values() if tested in site]
            for part in parts:
                counts = np.array(part, dtype=np.int64)
                total = counts if total is None else total + counts
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RunError(f"{path}: is damaged ({error}); run the cell again") from error
    return total if total is not None and total.any() else None


@styled
def confusion_figure(comparison: ComparisonRecord, setting: str) -> Figure | None:
    """Draw confusion matrices of some methods in one setting, each row in percent."""
    order = featured(comparison.methods, comparison.presets)
    every = ((method, confusion(comparison, setting, method)) for method in order)
    matrices = [(method, total) for method, total in every if total is not None][:MOST_PANELS]
    if not matrices:
        return None
    figure, axes_of = panels(len(matrices), 4.4)
    for place, (axes, (method, counts)) in enumerate(zip(axes_of, matrices, strict=True)):
        _matrix(axes, counts)
        axes.set(title=comparison.looks[method].label, xlabel="predicted class")
        if place % 2 == 0:
            axes.set_ylabel("true class")
    return figure


def _matrix(axes: Axes, counts: NDArray[np.int64]) -> None:
    """Draw each true class as a row of percentages; a class without images has an empty row."""
    images = counts.sum(axis=1, keepdims=True)
    share = np.divide(100.0 * counts, images, out=np.full(counts.shape, np.nan), where=images > 0)
    axes.imshow(share, cmap="Blues", vmin=0, vmax=100)
    axes.grid(visible=False)
    classes = range(len(counts))
    axes.set_xticks(classes)
    axes.set_yticks(classes)
    for row, column in np.argwhere(share >= 0.5):
        value = share[row, column]
        ink = "white" if value > 60 else "#222222" if value >= 5 else "#66727E"
        axes.text(column, row, f"{value:.0f}", ha="center", va="center", color=ink, fontsize=8)
