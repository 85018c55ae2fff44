"""What a site's own page tells of a model of findings (`evaluation.findings`)."""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedapp.evaluation.findings import blocks, by_finding, read_alone
from fedapp.evaluation.intervals import interval, one_against_rest, resampled_counts, weights
from fedapp.evaluation.quality import FEWEST, METRICS, NAMES, Metric, OneClass, counted, macro
from fedapp.evaluation.verdict import Verdict
from fedapp.ground.text import percent
from fedapp.models.evidence import Evidence
from fedapp.results.layout import DASH, Table
from fedapp.results.run.blocks import Block

Values = NDArray[np.float64]
Labels = NDArray[np.int64]

FINDINGS: Final = (
    "Each finding by itself, of the test images in which it was read; it counts as said from a "
    "probability of 50 % on. Sensitivity: the share of the images with it that are found; "
    "specificity: the share of those without it that are not taken for it (both with Wilson's 95 % "
    f"interval). Of fewer than {FEWEST} images nothing is said."
)
_QUALITY = (
    "Means over the findings of which something can be said. Intervals: the middle 95 % of 1,000 "
    "resamples of the images, each with all its findings."
)
_MEANS: Final[tuple[Metric, ...]] = ("accuracy", "balanced_accuracy", "f1")


@dataclass(frozen=True)
class Told:
    """What is told of a class or finding.

    found, spared: right answers to images of it and to others, these images, and the share in
    resamples [B] where images are not by themselves. scores: what takes probabilities.
    """

    name: str
    found: tuple[int, int, Values]
    spared: tuple[int, int, Values]
    scores: OneClass


def told_of_findings(
    names: tuple[str, ...], said: Values, truth: Labels, at: float, patients: Labels | None
) -> list[Told]:
    """Return what is told of each finding; said, truth: [n, F], on the test images."""
    scores, counts, none = by_finding(said, truth, at), _counts(said, truth), np.empty(0)
    found = []
    for f, name in enumerate(names):
        (spared, taken), (missed, right) = blocks(counts)[f].tolist()
        spread = none, none
        if patients is not None and spared + taken + missed + right:
            read = truth[:, f] >= 0
            drawn = weights(int(read.sum()), "own page", groups=patients[read])
            answers = (said[read, f] > 0.5).astype(np.int64)
            of = resampled_counts(drawn, answers, truth[read, f], 2)
            with np.errstate(invalid="ignore"):
                shares = of.diagonal(axis1=1, axis2=2) / of.sum(2)
            spread = shares[:, 1], shares[:, 0]
        there, absent = (right, right + missed, spread[0]), (spared, spared + taken, spread[1])
        found.append(Told(name, there, absent, scores[f]))
    return found


def finding_quality(said: Values, truth: Labels, at: float, patients: Labels | None) -> Block:
    """Return the means over findings."""
    found = by_finding(said, truth, at)
    told = [f for f, one in enumerate(found) if one.auroc is not None]
    if not told:
        few = f"No finding is shown by {FEWEST} test images, and absent in as many, where read."
        return Block("How good the model is", _QUALITY, lines=[few])
    said, truth = said[:, told], truth[:, told]
    drawn = weights(len(truth), "own page", groups=patients)
    flat, label, image, of = read_alone(said, truth)
    first, classes = 2 * of, 2 * len(told)
    spread = resampled_counts(drawn[:, image], first + flat.argmax(1), first + label, classes)
    each = np.arange(len(told))
    pairs = spread.reshape(-1, len(told), 2, len(told), 2)[:, each, :, each, :]  # [F, B, 2, 2]
    rows = []
    for metric in _MEANS:
        name = NAMES[metric][0].upper() + NAMES[metric][1:]
        value = METRICS[metric](blocks(_counts(said, truth))).mean()
        rows.append([name, percent(float(value)), _ends(METRICS[metric](pairs).mean(0))])
    areas = [
        one_against_rest(drawn[:, read], said[read, f], truth[read, f] == 1, at)[:2]
        for f, read in enumerate((truth >= 0).T)
    ]
    for place, name in enumerate(("AUROC", "Average precision")):
        values = [(one.auroc, one.average_precision)[place] for one in found]
        ends = _ends(np.mean([one[place] for one in areas], axis=0))
        rows.append([name, percent(macro(values)), ends])
    table = Table("Metrics", ["Metric, mean over findings", "%", "95 % interval"], rows, labels=1)
    left = len(found) - len(told)
    lines = [f"Left out: {left} of {len(found)} findings, of too few images."] if left else []
    return Block("How good the model is", _QUALITY, tables=[table], lines=lines)


def finding_gain(verdict: Verdict | None, evidence: Evidence) -> Block | None:
    """Return the metric of both kinds of model, on the same findings; None: it cannot be said."""
    both = evidence.answers.get("alone"), evidence.answers.get("joined")
    if verdict is None or verdict.gain is None or None in both:
        return None
    of, truth = METRICS[verdict.metric], evidence.labels.numpy()
    shares = [
        percent(float(of(_counts(one.double().numpy(), truth)))) for one in both if one is not None
    ]
    low, high = verdict.low or 0.0, verdict.high or 0.0
    ends = f"{low * 100:+.1f} to {high * 100:+.1f}"
    rows = [[NAMES[verdict.metric].capitalize(), *shares, f"{verdict.gain * 100:+.1f}", ends]]
    columns = ["Metric", "Alone, %", "Joined, %", "Gain, points", "95 % interval"]
    reading = (
        "The best model that the site trained alone and the best that others had a part in, each "
        f"chosen on validation images, asked for the same {verdict.answers} findings."
    )
    return Block("What joining brought", reading, tables=[Table("Gain", columns, rows, labels=1)])


def _counts(said: Values, truth: Labels) -> Labels:
    """Return the counts of findings [2F, 2F]."""
    flat, label, _, of = read_alone(said, truth)
    return counted(2 * of + flat.argmax(1), 2 * of + label, 2 * truth.shape[1])


def _ends(values: Values) -> str:
    ends = interval(values)
    return DASH if ends is None else " to ".join(map(percent, ends))
