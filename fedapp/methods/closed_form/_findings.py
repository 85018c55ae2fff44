"""The closed form of findings: one linear discriminant for each, over the same features.

A finding is two classes, without and with it, and its logit is the difference of theirs. Class
means are of the images in which it was read, the second moment is of all images, read or not, so
that it is sent once; `_discriminant.Classes` estimates which share of all images has it. Of one
finding that was read in every image, all this is the closed form of two classes. lambda and
temperature are voted on by finding. A site adds its own log odds, of the images in which it read
the finding and of what the federation's say to it. Unlabelled images count in the second moment
alone; nothing is guessed.
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedapp.data.parts import LABELLED, TEST, UNLABELLED, VAL
from fedapp.ground.errors import RunError
from fedapp.learn.findings import read_alone
from fedapp.learn.overfeatures import HEAD_BIAS, HEAD_WEIGHT, Form, Head, answers_over
from fedapp.learn.params import Params, Schema
from fedapp.learn.predictors import Predictor
from fedapp.learn.priors import mean_mix, site_mix
from fedapp.messages.protocol import Evaluation, ModelRef, Reply, Task
from fedapp.methods.base import Round, SiteReport
from fedapp.methods.closed_form._answers import deciding
from fedapp.methods.closed_form._calibration import FAR
from fedapp.methods.closed_form._contents import (
    COUNT,
    GRID,
    LEARN,
    LOGLIK,
    PRIOR,
    RIDGE,
    RIDGES,
    SOLUTION,
    SUMS,
    TEMPERATURE,
    TEMPERATURES,
    VOTE,
    VOTES,
    WORST,
    flat,
    owed,
)
from fedapp.methods.closed_form._discriminant import (
    COUNTS,
    TOTAL,
    Classes,
    Sums,
    added,
    pairs,
    sums_schema,
)
from fedapp.methods.closed_form._server import BEFORE, features_of, named, sent
from fedapp.methods.closed_form._site import ClosedSite


@dataclass(frozen=True, eq=False)
class FindingSolution:
    """What the server makes of all sums, as it travels; of each of F findings.

    weight [F, d], bias [F]: of logits, calibrated, at even odds. prior: [F, 2], as of `mean_mix`,
    without and with it. ridge, temperature: [F], as of `Solution`.
    """

    weight: Tensor
    bias: Tensor
    prior: Tensor
    ridge: Tensor
    temperature: Tensor

    def to_params(self) -> Params:
        """Return it as it travels: vectors, float32."""
        return {
            **flat(self.weight, self.bias),
            PRIOR: self.prior.float().flatten(),
            RIDGE: self.ridge.float(),
            TEMPERATURE: self.temperature.float(),
        }

    @classmethod
    def from_params(cls, params: Params) -> "FindingSolution":
        """Return what `to_params` wrote."""
        bias = params[HEAD_BIAS]
        return cls(
            params[HEAD_WEIGHT].view(len(bias), -1),
            bias,
            params[PRIOR].double().view(-1, 2),
            params[RIDGE].double(),
            params[TEMPERATURE].double(),
        )


def finding_schemas(plain: Mapping[str, Schema]) -> dict[str, Schema]:
    """Return the schemas of what travels in the place of that of F classes, `plain`, by role."""
    [size], [findings] = plain[SUMS][TOTAL][0], plain[SUMS][COUNTS][0]
    each, heads = torch.float32, len(RIDGES)
    head: Schema = {HEAD_WEIGHT: ((findings * size,), each), HEAD_BIAS: ((findings,), each)}
    numbers: Schema = {name: ((findings,), each) for name in (RIDGE, TEMPERATURE)}
    return {
        SUMS: sums_schema(2 * findings, size),
        GRID: {name: ((heads * shape[0],), of) for name, (shape, of) in head.items()},
        SOLUTION: {**head, PRIOR: ((2 * findings,), each), **numbers},
        VOTES: {LOGLIK: ((findings * heads * len(TEMPERATURES),), each)},
    }


def sums_of(known: Tensor, labels: Tensor, other: Tensor) -> Sums:
    """Return the sums over features [n, d] with labels [n, F], and over others [m, d].

    Counts [2F] and sums [2F, d] are of the images in which a finding was read, the rest of all.
    """
    every = Sums.of(known[:0], labels.new_empty(0), torch.cat([known, other]), 2 * labels.shape[1])
    _, there, image, of = read_alone(torch.zeros(labels.shape).numpy(), labels.cpu().numpy())
    place, rows = torch.from_numpy(2 * of + there), known.cpu().double()[torch.from_numpy(image)]
    return Sums(
        torch.bincount(place, minlength=len(every.counts)).double(),
        every.by_class.index_add_(0, place, rows),
        every.images,
        every.total,
        every.second,
    )


def logits(counts: Tensor, weights: Tensor, biases: Tensor) -> Head:
    """Return the heads of a finding from those of its two classes: [..., d] and [...].

    counts: [2]. weights: [..., 2, d]. biases: [..., 2]. Of one that no image shows, or that all do,
    in which it was read, the logit is -`FAR` or `FAR`; of one that was read in none it is 0.
    """
    if bool((counts > 0).all()):
        return weights[..., 1, :] - weights[..., 0, :], biases[..., 1] - biases[..., 0]
    only = FAR * (float(counts[1] > 0) - float(counts[0] > 0))
    return torch.zeros_like(weights[..., 0, :]), torch.full_like(biases[..., 0], only)


# --- server ---------------------------------------------------------------------------------------


def solved_findings(
    rnd: Round, name: str
) -> Generator[Sequence[Task], Sequence[Reply], dict[str, list[ModelRef]]]:
    """Ask for the sums of all sites that have sent none, and solve where some came.

    As `_server.solved` otherwise.
    """
    fresh = [site for site in rnd.everybody if not rnd.pool.has(site, SUMS)]
    if rnd.common_fixed or not fresh:
        return named(rnd)
    lent = yield from features_of(rnd, name)
    replies = yield [rnd.task(site, COUNT, 0, {}, **lent) for site in fresh]
    senders = [site for site in rnd.everybody if rnd.pool.has(site, SUMS)]
    if not senders:
        raise RunError("no site has sent sums, and the closed form is made of them: see above why")
    if not replies:
        return named(rnd)
    every = [Sums.from_params(rnd.pool.read(rnd.pool.latest(k, SUMS))) for k in senders]
    total, seen = added(every), torch.stack([one.counts.view(-1, 2) for one in every])
    if not total.counts.sum():
        raise RunError(
            "no site has read a finding, and the closed form needs some: label images at one site "
            "at least"
        )
    found = [_heads(one) for one in pairs(total)]
    weights, biases, levels = (torch.stack(of, 1) for of in zip(*found, strict=True))
    grid = rnd.pool.put(flat(weights, biases), GRID)
    replies = yield [rnd.task(site, VOTE, 0, {}, grid=[grid], **lent) for site in rnd.sites]
    votes = [one[LOGLIK].double() for _, one in sent(rnd, replies, VOTES)]
    likely = BEFORE + sum(votes, torch.zeros(len(found) * len(BEFORE))).view(len(found), -1)
    best = likely.argmax(1)
    ridge, place = best // len(TEMPERATURES), best % len(TEMPERATURES)
    each, t = torch.arange(len(found)), torch.tensor(TEMPERATURES)[place].double()
    solution = FindingSolution(
        weights[ridge, each] / t[:, None],
        biases[ridge, each] / t,
        torch.stack([mean_mix(one) if one.any() else torch.ones(2) for one in seen.unbind(1)]),
        levels[ridge, each],
        t,
    )
    rnd.pool.put(solution.to_params(), SOLUTION)
    return named(rnd)


def _heads(sums: Sums) -> tuple[Tensor, Tensor, Tensor]:
    """Return a finding's heads [L, d] and [L] for each of `RIDGES`, and what is added [L]."""
    count, size = len(RIDGES), len(sums.total)
    if not sums.counts.any():  # read in no image
        zero = torch.zeros(count, dtype=torch.float64)
        return zero[:, None].expand(-1, size), zero, zero + 1
    classes = Classes.of(sums)
    levels = torch.tensor([classes.level(ridge) for ridge in RIDGES], dtype=torch.float64)
    return (*logits(sums.counts, *classes.heads(RIDGES)), levels)


