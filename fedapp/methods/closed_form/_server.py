"""The server's side of the closed form: it asks for sums, adds them up, and solves."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from fedapp.core.errors import RunError
from fedapp.core.formatting import counted
from fedapp.learn.class_priors import mean_mix, mean_mix_of_sums
from fedapp.learn.features import (
    FeatureMap,
    LearnedFeatures,
    build_features,
    feature_class,
)
from fedapp.learn.features.base import MAX_FEATURES
from fedapp.learn.linear_head import HEAD_WEIGHT
from fedapp.learn.params import Params
from fedapp.methods._summed import ADDED, NOISE_SHARE
from fedapp.methods.base import Phases, Round
from fedapp.methods.closed_form._contents import (
    COUNT,
    FILTERS,
    FIRST,
    GRADIENT,
    GRID,
    GUESS,
    GUESSES,
    HEAD,
    LASTING,
    LEARN,
    LOGLIK,
    MIDDLE,
    MIN_GAIN,
    MIX_METRICS,
    NEXT,
    OWN_WEIGHTS,
    REGRESS,
    RELEASE,
    RELEASED,
    REMEDY,
    RIDGES,
    SOLUTION,
    STEP,
    SUMS,
    TEMPERATURES,
    TOTALS,
    VOTE,
    VOTERS,
    Solution,
    Votes,
    flat_head,
    grid_of,
    own_weights,
    sums_role,
    votes_role,
)
from fedapp.methods.closed_form._discriminant import TOTAL, Classes, Guesses, Sums, sum_of
from fedapp.methods.closed_form._features import FROZEN
from fedapp.methods.closed_form._protected import (
    SENSITIVITY,
    Released,
    classes_of,
    middle_from_rows,
    solution_of,
)
from fedapp.methods.closed_form._regression import Regression
from fedapp.methods.closed_form._rounded import DIRECTIONS, leading, of_12_bits
from fedapp.privacy.accountant import Protection
from fedapp.protocol.messages import SERVER_SITE, ModelRef, Reply

LEAST_RIDGE, MOST_RIDGE = 1.0, 10.0
"""lambda where there is no validation image lies between them, higher the fewer labels there are.
Above the second the temperature would have to be another one."""
RIDGE_FOR_NOISE = 0.4
"""That lambda, in units of the number of features for each labelled image of a class."""
MOST_GUESSES = 8
"""Default limit of how often classes of unlabelled images are guessed. Guessing ends earlier where
labels become no likelier: with many labels after one or two times."""


def log_prior(default_temperature: float, counts: Tensor, size: int) -> Tensor:
    """Return the log-prior of each lambda and temperature, to which votes are added: float64 [N].

    It is log-normal around the features' default temperature and a lambda that grows with the noise
    of class means. counts: [C], labelled images of each class. size: number of features.
    """
    by_class = float(counts.sum()) / max(int((counts > 0).sum()), 1)
    usual = RIDGE_FOR_NOISE * size / max(by_class, 1.0)
    usual = min(max(usual, LEAST_RIDGE), MOST_RIDGE)
    each = [
        (math.log10(ridge / usual), math.log(t / default_temperature))
        for ridge in RIDGES
        for t in TEMPERATURES
    ]
    return torch.tensor([-(ridge**2 + t**2) / 2 for ridge, t in each]).double()


NO_SUMS = "no site has sent sums, and the closed form is made of them: see above why"


class HasParams(Protocol):
    """A solution of classes or of findings."""

    def to_params(self) -> Params:
        """Return the tensors that travel."""


TaskModels = dict[str, list[ModelRef]]
"""Contents that tasks name, by role."""
Solved = TypeVar("Solved", bound=HasParams)
OWN_WEIGHT_LOG_PRIOR = torch.tensor(
    [0.0] + [-MIN_GAIN] * (len(OWN_WEIGHTS) - 1), dtype=torch.float64
)
"""Log-prior of each weight of a site's own images."""


