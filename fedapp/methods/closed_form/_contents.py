"""The contents of the closed form: their roles, their schemas, their meaning, and checks."""

import math
from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import starmap
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from fedapp.core.errors import ProtocolError
from fedapp.learn.class_priors import class_mix
from fedapp.learn.features import FeatureMap, LearnedFeatures
from fedapp.learn.linear_head import HEAD_BIAS, HEAD_WEIGHT, Head
from fedapp.learn.networks.base import Network
from fedapp.learn.params import Params, Schema, schema_of
from fedapp.methods.base import Arrived
from fedapp.methods.closed_form._discriminant import (
    COUNTS,
    Classes,
    Guesses,
    Sums,
    by_finding,
    classes_schema,
    guesses_schema,
    sums_schema,
)
from fedapp.methods.closed_form._features import FROZEN, features_for
from fedapp.methods.closed_form._regression import regressed
from fedapp.methods.closed_form._rounded import (
    DIRECTIONS,
    FEW_IMAGES,
    PARTS,
    STEPS,
    directions_schema,
    few_rows,
    few_rows_schema,
    heads_of,
    in_12_bits,
    of_12_bits,
    schema_in_12_bits,
)
from fedapp.protocol.messages import ModelRef, Reply, SiteFacts, Task

TOTALS, RELEASED = "totals", "released"
"""Roles of the two rows of a site that protects single images, and names of their tensors."""
MIDDLE = "middle"
"""Role of the mean that the server computes from the first rows, and name of its tensor."""
FILTERS, FIRST, NEXT = "filters", "patches", "clusters"
"""Roles of features that are learned: what the server makes, and the sites' sums for it. The
filters of a frozen network are w_0 itself, so no further bytes travel for them."""
SUMS, GUESSES, VOTES, OWN_VOTES = "sums", "guesses", "votes", "own_votes"
GRADIENT = "gradient"
"""Roles of what sites send."""
OTHERS = "other_sums"
"""Role of the sums over unlabelled images, which are asked for only where labels are few."""
ROUNDED, ROUNDED_OTHERS = "rounded_sums", "rounded_other_sums"
"""Roles that take the place of `SUMS` and `OTHERS` for features whose sums travel rounded, unless
sums are masked."""
FEW, FEW_OTHERS = "few_sums", "few_other_sums"
"""The same, of a site with `FEW_IMAGES` of these images at most."""
SUM_ROLES = (SUMS, OTHERS, ROUNDED, ROUNDED_OTHERS, FEW, FEW_OTHERS)
"""All roles of sums. A task that asks for another one than the first has it as a number."""
OF_OTHERS = frozenset({OTHERS, ROUNDED_OTHERS, FEW_OTHERS})
"""Those of them that are over unlabelled images."""
GRID, SOLUTION, HEAD = "grid", "solution", "head"
"""Roles of what the server makes of the sums."""
LASTING = (SOLUTION, FILTERS, MIDDLE, DIRECTIONS)
"""Roles that later tasks of the closed form name again."""
ACTIONS = LEARN, COUNT, VOTE, GUESS, REGRESS, RELEASE = (
    "learn", "count", "vote", "guess", "regress", "release"
)  # fmt: skip
"""Actions of a site's tasks, in their order; the last one only where single images are
protected."""
MIX_METRICS = ("pairs", "pairs_alike", "pairs_squared", "pairs_alike_squared", "pairs_crossed")
"""Metrics that a site reports for a masked sum: the results of `same_class_pair_sums`, in their
order."""
OPTIONAL = frozenset({COUNT, RELEASE})
"""A site that has not sent its sums yet is asked again in each round, so it may fail without
stopping the run."""
STEP = "step"
"""Number in a task: which exchange of the learning of features it belongs to."""
RIDGES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
"""Candidates for lambda, in units of the mean eigenvalue of the covariance within classes."""
TEMPERATURES = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Candidates for the temperature, which divides the logits."""
OWN_WEIGHTS = (0.0, 3.0, 10.0, 30.0, 100.0)
"""Candidates for how many times more a site's own labelled images count. In place of the first one,
some features have another (`own_weights`)."""
MIN_GAIN = 2.0
"""Log-likelihood that a weight of own images must gain over none, and a regression over the closed
form, whatever the number of images. The first guesses may lose as much and are still accepted:
nearly always guessing helps."""
PRIOR = "prior"
NUMBERS = RIDGE, TEMPERATURE, OWN_WEIGHT, GUESSED, REGRESSED = (
    "ridge", "temperature", "own_weight", "guessed", "regressed"
)  # fmt: skip
"""Names of a solution's tensors, beside those of `Classes` and of the head."""
DIMENSIONS = "dimensions"
"""The same, of one that travels rounded."""
LOGLIK, VOTERS = "loglik", "voters"
"""Names of the votes: the log-likelihood under each candidate, summed over a site's deciding
validation images; and the number of these, so that votes of two exchanges can be compared."""
MIN_LOGLIK = -20.0
"""Lower limit of a validation image's log-likelihood, so that no single image decides. Images of
classes that nobody has labelled always have it, and so decide nothing."""


