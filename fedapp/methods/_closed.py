"""The closed form, as methods use it: which sums a site sends, and what the server makes of them.

All in one round. Features that are learned come first, by sums of patches. Sites send sums over
features of their images (`learn.discriminant`). The server adds them and solves, for a grid of
lambda; each site counts how likely its validation labels are under each, for a grid of
temperatures, and the server takes the best of both. Then sites count the same for their own
labelled images counting 0 to 100 times more. What follows is the solution: class means, covariance,
and with them the common head.
"""

import math
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Final

import torch
from pydantic import AfterValidator
from torch import Tensor

from fedapp.data.parts import LABELLED, TEST, UNLABELLED, VAL
from fedapp.ground.errors import ConfigError, ProtocolError, RunError
from fedapp.learn.calibration import bounded
from fedapp.learn.discriminant import (
    COUNTS,
    Classes,
    Sums,
    added,
    classes_schema,
    sums_schema,
)
from fedapp.learn.features import FeatureMap, LearnedFeatures, build_features, feature_class
from fedapp.learn.metrics import evaluation
from fedapp.learn.networks.base import Network, NetworkSettings
from fedapp.learn.overfeatures import HEAD_BIAS, HEAD_WEIGHT, Form, Head, answers_over, mapped
from fedapp.learn.params import Params, Schema, schema_of
from fedapp.learn.predictors import Predictor
from fedapp.learn.priors import class_mix, mean_mix, site_mix, weighted
from fedapp.learn.uncertainty import SCORING_BATCH
from fedapp.messages.protocol import (
    COUNT,
    SERVER_SITE,
    Evaluation,
    ModelRef,
    Reply,
    SiteFacts,
    Task,
)
from fedapp.methods._answers import counts, deciding
from fedapp.methods.base import Arrived, Round, SiteContext, SiteReport

