"""Quality of a site's kept model, from its answers to single test images: metrics and mistakes.

This is computed at the site, from the model's folder and the file of answers beside it. The page
shows images of the site, so nothing of it is sent.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedapp.core.formatting import counted, percent
from fedapp.evaluation.classification_metrics import (
    METRIC_NAMES,
    METRICS,
    MIN_CLASS_IMAGES,
    Metric,
    OneVsRest,
    brier,
    check_finite,
    confusion_matrix,
    confusion_of_answers,
    enough_images_per_class,
    mean_of_known,
    one_vs_rest,
    sensitivity,
    specificity,
)
from fedapp.evaluation.confidence_intervals import (
    bootstrap_weights,
    delong_test,
    percentile_interval,
    resampled_counts,
    resampled_one_vs_rest,
    widened_interval,
    wilson,
)
from fedapp.evaluation.findings import (
    finding_matrices,
    flatten_findings,
    one_vs_rest_by_finding,
    two_class_names,
)
from fedapp.evaluation.model_selection import Choice
from fedapp.learn.metrics import evaluation
from fedapp.models.description import Description
from fedapp.models.evidence import Evidence
from fedapp.reports.charts import IntervalRow, ShareInterval, gallery, intervals
from fedapp.reports.layout import DASH, Block, Figure, Table
from fedapp.reports.run_classes import calibration, confusion_block

Values = NDArray[np.float64]
Labels = NDArray[np.int64]

_DRAWS: Final = "own page"
"""Purpose of the random draws of the resamples (`core.rng`)."""
_QUALITY = (
    "Of the site's own test images, which the model did not learn from. Intervals: the middle 95 % "
    "of 1,000 resamples of the images, for accuracy Wilson's or wider. A mean over classes is told "
    f"where each class that occurs has {MIN_CLASS_IMAGES} images."
)
_QUALITY_OF_FINDINGS = (
    "Means over the findings of which something can be said. Intervals: the middle 95 % of 1,000 "
    "resamples of the images, each with all its findings."
)
_NO_INTERVAL = (
    "No interval (-): all resamples of these images give the same value, which says how few they "
    "are, and not how sure the value is."
)
_MEANS: Final[tuple[Metric, ...]] = ("accuracy", "balanced_accuracy", "f1")
_CLASSES = (
    "Each class against all others. Sensitivity: the share of its images that is found; "
    "specificity: the share of the others that is not taken for it (both with Wilson's 95 % "
    f"interval). Of fewer than {MIN_CLASS_IMAGES} images nothing is said."
)
_FINDINGS = (
    "Each finding by itself, of the test images in which it was read; it counts as said from a "
    "probability of 50 % on. Sensitivity: the share of the images with it that are found; "
    "specificity: the share of those without it that are not taken for it (both with Wilson's 95 % "
    f"interval). Of fewer than {MIN_CLASS_IMAGES} images nothing is said."
)


@dataclass(frozen=True)
class ClassResult:
    """Results of a class, or of a finding, against all others.

    Attributes:
        name: the class.
        found: of images of the class: right answers, number of images, and the share of right
            answers in each resample [B]. The last is empty unless images are grouped by patient.
        spared: the same of all other images.
        scores: metrics that need probabilities.
    """

    name: str
    found: tuple[int, int, Values]
    spared: tuple[int, int, Values]
    scores: OneVsRest


def answer_blocks(description: Description, evidence: Evidence, at: float) -> list[Block]:
    """Return the blocks of a site's page that are made of single answers to test images.

    Args:
        description: of the kept model.
        evidence: its answers to at least one test image.
        at: the specificity, in (0, 1), at which sensitivities are reported.

    Raises:
        RunError: an answer is NaN.
    """
    classes, patients = description.model.classes, evidence.patients
    answers, labels = evidence.answers["kept"], evidence.labels
    probabilities, truth = answers.double().numpy(), labels.numpy()
    check_finite(probabilities)
    if description.model.finds:
        names, reading = two_class_names(classes), _FINDINGS
        quality = _quality_of_findings(probabilities, truth, at, patients)
        results = _results_of_findings(classes, probabilities, truth, at, patients)
    else:
        probabilities /= probabilities.sum(1, keepdims=True)  # they were rounded to float32
        found, names, reading = one_vs_rest(probabilities, truth, at), classes, _CLASSES
        quality = _quality(probabilities, truth, found, at, patients)
        results = _results(classes, probabilities, truth, found, patients)
    sums = evaluation(answers, labels)
    every = [
        _gain(description, evidence),
        quality,
        _class_block(results, at, reading),
        confusion_block([sums], names),
        _surest_mistakes(description, evidence),
        calibration([sums]),
    ]
    return [block for block in every if block is not None]


def _gain(description: Description, evidence: Evidence) -> Block | None:
    """Return the metrics of the model trained alone and of the joined one, on the same images."""
    answers = evidence.compared(Choice(description.choice.candidates))
    verdict, truth = description.choice.verdict, evidence.labels.numpy()
    if verdict is None or (pairs := verdict.pairs) is None or None in answers:
        return None
    joined, alone = (one.double().numpy() for one in answers if one is not None)
    gain = (pairs.together - pairs.alone) / pairs.images
    shares = [percent(right / pairs.images) for right in (pairs.alone, pairs.together)]
    rows = [["Accuracy", *shares, *_signed(gain, verdict.low, verdict.high)]]
    if verdict.metric != "accuracy":
        rows += _metric_gain(verdict.metric, alone, joined, evidence, description.model.finds)
    if description.model.finds:
        same = f"asked for the same {verdict.answers} findings"
    else:
        same = f"both asked for the same {len(truth)} test images"
        if joined.shape[1] == 2 and min(np.bincount(truth, minlength=2)) >= MIN_CLASS_IMAGES:
            rows.append(_auroc_gain(alone[:, 1], joined[:, 1], truth == 1, evidence.patients))
    columns = ["Metric", "Alone, %", "Together, %", "Gain, points", "95 % interval"]
    reading = (
        "The best model that the site made alone and the best that others had a part in, chosen "
        f"on validation images, one of them the model kept here; {same}."
    )
    return Block("What joining brought", reading, tables=[Table("Gain", columns, rows, labels=1)])


def _metric_gain(
    metric: Metric, alone: Values, joined: Values, evidence: Evidence, finds: bool
) -> list[list[str]]:
    """Return a row of the metric that the run selects by; [] where it cannot be said.

    alone, joined: probabilities [n, C], of findings [n, F].
    """
    truth, both = evidence.labels.numpy(), (alone, joined)
    drawn = bootstrap_weights(len(truth), _DRAWS, groups=evidence.patients)
    if finds:
        _, label, image, of = flatten_findings(joined, truth)
        answers = [2 * of + flatten_findings(one, truth)[0].argmax(1) for one in both]
        label, classes, drawn = 2 * of + label, 2 * truth.shape[1], drawn[:, image]
    else:
        answers, label, classes = [one.argmax(1) for one in both], truth, joined.shape[1]
    counts = [confusion_of_answers(one, label, classes) for one in answers]
    if not enough_images_per_class(counts[0]):
        return []
    of_metric = METRICS[metric]
    values = [float(of_metric(one)) for one in counts]
    spread = [of_metric(resampled_counts(drawn, one, label, classes)) for one in answers]
    low, high = percentile_interval(spread[1] - spread[0]) or (None, None)
    return [[_named(metric), *map(percent, values), *_signed(values[1] - values[0], low, high)]]


def _auroc_gain(
    alone: Values, joined: Values, second: NDArray[np.bool_], patients: Labels | None
) -> list[str]:
    """Return the row with the AUROC of both models, where there are two classes.

    alone, joined: probabilities of the second class, [n]. second: which images are of it, [n].
    """
    found = delong_test(joined, alone, second)
    once = np.ones((1, len(second)), np.int64)
    areas = (resampled_one_vs_rest(once, one, second, 0.9)[0][0] for one in (alone, joined))
    low, high = found.interval
    if patients is not None:
        drawn = bootstrap_weights(len(second), _DRAWS, groups=patients)
        ours, theirs = (
            resampled_one_vs_rest(drawn, one, second, 0.9)[0] for one in (joined, alone)
        )
        low, high = widened_interval((low, high), ours - theirs)
    return ["AUROC", *map(percent, areas), *_signed(found.gain, low, high)]


def _signed(gain: float, low: float | None, high: float | None) -> list[str]:
    ends = DASH
    if low is not None and high is not None and high - low >= 0.0005:
        ends = f"{low * 100:+.1f} to {high * 100:+.1f}"
    return [f"{gain * 100:+.1f}", ends]


def _quality(
    probabilities: Values, truth: Labels, found: list[OneVsRest], at: float, patients: Labels | None
) -> Block:
    """Return metrics over all classes. probabilities: [n, C]; truth: labels [n]."""
    counts, (images, classes) = confusion_matrix(probabilities, truth), probabilities.shape
    drawn = bootstrap_weights(images, _DRAWS, groups=patients)
    resampled = resampled_counts(drawn, probabilities.argmax(1), truth, classes)
    rows, said_of_all = [], enough_images_per_class(counts)
    for metric, of in METRICS.items():
        if metric != "accuracy" and not said_of_all:
            continue
        ends = percentile_interval(of(resampled))
        if metric == "accuracy":  # as the head of the page has it
            by_image = wilson(int(counts.diagonal().sum()), images)
            ends = by_image if patients is None else widened_interval(by_image, of(resampled))
        value = float(of(counts))
        rows.append([_named(metric), DASH if np.isnan(value) else percent(value), _ends(ends)])
    kinds = [
        resampled_one_vs_rest(drawn, probabilities[:, c], truth == c, at)
        for c, one in enumerate(found)
        if one.auroc is not None
    ]
    for place, (name, mean) in enumerate(
        (
            ("AUROC, mean over classes", mean_of_known([one.auroc for one in found])),
            ("Average precision, mean over classes",
             mean_of_known([one.average_precision for one in found])),
        )
    ):  # fmt: skip
        if said_of_all and mean is not None:
            spread = np.mean([one[place] for one in kinds], axis=0)
            rows.append([name, percent(mean), _ends(percentile_interval(spread))])
    squares = ((probabilities - np.eye(classes)[truth]) ** 2).sum(1) / (2 if classes == 2 else 1)
    score, ends = brier(probabilities, truth), percentile_interval(drawn @ squares / drawn.sum(1))
    most = "1" if classes == 2 else "2"
    low, high = ("", "") if ends is None else (f"{end:.3f}" for end in ends)
    rows.append(
        [
            f"Brier score (0 best, {most} worst)",
            DASH if score is None else f"{score:.3f}",
            DASH if low == high else f"{low} to {high}",
        ]
    )
    lines = [] if said_of_all else [_few(counts)]
    if any(row[2] == DASH for row in rows):
        lines.append(_NO_INTERVAL)
    if patients is not None:
        lines.append(
            "All intervals but that of calibration are by patient: "
            f"{counted(images, 'images')} of {counted(len(set(patients.tolist())), 'patients')}."
        )
    table = Table("Metrics", ["Metric", "%, or as said", "95 % interval"], rows, labels=1)
    return Block("How good the model is", _QUALITY, tables=[table], lines=lines)


def _few(counts: Labels) -> str:
    images = counts.sum(1)
    fewest = int(images[images > 0].min())
    return (
        "Balanced accuracy, F1, kappa, AUROC and average precision as means over classes cannot be "
        f"said: some class has {fewest} test image{'s' * (fewest > 1)}."
    )


def _quality_of_findings(
    probabilities: Values, truth: Labels, at: float, patients: Labels | None
) -> Block:
    """Return means over the findings. probabilities: [n, F]; truth: 1, 0, or -1 (not read)."""
    found = one_vs_rest_by_finding(probabilities, truth, at)
    usable = [f for f, one in enumerate(found) if one.auroc is not None]
    if not usable:
        few = (
            f"No finding is shown by {MIN_CLASS_IMAGES} test images, and absent in as many, where "
            "read."
        )
        return Block("How good the model is", _QUALITY_OF_FINDINGS, lines=[few])
    probabilities, truth = probabilities[:, usable], truth[:, usable]
    drawn = bootstrap_weights(len(truth), _DRAWS, groups=patients)
    flat, label, image, of = flatten_findings(probabilities, truth)
    first, classes = 2 * of, 2 * len(usable)
    spread = resampled_counts(drawn[:, image], first + flat.argmax(1), first + label, classes)
    each = np.arange(len(usable))
    pairs = spread.reshape(-1, len(usable), 2, len(usable), 2)[:, each, :, each, :]  # [F, B, 2, 2]
    rows = []
    for metric in _MEANS:
        value = METRICS[metric](finding_matrices(_counts_of_findings(probabilities, truth))).mean()
        ends = percentile_interval(METRICS[metric](pairs).mean(0))
        rows.append([_named(metric), percent(float(value)), _ends(ends)])
    areas = [
        resampled_one_vs_rest(drawn[:, read], probabilities[read, f], truth[read, f] == 1, at)[:2]
        for f, read in enumerate((truth >= 0).T)
    ]
    for place, name in enumerate(("AUROC", "Average precision")):
        values = [(one.auroc, one.average_precision)[place] for one in found]
        ends = percentile_interval(np.mean([one[place] for one in areas], axis=0))
        rows.append([name, percent(mean_of_known(values)), _ends(ends)])
    table = Table("Metrics", ["Metric, mean over findings", "%", "95 % interval"], rows, labels=1)
    left = len(found) - len(usable)
    lines = [f"Left out: {left} of {len(found)} findings, of too few images."] if left else []
    lines += [_NO_INTERVAL] * any(row[2] == DASH for row in rows)
    return Block("How good the model is", _QUALITY_OF_FINDINGS, tables=[table], lines=lines)


def _named(metric: Metric) -> str:
    return METRIC_NAMES[metric][0].upper() + METRIC_NAMES[metric][1:]


def _ends(ends: tuple[float, float] | None) -> str:
    """Return an interval as text; a dash where there is none, or one without a width."""
    low, high = ("", "") if ends is None else map(percent, ends)
    return DASH if low == high else f"{low} to {high}"


def _counts_of_findings(probabilities: Values, truth: Labels) -> Labels:
    """Return the confusion matrices of all findings as blocks of one matrix [2F, 2F]."""
    flat, label, _, of = flatten_findings(probabilities, truth)
    return confusion_of_answers(2 * of + flat.argmax(1), 2 * of + label, 2 * truth.shape[1])


def _results(
    names: tuple[str, ...],
    probabilities: Values,
    truth: Labels,
    found: list[OneVsRest],
    patients: Labels | None,
) -> list[ClassResult]:
    """Return the result of each class. probabilities: [n, C]; truth: labels [n]."""
    counts, classes = confusion_matrix(probabilities, truth), probabilities.shape[1]
    spread = np.empty((0, classes, classes), np.int64)
    if patients is not None:
        drawn = bootstrap_weights(len(truth), _DRAWS, groups=patients)
        spread = resampled_counts(drawn, probabilities.argmax(1), truth, classes)
    by_patient = sensitivity(spread), specificity(spread)
    images, right = counts.sum(1), counts.diagonal()
    others = counts.sum() - images
    spared = others - (counts.sum(0) - right)
    return [
        ClassResult(
            name,
            (int(right[c]), int(images[c]), by_patient[0][:, c]),
            (int(spared[c]), int(others[c]), by_patient[1][:, c]),
            found[c],
        )
        for c, name in enumerate(names)
    ]


def _results_of_findings(
    names: tuple[str, ...], probabilities: Values, truth: Labels, at: float, patients: Labels | None
) -> list[ClassResult]:
    """Return the result of each finding. probabilities: [n, F]; truth: 1, 0, or -1."""
    counts, none = _counts_of_findings(probabilities, truth), np.empty(0)
    found = []
    for f, (name, scores) in enumerate(
        zip(names, one_vs_rest_by_finding(probabilities, truth, at), strict=True)
    ):
        (spared, taken), (missed, right) = finding_matrices(counts)[f].tolist()
        spread = none, none
        if patients is not None and spared + taken + missed + right:
            read = truth[:, f] >= 0
            drawn = bootstrap_weights(int(read.sum()), _DRAWS, groups=patients[read])
            answers = (probabilities[read, f] > 0.5).astype(np.int64)
            of = resampled_counts(drawn, answers, truth[read, f], 2)
            with np.errstate(invalid="ignore"):
                shares = of.diagonal(axis1=1, axis2=2) / of.sum(2)
            spread = shares[:, 1], shares[:, 0]
        there, absent = (right, right + missed, spread[0]), (spared, spared + taken, spread[1])
        found.append(ClassResult(name, there, absent, scores))
    return found


def _class_block(results: list[ClassResult], at: float, reading: str) -> Block:
    """Return a table and a chart of the classes, or of the findings if `reading` is `_FINDINGS`."""
    rows, drawn, few, plain = [], [], list[str](), reading == _CLASSES
    for one in results:
        right, images, _ = one.found
        if images < MIN_CLASS_IMAGES:
            few.append(f"{one.name}: {counted(images, 'images')}")
            continue
        share = _with_interval(one.found)
        drawn.append(IntervalRow(one.name, [share], f"{right} of {images}"))
        cells = [one.name, str(images), _written(share)]
        cells.append(
            _written(_with_interval(one.spared)) if one.spared[1] >= MIN_CLASS_IMAGES else DASH
        )
        areas = one.scores.auroc, one.scores.average_precision, one.scores.sensitivity_at
        rows.append([*cells, *map(percent, areas)])
    columns = [
        *("Class" if plain else "Finding", "Images"),
        *("Sensitivity, %", "Specificity, %", "AUROC, %"),
        *("Average precision, %", f"Sensitivity at specificity {at:.0%}, %"),
    ]
    table = Table("By class" if plain else "By finding", columns, rows, labels=1)
    title = "Class by class" if plain else "Finding by finding"
    lines = [f"{'; '.join(few)}: cannot be said."] if few else []
    if not drawn:
        return Block(title, reading, lines=lines)
    worst, best = (of(drawn, key=lambda row: row.shares[0].value) for of in (min, max))
    least = worst.shares[0].value
    if least < best.shares[0].value:
        said = f"Found least: {worst.name}, {worst.words}."
    elif len(drawn) > 1:
        said = f"Of each of the {len(drawn)} {percent(least)} % are found."
    else:
        said = f"{worst.name}: {worst.words} found."
    picture = intervals("Sensitivity", drawn, said, wide=True)
    return Block(title, reading, [Figure(picture, said)], [table], lines)


def _with_interval(found: tuple[int, int, Values]) -> ShareInterval:
    """Return the share of right answers with its interval, of a triple as in `ClassResult`."""
    right, images, spread = found
    return ShareInterval(right / images, widened_interval(wilson(right, images), spread), "c0")


def _written(share: ShareInterval) -> str:
    return f"{percent(share.value)} ({_ends(share.ends)})"


def _surest_mistakes(description: Description, evidence: Evidence) -> Block | None:
    """Return the wrong answers with the highest probability; None where there are none."""
    if not description.model.images or not len(evidence.mistakes):
        return None
    rows, shown = [], []
    for place, image in zip(evidence.mistakes.tolist(), evidence.images, strict=True):
        answer, label = evidence.answers["kept"][place], evidence.labels[place]
        true, said, sure = _mistake(answer, label, description.model.classes)
        rows.append([true, said, sure])
        pixels = image.permute(1, 2, 0).numpy()
        pixels = pixels[..., 0] if pixels.shape[2] == 1 else pixels
        shown.append((pixels, f"is {true}", f"said {said}, {sure} %"))
    caption = f"{counted(len(rows), 'test images')} answered wrongly, the surest first."
    table = Table("Surest mistakes", ["True class", "Said", "Probability, %"], rows, labels=2)
    reading = (
        "Wrong answers that the model was surest of. Look: is the label right? These are the "
        "site's images: they are in this page alone, and nothing sends it."
    )
    figure = Figure(gallery(shown, caption), caption, table)
    return Block("Its surest mistakes", reading, [figure])


def _mistake(answer: Tensor, label: Tensor, classes: tuple[str, ...]) -> tuple[str, str, str]:
    """Return true class, predicted class and its probability in percent; of the surest finding."""
    if not label.ndim:
        return classes[int(label)], classes[int(answer.argmax())], percent(float(answer.max()))
    wrong = (label >= 0) & ((answer > 0.5) != (label == 1))
    f = int(torch.where(wrong, (answer - 0.5).abs(), -1).argmax())
    names = f"no {classes[f]}", classes[f]
    sure = float(torch.maximum(answer[f], 1 - answer[f]))
    return names[int(label[f])], names[1 - int(label[f])], percent(sure)
