"""Figures of sweeps: what a parameter's value does to accuracy and cost (Figs. 7, 10)."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import exp, log

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedapp.results.comparison.cost import relative_costs
from fedapp.results.comparison.figures import MARKERS, legend, lines_of, panels, styled
from fedapp.results.comparison.looks import Look, looks_of_lines
from fedapp.results.comparison.paper import COST, PaperNumbers
from fedapp.results.comparison.record import BEST, SELECTED, WORST_DECILE, Comparison
from fedapp.results.comparison.sweep import Sweep
from fedapp.results.statistics import Mean

_REACH, _MOST_REACH = 0.5, 0.1
"""How far apart the points of one value may stand: of the least gap between two values, and of the
whole axis."""


@styled
def sweep_figure(comparison: Comparison, sweep: Sweep, numbers: PaperNumbers) -> Figure | None:
    """Accuracy and relative cost against a parameter's value (Figs. 7, 10, Tables IV, V)."""
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
def data_figure(comparison: Comparison, sweep: Sweep) -> Figure | None:
    """Accuracy against what the data are like, one line a method: of all sites, and of the worst.

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


WORDS = {
    "labels": "mean share of labelled training images",
    "shift": "strength of the feature shift between sites",
    "sites": "sites",
    "images": "images of all sites together",
}
"""What a parameter of the data is called on an axis."""


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
    """Return where line `place` of `lines` has its points: a little beside the ticks."""
    there, back = (log, exp) if _logarithmic(ticks) else (float, float)
    marks = [there(tick) for tick in ticks]
    least = min(b - a for a, b in pairwise(marks))
    reach = min(_REACH * least, _MOST_REACH * (marks[-1] - marks[0]))
    beside = reach * ((place + 0.5) / lines - 0.5)
    return [back(there(value) + beside) for value in values]


def _scale(axes: Axes, values: Sequence[float]) -> None:
    """Put a tick at every value; a logarithmic axis where they span more than a decade."""
    if _logarithmic(values):
        axes.set_xscale("log")
    axes.set_xticks(list(values), [f"{value:g}" for value in values])
    axes.set_xticks([], minor=True)


def _logarithmic(values: Sequence[float]) -> bool:
    return values[0] > 0 and values[-1] >= 10 * values[0]
