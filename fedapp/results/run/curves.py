"""Learning curves: the mean over sites, every answer, and every site or group by itself."""

from collections.abc import Sequence

from fedapp.ground.text import percent
from fedapp.learn.metrics import SHARES_OF_LABELS
from fedapp.messages.protocol import ANSWERS
from fedapp.results.layout import DASH, Table
from fedapp.results.run.blocks import Block, Figure
from fedapp.results.run.charts import Line, line_chart, percents, rounds_axis
from fedapp.results.run.record import GROUPS, RunRecord, SiteRecord
from fedapp.results.run.svg import WIDTH, Drawing, Point, shortened

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
    rows = [[str(row["round"]), *(percent(row.get(key)) for _, key, _, _ in named)]
            for row in run.rounds]  # fmt: skip
    return _figure(
        run,
        "All sites",
        lines,
        "Mean over sites on test and on validation images, and the mean of the tenth of sites that "
        "do worst.",
        Table("Accuracy by round, %", ["Round", *(n for n, *_ in named)], rows, labels=1),
    )


def _answers(run: RunRecord) -> list[Figure]:
    kinds = dict(zip(ANSWERS, ("c0", "c1", "c3", "c2", "c4"), strict=True))
    found = {a: points for a in ANSWERS if (points := _points(run, f"mean_test_accuracy_{a}"))}
    if len(found) < 2:
        return []
    lines = [Line(_SAID[a], points, kinds[a], a != "common") for a, points in found.items()]
    columns = ["Round", *(_SAID[answer] for answer in found)]
    rows = [
        [str(r["round"]), *(percent(r.get(f"mean_test_accuracy_{a}")) for a in found)]
        for r in run.rounds
    ]
    caption = (
        "Mean over sites of what each could answer with: the server's model, its own after it "
        "trained that one, its own trained on its labelled images alone, and the server's online "
        "network where its method has one."
    )
    table = Table("Accuracy by answer and round, %", columns, rows, labels=1)
    return [_figure(run, "Answers that sites have", lines, caption, table)]


def _figure(
    run: RunRecord, title: str, lines: Sequence[Line], caption: str, table: Table
) -> Figure:
    drawn = [line for line in lines if line.points]
    ends = ", ".join(f"{line.name} {percent(line.points[-1][1])} %" for line in drawn)
    said = f"Lines of accuracy by round. After round {run.last}: {ends}."
    picture = line_chart(title, lines, rounds_axis(run.last), percents(), said)
    return Figure(picture, caption, table)


def _small(run: RunRecord) -> Figure:
    """Return a small chart of each site, fewest labels first."""
    across, cell, high, gap = 3, WIDTH / 3, 62.0, 38.0
    order = [site for sites in run.by_group.values() for site in sites]
    lines = -(-len(order) // across)
    drawing = Drawing(20 + lines * (high + gap))
    drawing.text((0, 12), "Each site, fewest labels first", "head")
    rows = []
    for place, site in enumerate(order):
        left, top = cell * (place % across), 34 + (high + gap) * (place // across)
        found = run.curve(site.number)
        wide = cell - 14
        for share in (0, 0.5, 1):
            y = top + high * (1 - share)
            drawing.line((left, y), (left + wide, y), "grid")
        drawing.text((left, top - 4), shortened(site.name, 11), "")
        if not found:
            drawing.text((left + 4, top + high / 2), "not measured", "soft")
            continue
        points = [
            (left + wide * number / run.last, top + high * (1 - right.share))
            for number, right in found.items()
        ]
        drawing.path(points, f"g{site.group}")
        end = found[max(found)]
        drawing.text((left + wide, top - 4), f"{end.right}/{end.of}", "soft", "end")
        first = found[min(found)]
        rows.append([site.name, percent(site.standing.facts.mu), str(first), str(end)])
    said = f"{len(order)} small charts of test accuracy, 0 to 100 %, by round."
    table = Table(
        "Each site, first and last", ["Site", "Labels, %", "First", "Last"], rows, labels=1
    )
    caption = (
        f"Test accuracy from 0 to 100 % over rounds 0 to {run.last}; at the right: right answers "
        "of test images at the end. Colour: the share of labels, as below."
    )
    return Figure(drawing.picture(said), caption, table)


def _groups(run: RunRecord) -> Figure:
    """Return the middle site of each group by labels, with the middle half of its sites."""
    lines, bands, rows = [], [], []
    for group, sites in run.by_group.items():
        spread = quartiles(run, sites)
        middle = [(number, mid) for number, (_, mid, _) in spread.items()]
        lines.append(Line(SHARES_OF_LABELS[group], middle, f"g{group}", group == 1))
        upper = [(n, high) for n, (_, _, high) in spread.items()]
        lower = [(n, low) for n, (low, _, _) in reversed(spread.items())]
        if upper:
            bands.append(Line("", [*upper, *lower], f"g{group}"))
        ends = spread[max(spread)] if spread else None
        cells = map(percent, ends) if ends else (DASH,) * 3
        rows.append([GROUPS[group], str(len(sites)), *cells])
    said = "The middle site's accuracy by round, of each group of sites by share of labels."
    picture = line_chart(
        "By share of labels", lines, rounds_axis(run.last), percents(), said, bands
    )
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
        shares = sorted(curve[number].share for curve in of_sites if number in curve)
        if shares:
            found[number] = (quantile(shares, 0.25), quantile(shares, 0.5), quantile(shares, 0.75))
    return found


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return a quantile of ascending values, at least one, between its two neighbours."""
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])
