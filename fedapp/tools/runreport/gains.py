"""What the sites gained and lost: before and after with counts, and who was harmed."""

from collections.abc import Sequence

from fedapp.ground.text import percent
from fedapp.learn.metrics import LABEL_GROUPS
from fedapp.tools.report.layout import Table
from fedapp.tools.runreport.blocks import Block, Figure
from fedapp.tools.runreport.reading import Right, RunRecord, SiteRecord
from fedapp.tools.runreport.svg import GROUP_MARKS, WIDTH, Drawing, shortened

_LEFT, _RIGHT, _ROW = 78, 92, 26
_READING = (
    "Each row is a site: hollow after the warm-up, filled after the last round, on the same test "
    "images. The thin lines are 95 % intervals (Wilson): where the two overlap, the change may be "
    "chance. At the right: right answers before and after, of how many images."
)
COMMON_START = (
    " With this method the warm-up is common to all sites: hollow is no site's own model."
)


def dumbbells(run: RunRecord) -> Block:
    """Return every site before and after, in a panel for each share of labels."""
    figures = [
        _panel(group, measured)
        for group, sites in run.by_group.items()
        if (measured := [site for site in sites if site.before and site.now()])
    ]
    reading = _READING + (COMMON_START if starts_common(run) else "")
    title = "Before and after, site by site"
    if not figures:
        return Block(title, reading, missing="No site has test images that were measured twice.")
    untested = [site.name for site in run.sites if not site.standing.facts.test]
    lines = [f"Without test images, not shown: {_listed(untested)}."] if untested else []
    return Block(title, reading, figures, lines=lines)


def starts_common(run: RunRecord) -> bool:
    """Whether the warm-up ended with a model that all sites share."""
    return bool(run.rounds) and run.rounds[0].get("mean_test_accuracy_common") is not None


def _panel(group: int, sites: Sequence[SiteRecord]) -> Figure:
    drawing = Drawing(44 + _ROW * len(sites))
    room = WIDTH - _LEFT - _RIGHT
    bottom = 30 + _ROW * len(sites)
    title = f"{LABEL_GROUPS[group]} (mu: share of labels)"
    drawing.text((0, 12), title, "head")
    for share in (0, 0.25, 0.5, 0.75, 1):
        x = _LEFT + room * share
        drawing.line((x, 24), (x, bottom), "grid")
        drawing.text((x, bottom + 13), f"{share:.0%}", "soft", "middle")
    rows = []
    for place, site in enumerate(sites):
        before, after = site.before, site.now()
        assert before and after
        dumbbell(drawing, 30 + _ROW * place + _ROW / 2 - 4, site.name, group, before, after)
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
    said = (
        f"{len(sites)} sites, {LABEL_GROUPS[group]}: "
        f"{sum(1 for s in sites if _change(s) > 0)} are right on more images than after the "
        f"warm-up, {sum(1 for s in sites if _change(s) < 0)} on fewer."
    )
    columns = ["Site", "Labels, %", "Before", "After", "After, 95 % interval"]
    return Figure(drawing.picture(said), said, Table(title, columns, rows, labels=1))


def dumbbell(
    drawing: Drawing, y: float, name: str, group: int, before: Right, after: Right
) -> None:
    """Draw one site's row, its middle at height y."""
    room = WIDTH - _LEFT - _RIGHT

    def x(share: float) -> float:
        return _LEFT + room * share

    drawing.text((_LEFT - 6, y + 4), shortened(name, 12), "", "end")
    for found, offset, kind in ((before, -4, "soft"), (after, 4, f"g{group}")):
        low, high = found.interval
        drawing.line((x(low), y + offset), (x(high), y + offset), f"{kind} thin")
    drawing.line((x(before.share), y - 4), (x(after.share), y + 4), f"g{group}")
    drawing.mark(GROUP_MARKS[group], (x(before.share), y - 4), f"hollow g{group}", 3.5)
    drawing.mark(GROUP_MARKS[group], (x(after.share), y + 4), f"f g{group}")
    drawing.text((WIDTH, y + 4), f"{before.right} → {after}", "", "end")


def harm(run: RunRecord) -> Block:
    """Return the sites that are right on fewer images than without the federation."""
    title, reading = (
        "Who was harmed",
        "Sites whose model at the end is right on fewer of its own test images than a model "
        "without the federation. Within chance: the two 95 % intervals overlap, so another draw "
        "of test images could turn it around.",
    )
    tables, lines = [], []
    references = [("after the warm-up", {s.number: s.before for s in run.sites})]
    alone = {s.number: s.now("test_alone") for s in run.sites}
    if any(alone.values()):
        references.insert(0, ("trained alone", alone))
    for name, reference in references:
        worse, rows = [], []
        pairs = [(s, r, n) for s in run.sites if (r := reference[s.number]) and (n := s.now())]
        for site, other, now in pairs:
            if now.right < other.right:
                worse.append(site)
                chance = "within chance" if now.interval[1] >= other.interval[0] else "clearly"
                rows.append(
                    [site.name, percent(site.standing.facts.mu), str(other), str(now), chance]
                )
        if not pairs:
            continue
        better = sum(now.right > other.right for _, other, now in pairs)
        lines.append(
            f"Against its own model {name}: {len(worse)} of {len(pairs)} sites are worse, {better} "
            f"better, {len(pairs) - len(worse) - better} equal."
            if name == "trained alone" or not starts_common(run)
            else f"Against the common model {name}: {len(worse)} of {len(pairs)} sites are worse, "
            f"{better} better, {len(pairs) - len(worse) - better} equal."
        )
        if rows:
            columns = ["Site", "Labels, %", f"Right {name}", "Right at the end", "Worse"]
            tables.append(Table(f"Worse than {name}", columns, rows, labels=1))
    if not lines:
        return Block(title, reading, missing="No site has test images that were measured twice.")
    return Block(title, reading, tables=tables, lines=lines)


def _change(site: SiteRecord) -> int:
    before, after = site.before, site.now()
    return after.right - before.right if before and after else 0


def _listed(names: Sequence[str], most: int = 12) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
