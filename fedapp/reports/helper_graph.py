"""The helper graph of UM-pFSSL: whose models label each site's images, over the rounds."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise

from fedapp.core.formatting import counted, percent
from fedapp.reports.charts import Line, Matrix, matrix, over_rounds, shares_of
from fedapp.reports.layout import DASH, Block, Figure, Table
from fedapp.reports.run_record import GROUPS, RunRecord

_READING = (
    "A site's helpers are other sites' models that label its images and are averaged into its "
    "own. Each row is a site, each column a helper, in the same order; darker: on its list in more "
    "of the rounds. A dark column is a site that many rely on."
)
MOST_SITES = 150
"""With more sites than this a matrix cannot be read, so it is not drawn."""
Lists = Mapping[int, Sequence[int]]
"""Each site's list of helpers (numbers of sites), the most related first."""


def helper_graph(run: RunRecord) -> Block:
    """Return the helper graph of a run, or the reason why there is none."""
    title = "Who helps whom"
    if not run.history:
        return Block(title, _READING, missing="This run did not record helpers by round.")
    lists = lists_by_round(run)
    if not any(lists.values()):
        return Block(title, _READING, missing="This method has no helpers.")
    small = len(run.sites) <= MOST_SITES
    figures = [_all_rounds(run, lists)] if small else []
    missing = "" if small else f"the graph: {len(run.sites)} sites are too many for a picture."
    if len(lists) > 2:
        figures.append(_change(run, lists))
    table = _between_groups(run, lists[max(lists)])
    return Block(title, _READING, figures, [table], missing=missing)


def lists_by_round(run: RunRecord) -> dict[int, Lists]:
    """Return the lists in force after each round; a site that was not asked keeps its last one."""
    now: dict[int, Sequence[int]] = {}
    found: dict[int, Lists] = {}
    for number, row in sorted(run.history.items()):
        said = row.get("sites", {}).items()
        now |= {int(k): [h for h, _ in of["helpers"]] for k, of in said if "helpers" in of}
        found[number] = dict(now)
    return found


def _all_rounds(run: RunRecord, lists: Mapping[int, Lists]) -> Figure:
    rounds = [of for of in lists.values() if of]
    counts = [
        [sum(peer.number in of.get(site.number, ()) for of in rounds) for peer in run.sites]
        for site in run.sites
    ]
    names = [site.name for site in run.sites]
    shares = [[n / len(rounds) for n in row] for row in counts]
    of = Matrix(names, names, shares, [[str(n) if n else "" for n in row] for row in counts])
    asked = [sum(row[j] > 0 for row in counts) for j in range(len(names))]
    most = max(range(len(names)), key=lambda j: asked[j])
    said = f"Most asked: {names[most]}, by {asked[most]} of {counted(len(names), 'sites')}."
    picture = matrix("All rounds", of, f"All rounds: {said}", "helper", "site")
    last = lists[max(lists)]
    name_of = {site.number: site.name for site in run.sites}
    rows = [
        [
            site.name,
            ", ".join(name_of.get(k, f"site {k}") for k in last.get(site.number, ())) or DASH,
        ]
        for site in run.sites
    ]
    table = Table("Lists at the end", ["Site", "Helpers, most related first"], rows)
    return Figure(picture, f"Over {counted(len(rounds), 'rounds')}. {said}", table)


def _change(run: RunRecord, lists: Mapping[int, Lists]) -> Figure:
    """Return the share of the lists' entries that are new in each round."""
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
    picture = over_rounds(run.last_round, "New helpers by round", [Line("new", points, "c0")], said)
    return Figure(picture, said, Table("New helpers", ["Round", "New, %"], rows, labels=1))


def _between_groups(run: RunRecord, lists: Lists) -> Table:
    """Return from which groups by labels the helpers of each group are, at the end."""
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
