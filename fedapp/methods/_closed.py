"""The closed form, as methods use it: which sums a site sends, and what the server makes of them.

Four phases, all in one round. Sites send sums over features of their images (`learn.discriminant`).
The server adds them and solves, for a grid of lambda; each site counts how likely its validation
labels are under each, for a grid of temperatures, and the server takes the best of both. Then sites
count the same for their own labelled images counting 0 to 100 times more. What follows is the
solution: class means, covariance, and with them the common head.
"""

from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedapp.ground.errors import ProtocolError, RunError
from fedapp.learn.discriminant import (
    COUNTS,
    Classes,
    Sums,
    added,
    classes_schema,
    sums_schema,
)
from fedapp.learn.features import FeatureMap, build_features
from fedapp.learn.networks.base import Network
from fedapp.learn.overfeatures import HEAD_BIAS, HEAD_WEIGHT, Head, answers_over, mapped
from fedapp.learn.params import Params, Schema
from fedapp.learn.priors import class_mix, mean_mix, site_mix
from fedapp.messages.protocol import ModelRef, Reply, SiteFacts, Task
from fedapp.methods._answers import counts, deciding
from fedapp.methods.base import Arrived, Round, SiteContext, SiteReport

SUMS, GRID, SOLUTION, VOTES, OWN_VOTES = "sums", "grid", "solution", "votes", "own_votes"
"""Roles: what sites send (sums and votes), and what the server makes."""
COUNT, VOTE, WEIGH = "count", "vote", "weigh"
"""Actions of a site's tasks, in their order."""
RIDGES = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
"""lambda, in mean eigenvalues of the covariance within classes."""
TEMPERATURES = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
"""What logits are divided by."""
OWN_WEIGHTS = (0.0, 1.0, 3.0, 10.0, 30.0, 100.0)
"""How many times more a site's own labelled images count."""
PRIOR, RIDGE, TEMPERATURE, OWN_WEIGHT = "prior", "ridge", "temperature", "own_weight"
"""Names of a solution's tensors, beside those of `Classes` and of the head."""
LOGLIK, RIGHT = "loglik", "right"
"""Names of the votes: sums over a site's deciding validation images."""
SLACK = 1e-4
"""Of sums that came, relative: they are rounded to float32."""
MEND = "the site must send what this version of fedapp computes, unchanged"


@dataclass(frozen=True, eq=False)
class Solution:
    """What the server makes of all sums, as it travels.

    classes: means and covariance. weight [C, d], bias [C]: the common head, calibrated. prior: [C],
    as of `mean_mix`. ridge: what is added to each eigenvalue. temperature: of all heads.
    own_weight: how many times more a site's own labelled images count.
    """

    classes: Classes
    weight: Tensor
    bias: Tensor
    prior: Tensor
    ridge: float
    temperature: float
    own_weight: float

    @property
    def common(self) -> Head:
        """The head that is everybody's."""
        return self.weight, self.bias

    def to_params(self) -> Params:
        """Return it as it travels."""
        numbers = {RIDGE: self.ridge, TEMPERATURE: self.temperature, OWN_WEIGHT: self.own_weight}
        return {
            **self.classes.to_params(),
            HEAD_WEIGHT: self.weight.float(),
            HEAD_BIAS: self.bias.float(),
            PRIOR: self.prior.float(),
            **{name: torch.tensor([value]) for name, value in numbers.items()},
        }

    @classmethod
    def from_params(cls, params: Params) -> "Solution":
        """Return what `to_params` wrote."""
        ridge, temperature, own = (float(params[n]) for n in (RIDGE, TEMPERATURE, OWN_WEIGHT))
        return cls(
            Classes.from_params(params),
            params[HEAD_WEIGHT],
            params[HEAD_BIAS],
            params[PRIOR].double(),
            ridge,
            temperature,
            own,
        )

    def head(self, features: Tensor, labels: Tensor, weight: float) -> Head:
        """Return a site's head: its labelled images, [n, d] and int64 [n], count more."""
        if not (weight and len(labels)):
            return self.common
        found = self.classes.with_own(features, labels, weight).head(self.ridge)
        return self._calibrated(*found)

    def alone(self, features: Tensor, labels: Tensor) -> Head:
        """Return the head from a site's own labelled images, n >= 1, and from nobody else's."""
        nobody = Classes.none(*self.weight.shape)
        return self._calibrated(*nobody.with_own(features, labels, 1.0).head(self.ridge))

    def _calibrated(self, weight: Tensor, bias: Tensor) -> Head:
        return (weight / self.temperature).float(), (bias / self.temperature).float()


