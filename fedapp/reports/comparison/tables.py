"""Tables of a comparison: accuracy, fairness, cost and sweeps (`differences` has the paired ones).

Unless a title says otherwise, accuracy is at the round with the best mean accuracy on validation
images, a choice that sees no test image.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from fedapp.core.formatting import count, duration, percent, points, size
from fedapp.learn.metrics import LABEL_GROUPS, label_group
from fedapp.reports.comparison.differences import FINE_TUNED, harm, references_of
from fedapp.reports.comparison.paper import COST, PaperNumbers
from fedapp.reports.comparison.record import (
    BEST,
    FINAL,
    LONE_FORMS,
    NETWORK_ALONE,
    SELECTED,
    WORK,
    WORST_DECILE,
    Column,
    ComparisonRecord,
    by_method,
    mean,
    seeds,
    spread,
)
from fedapp.reports.comparison.style import MIX
from fedapp.reports.comparison.sweep import Sweep, looks_of_lines
from fedapp.reports.layout import DASH, BestEntry, Entry, Table

_NOT_COMPARABLE = "†"
"""Marks a paper's number that ours must not be compared with; a note gives the reason."""
COMMON, TUNED, ALONE = "common", "tuned", "alone"
_ANSWERS = {COMMON: "average", TUNED: "own", ALONE: "alone"}
_SHARES = {
    SELECTED: "Selected, %",
    FINAL: "Last round, %",
    "last5_test_accuracy": "Last five rounds, %",
    WORST_DECILE: "Worst decile, %",
    "largest_fall": "Largest fall, points",
    "calibration_error": "Calibration error, %",
}
"""Title of each column of results.csv that holds shares."""
_WORK = dict(zip(WORK, ("Steps a site", "Images a site"), strict=True))
"""Title of each column of results.csv that holds counts of work."""
_FAIRNESS = {
    "selected_std": "Selected: std over sites, points",
    WORST_DECILE: "Selected: worst decile, %",
    "final_std": "Last round: std over sites, points",
    "final_worst_decile": "Last round: worst decile, %",
}
TITLES = {SELECTED: "Accuracy by {}, %", WORST_DECILE: "Worst tenth of the sites by {}, %"}
"""Title of the table of values of a parameter, for each column of results.csv that has one."""


def summary_table(comparison: ComparisonRecord) -> Table:
    """Return accuracy, stability, harm, models sent and work, by method and setting."""
    references = references_of(comparison)

    def worse(reference: str) -> Column:
        def entry(setting: str, method: str) -> str:
            if method == comparison.behind(reference):
                return DASH
            return percent(harm(comparison, setting, method, reference)[0].lower_share)

        return entry

    columns = {
        **{title: spread(comparison, column) for column, title in _SHARES.items()},
        **{f"Sites worse than {comparison.label(r)}, %": worse(r) for r in references},
        "Models per site and round": mean(
            comparison, "models_per_site_round", lambda n: DASH if n is None else f"{n:.2f}"
        ),
        **{title: mean(comparison, column, count) for column, title in _WORK.items()},
    }
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
        absent = f"{NETWORK_ALONE}, {LONE_FORMS[0]} and {FINE_TUNED}"
        notes.append(f"Harmed sites cannot be counted: {absent} are not in this comparison.")
    table = by_method("All at a glance", comparison, columns, notes)
    rows: list[Sequence[Entry]] = []
    for setting in comparison.settings:
        rows += [row for row in table.rows if row[0] == setting]
        if form := comparison.lone_form(setting):
            found = (spread(comparison, f"{ALONE}_{at}")(setting, form) for at in (SELECTED, FINAL))
            label = f"{comparison.looks[form].label}, of each site alone"
            rows.append([setting, label, *found, *[DASH] * (len(columns) - 2)])
    return replace(table, rows=rows)


