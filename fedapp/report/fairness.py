"""The tables of fairness: how evenly the sites fare, and who would have fared better alone."""

from collections.abc import Sequence
from itertools import chain
from statistics import fmean

from fedapp.figures import percent
from fedapp.report.layout import DASH, Entry, Table, mean_percent
from fedapp.report.looks import looks
from fedapp.report.records import Comparison
from fedapp.report.statistics import LABEL_GROUPS, Tally, label_group, tally

ALONE = "local_only"
"""Preset of the method without federation, against which harm is measured."""


def fairness_table(comparison: Comparison) -> Table:
    """Spread over sites, worst decile, and the share of sites harmed, overall and by labels."""
    names = looks(comparison.methods, comparison.presets)
    alone = comparison.method(ALONE)
    rows: list[list[Entry]] = []
    for setting in comparison.settings:
        for method in comparison.ran(setting):
            spreads = (
                mean_percent(comparison.mean(setting, method, column), len(comparison.seeds))
                for column in ("selected_std", "selected_worst_decile")
            )
            harms = _harm(comparison, setting, method, alone) if alone else []
            rows.append([setting, names[method].label, *spreads, *harms])
    columns = ["Setting", "Method", "Std over sites, points", "Worst decile, %"]
    notes = [
        "At the round selected on validation images; mean ± sd over seeds. Std: population "
        "standard deviation of the sites' test accuracies. Worst decile: mean of the worst tenth "
        "of them. mu: a site's share of labelled training images."
    ]
    if alone:
        columns += ["Sites harmed", *(f"Harmed, {group}" for group in LABEL_GROUPS)]
        notes.append(
            "Harmed: the site's test accuracy is lower than LocalOnly's at the same site, setting "
            "and seed; over all seeds, sites without test images left out. Both stand "
            "at their own selected rounds. A small site is harmed by a single image."
        )
    else:
        notes.append("Harmed sites cannot be counted: local_only is not in this comparison.")
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
        "together; n: their number. Methods with every label are grouped by the share that the "
        "others see."
    ]
    title = "Accuracy by share of labels, %"
    return Table(title, ["Setting", "Method", *LABEL_GROUPS], rows, notes)


def harm(comparison: Comparison, setting: str, method: str, alone: str) -> tuple[Tally, ...]:
    """Count sites against the method `alone`: all of them, then each of `LABEL_GROUPS`."""
    groups: list[list[tuple[float, float]]] = [[] for _ in LABEL_GROUPS]
    for mu, ours, their in comparison.site_pairs(setting, method, alone):
        groups[label_group(mu)].append((ours, their))
    return (tally(chain(*groups)), *map(tally, groups))


def _harm(comparison: Comparison, setting: str, method: str, alone: str) -> list[str]:
    if method == alone:
        return [DASH] * (1 + len(LABEL_GROUPS))
    return [
        f"{percent(t.lower_share)} % ({t.lower} of {t.n})" if t.n else DASH
        for t in harm(comparison, setting, method, alone)
    ]


def _accuracies(comparison: Comparison, setting: str, method: str) -> Sequence[Sequence[float]]:
    groups: list[list[float]] = [[] for _ in LABEL_GROUPS]
    for mu, ours, _ in comparison.site_pairs(setting, method, method):
        groups[label_group(mu)].append(ours)
    return groups
