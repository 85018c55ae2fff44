"""The gain from joining in the committed results, over two ways to train alone.

    python -m bench.gain [STUDY ...]

A study is a folder of docs/results with a results.csv; without one it is `fresh`.
The two anchors are a network that each site trains alone, and the closed form of each site's own
sums, which a study's `one_round` measures too: training alone with the same features. Differences
are paired over seeds, in points, with 95 % intervals.
"""

import sys
from pathlib import Path

from bench.record import csv_rows
from fedapp.core.errors import RunError
from fedapp.core.formatting import counted
from fedapp.reports.statistics import Difference, paired_difference

RESULTS = Path(__file__).parents[1] / "docs/results"
FRESH = "fresh"
"""The study on seeds that no choice has seen."""
JOINED = ("one_round", "recommended")
FINAL, ALONE = "final_test_accuracy", "alone_final_test_accuracy"


def by_seed(study: str, setting: str, method: str, column: str = FINAL) -> dict[int, float]:
    """Return a method's accuracies after the last round, in %, by seed."""
    return {
        int(row["seed"]): 100 * float(row[column])
        for row in csv_rows(RESULTS / study / "results.csv")
        if (row["setting"], row["method"]) == (setting, method)
    }


def anchors(study: str, setting: str) -> dict[str, dict[int, float]]:
    """Return the accuracy of training alone in %, by seed: by a network and the closed form."""
    return {
        "a network": by_seed(study, setting, "local_only"),
        "the closed form": by_seed(study, setting, "one_round", ALONE),
    }


def gain(study: str, setting: str, method: str, anchor: str) -> Difference:
    """Return the gain of a method over training alone, in points, paired over seeds.

    Raises RunError where the study has no seed with both.
    """
    together, alone = by_seed(study, setting, method), anchors(study, setting)[anchor]
    if (found := paired_difference(together, alone)) is None:
        raise RunError(f"{study}, {setting}: no seed has both {method} and training {anchor} alone")
    return found


def lines(study: str) -> list[str]:
    """Return the gains of a study as lines of text."""
    settings = dict.fromkeys(row["setting"] for row in csv_rows(RESULTS / study / "results.csv"))
    return [
        f"{study}, {setting}: {method} {found.value:+.1f}{_interval(found)} "
        f"over training {anchor} alone, {counted(found.n, 'seeds')}"
        for setting in settings
        for method in JOINED
        if by_seed(study, setting, method)
        for anchor in anchors(study, setting)
        if anchors(study, setting)[anchor]
        for found in [gain(study, setting, method, anchor)]
    ]


def _interval(found: Difference) -> str:
    return "" if found.low is None else f" ({found.low:.1f} to {found.high:.1f})"


def main() -> None:
    """Print the gains of the studies that the command names, else of `fresh`."""
    for study in sys.argv[1:] or [FRESH]:
        print(*lines(study), sep="\n")


if __name__ == "__main__":
    main()