def accuracy_table(comparison: ComparisonRecord) -> Table:
    """Return accuracy by method and setting, with the best of each setting in bold."""
    settings, seeds = comparison.settings, len(comparison.seeds)
    best = {setting: best_of(comparison, setting) for setting in settings}
    entry = _bold(comparison, SELECTED, best)
    rows = [
        [comparison.looks[method].label, *(entry(setting, method) for setting in settings)]
        for method in comparison.methods
    ]
    notes = [
        "Mean test accuracy over sites, in %, at the round with the best mean validation accuracy; "
        "mean ± sample standard deviation over seeds "
        f"(n = {seeds} unless said otherwise)."
    ]
    if any(best.values()):
        notes.append("Bold: the best mean of a setting, among the methods with most seeds.")
    notes += _upper_note(comparison)
    return Table("Accuracy by method and setting, %", ["Method", *settings], rows, notes, labels=1)


def value_table(comparison: ComparisonRecord, sweep: Sweep, column: str) -> Table:
    """Return accuracy by line and value of a sweep, with the best of each value in bold.

    column: of results.csv, one of `TITLES`.
    """
    shown = looks_of_lines(comparison, sweep)
    best = {setting: best_of(comparison, setting, column) for setting in sweep.settings}
    entry = _bold(comparison, column, best)
    rows = [
        [
            shown[key].label or "mean over sites",
            *(entry(*line[value]) if value in line else DASH for value in sweep.values),
        ]
        for key, line in sweep.lines.items()
    ]
    columns = ["Method", *(f"{sweep.parameter} = {value:g}" for value in sweep.values)]
    notes = [
        "Test accuracy in %, at the round with the best mean validation accuracy; mean ± sample "
        f"standard deviation over seeds (n = {len(comparison.seeds)} unless said otherwise). Bold: "
        "the best mean of a setting, among the methods with most seeds.",
        *_upper_note(comparison),
    ]
    return Table(TITLES[column].format(sweep.parameter), columns, rows, notes, labels=1)


def _bold(comparison: ComparisonRecord, column: str, best: Mapping[str, str | None]) -> Column:
    text = spread(comparison, column)

    def entry(setting: str, method: str) -> Entry:
        shown = text(setting, method)
        return BestEntry(str(shown)) if method == best[setting] else shown

    return entry


def paper_table(comparison: ComparisonRecord, numbers: PaperNumbers) -> Table:
    """Return accuracy by three ways to choose a round, with the paper's number beside ours."""
    columns: dict[str, Column] = {
        "Seeds": seeds(comparison),
        "Selected on validation": spread(comparison, SELECTED, ran=True),
        "Last round": spread(comparison, FINAL, ran=True),
        "Best test accuracy over rounds": spread(comparison, BEST, ran=True),
    }
    unlike = {at: found for at in comparison.places if (found := numbers.unlike(*at))}
    printed = {at: number for at in comparison.places if (number := numbers.find(*at))}
    shown = printed | {at: f"{number} {_NOT_COMPARABLE}" for at, (number, _) in unlike.items()}
    less = {
        at: points(best - float(number) / 100)
        for at, number in printed.items()
        if (best := comparison.value(*at, BEST)) is not None
    }
    if shown:
        columns["Paper: best test accuracy over rounds"] = lambda s, m: shown.get((s, m), DASH)
        columns["Ours less the paper's, points"] = lambda s, m: less.get((s, m), DASH)
    notes = [
        '"Best test accuracy over rounds" picks the round by its test accuracy, as the paper does: '
        "it flatters every method, the more the more its curve wavers, and is here to be "
        "compared with the paper only."
    ]
    if comparison.method(MIX):
        notes.append("Mix is measured once, after the last round: its three columns are one.")
    reasons = sorted({why for _, why in unlike.values()})
    notes += [f"{_NOT_COMPARABLE} Not comparable: {why}." for why in reasons]
    if shown:
        notes.append(_sizes(comparison, numbers.sizes))
    elif numbers.asked:
        notes.append(
            "The paper's table that was asked for has none of these methods on these data and "
            "settings, so there is nothing to compare with."
        )
    beside = ", and the paper's" if shown else ""
    return by_method(f"Accuracy by choice of round{beside}, %", comparison, columns, notes)


