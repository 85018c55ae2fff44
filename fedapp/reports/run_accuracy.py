"""Accuracy of a run: learning curves, every site before and after, and which sites were harmed."""

from collections.abc import Mapping, Sequence

import numpy as np

from fedapp.core.formatting import counted, first_names, percent
from fedapp.evaluation.confidence_intervals import wilson
from fedapp.evaluation.verdict import NOT_COMPARED, Outcome, joining_lines
from fedapp.learn.metrics import SHARES_OF_LABELS
from fedapp.protocol.messages import ALL_SITES, ANSWERS
from fedapp.reports.charts import (
    GROUP_MARKS,
    IntervalRow,
    Line,
    Point,
    ShareInterval,
    band,
    intervals,
    over_rounds,
    small_charts,
)
from fedapp.reports.layout import DASH, Block, Figure, Table
from fedapp.reports.run_record import GROUPS, RightAnswers, RunRecord, SiteRecord

FEW_SITES = 24
"""With at most this many sites each site has a small chart; with more, groups of sites have one."""
_ANSWER_NAMES = {
    "common": "server's model",
    "tuned": "after training",
    "alone": "trained alone",
    "online": "online network",
    "one_round": "closed form",
}
_ABOUT_CURVES = (
    "Accuracy on images that no site learned from, by round; round 0 is the warm-up. A step of a "
    "few points is chance where sites have few test images."
)
BY_IMAGE = (
    "The thin lines are 95 % intervals (Wilson) of each share by itself, by image, since the "
    "server knows no patients."
)
_ABOUT_PAIRS = (
    "Each row is a site: hollow after the warm-up, filled after the last round, on the same test "
    f"images. {BY_IMAGE} At the right: right answers before and after, of how many images."
)
MOST_OF_A_KIND = 16
"""Sites of one outcome that are drawn; the table has all."""
GAINED, NO_LABELS = "Who gained by joining", "no labels of its own"
MASKED = (
    "With masked sums the server knows the sums over all sites alone. Which sites gained, their "
    "own pages say."
)
_ABOUT_GAINED = (
    "Each row is a site, asked for its own test images. Hollow: the best model that it made alone. "
    "Filled: the best model that others had a part in. Validation images choose both. Circle: "
    "gained beyond chance. Square: lost. Diamond: cannot be told. Cross: no labels, so no model of "
    "its own."
)
_ABOUT_INTERVALS = (
    "Thin lines are 95 % intervals of each share by itself (Wilson). They may overlap where a site "
    "gained: both models answer the same images, and McNemar's exact test counts only those that "
    "one of the two answers rightly. Of sites without a true difference it names at most 1 in 20."
)
_DRAWN: Mapping[Outcome, tuple[str, str, str]] = {
    "paid": ("c0", "o", "gained beyond chance"),
    "harmed": ("c2", "s", "lost beyond chance"),
    "unknown": ("soft", "D", "cannot be told"),
}
"""Colour, mark and words of each outcome, in the order in which they stand."""
NO_CHANGE = "No answer changed after the first measurement: the method trains nothing by rounds."
COMMON_START = "With this method the warm-up is common to all sites: hollow is no site's own model."


def learning_curves(run: RunRecord) -> Block:
    """Return the learning curves of a run: over all sites, by kind of answer, and site by site."""
    if run.last_round < 1:
        return Block("Learning curves", _ABOUT_CURVES, missing="The run has no round yet.")
    if nothing_changed(run):
        return Block("Learning curves", _ABOUT_CURVES, missing=NO_CHANGE)
    figures = [_mean_over_sites(run), *_by_answer(run)]
    missing = ""
    if run.history:
        figures.append(
            _chart_of_each_site(run) if len(run.sites) <= FEW_SITES else _chart_of_groups(run)
        )
    else:
        missing = "Curves of single sites: this run did not record them (sites.jsonl)."
    return Block("Learning curves", _ABOUT_CURVES, figures, missing=missing)


