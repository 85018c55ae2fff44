"""What a site adds to a sum over all sites, as one row of numbers, and the sum read back.

Where sums are masked (`privacy.sums`), the server learns no site's answer but the sum of all. Site
and server know from the task alone which number stands where: every site fills all places, with 0
where it has nothing to say.
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

COUNTS = ("labelled", "unlabelled", "val", "test", "bagged")
"""What a site's facts count."""
LOSS = "loss"
METRICS = (LOSS, STEPS, IMAGES, "pseudo_wrong", "pseudo_total")
"""Metrics of every method."""
TEST = "test"
PARTS = ("val", TEST)
NAMES = tuple(f"{part}{answer}" for part in PARTS for answer in ("", *(f"_{a}" for a in ANSWERS)))
"""Evaluations that a sum has a place for."""
MEAN, SQUARE, SITES = "mean_", "square_", "sites_"
"""Goes before an evaluation's name: over sites that have images of it, their accuracies' mean, mean
square, and number."""


WORDS = "words"
"""Name of the tensor that holds a site's masked numbers, and of that of their sum."""
TRAINED, ADDED = "trained", "added"
"""Metrics of a sum: how many sites trained, and how many sites it is of."""
NOISE_SHARE = "noise_share"
"""Metric: variance of the noise that a site adds to its row, as a share of the variance that the
account asks of the whole sum, in (0, 1]; of a sum the variance of all its noise, in that unit."""


@dataclass(frozen=True)
class Added:
    """What one site says in a task, before it is masked; or the sum of what all say.

    contents: by role; of those that are averaged the weighted mean. facts: counts of its images.
    sites: how many sites it is of. learned: how many of them trained.
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
    """Which number stands where.

    roles: as `Method.summed`; schemas: of these. classes: C; of F findings 2F, as their confusion
    matrix has. even: accuracy of an even guess. scores: how many counts of scores there are
    (`rounds.pooled_auroc`).
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
        """Return the layout of a task's answers.

        finds: whether classes are findings; scored: whether sites count scores.
        """
        metrics = (*METRICS, *(name for name in method.counted if name not in METRICS))
        size, even = (2 * classes, 1 / 2) if finds else (classes, 1 / classes)
        measured = task.action == EVALUATE
        scores = 2 * SCORE_BINS * classes if scored and measured else 0
        return cls(method.summed(task), schemas, metrics, size, measured, even, scores)

    @cached_property
    def size(self) -> int:
        """Number of numbers."""
        each = 3 + self.classes**2 + 3 * CALIBRATION_BINS
        return (
            3
            + len(COUNTS)
            + len(self.metrics)
            + sum(_floats(self.schemas[r], mean) + (not mean) for r, mean in self.roles.items())
            + (each * len(NAMES) + self.scores if self.measured else 0)
        )

    @cached_property
    def places(self) -> Mapping[str, slice]:
        """Where in the row the numbers of each role's content stand."""
        at, found = 3 + len(COUNTS) + len(self.metrics), {}
        for role, mean in self.roles.items():
            at += not mean  # who sent it
            found[role] = slice(at, at + _floats(self.schemas[role], mean))
            at = found[role].stop
        return found

    def row(self, one: Added) -> Row:
        """Return what a site adds, float64 [size]."""
        blocks = [np.array([1.0, one.learned, one.weight])]
        blocks.append(np.array([float(one.counts.get(name, 0)) for name in COUNTS]))
        blocks.append(np.array([float(one.metrics.get(name, 0.0)) for name in self.metrics]))
        for role, mean in self.roles.items():
            blocks += self._content(one.contents.get(role), role, one.weight if mean else 1.0, mean)
        if self.measured:
            blocks += [self._evaluation(one, name) for name in NAMES]
            blocks.append(self._scored(one.evaluations.get(TEST)))
        row = np.concatenate(blocks)
        assert len(row) == self.size
        return row

    def read(self, row: Row) -> Added:
        """Return what the sum of rows says. Raises ProtocolError where no sites can have said it.

        Contents that no site sent are absent.
        """
        numbers = _Reader(row)
        sites, learned, weight = numbers.take(3).tolist()
        counts = {name: numbers.count() for name in COUNTS}
        metrics = dict(zip(self.metrics, numbers.take(len(self.metrics)).tolist(), strict=True))
        if learned:  # a mean, as a single site's is
            metrics[LOSS] /= learned
        else:
            del metrics[LOSS]
        contents = {}
        for role, mean in self.roles.items():
            senders = 0 if mean else numbers.count()
            values = numbers.take(_floats(self.schemas[role], mean))
            if mean and weight > 0:
                contents[role] = _tensors(values / weight, self.schemas[role], mean)
            elif not mean and senders:
                contents[role] = _tensors(values, self.schemas[role], mean)
        evaluations = {}
        for name in NAMES if self.measured else ():
            number, total, squares = numbers.take(3).tolist()
            found = self._read_evaluation(numbers)
            if found.samples:
                evaluations[name] = found
            if number := round(number):
                metrics |= {MEAN + name: total / number, SQUARE + name: squares / number}
                metrics[SITES + name] = number
        if self.scores:
            scores = numbers.counts(self.scores).reshape(-1, 2 * SCORE_BINS)
            if TEST in evaluations:
                evaluations[TEST] = evaluations[TEST].with_scores(scores.tolist())
        return Added(contents, weight, learned, sites, metrics, evaluations, counts)

    def _content(
        self, params: Params | None, role: str, weight: float, mean: bool
    ) -> Iterator[Row]:
        if not mean:  # of a mean the weight tells whether there is one
            yield np.array([float(params is not None)])
        if params is None:
            yield np.zeros(_floats(self.schemas[role], mean))
            return
        for name, (_, kind) in self.schemas[role].items():
            if kind.is_floating_point or not mean:
                yield weight * params[name].double().flatten().numpy()

    def _evaluation(self, one: Added, name: str) -> Row:
        """Return an evaluation's sums, and its accuracy for the mean over sites.

        A site that lacks an answer has in its accuracy's place what it would have (`instead`).
        """
        found = one.evaluations.get(name)
        row = np.zeros(3 + self.classes**2 + 3 * CALIBRATION_BINS)
        accuracy = instead(name, one.evaluations, self.even)
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