def own_weights(features: FeatureMap | type[FeatureMap]) -> tuple[float, ...]:
    """Return the candidates of `OWN_WEIGHTS` for these features."""
    return (features.least_own_weight, *OWN_WEIGHTS[1:])


@dataclass(frozen=True, eq=False)
class Solution:
    """What the server makes of all sums.

    classes: means and covariance. weight [C, d], bias [C]: the common head, calibrated. prior: [C],
    as of `mean_mix`. ridge: what is added to each eigenvalue. temperature: of all heads.
    own_weight: how many times more a site's own labelled images count. guessed: how many times the
    classes of unlabelled images were guessed. regressed: how many steps of a regression moved the
    common head away from what `classes` give. dimensions: tr(P W); 0: not computed yet. directions:
    [r, d], where it travels rounded: then `classes` are of coordinates along them.
    """

    classes: Classes
    weight: Tensor
    bias: Tensor
    prior: Tensor
    ridge: float
    temperature: float
    own_weight: float = 0.0
    guessed: float = 0.0
    regressed: float = 0.0
    dimensions: float = 0.0
    directions: Tensor | None = None

    @property
    def common(self) -> Head:
        """The head that all sites share."""
        return self.weight, self.bias

    def to_params(self) -> Params:
        """Return it as the tensors that travel."""
        numbers = self.ridge, self.temperature, self.own_weight, self.guessed, self.regressed
        head, rounded = flat_head(self.weight, self.bias), self.directions is not None
        if rounded:
            dimensions = {DIMENSIONS: torch.tensor([self.dimensions])}
            head |= {**in_12_bits(HEAD_WEIGHT, self.weight), **dimensions}
        return {
            **self.classes.to_params(rounded),
            **head,
            PRIOR: self.prior.float(),
            **{name: torch.tensor([value]) for name, value in zip(NUMBERS, numbers, strict=True)},
        }

    @classmethod
    def from_params(cls, params: Params, lent: Params | None = None) -> "Solution":
        """Return the solution that `to_params` wrote.

        lent: the directions, without which a rounded one has the common head alone.
        """
        bias, weight, directions = params[HEAD_BIAS], params[HEAD_WEIGHT], None
        if DIMENSIONS in params:
            size = 2 * len(weight) // 3 // len(bias)
            weight = of_12_bits(HEAD_WEIGHT, params, size).float()
            directions = None if lent is None else of_12_bits(DIRECTIONS, lent, size)
        return cls(
            Classes.from_params(params),
            weight.view(len(bias), -1),
            bias,
            params[PRIOR].double(),
            directions=directions,
            **{name: float(params[name]) for name in (*NUMBERS, DIMENSIONS) if name in params},
        )

    def along(self, directions: Tensor | None) -> "Solution":
        """Return it as it travels rounded, by directions; None: as it is."""
        if directions is None:
            return self
        dimensions = self._dimensions
        classes = self.classes.along(directions)
        return replace(self, classes=classes, dimensions=dimensions, directions=directions)

    def tempered(self, temperature: float, own_weight: float) -> "Solution":
        """Return the same at another temperature and another weight of a site's own images."""
        part = self.temperature / temperature
        return replace(
            self,
            weight=part * self.weight,
            bias=part * self.bias,
            temperature=temperature,
            own_weight=own_weight,
        )

    def head(self, features: Tensor, labels: Tensor, weight: float) -> Head:
        """Return a site's head, in which its labelled images, [n, d] and int64 [n], count more."""
        if not (weight and len(labels)):
            return self.common
        if self.directions is not None:
            return self._moved(features.double() @ self.directions.T, labels, weight)
        if self.regressed:
            return self._moved(features, labels, weight)
        own = self.classes.with_own(features, labels, weight)
        return self._calibrated(*own.head(self.ridge, self._dimensions))

    def _moved(self, seen: Tensor, labels: Tensor, weight: float) -> Head:
        """Return the common head, moved as the closed form's head moves.

        seen: features [n, d], or coordinates along the directions [n, r]. A class that only the
        site has images of has nothing in common.
        """
        own = self.classes.with_own(seen, labels, weight)
        before, after = (
            self._calibrated(*one.head(self.ridge, self._dimensions)) for one in (self.classes, own)
        )
        move = after[0] - before[0]
        if self.directions is not None:
            move = (move.double() @ self.directions).float()
        bias = torch.where(self.classes.counts > 0, self.bias + (after[1] - before[1]), after[1])
        return self.weight + move, bias

    @cached_property
    def _dimensions(self) -> float:
        """tr(P W) of the shared covariance, computed once.

        It stands for that with a site's own images, which differs little unless they outweigh all
        others, and would double the time of each head.
        """
        return self.dimensions or self.classes.dimensions(self.ridge)

    def alone(self, features: Tensor, labels: Tensor) -> Head:
        """Return the head made only of a site's own labelled images, n >= 1, by as many steps."""
        classes = len(self.bias)
        nobody = Classes.none(*self.weight.shape)
        head = self._calibrated(*nobody.with_own(features, labels, 1.0).head(self.ridge))
        if not self.regressed:
            return head
        counts = torch.bincount(labels, minlength=classes)
        mix = class_mix(counts, torch.empty(0, classes))
        return regressed(head, features, labels, mix, int(self.regressed))

    def _calibrated(self, weight: Tensor, bias: Tensor) -> Head:
        return (weight / self.temperature).float(), (bias / self.temperature).float()


