"""Whether joining the federation paid: one verdict, for a site and for all sites together.

Two models answer the same test images, from which neither has learned. *Together* is the best that
others had a part in, *alone* the best that the site made without them. One of the two is the model
that the site keeps; the other its validation images choose among those of the other kind
(`model_selection.Choice.compared`).

A case is a patient where it is known which images are of one patient, else an image. Let b cases
have more right answers together than alone, and c fewer. Where the models do not differ, each of
the b + c is as likely one as the other, and b is binomial. The verdict is by McNemar's exact test
(McNemar 1947; with patients it is called the sign test):

    p = min(1, 2 P(X <= min(b, c))),   X binomial of b + c draws with probability 1/2.

Joining "paid" or "did harm" where p is at most `FALSE_ALARMS`. So of sites without a true
difference at most that share is called either. All sites together have the same test of the sums of
b and c. It is not corrected for the number of sites, since a site's own page must say the same.

The gain in accuracy is (right together - right alone) / images. Where each case is one answer, its
95 % interval is the paired Wald interval with half an image added to each of the four cells (Bonett
and Price 2012):

    p = (b + 1) / (n + 2),   q = (c + 1) / (n + 2),
    p - q +- 1.96 sqrt((p + q - (p - q)^2) / (n + 2)).

It is widened to 0 where the exact test cannot tell, so that numbers and words agree. Where only the
numbers of right answers are known (runs of earlier versions), the two shares count as independent,
and the interval decides.

Where the lone model is not the best that a site could have alone (`_UNFAIR`: trained in the warm-up
only, and the joined one for longer; for an even mix of classes, not its own), a gain may be another
cause's: it is told, and not called joining's. A harm is one all the same.

How many images are needed: as many as detect a gain of `GAIN_TO_DETECT` in four of five samples
(power 0.8 at 5 %, two-sided; the usual formula for McNemar's test, Miettinen 1968), where the two
models differ on as large a share of the images as here, d = p + q:

    n = (1.96 + 0.84)^2 (d - WORTH^2) / WORTH^2,   d at least WORTH.

The number does not depend on the gain that was observed, which is itself random.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial, reduce
from typing import Annotated, Any, Final, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from pydantic.dataclasses import dataclass
from scipy.special import bdtr

from fedapp.core.formatting import counted, first_names
from fedapp.core.settings import CLOSED
from fedapp.evaluation.classification_metrics import METRIC_NAMES, Metric
from fedapp.evaluation.confidence_intervals import MIN_TEST_IMAGES, Z95
from fedapp.evaluation.findings import flatten_findings

FALSE_ALARMS: Final = 0.05
"""Share of sites without a true difference that are called "paid" or "harmed", at most."""
GAIN_TO_DETECT: Final = 0.1
"""Gain for which the number of images needed is given: 10 percentage points."""
WARM_UP_ALONE: Final = "a network, trained in the warm-up only"
"""What "alone" is (`Verdict.lone`) in methods whose sites train alone in the warm-up and never
again."""
EVEN_MIX_ALONE: Final = "the same closed form, for an even mix too"
"""What "alone" is where answers are not multiplied by the site's class mix (`own_mix`): a site by
itself would answer for its own mix, and have more right."""
_Z80: Final = 0.8416212335729143
"""80 % quantile of the normal distribution."""

Outcome = Literal["paid", "harmed", "unknown"]
_Count = Annotated[int, Field(ge=0)]
PREFIX: Final = "pairs_"


@dataclass(frozen=True, config=CLOSED)
class Pairs:
    """Right answers of two models to the same test images, of a site or of several added up.

    images: answers that were compared: test images, or the findings that were read in them.
    together, alone: right answers of each model. cases: patients where they are known, else images;
    0: which images were right is not known. better, worse: cases with more, and with fewer, right
    answers together than alone.
    """

    images: _Count
    together: _Count
    alone: _Count
    cases: _Count = 0
    better: _Count = 0
    worse: _Count = 0

    def __add__(self, other: "Pairs") -> "Pairs":
        """Return the pairs of both; of pairs and mere counts there are counts alone."""
        every = [getattr(self, of.name) + getattr(other, of.name) for of in fields(Pairs)]
        return Pairs(*every) if self.cases and other.cases else Pairs(*every[:3])

    @property
    def single(self) -> bool:
        """Whether each case is one answer."""
        return self.cases == self.images

    @property
    def p(self) -> float:
        """Two-sided p of the exact test, in (0, 1]."""
        unequal = self.better + self.worse
        return min(1.0, 2 * float(bdtr(min(self.better, self.worse), unequal, 0.5)))

    @property
    def numbers(self) -> dict[str, int]:
        """The six numbers by the names that metrics of a reply and columns of a table have."""
        return {PREFIX + of.name: getattr(self, of.name) for of in fields(Pairs)}

    @classmethod
    def read(cls, numbers: Mapping[str, Any]) -> Self | None:
        """Return the pairs that `numbers` wrote, or a sum; None where there are none, or wrong."""
        found = [numbers.get(PREFIX + of.name) for of in fields(Pairs)]
        if any(one is None for one in found) or not found[0]:
            return None
        pairs = cls(*(max(round(one), 0) for one in found if one is not None))
        right = max(pairs.together, pairs.alone) <= pairs.images and pairs.cases <= pairs.images
        return pairs if right and pairs.better + pairs.worse <= pairs.cases else None


PAIRS: Final = tuple(PREFIX + of.name for of in fields(Pairs))
"""Names of the numbers of `Pairs`."""


@dataclass(frozen=True, config=CLOSED)
class Verdict:
    """Whether joining paid, as far as test images tell.

    said: the outcome; "unknown": the images cannot tell; in files of earlier versions also "same".
    metric: by which the run chooses models. images: number of test images. answers: number of
    findings that were read in them; 0: each image is of one class. gain: of accuracy, in [-1, 1],
    in files of earlier versions of the metric; low, high: its 95 % interval; None where nothing can
    be said. needed: how many images would detect a gain of `GAIN_TO_DETECT`; None: not known. why:
    what is lacking where there is no gain. pairs: what it is made of. lone: what "alone" is.
    """

    said: Outcome | Literal["same"]
    metric: Metric
    images: _Count
    gain: float | None = None
    low: float | None = None
    high: float | None = None
    needed: _Count | None = None
    why: str = ""
    answers: _Count = 0
    pairs: Pairs | None = None
    lone: str = ""

    @property
    def outcome(self) -> Outcome:
        """The outcome, of which there are three."""
        return "unknown" if self.said == "same" or self._unfair else self.said

    @property
    def _unfair(self) -> bool:
        """Whether there is a gain, and over less than the site could have alone."""
        return self.lone in _UNFAIR and self.said == "paid"

    @property
    def line(self) -> str:
        """The verdict as a sentence for people."""
        detects = f"would show a gain of {GAIN_TO_DETECT * 100:g} points"
        needed = self.needed if self.needed and self.needed > self.images else 0
        if self.gain is None:
            would = f": about {needed} {detects}" * bool(needed)
            return f"Cannot tell whether joining paid {self.why}{would}."
        begins = _BEGINS[self.outcome]
        if self._unfair:
            return f"{begins}: {self._measured}, {_UNFAIR[self.lone]}."
        would = f"; about {needed} test images {detects}" * bool(needed)
        return f"{begins}: {self._measured}{would * (self.outcome == 'unknown')}."

    @property
    def _measured(self) -> str:
        """The numbers, as a part of a sentence."""
        assert self.gain is not None
        ends = ""
        if self.low is not None and self.high is not None:
            ends = f" (95 % interval {self.low * 100:+.1f} to {self.high * 100:+.1f})"
        gain, of = f"{self.gain * 100:+.1f} points", self.pairs
        if of is None:
            return f"{gain} of {METRIC_NAMES[self.metric]} over training alone{ends}, on "\
                f"{self.images} test images"  # fmt: skip
        what = "test images" if of.single or not of.cases else "answers"
        lone = f" ({self.lone})" * bool(self.lone)
        said = f"{of.together} of {of.images} {what} right together, {of.alone} alone{lone}: {gain}"
        if not of.cases:
            return f"{said}{ends}; which of them is not known"
        by_case = f"; of {of.cases} patients or images {of.better} better, {of.worse} worse"
        return f"{said}{ends}{by_case * (not of.single)}"


COMPARE: Final = "tables.md of `fedapp compare` with local_only and one_round beside it tells"
_UNFAIR: Final[Mapping[str, str]] = {
    WARM_UP_ALONE: f"but together was trained for longer. {COMPARE}",
    EVEN_MIX_ALONE: "but for its own mix a site alone may have as many right. The same run with "
    "method.own_mix=true tells",
}
"""Why a gain over such a model says little, and what tells more."""
_BEGINS: Final[Mapping[Outcome, str]] = {
    "paid": "Joining paid, beyond chance",
    "harmed": "Joining did harm, beyond chance",
    "unknown": "Cannot tell whether joining paid",
}


def verdict(
    joined: NDArray[np.float64] | None,
    alone: NDArray[np.float64] | None,
    labels: NDArray[np.int64],
    metric: Metric = "accuracy",
    patients: NDArray[np.int64] | None = None,
    lone: str = "",
) -> Verdict:
    """Compare the joined model of a site with the one it made alone, on its test images.

    joined, alone: probabilities [n, C] of the two models; None: there is no such model. labels:
    [n], in [0, C); of findings [n, F] (`evaluation.findings`). metric, lone: as of `Verdict`.
    patients: the number of each image's patient, [n]; None: not known.
    """
    if not len(labels):
        return Verdict("unknown", metric, 0, why="without test images")
    if joined is None or alone is None:
        lacking = "trained alone" if alone is None else "that others had a part in"
        why = f"without a model {lacking} that these images were shown to"
        return Verdict("unknown", metric, len(labels), why=why)
    finds = labels.ndim == 2
    truth, whose, both = labels, np.arange(len(labels)), [joined, alone]
    if finds:
        _, truth, whose, _ = flatten_findings(joined, labels)
        both = [np.asarray(flatten_findings(one, labels)[0], np.float64) for one in both]
    images = len(np.unique(whose))
    if patients is not None:
        whose = patients[whose]
    right, other = (one.argmax(1) == truth for one in both)
    change = np.bincount(np.unique(whose, return_inverse=True)[1], right * 1.0 - other)
    better, worse = int((change > 0).sum()), int((change < 0).sum())
    pairs = Pairs(len(truth), int(right.sum()), int(other.sum()), len(change), better, worse)
    return verdict_of(pairs, metric, lone, images, len(truth) if finds else 0)


def verdict_of(
    pairs: Pairs,
    metric: Metric = "accuracy",
    lone: str = "",
    images: int | None = None,
    answers: int = 0,
) -> Verdict:
    """Return the verdict that pairs give: the one rule, for a site and for all of them together.

    images: number of test images; None: one for each answer. The others: as of `Verdict`.
    """
    images = pairs.images if images is None else images
    least, needed = pairs.cases or pairs.images, None
    if pairs.single:
        needed = images_needed((pairs.better + pairs.worse + 2) / (pairs.cases + 2))
    part = partial(Verdict, metric=metric, images=images, answers=answers, pairs=pairs, lone=lone)
    if least < MIN_TEST_IMAGES:
        needed = max(needed, MIN_TEST_IMAGES) if needed else None
        why = f"with {counted(images, 'test images')}"
        if least != images:
            why += f" of {counted(least, 'patients')}: {MIN_TEST_IMAGES} are the least"
        return part("unknown", needed=needed, why=why)
    gain, low, high = (pairs.together - pairs.alone) / pairs.images, None, None
    side = (pairs.better - pairs.worse) * gain  # of few patients with many images: below 0
    told = pairs.p <= FALSE_ALARMS and side > 0
    if pairs.single:
        low, high = paired_interval(pairs.better, pairs.worse, pairs.images)
        if not told:
            low, high = min(low, 0.0), max(high, 0.0)
    elif not pairs.cases:
        low, high = interval_of_counts(pairs.together, pairs.alone, pairs.images)
        told = low > 0 or high < 0
    said: Outcome = "unknown" if not told else "paid" if gain > 0 else "harmed"
    return part(said, gain=gain, low=low, high=high, needed=needed)


def paired_interval(b: int, c: int, images: int) -> tuple[float, float]:
    """Return the 95 % interval of (b - c) / images (head of this module), cut off at -1 and 1."""
    p, q = (b + 1) / (images + 2), (c + 1) / (images + 2)
    half = Z95 * math.sqrt((p + q - (p - q) ** 2) / (images + 2))
    return max(p - q - half, -1.0), min(p - q + half, 1.0)


def interval_of_counts(together: int, alone: int, images: int) -> tuple[float, float]:
    """Return the 95 % interval of a difference of shares that count as independent.

    As long as both models are right on mostly the same images, it is wider than the paired one.
    """
    p, q = (together + 1) / (images + 2), (alone + 1) / (images + 2)
    half = Z95 * math.sqrt((p * (1 - p) + q * (1 - q)) / (images + 2))
    return max(p - q - half, -1.0), min(p - q + half, 1.0)


def images_needed(differ: float) -> int:
    """Return how many images detect a gain of `GAIN_TO_DETECT` (head of this module).

    differ: d, the share of images on which exactly one of the two models is right.
    """
    differ = max(differ, GAIN_TO_DETECT)
    return math.ceil((Z95 + _Z80) ** 2 * (differ - GAIN_TO_DETECT**2) / GAIN_TO_DETECT**2)


@dataclass(frozen=True, config=CLOSED)
class SiteJoining:
    """What is known of one site: its name, its verdict, its labels to learn from alone.

    right: right answers of the model in use, of how many test images; None: not measured.
    one_answer: the commonest class, where nearly all answers are of one class and this class for
    all test images would be right as often (`reliability_warnings.one_answer`); empty: not so.
    """

    name: str
    verdict: Verdict
    labelled: int
    right: tuple[int, int] | None = None
    one_answer: str = ""

    @property
    def line(self) -> str:
        """The site's verdict as a sentence; a site without labels has its own."""
        if self.verdict.pairs is None and not self.labelled and self.right is not None:
            right, of = self.right
            return f"No labels to learn from alone, nothing to compare: {right} of {of} test "\
                "images right together."  # fmt: skip
        return self.verdict.line


