"""What a site adds to a sum over all sites, as one row of numbers, and how the sum is read.

Where sums are masked (`privacy.sums`), the server learns no site's reply, only the sum of all. Site
and server derive from the task alone which number stands at which position: every site fills all
positions, with 0 where it has nothing to report.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedapp.core.errors import ProtocolError
from fedapp.evaluation.verdict import PAIRS
from fedapp.learn.metrics import CALIBRATION_BINS
from fedapp.learn.params import Params, Schema
from fedapp.methods.base import Method
from fedapp.protocol.messages import (
    ANSWERS,
    EVALUATE,
    IMAGES,
    SCORE_BINS,
    STEPS,
    Evaluation,
    Scored,
    SiteFacts,
    Task,
)

Row = NDArray[np.float64]

FACT_COUNTS = ("labelled", "unlabelled", "val", "test", "bagged")
"""The numbers in a site's facts."""
LOSS = "loss"
METRICS = (LOSS, STEPS, IMAGES, "pseudo_wrong", "pseudo_total", *PAIRS)
"""Metrics that every method has."""
TEST = "test"
PARTS = ("val", TEST)
EVALUATIONS = tuple(f"{part}{a}" for part in PARTS for a in ("", *(f"_{a}" for a in ANSWERS)))
"""Evaluations that have a position in the row."""
MEAN_OF, SQUARE_OF, SITES_OF = "mean_", "square_", "sites_"
"""Prefixes of an evaluation's name for statistics over the sites that have images for it: the mean
of their accuracies, the mean of the squared accuracies, and their number."""


MASKED_ROW = "words"
"""Name of the tensor that holds a site's masked numbers, and of the tensor that holds their sum."""
TRAINED, ADDED = "trained", "added"
"""Metrics of a sum: how many sites trained, and how many sites were added up."""
NOISE_SHARE = "noise_share"
"""Metric: the variance of the noise that a site adds to its row, divided by the variance that the
privacy account requires of the whole sum, in (0, 1]; for a sum the total over sites."""