class Votes(NamedTuple):
    """The log-likelihood of one candidate, its prior included, and the number of images that voted.

    A site that is missing makes a sum of negative numbers larger: compare two by `less`.
    """

    likely: float
    images: float

    def less(self, last: "Votes") -> float:
        """Return by how much this is likelier; minus infinity where other images voted."""
        return self.likely - last.likely if self.images == last.images else -math.inf


def head_of(params: Params) -> Head:
    """Return the head that `flat_head` wrote."""
    bias = params[HEAD_BIAS]
    return params[HEAD_WEIGHT].view(len(bias), -1), bias


def flat_head(weight: Tensor, bias: Tensor) -> Params:
    """Return heads as the tensors that travel: float32 vectors, like `Sums.to_params`."""
    return {HEAD_WEIGHT: weight.float().flatten(), HEAD_BIAS: bias.float().flatten()}


def grid_of(weights: Tensor, biases: Tensor, rounded: bool) -> Params:
    """Return heads at each of `RIDGES`, [L, C, d] and [L, C], as the tensors that travel."""
    if rounded:
        return {**few_rows(weights), HEAD_BIAS: biases.float().flatten()}
    return flat_head(weights, biases)


def grid_heads(params: Params) -> tuple[Tensor, Tensor]:
    """Return the heads, float32 [L, C, d] and [L, C], that `grid_of` wrote."""
    biases = params[HEAD_BIAS].view(len(RIDGES), -1)
    if PARTS not in params:
        return params[HEAD_WEIGHT].view(*biases.shape, -1), biases
    return heads_of(params, *biases.shape), biases


