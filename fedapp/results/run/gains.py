"""What the sites gained and lost: before and after with counts, and who was harmed."""

from collections.abc import Sequence

from fedapp.ground.text import percent
from fedapp.results.layout import Table
from fedapp.results.run.blocks import Block, Figure
from fedapp.results.run.record import GROUPS, Right, RunRecord, SiteRecord
from fedapp.results.run.svg import GROUP_MARKS, WIDTH, Drawing, Picture, shortened

_LEFT, _RIGHT, _ROW = 78, 92, 26
_READING = (
    "Each row is a site: hollow after the warm-up, filled after the last round, on the same test "
    "images. The thin lines are 95 % intervals (Wilson): where the two overlap, the change may be "
    "chance. At the right: right answers before and after, of how many images."
)
WARM_UP = "after the warm-up"
MOST_NAMED = 40
"""Sites in a table of those that lost."""
COMMON_START = "With this method the warm-up is common to all sites: hollow is no site's own model."


def dumbbells(run: RunRecord) -> Block:
    """Return every site before and after, in a panel for each share of labels."""
    figures = [
        _panel(group, measured)
        for group, sites in run.by_group.items()
        if (measured := [site for site in sites if site.before and site.now()])
    ]
    title = "Before and after, site by site"
    if not figures:
        return Block(title, _READING, missing="No site has test images that were measured twice.")
    untested = [site.name for site in run.sites if not site.standing.facts.test]
    lines = [f"Without test images, not shown: {_listed(untested)}."] if untested else []
    common = [COMMON_START] if starts_common(run) else []
    return Block(title, _READING, figures, lines=[*common, *lines])


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
    drawing = Drawing(44 + _ROW * len(pairs))
    bottom = 30 + _ROW * len(pairs)
    drawing.text((0, 12), title, "head")
    for share in (0, 0.25, 0.5, 0.75, 1):
        drawing.line((_across(share), 24), (_across(share), bottom), "grid")
        drawing.text((_across(share), bottom + 13), f"{share:.0%}", "soft", "middle")
    for place, (name, before, after) in enumerate(pairs):
        _dumbbell(drawing, 39 + _ROW * place, name, group, before, after)
    return drawing.picture(alternative)


def _across(share: float) -> float:
    return _LEFT + (WIDTH - _LEFT - _RIGHT) * share


def _dumbbell(
    drawing: Drawing, y: float, name: str, group: int, before: Right, after: Right
) -> None:
    """Draw one row, its middle at height y."""
    drawing.text((_LEFT - 6, y + 4), shortened(name, 12), "", "end")
    for found, height, kind in ((before, y - 4, "soft"), (after, y + 4, f"g{group}")):
        low, high = found.interval
        drawing.line((_across(low), height), (_across(high), height), f"{kind} thin")
    start, end = (_across(before.share), y - 4), (_across(after.share), y + 4)
    drawing.line(start, end, f"g{group}")
    drawing.mark(GROUP_MARKS[group], start, f"hollow g{group}", 3.5)
    drawing.mark(GROUP_MARKS[group], end, f"f g{group}")
    drawing.text((WIDTH, y + 4), f"{before.right} → {after}", "", "end")


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
