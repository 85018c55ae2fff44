"""The server's side of the closed form: it asks for sums, adds and solves."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from operator import add
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from fedapp.core.errors import RunError
from fedapp.learn.class_priors import mean_mix, mean_mix_of_sums
from fedapp.learn.features import LearnedFeatures, build_features
from fedapp.learn.features.base import MAX_FEATURES
from fedapp.learn.linear_head import HEAD_WEIGHT
from fedapp.learn.params import Params
from fedapp.methods._summed import ADDED, NOISE_SHARE
from fedapp.methods.base import Phases, Round
from fedapp.methods.closed_form._contents import (
    ALIKE,
    COUNT,
    FILTERS,
    FIRST,
    GRID,
    GUESS,
    GUESSES,
    LASTING,
    LEAD,
    LEARN,
    LOGLIK,
    MEND,
    MIDDLE,
    NEXT,
    OWN_WEIGHTS,
    RELEASE,
    RELEASED,
    RIDGES,
    SOLUTION,
    STEP,
    SUMS,
    TEMPERATURES,
    TOTALS,
    VOTE,
    Solution,
    flat,
    voted_on,
)
from fedapp.methods.closed_form._discriminant import Classes, Guesses, Sums, added
from fedapp.methods.closed_form._features import FROZEN
from fedapp.methods.closed_form._protected import (
    SENSITIVITY,
    Released,
    classes_of,
    middle_of,
    solution_of,
)
from fedapp.privacy.accountant import Protection
from fedapp.protocol.messages import SERVER_SITE, ModelRef, Reply

LIKELY_RIDGE, LIKELY_TEMPERATURE = 1.0, 2.0
"""lambda and temperature where no validation image says anything."""
MOST_GUESSES = 8
"""How often classes of unlabelled images are guessed where nobody says otherwise. It ends sooner
where labels become no likelier: with many labels after one or two."""
BEFORE = (
    torch.tensor(
        [
            [
                -(math.log(t / LIKELY_TEMPERATURE) ** 2) / 2 - math.log10(r / LIKELY_RIDGE) ** 2 / 2
                for t in TEMPERATURES
            ]
            for r in RIDGES
        ]
    )
    .flatten()
    .double()
)
"""What speaks for each lambda and temperature before any image votes: log-normal."""


class Travels(Protocol):
    """A solution."""

    def to_params(self) -> Params:
        """Return it as it travels."""


Lent = dict[str, list[ModelRef]]
"""What tasks name beside what they are for, by role."""
Solved = TypeVar("Solved", bound=Travels)
NONE_FIRST = torch.tensor([0.0] + [-LEAD] * (len(OWN_WEIGHTS) - 1), dtype=torch.float64)
"""The same for each weight of a site's own images."""


def solved(rnd: Round, name: str, own: bool, guesses: int) -> Phases[dict[str, list[ModelRef]]]:
    """Ask for the sums of all sites that have sent none, and solve where some came.

    name: of the features. own: whether a site's own images may count more. guesses: how often the
    classes of unlabelled images are guessed at most. Returns what tasks name: the server's newest
    solution, and the filters, where these are learned. Raises RunError where no
    site has sent sums, or none has a labelled image.
    """
    if rnd.protection is not None:
        return (yield from _protected(rnd, name, rnd.protection))
    return (yield from _voted(rnd, name, own, guesses))


def _voted(rnd: Round, name: str, own: bool, guesses: int) -> Phases[dict[str, list[ModelRef]]]:
    """Solve with what sites vote for; as `solved` otherwise."""
    lent, senders, replies = yield from gathered(rnd, name)
    if not replies:
        return named(rnd)
    labels: list[Tensor] = []

    def sums_of(site: int) -> Sums:
        sums = Sums.from_params(rnd.pool.read(rnd.pool.latest(site, SUMS)))
        labels.append(sums.counts)
        return sums

    total = added(map(sums_of, senders))
    if not total.counts.sum():
        raise RunError(
            "no site has a labelled image, and the closed form needs some: label images at one "
            "site at least"
        )
    if rnd.masked:
        said = replies[0].metrics
        prior = mean_mix_of_sums(total.counts, [said.get(name, 0.0) for name in ALIKE])
    else:
        prior = mean_mix(torch.stack(labels))
    solution, likely = yield from _solution(rnd, total, prior, lent)
    if own:
        solution = yield from _with_own(rnd, solution, lent)

    def again(guesses: Guesses, before: Solution) -> Phases[tuple[Solution, float]]:
        other, its = yield from _solution(rnd, total.with_guesses(guesses), prior, lent)
        return replace(other, own_weight=before.own_weight, guessed=before.guessed + 1), its

    most = guesses if total.images > total.counts.sum() else 0
    solution = yield from guessing(rnd, (solution, likely), most, (senders, lent), again)
    if own and solution.guessed:
        solution = yield from _with_own(rnd, solution, lent)
    rnd.pool.put(solution.to_params(), SOLUTION)
    return named(rnd)