def defaults_of(rnd: Round, name: str) -> FeatureMap | type[FeatureMap]:
    """Return features of this name for their defaults; those of a frozen network are not built."""
    return feature_class(name) if name == FROZEN else build_features(name, _inputs(rnd))


def _inputs(rnd: Round) -> tuple[int, ...]:
    return rnd.facts[rnd.sites[0]].inputs


@dataclass(frozen=True)
class Refinements:
    """What may follow the first solution.

    own: whether a site's own images may count more. guesses: the maximum number of times that the
    classes of unlabelled images are guessed. regression: the maximum number of steps of a
    regression.
    """

    own: bool
    guesses: int
    regression: int


def solve(rnd: Round, name: str, then: Refinements) -> Phases[dict[str, list[ModelRef]]]:
    """Ask for the sums of all sites that have sent none, and solve if some came.

    name: of the features. Returns the contents that
    tasks name from now on: the server's newest solution and, where features are learned, the
    filters. Raises RunError where no site has sent sums, or none has a labelled image.
    """
    if rnd.protection is not None:
        return (yield from _protected(rnd, name, rnd.protection))
    return (yield from _voted(rnd, name, then))


def _voted(rnd: Round, name: str, then: Refinements) -> Phases[dict[str, list[ModelRef]]]:
    """Solve with the candidates that sites vote for; the rest is as in `solve`."""
    lent, senders, replies = yield from gather_sums(rnd, name, then.guesses)
    if not replies:
        return server_contents(rnd)
    labels: list[Tensor] = []

    def sums_of(ref: ModelRef) -> Sums:
        sums = Sums.from_params(rnd.pool.read(ref))
        labels.append(sums.counts)
        return sums

    total = sum_of(map(sums_of, sums_sent(rnd, name, senders)))
    if not total.counts.sum():
        raise RunError(
            "no site has a labelled image, and the closed form needs some: label images at one "
            "site at least"
        )
    if rnd.masked:
        said = replies[0].metrics
        prior = mean_mix_of_sums(total.counts, [said.get(name, 0.0) for name in MIX_METRICS])
    else:
        prior = mean_mix(torch.stack(labels))
    features = defaults_of(rnd, name)
    before = log_prior(features.default_temperature, total.counts, len(total.total))
    classes, directions = Classes.of(total), None
    more, guessing = yield from with_others(rnd, name, total, (senders, lent), then.guesses)
    if features.rounded:
        lent |= {DIRECTIONS: [rnd.pool.put(leading(classes.spectrum), DIRECTIONS)]}
        directions = rnd.pool.read(lent[DIRECTIONS][0])
    given = prior, before, directions
    solution, likely = yield from _solution(rnd, classes, given, lent)
    if then.own:
        solution = yield from _with_own(rnd, solution, own_weights(features), lent)

    def again(guesses: Guesses, last: Solution) -> Phases[tuple[Solution, Votes]]:
        found = Classes.of(more.with_guesses(guesses)) if more else classes.with_guesses(guesses)
        other, its = yield from _solution(rnd, found, given, lent)
        return replace(other, own_weight=last.own_weight, guessed=last.guessed + 1), its

    first, asked = (solution, likely), (guessing, lent)
    solution = yield from refine_by_guesses(rnd, first, then.guesses, asked, again)
    if then.own and solution.guessed:
        solution = yield from _with_own(rnd, solution, own_weights(features), lent)
    if then.regression:
        solution = yield from _regressed(rnd, solution, total, then.regression, (senders, lent))
    rnd.pool.put(solution.to_params(), SOLUTION)
    return server_contents(rnd)


