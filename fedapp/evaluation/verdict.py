"""Whether joining the federation paid for a site: its gain over the model that it trained alone.

Both models answer the same n test images, from which neither has learned and by which neither was
selected. Let b images be right only with the joined model and c only with the one trained alone.
The gain in accuracy is (b - c) / n. Its 95 % interval is the paired Wald interval with half an
image added to each of the four cells (Bonett and Price 2012):

    p = (b + 1) / (n + 2),   q = (c + 1) / (n + 2),
    p - q +- 1.96 sqrt((p + q - (p - q)^2) / (n + 2)).

The other metrics (balanced accuracy, F1, kappa) are means over classes. Their gain has the interval
of the percentile bootstrap, with the same resamples for both models. There is no verdict unless
each class that occurs has `MIN_CLASS_IMAGES` images.

Where it is known which images are of one patient, patients count and not images: there is no
verdict with fewer than `MIN_TEST_IMAGES` patients, and the interval is widened to that of the
bootstrap of whole patients.

How many images are needed: as many as detect a gain of `GAIN_TO_DETECT` in four of five samples
(power 0.8 at 5 %, two-sided; the usual formula for McNemar's test, Miettinen 1968), where the two
models differ on as large a share of the images as here, d = p + q:

    n = (1.96 + 0.84)^2 (d - WORTH^2) / WORTH^2,   d at least WORTH.

The number does not depend on the gain that was observed, which is itself random.
"""

import math
from dataclasses import replace
from typing import Annotated, Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from pydantic.dataclasses import dataclass

from fedapp.core.settings import CLOSED
from fedapp.evaluation.classification_metrics import (
    METRIC_NAMES,
    METRICS,
    Metric,
    confusion_of_answers,
    enough_images_per_class,
)
from fedapp.evaluation.confidence_intervals import (
    MIN_TEST_IMAGES,
    Z95,
    bootstrap_weights,
    percentile_interval,
    resampled_counts,
)
from fedapp.evaluation.findings import flatten_findings

GAIN_TO_DETECT: Final = 0.1
"""Gain for which the number of images needed is given: 10 percentage points."""
NEGLIGIBLE_GAIN: Final = 0.05
"""A gain whose whole interval lies within +- this value counts as no change."""
_Z80: Final = 0.8416212335729143
"""80 % quantile of the normal distribution."""

Outcome = Literal["paid", "harmed", "same", "unknown"]
_Count = Annotated[int, Field(ge=0)]


@dataclass(frozen=True, config=CLOSED)
class Verdict:
    """Whether joining paid, as far as a site's test images tell.

    said: the outcome; "same": joining changed little, "unknown": the images cannot tell. images:
    number of test images. answers: number of findings that were read in them; 0: each image is of
    one class. gain: of the metric, in [-1, 1]; low, high: its 95 % interval; None where nothing can
    be said. needed: how many images would detect a gain of `GAIN_TO_DETECT`; None: not known. why:
    what is lacking where there is no gain.
    """

    said: Outcome
    metric: Metric
    images: _Count
    gain: float | None = None
    low: float | None = None
    high: float | None = None
    needed: _Count | None = None
    why: str = ""
    answers: _Count = 0

    @property
    def line(self) -> str:
        """The verdict as a sentence for people."""
        to_detect = f"{GAIN_TO_DETECT * 100:g}"
        if self.gain is None or self.low is None or self.high is None:
            would = f": about {self.needed} would show a gain of {to_detect} points"
            return f"Cannot tell whether joining paid {self.why}{would * bool(self.needed)}."
        points = f"{self.gain * 100:+.1f} points of {METRIC_NAMES[self.metric]} over training alone"
        ends = f"95 % interval {self.low * 100:+.1f} to {self.high * 100:+.1f}"
        of = f"{self.answers} findings in " * (self.answers > 0)
        measured = f"{points} ({ends}), on the same {of}{self.images} test images"
        if self.said == "unknown":
            would = f"; about {self.needed} test images would show a gain of {to_detect} points"
            would *= bool(self.needed and self.needed > self.images)
            return f"Cannot tell yet whether joining paid: {measured}{would}."
        return f"{_BEGINS[self.said]}: {measured}."


_BEGINS: Final = {
    "paid": "Joining paid",
    "harmed": "Joining did harm",
    "same": "Joining changed little",
}


def verdict(
    joined: NDArray[np.float64] | None,
    alone: NDArray[np.float64] | None,
    labels: NDArray[np.int64],
    metric: Metric = "accuracy",
    patients: NDArray[np.int64] | None = None,
) -> Verdict:
    """Compare the joined model of a site with the one it trained alone, on its test images.

    joined, alone: probabilities [n, C] of the two models; None: there is no such model. labels:
    [n], in [0, C). patients: the number of each image's patient, [n]; None: not known.

    Findings have labels [n, F]. Each finding that was read is then a sample of two classes
    (`evaluation.findings`), and the samples of one image, or of one patient, are resampled
    together.
    """
    images = len(labels)
    if not images:
        return Verdict("unknown", metric, 0, why="without test images")
    if joined is None or alone is None:
        lacking = "trained alone" if alone is None else "that others had a part in"
        why = f"without a model {lacking} that these images were shown to"
        return Verdict("unknown", metric, images, why=why)
    if labels.ndim == 2:
        return _of_findings(joined, alone, labels, metric, patients)
    return _compared(joined.argmax(1), alone.argmax(1), labels, joined.shape[1], metric, patients)


