"""The table of everything that is asked of a method, a row each."""

from fedapp.ground.text import count, percent
from fedapp.results.comparison.harm import REFERENCES, harm
from fedapp.results.comparison.looks import looks
from fedapp.results.comparison.record import FINAL, SELECTED, WORST_DECILE, Comparison
from fedapp.results.layout import DASH, Entry, Table, mean_percent

_SHARES = {
    SELECTED: "Selected, %",
    FINAL: "Last round, %",
    "last5_test_accuracy": "Last five rounds, %",
    WORST_DECILE: "Worst decile, %",
    "largest_fall": "Largest fall, points",
    "calibration_error": "Calibration error, %",
}
"""Column of results.csv -> what a reader calls it."""
_WORK = {"steps_per_site": "Steps a site", "images_per_site": "Images a site"}
"""The same, of counts."""


def summary_table(comparison: Comparison) -> Table:
    """Accuracy, its steadiness, who is harmed and what is sent."""
    names, seeds = looks(comparison.methods, comparison.presets), len(comparison.seeds)
    references = [found for preset in REFERENCES if (found := comparison.method(preset))]
    rows: list[list[Entry]] = []
    for setting in comparison.settings:
        for method in comparison.ran(setting):
            means = [comparison.mean(setting, method, column) for column in _SHARES]
            harms = [_worse(comparison, setting, method, other) for other in references]
            work = [comparison.mean(setting, method, column) for column in _WORK]
            sent = comparison.mean(setting, method, "models_per_site_round")
            rows.append(
                [
                    *(setting, names[method].label),
                    *(mean_percent(mean, seeds) for mean in means),
                    *harms,
                    DASH if sent is None else f"{sent.value:.2f}",
                    *(count(None if mean is None else mean.value) for mean in work),
                ]
            )
    columns = [
        *("Setting", "Method", *_SHARES.values()),
        *(f"Sites worse than {names[other].label}, %" for other in references),
        "Models per site and round",
        *_WORK.values(),
    ]
    notes = [
        "Test accuracy is the mean over sites; all are mean ± sd over seeds. Selected: at the "
        "round with the best mean validation accuracy. Last five rounds: their mean. Worst decile: "
        "mean of the worst tenth of the sites, at the selected round. Largest fall: the most that "
        "is lost from one round to the next.",
        "Calibration error: how far, on average, the probability of an answer is from the share of "
        "right ones, after the last round, over the test images of all sites (expected "
        "calibration error, 15 bins). Models per site and round: models sent, both ways, over all "
        "sites and rounds, the warm-up's among them. Steps, images: of all optimisers of a site, "
        "and images that went into them, each view and each repeat counted; means over sites of a "
        "whole run.",
    ]
    if references:
        notes.append(
            "Sites worse: by more than a point of test accuracy, at the selected round, over the "
            "sites of all seeds; the tables of harm say how they are counted."
        )
    else:
        absent = " and ".join(REFERENCES)
        notes.append(f"Harmed sites cannot be counted: {absent} are not in this comparison.")
    return Table("All at a glance", columns, rows, notes)


def _worse(comparison: Comparison, setting: str, method: str, reference: str) -> str:
    if method == reference:
        return DASH
    return percent(harm(comparison, setting, method, reference)[0].lower_share)