def refine_by_guesses(
    rnd: Round,
    first: tuple[Solved, Votes],
    most: int,
    asked: tuple[Sequence[int], TaskModels],
    again: Callable[[Guesses, Solved], Phases[tuple[Solved, Votes]]],
) -> Phases[Solved]:
    """Let sites guess and solve again while labels become likelier; return the best solution.

    first: a solution and the votes for it. most: the maximum number of guesses. asked: the sites,
    and the contents that their tasks name. again: returns the solution that follows from a sum of
    guesses, and the votes for it; its second argument is the solution by which the guesses were
    made.
    """
    (solution, likely), (senders, lent) = first, asked
    if not any(rnd.facts[site].unlabelled for site in senders):
        return solution
    for number in range(most):
        newest = rnd.pool.put(solution.to_params(), SOLUTION)
        replies = yield [rnd.task(k, GUESS, 0, {}, solution=[newest], **lent) for k in senders]
        if not any(GUESSES in reply.contents for reply in replies):
            break
        sent = (Guesses.from_params(of) for _, of in contents_sent(rnd, replies, GUESSES))
        other, its = yield from again(sum_of(sent), solution)
        if its.less(likely) <= (0.0 if number else -MIN_GAIN):
            break
        solution, likely = other, its
    return solution


def _regressed(
    rnd: Round, solution: Solution, total: Sums, most: int, asked: tuple[Sequence[int], TaskModels]
) -> Phases[Solution]:
    """Return the solution with a common head that a regression moved, if labels are likelier by it.

    It goes on as long as validation labels become likelier, at most `most` steps. total: of
    labelled images. asked: the sites that sent these, and the contents that tasks name.
    """
    senders, lent = asked
    newest = {SOLUTION: [rnd.pool.put(solution.to_params(), SOLUTION)], **lent}
    head = solution.weight.float(), solution.bias.float()
    regression, best, votes = Regression.of(total, head), solution, list[Votes]()
    for steps in range(most + 1):
        at = {HEAD: [rnd.pool.put(flat_head(*head), HEAD)], **newest}
        replies = yield [rnd.task(site, REGRESS, 0, {}, **at) for site in senders]
        gradient = torch.zeros(len(head[1]), head[0].shape[1] + 1, dtype=torch.float64)
        now = Votes(0.0, 0.0)
        for _, sent in contents_sent(rnd, replies, GRADIENT):
            gradient += sent[GRADIENT].double().view_as(gradient)
            now = Votes(now.likely + float(sent[LOGLIK]), now.images + float(sent[VOTERS]))
        if votes and now.less(votes[-1]) <= 0:
            break
        votes.append(now)
        best = replace(solution, weight=head[0], bias=head[1], regressed=float(steps))
        head = regression.after(head, gradient)
    if votes[-1].less(votes[0]) < MIN_GAIN:
        rnd.say("regression: not taken, it makes validation labels hardly likelier")
        return solution
    rnd.say(f"regression: taken, {counted(int(best.regressed), 'steps')}")
    return best


def gather_sums(
    rnd: Round, name: str, guesses: int
) -> Phases[tuple[TaskModels, list[int], Sequence[Reply]]]:
    """Ask for the sums of all sites that have sent none.

    guesses: 0 where nobody guesses classes, and sums of unlabelled images stay at their sites.

    Returns the contents that tasks name for the features, the sites whose sums are known, and the
    new replies; without new replies there is nothing to solve. Raises RunError where there are no
    sums at all.
    """
    late = _late_with_others(rnd, name) if guesses else []
    if not late and all(has_sums(rnd, name, site) for site in rnd.everybody):
        return {}, [], []
    lent = yield from features_of(rnd, name)
    replies = yield from _ask_for_sums(rnd, name, rnd.everybody, lent)
    if late and not replies:  # else `with_others` asks, if labels are few still
        replies = yield from _ask_for_sums(rnd, name, late, lent, others=True)
    senders = [site for site in rnd.everybody if has_sums(rnd, name, site)]
    if not senders:
        raise RunError(NO_SUMS)
    return lent, senders, replies


def _late_with_others(rnd: Round, name: str) -> list[int]:
    """Return the sites that sent their labelled images' sums, and lack others that are wanted."""
    senders = [site for site in rnd.everybody if has_sums(rnd, name, site)]
    if rnd.masked or not senders:
        return []
    [first, *_] = sums_sent(rnd, name, senders[:1])
    labelled, size = sum(rnd.facts[k].labelled for k in senders), len(rnd.pool.read(first)[TOTAL])
    wanted = _wanted_others(rnd, name, senders, labelled, size)
    return [site for site in wanted if not has_sums(rnd, name, site, others=True)]


