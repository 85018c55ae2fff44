"""Class by class: what is found, the images of each site, mistakes, and pseudo-labels.

And whether a model knows when it may be wrong. What is found is told of all sites' images together,
not as means over sites: a site with two images of a class finds 0, 50 or 100 % of them.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from fedapp.core.formatting import count, percent
from fedapp.evaluation.classification_metrics import METRIC_NAMES, MIN_CLASS_IMAGES
from fedapp.evaluation.confidence_intervals import wilson
from fedapp.learn.metrics import CALIBRATION_BINS, calibration_error
from fedapp.protocol.messages import Evaluation
from fedapp.reports.charts import (
    STRIPED,
    Bar,
    Line,
    Matrix,
    band,
    bars,
    line_chart,
    matrix,
    over_rounds,
    percents,
)
from fedapp.reports.layout import DASH, Block, Figure, Table
from fedapp.reports.run_record import RunRecord, SiteRecord
from fedapp.server.standings import POOLED_METRICS

_CLASSES = (
    "Share of each class among a site's labelled validation and test images, a row each; darker is "
    "more. The server knows of no other labels. A row with few dark squares is a site that sees "
    "few classes."
)
MOST_CLASSES, MOST_SITES = 40, 200
"""Classes and sites of which a picture says anything."""
CONFUSION, TRUST = "Mistakes", "Can its probabilities be trusted?"
_UNMEASURED = "No site has labelled test images that were measured."
_PAIRS = 10
"""Mistakes that the table names, the most frequent first."""
PSEUDO = "Pseudo-labels"
_LABELS = (
    "Labels that the models gave to unlabelled images, for sites to learn from: each site's last, "
    "added up. Uncertainty is the entropy of the label's probabilities, 0 % sure and 100 % "
    "undecided."
)
_KNOWN = " Striped: wrong, which only a simulation knows."
_FOUND = (
    "Each site's model on its own test images, all images together. Sensitivity: the share of a "
    "class that is found; specificity: the share of the others that is not taken for it. A mean "
    "over sites would count a site with one image of a class like one with a hundred, so none is "
    f"shown, and sites with fewer than {MIN_CLASS_IMAGES} are not ranked by a class."
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
Counts = Mapping[str, Sequence[int]]
"""A `protocol.PseudoLabels` as sites.jsonl has it."""


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


def classes_found(run: RunRecord) -> Block:
    """Return the metrics of all sites' test images together, and the classes one by one."""
    title = "How well each class is found"
    summary = run.standings.summary()
    classes, pooled = summary["by_class"], summary["pooled"]
    if not any(one["images"] for one in classes):
        return Block(title, _FOUND, missing="No site has test images that were measured.")
    named = [f"{METRIC_NAMES[m]} {percent(pooled[m]['final'])} %" for m in POOLED_METRICS]
    said = [one for one in classes if one["sensitivity"] is not None]
    said_of_all = all(one in said for one in classes if one["images"])
    lines = [f"All sites' test images together: {', '.join(named)}."] if said_of_all else []
    if few := [f"{one['class']} ({one['images']})" for one in classes if one not in said]:
        lines.append(
            f"Fewer than {MIN_CLASS_IMAGES} images at all sites, cannot be said: {', '.join(few)}."
        )
    columns = [
        "Class",
        "Images",
        "Sensitivity, %",
        "Specificity, %",
        f"Sites with 1 to {MIN_CLASS_IMAGES - 1}",
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
        return Block(title, _FOUND + _AT_HOME, tables=tables, lines=lines)
    lines.append(_ranking(summary))
    return Block(title, _FOUND, tables=[*tables, _ranks(classes)], lines=lines)


def _ranking(summary: Mapping[str, Any]) -> str:
    auroc, precision = summary["auroc"], summary["average_precision"]
    if auroc is None:
        return f"AUROC cannot be said: no class has {MIN_CLASS_IMAGES} images, and others as many."
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


def class_mix(run: RunRecord) -> Block:
    """Return the classes of all sites."""
    title = "Class mix"
    counts = {site.number: true_counts(site, len(run.classes)) for site in run.sites}
    known = [site for site in run.sites if sum(counts[site.number])]
    if not known:
        return Block(title, _CLASSES, missing="No site has labelled images that were measured.")
    for many, most, what in (
        (len(run.classes), MOST_CLASSES, "classes"),
        (len(known), MOST_SITES, "sites"),
    ):
        if many > most:
            return Block(title, _CLASSES, missing=f"{many} {what} are too many for a picture.")
    names = [site.name for site in known]
    of = Matrix.of_counts(names, run.classes, [counts[site.number] for site in known])
    lacking = sum(0 in counts[site.number] for site in known)
    said = (
        f"Images by site and class. {lacking} of {len(known)} sites have no image of some class "
        "among these."
    )
    rows = [[site.name, *map(count, counts[site.number])] for site in known]
    table = Table("Labelled validation and test images", ["Site", *run.classes], rows, labels=1)
    return Block(title, _CLASSES, [Figure(matrix("Images", of, said), said, table)])


def true_counts(site: SiteRecord, classes: int) -> list[int]:
    """Return the numbers of a site's validation and test images by true class, [C]."""
    found = [site.standing.latest.get(part) for part in ("val", "test")]
    counts = [one.confusion for one in found if one is not None]
    total: list[int] = np.sum(counts, axis=(0, 2)).tolist() if counts else [0] * classes
    return total


def confusion(evaluations: Sequence[Evaluation], classes: Sequence[str]) -> Block:
    """Return the confusion matrix over all these images, with the most frequent mistakes."""
    reading = (
        "Rows are the true classes, columns what the model said; numbers are test images, darker "
        "is a larger share of the row. Right answers lie on the diagonal."
    )
    if not evaluations:
        return Block(CONFUSION, reading, missing=_UNMEASURED)
    total: list[list[int]] = np.sum([found.confusion for found in evaluations], axis=0).tolist()
    pairs = [
        (n, classes[i], classes[j], sum(row))
        for i, row in enumerate(total)
        for j, n in enumerate(row)
        if n and i != j
    ]
    pairs.sort(key=lambda pair: -pair[0])
    rows = [[true, said, f"{n} of {of}", percent(n / of)] for n, true, said, of in pairs[:_PAIRS]]
    frequent = Table(
        "Most frequent mistakes", ["True class", "Said", "Images", "Of the class, %"], rows
    )
    tables = [frequent] if rows else []
    wrong = sum(n for n, *_ in pairs)
    images = sum(map(sum, total))
    said = f"{wrong} of {images} test images are named wrongly."
    if len(classes) > MOST_CLASSES:
        why = f"{len(classes)} classes are too many for a picture."
        return Block(CONFUSION, reading, tables=tables, lines=[said], missing=why)
    of = Matrix.of_counts(classes, classes, total)
    numbers = [[name, *map(count, row)] for name, row in zip(classes, total, strict=True)]
    table = Table("Confusion matrix", ["True class", *classes], numbers, labels=1)
    picture = matrix("Test images", of, said, "predicted class", "true class")
    return Block(CONFUSION, reading, [Figure(picture, said, table)], tables)


def trust(evaluations: Sequence[Evaluation]) -> Block:
    """Return the reliability diagram and what is right of the answers that are surest."""
    reading = (
        "Reliability: of answers given with some probability, how many are right; on the dashed "
        "line the models are as sure as they should be, below it too sure. The other picture: how "
        "many are right if only the surest answers are used and a person looks at the others."
    )
    if not evaluations:
        return Block(TRUST, reading, missing=_UNMEASURED)
    return Block(TRUST, reading, [_reliability(evaluations), _coverage(evaluations)])


def _bins(evaluations: Sequence[Evaluation]) -> list[tuple[int, int, float]]:
    """Return images, right ones and the sum of top probabilities of each bin, lowest first."""
    counts = [sum(e.bin_count[b] for e in evaluations) for b in range(CALIBRATION_BINS)]
    right = [sum(e.bin_correct[b] for e in evaluations) for b in range(CALIBRATION_BINS)]
    sure = [sum(e.bin_confidence[b] for e in evaluations) for b in range(CALIBRATION_BINS)]
    return list(zip(counts, right, sure, strict=True))


def _reliability(evaluations: Sequence[Evaluation]) -> Figure:
    filled = [(n, right, sure) for n, right, sure in _bins(evaluations) if n]
    points = [(sure / n, right / n) for n, right, sure in filled]
    ends = [(sure / n, *wilson(right, n)) for n, right, sure in filled]
    error = calibration_error(evaluations)
    said = (
        f"Expected calibration error {percent(error)} points, of {sum(n for n, *_ in filled)} "
        "images; the band is the 95 % interval of each of the 15 bins."
    )
    rows = [
        [percent(sure / n), str(n), str(right), percent(right / n)] for n, right, sure in filled
    ]
    columns = ["Mean probability, %", "Images", "Right", "Right, %"]
    picture = line_chart(
        "Reliability",
        [Line("right", points, "c0")],
        percents("probability of the answer"),
        percents(),
        said,
        band(ends, "c0"),
        diagonal=True,
    )
    return Figure(picture, said, Table("Answers by their probability", columns, rows, labels=1))


def coverage(evaluations: Sequence[Evaluation]) -> list[tuple[int, int]]:
    """Return (images answered, right ones) where answers below a bin are left out, fewest first."""
    filled = [(n, right) for n, right, _ in reversed(_bins(evaluations)) if n]
    answered = accumulate(n for n, _ in filled)
    right = accumulate(right for _, right in filled)
    return list(zip(answered, right, strict=True))


def _coverage(evaluations: Sequence[Evaluation]) -> Figure:
    found = coverage(evaluations)
    total = found[-1][0]
    points = [(answered / total, right / answered) for answered, right in found]
    share, right = next(point for point in points if point[0] >= 0.5)
    said = (
        f"Of all answers {percent(points[-1][1])} % are right; of the surest {percent(share)} % of "
        f"them, {percent(right)} %."
    )
    rows = [
        [f"{n} of {total}", percent(n / total), str(right), percent(right / n)]
        for n, right in found
    ]
    columns = ["Answered", "Answered, %", "Right", "Right, %"]
    picture = line_chart(
        "Right among the surest answers",
        [Line("right", points, "c0")],
        percents("share of images answered"),
        percents(),
        said,
    )
    return Figure(picture, said, Table("Leaving the unsure to people", columns, rows, labels=1))


def pseudo_labels(run: RunRecord) -> Block:
    """Return the pseudo-labels of a run, or why they are not known."""
    last = [found for site in run.sites if (found := latest(run, site.number))]
    if not last:
        why = (
            "The run did not count pseudo-labels: its method makes none, or other ones in every "
            "training step."
            if run.history
            else "This run did not record them (sites.jsonl)."
        )
        return Block(PSEUDO, _LABELS, _errors(run), missing=why)
    return shown(last, run.classes, _errors(run))


def latest(run: RunRecord, site: int) -> Counts | None:
    """Return a site's counts of the last round in which it had pseudo-labels; None: never."""
    found: list[dict[str, Any]] = [said["pseudo"] for _, said in run.said(site) if "pseudo" in said]
    return found[-1] if found else None


def shown(last: Sequence[Counts], classes: Sequence[str], more: Sequence[Figure] = ()) -> Block:
    """Return the block of these counts, added up. more: figures that follow."""
    known = all(counts["wrong_by_class"] or not sum(counts["by_class"]) for counts in last)
    by_class, wrong_class = (_sum(last, key) for key in ("by_class", "wrong_by_class"))
    by_bin, wrong_bin = (_sum(last, key) for key in ("by_uncertainty", "wrong_by_uncertainty"))
    step = 100 // len(by_bin)
    bins = [f"{step * i} to {step * (i + 1)} %" for i in range(len(by_bin))]
    figures = [_counted("By uncertainty", bins, by_bin, wrong_bin if known else None)]
    if len(classes) <= MOST_CLASSES:
        figures.insert(0, _counted("By class", classes, by_class, wrong_class if known else None))
    reading = _LABELS + (_KNOWN if known else " How many are wrong nobody knows at real sites.")
    return Block(PSEUDO, reading, [*figures, *more])


def _sum(every: Sequence[Counts], key: str) -> list[int]:
    given = [counts[key] for counts in every if counts[key]]
    total: list[int] = np.sum(given, axis=0).tolist() if given else []
    return total


def _counted(
    title: str, names: Sequence[str], counts: Sequence[int], wrong: Sequence[int] | None
) -> Figure:
    given, rows = [], []
    for i, (name, n) in enumerate(zip(names, counts, strict=True)):
        bad = wrong[i] if wrong else 0
        share = f", {percent(bad / n)} % wrong" if wrong and n else ""
        given.append(Bar(name, [(n - bad, "c0"), (bad, STRIPED)], f"{n}{share}"))
        rows.append([name, str(n), str(bad) if wrong else DASH])
    total = sum(counts)
    said = f"{total} pseudo-labels"
    if wrong and total:
        said += f", {sum(wrong)} of them wrong ({percent(sum(wrong) / total)} %)"
    table = Table(f"Pseudo-labels {title.lower()}", ["", "Images", "Wrong"], rows, labels=1)
    return Figure(bars(title, given, f"{title}: {said}."), f"{said}.", table)


def _errors(run: RunRecord) -> list[Figure]:
    found = [(r["round"], e) for r in run.rounds if (e := r.get("pseudo_label_error")) is not None]
    if len(found) < 2:
        return []
    (first, began), (last, ended) = found[0], found[-1]
    said = (
        f"Wrong pseudo-labels: {percent(began)} % in round {first}, {percent(ended)} % in round "
        f"{last}."
    )
    rows = [[str(number), percent(share)] for number, share in found]
    picture = over_rounds(run.last, "Wrong by round", [Line("wrong", found, "c2")], said)
    return [Figure(picture, said, Table("Wrong by round", ["Round", "%"], rows, labels=1))]