# --- site -----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class FindingSite:
    """A site's side of it."""

    closed: ClosedSite

    def answer(self, task: Task) -> SiteReport:
        """Do a task of the closed form."""
        if task.action == LEARN:
            return self.closed.answer(task)
        found = self.sums().to_params() if task.action == COUNT else self.votes(task)
        return SiteReport(contents={owed(task): found})

    def sums(self) -> Sums:
        """Return the sums over the site's training images."""
        features = self.closed.features
        return sums_of(features(LABELLED), self.closed.site.data.labels, features(UNLABELLED))

    def votes(self, task: Task) -> Params:
        """Return how likely each lambda and temperature makes each finding of validation images."""
        site = self.closed.site
        chosen = deciding(site)
        labels = site.data.val_labels.cpu()[chosen]
        seen = self.closed.features(VAL).cpu()[chosen].double()
        grid, odds = site.contents(task.models[GRID][0]), self.odds(torch.zeros(2))
        biases = grid[HEAD_BIAS].view(len(RIDGES), -1).double()
        weights = grid[HEAD_WEIGHT].view(*biases.shape, -1).double()
        z = torch.einsum("nd,lfd->nlf", seen, weights) + biases
        heated = z[..., None] / torch.tensor(TEMPERATURES).double() + odds[:, None]
        there = (2 * labels - 1)[:, None, :, None]
        loglik = F.logsigmoid(there * heated).clamp_min(WORST) * (labels >= 0)[:, None, :, None]
        return {LOGLIK: loglik.sum(0).transpose(0, 1).flatten().float()}

    def odds(self, prior: Tensor) -> Tensor:
        """Return the log odds of each finding here, [F]; prior: [F, 2], or [2] of all alike.

        Without labels of it and without a prior they are even.
        """
        data = self.closed.site.data
        labels = data.labels.cpu()
        counts = torch.stack([(labels == 0).sum(0), (labels == 1).sum(0)], 1)
        if not self.closed.own_mix:
            return torch.zeros(len(counts), dtype=torch.float64)
        none = torch.empty(0, 2)
        rows = zip(counts, prior.expand(len(counts), 2), strict=True)
        mixes = torch.stack([site_mix(own, none, of) for own, of in rows])
        return mixes[:, 1].log() - mixes[:, 0].log()

    def every(self, task: Task) -> dict[str, Head]:
        """Return the head of each answer that the site has: the common one, and that of its own."""
        site = self.closed.site
        solution = FindingSolution.from_params(site.contents(task.models[SOLUTION][0]))
        odds = self.odds(solution.prior)
        found = {"common": (solution.weight, (solution.bias + odds).float())}
        if len(site.data.labels):
            weight, bias = self._alone(solution)
            found["alone"] = weight.float(), (bias + self.odds(torch.zeros(2))).float()
        return found

    def _alone(self, solution: FindingSolution) -> Head:
        """Return the head from the site's own labelled images, without its odds."""
        features, labels = self.closed.features(LABELLED).cpu(), self.closed.site.data.labels.cpu()
        heads = []
        for f, known in enumerate(labels.T):
            read = known >= 0
            own = Classes.none(2, features.shape[1]).with_own(features[read], known[read], 1.0)
            weight, bias = logits(own.counts, *own.head(float(solution.ridge[f])))
            heads.append((weight / solution.temperature[f], bias / solution.temperature[f]))
        return torch.stack([w for w, _ in heads]), torch.stack([b for _, b in heads])

    def measured(self, task: Task) -> dict[str, Evaluation]:
        """Measure each answer on both parts; what is used is the common one."""
        sets, results = [self.closed.features(part) for part in (VAL, TEST)], {}
        for name, head in self.every(task).items():
            for part, said in zip((VAL, TEST), answers_over(head, sets, finds=True), strict=True):
                labels = self.closed.site.labelled_part(part)[1]
                results[f"{part}_{name}"] = self.closed.site.evaluation(said, labels)
        return results | {part: results[f"{part}_common"] for part in (VAL, TEST)}

    def predictor(self, answer: str, task: Task) -> Predictor:
        """Return what gives an answer of `every`."""
        form = Form(self.closed.name)
        head = self.every(task)["alone" if answer == "alone" else "common"]
        return Predictor(form.params(head, self.closed.map), form=form)