def joining_lines(
    sites: Sequence[SiteJoining], lone: str = "", together: Pairs | None = None
) -> list[str]:
    """Return whether joining paid, over all sites and site by site: a sentence a line.

    lone: what "alone" is (`Method.lone_model`). together: the sum over sites where single sites are
    not known (masked sums).
    """
    if any(one.verdict.lone == WARM_UP_ALONE for one in sites):
        lone = WARM_UP_ALONE  # as candidates show it, also of a run whose summary does not say so
    if lone:
        sites = [replace(one, verdict=replace(one.verdict, lone=lone)) for one in sites]
    compared = [one for one in sites if one.verdict.pairs is not None]
    pooled = together or pooled_pairs(one.verdict.pairs for one in compared)
    if pooled is None:
        why = NOT_COMPARED if any(one.right for one in sites) else NOTHING_TOLD
        lines = [f"Cannot tell whether joining paid: {why}."]
    else:
        lines = [verdict_of(pooled, lone=lone).line]
    named: dict[Outcome, list[str]] = {"paid": [], "harmed": [], "unknown": []}
    for one in compared:
        named[one.verdict.outcome].append(one.name)
    for outcome, words in _NAMED.items() if compared else ():
        names = named[outcome]
        who = f" ({first_names(names)})" * bool(names)
        lines.append(f"{words} {len(names)} of {counted(len(compared), 'sites')}{who}.")
    without = [
        f"{one.name} is right on {one.right[0]} of {one.right[1]} together"
        for one in sites
        if one.verdict.pairs is None and not one.labelled and one.right is not None
    ]
    if without and compared:
        lines.append(f"No labels to learn from alone, nothing to compare: {first_names(without)}.")
    if warned := [f"{site.name}: {site.one_answer!r}" for site in sites if site.one_answer]:
        measured = sum(site.right is not None for site in sites)
        lines.append(
            f"Do not use to decide: {len(warned)} of {counted(measured, 'sites')} "
            f"({first_names(warned)}): nearly all answers are one class, and "
            "one answer for all would be right at least as often."
        )
    return lines


def pooled_pairs(every: Iterable[Pairs | None]) -> Pairs | None:
    """Return the sum of the pairs that there are; None where there are none."""
    found = [one for one in every if one is not None]
    return reduce(Pairs.__add__, found) if found else None


NOTHING_TOLD = (
    "no site has told of test images: it has none, or a run with epsilon keeps that at the site "
    "(`fedapp site`)"
)
NOT_COMPARED: Final = (
    "the sites did not measure both a model that they trained alone and one that others had a part "
    f"in. {COMPARE}"
)
_NAMED: Final[Mapping[Outcome, str]] = {
    "paid": "Gained beyond chance:",
    "harmed": "Lost beyond chance:",
    "unknown": "Cannot be told:",
}
