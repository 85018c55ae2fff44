"""The table of a site's answers: the average that all share, beside the site's own model."""

from collections.abc import Mapping
from statistics import fmean

from fedapp.ground.text import points
from fedapp.results.comparison.looks import looks
from fedapp.results.comparison.record import Comparison
from fedapp.results.layout import DASH, Entry, Table, mean_percent

COMMON, TUNED, ALONE = "common", "tuned", "alone"
_NAMES = {COMMON: "average", TUNED: "own", ALONE: "alone"}
_ROUNDS = ("selected", "final")


def answers_table(comparison: Comparison) -> Table | None:
    """Accuracy of the average and of the sites' own models, at both rounds; None without any."""
    names, seeds = looks(comparison.methods, comparison.presets), len(comparison.seeds)
    places = [
        (setting, method)
        for setting in comparison.settings
        for method in comparison.ran(setting)
        if all(_by_seed(comparison, setting, method, a, "final") for a in (COMMON, TUNED))
    ]
    if not places:
        return None
    every = [COMMON, TUNED]
    if any(_by_seed(comparison, *place, ALONE, "final") for place in places):
        every.append(ALONE)
    rows: list[list[Entry]] = []
    for setting, method in places:
        row: list[Entry] = [setting, names[method].label]
        for at in _ROUNDS:
            means = (comparison.mean(setting, method, _column(a, at)) for a in every)
            row += [mean_percent(mean, seeds) for mean in means]
            row.append(
                _less(*(_by_seed(comparison, setting, method, a, at) for a in (TUNED, COMMON)))
            )
        rows.append(row)
    columns = ["Setting", "Method"]
    for title in ("Selected", "Last round"):
        columns += [f"{title}: {_NAMES[answer]}, %" for answer in every]
        columns.append(f"{title}: own less average, points")
    notes = [
        "Test accuracy at every site, mean over sites, of two models of one run: the average that "
        "all sites share, and the model that a site makes of it by training on its own images. "
        "Each stands at the round with its own best mean validation accuracy, so neither is chosen "
        "for the other's sake; mean ± sd over seeds. Methods without both are left out. A site "
        "that has not trained counts with the average in the place of its own.",
    ]
    if ALONE in every:
        notes.append(
            "Alone: a model that the site trains on its labelled images, without the others. A "
            "site without labels has none, and counts with an even guess: one over the number of "
            "classes."
        )
    return Table("Both ways", columns, rows, notes)


def _by_seed(
    comparison: Comparison, setting: str, method: str, answer: str, at: str
) -> dict[int, float]:
    return comparison.by_seed(setting, method, _column(answer, at))


def _column(answer: str, at: str) -> str:
    return f"{answer}_{at}_test_accuracy"


def _less(first: Mapping[int, float], second: Mapping[int, float]) -> str:
    """Return the mean difference over the seeds that have both."""
    differences = [value - second[seed] for seed, value in first.items() if seed in second]
    return points(fmean(differences)) if differences else DASH