def nothing_changed(run: RunRecord) -> bool:
    """Return whether no accuracy changed over the rounds, so that a curve would be flat."""
    columns = ["mean_test_accuracy", "mean_val_accuracy", "worst_decile_accuracy"]
    columns += [f"mean_test_accuracy_{answer}" for answer in ANSWERS]
    curves = [run.curve(site.number, part) for site in run.sites for part in ("val", "test")]
    every = [
        *([value for _, value in _points(run, column)] for column in columns),
        *([float(right.right) for right in curve.values()] for curve in curves),
    ]
    return run.last_round > 0 and any(every) and all(len(set(values)) < 2 for values in every)


def _by_round(run: RunRecord, title: str, columns: Mapping[str, str]) -> Table:
    """Return a table of shares by round, in percent.

    columns: the title of each column of the table, and the column of metrics.jsonl that it shows.
    """
    rows = [
        [str(row["round"]), *(percent(row.get(name)) for name in columns.values())]
        for row in run.rounds
    ]
    return Table(title, ["Round", *columns], rows, labels=1)


def _points(run: RunRecord, column: str) -> list[Point]:
    """Return (round, value) of a column of metrics.jsonl, of the rounds that measured it."""
    found = ((row["round"], row.get(column)) for row in run.rounds)
    return [(number, value) for number, value in found if value is not None]


def _mean_over_sites(run: RunRecord) -> Figure:
    named = (
        ("test, mean", "mean_test_accuracy", "c0", False),
        ("validation", "mean_val_accuracy", "c1", True),
        ("worst tenth", "worst_decile_accuracy", "c2", False),
    )
    lines = [Line(name, _points(run, key), kind, dash) for name, key, kind, dash in named]
    return _accuracy_figure(
        run,
        "All sites",
        lines,
        "Mean over sites on test and on validation images, and the mean of the tenth of sites that "
        "do worst.",
        _by_round(run, "Accuracy by round, %", {n: key for n, key, *_ in named}),
    )


def _by_answer(run: RunRecord) -> list[Figure]:
    """Return curves of the models that a site can answer with; none where it has only one."""
    kinds = dict(zip(ANSWERS, ("c0", "c1", "c3", "c2", "ink"), strict=True))
    found = {a: points for a in ANSWERS if (points := _points(run, f"mean_test_accuracy_{a}"))}
    if len(found) < 2:
        return []
    lines = [Line(_ANSWER_NAMES[a], points, kinds[a], a != "common") for a, points in found.items()]
    caption = (
        "Mean over sites of what each could answer with: the server's model, its own after it "
        "trained that one, its own trained on its labelled images alone, and the server's online "
        "network where its method has one."
    )
    columns = {_ANSWER_NAMES[a]: f"mean_test_accuracy_{a}" for a in found}
    table = _by_round(run, "Accuracy by answer and round, %", columns)
    return [_accuracy_figure(run, "Answers that sites have", lines, caption, table)]


def _accuracy_figure(
    run: RunRecord, title: str, lines: Sequence[Line], caption: str, table: Table
) -> Figure:
    drawn = [line for line in lines if line.points]
    ends = ", ".join(f"{line.name} {percent(line.points[-1][1])} %" for line in drawn)
    said = f"Lines of accuracy by round. After round {run.last_round}: {ends}."
    return Figure(over_rounds(run.last_round, title, lines, said), caption, table)


def _chart_of_each_site(run: RunRecord) -> Figure:
    """Return a small chart for each site, that with the fewest labels first."""
    charts, rows = [], []
    for site in run.by_labels:
        found = run.curve(site.number)
        points = [(number, right.share) for number, right in found.items()]
        words = ""
        if found:
            first, end = found[min(found)], found[max(found)]
            words = f"{end.right}/{end.of}"
            rows.append([site.name, site.labels, str(first), str(end)])
        charts.append(Line(site.name, points, f"g{site.group}", words=words))
    said = f"{len(charts)} small charts of test accuracy, 0 to 100 %, by round."
    columns = ["Site", "Labels", "First", "Last"]
    table = Table("Each site, first and last", columns, rows, labels=1)
    caption = (
        f"Test accuracy from 0 to 100 % over rounds 0 to {run.last_round}; at the right: right "
        "answers of test images at the end. Colour: the share of labels, as below."
    )
    picture = small_charts("Each site, fewest labels first", charts, run.last_round, said)
    return Figure(picture, caption, table)