def answers_table(comparison: ComparisonRecord) -> Table | None:
    """Return accuracy of the shared average and of the sites' own models, at two rounds.

    None where no method has both kinds of model.
    """

    def by_seed(place: tuple[str, str], answer: str, at: str) -> dict[int, float]:
        return comparison.by_seed(*place, f"{answer}_{at}_test_accuracy")

    def less(place: tuple[str, str], at: str) -> str:
        own, average = by_seed(place, TUNED, at), by_seed(place, COMMON, at)
        found = [value - average[seed] for seed, value in own.items() if seed in average]
        return points(fmean(found)) if found else DASH

    places = [
        place
        for place in comparison.places
        if all(by_seed(place, answer, "final") for answer in (COMMON, TUNED))
    ]
    if not places:
        return None
    alone = any(by_seed(place, ALONE, "final") for place in places)
    every = [COMMON, TUNED, *([ALONE] if alone else [])]
    columns, rows = ["Setting", "Method"], [[s, comparison.looks[m].label] for s, m in places]
    for at, title in (("selected", "Selected"), ("final", "Last round")):
        columns += [f"{title}: {_ANSWERS[answer]}, %" for answer in every]
        columns.append(f"{title}: own less average, points")
        for row, place in zip(rows, places, strict=True):
            of = (spread(comparison, f"{answer}_{at}_test_accuracy") for answer in every)
            row += [*(str(entry(*place)) for entry in of), less(place, at)]
    notes = [
        "Test accuracy at every site, mean over sites, of two models of one run: the average that "
        "all sites share, and the model that a site makes of it by training on its own images. "
        "Each stands at the round with its own best mean validation accuracy, so neither is chosen "
        "for the other's sake; mean ± sd over seeds. Methods without both are left out. A site "
        "that has not trained counts with the average in the place of its own.",
    ]
    if alone:
        notes.append(
            "Alone: a model that the site trains on its labelled images, without the others. A "
            "site without labels has none, and counts with an even guess: one over the number of "
            "classes."
        )
    return Table("Both ways", columns, rows, notes)


def fairness_table(comparison: ComparisonRecord) -> Table:
    """Return spread over sites and worst decile, at the selected and at the last round."""
    columns = {title: spread(comparison, column) for column, title in _FAIRNESS.items()}
    notes = [
        "Mean ± sd over seeds. Selected: at the round selected on validation images. Std: "
        "population standard deviation of the sites' test accuracies. Worst decile: mean of the "
        "worst tenth of them."
    ]
    return by_method("Fairness over sites", comparison, columns, notes)


def label_table(comparison: ComparisonRecord) -> Table:
    """Return mean accuracy of sites with few, some and many labels."""

    def of_group(group: int) -> Column:
        def entry(setting: str, method: str) -> str:
            sites = comparison.site_pairs(setting, method, method)
            found = sites["ours"][sites["mu"].map(label_group) == group].tolist()
            return f"{percent(fmean(found))} (n = {len(found)})" if found else DASH

        return entry

    columns = {title: of_group(group) for group, title in enumerate(LABEL_GROUPS)}
    notes = [
        "Mean of the sites' test accuracies at the selected round, over the sites of all seeds "
        "together; n: their number. mu: a site's share of labelled training images. Methods with "
        "every label are grouped by the share that the others see."
    ]
    title = "Accuracy of sites with few and with many labels, %"
    return by_method(title, comparison, columns, notes)


def cost_table(comparison: ComparisonRecord) -> Table:
    """Return work, traffic beside the paper's bound, time, and pseudo-label error."""
    columns = {
        "Seeds": seeds(comparison),
        **{title: mean(comparison, column, count) for column, title in _WORK.items()},
        "Models to sites": mean(comparison, "models_down", count),
        "Models to server": mean(comparison, "models_up", count),
        "Bound of Eq. 28, models": mean(comparison, "cost_bound_models", count),
        "Bytes to sites": mean(comparison, "bytes_down", size),
        "Bytes to server": mean(comparison, "bytes_up", size),
        "Bytes for evaluation alone": mean(comparison, "bytes_evaluation", size),
        "Wall time": mean(comparison, "wall_seconds", duration),
        "Pseudo-label error, %": spread(comparison, "pseudo_label_error", ran=True),
    }
    notes = [
        "Means over seeds, of a whole run. Models and bytes are those that a method's rounds send, "
        "messages included; what is sent only to measure a model is counted apart. Bound: the "
        "paper's for UM-pFSSL (Eq. 28), models both ways; other methods have none.",
        "Steps: of every optimiser, of all networks of a site, warm-up too. Images: that went into "
        "them, each view and each repeat counted. Methods whose sites do unequal work are not "
        "compared by their rules alone.",
        "Wall times are comparable only where the cells ran on one machine, as many at a time. "
        "Pseudo-label error: share of wrong ones, last measured; mean ± sd over seeds.",
    ]
    if comparison.method(MIX):
        notes.append("Mix costs what the three methods that it asks cost together.")
    return by_method("Cost of a run", comparison, columns, notes)