def _wanted_others(
    rnd: Round, name: str, senders: Sequence[int], labelled: float, size: int
) -> list[int]:
    """Return the senders with unlabelled images; none where labels are enough for d features.

    Then the labelled images' own covariance is as good, and that of other images need not leave the
    sites (docs/results/covariance.md).
    """
    if labelled >= feature_class(name).enough_labels * size:
        return []
    return [site for site in senders if rnd.facts[site].unlabelled]


def _ask_for_sums(
    rnd: Round, name: str, sites: Sequence[int], lent: TaskModels, others: bool = False
) -> Phases[Sequence[Reply]]:
    """Ask those of the sites that have not sent these sums yet; return their replies."""
    tasks = []
    for site in sites:
        role = role_of_sums(rnd, name, site, others)
        if not rnd.pool.has(site, role):
            tasks.append(rnd.task(site, COUNT, 0, {} if role == SUMS else {role: 1.0}, **lent))
    return (yield tasks) if tasks else []


def role_of_sums(rnd: Round, name: str, site: int, others: bool = False) -> str:
    """Return the role of what a site sends: masked sums are added before anybody could round them.

    others: of its unlabelled images.
    """
    facts = rnd.facts[site]
    images = facts.unlabelled if others else facts.labelled
    return sums_role(others, feature_class(name).rounded and not rnd.masked, images)


def has_sums(rnd: Round, name: str, site: int, others: bool = False) -> bool:
    """Whether a site has sent its sums; others: those of its unlabelled images."""
    return rnd.pool.has(site, role_of_sums(rnd, name, site, others))


def sums_sent(rnd: Round, name: str, sites: Iterable[int], others: bool = False) -> list[ModelRef]:
    """Return what each of these sites sent, in the order of the digests (`contents_sent`)."""
    sent = [rnd.pool.latest(site, role_of_sums(rnd, name, site, others)) for site in sites]
    return sorted(sent, key=lambda ref: ref.digest)


def with_others(
    rnd: Round, name: str, total: Sums, asked: tuple[Sequence[int], TaskModels], guesses: int
) -> Phases[tuple[Sums | None, Sequence[int]]]:
    """Where labels are few, return the sums of all images, unlabelled ones too; else None.

    total: of labelled images. asked: the sites that sent these, and the contents that tasks name.
    guesses: as in `gather_sums`. Also returns the sites that guess: those whose images are in the
    sums.
    """
    senders, lent = asked
    if not guesses:
        return None, senders
    wanted = _wanted_others(rnd, name, senders, total.images, len(total.total))
    yield from _ask_for_sums(rnd, name, wanted, lent, others=True)
    there = [site for site in wanted if has_sums(rnd, name, site, others=True)]
    if not there:
        return None, senders
    sent = map(rnd.pool.read, sums_sent(rnd, name, there, others=True))
    return reduce(Sums.with_others, map(Sums.from_params, sent), total), there


