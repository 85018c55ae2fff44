"""How accuracy went: learning curves, every site before and after, and who was harmed.

Curves: the mean over sites, every answer, and every site or group by itself.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from fedapp.core.formatting import percent
from fedapp.learn.metrics import SHARES_OF_LABELS
from fedapp.protocol.messages import ANSWERS
from fedapp.reports.charts import (
    GROUP_MARKS,
    Line,
    Point,
    Share,
    Shares,
    band,
    intervals,
    over_rounds,
    small_charts,
)
from fedapp.reports.layout import DASH, Block, Figure, Picture, Table
from fedapp.reports.run_record import GROUPS, Right, RunRecord, SiteRecord

FEW_SITES = 24
"""Runs of at most as many sites show each by itself; of more, groups."""
_SAID = {
    "common": "server's model",
    "tuned": "after training",
    "alone": "trained alone",
    "online": "online network",
    "one_round": "closed form",
}
_READING = (
    "Accuracy on images that no site learned from, by round; round 0 is the warm-up. A step of a "
    "few points is chance where sites have few test images."
)
BY_IMAGE = (
    "The thin lines are 95 % intervals (Wilson) that count images as independent, since the server "
    "knows no patients: where the two overlap, the change may be chance."
)
_PAIRS = (
    "Each row is a site: hollow after the warm-up, filled after the last round, on the same test "
    f"images. {BY_IMAGE} At the right: right answers before and after, of how many images."
)
WARM_UP = "after the warm-up"
MOST_NAMED = 40
"""Sites in a table of those that lost."""
COMMON_START = "With this method the warm-up is common to all sites: hollow is no site's own model."


def curves(run: RunRecord) -> Block:
    """Return the curves of a run."""
    if run.last < 1:
        return Block("Learning curves", _READING, missing="The run has no round yet.")
    figures = [_mean(run), *_answers(run)]
    missing = ""
    if run.history:
        figures.append(_small(run) if len(run.sites) <= FEW_SITES else _groups(run))
    else:
        missing = "Curves of single sites: this run did not record them (sites.jsonl)."
    return Block("Learning curves", _READING, figures, missing=missing)


def _by_round(run: RunRecord, title: str, columns: Mapping[str, str]) -> Table:
    """Return shares of metrics.jsonl by round, in percent. columns: their titles -> their names."""
    rows = [
        [str(row["round"]), *(percent(row.get(name)) for name in columns.values())]
        for row in run.rounds
    ]
    return Table(title, ["Round", *columns], rows, labels=1)


def _points(run: RunRecord, column: str) -> list[Point]:
    found = ((row["round"], row.get(column)) for row in run.rounds)
    return [(number, value) for number, value in found if value is not None]


def _mean(run: RunRecord) -> Figure:
    named = (
        ("test, mean", "mean_test_accuracy", "c0", False),
        ("validation", "mean_val_accuracy", "c1", True),
        ("worst tenth", "worst_decile_accuracy", "c2", False),
    )
    lines = [Line(name, _points(run, key), kind, dash) for name, key, kind, dash in named]
    return _figure(
        run,
        "All sites",
        lines,
        "Mean over sites on test and on validation images, and the mean of the tenth of sites that "
        "do worst.",
        _by_round(run, "Accuracy by round, %", {n: key for n, key, *_ in named}),
    )


def _answers(run: RunRecord) -> list[Figure]:
    kinds = dict(zip(ANSWERS, ("c0", "c1", "c3", "c2", "ink"), strict=True))
    found = {a: points for a in ANSWERS if (points := _points(run, f"mean_test_accuracy_{a}"))}
    if len(found) < 2:
        return []
    lines = [Line(_SAID[a], points, kinds[a], a != "common") for a, points in found.items()]
    caption = (
        "Mean over sites of what each could answer with: the server's model, its own after it "
        "trained that one, its own trained on its labelled images alone, and the server's online "
        "network where its method has one."
    )
    columns = {_SAID[a]: f"mean_test_accuracy_{a}" for a in found}
    table = _by_round(run, "Accuracy by answer and round, %", columns)
    return [_figure(run, "Answers that sites have", lines, caption, table)]


def _figure(
    run: RunRecord, title: str, lines: Sequence[Line], caption: str, table: Table
) -> Figure:
    drawn = [line for line in lines if line.points]
    ends = ", ".join(f"{line.name} {percent(line.points[-1][1])} %" for line in drawn)
    said = f"Lines of accuracy by round. After round {run.last}: {ends}."
    return Figure(over_rounds(run.last, title, lines, said), caption, table)


def _small(run: RunRecord) -> Figure:
    """Return a small chart of each site, fewest labels first."""
    charts, rows = [], []
    for site in (site for sites in run.by_group.values() for site in sites):
        found = run.curve(site.number)
        points = [(number, right.share) for number, right in found.items()]
        words = ""
        if found:
            first, end = found[min(found)], found[max(found)]
            words = f"{end.right}/{end.of}"
            rows.append([site.name, percent(site.standing.facts.mu), str(first), str(end)])
        charts.append(Line(site.name, points, f"g{site.group}", words=words))
    said = f"{len(charts)} small charts of test accuracy, 0 to 100 %, by round."
    table = Table(
        "Each site, first and last", ["Site", "Labels, %", "First", "Last"], rows, labels=1
    )
    caption = (
        f"Test accuracy from 0 to 100 % over rounds 0 to {run.last}; at the right: right answers "
        "of test images at the end. Colour: the share of labels, as below."
    )
    picture = small_charts("Each site, fewest labels first", charts, run.last, said)
    return Figure(picture, caption, table)


def _groups(run: RunRecord) -> Figure:
    """Return the middle site of each group by labels, with the middle half of its sites."""
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
    picture = over_rounds(run.last, "By share of labels", lines, said, bands)
    columns = ["Labels", "Sites", "Lower quartile, %", "Median, %", "Upper quartile, %"]
    caption = (
        f"{len(run.sites)} sites are too many for a chart each. Line: the middle site; band: the "
        "middle half of the sites. "
        + "; ".join(f"{GROUPS[g]}: {len(s)} sites" for g, s in run.by_group.items())
        + "."
    )
    return Figure(picture, caption, Table("After the last round", columns, rows, labels=1))


def quartiles(run: RunRecord, sites: Sequence[SiteRecord]) -> dict[int, tuple[float, float, float]]:
    """Return lower quartile, median and upper quartile of the sites' test accuracy by round."""
    of_sites = [run.curve(site.number) for site in sites]
    found = {}
    for number in sorted(run.history):
        if shares := [curve[number].share for curve in of_sites if number in curve]:
            low, middle, high = np.quantile(shares, (0.25, 0.5, 0.75)).tolist()
            found[number] = (low, middle, high)
    return found


