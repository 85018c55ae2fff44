"""Figures of what a method mistakes: confusion matrices (Fig. 11) and latent features (Fig. 9)."""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE
from threadpoolctl import threadpool_limits

from fedapp.ground.errors import RunError
from fedapp.ground.foreign import arrays_of, json_file
from fedapp.results.comparison.figures import legend, panels, styled
from fedapp.results.comparison.looks import BLACK, PALETTE, featured
from fedapp.results.comparison.record import CellResult, ComparisonRecord

MARKERS = "os^Dv*P<X>"
CLASS_COLOURS = (*PALETTE, BLACK)
MOST_POINTS = 1000
_DIMENSIONS = 50
_FEWEST_POINTS = 5
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


@styled
def latent_figure(comparison: ComparisonRecord, setting: str) -> Figure | None:
    """t-SNE of the features of up to four methods in one setting, first seed that has them.

    Coloured by class, one marker per site (they repeat after ten). None where no cell has features.
    """
    order = featured(comparison.methods, comparison.presets)
    every = ((method, features(comparison, setting, method)) for method in order)
    found = [(method, latent) for method, latent in every if latent is not None][:MOST_PANELS]
    if not found:
        return None
    classes = np.unique(np.concatenate([labels for _, (_, labels, _) in found]))
    sites = np.unique(np.concatenate([sites for _, (_, _, sites) in found]))
    markers = {int(site): MARKERS[place % len(MARKERS)] for place, site in enumerate(sites)}
    figure, axes_of = panels(len(found), 4.4)
    for axes, (method, (points, labels, own)) in zip(axes_of, found, strict=True):
        _scatter(axes, embed(points), labels, own, markers)
        axes.set_title(comparison.looks[method].label)
    shapes = {f"site {k}": ("#66727E", m) for k, m in markers.items()}
    named = {f"class {c}": (_colour(c), "o") for c in classes}
    _legend(figure, named | (shapes if len(shapes) <= len(MARKERS) else {}))
    return figure


Latent = tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64]]
"""Features [n, d], class of each [n], site of each [n]."""


def features(comparison: ComparisonRecord, setting: str, method: str) -> Latent | None:
    """Return the features of the first seed that has any, at most `MOST_POINTS` evenly spaced.

    Rows that are not finite are left out. Raises RunError where a file is damaged.
    """
    for cell in comparison.of(setting, method).values():
        found = _read(comparison, cell)
        if found is not None:
            return found
    return None


def embed(points: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return t-SNE coordinates [n, 2] of features [n, d], n >= 5; PCA to 50 dimensions first.

    The same features give the same picture.
    """
    if points.shape[1] > _DIMENSIONS and len(points) > _DIMENSIONS:
        points = PCA(_DIMENSIONS, random_state=0).fit_transform(points)
    perplexity = min(30.0, (len(points) - 1) / 3)
    tsne = TSNE(2, perplexity=perplexity, init="random", random_state=0)
    with threadpool_limits(1):  # on busy cores threads wait for each other: 86 s instead of 2
        placed = tsne.fit_transform(points)
    return np.asarray(placed, dtype=np.float32)


def _read(comparison: ComparisonRecord, cell: CellResult) -> Latent | None:
    path = comparison.folder / cell.cell / "latent.npz"
    if not path.is_file():
        return None
    try:
        file = arrays_of(path)
        points, labels, sites = (file[n] for n in ("features", "labels", "sites"))
        kept = np.flatnonzero(np.isfinite(points).all(axis=1))
        if len(kept) > MOST_POINTS:
            kept = kept[np.linspace(0, len(kept) - 1, MOST_POINTS).astype(np.int64)]
        chosen = points[kept].astype(np.float32), labels[kept], sites[kept]
    except (OSError, KeyError, ValueError, IndexError, TypeError) as error:
        raise RunError(f"{path}: is damaged ({error}); run the cell again") from error
    return chosen if len(kept) >= _FEWEST_POINTS else None


def _scatter(
    axes: Axes,
    placed: NDArray[np.float32],
    labels: NDArray[np.int64],
    sites: NDArray[np.int64],
    markers: Mapping[int, str],
) -> None:
    for site, marker in markers.items():
        own = sites == site
        x, y = placed[own].T
        colours = [_colour(label) for label in labels[own]]
        axes.scatter(x, y, c=colours, marker=marker, s=14, linewidths=0, alpha=0.8)
    axes.grid(visible=False)
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set(visible=True, color="#B5BEC7")


def _colour(label: int) -> str:
    return CLASS_COLOURS[label % len(CLASS_COLOURS)]


def _legend(figure: Figure, named: Mapping[str, tuple[str, str]]) -> None:
    handles = [
        Line2D([], [], marker=marker, linestyle="", color=colour)
        for colour, marker in named.values()
    ]
    legend(figure, dict(zip(named, handles, strict=True)), columns=6)