def guessing(
    rnd: Round,
    first: tuple[Solved, float],
    most: int,
    asked: tuple[Sequence[int], Lent],
    again: Callable[[Guesses, Solved], Phases[tuple[Solved, float]]],
) -> Phases[Solved]:
    """Have sites guess and solve again while labels become likelier; return the best solution.

    first: a solution, and how likely it makes the labels. most: guesses at most. asked: the sites,
    and what their tasks name. again: returns what the sum of guesses makes, in the place of the
    solution that they were made by.
    """
    (solution, likely), (senders, lent) = first, asked
    for number in range(most):
        newest = rnd.pool.put(solution.to_params(), SOLUTION)
        replies = yield [rnd.task(k, GUESS, 0, {}, solution=[newest], **lent) for k in senders]
        every = [Guesses.from_params(of) for _, of in sent(rnd, replies, GUESSES)]
        if not every:
            break
        other, its = yield from again(sum(every[1:], every[0]), solution)
        if its <= likely - (0.0 if number else LEAD):
            break
        solution, likely = other, its
    return solution


def gathered(rnd: Round, name: str) -> Phases[tuple[Lent, list[int], Sequence[Reply]]]:
    """Ask for the sums of all sites that have sent none.

    Returns what tasks name of the features, the sites whose sums are there, and the replies that
    came now; without any nothing is to be solved. Raises RunError where there are no sums at all.
    """
    fresh = [site for site in rnd.everybody if not rnd.pool.has(site, SUMS)]
    if not fresh:
        return {}, [], []
    lent = yield from features_of(rnd, name)
    replies = yield [rnd.task(site, COUNT, 0, {}, **lent) for site in fresh]
    senders = [site for site in rnd.everybody if rnd.pool.has(site, SUMS)]
    if not senders:
        raise RunError("no site has sent sums, and the closed form is made of them: see above why")
    return lent, senders, replies


def _protected(rnd: Round, name: str, protection: Protection) -> Phases[dict[str, list[ModelRef]]]:
    """Solve from noisy sums, once of each site, and ask for nothing else."""
    fresh = [site for site in rnd.everybody if not rnd.pool.has(site, RELEASED)]
    if not fresh:
        return named(rnd)
    classes, size = len(rnd.facts[rnd.sites[0]].classes), _fixed_size(rnd, name)
    if not rnd.pool.has(SERVER_SITE, MIDDLE):
        yield from _middle(rnd, fresh)
    given = named(rnd, FILTERS, MIDDLE)
    replies = yield [rnd.task(site, RELEASE, 0, {}, **given) for site in fresh]
    senders = [site for site in rnd.everybody if rnd.pool.has(site, RELEASED)]
    if not senders:
        raise RunError("no site has sent sums, and the closed form is made of them: see above why")
    if not replies:
        return named(rnd)
    middle = rnd.pool.read(rnd.pool.common(MIDDLE))[MIDDLE]
    rows = (rnd.pool.read(rnd.pool.latest(site, RELEASED)) for site in senders)
    total = reduce(add, (Released.from_params(row, classes, size) for row in rows))
    variance: float = len([site for site in senders if site != SERVER_SITE])
    if rnd.masked:
        variance = variance_of(replies[0].metrics)
    noise = protection.release_multiplier * SENSITIVITY * math.sqrt(variance)
    solution = solution_of(classes_of(total, noise, middle))
    rnd.pool.put(solution.to_params(), SOLUTION)
    return named(rnd)


def variance_of(metrics: Mapping[str, float]) -> float:
    """Return the variance of the noise in a masked sum, in units of the account's.

    metrics: of the sum. Each site says how much it has added. The account's own is certain, and no
    site adds more than that by itself; a sum that says otherwise, by a hostile site or by rounding,
    is taken for the nearest that can be.
    """
    return min(max(metrics[NOISE_SHARE], 1.0), max(metrics[ADDED], 1.0))


def _middle(rnd: Round, sites: Sequence[int]) -> Phases[None]:
    """Make the middle of all images from noisy totals. Raises RunError where none came."""
    replies = yield [rnd.task(site, RELEASE, 0, {}, **named(rnd, FILTERS)) for site in sites]
    every = [row[TOTALS] for _, row in sent(rnd, replies, TOTALS)]
    if not every:
        raise RunError("no site has sent sums, and the closed form is made of them: see above why")
    rnd.pool.put({MIDDLE: middle_of(torch.stack(every).sum(0))}, MIDDLE)


