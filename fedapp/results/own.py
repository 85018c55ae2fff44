"""A site's own page: whether joining paid, how good its model is, and where it is surely wrong.

Made at the site, of the model's folder and of what lies beside it. The pictures are the site's
images: nothing of this is sent.
"""

import io
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from fedapp.evaluation.findings import COUNTED, both
from fedapp.evaluation.intervals import (
    difference,
    interval,
    one_against_rest,
    resampled_counts,
    weights,
    wider,
    wilson,
)
from fedapp.evaluation.quality import (
    FEWEST,
    METRICS,
    NAMES,
    OneClass,
    brier,
    by_class,
    check,
    confusion,
    enough,
    macro,
    sensitivity,
    specificity,
)
from fedapp.ground.errors import ConfigError
from fedapp.ground.text import percent
from fedapp.learn.metrics import evaluation
from fedapp.models.card import SAID, joined
from fedapp.models.description import Description, read_description
from fedapp.models.evidence import Evidence, read_evidence
from fedapp.results.layout import DASH, Table
from fedapp.results.ownfindings import (
    FINDINGS,
    Told,
    finding_gain,
    finding_quality,
    told_of_findings,
)
from fedapp.results.run.blocks import Block, Figure
from fedapp.results.run.classes import confusion as mistakes_block
from fedapp.results.run.classes import trust
from fedapp.results.run.drawing import WIDE, WIDTH, Drawing, Picture, shortened
from fedapp.results.run.page import render

SPECIFICITY = 0.9
"""At which the sensitivity is told, where nobody says another."""
_QUALITY = (
    "Of the site's own test images, which the model did not learn from. Intervals: the middle 95 % "
    "of 1,000 resamples of the images, for accuracy Wilson's or wider. A mean over classes is told "
    f"where each class that occurs has {FEWEST} images."
)
_CLASSES = (
    "Each class against all others. Sensitivity: the share of its images that is found; "
    "specificity: the share of the others that is not taken for it (both with Wilson's 95 % "
    f"interval). Of fewer than {FEWEST} images nothing is said."
)
Values = NDArray[np.float64]


def own_page(folder: Path, at: float = SPECIFICITY) -> str:
    """Return the page of the model in a folder. at: a specificity, in (0, 1).

    Raises RunError where there is no model or its answers are NaN, ConfigError on another `at`.
    """
    if not 0 < at < 1:
        raise ConfigError(f"specificity is {at:g}, must lie between 0 and 1: write 0.9 for 90 %")
    description, evidence = read_description(folder), read_evidence(folder)
    origin, test = description.origin, description.results.test
    lead = [joined(description), *(f"Warning: {light}" for light in description.lights)]
    lead += [description.claim] if description.claim else []
    if test.images:
        what = "findings read in test images" if description.model.finds else "test images"
        interval_ = "" if description.model.finds else f" (95 % interval {test.ends})"
        lead.append(
            f"The model kept here is right on {test.right} of {test.images} {what}: "
            f"{percent(test.accuracy)} %{interval_}."
        )
    lead += [COUNTED] * description.model.finds
    blocks = []
    if evidence is not None and "kept" in evidence.answers and len(evidence.labels):
        blocks = _measured(description, evidence, at)
    else:
        lead.append("Single answers to test images are not here, so no more can be measured.")
    blocks.append(_about(description, folder))
    title = f"Site {origin.called}: did joining pay?"
    return render(title, lead, [], [[(origin.called, block)] for block in blocks])


def _measured(description: Description, evidence: Evidence, at: float) -> list[Block]:
    classes = description.model.classes
    answers, labels = evidence.answers["kept"], evidence.labels
    said, truth = answers.double().numpy(), labels.numpy()
    check(said)
    if description.model.finds:
        names, sums = both(classes), evaluation(answers, labels)
        blocks = [
            finding_gain(description.choice.verdict, evidence),
            finding_quality(said, truth, at, evidence.patients),
            _classes(told_of_findings(classes, said, truth, at, evidence.patients), at, FINDINGS),
            mistakes_block([sums], names),
            _pictures(description, evidence),
            trust([sums]),
        ]
        return [block for block in blocks if block is not None]
    said /= said.sum(1, keepdims=True)  # they were rounded to float32
    found = by_class(said, truth, at)
    sums = evaluation(answers, labels)
    counts = confusion(said, truth)
    blocks = [
        _gain(description, evidence),
        _quality(said, truth, found, at, evidence.patients),
        _classes(
            _told(classes, counts, found, _spread(said, truth, evidence.patients)), at, _CLASSES
        ),
        mistakes_block([sums], classes),
        _pictures(description, evidence),
        trust([sums]),
    ]
    return [block for block in blocks if block is not None]