def grid_schema(classes: int, size: int, rounded: bool) -> Schema:
    """Return the schema of `grid_of` for C classes and d features."""
    count, each = len(RIDGES), torch.float32
    plain: Schema = {HEAD_WEIGHT: ((count * classes * size,), each)}
    heads = few_rows_schema(count, classes, size) if rounded else plain
    return {**heads, HEAD_BIAS: ((count * classes,), each)}


def closed_schemas(name: str, network: Network) -> dict[str, Schema]:
    """Return the schemas of all contents, by role, for features of this name."""
    features, classes = features_for(name, network), network.head.out_features
    size, each, rounded = features.size, torch.float32, features.rounded
    weight: Schema = {HEAD_WEIGHT: ((classes * size,), each)}
    found: dict[str, Schema] = {
        SUMS: sums_schema(classes, size),
        OTHERS: sums_schema(0, size),
        GUESSES: guesses_schema(classes, size),
        **released_schemas(classes, size),
        GRID: grid_schema(classes, size, rounded),
        HEAD: {**weight, HEAD_BIAS: ((classes,), each)},
        GRADIENT: {
            **{name: ((1,), each) for name in (LOGLIK, VOTERS)},
            GRADIENT: ((classes * (size + 1),), each),
        },
        SOLUTION: {
            **classes_schema(classes, size, rounded),
            **(schema_in_12_bits(HEAD_WEIGHT, classes, size) if rounded else weight),
            HEAD_BIAS: ((classes,), each),
            PRIOR: ((classes,), each),
            **{name: ((1,), each) for name in (*NUMBERS, *((DIMENSIONS,) if rounded else ()))},
        },
        VOTES: {LOGLIK: ((len(RIDGES) * len(TEMPERATURES),), each), VOTERS: ((1,), each)},
        OWN_VOTES: {LOGLIK: ((len(OWN_WEIGHTS),), each), VOTERS: ((1,), each)},
    }
    if rounded:
        for role in SUM_ROLES[2:]:
            found[role] = sums_schema(0 if role in OF_OTHERS else classes, size, **form_of(role))
        found[DIRECTIONS] = directions_schema(size)
    if isinstance(features, LearnedFeatures):
        found |= {FIRST: features.sum_schema(0), NEXT: features.sum_schema(1)}
        found[FILTERS] = schema_of(features.state_dict())
    if name == FROZEN:
        found[FILTERS] = schema_of(network.state_dict())
    return found


def released_schemas(classes: int, size: int) -> dict[str, Schema]:
    """Return the schemas of the noisy rows for C classes and d features, by role."""
    of_group, triangle = (classes + 1) * (size + 1), size * (size + 1) // 2
    return {
        TOTALS: {TOTALS: ((size + 1,), torch.float64)},
        MIDDLE: {MIDDLE: ((size,), torch.float64)},
        RELEASED: {RELEASED: ((of_group + triangle,), torch.float64)},
    }


def votes_role(models: Container[str]) -> str:
    """Return the role of the votes on what a task names: a grid of heads, or a solution."""
    return VOTES if GRID in models else OWN_VOTES


