"""Model selection: which of a run's models a site keeps, by its own validation images.

After each round a site has one or several answers, each of which it could keep. The best of so many
candidates, measured on few images, is often the luckiest one. So the rule tolerates a small lead
(the one-standard-error rule, Breiman et al. 1984). With n validation images, of which the best
candidate answers b rightly, let

    p = (b + 1) / (n + 2),    m = MARGIN sqrt(p (1 - p) n).

The rule keeps the latest candidate that has at least b - m right: where the images cannot tell, the
model that has learned longer is the better guess. Within a round the answer that the site uses
counts as the latest, and the model that it trained alone as the earliest.

Where a run selects by another metric than accuracy (`rounds.chosen_by`), n times that metric stands
in the place of the number of right images.

Where a run asks for a sensitivity in every class (`rounds.min_sensitivity`), the rule chooses among
the candidates that reach it in each class with `MIN_CLASS_IMAGES` validation images or more. Where
none does, it chooses among those that come nearest, judged by their worst class.

A site without validation images keeps the server's last model if it has one, otherwise the last
answer that it used: a few labels often make the server's model worse.

docs/results/keeping.md reports what this and other rules were worth on real images.
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
"""Standard errors by which the best candidate must lead for a later one to be rejected."""
USED: Final = "used"
"""Name of the answer that the site uses, whichever of its models gives it."""
SELECTION_RULE: Final = (
    f"the latest answer within {MARGIN:g} standard errors of the most right validation images"
)
RULE_WITHOUT_VALIDATION: Final = (
    "the server's last model, or else the last answer used: there are no validation images"
)
"""The rule without validation images."""

_ORDER = ("alone", "tuned", "common", USED)
"""The answers of one round in the order in which they count as early or late."""

_Count = Annotated[int, Field(ge=0)]


@dataclass(frozen=True, config=CLOSED)
class Candidate:
    """A model that a site could keep: one of its answers after one round.

    answer: `USED`, or one of `protocol.ANSWERS`. alone: whether the site trained it on its own
    images only, so that no other site has had a part in it. val_right, val_images, test_right,
    test_images: right answers to the site's own images, and number of these images. worth: the
    metric by which the run selects, on the validation images, at most 1; None: the run selects by
    accuracy, or the metric is not defined. short: how far its worst class lies below the
    sensitivity that the run asks for (`sensitivity_shortfall`).
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
        """The number by which candidates are compared, on the scale of right validation images."""
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
    """The candidates of a site that the rule still needs, by time.

    candidates: of each answer the best and the last one, and the one that is kept. All others can
    be forgotten: no later selection depends on them.
    """

    candidates: tuple[Candidate, ...] = field(default=())

    @property
    def kept(self) -> Candidate | None:
        """The candidate that the site keeps; None where there is none."""
        return select(self.candidates)

    @property
    def alone(self) -> Candidate | None:
        """The candidate it would keep of those that it trained alone; None: there is none."""
        return select([one for one in self.candidates if one.alone])

    @property
    def joined(self) -> Candidate | None:
        """The candidate it would keep of those with a part of other sites; None: there is none."""
        return select([one for one in self.candidates if not one.alone])

    @property
    def compared(self) -> tuple[Candidate | None, Candidate | None]:
        """The joined and the lone candidate that a verdict compares.

        The kept one stands for its kind. It may be another than `joined` or `alone`, which are
        chosen without the candidates of the other kind: these may raise what the best has right.
        """
        kept = self.kept
        if kept is None:
            return None, None
        return (self.joined, kept) if kept.alone else (kept, self.alone)

    @property
    def trained_longer(self) -> bool:
        """Whether of the two that a verdict compares the joined one was trained on.

        So it is where the site trained alone in the warm-up only: then more training, and not the
        others, may be why the joined model is better.
        """
        joined, alone = self.compared
        if joined is None or alone is None:
            return False
        return alone.answer == USED and joined.round > alone.round

    @property
    def helped(self) -> bool | None:
        """Whether the kept model is one that other sites had a part in.

        None where that says nothing: without validation images, or where all candidates are of one
        kind, so that there was no choice.
        """
        if self.kept is None or not self.kept.val_images:
            return None
        kinds = {one.alone for one in self.candidates}
        return not self.kept.alone if len(kinds) > 1 else None

    def after(self, new: Iterable[Candidate]) -> Self:
        """Return the choice among these candidates and new ones.

        A new candidate replaces the old one of the same answer and round: the round was repeated,
        or the run was begun anew. Only the kept candidate is not replaced by one with fewer right
        answers, since its network is still there.
        """
        here, held = {one.when: one for one in new}, self.kept
        if held and held.when in here:
            here[held.when] = max(here[held.when], held, key=lambda one: one.order)
        elif held:
            here[held.when] = held
        every = {one.when: one for one in self.candidates} | here
        kept = select(_by_time(every))
        # Of old candidates only the kept one still has its network. Where the rule prefers another
        # old one, because rounds were repeated with other results, only these can be chosen from.
        return type(self)(still_needed(_by_time(every if kept in here.values() else here)))


def candidates(
    number: int,
    evaluations: Mapping[str, Evaluation],
    apart: bool,
    metric: Metric = "accuracy",
    least: float = 0.0,
    names: int = 0,
) -> tuple[Candidate, ...]:
    """Return the candidates among a site's evaluations after a round, earliest first.

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
    """Return the candidate to keep; None where `among` is empty.

    All candidates must be of one site, so that their `val_images` are equal.
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
    """Return m of the head of this module, >= 0: the lead, in images, that is tolerated.

    right: b, the score of the best candidate. images: n.
    """
    share = (max(right, 0) + 1) / (images + 2)
    return MARGIN * math.sqrt(share * (1 - share) * images)


def _by_time(every: Mapping[tuple[int, int], Candidate]) -> list[Candidate]:
    return [every[when] for when in sorted(every)]


def still_needed(among: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """Return the candidates on which a later selection can depend, by time (see `Choice`)."""
    kinds = [one for one in among if one.alone], [one for one in among if not one.alone]
    keep = {one for one in map(select, (among, *kinds)) if one}
    for name in _ORDER:
        if own := [one for one in among if one.answer == name]:
            keep |= {max(own, key=lambda one: (one.order, one.when)), own[-1]}
    return tuple(sorted(keep, key=lambda one: one.when))
