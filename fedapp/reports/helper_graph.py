"""Who helps whom (UM-pFSSL), over the rounds."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise

from fedapp.core.formatting import percent
from fedapp.reports.charts import Line, Matrix, matrix, over_rounds, shares_of
from fedapp.reports.layout import DASH, Block, Figure, Picture, Table
from fedapp.reports.run_record import GROUPS, RunRecord

_READING = (
    "A site's helpers are other sites' models that label its images and are averaged into its "
    "own. Each row is a site, each column a helper, in the same order; darker: on its list in more "
    "of the rounds. A dark column is a site that many rely on."
)
MOST_SITES = 150
"""Sites of which a picture says anything."""
_MOMENTS = 3
Lists = Mapping[int, Sequence[int]]
"""By site: its helpers' sites, most related first."""


def helpers(run: RunRecord) -> Block:
    """Return the helper graph of a run, or why there is none."""
    title = "Who helps whom"
    if not run.history:
        return Block(title, _READING, missing="This run did not record helpers by round.")
    lists = lists_by_round(run)
    if not any(lists.values()):
        return Block(title, _READING, missing="This method has no helpers.")
    figures, missing = [], ""
    if len(run.sites) <= MOST_SITES:
        moments = _moments(sorted(number for number, of in lists.items() if of))
        figures = [_graph(run, lists, number) for number in moments]
        figures.append(_all(run, lists))
    else:
        missing = f"the graph: {len(run.sites)} sites are too many for a picture."
    if len(lists) > 2:
        figures.append(_change(run, lists))
    table = _between_groups(run, lists[max(lists)])
    return Block(title, _READING, figures, [table], missing=missing)


def lists_by_round(run: RunRecord) -> dict[int, Lists]:
    """Return the lists that hold after each round; a site that was not asked keeps its own."""
    now: dict[int, Sequence[int]] = {}
    found: dict[int, Lists] = {}
    for number, row in sorted(run.history.items()):
        said = row.get("sites", {}).items()
        now |= {int(k): [h for h, _ in of["helpers"]] for k, of in said if "helpers" in of}
        found[number] = dict(now)
    return found


def _moments(numbers: Sequence[int]) -> list[int]:
    """Return the first, the middle and the last round with lists."""
    places = {0, len(numbers) // 2, len(numbers) - 1}
    return [numbers[place] for place in sorted(places)][:_MOMENTS]


def _graph(run: RunRecord, lists: Mapping[int, Lists], number: int) -> Figure:
    of = lists[number]
    counts = [[int(peer.number in of.get(s.number, ())) for peer in run.sites] for s in run.sites]
    picture, said = _drawn(run, f"Round {number}", counts, 1)
    return Figure(picture, f"The lists after round {number}. {said}")


def _all(run: RunRecord, lists: Mapping[int, Lists]) -> Figure:
    rounds = [of for of in lists.values() if of]
    counts = [
        [sum(peer.number in of.get(site.number, ()) for of in rounds) for peer in run.sites]
        for site in run.sites
    ]
    picture, said = _drawn(run, "All rounds", counts, len(rounds))
    last = lists[max(lists)]
    names = {site.number: site.name for site in run.sites}
    rows = [
        [site.name, ", ".join(names.get(k, f"site {k}") for k in last.get(site.number, ())) or DASH]
        for site in run.sites
    ]
    table = Table("Lists at the end", ["Site", "Helpers, most related first"], rows)
    return Figure(picture, f"Over {len(rounds)} rounds. {said}", table)


def _drawn(run: RunRecord, title: str, counts: list[list[int]], rounds: int) -> tuple[Picture, str]:
    names = [site.name for site in run.sites]
    of = Matrix(
        names, names, [[n / rounds if n else 0.0 for n in row] for row in counts],
        [[str(n) if n and rounds > 1 else "" for n in row] for row in counts],
    )  # fmt: skip
    asked = [sum(row[j] > 0 for row in counts) for j in range(len(names))]
    most = max(range(len(names)), key=lambda j: asked[j])
    said = f"Most asked: {names[most]}, by {asked[most]} of {len(names)} sites."
    return matrix(title, of, f"{title}: {said}", "helper", "site"), said


def _change(run: RunRecord, lists: Mapping[int, Lists]) -> Figure:
    """Return how much of the lists is new in each round."""
    numbers = sorted(lists)
    points = []
    for before, number in pairwise(numbers):
        entries = [(k, h) for k, of in lists[number].items() for h in of]
        new = sum(h not in lists[before].get(k, ()) for k, h in entries)
        if entries:
            points.append((number, new / len(entries)))
    said = (
        f"Share of the lists' entries that were not there a round before: {percent(points[-1][1])} "
        f"% in round {points[-1][0]}. Near zero the search has settled."
    )
    rows = [[str(number), percent(share)] for number, share in points]
    picture = over_rounds(run.last, "New helpers by round", [Line("new", points, "c0")], said)
    return Figure(picture, said, Table("New helpers", ["Round", "New, %"], rows, labels=1))


def _between_groups(run: RunRecord, lists: Lists) -> Table:
    """Return whose models the sites of each group use, at the end."""
    group = {site.number: site.group for site in run.sites}
    rows = []
    for number, sites in run.by_group.items():
        used = Counter(group[h] for site in sites for h in lists.get(site.number, ()) if h in group)
        counts = [used[g] for g in range(len(GROUPS))]
        shares = shares_of(counts)
        rows.append([GROUPS[number], *(f"{n} ({percent(s)} %)"
                     for n, s in zip(counts, shares, strict=True))])  # fmt: skip
    columns = ["Sites with", *(f"helpers with {label}" for label in GROUPS)]
    return Table("Whose help, by share of labels, at the end", columns, rows, labels=1)
