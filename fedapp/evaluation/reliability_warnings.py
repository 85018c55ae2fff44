"""Warnings: reasons not to rely on a site's model or on its numbers, as sentences for people.

`warnings_about` needs only what a site sends, so that the server and the site give the same
warnings. The other functions need what only the site knows.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2_contingency

from fedapp.core.formatting import counted, first_names, percent
from fedapp.evaluation.classification_metrics import MIN_CLASS_IMAGES
from fedapp.evaluation.confidence_intervals import MIN_TEST_IMAGES, wilson
from fedapp.evaluation.model_selection import USED, Candidate
from fedapp.protocol.messages import Evaluation

COLLAPSED_SHARE: Final = 0.9
"""A model that gives one class to so large a share of images is called collapsed."""
ONE_ANSWER_SHARE: Final = 0.85
"""From this share of answers of one class on, a model is compared with one answer for all."""
NOT_TO_DECIDE: Final = "do not use it to decide."
"""Ends each warning that must be read before a model is asked."""
MIN_MIX_DIFFERENCE: Final = 0.2
"""Two class mixes must differ by this share of the images before a warning is given."""
SHIFT_FALSE_ALARM_RATE: Final = 0.01
"""Probability with which `shift_warnings` warns although the images are of the same kind."""
_MIN_EXPECTED_COUNT: Final = 5
"""Expected count per class that a chi-square test needs in both mixes (Cochran 1954)."""
_MIX_FALSE_ALARM_RATE: Final = 0.001
"""Probability with which `label_mix_warnings` warns although both mixes are alike."""
_Z99: Final = 2.5758293035489004


def warnings_about(found: Evaluation, labelled: int, classes: Sequence[str]) -> list[str]:
    """Return the warnings about a model's answers to a site's test images, a sentence each.

    labelled: number of the site's training images that have a label. classes: names, [C].
    """
    counts = np.asarray(found.confusion, dtype=np.int64)
    return [
        *(_one_answer(counts, classes) or _collapsed(counts, classes)),
        *_never_found(counts, classes),
        *_few(found.samples, labelled, len(classes)),
        *_uncalibrated(found),
    ]


def one_answer(confusion: Sequence[Sequence[int]] | NDArray[np.int64]) -> tuple[int, int] | None:
    """Return a class that nearly all answers are of, and the commonest true class.

    None: fewer than `ONE_ANSWER_SHARE` of the answers are of one class, or the model is right more
    often than always answering the commonest class, or there are fewer than `MIN_CLASS_IMAGES`
    answers, so that it may be chance. confusion: [C, C], true class by answered class.
    """
    counts = np.asarray(confusion, dtype=np.int64)
    images, answers, truth = int(counts.sum()), counts.sum(0), counts.sum(1)
    if images < MIN_CLASS_IMAGES or answers.max() < ONE_ANSWER_SHARE * images:
        return None
    if counts.trace() > truth.max():
        return None
    top = int(answers.argmax())
    return top, top if truth[top] == truth.max() else int(truth.argmax())


def _one_answer(counts: NDArray[np.int64], classes: Sequence[str]) -> list[str]:
    """Warn of a model that is no better than one answer for all test images."""
    if (found := one_answer(counts)) is None:
        return []
    top, common = found
    right, always = int(counts.trace()), int(counts[common].sum())
    often = f"as often ({right})"
    if always > right:
        often = f"more often ({always}, the model {right})"
    return [
        f"It answers {classes[top]!r} to {counts[:, top].sum()} of {counts.sum()} test images; "
        f"always answering {classes[common]!r} would be right {often}: {NOT_TO_DECIDE}"
    ]


def _collapsed(counts: NDArray[np.int64], classes: Sequence[str]) -> list[str]:
    """Warn of one answer to nearly all images, unless nearly all images may be of that class."""
    images = int(counts.sum())
    answers, truth = counts.sum(0), counts.sum(1)
    top = int(answers.argmax())
    if not images or answers[top] < COLLAPSED_SHARE * images:
        return []
    if wilson(int(truth[top]), images)[1] >= COLLAPSED_SHARE:
        return []
    return [
        f"The model has collapsed: it answers {classes[top]!r} to {answers[top]} of {images} test "
        f"images; {truth[top]} of them are."
    ]


def _never_found(counts: NDArray[np.int64], classes: Sequence[str]) -> list[str]:
    images, right = counts.sum(1), counts.diagonal()
    missed = [
        f"{images[c]} of {name!r}"
        for c, name in enumerate(classes)
        if images[c] >= MIN_CLASS_IMAGES and not right[c]
    ]
    return [f"It finds none of these test images: {', '.join(missed)}."] if missed else []


def _few(images: int, labelled: int, classes: int) -> list[str]:
    lacking = [
        counted(number, f"{what} images")
        for number, what in ((labelled, "labelled training"), (images, "test"))
        if number < classes
    ]
    return [f"Fewer images than the {classes} classes: {' and '.join(lacking)}."] if lacking else []


def _uncalibrated(found: Evaluation) -> list[str]:
    """Warn where the mean top probability lies outside the 99 % interval of the accuracy."""
    if found.samples < MIN_TEST_IMAGES:
        return []
    sure = sum(found.bin_confidence) / found.samples
    low, high = wilson(found.correct, found.samples, _Z99)
    if low <= sure <= high:
        return []
    return [
        f"Its probabilities are too {'high' if sure > high else 'low'}: it says "
        f"{percent(sure)} % on average, and is right on "
        f"{percent(found.correct / found.samples)} % of {found.samples} test images."
    ]


def cautions(
    found: Evaluation | None,
    classes: Sequence[str],
    learned: Sequence[int] | None = None,
    seen: Sequence[int] = (),
    finds: bool = False,
    alone: bool = False,
    pooled: bool = False,
) -> list[str]:
    """Return what to know before a model is used, in three sentences.

    They are about classes that were never seen, classes with few test images, and calibration. One
    stands before them where the model is no better than one answer for all test images.

    found: its answers to test images; None: there are none. classes: names, [C]. learned: number
    of labels by class that the site learned from, [C]; None: not known, and then seen is the number
    of labelled validation and test images by class, [C]. finds: whether the classes are findings.
    alone: whether no other site had a part. pooled: whether all numbers are of all sites together.
    """
    each = "Over all sites together, each class" if pooled else "Each class"
    known = seen if learned is None else learned
    lacking = [name for name, n in zip(classes, known, strict=False) if not n]
    if learned is None:
        never = f"{each} occurs among the labelled validation and test images."
        missed = f"Never seen among labelled validation and test images: {first_names(lacking)}."
    else:
        never = "Each class has labelled training images at this site."
        others = " What the model knows of them, if anything, is from other sites." * (not alone)
        missed = f"Never seen by this site in training: {first_names(lacking)}.{others}"
        if not any(learned):
            missed = "No training image of this site has a label: all it knows is from other sites."
    never = missed if lacking else never
    if found is None or not found.samples:
        return [never, "No test image has a label: how good the model is nobody knows."]
    images = [sum(row) for row in (found.confusion[1::2] if finds else found.confusion)]
    few = [f"{c} ({n})" for c, n in zip(classes, images, strict=True) if n < MIN_CLASS_IMAGES]
    first = [] if finds else _one_answer(np.asarray(found.confusion, dtype=np.int64), classes)
    tested = f"{each} has at least {MIN_CLASS_IMAGES} test images."
    if few:
        which = first_names(few) if len(few) < len(classes) else "all classes"
        tested = f"Fewer than {MIN_CLASS_IMAGES} test images, so it cannot be said how well it is "
        tested += f"found: {which}."
    if found.samples < MIN_TEST_IMAGES:
        unchecked = f"{found.samples} test images cannot check its probabilities."
        return [*first, never, tested, unchecked]
    says = percent(sum(found.bin_confidence) / found.samples)
    right = f"{percent(found.accuracy)} % of {found.samples} test images"
    fine = f"Its probabilities: it says {says} % on average, and is right on {right}; the "
    return [*first, never, tested, *(_uncalibrated(found) or [f"{fine}difference may be chance."])]


def shift_warnings(tested: Sequence[int], now: Sequence[int], classes: Sequence[str]) -> list[str]:
    """Warn where answers to new images have another class mix than those to the test images.

    tested, now: number of answers by class, [C]; with fewer than `MIN_TEST_IMAGES` answers on
    either side nothing is said. Both are answers of the same model, so its mistakes are in both and
    no labels are needed (black box shift detection, Lipton, Wang and Smola 2018). The rate of false
    alarms is `SHIFT_FALSE_ALARM_RATE`.
    """
    both = np.asarray([tested, now], dtype=np.int64)
    if both.sum(1).min() < MIN_TEST_IMAGES:
        return []
    if (apart := _mix_distance(both, SHIFT_FALSE_ALARM_RATE)) is None:
        return []
    gained = np.subtract(*(both / both.sum(1, keepdims=True))[::-1])
    most, least = classes[int(gained.argmax())], classes[int(gained.argmin())]
    return [
        f"The class mix of the answers is not that of the answers to the site's test images: "
        f"{percent(apart)} % of these images would have to change class; more are {most!r}, fewer "
        f"{least!r}. Of images that are alike this is said once in "
        f"{1 / SHIFT_FALSE_ALARM_RATE:.0f} times. Other people, another device or a fault in the "
        "files may be why: look at some of them."
    ]


def _mix_distance(both: NDArray[np.int64], chance: float) -> float | None:
    """Return the total variation distance of two class mixes, in [0, 1]; None: it may be chance.

    both: number of images by class in each mix, [2, C]. chance: the level of the chi-square test
    that decides. Classes with fewer expected images than that test needs are merged into one.
    """
    shares = both / both.sum(1, keepdims=True)
    fewest = np.outer(both.sum(1), both.sum(0) / both.sum()).min(0)
    rare = fewest < _MIN_EXPECTED_COUNT
    pooled = np.column_stack([both[:, ~rare], both[:, rare].sum(1)])
    pooled = pooled[:, pooled.any(0)]
    if pooled.shape[1] < 2 or chi2_contingency(pooled).pvalue >= chance:
        return None
    return float(np.abs(shares[0] - shares[1]).sum()) / 2


def label_mix_warnings(before: Sequence[int], now: Sequence[int], what: str) -> list[str]:
    """Warn where a model answers with another class mix than that of the labels it learned from.

    Two conditions must hold: the mixes differ by `MIN_MIX_DIFFERENCE` of the images or more, and a
    chi-square test calls the difference more than chance. before: labels by class that the model
    learned from, [C]. now: its answers by class, [C], to the images that `what` names.
    """
    both = np.asarray([before, now], dtype=np.int64)
    if not both.sum(1).all():
        return []
    shares = both / both.sum(1, keepdims=True)
    apart = float(np.abs(shares[0] - shares[1]).sum()) / 2
    by_chance = chi2_contingency(both[:, both.any(0)]).pvalue
    if apart < MIN_MIX_DIFFERENCE or by_chance >= _MIX_FALSE_ALARM_RATE:
        return []
    return [
        f"The class mix of its answers to {what} is not that of the labels it learned from: "
        f"{percent(apart)} % of the images would have to change class."
    ]


def drift_warnings(candidates: Sequence[Candidate]) -> list[str]:
    """Warn where the last round's model is worse than an earlier one by two standard errors.

    candidates: by time. Only the answers in use are compared, on the validation images.
    """
    used = [one for one in candidates if one.answer == USED and one.val_images]
    if len(used) < 2:
        return []
    last, best = used[-1], max(used, key=lambda one: one.val_right)
    images = last.val_images
    share = (last.val_right + best.val_right + 1) / (2 * images + 2)
    spread = (2 * share * (1 - share) * images) ** 0.5
    if best.val_right - last.val_right <= 2 * spread:
        return []
    return [
        f"It got worse over the rounds: {best.val_right} of {images} validation images right after "
        f"round {best.round}, {last.val_right} after round {last.round}, the last."
    ]