def dumbbells(run: RunRecord) -> Block:
    """Return every site before and after, in a panel for each share of labels."""
    figures = [
        _panel(group, measured)
        for group, sites in run.by_group.items()
        if (measured := [site for site in sites if site.before and site.now()])
    ]
    title = "Before and after, site by site"
    if not figures:
        return Block(title, _PAIRS, missing="No site has test images that were measured twice.")
    untested = [site.name for site in run.sites if not site.standing.facts.test]
    lines = [f"Without test images, not shown: {_listed(untested)}."] if untested else []
    common = [COMMON_START] if starts_common(run) else []
    return Block(title, _PAIRS, figures, lines=[*common, *lines])


def starts_common(run: RunRecord) -> bool:
    """Whether the warm-up ended with a model that all sites share."""
    return bool(run.rounds) and run.rounds[0].get("mean_test_accuracy_common") is not None


def _panel(group: int, sites: Sequence[SiteRecord]) -> Figure:
    title = f"Sites with {GROUPS[group]}"
    pairs, rows = [], []
    for site in sites:
        before, after = site.before, site.now()
        assert before and after
        pairs.append((site.name, before, after))
        low, high = after.interval
        rows.append(
            [
                site.name,
                percent(site.standing.facts.mu),
                str(before),
                str(after),
                f"{percent(low)} to {percent(high)}",
            ]
        )
    more, fewer = (sum(sign * _change(s) > 0 for s in sites) for sign in (1, -1))
    said = (
        f"Right on more images than after the warm-up: {more} of {len(sites)} sites with "
        f"{GROUPS[group]}; on fewer: {fewer}."
    )
    columns = ["Site", "Labels, %", "Before", "After", "After, 95 % interval"]
    table = Table(title, columns, rows, labels=1)
    return Figure(dumbbell_chart(title, group, pairs, said), said, table)


def dumbbell_chart(
    title: str, group: int, pairs: Sequence[tuple[str, Right, Right]], alternative: str
) -> Picture:
    """Return a row for each pair: its name, before and after. group: of all, in `GROUPS`."""
    rows = [
        Shares(
            name,
            (
                Share(before.share, before.interval, "soft"),
                Share(after.share, after.interval, f"g{group}"),
            ),
            f"{before.right} → {after}",
            GROUP_MARKS[group],
        )
        for name, before, after in pairs
    ]
    return intervals(title, rows, alternative)


def harm(run: RunRecord) -> Block:
    """Return the sites that are right on fewer images than without the federation."""
    title = "Who was harmed"
    reading = (
        "Sites whose model at the end is right on fewer of its own test images than a model "
        "without the federation. Within chance: the two 95 % intervals overlap, so another draw "
        "of test images could turn it around."
    )
    tables, lines = [], []
    references = [(WARM_UP, {s.number: s.before for s in run.sites})]
    alone = {s.number: s.now("test_alone") for s in run.sites}
    if any(alone.values()):
        references.insert(0, ("trained alone", alone))
    for name, reference in references:
        pairs = [(s, r, n) for s in run.sites if (r := reference[s.number]) and (n := s.now())]
        if not pairs:
            continue
        worse = [pair for pair in pairs if pair[2].right < pair[1].right]
        worse.sort(key=lambda pair: pair[2].share - pair[1].share)
        better = sum(now.right > other.right for _, other, now in pairs)
        whose = "the common model" if name == WARM_UP and starts_common(run) else "its own model"
        lines.append(
            f"Against {whose} {name}: {len(worse)} of {len(pairs)} sites are worse, {better} "
            f"better, {len(pairs) - len(worse) - better} equal."
        )
        if worse:
            columns = ["Site", "Labels, %", f"Right {name}", "Right at the end", "Worse"]
            rows = [_worse(*pair) for pair in worse[:MOST_NAMED]]
            more = len(worse) - MOST_NAMED
            notes = [f"And {more} more that lost less."] if more > 0 else []
            tables.append(Table(f"Worse than {name}", columns, rows, notes, labels=1))
    if not lines:
        return Block(title, reading, missing="No site has test images that were measured twice.")
    return Block(title, reading, tables=tables, lines=lines)


def _worse(site: SiteRecord, other: Right, now: Right) -> list[str]:
    chance = "within chance" if now.interval[1] >= other.interval[0] else "clearly"
    return [site.name, percent(site.standing.facts.mu), str(other), str(now), chance]


def _change(site: SiteRecord) -> int:
    before, after = site.before, site.now()
    return after.right - before.right if before and after else 0


def _listed(names: Sequence[str], most: int = 12) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