def _of_findings(
    joined: NDArray[np.float64],
    alone: NDArray[np.float64],
    labels: NDArray[np.int64],
    metric: Metric,
    patients: NDArray[np.int64] | None,
) -> Verdict:
    flat, truth, image, of = flatten_findings(joined, labels)
    whose = image if patients is None else patients[image]
    images, people = len(np.unique(image)), len(np.unique(whose))
    if people < MIN_TEST_IMAGES:
        only = f" of {people} patient{'s' * (people != 1)}" * (patients is not None)
        why = f"with findings read in {images} test image{'s' * (images != 1)}{only}"
        return Verdict("unknown", metric, images, why=why)
    of_joined, of_alone = flat.argmax(1), flatten_findings(alone, labels)[0].argmax(1)
    first, classes = 2 * of, 2 * labels.shape[1]
    found = _compared(first + of_joined, first + of_alone, first + truth, classes, metric, whose)
    return replace(found, images=images, answers=len(truth), needed=None)


def _compared(
    of_joined: NDArray[np.int64],
    of_alone: NDArray[np.int64],
    labels: NDArray[np.int64],
    classes: int,
    metric: Metric,
    patients: NDArray[np.int64] | None,
) -> Verdict:
    """Return the verdict from the answered classes of the joined model and of the one alone.

    of_joined, of_alone: the answers of the two models, [n]. labels: [n]. All in [0, classes).
    """
    images = len(labels)
    b = int(((of_joined == labels) & (of_alone != labels)).sum())
    c = int(((of_joined != labels) & (of_alone == labels)).sum())
    needed = images_needed((b + c + 2) / (images + 2))
    if images < MIN_TEST_IMAGES:
        why = f"with {images} test image{'s' * (images > 1)}"
        return Verdict("unknown", metric, images, needed=max(needed, MIN_TEST_IMAGES), why=why)
    if patients is not None and (people := len(set(patients.tolist()))) < MIN_TEST_IMAGES:
        why = f"with {images} test images of {people} patient{'s' * (people > 1)}"
        why = f"{why}: {MIN_TEST_IMAGES} patients are the least"
        return Verdict("unknown", metric, images, why=why)
    if metric == "accuracy":
        gain, (low, high) = (b - c) / images, paired_interval(b, c, images)
        if patients is not None:
            drawn = bootstrap_weights(images, "verdict", groups=patients)
            better = (of_joined == labels).astype(int) - (of_alone == labels)
            ends = percentile_interval(drawn @ better / drawn.sum(1))
            assert ends is not None
            low, high = min(low, ends[0]), max(high, ends[1])
    else:
        counts = confusion_of_answers(of_joined, labels, classes)
        if not enough_images_per_class(counts):
            fewest = int(counts.sum(1)[counts.sum(1) > 0].min())
            plural = "s" * (fewest > 1)
            why = f"in {METRIC_NAMES[metric]}: some class has {fewest} test image{plural}"
            return Verdict("unknown", metric, images, why=why)
        of = METRICS[metric]
        gain = float(of(counts) - of(confusion_of_answers(of_alone, labels, classes)))
        drawn = bootstrap_weights(images, "verdict", groups=patients)
        both = [of(resampled_counts(drawn, one, labels, classes)) for one in (of_joined, of_alone)]
        ends = percentile_interval(both[0] - both[1])
        if ends is None:
            why = f"in {METRIC_NAMES[metric]} on these images"
            return Verdict("unknown", metric, images, why=why)
        low, high = ends
    return Verdict(_outcome(low, high), metric, images, gain, low, high, needed)


def verdict_of_counts(joined: int, alone: int, images: int) -> Verdict:
    """Return the verdict in accuracy from the number of right answers of each model.

    This is what the server knows. Which images were right is not known, so the two shares count as
    independent. As long as both models are right on mostly the same images, this interval is wider
    than the site's own.
    """
    if images < MIN_TEST_IMAGES:
        return Verdict("unknown", "accuracy", images, why=f"with {images} test images")
    gain = (joined - alone) / images
    p, q = (joined + 1) / (images + 2), (alone + 1) / (images + 2)
    half = Z95 * math.sqrt((p * (1 - p) + q * (1 - q)) / (images + 2))
    low, high = max(p - q - half, -1.0), min(p - q + half, 1.0)
    return Verdict(_outcome(low, high), "accuracy", images, gain, low, high)


def paired_interval(b: int, c: int, images: int) -> tuple[float, float]:
    """Return the 95 % interval of (b - c) / images (head of this module), cut off at -1 and 1."""
    p, q = (b + 1) / (images + 2), (c + 1) / (images + 2)
    half = Z95 * math.sqrt((p + q - (p - q) ** 2) / (images + 2))
    return max(p - q - half, -1.0), min(p - q + half, 1.0)


def images_needed(differ: float) -> int:
    """Return how many images detect a gain of `GAIN_TO_DETECT` (head of this module).

    differ: d, the share of images on which exactly one of the two models is right.
    """
    differ = max(differ, GAIN_TO_DETECT)
    return math.ceil((Z95 + _Z80) ** 2 * (differ - GAIN_TO_DETECT**2) / GAIN_TO_DETECT**2)


def _outcome(low: float, high: float) -> Outcome:
    if low > 0:
        return "paid"
    if high < 0:
        return "harmed"
    return "same" if -NEGLIGIBLE_GAIN <= low and high <= NEGLIGIBLE_GAIN else "unknown"