def role_asked_for(task: Task) -> str:
    """Return the role of the content that a task of the closed form asks for; empty: none."""
    if task.action == LEARN:
        return NEXT if task.numbers[STEP] else FIRST
    if task.action == VOTE:
        return votes_role(task.models)
    if task.action == RELEASE:
        return RELEASED if MIDDLE in task.models else TOTALS
    if task.action == COUNT:
        return next((role for role in SUM_ROLES if task.numbers.get(role)), SUMS)
    return {GUESS: GUESSES, REGRESS: GRADIENT}.get(task.action, "")


def check_asked(task: Task, guesses: int, steps: int, protected: bool) -> None:
    """Raise ProtocolError for a task that the run's settings rule out, whoever asks for it.

    guesses, steps: at most, of a regression; 0: what they need does not leave the site. protected:
    whether noise is added to sums of all images, which leave no other site.
    """
    role = role_asked_for(task)
    ruled_out = {} if guesses else dict.fromkeys((GUESSES, *OF_OTHERS), "method.guesses=0")
    ruled_out |= {} if steps else {GRADIENT: "method.regression_steps=0"}
    ruled_out |= {} if protected else dict.fromkeys((TOTALS, RELEASED), "privacy.epsilon=0")
    if role in ruled_out:
        raise ProtocolError(f"asked for its {role}, and this run has {ruled_out[role]}")


def sums_role(others: bool, rounded: bool, images: int) -> str:
    """Return the role of the sums over a site's labelled images, or over its others: so many."""
    few = rounded and images <= FEW_IMAGES
    return SUM_ROLES[2 * (rounded + few) + others]


def form_of(role: str) -> dict[str, bool]:
    """Return how sums of this role travel, as arguments of `Sums.to_params` and `sums_schema`."""
    few = role in {FEW, FEW_OTHERS}
    return {"rounded": few or role in {ROUNDED, ROUNDED_OTHERS}, "few": few}


def lasting_contents(task: Task) -> tuple[ModelRef, ...]:
    """Return the contents of a task that later tasks of the closed form name again."""
    return tuple(ref for role in LASTING for ref in task.models.get(role, ()))


# --- checks ---------------------------------------------------------------------------------------

TOLERANCE = 1e-4
"""Relative tolerance for sums that arrived, which are rounded to float32."""
REMEDY = "the site must send what this version of fedapp computes, unchanged"