@dataclass(frozen=True)
class Contribution:
    """What one site reports in a task before it is masked, or the sum over all sites.

    contents: by role; for those that are averaged, the weighted mean. facts: counts of its images.
    sites: the number of sites that were added up; NaN of one that failed. learned: how many of them
    trained.
    """

    contents: Mapping[str, Params] = field(default_factory=dict)
    weight: float = 0.0
    learned: float = 0.0
    sites: float = 1.0
    metrics: Mapping[str, float] = field(default_factory=dict)
    evaluations: Mapping[str, Evaluation] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Layout:
    """The position of each number in the row.

    roles: as `Method.summed`. schemas: of these roles. classes: C; with F findings it is 2F, the
    size of their confusion matrix. even: accuracy of random guessing. scores: number of counts of
    scores (`rounds.pooled_auroc`).
    """

    roles: Mapping[str, bool]
    schemas: Mapping[str, Schema]
    metrics: tuple[str, ...]
    classes: int
    measured: bool
    even: float
    scores: int = 0

    @classmethod
    def of(
        cls,
        method: Method[Any],
        task: Task,
        schemas: Mapping[str, Schema],
        classes: int,
        finds: bool = False,
        scored: bool = False,
    ) -> "Layout":
        """Return the layout of a task's replies.

        finds: whether classes are findings. scored: whether sites count scores.
        """
        metrics = (*METRICS, *(name for name in method.counted if name not in METRICS))
        size, even = (2 * classes, 1 / 2) if finds else (classes, 1 / classes)
        measured = task.action == EVALUATE
        scores = 2 * SCORE_BINS * classes if scored and measured else 0
        return cls(method.summed(task), schemas, metrics, size, measured, even, scores)

    @cached_property
    def size(self) -> int:
        """Length of the row."""
        each = 3 + self.classes**2 + 3 * CALIBRATION_BINS
        return (
            3
            + len(FACT_COUNTS)
            + len(self.metrics)
            + sum(_numbers(self.schemas[r], mean) + (not mean) for r, mean in self.roles.items())
            + (each * len(EVALUATIONS) + self.scores if self.measured else 0)
        )

    @cached_property
    def places(self) -> Mapping[str, slice]:
        """The positions of each role's content in the row."""
        at, found = 3 + len(FACT_COUNTS) + len(self.metrics), {}
        for role, mean in self.roles.items():
            at += not mean  # who sent it
            found[role] = slice(at, at + _numbers(self.schemas[role], mean))
            at = found[role].stop
        return found

    def row(self, one: Contribution) -> Row:
        """Return the row that a site adds, float64 [size]."""
        blocks = [np.array([one.sites, one.learned, one.weight])]
        blocks.append(np.array([float(one.counts.get(name, 0)) for name in FACT_COUNTS]))
        blocks.append(np.array([float(one.metrics.get(name, 0.0)) for name in self.metrics]))
        for role, mean in self.roles.items():
            blocks += self._content(one.contents.get(role), role, one.weight if mean else 1.0, mean)
        if self.measured:
            blocks += [self._evaluation(one, name) for name in EVALUATIONS]
            blocks.append(self._scored(one.evaluations.get(TEST)))
        row = np.concatenate(blocks)
        assert len(row) == self.size
        return row

    def read(self, row: Row) -> Contribution:
        """Return what a sum of rows means.

        Contents that no site sent are absent. Raises ProtocolError where no honest sites can have
        this sum.
        """
        numbers = _Reader(row)
        sites, learned, weight = numbers.take(3).tolist()
        counts = {name: numbers.count() for name in FACT_COUNTS}
        metrics = dict(zip(self.metrics, numbers.take(len(self.metrics)).tolist(), strict=True))
        if learned:  # a mean, as a single site's is
            metrics[LOSS] /= learned
        else:
            del metrics[LOSS]
        contents = {}
        for role, mean in self.roles.items():
            senders = 0 if mean else numbers.count()
            values = numbers.take(_numbers(self.schemas[role], mean))
            if mean and weight > 0:
                contents[role] = _tensors(values / weight, self.schemas[role], mean)
            elif not mean and senders:
                contents[role] = _tensors(values, self.schemas[role], mean)
        evaluations = {}
        for name in EVALUATIONS if self.measured else ():
            number, total, squares = numbers.take(3).tolist()
            found = self._read_evaluation(numbers)
            if found.samples:
                evaluations[name] = found
            if number := round(number):
                metrics |= {MEAN_OF + name: total / number, SQUARE_OF + name: squares / number}
                metrics[SITES_OF + name] = number
        if self.scores:
            scores = numbers.counts(self.scores).reshape(-1, 2 * SCORE_BINS)
            if TEST in evaluations:
                evaluations[TEST] = evaluations[TEST].with_scores(scores.tolist())
        return Contribution(contents, weight, learned, sites, metrics, evaluations, counts)

    def _content(
        self, params: Params | None, role: str, weight: float, mean: bool
    ) -> Iterator[Row]:
        if not mean:  # of a mean the weight tells whether there is one
            yield np.array([float(params is not None)])
        if params is None:
            yield np.zeros(_numbers(self.schemas[role], mean))
            return
        for name, (_, kind) in self.schemas[role].items():
            if kind.is_floating_point or not mean:
                yield weight * params[name].double().flatten().numpy()

    def _evaluation(self, one: Contribution, name: str) -> Row:
        """Return an evaluation's sums, and its accuracy for the mean over sites.

        For a site without that answer the accuracy is that of the answer which replaces it
        (`answer_accuracy`).
        """
        found = one.evaluations.get(name)
        row = np.zeros(3 + self.classes**2 + 3 * CALIBRATION_BINS)
        accuracy = answer_accuracy(name, one.evaluations, self.even)
        if accuracy is not None:
            row[:3] = 1.0, accuracy, accuracy**2
        if found is not None:
            row[3:] = np.concatenate(
                [
                    np.array(found.confusion, dtype=np.float64).flatten(),
                    np.array([found.bin_count, found.bin_correct, found.bin_confidence]).flatten(),
                ]
            )
        return row

    def _scored(self, found: Evaluation | None) -> Row:
        """Return the score counts of the test images."""
        if isinstance(found, Scored) and self.scores:
            return np.array(found.scores, dtype=np.float64).flatten()
        return np.zeros(self.scores)

    def _read_evaluation(self, numbers: "_Reader") -> Evaluation:
        confusion = numbers.counts(self.classes**2).reshape(self.classes, self.classes)
        return Evaluation(
            tuple(map(tuple, confusion.tolist())),
            tuple(numbers.counts(CALIBRATION_BINS).tolist()),
            tuple(numbers.counts(CALIBRATION_BINS).tolist()),
            tuple(numbers.take(CALIBRATION_BINS).tolist()),
        )


