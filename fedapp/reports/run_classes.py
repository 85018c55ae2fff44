"""Results class by class: metrics, class mix of sites, mistakes, calibration and pseudo-labels.

Metrics of a class are computed over the images of all sites together, not as means over sites: a
site with two images of a class finds 0, 50 or 100 % of them.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from fedapp.core.formatting import count, counted, percent
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

_ABOUT_CLASS_MIX = (
    "Share of each class among a site's labelled validation and test images, a row each; darker is "
    "more. A row with few dark squares is a site that sees few classes."
)
MOST_CLASSES, MOST_SITES = 40, 200
"""With more classes or sites than this a matrix cannot be read, so it is not drawn."""
MISTAKES, CALIBRATION = "Mistakes", "Can its probabilities be trusted?"
_UNMEASURED = "No site has labelled test images that were measured."
LEAST_POINTS, MOST_AT_ONCE = 3, 0.8
"""A curve of fewer points, or of which one has more than this share of the images, says nothing:
its table stands alone."""
_MOST_MISTAKES = 10
"""Number of mistakes in the table, the most frequent first."""
PSEUDO = "Pseudo-labels"
_ABOUT_PSEUDO_LABELS = (
    "Labels that the models gave to unlabelled images, for sites to learn from: each site's last, "
    "added up. Uncertainty is the entropy of the label's probabilities, 0 % sure and 100 % "
    "undecided."
)
_ABOUT_WRONG = " Striped: wrong, which only a simulation knows."
_ABOUT_CLASSES = (
    "Each site's model on its own test images, all images together. Sensitivity: the share of a "
    "class that is found. Specificity: the share of the other images that is not taken for it."
)
_AUROC_IS_AT_HOME = (
    " AUROC needs the scores of single images, which stay at the sites: a site's own page has it "
    "(fedapp site --page). With rounds.pooled_auroc=true sites send counts of the scores."
)
_ABOUT_AUROC = (
    "Counts of scores of all sites' images together: each image of the class against each other "
    "image, whichever site it lies at, with an interval that counts images as independent. Beside "
    "it the mean over sites, to be read with care: one case found or missed makes a site's AUROC."
)
PseudoLabelCounts = Mapping[str, Sequence[int]]
"""A `messages.PseudoLabels` in the form that sites.jsonl has."""


def classes_found(run: RunRecord) -> Block:
    """Return the metrics over all sites' test images, and those of each class."""
    title = "How well each class is found"
    summary = run.standings.summary()
    classes, pooled = summary["by_class"], summary["pooled"]
    if not any(one["images"] for one in classes):
        return Block(title, _ABOUT_CLASSES, missing="No site has test images that were measured.")
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
        return Block(title, _ABOUT_CLASSES + _AUROC_IS_AT_HOME, tables=tables, lines=lines)
    lines.append(_auroc_sentence(summary))
    return Block(title, _ABOUT_CLASSES, tables=[*tables, _auroc_table(classes)], lines=lines)


def _auroc_sentence(summary: Mapping[str, Any]) -> str:
    auroc, precision = summary["auroc"], summary["average_precision"]
    if auroc is None:
        return f"AUROC cannot be said: no class has {MIN_CLASS_IMAGES} images, and others as many."
    return (
        f"By scores, mean over classes: AUROC {percent(auroc)} %, average precision "
        f"{percent(precision)} %."
    )


def _auroc_table(classes: Sequence[Mapping[str, Any]]) -> Table:
    columns = ["Class", "AUROC, %", "95 % interval", "Average precision, %", "Mean over sites, %",
               "Of sites"]  # fmt: skip
    rows = []
    for one in (one for one in classes if one["auroc"] is not None):
        low, high = percent(one["auroc_low"]), percent(one["auroc_high"])
        ends = DASH if low == high else f"{low} to {high}"
        own = one["auroc_of_sites"]
        cells = percent(one["auroc"]), ends, percent(one["average_precision"])
        mean = DASH if own is None else percent(own)
        rows.append([one["class"], *cells, mean, str(one["sites_in_mean"])])
    within = max((one["auroc_within"] or 0 for one in classes), default=0)
    notes = [
        _ABOUT_AUROC,
        f"Counts round the scores: each AUROC is exact to {100 * within:.2f} points.",
    ]
    return Table("AUROC by class", columns, rows, notes, labels=1)


