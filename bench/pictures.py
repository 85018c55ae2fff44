"""The pictures of README and docs/GALLERY.md that no comparison makes, from docs/results.

`python -m bench.pictures` writes them into docs/pictures; it takes seconds.
"""

import csv
from collections import defaultdict
from pathlib import Path
from statistics import mean

from matplotlib.figure import Figure

from fedapp.results.comparison.figures import WIDTH_MORE, png, styled
from fedapp.results.comparison.looks import looks

DOCS = Path(__file__).parents[1] / "docs"
SHOWN = ("local_only", "fedavg", "fedavg_ft", "ditto", "um_pfssl", "recommended")
PANELS = (
    ("results_fashion_mnist", "alpha=0.5", "Fashion-MNIST, uneven class mixes"),
    ("results_fashion_mnist", "alpha=5", "Fashion-MNIST, even class mixes"),
    ("results_cifar10", "alpha=0.5", "CIFAR-10, uneven class mixes"),
    ("results_cifar10", "alpha=5", "CIFAR-10, even class mixes"),
)


def accuracies(study: str, setting: str, docs: Path = DOCS) -> dict[str, list[float]]:
    """Return each shown method's accuracy at the selected round, in %, seed by seed."""
    found = defaultdict[str, list[float]](list)
    with (docs / "results" / study / "results.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["setting"] == setting and row["method"] in SHOWN:
                found[row["method"]].append(100 * float(row["selected_test_accuracy"]))
    return dict(found)


@styled
def seed_by_seed(docs: Path = DOCS) -> Figure:
    """Draw every method's seeds as rings and their mean as a bar's end, a panel a setting."""
    figure = Figure(figsize=(WIDTH_MORE, 4.6))
    names = looks(SHOWN)
    for axes, (study, setting, title) in zip(
        figure.subplots(2, 2, sharey=True).flat, PANELS, strict=True
    ):
        found = accuracies(study, setting, docs)
        for place, method in enumerate(reversed(SHOWN)):
            values, colour = found[method], names[method].colour
            axes.barh(place, mean(values), color=colour, alpha=0.35, height=0.7)
            axes.plot(values, [place] * len(values), "o", mfc="none", color=colour, ms=4.5)
            axes.annotate(f"{mean(values):.1f}", (1, place), va="center", weight="bold")
        axes.set(title=title, xlim=(0, 100))
        axes.set_yticks(range(len(SHOWN)), [names[method].label for method in reversed(SHOWN)])
    figure.supxlabel("accuracy on the sites' own test images, %: mean (bar) and seeds (rings)")
    return figure


def main() -> None:
    """Write the pictures."""
    folder = DOCS / "pictures"
    folder.mkdir(exist_ok=True)
    (folder / "methods.png").write_bytes(png(seed_by_seed()))
    print(folder / "methods.png")


if __name__ == "__main__":
    main()
