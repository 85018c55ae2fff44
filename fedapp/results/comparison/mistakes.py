"""Figures of what a method mistakes: confusion matrices (Fig. 11)."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedapp.ground.errors import RunError
from fedapp.ground.foreign import json_file
from fedapp.results.comparison.figures import panels, styled
from fedapp.results.comparison.looks import featured
from fedapp.results.comparison.record import ComparisonRecord

MOST_PANELS = 4


def confusion(comparison: ComparisonRecord, setting: str, method: str) -> NDArray[np.int64] | None:
    """Return counts [C, C], true class x predicted class, of the sites' test images.

    Summed over sites and seeds, after the last round. None without a test image.
    Raises RunError where a cell's evaluations.json is damaged.
    """
    total: NDArray[np.int64] | None = None
    tested = "_".join(filter(None, ["test", comparison.answers.get(method)]))
    for cell in comparison.of(setting, method).values():
        path = comparison.folder / cell.cell / "evaluations.json"
        if not path.is_file():
            continue
        try:
            sites = json_file(path)
            parts = [site[tested]["confusion"] for site in sites.values() if tested in site]
            for part in parts:
                counts = np.array(part, dtype=np.int64)
                total = counts if total is None else total + counts
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RunError(f"{path}: is damaged ({error}); run the cell again") from error
    return total if total is not None and total.any() else None


@styled
def confusion_figure(comparison: ComparisonRecord, setting: str) -> Figure | None:
    """Confusion matrices of some methods in one setting, each row in percent; None without any."""
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
    """Draw each true class as a row of percentages; a class without images stays empty."""
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