def _fixed_size(rnd: Round, name: str) -> int:
    """Return the number of features. Raises RunError where they are learned from images."""
    if name == FROZEN:
        network = rnd.pool.read(rnd.pool.common())
        if not rnd.pool.has(SERVER_SITE, FILTERS):
            rnd.pool.put(network, FILTERS)
        return min(network[HEAD_WEIGHT].shape[1], MAX_FEATURES)
    features = build_features(name, rnd.facts[rnd.sites[0]].inputs)
    if isinstance(features, LearnedFeatures):
        raise RunError(
            "privacy.epsilon: these features are learned from images, outside of its account: set "
            "the features to hog"
        )
    return features.size


def _solution(
    rnd: Round, sums: Sums, prior: Tensor, lent: Mapping[str, Sequence[ModelRef]]
) -> Phases[tuple[Solution, float]]:
    """Return what sums of all sites make with the best lambda and temperature, and how likely.

    prior: as of `mean_mix`. lent: what tasks name beside.
    """
    classes = Classes.of(sums)
    weights, biases = classes.heads(RIDGES)
    grid = rnd.pool.put(flat(weights, biases), GRID)
    best, likely = yield from elected(rnd, BEFORE, {GRID: [grid], **lent})
    ridge, place = divmod(best, len(TEMPERATURES))
    t, level = TEMPERATURES[place], classes.level(RIDGES[ridge])
    return Solution(classes, weights[ridge] / t, biases[ridge] / t, prior, level, t), likely


def _with_own(
    rnd: Round, solution: Solution, lent: Mapping[str, Sequence[ModelRef]]
) -> Phases[Solution]:
    """Return the solution with the weight of a site's own images that all sites vote for."""
    newest = rnd.pool.put(solution.to_params(), SOLUTION)
    best, _ = yield from elected(rnd, NONE_FIRST, {SOLUTION: [newest], **lent})
    return replace(solution, own_weight=OWN_WEIGHTS[best])


def named(rnd: Round, *made: str) -> dict[str, list[ModelRef]]:
    """Return what the server made, by role, as tasks name it; made: of these roles alone."""
    made = made or LASTING
    return {role: [rnd.pool.common(role)] for role in made if rnd.pool.has(SERVER_SITE, role)}


def features_of(rnd: Round, name: str) -> Phases[dict[str, list[ModelRef]]]:
    """Have the features, learned where these are to be; return what tasks name of them."""
    if not rnd.pool.has(SERVER_SITE, FILTERS):
        yield from _learned(rnd, name)
    return named(rnd, FILTERS)


def _learned(rnd: Round, name: str) -> Phases[None]:
    """Learn the features from the sums of all sites, where these are to be learned."""
    if name == FROZEN:
        rnd.pool.put(rnd.pool.read(rnd.pool.common()), FILTERS)
        return
    features = build_features(name, rnd.facts[rnd.sites[0]].inputs)
    if not isinstance(features, LearnedFeatures):
        return
    for step in range(features.exchanges()):
        ref, role = rnd.pool.put(features.state_dict(), FILTERS), NEXT if step else FIRST
        tasks = [rnd.task(k, LEARN, 0, {STEP: step}, filters=[ref]) for k in rnd.everybody]
        replies = yield tasks
        total: Params = {}
        for site, sums in sent(rnd, replies, role):
            facts = rnd.facts[site]
            if why := features.impossible(step, sums, facts.training):
                rnd.say(f"{facts.display_name}: its {role} are left out: {why}: {MEND}")
            else:
                total = {n: of + total[n] if total else of for n, of in sums.items()}
        if total:
            features.learned(step, total)
    rnd.pool.put(features.state_dict(), FILTERS)


def elected(
    rnd: Round, before: Tensor, models: Mapping[str, Sequence[ModelRef]]
) -> Phases[tuple[int, float]]:
    """Let all sites vote; return the number of the likeliest candidate, and its log-likelihood.

    Of equal ones it is the first. before: [N], what is added to each one's log-likelihood of all
    sites' labels: where few images can vote, or all candidates answer them, it decides. models:
    what the task names: the candidates are of a grid, or of a solution.
    """
    replies = yield [rnd.task(site, VOTE, 0, {}, **models) for site in rnd.sites]
    every = [votes[LOGLIK].double() for _, votes in sent(rnd, replies, voted_on(models))]
    total = torch.stack([before, *every]).sum(0)
    return int(total.argmax()), float(total.max())


def sent(rnd: Round, replies: Sequence[Reply], role: str) -> Iterator[tuple[int, Params]]:
    """Yield what was sent of a role, with the site; what did not come is not missed."""
    for reply in replies:
        if role in reply.contents:
            yield reply.site, rnd.pool.read(rnd.pool.latest(reply.site, role))
