"""Which classes are mistaken for which, and whether a model knows when it may be wrong."""

from collections.abc import Sequence
from itertools import accumulate

from fedapp.ground.text import count, percent
from fedapp.learn.metrics import BINS, calibration_error, wilson
from fedapp.messages.protocol import Evaluation
from fedapp.results.layout import DASH, Table
from fedapp.results.run.blocks import Block, Figure
from fedapp.results.run.charts import (
    Line,
    Matrix,
    line_chart,
    matrix,
    percents,
    shares_of,
)
from fedapp.results.run.mix import MOST_CLASSES, summed

CONFUSION, TRUST = "Mistakes", "Can its probabilities be trusted?"
_UNMEASURED = "No site has labelled test images that were measured."
_PAIRS = 10
"""Mistakes that the table names, the most frequent first."""


def confusion(evaluations: Sequence[Evaluation], classes: Sequence[str]) -> Block:
    """Return the confusion matrix over all these images, with the most frequent mistakes."""
    reading = (
        "Rows are the true classes, columns what the model said; numbers are test images, darker "
        "is a larger share of the row. Right answers lie on the diagonal."
    )
    if not evaluations:
        return Block(CONFUSION, reading, missing=_UNMEASURED)
    total = summed(evaluations, len(classes))
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
    of = Matrix(
        classes, classes, [shares_of(row) for row in total],
        [[str(n) if n else "" for n in row] for row in total],
    )  # fmt: skip
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
    counts = [sum(e.bin_count[b] for e in evaluations) for b in range(BINS)]
    right = [sum(e.bin_correct[b] for e in evaluations) for b in range(BINS)]
    sure = [sum(e.bin_confidence[b] for e in evaluations) for b in range(BINS)]
    return list(zip(counts, right, sure, strict=True))


def _reliability(evaluations: Sequence[Evaluation]) -> Figure:
    filled = [(n, right, sure) for n, right, sure in _bins(evaluations) if n]
    points = [(sure / n, right / n) for n, right, sure in filled]
    ends = [(sure / n, wilson(right, n)) for n, right, sure in filled]
    band = [(x, high) for x, (_, high) in ends] + [(x, low) for x, (low, _) in reversed(ends)]
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
        [Line("", band, "c0")] if len(band) > 2 else (),
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
    half = next((right / n for n, right in found if 2 * n >= total), None)
    said = (
        f"Of all answers {percent(points[-1][1])} % are right; of the surest half or a little "
        f"more, {percent(half) if half is not None else DASH} %."
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