def class_mix(run: RunRecord) -> Block:
    """Return a matrix of sites and classes: how each site's images divide among the classes."""
    title = "Class mix"
    counts = {site.number: class_counts(site, len(run.classes)) for site in run.sites}
    known = [site for site in run.sites if sum(counts[site.number])]
    if not known:
        return Block(
            title, _ABOUT_CLASS_MIX, missing="No site has labelled images that were measured."
        )
    for many, most, what in (
        (len(run.classes), MOST_CLASSES, "classes"),
        (len(known), MOST_SITES, "sites"),
    ):
        if many > most:
            return Block(
                title, _ABOUT_CLASS_MIX, missing=f"{many} {what} are too many for a picture."
            )
    names = [site.name for site in known]
    of = Matrix.of_counts(names, run.classes, [counts[site.number] for site in known])
    lacking = sum(0 in counts[site.number] for site in known)
    said = (
        f"Images by site and class. {lacking} of {counted(len(known), 'sites')} have no "
        "image of some class among these."
    )
    rows = [[site.name, *map(count, counts[site.number])] for site in known]
    table = Table("Labelled validation and test images", ["Site", *run.classes], rows, labels=1)
    return Block(title, _ABOUT_CLASS_MIX, [Figure(matrix("Images", of, said), said, table)])


def class_counts(site: SiteRecord, classes: int) -> list[int]:
    """Return how many validation and test images of each true class a site has, [C]."""
    found = [site.standing.latest.get(part) for part in ("val", "test")]
    counts = [one.confusion for one in found if one is not None]
    total: list[int] = np.sum(counts, axis=(0, 2)).tolist() if counts else [0] * classes
    return total


def confusion_block(evaluations: Sequence[Evaluation], classes: Sequence[str]) -> Block:
    """Return the sum of the confusion matrices, and a table of the most frequent mistakes."""
    reading = (
        "Rows are the true classes, columns what the model said; numbers are test images, darker "
        "is a larger share of the row. Right answers lie on the diagonal."
    )
    if not evaluations:
        return Block(MISTAKES, reading, missing=_UNMEASURED)
    total: list[list[int]] = np.sum([found.confusion for found in evaluations], axis=0).tolist()
    pairs = [
        (n, classes[i], classes[j], sum(row))
        for i, row in enumerate(total)
        for j, n in enumerate(row)
        if n and i != j
    ]
    pairs.sort(key=lambda pair: -pair[0])
    rows = [
        [true, said, f"{n} of {of}", percent(n / of)]
        for n, true, said, of in pairs[:_MOST_MISTAKES]
    ]
    frequent = Table(
        "Most frequent mistakes", ["True class", "Said", "Images", "Of the class, %"], rows
    )
    tables = [frequent] if rows else []
    wrong = sum(n for n, *_ in pairs)
    images = sum(map(sum, total))
    said = f"{wrong} of {images} test images are named wrongly."
    if len(classes) > MOST_CLASSES:
        why = f"{len(classes)} classes are too many for a picture."
        return Block(MISTAKES, reading, tables=tables, lines=[said], missing=why)
    of = Matrix.of_counts(classes, classes, total)
    numbers = [[name, *map(count, row)] for name, row in zip(classes, total, strict=True)]
    table = Table("Confusion matrix", ["True class", *classes], numbers, labels=1)
    picture = matrix("Test images", of, said, "predicted class", "true class")
    return Block(MISTAKES, reading, [Figure(picture, said, table)], tables)


def calibration(evaluations: Sequence[Evaluation]) -> Block:
    """Return the reliability diagram, and the accuracy of the most confident answers."""
    reading = (
        "Reliability: of answers given with some probability, how many are right; on the dashed "
        "line the models are as sure as they should be, below it too sure. The other picture: how "
        "many are right if only the surest answers are used and a person looks at the others."
    )
    if not evaluations:
        return Block(CALIBRATION, reading, missing=_UNMEASURED)
    found = coverage(evaluations)
    drawn = len(found) >= LEAST_POINTS, found[0][0] <= MOST_AT_ONCE * found[-1][0]
    figures, plain = list[Figure](), list[Figure]()
    for figure, worth in zip(
        (_reliability(evaluations), _surest_answers(evaluations)), drawn, strict=True
    ):
        (figures if worth else plain).append(figure)
    tables = [figure.table for figure in plain if figure.table]
    return Block(CALIBRATION, reading, figures, tables, [figure.caption for figure in plain])


