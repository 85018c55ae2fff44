"""Who is worse off: every site beside what it would have had without this method.

Two references: a model that the site trains alone, and FedAvg's, which the site trains on. A site
is worse or better only where they differ by more than a point.
"""

from collections.abc import Sequence
from itertools import chain

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedapp.ground.text import percent
from fedapp.learn.metrics import LABEL_GROUPS, label_group
from fedapp.results.comparison.figures import (
    MARKERS,
    PANEL_COLUMNS,
    legend,
    lines_of,
    panels,
    styled,
)
from fedapp.results.comparison.looks import Look, looks
from fedapp.results.comparison.record import SITE_FINAL, SITE_SELECTED, Comparison
from fedapp.results.layout import DASH, Entry, Table
from fedapp.results.statistics import Tally, tally

ALONE, FINE_TUNED = "local_only", "fedavg_ft"
REFERENCES = (ALONE, FINE_TUNED)
"""Presets of the methods against which harm is measured."""
MARGIN = 0.01
"""A point: a smaller difference is no harm."""
MOST_LINES = 8
"""Methods in the figure of harm; the lines of more hide each other."""
_MARKS = 8
"""Markers on a line."""
_EVEN = 5
"""Points each way in which the axis of differences is even; beyond it is logarithmic."""
_TICKS = (-50, -20, -10, -5, -1, 0, 1, 5, 10, 20, 50)


def harm_table(comparison: Comparison, reference: str) -> Table:
    """Sites worse and better than under a reference method, at two rounds, and by labels."""
    names = looks(comparison.methods, comparison.presets)
    rows: list[list[Entry]] = []
    for setting in comparison.settings:
        for method in comparison.ran(setting):
            if method != reference:
                counts = _counts(comparison, setting, method, reference)
                rows.append([setting, names[method].label, *counts])
    than = names[reference].label
    columns = [
        *("Setting", "Method", "Worse, selected round", "Better, selected round"),
        *("Worse, last round", "Better, last round"),
        *(f"Worse, selected round, {group}" for group in LABEL_GROUPS),
    ]
    notes = [
        f"Share of the sites whose test accuracy is more than a point below {than}'s (worse) or "
        "above it (better), at the same site, setting and seed; over all seeds, sites without test "
        "images left out. In brackets: how many of how many. At the selected round both stand at "
        "their own. mu: a site's share of labelled training images.",
        "One image is more than a point where a site has fewer than 100 test images: with about 80 "
        "a single image makes a site worse or better. So read worse and better together: where "
        "they are alike, it may be chance.",
    ]
    return Table(f"Sites worse and better than {than} by more than a point", columns, rows, notes)


def harm(
    comparison: Comparison,
    setting: str,
    method: str,
    reference: str,
    column: str = SITE_SELECTED,
    seeds: Sequence[int] | None = None,
) -> tuple[Tally, ...]:
    """Count sites against a reference method: all of them, then each of `LABEL_GROUPS`.

    column: of sites.csv, at which round both stand. seeds: of these runs; None: of all.
    """
    groups: list[list[tuple[float, float]]] = [[] for _ in LABEL_GROUPS]
    for mu, ours, their in comparison.site_pairs(setting, method, reference, column, seeds):
        groups[label_group(mu)].append((ours, their))
    return (tally(chain(*groups), MARGIN), *(tally(group, MARGIN) for group in groups))


@styled
def harm_figure(comparison: Comparison, methods: Sequence[str]) -> Figure | None:
    """Every site's difference from training alone, sorted, one line a method; None without any.

    methods: those to draw; the first `MOST_LINES` but local_only itself. One panel a setting.
    """
    alone = comparison.method(ALONE)
    shown = [method for method in methods if method != alone][:MOST_LINES]
    if alone is None:
        return None
    found = {
        setting: lines
        for setting in comparison.settings
        if (lines := _differences(comparison, setting, shown, alone))
    }
    if not found:
        return None
    names = looks(comparison.methods, comparison.presets)
    figure, every = panels(len(found), 3.6, share_y=True)
    for axes, (setting, lines) in zip(every, found.items(), strict=True):
        axes.axhline(0, color="#222222", linewidth=1)
        for place, method in enumerate(shown):
            if method in lines:
                _draw(axes, names[method], lines[method], place)
        axes.set(title=setting, xlabel="sites, %, from the most harmed", xlim=(0, 100))
        # A site without labels gains 80 points; what is near zero must be seen beside it.
        axes.set_yscale("symlog", linthresh=_EVEN, linscale=1.5)
        axes.set_yticks(_TICKS, [f"{tick:+d}" if tick else "0" for tick in _TICKS])
        axes.set_yticks([], minor=True)
    for axes in every[::PANEL_COLUMNS]:
        axes.set_ylabel(f"accuracy less {names[alone].label}'s, points")
    legend(figure, lines_of(every))
    return figure


def _differences(
    comparison: Comparison, setting: str, methods: Sequence[str], alone: str
) -> dict[str, list[float]]:
    """Return method -> differences in points, ascending, of the sites of all seeds."""
    found = {}
    for method in methods:
        pairs = comparison.site_pairs(setting, method, alone)
        if pairs:
            found[method] = sorted(100 * (ours - their) for _, ours, their in pairs)
    return found


def _draw(axes: Axes, look: Look, differences: Sequence[float], place: int) -> None:
    """Draw one line; its markers tell it from the others where colours do not."""
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


def _counts(comparison: Comparison, setting: str, method: str, reference: str) -> list[str]:
    overall, *groups = harm(comparison, setting, method, reference)
    last, *_ = harm(comparison, setting, method, reference, SITE_FINAL)
    both = [text for t in (overall, last) for text in (_of(t.lower, t.n), _of(t.higher, t.n))]
    return both + [_of(t.lower, t.n) for t in groups]


def _of(some: int, n: int) -> str:
    return f"{percent(some / n)} % ({some} of {n})" if n else DASH