def schemas_of(features: FeatureMap, classes: int) -> dict[str, Schema]:
    """Return the schemas of all that travels, by role."""
    size, each = features.size, torch.float32
    head: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
        HEAD_WEIGHT: ((classes, size), each),
        HEAD_BIAS: ((classes,), each),
    }
    grid, own = (len(RIDGES) * len(TEMPERATURES),), (len(OWN_WEIGHTS),)
    return {
        SUMS: sums_schema(classes, size),
        GRID: {name: ((len(RIDGES), *shape), kind) for name, (shape, kind) in head.items()},
        SOLUTION: {
            **classes_schema(classes, size),
            **head,
            PRIOR: ((classes,), each),
            **{name: ((1,), each) for name in (RIDGE, TEMPERATURE, OWN_WEIGHT)},
        },
        VOTES: {name: (grid, torch.float32) for name in (LOGLIK, RIGHT)},
        OWN_VOTES: {name: (own, torch.float32) for name in (LOGLIK, RIGHT)},
    }


# --- server ---------------------------------------------------------------------------------------


def solved(rnd: Round, own: bool) -> Generator[Sequence[Task], Sequence[Reply], ModelRef]:
    """Ask for the sums of all sites that have sent none, and solve where some came.

    own: whether a site's own images may count more. Returns the server's newest solution. Raises
    RunError where no site has a labelled image.
    """
    having = set(rnd.pool.having(SUMS))
    fresh = [site for site in rnd.sites if site not in having]
    if rnd.common_fixed or not fresh:
        return rnd.pool.common(SOLUTION)
    yield [rnd.task(site, COUNT) for site in fresh]
    senders = rnd.pool.having(SUMS)
    if not set(senders) - having:
        return rnd.pool.common(SOLUTION)
    every = (Sums.from_params(rnd.pool.read(rnd.pool.latest(k, SUMS))) for k in senders)
    labels: list[Tensor] = []

    def noted(sums: Sums) -> Sums:
        labels.append(sums.counts)
        return sums

    total = added(map(noted, every))
    if not total.counts.sum():
        raise RunError(
            "no site has a labelled image, and the closed form needs some: label images at one "
            "site at least"
        )
    classes, prior = Classes.of(total), mean_mix(torch.stack(labels))
    weights, biases = classes.heads(RIDGES)
    grid = rnd.pool.put({HEAD_WEIGHT: weights.float(), HEAD_BIAS: biases.float()}, GRID)
    replies = yield [rnd.task(site, VOTE, grid=[grid]) for site in senders]
    best = elected(rnd, replies, VOTES, DEFAULT_VOTE)
    ridge, temperature = divmod(best, len(TEMPERATURES))
    mean = float(classes.spectrum[0].mean())
    solution = Solution(
        classes,
        weights[ridge] / TEMPERATURES[temperature],
        biases[ridge] / TEMPERATURES[temperature],
        prior,
        max(RIDGES[ridge] * mean, 1e-9),
        TEMPERATURES[temperature],
        0.0,
    )
    newest = rnd.pool.put(solution.to_params(), SOLUTION)
    if own:
        replies = yield [rnd.task(site, WEIGH, solution=[newest]) for site in senders]
        weight = OWN_WEIGHTS[elected(rnd, replies, OWN_VOTES, 0)]
        newest = rnd.pool.put({**solution.to_params(), OWN_WEIGHT: torch.tensor([weight])}, SOLUTION)
    return newest


DEFAULT_VOTE = RIDGES.index(3.0) * len(TEMPERATURES) + TEMPERATURES.index(2.0)
"""Where no site has a validation image that may decide."""


def elected(rnd: Round, replies: Sequence[Reply], role: str, otherwise: int) -> int:
    """Return the number of the candidate under which all sites' labels are likeliest.

    Equal ones: the first. otherwise: where nobody could vote.
    """
    every = [rnd.pool.read(rnd.pool.latest(r.site, role))[LOGLIK].double() for r in replies]
    total = torch.stack(every).sum(0) if every else torch.zeros(1)
    return int(total.argmax()) if bool(total.any()) else otherwise


def check_closed(reply: Reply, arrived: Mapping[str, Arrived], facts: SiteFacts) -> None:
    """Refuse sums and votes that cannot be of the site's images. Raises ProtocolError."""
    if made := sorted({GRID, SOLUTION} & arrived.keys()):
        raise ProtocolError(f"sent a {made[0]}, which the server alone makes: {MEND}")
    for role in {VOTES, OWN_VOTES} & arrived.keys():
        _check_votes(arrived[role].whole, facts)
    if SUMS in arrived:
        _check_sums(Sums.from_params(arrived[SUMS].whole), facts)


def _check_votes(votes: Params, facts: SiteFacts) -> None:
    right, loglik = votes[RIGHT], votes[LOGLIK]
    if bool((right < 0).any()) or float(right.max()) > facts.val or bool((loglik > 0).any()):
        raise ProtocolError(
            f"votes: right answers must lie in [0, {facts.val}], the site's validation images, and "
            f"log-likelihoods must not be above 0: {MEND}"
        )