def sweep_table(comparison: ComparisonRecord, sweep: Sweep, numbers: PaperNumbers) -> Table:
    """Return accuracy and cost for each value of a method's parameter, beside the paper's."""
    rows: list[list[Entry]] = []
    shown = looks_of_lines(comparison, sweep)
    for key, line in sweep.lines.items():
        costs = relative_costs(comparison, line)
        for value, place in sorted(line.items()):
            rows.append(
                [
                    *(shown[key].label or DASH, f"{value:g}", seeds(comparison)(*place)),
                    spread(comparison, SELECTED, ran=True)(*place),
                    spread(comparison, BEST, ran=True)(*place),
                    numbers.find(*place) or DASH,
                    percent(costs.get(value)),
                    numbers.find(*place, COST) or DASH,
                ]
            )
    columns = [
        *("Line", sweep.parameter, "Seeds", "Selected on validation, %"),
        *("Best test accuracy over rounds, %", "Paper: best over rounds, %"),
        *("Cost, % of the dearest", "Paper: cost, %"),
    ]
    notes = ["Cost: models sent, both ways, mean over seeds, in % of the dearest value's."]
    if all(row[0] == DASH for row in rows):
        columns, rows = columns[1:], [row[1:] for row in rows]
        return Table(f"Values of {sweep.parameter}", columns, rows, notes, labels=1)
    return Table(f"Values of {sweep.parameter}", columns, rows, notes)


def relative_costs(
    comparison: ComparisonRecord, line: Mapping[float, tuple[str, str]]
) -> dict[float, float]:
    """Return models sent, both ways, by value: as a share of the most expensive value's."""
    every = {value: comparison.value(*place, "models") for value, place in line.items()}
    means = {value: mean for value, mean in every.items() if mean is not None}
    dearest = max(means.values(), default=0.0)
    return {value: mean / dearest for value, mean in means.items()} if dearest else {}


def best_of(comparison: ComparisonRecord, setting: str, column: str = SELECTED) -> str | None:
    """Return the method with the highest mean, to be printed in bold.

    Only methods with the most seeds count, without those that see every label. None where fewer
    than two remain.
    """
    measured = {
        method: values
        for method in comparison.methods
        if (values := comparison.by_seed(setting, method, column))
        and not comparison.has_all_labels(setting, method)
    }
    most = max(map(len, measured.values()), default=0)
    whole = {m: fmean(values.values()) for m, values in measured.items() if len(values) == most}
    return max(whole, key=lambda m: whole[m]) if len(whole) > 1 else None


def _upper_note(comparison: ComparisonRecord) -> list[str]:
    """Return a note on the methods that see every label, if there are any."""
    upper = [
        comparison.looks[method].label
        for method in comparison.methods
        if any(comparison.has_all_labels(setting, method) for setting in comparison.settings)
    ]
    if not upper:
        return []
    return [
        f"With every training image labelled: {', '.join(upper)}. They "
        "are upper references: the others see a part of the labels, so these are never in bold."
    ]


def _sizes(comparison: ComparisonRecord, theirs: str) -> str:
    """Return a note on how large our runs and the paper's were."""
    return (
        f"Here: {_range(comparison, 'sites')} sites, {_range(comparison, 'rounds')} rounds. The "
        f"paper: {theirs}. Where the sizes differ, only "
        "the order of the methods can be compared, not the numbers."
    )


def _range(comparison: ComparisonRecord, column: str) -> str:
    known = comparison.results[column].dropna()
    ends = sorted({known.min(), known.max()}) if len(known) else []
    return " to ".join(f"{n:g}" for n in ends) or "unknown"
