"""Figures of sweeps: what a parameter's value does to accuracy and cost (Figs. 7, 10)."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedapp.report.cost import relative_costs
from fedapp.report.figures import legend, lines_of, panels, styled
from fedapp.report.looks import Look, looks_of_lines
from fedapp.report.paper import COST, PaperNumbers
from fedapp.report.records import BEST, SELECTED, Comparison
from fedapp.report.statistics import Mean
from fedapp.report.sweep import Sweep


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


def _plot(axes: Axes, line: Mapping[float, Mean | None], look: Look, name: str) -> None:
    known = {value: mean for value, mean in line.items() if mean}
    if known:
        x, y = list(known), [100 * mean.value for mean in known.values()]
        axes.plot(x, y, f"o{look.line}", color=look.colour, label=name)
        spreads = [100 * (mean.sd or 0.0) for mean in known.values()]
        axes.errorbar(x, y, yerr=spreads, fmt="none", ecolor=look.colour, capsize=2, lw=1)


def _paper(axes: Axes, line: Mapping[float, str | None], look: Look, name: str) -> None:
    known = {value: float(text) for value, text in line.items() if text}
    if known:
        x, y = list(known), list(known.values())
        axes.plot(x, y, "s:", color=look.colour, markerfacecolor="white", label=name or None)


def _scale(axes: Axes, values: Sequence[float]) -> None:
    """Put a tick at every value; a logarithmic axis where they span more than a decade."""
    if values[0] > 0 and values[-1] >= 10 * values[0]:
        axes.set_xscale("log")
    axes.set_xticks(list(values), [f"{value:g}" for value in values])
    axes.set_xticks([], minor=True)