def _check_sums(sums: Sums, facts: SiteFacts) -> None:
    images = facts.labelled + facts.unlabelled
    if int(sums.counts.min()) < 0 or int(sums.counts.sum()) != facts.labelled:
        raise ProtocolError(
            f"sums: {COUNTS} adds up to {int(sums.counts.sum())}, the site has {facts.labelled} "
            f"labelled images: {MEND}"
        )
    if sums.images != images:
        raise ProtocolError(f"sums: of {sums.images:g} images, the site has {images}: {MEND}")
    rest = sums.total - sums.by_class.sum(0)
    lengths = torch.cat([sums.by_class, rest[None]]).norm(dim=1)
    most = torch.cat([sums.counts, torch.tensor([images - facts.labelled]).double()])
    if bool((lengths > most * (1 + SLACK) + SLACK).any()):
        raise ProtocolError(
            f"sums: a sum of features is longer than the number of its images allows, and features "
            f"have norm 1 at most: {MEND}"
        )
    trace = float(sums.second.trace())
    if not trace <= images * (1 + SLACK) + SLACK:
        raise ProtocolError(
            f"sums: the second moment of {images} images has trace {trace:g}, and features have "
            f"norm 1 at most: {MEND}"
        )
    slack = SLACK * (trace + SLACK) * torch.eye(len(rest), dtype=torch.float64)
    if int(torch.linalg.cholesky_ex(sums.unexplained + slack).info):
        raise ProtocolError(
            "sums: the second moment is not positive semi-definite once class sums are taken out; "
            f"no images have such sums: {MEND}"
        )


# --- site -----------------------------------------------------------------------------------------


def features_for(name: str, network: Network) -> FeatureMap:
    """Return the features of this name for what the network takes, on the network's device."""
    found = build_features(name, network.inputs, network=network)
    return found.to(network.head.weight.device)


@dataclass(frozen=True, eq=False)
class ClosedSite:
    """A site's side of the closed form. map: the features, ready for the site's device."""

    site: SiteContext
    map: FeatureMap

    @classmethod
    def of(cls, name: str, task: Task, site: SiteContext) -> "ClosedSite":
        """Return it for features of this name; those of a frozen network are w_0's."""
        site.load(task.own)
        return cls(site, features_for(name, site.model))

    def answer(self, task: Task) -> SiteReport:
        """Do a task of the closed form."""
        if task.action == COUNT:
            return SiteReport(contents={SUMS: self.sums().to_params()}, learned=True)
        if task.action == VOTE:
            return SiteReport(contents={VOTES: self.votes(task)})
        return SiteReport(contents={OWN_VOTES: self.own_votes(task)})

    def sums(self) -> Sums:
        """Return the sums over the site's training images."""
        data = self.site.data
        known, other = self.features(data.labelled), self.features(data.unlabelled)
        return Sums.of(known, data.labels, other, data.num_classes)

    def votes(self, task: Task) -> Params:
        """Count for every lambda and temperature of the grid."""
        grid = self.site.contents(task.models[GRID][0])
        heads = zip(grid[HEAD_WEIGHT], grid[HEAD_BIAS], strict=True)
        return self._counted(
            (weight / t, bias / t) for weight, bias in heads for t in TEMPERATURES
        )

    def own_votes(self, task: Task) -> Params:
        """Count for every weight of the site's own labelled images."""
        solution = self.solution(task)
        known, labels = self.known()
        return self._counted(solution.head(known, labels, weight) for weight in OWN_WEIGHTS)

    def solution(self, task: Task) -> Solution:
        """Return the solution that a task names."""
        return Solution.from_params(self.site.contents(task.models[SOLUTION][0]))

    def known(self) -> tuple[Tensor, Tensor]:
        """Return the features of the labelled images, [n, d], and the labels, on the CPU."""
        data = self.site.data
        return self.features(data.labelled).cpu(), data.labels.cpu()

    def mix(self, solution: Solution) -> Tensor:
        """Return the site's class mix [C], from the common answers to its unlabelled images too."""
        unlabelled = self.features(self.site.data.unlabelled)
        [answers] = answers_over(solution.common, [unlabelled])
        return site_mix(counts(self.site), answers, solution.prior)

    def mix_alone(self) -> Tensor:
        """Return the class mix [C] as the site's labels alone say it."""
        return class_mix(counts(self.site), torch.empty(0, self.site.data.num_classes))

    def features(self, images: Tensor) -> Tensor:
        """Return the features of images, float32 [n, d], on the site's device."""
        return mapped(self.map, images, self.site.normalise)

    def _counted(self, heads: Iterable[Head]) -> Params:
        chosen = deciding(self.site)
        labels = self.site.data.val_labels.cpu()[chosen]
        seen = self.features(self.site.data.val[chosen.to(self.site.device)]).cpu().double()
        mix = self.mix_alone().log()
        rows = torch.arange(len(labels))
        loglik, right = [], []
        for weight, bias in heads:
            logs = torch.log_softmax(seen @ weight.double().T + bias.double() + mix, dim=1)
            loglik.append(logs[rows, labels].sum())
            right.append((logs.argmax(1) == labels).sum())
        return {LOGLIK: torch.stack(loglik).float(), RIGHT: torch.stack(right).float()}