def _gain(description: Description, evidence: Evidence) -> Block | None:
    """Return accuracy and AUROC of both kinds of model, on the same images."""
    both = evidence.answers.get("joined"), evidence.answers.get("alone")
    verdict, truth = description.choice.verdict, evidence.labels.numpy()
    if verdict is None or verdict.gain is None or None in both:
        return None
    of = METRICS[verdict.metric]
    joined_, alone = (one.double().numpy() for one in both if one is not None)
    rows = [
        [
            NAMES[verdict.metric].capitalize(),
            *(percent(float(of(confusion(one, truth)))) for one in (alone, joined_)),
            *_signed(verdict.gain, verdict.low, verdict.high),
        ]
    ]  # fmt: skip
    if joined_.shape[1] == 2 and min(np.bincount(truth, minlength=2)) >= FEWEST:
        second, once = truth == 1, np.ones((1, len(truth)), np.int64)
        found = difference(joined_[:, 1], alone[:, 1], second)
        areas = (one_against_rest(once, one[:, 1], second, 0.9)[0][0]
                 for one in (alone, joined_))  # fmt: skip
        low, high = found.interval
        if evidence.patients is not None:
            drawn = weights(len(truth), "own page", groups=evidence.patients)
            ours, theirs = (one_against_rest(drawn, one[:, 1], second, 0.9)[0]
                            for one in (joined_, alone))  # fmt: skip
            low, high = wider((low, high), ours - theirs)
        rows.append(["AUROC", *map(percent, areas), *_signed(found.gain, low, high)])
    columns = ["Metric", "Alone, %", "Joined, %", "Gain, points", "95 % interval"]
    reading = (
        "The best model that the site trained alone and the best that others had a part in, each "
        f"chosen on validation images, both asked for the same {len(truth)} test images."
    )
    return Block("What joining brought", reading, tables=[Table("Gain", columns, rows, labels=1)])


def _signed(gain: float, low: float | None, high: float | None) -> list[str]:
    ends = DASH if low is None or high is None else f"{low * 100:+.1f} to {high * 100:+.1f}"
    return [f"{gain * 100:+.1f}", ends]


def _quality(
    said: Values,
    truth: NDArray[np.int64],
    found: list[OneClass],
    at: float,
    patients: NDArray[np.int64] | None,
) -> Block:
    counts, images = confusion(said, truth), len(truth)
    drawn = weights(images, "own page", groups=patients)
    classes = said.shape[1]
    resampled = resampled_counts(drawn, said.argmax(1), truth, classes)
    rows, said_of_all = [], enough(counts)
    for metric, of in METRICS.items():
        if metric != "accuracy" and not said_of_all:
            continue
        name = NAMES[metric][0].upper() + NAMES[metric][1:]
        ends = interval(of(resampled))
        if metric == "accuracy":  # as the head of the page has it
            by_image = wilson(int(counts.diagonal().sum()), images)
            ends = by_image if patients is None else wider(by_image, of(resampled))
        rows.append([name, _share(float(of(counts))), _ends(ends)])
    told = [c for c, one in enumerate(found) if one.auroc is not None]
    kinds = [one_against_rest(drawn, said[:, c], truth == c, at) for c in told]
    for place, (name, value) in enumerate(
        (
            ("AUROC, mean over classes", macro([one.auroc for one in found])),
            ("Average precision, mean over classes",
             macro([one.average_precision for one in found])),
        )
    ):  # fmt: skip
        if said_of_all and value is not None:
            spread = np.mean([one[place] for one in kinds], axis=0)
            rows.append([name, _share(value), _ends(interval(spread))])
    hot = np.eye(classes)[truth]
    squares = ((said - hot) ** 2).sum(1) / (2 if classes == 2 else 1)
    score = brier(said, truth)
    ends = interval(drawn @ squares / drawn.sum(1))
    most = "1" if classes == 2 else "2"
    rows.append(
        [
            f"Brier score (0 best, {most} worst)",
            DASH if score is None else f"{score:.3f}",
            DASH if ends is None else f"{ends[0]:.3f} to {ends[1]:.3f}",
        ]
    )
    columns = ["Metric", "%, or as said", "95 % interval"]
    lines = [] if said_of_all else [_few(counts)]
    if patients is not None:
        lines.append(
            f"All intervals but that of calibration are by patient: {images} test images of "
            f"{len(set(patients.tolist()))} patients."
        )
    table = Table("Metrics", columns, rows, labels=1)
    return Block("How good the model is", _QUALITY, tables=[table], lines=lines)