def _protected(rnd: Round, name: str, protection: Protection) -> Phases[dict[str, list[ModelRef]]]:
    """Solve from noisy sums, which each site sends once; nothing else is asked for."""
    fresh = [site for site in rnd.everybody if not rnd.pool.has(site, RELEASED)]
    if not fresh:
        return server_contents(rnd)
    classes, size = len(rnd.facts[rnd.sites[0]].classes), _fixed_size(rnd, name)
    if not rnd.pool.has(SERVER_SITE, MIDDLE):
        yield from _middle(rnd, fresh)
    given = server_contents(rnd, FILTERS, MIDDLE)
    replies = yield [rnd.task(site, RELEASE, 0, {}, **given) for site in fresh]
    senders = [site for site in rnd.everybody if rnd.pool.has(site, RELEASED)]
    if not senders:
        raise RunError(NO_SUMS)
    if not replies:
        return server_contents(rnd)
    middle = rnd.pool.read(rnd.pool.common(MIDDLE))[MIDDLE]
    ordered = by_digest(rnd, senders, RELEASED)
    rows = (rnd.pool.read(rnd.pool.latest(site, RELEASED)) for site in ordered)
    total = reduce(add, (Released.from_params(row, classes, size) for row in rows))
    variance: float = len([site for site in senders if site != SERVER_SITE])
    if rnd.masked:
        variance = noise_variance(replies[0].metrics)
    noise = protection.release_multiplier * SENSITIVITY * math.sqrt(variance)
    features, found = defaults_of(rnd, name), classes_of(total, noise, middle)
    solution = solution_of(found, features.default_temperature)
    if features.rounded:
        made = leading(found.spectrum)
        rnd.pool.put(made, DIRECTIONS)
        solution = solution.along(of_12_bits(DIRECTIONS, made, size))
    rnd.pool.put(solution.to_params(), SOLUTION)
    return server_contents(rnd)


def noise_variance(metrics: Mapping[str, float]) -> float:
    """Return the variance of the noise in a masked sum, in units of the variance that is required.

    metrics: of the sum, in which each site reports how much noise it has added. The required noise
    is certain, and no site adds more than that by itself: a sum that says otherwise, because of a
    hostile site or of rounding, is replaced by the nearest possible value.
    """
    return min(max(metrics[NOISE_SHARE], 1.0), max(metrics[ADDED], 1.0))


def _middle(rnd: Round, sites: Sequence[int]) -> Phases[None]:
    """Compute the mean of all images from noisy rows. Raises RunError where none came."""
    replies = yield [
        rnd.task(site, RELEASE, 0, {}, **server_contents(rnd, FILTERS)) for site in sites
    ]
    every = [row[TOTALS] for _, row in contents_sent(rnd, replies, TOTALS)]
    if not every:
        raise RunError(NO_SUMS)
    rnd.pool.put({MIDDLE: middle_from_rows(torch.stack(every).sum(0))}, MIDDLE)


def _fixed_size(rnd: Round, name: str) -> int:
    """Return the number of features. Raises RunError where they are learned from images."""
    if name == FROZEN:
        network = rnd.pool.read(rnd.pool.common())
        if not rnd.pool.has(SERVER_SITE, FILTERS):
            rnd.pool.put(network, FILTERS)
        return min(network[HEAD_WEIGHT].shape[1], MAX_FEATURES)
    features = build_features(name, _inputs(rnd))
    if isinstance(features, LearnedFeatures):
        raise RunError(
            "privacy.epsilon: these features are learned from images, outside of its account: set "
            "the features to hog"
        )
    return features.size


def _solution(
    rnd: Round,
    classes: Classes,
    given: tuple[Tensor, Tensor, Params | None],
    lent: Mapping[str, Sequence[ModelRef]],
) -> Phases[tuple[Solution, Votes]]:
    """Return the solution of all sums with the best lambda and temperature, and its votes.

    given: as of `mean_mix` and `log_prior`; of a solution that travels rounded, `leading`. lent:
    further contents that tasks name.
    """
    prior, before, made = given
    weights, biases = classes.heads(RIDGES)
    directions = None if made is None else of_12_bits(DIRECTIONS, made, weights.shape[2])
    grid = rnd.pool.put(grid_of(weights, biases, made is not None), GRID)
    best, likely = yield from elect(rnd, before, {GRID: [grid], **lent})
    ridge, place = divmod(best, len(TEMPERATURES))
    t, level = TEMPERATURES[place], classes.level(RIDGES[ridge])
    found = Solution(classes, weights[ridge] / t, biases[ridge] / t, prior, level, t)
    return found.along(directions), likely