def instead(name: str, evaluations: Mapping[str, Evaluation], even: float) -> float | None:
    """Return a site's accuracy by an answer, or by what stands in its place; None without images.

    In the place of "tuned" that is the common answer; of "alone" an even guess among the classes;
    of any other what the site uses.
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
    """Reads a sum from its beginning on."""

    row: Row
    at: int = 0

    def take(self, size: int) -> Row:
        """Return the next numbers."""
        self.at += size
        return self.row[self.at - size : self.at]

    def counts(self, size: int) -> NDArray[np.int64]:
        """Return the next numbers, which count something. Raises ProtocolError."""
        found = self.take(size)
        whole = np.rint(found)
        if bool((np.abs(found - whole) > _ROUNDED).any() or (whole < 0).any()):
            raise ProtocolError(
                "a masked sum has counts below 0 or between whole numbers: a site spoiled it; the "
                "masks hide which"
            )
        return whole.astype(np.int64)

    def count(self) -> int:
        """Return the next number, which counts something."""
        return int(self.counts(1)[0])


_ROUNDED = 1e-3
"""More than fixed point takes from a sum of counts."""


def _floats(schema: Schema, mean: bool) -> int:
    """Return how many numbers of a content are added: of a mean not the integers."""
    kept = [shape for shape, kind in schema.values() if kind.is_floating_point or not mean]
    return sum(math.prod(shape) for shape in kept)


def _tensors(values: Row, schema: Schema, mean: bool) -> Params:
    """Return numbers as the tensors of a content; integers that were not added are 0."""
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


def facts_of(like: SiteFacts, site: int, added: Added) -> SiteFacts:
    """Return what is known of all sites of a sum. like: the facts of any of them."""
    counts: dict[str, Any] = dict(added.counts)
    return replace(like, site=site, name="", pool_key="", **counts)
