"""Which of a run's models a site keeps: the latest that its validation images call as good as any.

A site can keep each answer that it had after each round. The best of so many, measured on few
images, is often the luckiest, so the rule is one of tolerance (Breiman et al. 1984, the
one-standard-error rule): with n validation images, b of them right for the best candidate,

    p = (b + 1) / (n + 2),    m = MARGIN sqrt(p (1 - p) n),

the latest candidate that has at least b - m right is kept. Later is better where images cannot
tell: it has learned longer. Within a round the answer that the site uses counts as the latest, a
model that it trained alone as the earliest.

Where a run chooses by another metric than accuracy (`rounds.chosen_by`), n times that metric stands
in the place of the images that are right.

Where it asks for a sensitivity in every class (`rounds.min_sensitivity`), the rule is among the
candidates that have it in each class with `MIN_CLASS_IMAGES` validation images or more. Where no
candidate has, it is among those that come nearest, judged by their worst class.

Without validation images the server's last model is kept, where a site has one, else the last
answer that it used: what few labels make of the server's model is often worse.

docs/results/keeping.md has what this and other rules were worth on real images.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Annotated, Final, Self

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from fedapp.core.settings import CLOSED
from fedapp.evaluation.classification_metrics import Metric, sensitivity_shortfall
from fedapp.evaluation.findings import metric_over_findings
from fedapp.protocol.messages import ANSWERS, Evaluation

MARGIN: Final = 0.5
"""Standard errors by which the best must be better than a later one."""
USED: Final = "used"
"""Name of the answer that a site uses, whichever that is."""
SELECTION_RULE: Final = (
    f"the latest answer within {MARGIN:g} standard errors of the most right validation images"
)
RULE_WITHOUT_VALIDATION: Final = (
    "the server's last model, or else the last answer used: there are no validation images"
)
"""The rule without validation images."""

_ORDER = ("alone", "tuned", "common", USED)
"""Answers of one round, from the earliest to the latest."""

_Count = Annotated[int, Field(ge=0)]


@dataclass(frozen=True, config=CLOSED)
class Candidate:
    """An answer that a site had after a round, and its right answers to the site's own images.

    answer: `USED`, or one of `protocol.ANSWERS`. alone: the site trained it on its own images, and
    nothing of any other site is in it. worth: of the validation images, the metric that the run
    chooses by, at most 1; None: it chooses by accuracy, or they do not tell. short: how far its
    worst class lies below the sensitivity that the run asks for (`sensitivity_shortfall`).
    """

    round: _Count
    answer: str
    alone: bool
    val_right: _Count
    val_images: _Count
    test_right: _Count
    test_images: _Count
    worth: Annotated[float, Field(ge=-1, le=1)] | None = None
    short: Annotated[float, Field(ge=0, le=1)] = 0.0

    @property
    def score(self) -> float:
        """What candidates are compared by, in images: those that are right, or as many as worth."""
        return self.val_right if self.worth is None else self.worth * self.val_images

    @property
    def order(self) -> tuple[float, float]:
        """Sorts candidates from the worst to the best."""
        return -self.short, self.score

    @property
    def when(self) -> tuple[int, int]:
        """Sorts candidates from the earliest to the latest."""
        return self.round, _ORDER.index(self.answer)


@dataclass(frozen=True, config=CLOSED)
class Choice:
    """What a site has to choose from.

    candidates: of each answer the best and the last one, and the one that is kept, by time; all
    that the rule needs of those that there were.
    """

    candidates: tuple[Candidate, ...] = field(default=())

    @property
    def kept(self) -> Candidate | None:
        """The one that is kept; None where there is none."""
        return select(self.candidates)

    @property
    def alone(self) -> Candidate | None:
        """What the site would keep of what it trained alone; None where there is nothing."""
        return select([one for one in self.candidates if one.alone])

    @property
    def joined(self) -> Candidate | None:
        """What it would keep of what other sites had a part in; None where there is nothing."""
        return select([one for one in self.candidates if not one.alone])

    @property
    def helped(self) -> bool | None:
        """Whether it keeps what other sites had a part in; None where that cannot be told.

        So without validation images, and where one of the two kinds is lacking.
        """
        if self.kept is None or not self.kept.val_images:
            return None
        kinds = {one.alone for one in self.candidates}
        return not self.kept.alone if len(kinds) > 1 else None

    def after(self, new: Iterable[Candidate]) -> Self:
        """Return the choice among these and new ones, of which the kept one is here, or new.

        One that is there already is replaced: its round was done again, or its run from the start.
        The one that is kept is not, by one with fewer right answers.
        """
        here, held = {one.when: one for one in new}, self.kept
        if held and held.when in here:
            here[held.when] = max(here[held.when], held, key=lambda one: one.order)
        elif held:
            here[held.when] = held
        every = {one.when: one for one in self.candidates} | here
        kept = select(_by_time(every))
        # The networks of others are gone: where rounds came out otherwise, these alone are left.
        return type(self)(still_needed(_by_time(every if kept in here.values() else here)))


def candidates(
    number: int,
    evaluations: Mapping[str, Evaluation],
    apart: bool,
    metric: Metric = "accuracy",
    least: float = 0.0,
    names: int = 0,
) -> tuple[Candidate, ...]:
    """Return what a site's evaluations after a round offer, from the earliest to the latest.

    Without an evaluation of "val" only the model that the site trained alone is a candidate: a
    method may measure that one earlier than all others. An answer that was measured under two
    names counts once.

    apart: whether no other site has had a part in what the site uses (`Method.joins_at`). metric:
    the metric by which candidates are compared. least: the sensitivity that each class should
    have. names: as of `findings.metric_over_findings`; 0: the labels are classes.
    """
    used = evaluations.get("val"), evaluations.get("test")
    found = []
    for name in _ORDER:
        ending = f"_{name}" if name in ANSWERS else ""
        val, test = evaluations.get(f"val{ending}"), evaluations.get(f"test{ending}")
        if val is None or (name != USED and val.samples and (val, test) == used):
            continue
        if used[0] is None and name != "alone":
            continue
        alone = apart or name == "alone"
        tested = (test.correct, test.samples) if test else (0, 0)
        worth = None
        if metric != "accuracy":
            worth = metric_over_findings(
                metric, np.array(val.confusion), names or len(val.confusion)
            )
        right, short = (val.correct, val.samples), sensitivity_shortfall(least, val.confusion)
        found.append(Candidate(number, name, alone, *right, *tested, worth, short))
    return tuple(found)


def select(among: Sequence[Candidate]) -> Candidate | None:
    """Return the candidate to keep; None where there is none.

    All are of one site: their `val_images` are equal.
    """
    if not among:
        return None
    top, images = max(among, key=lambda one: one.order), among[0].val_images
    if not images:
        return max(among, key=lambda one: (one.answer == "common", one.when))
    least = top.score - margin(top.score, images)
    good = (one for one in among if one.short == top.short and one.score >= least)
    return max(good, key=lambda one: one.when)


def margin(right: float, images: int) -> float:
    """Return m above, in images, >= 0: by how many the best must lead to count as better."""
    share = (max(right, 0) + 1) / (images + 2)
    return MARGIN * math.sqrt(share * (1 - share) * images)


def _by_time(every: Mapping[tuple[int, int], Candidate]) -> list[Candidate]:
    return [every[when] for when in sorted(every)]


def still_needed(among: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """Return those on which any later choice can depend, by time; see `Choice`."""
    kinds = [one for one in among if one.alone], [one for one in among if not one.alone]
    keep = {one for one in map(select, (among, *kinds)) if one}
    for name in _ORDER:
        if own := [one for one in among if one.answer == name]:
            keep |= {max(own, key=lambda one: (one.order, one.when)), own[-1]}
    return tuple(sorted(keep, key=lambda one: one.when))
