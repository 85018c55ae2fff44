"""Figures of accuracy: curves per round and variance over sites; and the style of all figures.

Every function returns a Matplotlib figure and draws nothing on a screen; `png` makes the file.
"""

import io
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import ParamSpec, TypeVar

import matplotlib.style
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import AbstractPathEffect, withStroke
from matplotlib.ticker import MaxNLocator

from fedapp.results.comparison.looks import Look, looks
from fedapp.results.comparison.record import Comparison, RoundResult
from fedapp.results.statistics import Mean, mean_sd

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
"""Of every figure: 150 dots an inch, 7 to 10 inches wide, so that 10 points can be read."""

HATCHES = {"-": "", "--": "///", ":": "...", "-.": "xxx"}
"""A bar's hatching for a curve's line."""
MARKERS = "os^DvP*X"
"""Of lines that cross: they stay apart in grey too."""
PANEL_COLUMNS = 2
WIDTH_ONE, WIDTH_MORE = 7.0, 10.0
LEGEND_ROW = 0.22
"""Inches."""
MOST_BANDS = 8
"""Lines of a panel that have their spread drawn; the bands of more hide each other."""

Arguments = ParamSpec("Arguments")
Drawn = TypeVar("Drawn")
Curve = Callable[[RoundResult], float | None]


def styled(draw: Callable[Arguments, Drawn]) -> Callable[Arguments, Drawn]:
    """Make a function draw in the project's style, whatever the caller's is."""

    @wraps(draw)
    def inside(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Drawn:
        with matplotlib.style.context(STYLE, after_reset=True):
            return draw(*args, **kwargs)

    return inside


@styled
def png(figure: Figure) -> bytes:
    """Return a figure as a PNG file. The same figure gives the same bytes."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


@styled
def accuracy_curves(comparison: Comparison) -> Figure | None:
    """Mean test accuracy over sites per round (Figs. 4, 5); None without rounds."""
    label = "mean test accuracy over sites, %"
    return _curves(comparison, lambda row: row.mean_test_accuracy, label)


@styled
def error_curves(comparison: Comparison) -> Figure | None:
    """Share of wrong pseudo-labels per round (Fig. 8); None where no method makes any."""
    return _curves(comparison, lambda row: row.pseudo_label_error, "wrong pseudo-labels, %")


def panels(count: int, height: float, *, share_y: bool = False) -> tuple[Figure, list[Axes]]:
    """Return a figure of the project's style with `count` panels, `height` inches each."""
    columns = min(count, PANEL_COLUMNS)
    rows = -(-count // columns)
    figure = Figure(figsize=(WIDTH_ONE if columns == 1 else WIDTH_MORE, height * rows))
    grid = figure.subplots(rows, columns, squeeze=False, sharey=share_y)
    every = [axes for row in grid for axes in row]
    for unused in every[count:]:
        unused.remove()
    return figure, every[:count]


def _curves(comparison: Comparison, value: Curve, label: str) -> Figure | None:
    """Draw one panel per setting, one line per method, with a band of one sd over seeds.

    Panels of more than `MOST_BANDS` lines have no bands: the tables have every spread.
    """
    shown: dict[str, dict[str, dict[int, Mean]]] = {}
    for setting in comparison.settings:
        for method in comparison.methods:
            if line := _line(comparison, setting, method, value):
                shown.setdefault(setting, {})[method] = line
    if not shown:
        return None
    names = looks(comparison.methods, comparison.presets)
    datasets = {cell.dataset for cell in comparison.cells.values()}
    figure, every = panels(len(shown), 3.6, share_y=len(datasets) == 1)
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


def _line(comparison: Comparison, setting: str, method: str, value: Curve) -> dict[int, Mean]:
    """Return round -> mean over the seeds that measured it."""
    by_round: dict[int, list[float]] = {}
    for seed in comparison.seeds:
        for row in comparison.rounds.get((setting, method, seed), ()):
            if (number := value(row)) is not None:
                by_round.setdefault(row.round, []).append(100 * number)
    means = {number: mean_sd(values) for number, values in sorted(by_round.items())}
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


@styled
def variance_bars(comparison: Comparison) -> Figure | None:
    """Variance of test accuracy over sites, mean and sd over seeds (Fig. 6); None if unmeasured."""
    found: dict[str, dict[str, Mean]] = {}
    for setting in comparison.settings:
        for method in comparison.methods:
            stds = comparison.by_seed(setting, method, "selected_std").values()
            if mean := mean_sd((100 * std) ** 2 for std in stds):
                found.setdefault(setting, {})[method] = mean
    if not found:
        return None
    names = looks(comparison.methods, comparison.presets)
    shown = [m for m in comparison.methods if any(m in bars for bars in found.values())]
    figure, every = panels(len(found), 1.1 + 0.27 * len(shown), share_y=True)
    for axes in every[1:]:
        axes.sharex(every[0])
    for axes, (setting, bars) in zip(every, found.items(), strict=True):
        for place, method in enumerate(shown):
            if mean := bars.get(method):
                look = names[method]
                drawn = axes.barh(place, mean.value, height=0.7, linewidth=0, color=look.colour)
                for bar in drawn:
                    bar.set(hatch=HATCHES[look.line], edgecolor="white")
                if mean.sd is not None:
                    _whisker(axes, mean, place)
        axes.set(title=setting, xlabel="variance over sites, squared points")
        axes.grid(visible=False, axis="y")
    every[0].set_xlim(0, None)  # of all, now that all is drawn: limits once set are not widened
    every[0].set_yticks(range(len(shown)), [names[m].label for m in shown])
    every[0].invert_yaxis()
    return figure


def _whisker(axes: Axes, mean: Mean, place: int) -> None:
    """Draw one sd each way, with a white rim that keeps it apart from a dark bar."""
    rim: list[AbstractPathEffect] = [withStroke(linewidth=3, foreground="white")]
    line = axes.errorbar(mean.value, place, xerr=mean.sd, color="#222222", capsize=2.5, lw=1.1)
    for part in line.get_children():
        part.set_path_effects(rim)


def lines_of(every: Sequence[Axes]) -> dict[str, Artist]:
    """Return every named line of some panels, once, by its name."""
    named: dict[str, Artist] = {}
    for axes in every:
        handles, labels = axes.get_legend_handles_labels()
        named |= dict(zip(labels, handles, strict=True))
    return named


def legend(figure: Figure, named: Mapping[str, Artist], columns: int = 4) -> None:
    """Name every line once, below the panels, where it covers nothing."""
    columns = min(len(named), columns if figure.get_figwidth() >= WIDTH_MORE else columns - 1)
    rows = -(-len(named) // columns)
    figure.set_figheight(figure.get_figheight() + LEGEND_ROW * rows)
    figure.legend(list(named.values()), list(named), loc="outside lower center", ncols=columns)