FILTERS, FIRST, NEXT = "filters", "patches", "clusters"
"""Roles of features that are learned: what the server makes, and sites' sums for it.

Of a frozen network's features the first is w_0 itself: no bytes travel for it that do not anyway.
"""
SUMS, GRID, SOLUTION, VOTES, OWN_VOTES = "sums", "grid", "solution", "votes", "own_votes"
"""Roles: what sites send (sums and votes), and what the server makes."""
LEARN, VOTE, WEIGH = "learn", "vote", "weigh"
ACTIONS = (LEARN, COUNT, VOTE, WEIGH)
"""Of a site's tasks, in their order."""
_OWED = {COUNT: SUMS, VOTE: VOTES, WEIGH: OWN_VOTES}
"""What each asks for, by role; of `LEARN` that depends on the step."""
STEP = "step"
"""Number in a task: which exchange of features that are learned."""
MOST_KEPT = 2**22
"""Numbers of a site's features that are kept from task to task; more are computed anew."""
RIDGES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
"""lambda, in mean eigenvalues of the covariance within classes."""
TEMPERATURES = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
"""What logits are divided by."""
LIKELY_RIDGE, LIKELY_TEMPERATURE = 1.0, 2.0
"""lambda and temperature where no validation image says anything."""
LEAD = 2.0
"""By how much a weight of own images must be likelier than none: e^2 times, whatever the images."""
OWN_WEIGHTS = (0.0, 3.0, 10.0, 30.0, 100.0)
"""How many times more a site's own labelled images count."""
PRIOR, RIDGE, TEMPERATURE, OWN_WEIGHT = "prior", "ridge", "temperature", "own_weight"
"""Names of a solution's tensors, beside those of `Classes` and of the head."""
LOGLIK, RIGHT = "loglik", "right"
"""Names of the votes: sums over a site's deciding validation images."""
SLACK = 1e-4
"""Of sums that came, relative: they are rounded to float32."""
WORST = -20.0
"""Least log-likelihood of a validation image: none decides by itself. Classes that nobody has a
labelled image of always have it, and so decide nothing."""
FROZEN = "network"
"""The name of the features of a frozen network."""
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
            **_flat(self.weight, self.bias),
            PRIOR: self.prior.float(),
            **{name: torch.tensor([value]) for name, value in numbers.items()},
        }

    @classmethod
    def from_params(cls, params: Params) -> "Solution":
        """Return what `to_params` wrote."""
        ridge, temperature, own = (float(params[n]) for n in (RIDGE, TEMPERATURE, OWN_WEIGHT))
        return cls(
            Classes.from_params(params),
            params[HEAD_WEIGHT].view(len(params[HEAD_BIAS]), -1),
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


def _flat(weight: Tensor, bias: Tensor) -> Params:
    """Return heads as they travel: float32, as vectors, like `Sums.to_params`."""
    return {HEAD_WEIGHT: weight.float().flatten(), HEAD_BIAS: bias.float().flatten()}


def closed_schemas(name: str, network: Network) -> dict[str, Schema]:
    """Return the schemas of all that travels, by role, for features of this name."""
    features, classes = features_for(name, network), network.head.out_features
    size, each, heads = features.size, torch.float32, len(RIDGES)
    grid, own = (len(RIDGES) * len(TEMPERATURES),), (len(OWN_WEIGHTS),)
    found: dict[str, Schema] = {
        SUMS: sums_schema(classes, size),
        GRID: {
            HEAD_WEIGHT: ((heads * classes * size,), each),
            HEAD_BIAS: ((heads * classes,), each),
        },
        SOLUTION: {
            **classes_schema(classes, size),
            HEAD_WEIGHT: ((classes * size,), each),
            HEAD_BIAS: ((classes,), each),
            PRIOR: ((classes,), each),
            **{name: ((1,), each) for name in (RIDGE, TEMPERATURE, OWN_WEIGHT)},
        },
        VOTES: {name: (grid, torch.float32) for name in (LOGLIK, RIGHT)},
        OWN_VOTES: {name: (own, torch.float32) for name in (LOGLIK, RIGHT)},
    }
    if isinstance(features, LearnedFeatures):
        found |= {FIRST: features.sum_schema(0), NEXT: features.sum_schema(1)}
        found[FILTERS] = schema_of(features.state_dict())
    if name == FROZEN:
        found[FILTERS] = schema_of(network.state_dict())
    return found


NO_FEATURES: Final = "none"
"""In place of a name of features: there is no closed form."""


def _known(name: str) -> str:
    try:
        feature_class(name)
    except ConfigError as error:  # as a value's fault, so that the setting is named
        raise ValueError(str(error)) from error
    return name


FeatureName = Annotated[str, AfterValidator(_known)]
"""Type of a setting that names features."""
FeatureNameOrNone = Annotated[
    str, AfterValidator(lambda name: name if name == NO_FEATURES else _known(name))
]
"""The same, or `NO_FEATURES`."""


def unfit_features(name: str, model: NetworkSettings) -> str:
    """Return why these features cannot be had of a network, and the remedy; empty: they can."""
    weights = getattr(model, "weights_sha256", "")
    if name != FROZEN or ":" in model.name or weights:
        return ""
    return "the features network need a trained network: set model.weights, or take hog"


# --- server ---------------------------------------------------------------------------------------


def solved(
    rnd: Round, name: str, own: bool
) -> Generator[Sequence[Task], Sequence[Reply], dict[str, list[ModelRef]]]:
    """Ask for the sums of all sites that have sent none, and solve where some came.

    name: of the features. own: whether a site's own images may count more. Returns what tasks name:
    the server's newest solution, and the filters, where these are learned. Raises RunError where no
    site has sent sums, or none has a labelled image.
    """
    fresh = [site for site in rnd.everybody if not rnd.pool.has(site, SUMS)]
    if rnd.common_fixed or not fresh:
        return _named(rnd)
    if not rnd.pool.has(SERVER_SITE, FILTERS):
        yield from _learned(rnd, name)
    lent = {FILTERS: [rnd.pool.common(FILTERS)]} if rnd.pool.has(SERVER_SITE, FILTERS) else {}
    replies = yield [rnd.task(site, COUNT, 0, {}, **lent) for site in fresh]
    senders = [site for site in rnd.everybody if rnd.pool.has(site, SUMS)]
    if not senders:
        raise RunError("no site has sent sums, and the closed form is made of them: see above why")
    if not replies:
        return _named(rnd)
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
    classes = Classes.of(total)
    weights, biases = classes.heads(RIDGES)
    grid = rnd.pool.put(_flat(weights, biases), GRID)
    replies = yield [rnd.task(site, VOTE, 0, {}, grid=[grid], **lent) for site in rnd.sites]
    ridge, place = divmod(elected(rnd, replies, VOTES, BEFORE), len(TEMPERATURES))
    temperature = TEMPERATURES[place]
    solution = Solution(
        classes,
        weights[ridge] / temperature,
        biases[ridge] / temperature,
        mean_mix(torch.stack(labels)),
        classes.level(RIDGES[ridge]),
        temperature,
        0.0,
    )
    newest = rnd.pool.put(solution.to_params(), SOLUTION)
    if own:
        replies = yield [
            rnd.task(site, WEIGH, 0, {}, solution=[newest], **lent) for site in rnd.sites
        ]
        weight = OWN_WEIGHTS[elected(rnd, replies, OWN_VOTES, NONE_FIRST)]
        rnd.pool.put({**solution.to_params(), OWN_WEIGHT: torch.tensor([weight])}, SOLUTION)
    return _named(rnd)


def _named(rnd: Round) -> dict[str, list[ModelRef]]:
    made = (SOLUTION, FILTERS)
    return {role: [rnd.pool.common(role)] for role in made if rnd.pool.has(SERVER_SITE, role)}


def _learned(rnd: Round, name: str) -> Generator[Sequence[Task], Sequence[Reply], None]:
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
            images = facts.labelled + facts.unlabelled + facts.bagged
            if why := features.impossible(step, sums, images):
                rnd.say(f"{facts.called}: its {role} are left out: {why}: {MEND}")
            else:
                total = {n: of + total[n] if total else of for n, of in sums.items()}
        if total:
            features.learned(step, total)
    rnd.pool.put(features.state_dict(), FILTERS)


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
NONE_FIRST = torch.tensor([0.0] + [-LEAD] * (len(OWN_WEIGHTS) - 1), dtype=torch.float64)
"""The same for each weight of a site's own images."""


def elected(rnd: Round, replies: Sequence[Reply], role: str, before: Tensor) -> int:
    """Return the number of the candidate that is likeliest, equal ones: the first.

    before: [N], what is added to each one's log-likelihood of all sites' labels: where few images
    can vote, or all candidates answer them, it decides.
    """
    every = [votes[LOGLIK].double() for _, votes in sent(rnd, replies, role)]
    return int(torch.stack([before, *every]).sum(0).argmax())


def sent(rnd: Round, replies: Sequence[Reply], role: str) -> Iterator[tuple[int, Params]]:
    """Yield what was sent of a role, with the site; what did not come is not missed."""
    for reply in replies:
        if role in reply.contents:
            yield reply.site, rnd.pool.read(rnd.pool.latest(reply.site, role))


def owed(task: Task) -> str:
    """Return the role that a task of the closed form asks for; empty: it is another task."""
    if task.action == LEARN:
        return NEXT if task.numbers[STEP] else FIRST
    return _OWED.get(task.action, "")


def check_owed(task: Task, reply: Reply, also: Mapping[str, str] = MappingProxyType({})) -> None:
    """Refuse an answer that lacks what was asked for, or holds more. Raises ProtocolError.

    also: the role that is owed for each action of the method's own.
    """
    role = owed(task) or also.get(task.action, "")
    if role and reply.contents.keys() != {role}:
        came = ", ".join(sorted(reply.contents)) or "nothing"
        raise ProtocolError(f"asked for its {role}, it sent {came}: {MEND}")


def check_closed(reply: Reply, arrived: Mapping[str, Arrived], facts: SiteFacts) -> None:
    """Refuse sums and votes that cannot be of the site's images. Raises ProtocolError."""
    if made := sorted({FILTERS, GRID, SOLUTION} & arrived.keys()):
        raise ProtocolError(f"sent a {made[0]}, which the server alone makes: {MEND}")
    for role in {VOTES, OWN_VOTES} & arrived.keys():
        _check_votes(arrived[role].whole, facts)
    if SUMS in arrived:
        _check_sums(Sums.from_params(arrived[SUMS].whole), facts)


def _check_votes(votes: Params, facts: SiteFacts) -> None:
    right, loglik = votes[RIGHT], votes[LOGLIK]
    least = WORST * facts.val * (1 + SLACK)
    if bool((right < 0).any() or (right > facts.val).any()) or bool(
        (loglik > 0).any() or (loglik < least).any()
    ):
        raise ProtocolError(
            f"votes: of the site's {facts.val} validation images, right answers must lie in "
            f"[0, {facts.val}] and log-likelihoods in [{WORST * facts.val:g}, 0]: {MEND}"
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
    most, of_group = sums.by_group
    # The last is a difference of rounded sums.
    rounding = SLACK + 1e-6 * images
    if bool((of_group.norm(dim=1) > most * (1 + SLACK) + rounding).any()):
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
    slack = SLACK * (trace + SLACK) * torch.eye(len(sums.total), dtype=torch.float64)
    if int(torch.linalg.cholesky_ex(sums.unexplained + slack).info):
        raise ProtocolError(
            "sums: the second moment is not positive semi-definite once class sums are taken out; "
            f"no images have such sums: {MEND}"
        )


# --- site -----------------------------------------------------------------------------------------


def features_for(name: str, network: Network) -> FeatureMap:
    """Return the features of this name for what a network takes, on the network's device.

    A frozen network's are those of a copy: the network itself goes on to learn.
    """
    copied = deepcopy(network) if name == FROZEN else None
    return build_features(name, network.inputs, network=copied).to(network.head.weight.device)


def lasting(task: Task) -> tuple[ModelRef, ...]:
    """Return the contents of a task that the closed form's later tasks name again."""
    return tuple(ref for role in (SOLUTION, FILTERS) for ref in task.models.get(role, ()))


_READ: dict[str, Solution] = {}
"""The solution that this process read last, by digest: all its sites ask for the same."""


@dataclass(frozen=True, eq=False)
class ClosedSite:
    """A site's side of the closed form.

    name: of the features. map: these, ready for the site's device. made: what they depend on.
    """

    site: SiteContext
    name: str
    map: FeatureMap
    made: str

    @classmethod
    def of(cls, name: str, task: Task, site: SiteContext) -> "ClosedSite":
        """Return it for features of this name, with what the task names of them."""
        filters = task.models.get(FILTERS, ())
        if name == FROZEN:
            site.load(filters[0])  # and not the site's own model, which learns
        features = features_for(name, site.model)
        if filters and name != FROZEN:
            features.load_state_dict(site.contents(filters[0]))
        return cls(site, name, features, name + "".join(ref.digest for ref in filters))

    def answer(self, task: Task) -> SiteReport:
        """Do a task of the closed form."""
        if task.action == LEARN:
            found = self.patches(int(task.numbers[STEP]))
        elif task.action == COUNT:
            found = self.sums().to_params()
        else:
            found = self.votes(task) if task.action == VOTE else self.own_votes(task)
        return SiteReport(contents={owed(task): found})

    def patches(self, step: int) -> Params:
        """Return the sums of patches of all the site's training images."""
        assert isinstance(self.map, LearnedFeatures)
        found: Params = {}
        for images in self.site.data.training:
            for batch in images.split(SCORING_BATCH):
                more = self.map.sums(step, self.site.normalise(batch))
                found = {name: of + found.get(name, 0) for name, of in more.items()}
        return {name: of.cpu() for name, of in found.items()}

    def sums(self) -> Sums:
        """Return the sums over the site's training images."""
        data = self.site.data
        known, other = self.features(LABELLED), self.features(UNLABELLED)
        return Sums.of(known, data.labels, other, data.num_classes)

    def votes(self, task: Task) -> Params:
        """Count for every lambda and temperature of the grid."""
        grid = self.site.contents(task.models[GRID][0])
        biases = grid[HEAD_BIAS].view(len(RIDGES), -1)
        heads = zip(grid[HEAD_WEIGHT].view(*biases.shape, -1), biases, strict=True)
        return self._counted((weight / t, bias / t) for weight, bias in heads for t in TEMPERATURES)

    def own_votes(self, task: Task) -> Params:
        """Count for every weight of the site's own labelled images."""
        solution = self.solution(task)
        known, labels = self.known()
        return self._counted(solution.head(known, labels, weight) for weight in OWN_WEIGHTS)

    def solution(self, task: Task) -> Solution:
        """Return the solution that a task names."""
        ref = task.models[SOLUTION][0]
        if ref.digest not in _READ:
            _READ.clear()
            _READ[ref.digest] = Solution.from_params(self.site.contents(ref))
        return _READ[ref.digest]

    def known(self) -> tuple[Tensor, Tensor]:
        """Return the features of the labelled images, [n, d], and the labels, on the CPU."""
        return self.features(LABELLED).cpu(), self.site.data.labels.cpu()

    def head(self, task: Task) -> Head:
        """Return the site's own head, its labelled images counting more as the solution says.

        It is solved once for a solution.
        """
        kept, of = self.site.features, self.made + task.models[SOLUTION][0].digest
        if (of, HEAD_WEIGHT) not in kept:
            solution = self.solution(task)
            kept[of, HEAD_WEIGHT], kept[of, HEAD_BIAS] = solution.head(
                *self.known(), solution.own_weight
            )
        return kept[of, HEAD_WEIGHT], kept[of, HEAD_BIAS]

    def mix(self, solution: Solution) -> Tensor:
        """Return the site's class mix [C], from the common answers to its unlabelled images too."""
        [answers] = answers_over(solution.common, [self.features(UNLABELLED)])
        return site_mix(counts(self.site), answers, solution.prior)

    def mix_alone(self) -> Tensor:
        """Return the class mix [C] as the site's labels alone say it."""
        return class_mix(counts(self.site), torch.empty(0, self.site.data.num_classes))

    def every(self, task: Task) -> dict[str, tuple[Head, Tensor]]:
        """Return the head of each answer that the site has, and the class mix it is times.

        "alone": from the site's own labelled images; absent at a site without any.
        """
        solution, labels = self.solution(task), self.site.data.labels
        mix = self.mix(solution)
        found = {"common": (solution.common, mix), "tuned": (self.head(task), mix)}
        if len(labels):
            found["alone"] = solution.alone(*self.known()), self.mix_alone()
        return found

    def measured(self, task: Task, names: Mapping[str, str]) -> dict[str, Evaluation]:
        """Measure answers of `every` on both parts; names: under which name each goes."""
        found, results = self.every(task), {}
        sets = [self.features(part) for part in (VAL, TEST)]
        for answer, name in names.items():
            if answer not in found:
                continue
            head, mix = found[answer]
            for part, plain in zip((VAL, TEST), answers_over(head, sets), strict=True):
                labels = self.site.labelled_part(part)[1]
                results[f"{part}_{name}"] = evaluation(weighted(plain, mix).float(), labels)
        return results

    def predictor(self, answer: str, task: Task) -> Predictor:
        """Return what gives an answer of `every`."""
        head, mix = self.every(task)[answer]
        form = Form(self.name)
        return Predictor(form.params(head, self.map), 1.0, mix, form=form)

    def features(self, part: str) -> Tensor:
        """Return the features of a part's images, float32 [n, d], on the site's device."""
        kept, key = self.site.features, (self.made, part)
        if key in kept:
            return kept[key]
        found = mapped(self.map, self.site.data.parts[part].inputs, self.site.normalise)
        if found.numel() + sum(one.numel() for one in kept.values()) <= MOST_KEPT:
            kept[key] = found
        return found

    def _counted(self, heads: Iterable[Head]) -> Params:
        chosen = deciding(self.site)
        labels = self.site.data.val_labels.cpu()[chosen]
        seen = self.features(VAL).cpu()[chosen].double()
        mix, rows = self.mix_alone().log(), torch.arange(len(labels))
        loglik, right = [], []
        for weight, bias in heads:
            logits = bounded(seen @ weight.double().T + bias.double())
            logs = torch.log_softmax(logits + mix, dim=1)
            loglik.append(logs[rows, labels].clamp_min(WORST).sum())
            right.append((logs.argmax(1) == labels).sum())
        return {LOGLIK: torch.stack(loglik).float(), RIGHT: torch.stack(right).float()}