def _few(counts: NDArray[np.int64]) -> str:
    images = counts.sum(1)
    fewest = int(images[images > 0].min())
    return (
        "Balanced accuracy, F1, kappa, AUROC and average precision as means over classes cannot be "
        f"said: some class has {fewest} test image{'s' * (fewest > 1)}."
    )


def _share(value: float) -> str:
    return DASH if np.isnan(value) else percent(value)


def _ends(ends: tuple[float, float] | None) -> str:
    return DASH if ends is None else " to ".join(map(percent, ends))


def _spread(
    said: Values, truth: NDArray[np.int64], patients: NDArray[np.int64] | None
) -> NDArray[np.int64]:
    """Return resampled confusion matrices [B, C, C] by patient; none where images are all."""
    classes = said.shape[1]
    if patients is None:
        return np.empty((0, classes, classes), np.int64)
    drawn = weights(len(truth), "own page", groups=patients)
    return resampled_counts(drawn, said.argmax(1), truth, classes)


def _told(
    names: tuple[str, ...],
    counts: NDArray[np.int64],
    found: list[OneClass],
    spread: NDArray[np.int64],
) -> list[Told]:
    """Return what is told of each class against all others."""
    by_patient = sensitivity(spread), specificity(spread)
    images, right = counts.sum(1), counts.diagonal()
    others = counts.sum() - images
    spared = others - (counts.sum(0) - right)
    return [
        Told(
            name,
            (int(right[c]), int(images[c]), by_patient[0][:, c]),
            (int(spared[c]), int(others[c]), by_patient[1][:, c]),
            found[c],
        )
        for c, name in enumerate(names)
    ]


def _classes(told: list[Told], at: float, reading: str) -> Block:
    rows, drawn, few, plain = [], [], list[str](), reading == _CLASSES
    for one in told:
        right, images, spread = one.found
        if images < FEWEST:
            few.append(f"{one.name}: {images} image{'' if images == 1 else 's'}")
            continue
        ends = wider(wilson(right, images), spread)
        drawn.append((one.name, right / images, ends, f"{right} of {images}"))
        row = [one.name, str(images), f"{percent(right / images)} ({_ends(ends)})"]
        spared, others, spread = one.spared
        if others >= FEWEST:
            other = wider(wilson(spared, others), spread)
            row.append(f"{percent(spared / others)} ({_ends(other)})")
        else:
            row.append(DASH)
        areas = one.scores.auroc, one.scores.average_precision, one.scores.sensitivity_at
        rows.append([*row, *map(percent, areas)])
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
    worst = min(drawn, key=lambda one: one[1])
    said = f"Found least: {worst[0]}, {worst[3]}."
    picture = ranges("Sensitivity", drawn, said)
    return Block(title, reading, [Figure(picture, said)], [table], lines)


