"""The tables of fairness: how evenly the sites fare, and how with few and many labels."""

from collections.abc import Sequence
from statistics import fmean

from fedapp.ground.text import percent
from fedapp.learn.metrics import LABEL_GROUPS, label_group
from fedapp.results.comparison.looks import looks
from fedapp.results.comparison.record import Comparison
from fedapp.results.layout import DASH, Entry, Table, mean_percent


def fairness_table(comparison: Comparison) -> Table:
    """Spread over sites and worst decile, at the selected and at the last round."""
    names = looks(comparison.methods, comparison.presets)
    measured = ("selected_std", "selected_worst_decile", "final_std", "final_worst_decile")
    rows: list[list[Entry]] = []
    for setting in comparison.settings:
        for method in comparison.ran(setting):
            spreads = (
                mean_percent(comparison.mean(setting, method, column), len(comparison.seeds))
                for column in measured
            )
            rows.append([setting, names[method].label, *spreads])
    columns = [
        *("Setting", "Method", "Selected: std over sites, points", "Selected: worst decile, %"),
        *("Last round: std over sites, points", "Last round: worst decile, %"),
    ]
    notes = [
        "Mean ± sd over seeds. Selected: at the round selected on validation images. Std: "
        "population standard deviation of the sites' test accuracies. Worst decile: mean of the "
        "worst tenth of them."
    ]
    return Table("Fairness over sites", columns, rows, notes)


def label_table(comparison: Comparison) -> Table:
    """Mean accuracy of sites with few, some and many labels."""
    names = looks(comparison.methods, comparison.presets)
    rows: list[list[Entry]] = []
    for setting in comparison.settings:
        for method in comparison.ran(setting):
            groups = _accuracies(comparison, setting, method)
            means = (f"{percent(fmean(g))} (n = {len(g)})" if g else DASH for g in groups)
            rows.append([setting, names[method].label, *means])
    notes = [
        "Mean of the sites' test accuracies at the selected round, over the sites of all seeds "
        "together; n: their number. mu: a site's share of labelled training images. Methods with "
        "every label are grouped by the share that the others see."
    ]
    title = "Accuracy of sites with few and with many labels, %"
    return Table(title, ["Setting", "Method", *LABEL_GROUPS], rows, notes)


def _accuracies(comparison: Comparison, setting: str, method: str) -> Sequence[Sequence[float]]:
    groups: list[list[float]] = [[] for _ in LABEL_GROUPS]
    for mu, ours, _ in comparison.site_pairs(setting, method, method):
        groups[label_group(mu)].append(ours)
    return groups
