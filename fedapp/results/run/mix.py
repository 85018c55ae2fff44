"""Which classes each site has."""

from collections.abc import Sequence

from fedapp.ground.text import count
from fedapp.messages.protocol import Evaluation
from fedapp.results.layout import Table
from fedapp.results.run.blocks import Block, Figure
from fedapp.results.run.charts import Matrix, matrix, shares_of
from fedapp.results.run.record import RunRecord, SiteRecord

_READING = (
    "Share of each class among a site's labelled validation and test images, a row each; darker is "
    "more. The server knows of no other labels. A row with few dark squares is a site that sees "
    "few classes."
)
MOST_CLASSES, MOST_SITES = 40, 200
"""Classes and sites of which a picture says anything."""


def class_mix(run: RunRecord) -> Block:
    """Return the classes of all sites."""
    title = "Class mix"
    counts = {site.number: true_counts(site, len(run.classes)) for site in run.sites}
    known = [site for site in run.sites if sum(counts[site.number])]
    if not known:
        return Block(title, _READING, missing="No site has labelled images that were measured.")
    for many, most, what in (
        (len(run.classes), MOST_CLASSES, "classes"),
        (len(known), MOST_SITES, "sites"),
    ):
        if many > most:
            return Block(title, _READING, missing=f"{many} {what} are too many for a picture.")
    of = Matrix(
        rows=[site.name for site in known],
        columns=run.classes,
        shares=[shares_of(counts[site.number]) for site in known],
        words=[[str(n) if n else "" for n in counts[site.number]] for site in known],
    )
    lacking = sum(0 in counts[site.number] for site in known)
    said = (
        f"Images by site and class. {lacking} of {len(known)} sites have no image of some class "
        "among these."
    )
    rows = [[site.name, *map(count, counts[site.number])] for site in known]
    table = Table("Labelled validation and test images", ["Site", *run.classes], rows, labels=1)
    return Block(title, _READING, [Figure(matrix("Images", of, said), said, table)])


def true_counts(site: SiteRecord, classes: int) -> list[int]:
    """Return the numbers of a site's validation and test images by true class, [C]."""
    total = [0] * classes
    for part in ("val", "test"):
        if (found := site.standing.latest.get(part)) is not None:
            total = [n + sum(row) for n, row in zip(total, found.confusion, strict=True)]
    return total


def summed(evaluations: Sequence[Evaluation], classes: int) -> list[list[int]]:
    """Return the sum of confusion matrices, [C][C], true class x predicted class."""
    total = [[0] * classes for _ in range(classes)]
    for found in evaluations:
        for row, more in zip(total, found.confusion, strict=True):
            row[:] = [a + b for a, b in zip(row, more, strict=True)]
    return total