def ranges(
    title: str, rows: list[tuple[str, float, tuple[float, float], str]], alternative: str
) -> Picture:
    """Return a row for each share with its interval: name, share, ends, words at the right."""

    def drawn(width: float) -> Picture:
        left, right, high = 100, 72, 22
        drawing = Drawing(40 + high * len(rows), width)
        drawing.text((0, 12), title, "head")
        bottom = 22 + high * len(rows)

        def across(share: float) -> float:
            return left + (width - left - right) * share

        for share in (0, 0.25, 0.5, 0.75, 1):
            drawing.line((across(share), 20), (across(share), bottom), "grid")
            drawing.text((across(share), bottom + 13), f"{share:.0%}", "soft", "middle")
        for place, (name, share, (low, top), words) in enumerate(rows):
            y = 33 + high * place
            drawing.text((left - 8, y + 4), shortened(name, 15), "", "end")
            drawing.line((across(low), y), (across(top), y), "c0")
            drawing.mark("circle", (across(share), y), "f c0")
            drawing.text((width, y + 4), words, "soft", "end")
        return drawing.picture(alternative)

    return Picture(drawn(WIDTH).svg, WIDTH, drawn(WIDE).svg)


def _pictures(description: Description, evidence: Evidence) -> Block | None:
    """Return the images on which the model was surest and wrong; None: there are none."""
    if not description.model.images or not len(evidence.mistakes):
        return None
    classes = description.model.classes
    rows, shown = [], []
    for place, image in zip(evidence.mistakes.tolist(), evidence.images, strict=True):
        true, said, sure = _mistake(
            evidence.answers["kept"][place], evidence.labels[place], classes
        )
        rows.append([true, said, sure])
        pixels = image.permute(1, 2, 0).numpy()
        out = io.BytesIO()
        Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).save(out, "PNG")
        shown.append((out.getvalue(), f"is {true}", f"said {said}, {sure} %"))
    said_ = f"{len(rows)} test images that are answered wrongly, the surest first."

    def drawn(width: float, across: int) -> Picture:
        cell = width / across
        lines = -(-len(shown) // across)
        drawing = Drawing(lines * (cell + 30), width)
        for place, (png, true, said) in enumerate(shown):
            x, y = cell * (place % across), (cell + 30) * (place // across)
            drawing.image((x, y), cell - 10, png)
            drawing.text((x, y + cell + 4), shortened(true, round(cell / 6.2)), "")
            drawing.text((x, y + cell + 17), shortened(said, round(cell / 6.2)), "soft")
        return drawing.picture(said_)

    picture = Picture(drawn(WIDTH, 2).svg, WIDTH, drawn(WIDE, 4).svg)
    table = Table("Surest mistakes", ["True class", "Said", "Probability, %"], rows, labels=2)
    reading = (
        "Wrong answers that the model was surest of. Look: is the label right? These are the "
        "site's images: they are in this page alone, and nothing sends it."
    )
    return Block("Its surest mistakes", reading, [Figure(picture, said_, table)])


def _mistake(answer: Tensor, label: Tensor, classes: tuple[str, ...]) -> tuple[str, str, str]:
    """Return an image's true class, what was said of it and how surely; of its surest finding."""
    if not label.ndim:
        return classes[int(label)], classes[int(answer.argmax())], percent(float(answer.max()))
    wrong = (label >= 0) & ((answer > 0.5) != (label == 1))
    f = int(torch.where(wrong, (answer - 0.5).abs(), -1).argmax())
    names = f"no {classes[f]}", classes[f]
    sure = float(torch.maximum(answer[f], 1 - answer[f]))
    return names[int(label[f])], names[1 - int(label[f])], percent(sure)


def _about(description: Description, folder: Path) -> Block:
    origin, choice = description.origin, description.choice
    when = f"round {origin.round}" if origin.round else "after the warm-up"
    rows = [
        ["Run", f"{origin.run}, {origin.method}"],
        ["Kept", f"{SAID[choice.answer]}, {when}"],
        ["Why", choice.rule],
        ["Learned from", f"{origin.labelled} labelled, {origin.unlabelled} unlabelled images"],
        ["Calibration error", f"{percent(description.results.test.calibration_error)} points"],
        ["Folder", str(folder)],
    ]
    return Block("The model", "", tables=[Table("Where it comes from", ["", ""], rows, labels=2)])
