"""What the sites' models find of each class, of all sites' images together, and where joining paid.

Not means over sites: a site with two images of a class finds 0, 50 or 100 % of them.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from fedapp.evaluation.quality import FEWEST, NAMES
from fedapp.ground.text import percent
from fedapp.results.layout import DASH, Table
from fedapp.results.run.blocks import Block
from fedapp.results.run.record import RunRecord
from fedapp.server.standings import POOLED

_READING = (
    "Each site's model on its own test images, all images together. Sensitivity: the share of a "
    "class that is found; specificity: the share of the others that is not taken for it. A mean "
    "over sites would count a site with one image of a class like one with a hundred, so none is "
    f"shown, and sites with fewer than {FEWEST} are not ranked by a class."
)
_AT_HOME = (
    " AUROC takes the scores of single images, which stay at the sites: fedapp site --page has it "
    "there, and rounds.pooled_auroc=true has sites send counts of them."
)
_RANKED = (
    "Counts of scores of all sites' images together: each image of the class against each other "
    "image, whichever site it lies at, with an interval that counts images as independent. Beside "
    "it the mean over sites, to be read with care: one case found or missed makes a site's AUROC."
)


def joining(run: RunRecord) -> str:
    """Return at how many sites joining paid, in one sentence."""
    found = Counter(site.standing.verdict.said for site in run.sites)
    known = len(run.sites) - found["unknown"]
    if not known:
        return "Cannot tell at any site whether joining paid: too few test images, or no model "\
            "trained alone beside."  # fmt: skip
    return (
        f"Joining paid at {found['paid']} of {len(run.sites)} sites, did harm at "
        f"{found['harmed']} and changed little at {found['same']}; cannot tell at "
        f"{found['unknown']}."
    )


def found(run: RunRecord) -> Block:
    """Return the metrics of all sites' test images together, and the classes one by one."""
    title = "How well each class is found"
    summary = run.standings.summary()
    classes, pooled = summary["by_class"], summary["pooled"]
    if not any(one["images"] for one in classes):
        return Block(title, _READING, missing="No site has test images that were measured.")
    named = [f"{NAMES[m]} {percent(pooled[m]['final'])} %" for m in POOLED]
    said = [one for one in classes if one["sensitivity"] is not None]
    said_of_all = all(one in said for one in classes if one["images"])
    lines = [f"All sites' test images together: {', '.join(named)}."] if said_of_all else []
    if few := [f"{one['class']} ({one['images']})" for one in classes if one not in said]:
        lines.append(f"Fewer than {FEWEST} images at all sites, cannot be said: {', '.join(few)}.")
    columns = [
        "Class",
        "Images",
        "Sensitivity, %",
        "Specificity, %",
        f"Sites with 1 to {FEWEST - 1}",
    ]
    rows = [
        [
            one["class"],
            str(one["images"]),
            percent(one["sensitivity"]),
            DASH if one["specificity"] is None else percent(one["specificity"]),
            str(one["sites_with_few"]),
        ]
        for one in said
    ]
    tables = [Table("By class", columns, rows, labels=1)] if rows else []
    if "auroc" not in summary:
        return Block(title, _READING + _AT_HOME, tables=tables, lines=lines)
    lines.append(_ranking(summary))
    return Block(title, _READING, tables=[*tables, _ranks(classes)], lines=lines)


def _ranking(summary: Mapping[str, Any]) -> str:
    auroc, precision = summary["auroc"], summary["average_precision"]
    if auroc is None:
        return f"AUROC cannot be said: no class has {FEWEST} images, and others as many."
    return (
        f"By scores, mean over classes: AUROC {percent(auroc)} %, average precision "
        f"{percent(precision)} %."
    )


def _ranks(classes: Sequence[Mapping[str, Any]]) -> Table:
    columns = ["Class", "AUROC, %", "95 % interval", "Average precision, %", "Mean over sites, %",
               "Of sites"]  # fmt: skip
    rows = []
    for one in (one for one in classes if one["auroc"] is not None):
        ends = f"{percent(one['auroc_low'])} to {percent(one['auroc_high'])}"
        own = one["auroc_of_sites"]
        cells = percent(one["auroc"]), ends, percent(one["average_precision"])
        mean = DASH if own is None else percent(own)
        rows.append([one["class"], *cells, mean, str(one["sites_in_mean"])])
    within = max((one["auroc_within"] or 0 for one in classes), default=0)
    notes = [_RANKED, f"Counts round the scores: each AUROC is exact to {100 * within:.2f} points."]
    return Table("AUROC by class", columns, rows, notes, labels=1)