def _with_own(
    rnd: Round,
    solution: Solution,
    weights: Sequence[float],
    lent: Mapping[str, Sequence[ModelRef]],
) -> Phases[Solution]:
    """Return the solution with the weight of own images that gets most votes of all sites."""
    newest = rnd.pool.put(solution.to_params(), SOLUTION)
    best, _ = yield from elect(rnd, OWN_WEIGHT_LOG_PRIOR, {SOLUTION: [newest], **lent})
    return replace(solution, own_weight=weights[best])


def server_contents(rnd: Round, *made: str) -> dict[str, list[ModelRef]]:
    """Return what the server has made, by role, as tasks name it. made: only these roles."""
    made = made or LASTING
    return {role: [rnd.pool.common(role)] for role in made if rnd.pool.has(SERVER_SITE, role)}


def features_of(rnd: Round, name: str) -> Phases[dict[str, list[ModelRef]]]:
    """Learn the features if they must be learned; return the contents that tasks name for them."""
    if not rnd.pool.has(SERVER_SITE, FILTERS):
        yield from _learned(rnd, name)
    return server_contents(rnd, FILTERS)


def _learned(rnd: Round, name: str) -> Phases[None]:
    """Learn the features from sums of all sites, if they must be learned."""
    if name == FROZEN:
        rnd.pool.put(rnd.pool.read(rnd.pool.common()), FILTERS)
        return
    features = build_features(name, _inputs(rnd))
    if not isinstance(features, LearnedFeatures):
        return
    for step in range(features.exchanges()):
        ref, role = rnd.pool.put(features.state_dict(), FILTERS), NEXT if step else FIRST
        tasks = [rnd.task(k, LEARN, 0, {STEP: step}, filters=[ref]) for k in rnd.everybody]
        replies = yield tasks
        total: Params = {}
        for site, sums in contents_sent(rnd, replies, role):
            facts = rnd.facts[site]
            if why := features.impossible(step, sums, facts.training):
                rnd.say(f"{facts.display_name}: its {role} are left out: {why}: {REMEDY}")
            else:
                total = {n: of + total[n] if total else of for n, of in sums.items()}
        if total:
            features.learned(step, total)
    rnd.pool.put(features.state_dict(), FILTERS)


def elect(
    rnd: Round, before: Tensor, models: Mapping[str, Sequence[ModelRef]]
) -> Phases[tuple[int, Votes]]:
    """Let all sites vote; return the number of the likeliest candidate, and its votes.

    Among equal ones it is the first. before: [N], the log-prior of each candidate, which decides
    where few images can vote or all candidates answer them. models: what the tasks name; the
    candidates come from a grid or a solution.
    """
    replies = yield [rnd.task(site, VOTE, 0, {}, **models) for site in rnd.sites]
    total, images = votes_of(rnd, replies, votes_role(models), before)
    return int(total.argmax()), Votes(float(total.max()), images)


def votes_of(
    rnd: Round, replies: Sequence[Reply], role: str, before: Tensor
) -> tuple[Tensor, float]:
    """Return each candidate's log-likelihood with its log-prior, [N], and how many images voted.

    before: [N], the log-priors.
    """
    every = [votes for _, votes in contents_sent(rnd, replies, role)]
    total = torch.stack([before, *(votes[LOGLIK].double() for votes in every)]).sum(0)
    return total, sum(float(votes[VOTERS]) for votes in every)


def contents_sent(rnd: Round, replies: Sequence[Reply], role: str) -> Iterator[tuple[int, Params]]:
    """Yield the contents of a role that arrived, each with its site; missing ones are skipped.

    They come in the order of their digests: rounding of their sum does not depend on how sites are
    numbered.
    """
    sent = [reply.site for reply in replies if role in reply.contents]
    for site in by_digest(rnd, sent, role):
        yield site, rnd.pool.read(rnd.pool.latest(site, role))


def by_digest(rnd: Round, sites: Iterable[int], role: str) -> list[int]:
    """Return the sites in the order of the digests of what each sent last."""
    return sorted(sites, key=lambda site: rnd.pool.latest(site, role).digest)