def _chart_of_groups(run: RunRecord) -> Figure:
    """Return the median accuracy of each group of sites by labels, with its quartiles as a band."""
    lines, rows = [], []
    bands: list[Line] = []
    for group, sites in run.by_group.items():
        spread = quartiles(run, sites)
        middle = [(number, mid) for number, (_, mid, _) in spread.items()]
        lines.append(Line(SHARES_OF_LABELS[group], middle, f"g{group}", group == 1))
        bands += band(((n, low, high) for n, (low, _, high) in spread.items()), f"g{group}")
        ends = spread[max(spread)] if spread else None
        cells = map(percent, ends) if ends else (DASH,) * 3
        rows.append([GROUPS[group], str(len(sites)), *cells])
    said = "The middle site's accuracy by round, of each group of sites by share of labels."
    picture = over_rounds(run.last_round, "By share of labels", lines, said, bands)
    columns = ["Labels", "Sites", "Lower quartile, %", "Median, %", "Upper quartile, %"]
    caption = (
        f"{len(run.sites)} sites are too many for a chart each. Line: the middle site; band: the "
        "middle half of the sites. "
        + "; ".join(f"{GROUPS[g]}: {counted(len(s), 'sites')}" for g, s in run.by_group.items())
        + "."
    )
    return Figure(picture, caption, Table("After the last round", columns, rows, labels=1))


def quartiles(run: RunRecord, sites: Sequence[SiteRecord]) -> dict[int, tuple[float, float, float]]:
    """Return the sites' test accuracy by round: lower quartile, median, upper quartile."""
    of_sites = [run.curve(site.number) for site in sites]
    found = {}
    for number in sorted(run.history):
        if shares := [curve[number].share for curve in of_sites if number in curve]:
            low, middle, high = np.quantile(shares, (0.25, 0.5, 0.75)).tolist()
            found[number] = (low, middle, high)
    return found


def before_and_after(run: RunRecord) -> Block:
    """Return every site's results after the warm-up and at the end, by share of labels."""
    figures = [
        _group_panel(group, measured)
        for group, sites in run.by_group.items()
        if (measured := [site for site in sites if site.after_warm_up and site.latest()])
    ]
    title = "Before and after, site by site"
    if figures and nothing_changed(run):
        return Block(title, _ABOUT_PAIRS, missing=NO_CHANGE)
    if not figures:
        return Block(
            title, _ABOUT_PAIRS, missing="No site has test images that were measured twice."
        )
    untested = [site.name for site in run.sites if not site.standing.facts.test]
    lines = [f"Without test images, not shown: {first_names(untested, 12)}."] if untested else []
    common = [COMMON_START] if warm_up_is_common(run) else []
    return Block(title, _ABOUT_PAIRS, figures, lines=[*common, *lines])


def warm_up_is_common(run: RunRecord) -> bool:
    """Return whether the warm-up ended with one model that all sites share."""
    return bool(run.rounds) and run.rounds[0].get("mean_test_accuracy_common") is not None


def _group_panel(group: int, sites: Sequence[SiteRecord]) -> Figure:
    title = f"Sites with {GROUPS[group]}"
    drawn, rows = [], []
    for site in sites:
        before, after = site.after_warm_up, site.latest()
        assert before and after
        drawn.append(before_after_row(site.name, before, after, group))
        low, high = after.interval
        rows.append(
            [
                site.name,
                site.labels,
                str(before),
                str(after),
                f"{percent(low)} to {percent(high)}",
            ]
        )
    more, fewer = (sum(sign * _change_in_images(s) > 0 for s in sites) for sign in (1, -1))
    said = (
        f"Right on more images than after the warm-up: {more} of "
        f"{counted(len(sites), 'sites')} with {GROUPS[group]}; on fewer: {fewer}."
    )
    columns = ["Site", "Labels", "Before", "After", "After, 95 % interval"]
    table = Table(title, columns, rows, labels=1)
    return Figure(intervals(title, drawn, said), said, table)


def before_after_row(
    name: str, before: RightAnswers, after: RightAnswers, group: int
) -> IntervalRow:
    """Return a row of a chart of before and after.

    group: index in `GROUPS` of the site, which decides the colour and the mark.
    """
    ends = (
        ShareInterval(before.share, before.interval, "soft"),
        ShareInterval(after.share, after.interval, f"g{group}"),
    )
    return IntervalRow(name, ends, f"{before.right} → {after}", GROUP_MARKS[group])