def _add_up_bins(evaluations: Sequence[Evaluation]) -> list[tuple[int, int, float]]:
    """Return (images, right answers, sum of top probabilities) of each bin, lowest bin first."""
    counts = [sum(e.bin_count[b] for e in evaluations) for b in range(CALIBRATION_BINS)]
    right = [sum(e.bin_correct[b] for e in evaluations) for b in range(CALIBRATION_BINS)]
    sure = [sum(e.bin_confidence[b] for e in evaluations) for b in range(CALIBRATION_BINS)]
    return list(zip(counts, right, sure, strict=True))


def _reliability(evaluations: Sequence[Evaluation]) -> Figure:
    filled = [(n, right, sure) for n, right, sure in _add_up_bins(evaluations) if n]
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
    """Return (images answered, right answers) if only the bins above some confidence are answered.

    The first entry has the most confident bin alone, the last one all images.
    """
    filled = [(n, right) for n, right, _ in reversed(_add_up_bins(evaluations)) if n]
    answered = accumulate(n for n, _ in filled)
    right = accumulate(right for _, right in filled)
    return list(zip(answered, right, strict=True))


def _surest_answers(evaluations: Sequence[Evaluation]) -> Figure:
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
    """Return the pseudo-labels of all sites, or the reason why they are not known."""
    last = [found for site in run.sites if (found := latest_pseudo_labels(run, site.number))]
    if not last:
        why = (
            "The run did not count pseudo-labels: its method makes none, or other ones in every "
            "training step."
            if run.history
            else "This run did not record them (sites.jsonl)."
        )
        return Block(PSEUDO, _ABOUT_PSEUDO_LABELS, _error_by_round(run), missing=why)
    return pseudo_label_block(last, run.classes, _error_by_round(run))


def latest_pseudo_labels(run: RunRecord, site: int) -> PseudoLabelCounts | None:
    """Return a site's counts in the last round in which it had pseudo-labels; None: it had none."""
    found: list[dict[str, Any]] = [
        said["pseudo"] for _, said in run.replies_of(site) if "pseudo" in said
    ]
    return found[-1] if found else None


def pseudo_label_block(
    last: Sequence[PseudoLabelCounts], classes: Sequence[str], more: Sequence[Figure] = ()
) -> Block:
    """Return a block with the sum of these counts. more: figures that follow."""
    known = all(counts["wrong_by_class"] or not sum(counts["by_class"]) for counts in last)
    by_class, wrong_class = (_add_up(last, key) for key in ("by_class", "wrong_by_class"))
    by_bin, wrong_bin = (_add_up(last, key) for key in ("by_uncertainty", "wrong_by_uncertainty"))
    step = 100 // len(by_bin)
    bins = [f"{step * i} to {step * (i + 1)} %" for i in range(len(by_bin))]
    figures = [_bar_figure("By uncertainty", bins, by_bin, wrong_bin if known else None)]
    if len(classes) <= MOST_CLASSES:
        figures.insert(
            0, _bar_figure("By class", classes, by_class, wrong_class if known else None)
        )
    reading = _ABOUT_PSEUDO_LABELS + (
        _ABOUT_WRONG if known else " At real sites nobody knows how many are wrong."
    )
    return Block(PSEUDO, reading, [*figures, *more])


def _add_up(every: Sequence[PseudoLabelCounts], key: str) -> list[int]:
    given = [counts[key] for counts in every if counts[key]]
    total: list[int] = np.sum(given, axis=0).tolist() if given else []
    return total


def _bar_figure(
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


def _error_by_round(run: RunRecord) -> list[Figure]:
    found = [(r["round"], e) for r in run.rounds if (e := r.get("pseudo_label_error")) is not None]
    if len(found) < 2:
        return []
    (first, began), (last, ended) = found[0], found[-1]
    said = (
        f"Wrong pseudo-labels: {percent(began)} % in round {first}, {percent(ended)} % in round "
        f"{last}."
    )
    rows = [[str(number), percent(share)] for number, share in found]
    picture = over_rounds(run.last_round, "Wrong by round", [Line("wrong", found, "c2")], said)
    return [Figure(picture, said, Table("Wrong by round", ["Round", "%"], rows, labels=1))]