def answer_accuracy(name: str, evaluations: Mapping[str, Evaluation], even: float) -> float | None:
    """Return a site's accuracy by an answer, or by the answer that replaces it.

    None: the site has no images. "tuned" is replaced by the common answer, "alone" by random
    guessing, any other by the answer that the site uses.
    """
    part, _, answer = name.partition("_")
    used = evaluations[part].accuracy if part in evaluations else None
    if name in evaluations or used is None:
        return evaluations[name].accuracy if name in evaluations else None
    if answer == "alone":
        return even
    common = evaluations.get(f"{part}_common")
    return common.accuracy if answer == "tuned" and common is not None else used


@dataclass
class _Reader:
    """Reads a row from its beginning."""

    row: Row
    at: int = 0

    def take(self, size: int) -> Row:
        """Return the next numbers."""
        self.at += size
        return self.row[self.at - size : self.at]

    def counts(self, size: int) -> NDArray[np.int64]:
        """Return the next numbers, which must be counts. Raises ProtocolError."""
        found = self.take(size)
        whole = np.rint(found)
        if bool((np.abs(found - whole) > _COUNT_TOLERANCE).any() or (whole < 0).any()):
            raise ProtocolError(
                "a masked sum has counts below 0 or between whole numbers: a site spoiled it, or "
                "was asked something else than the others; the masks hide which"
            )
        return whole.astype(np.int64)

    def count(self) -> int:
        """Return the next number, which must be a count."""
        return int(self.counts(1)[0])


_COUNT_TOLERANCE = 1e-3
"""More than the rounding of fixed-point numbers can change in a sum of counts."""


def _numbers(schema: Schema, mean: bool) -> int:
    """Return how many numbers of a content are added up; of a mean, the integers are not."""
    kept = [shape for shape, kind in schema.values() if kind.is_floating_point or not mean]
    return sum(math.prod(shape) for shape in kept)


def _tensors(values: Row, schema: Schema, mean: bool) -> Params:
    """Return numbers as the tensors of a content; integers that were not added up are 0."""
    numbers, found = _Reader(values), {}
    for name, (shape, kind) in schema.items():
        if kind.is_floating_point:
            part = torch.from_numpy(numbers.take(math.prod(shape)).copy())
            found[name] = part.to(kind).reshape(shape)
        elif mean:
            found[name] = torch.zeros(shape, dtype=kind)
        else:
            found[name] = torch.from_numpy(numbers.counts(math.prod(shape))).to(kind).reshape(shape)
    return found


def within_range(row: Row, most: float) -> Row:
    """Return a row for a masked sum of numbers in [-most, most].

    Where a number is NaN or beyond, the row is of zeros but for its first number, which counts the
    site and is `most` then. So the server learns from the sum that some member failed. A refusal
    would say which: a hostile server could send model after model, and see at which of them the
    answer to a single image overflows.
    """
    if not bool((np.abs(row) <= most).all()):
        row = np.zeros_like(row)
        row[0] = most
    return row


def check_all_added(added: Contribution, sites: int) -> None:
    """Raise ProtocolError where a member of a sum failed (`within_range`)."""
    if added.sites > sites + 0.5:
        raise ProtocolError(
            "some member of a masked sum could not do its work, or had numbers that are NaN, "
            "infinite or too large; its own log says so, and the masks hide which one it is: look "
            "into each log, and begin another run, with a lower training.learning_rate"
        )


def facts_of_all(like: SiteFacts, site: int, added: Contribution) -> SiteFacts:
    """Return the facts of all sites together. like: the facts of any of them."""
    counts: dict[str, Any] = dict(added.counts)
    return replace(like, site=site, name="", pool_key="", **counts)