def joining_of(run: RunRecord) -> list[str]:
    """Return whether joining paid, over all sites and by name: a sentence a line."""
    every = [site.standing.joining for site in run.sites]
    if [site.number for site in run.sites] == [ALL_SITES]:
        return joining_lines([], run.lone, every[0].verdict.pairs)
    return joining_lines(every, run.lone)


def who_gained(run: RunRecord) -> Block:
    """Return every site alone and together, by its verdict; those without labels stand last."""
    if [site.number for site in run.sites] == [ALL_SITES]:
        return Block(GAINED, _ABOUT_GAINED, missing=MASKED)
    words_of: dict[str, str] = {kind: word for kind, (_, _, word) in _DRAWN.items()}
    words_of[NO_LABELS] = NO_LABELS
    kinds: dict[str, list[SiteRecord]] = {kind: [] for kind in words_of}
    for site in run.sites:
        if site.standing.verdict.pairs is not None:
            kinds[site.standing.verdict.outcome].append(site)
        elif not site.standing.facts.labelled and site.latest():
            kinds[NO_LABELS].append(site)
    if not any(kinds[outcome] for outcome in _DRAWN):
        return Block(GAINED, _ABOUT_GAINED, missing=f"{NOT_COMPARED}.")
    rows, drawn = list[list[str]](), list[IntervalRow]()
    for kind, sites in kinds.items():
        word = words_of[kind]
        sites.sort(key=lambda site: -abs(site.standing.verdict.gain or 0))
        left = f", {MOST_OF_A_KIND} drawn" * (len(sites) > MOST_OF_A_KIND)
        if sites:
            heading = f"{word[0].upper()}{word[1:]} ({len(sites)}){left}"
            drawn.append(IntervalRow(heading, (), ""))
        drawn += [joining_row(site) for site in sites[:MOST_OF_A_KIND]]
        rows += [_joining_cells(site, word) for site in sites]
    columns = ["Site", "Labels", "Alone", "Together", "Of", "Better", "Worse", "Joining"]
    table = Table("Alone and together", columns, rows, labels=1)
    gained, lost, unknown = (len(kinds[outcome]) for outcome in _DRAWN)
    title = f"{gained} gained, {lost} lost, {unknown} cannot be told"
    words = " ".join(joining_of(run))
    across = "right answers; hollow: alone, filled: together"
    picture = intervals(title, drawn, words, wide=True, across=across)
    return Block(GAINED, _ABOUT_GAINED, [Figure(picture, _ABOUT_INTERVALS, table)])


def joining_row(site: SiteRecord, name: str = "") -> IntervalRow:
    """Return the row of a chart that shows a site alone and together; it must have one of them.

    A site without labels has one mark. name: other than the site's.
    """
    pairs, more = site.standing.verdict.pairs, f": {site.labels} labelled"
    if pairs is None:
        now = site.latest()
        assert now is not None
        alone = [ShareInterval(now.share, now.interval, "soft")]
        return IntervalRow(name or site.name, alone, str(now), "x", more)
    colour, mark, _ = _DRAWN[site.standing.verdict.outcome]
    ends = [
        ShareInterval(right / pairs.images, wilson(right, pairs.images), kind)
        for right, kind in ((pairs.alone, "soft"), (pairs.together, colour))
    ]
    counts = f"{pairs.alone} → {pairs.together} of {pairs.images}"
    return IntervalRow(name or site.name, ends, counts, mark, more)


def _joining_cells(site: SiteRecord, word: str) -> list[str]:
    """Return a site's row of the table of who gained."""
    pairs = site.standing.verdict.pairs
    if pairs is None:
        now = site.latest()
        assert now is not None
        return [site.name, site.labels, DASH, str(now.right), str(now.of), DASH, DASH, word]
    known = [str(n) for n in (pairs.better, pairs.worse)] if pairs.cases else [DASH, DASH]
    counts = [str(n) for n in (pairs.alone, pairs.together, pairs.images)]
    return [site.name, site.labels, *counts, *known, word]


def _change_in_images(site: SiteRecord) -> int:
    before, after = site.after_warm_up, site.latest()
    return after.right - before.right if before and after else 0