def check_role_asked_for(
    task: Task, reply: Reply, also: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Refuse a reply that lacks the content that was asked for, or holds another one.

    also: the role that each of the method's own actions asks for. Raises ProtocolError.
    """
    role = role_asked_for(task) or also.get(task.action, "")
    if role and reply.contents.keys() != {role}:
        came = ", ".join(sorted(reply.contents)) or "nothing"
        raise ProtocolError(f"asked for its {role}, it sent {came}: {REMEDY}")


def check_closed(arrived: Mapping[str, Arrived], facts: SiteFacts) -> None:
    """Refuse sums and votes that cannot be of the site's images. Raises ProtocolError."""
    if made := sorted({FILTERS, GRID, SOLUTION, HEAD, MIDDLE, DIRECTIONS} & arrived.keys()):
        raise ProtocolError(f"sent a {made[0]}, which the server alone makes: {REMEDY}")
    for role in {VOTES, OWN_VOTES, GRADIENT} & arrived.keys():
        _check_votes(arrived[role].whole, facts)
    if GRADIENT in arrived:
        _check_gradient(arrived[GRADIENT].whole, facts)
    for role in arrived.keys() & SUM_ROLES:
        sums, rounded = Sums.from_params(arrived[role].whole), form_of(role)["rounded"]
        images = facts.unlabelled if role in OF_OTHERS else facts.labelled
        if sums.images != images:
            raise ProtocolError(
                f"{role}: of {sums.images:g} images, the site has {images}: {REMEDY}"
            )
        for one in by_finding(sums) if len(sums.counts) > len(facts.classes) else [sums]:
            every = one is sums and role not in OF_OTHERS
            _check_sums(one, every, TOLERANCE + rounded / STEPS)
    if GUESSES in arrived:
        guesses = Guesses.from_params(arrived[GUESSES].whole)
        finds = len(guesses.counts) > len(facts.classes)
        both = (of.unflatten(0, (-1, 2)) for of in (guesses.counts, guesses.by_class))
        for guess in starmap(Guesses, zip(*both, strict=True)) if finds else [guesses]:
            _check_guesses(guess, facts)


def _check_votes(votes: Params, facts: SiteFacts) -> None:
    loglik, least = votes[LOGLIK], MIN_LOGLIK * facts.val
    if bool((loglik > 0).any() or (loglik < least * (1 + TOLERANCE)).any()):
        raise ProtocolError(
            f"votes: of the site's {facts.val} validation images log-likelihoods must lie in "
            f"[{least:g}, 0]: {REMEDY}"
        )
    if not 0 <= float(votes[VOTERS]) <= facts.val:
        raise ProtocolError(
            f"votes: of {float(votes[VOTERS]):g} images, the site has {facts.val} for validation: "
            f"{REMEDY}"
        )


def _check_guesses(guesses: Guesses, facts: SiteFacts) -> None:
    counts, rounding = guesses.counts, TOLERANCE * (1 + facts.unlabelled)
    if float(counts.min()) < 0 or abs(float(counts.sum()) - facts.unlabelled) > rounding:
        raise ProtocolError(
            f"guesses: {COUNTS} adds up to {float(counts.sum()):g}, the site has "
            f"{facts.unlabelled} unlabelled images: {REMEDY}"
        )
    if bool((guesses.by_class.norm(dim=1) > counts + rounding).any()):
        raise ProtocolError(
            f"guesses: a sum of features is longer than its images allow, and features have norm 1 "
            f"at most: {REMEDY}"
        )


def _check_gradient(sent: Params, facts: SiteFacts) -> None:
    found = sent[GRADIENT].double().view(len(facts.classes), -1)
    slack = TOLERANCE * (1 + facts.labelled)
    if float(found.norm(dim=1).max()) > facts.labelled * 2**0.5 + slack:
        raise ProtocolError(
            f"gradient: a row is longer than {facts.labelled} labelled images allow, and features "
            f"have norm 1 at most: {REMEDY}"
        )
    if float(found.sum(0).abs().max()) > slack:
        raise ProtocolError(f"gradient: its rows must add up to zero: {REMEDY}")


def _check_sums(sums: Sums, every: bool, slack: float) -> None:
    """every: whether each image has a class; a finding need not be read in each image.

    slack: how far rounding may move an eigenvalue of the second moment, relative to its trace.
    """
    images, known = int(sums.images), int(sums.counts.sum())
    if bool((sums.counts < 0).any()) or known > images or (every and known < images):
        raise ProtocolError(
            f"sums: {COUNTS} adds up to {known}, the site has {images} labelled images: {REMEDY}"
        )
    most, of_group = sums.by_group
    # The last is a difference of rounded sums.
    longer = TOLERANCE + 1e-6 * images
    if bool((of_group.norm(dim=1) > most * (1 + TOLERANCE) + longer).any()):
        raise ProtocolError(
            f"sums: a sum of features is longer than the number of its images allows, and features "
            f"have norm 1 at most: {REMEDY}"
        )
    trace = float(sums.second.trace())
    if not trace <= images * (1 + TOLERANCE) + TOLERANCE:
        raise ProtocolError(
            f"sums: the second moment of {images} images has trace {trace:g}, and features have "
            f"norm 1 at most: {REMEDY}"
        )
    level = slack * (trace + TOLERANCE) * torch.eye(len(sums.total), dtype=torch.float64)
    if int(torch.linalg.cholesky_ex(sums.unexplained + level).info):
        raise ProtocolError(
            "sums: the second moment is not positive semi-definite once class sums are taken out; "
            f"no images have such sums: {REMEDY}"
        )
