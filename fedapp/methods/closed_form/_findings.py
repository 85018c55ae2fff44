"""The closed form of findings: one linear discriminant for each, over the same features.

A finding is two classes, without and with it, and its logit is the difference of their logits.
Class means are over the images in which the finding was read. The second moment is over these and
those in which it was not read, so that it is sent once; `_discriminant.Classes` estimates the share
of them that have the finding. For a single finding that was read in every image this is the closed
form of two classes. Sites vote on lambda and temperature for each finding separately. A site
multiplies its answers by its own mix of each finding: from the images in which it read it, from the
federation's mean, and from EM over its unlabelled images. It guesses the findings of unlabelled
images for the class means as it does for classes. Giving own images more weight brought no gain for
findings (docs/results/findings.md).
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from fedapp.core.errors import RunError
from fedapp.data.sites import LABELLED, UNLABELLED, VAL
from fedapp.learn.class_priors import mean_mix, mean_mix_of_sums, reweighted, same_class_pair_sums
from fedapp.learn.linear_head import HEAD_BIAS, HEAD_WEIGHT, Head
from fedapp.learn.params import Params, Schema
from fedapp.methods.base import Phases, Round, SiteContext, SiteReport
from fedapp.methods.closed_form._contents import (
    GRID,
    GUESSED,
    GUESSES,
    LOGLIK,
    MIN_LOGLIK,
    MIX_METRICS,
    OF_OTHERS,
    PRIOR,
    RIDGE,
    RIDGES,
    ROUNDED,
    SOLUTION,
    SUM_ROLES,
    SUMS,
    TEMPERATURE,
    TEMPERATURES,
    VOTE,
    VOTERS,
    VOTES,
    Votes,
    flat_head,
    form_of,
    grid_heads,
    grid_of,
    grid_schema,
    role_asked_for,
)
from fedapp.methods.closed_form._discriminant import (
    COUNTS,
    TOTAL,
    UNSEEN_CLASS_GAP,
    Classes,
    Guesses,
    Sums,
    by_finding,
    guesses_schema,
    sum_of,
    sums_schema,
)
from fedapp.methods.closed_form._server import (
    Refinements,
    TaskModels,
    defaults_of,
    gather_sums,
    log_prior,
    refine_by_guesses,
    server_contents,
    sums_sent,
    votes_of,
    with_others,
)
from fedapp.methods.closed_form._server import solve as solved_classes
from fedapp.methods.closed_form._site import ClosedSite, deciding_images, label_counts
from fedapp.protocol.messages import ModelRef, Task

MIX_SUMS = "alike"
"""Name of the tensor with `same_class_pair_sums` of each finding, sent with sums that are
masked."""


@dataclass(frozen=True, eq=False)
class FindingSolution:
    """What the server makes of all sums, for each of F findings.

    weight [F, d], bias [F]: of logits, calibrated, at even odds. prior: [F, 2], without and with
    it, as of `mean_mix`. ridge, temperature: [F]. guessed: as in `Solution`.
    """

    weight: Tensor
    bias: Tensor
    prior: Tensor
    ridge: Tensor
    temperature: Tensor
    guessed: float = 0.0

    def to_params(self) -> Params:
        """Return the tensors that travel: float32 vectors."""
        return {
            **flat_head(self.weight, self.bias),
            PRIOR: self.prior.float().flatten(),
            RIDGE: self.ridge.float(),
            TEMPERATURE: self.temperature.float(),
            GUESSED: torch.tensor([self.guessed]),
        }

    @classmethod
    def from_params(cls, params: Params) -> "FindingSolution":
        """Return the solution that `to_params` wrote."""
        bias = params[HEAD_BIAS]
        return cls(
            params[HEAD_WEIGHT].view(len(bias), -1),
            bias,
            params[PRIOR].double().view(-1, 2),
            params[RIDGE].double(),
            params[TEMPERATURE].double(),
            float(params[GUESSED]),
        )

    @property
    def common(self) -> Head:
        """The heads that all sites share."""
        return self.weight, self.bias

    def alone(self, features: Tensor, labels: Tensor) -> Head:
        """Return the heads made only of a site's own labelled images, [n, d] and [n, F], n >= 1."""
        heads = []
        for ridge, t, known in zip(self.ridge, self.temperature, labels.T, strict=True):
            read = known >= 0
            own = Classes.none(2, features.shape[1]).with_own(features[read], known[read], 1.0)
            heads.append([one / t for one in logits(own.counts, *own.head(float(ridge)))])
        weights, biases = zip(*heads, strict=True)
        return torch.stack(weights).float(), torch.stack(biases).float()


def finding_schemas(plain: Mapping[str, Schema]) -> dict[str, Schema]:
    """Return the schemas for findings, which replace those of F classes, `plain`; by role."""
    [size], [findings] = plain[SUMS][TOTAL][0], plain[SUMS][COUNTS][0]
    each, heads, rounded = torch.float32, len(RIDGES), ROUNDED in plain
    roles = [role for role in plain.keys() & SUM_ROLES if role not in OF_OTHERS]
    head: Schema = {HEAD_WEIGHT: ((findings * size,), each), HEAD_BIAS: ((findings,), each)}
    numbers: Schema = {name: ((findings,), each) for name in (RIDGE, TEMPERATURE)}
    mix: Schema = {MIX_SUMS: ((findings * len(MIX_METRICS),), torch.float64)}
    return {
        **{r: {**sums_schema(2 * findings, size, **form_of(r)), **mix} for r in roles},
        GRID: grid_schema(findings, size, rounded),
        GUESSES: guesses_schema(2 * findings, size),
        SOLUTION: {**head, PRIOR: ((2 * findings,), each), **numbers, GUESSED: ((1,), each)},
        VOTES: {LOGLIK: ((findings * heads * len(TEMPERATURES),), each), VOTERS: ((1,), each)},
    }


def sums_of(known: Tensor, labels: Tensor) -> Sums:
    """Return the sums over features [n, d] with labels [n, F].

    Counts [2F] and sums [2F, d] are over the images in which a finding was read, the rest over all.
    """
    every = Sums.of(known, labels.new_full((len(known),), -1), 2 * labels.shape[1])
    image, of = (labels.cpu() >= 0).nonzero(as_tuple=True)
    place, rows = 2 * of + labels.cpu()[image, of], known.cpu().double()[image]
    return Sums(
        torch.bincount(place, minlength=len(every.counts)).double(),
        every.by_class.index_add_(0, place, rows),
        every.images,
        every.total,
        every.second,
    )


def logits(counts: Tensor, weights: Tensor, biases: Tensor) -> Head:
    """Return the heads of a finding from the heads of its two classes: [..., d] and [...].

    counts: [2]. weights: [..., 2, d]. biases: [..., 2]. If none, or all, of the images in which it
    was read show the finding, the logit is -`UNSEEN_CLASS_GAP`, or `UNSEEN_CLASS_GAP`; if it was
    read in no image, 0.
    """
    if bool((counts > 0).all()):
        return weights[..., 1, :] - weights[..., 0, :], biases[..., 1] - biases[..., 0]
    only = UNSEEN_CLASS_GAP * (float(counts[1] > 0) - float(counts[0] > 0))
    return torch.zeros_like(weights[..., 0, :]), torch.full_like(biases[..., 0], only)


# --- server ---------------------------------------------------------------------------------------


def solve(rnd: Round, name: str, then: Refinements) -> Phases[dict[str, list[ModelRef]]]:
    """Do the same as `_server.solve` for findings, of whose refinements only guesses follow."""
    if not rnd.finds:
        return (yield from solved_classes(rnd, name, then))
    lent, senders, replies = yield from gather_sums(rnd, name, then.guesses)
    if not replies:
        return server_contents(rnd)
    read_in, alike = [], []

    def sums_of_site(ref: ModelRef) -> Sums:
        row = rnd.pool.read(ref)
        sums = Sums.from_params(row)
        read_in.append(sums.counts.view(-1, 2))
        alike.append(row[MIX_SUMS])
        return sums

    total = sum_of(map(sums_of_site, sums_sent(rnd, name, senders)))
    seen = torch.stack(read_in)
    if not total.counts.sum():
        raise RunError(
            "no site has read a finding, and the closed form needs some: label images at one site "
            "at least"
        )
    if rnd.masked:
        both = zip(seen[0], alike[0].view(-1, len(MIX_METRICS)).tolist(), strict=True)
        priors = [mean_mix_of_sums(*one) for one in both]
    else:
        priors = [mean_mix(one) if one.any() else torch.ones(2) for one in seen.unbind(1)]
    prior = torch.stack(priors)
    features = defaults_of(rnd, name)
    read = total.counts.view(-1, 2)
    usual, size = features.default_temperature, len(total.total)
    before = torch.stack([log_prior(usual, counts, size) for counts in read])
    candidates = before, features.rounded
    known = (read > 0).all(1).repeat_interleave(2)
    more, guessing = yield from with_others(rnd, name, total, (senders, lent), then.guesses)

    def again(guesses: Guesses, last: FindingSolution) -> Phases[tuple[FindingSolution, Votes]]:
        # Of a finding of which the labels say one thing alone nothing can be guessed.
        right = Guesses(guesses.counts * known, guesses.by_class * known[:, None])
        if more:
            made = each_of(more.with_guesses(right))
        else:
            both = zip(each_of(total), by_finding(right), strict=True)
            made = (one.with_guesses(guess) for one, guess in both)
        other, its = yield from _solution(rnd, made, prior, candidates, lent)
        return replace(other, guessed=last.guessed + 1), its

    first = yield from _solution(rnd, each_of(total), prior, candidates, lent)
    solution = yield from refine_by_guesses(rnd, first, then.guesses, (guessing, lent), again)
    rnd.pool.put(solution.to_params(), SOLUTION)
    return server_contents(rnd)


def each_of(sums: Sums) -> Iterator[Classes]:
    """Yield each finding's two classes; of one that was read in no image, none.

    One finding's covariance is held at a time.
    """
    nothing = Classes.none(2, len(sums.total))
    return (Classes.of(one) if one.counts.any() else nothing for one in by_finding(sums))


def _solution(
    rnd: Round,
    classes: Iterable[Classes],
    prior: Tensor,
    candidates: tuple[Tensor, bool],
    lent: TaskModels,
) -> Phases[tuple[FindingSolution, Votes]]:
    """Return the solution by the candidates with most votes, and these.

    classes: of each finding, without and with it. candidates: as of `log_prior` for each finding,
    [F, N], and whether heads travel rounded.
    """
    before, rounded = candidates
    found = [_heads(one) for one in classes]
    weights, biases, levels = (torch.stack(of, 1) for of in zip(*found, strict=True))
    grid = rnd.pool.put(grid_of(weights, biases, rounded), GRID)
    replies = yield [rnd.task(site, VOTE, 0, {}, grid=[grid], **lent) for site in rnd.sites]
    likely, images = votes_of(rnd, replies, VOTES, before.flatten())
    most, best = likely.view(before.shape).max(1)
    ridge, place = best // len(TEMPERATURES), best % len(TEMPERATURES)
    each, t = torch.arange(len(found)), torch.tensor(TEMPERATURES)[place].double()
    weight, bias = weights[ridge, each] / t[:, None], biases[ridge, each] / t
    found_by = Votes(float(most.sum()), images)
    return FindingSolution(weight, bias, prior, levels[ridge, each], t), found_by


def _heads(classes: Classes) -> tuple[Tensor, Tensor, Tensor]:
    """Return a finding's heads [L, d] and [L] for each of `RIDGES`, and each ridge's level [L]."""
    count, size = len(RIDGES), len(classes.within)
    if not classes.counts.any():  # read in no image
        zero = torch.zeros(count, dtype=torch.float64)
        return zero[:, None].expand(-1, size), zero, zero + 1
    levels = torch.tensor([classes.level(ridge) for ridge in RIDGES], dtype=torch.float64)
    return (*logits(classes.counts, *classes.heads(RIDGES)), levels)


# --- site -----------------------------------------------------------------------------------------


class FindingSite(ClosedSite):
    """A site's side of the closed form of findings. A mix of F findings is [F, 2]."""

    def answer(self, task: Task) -> SiteReport:
        """Do a task; with sums also report what `mean_mix_of_sums` needs for each finding."""
        role = role_asked_for(task)
        if role not in SUM_ROLES or role in OF_OTHERS:
            return super().answer(task)
        sums = sums_of(self.features(LABELLED), self.site.data.labels)
        found = sums.to_params(**form_of(role))
        every = [same_class_pair_sums(own) for own in label_counts(self.site)]
        found[MIX_SUMS] = torch.tensor(every, dtype=torch.float64).flatten()
        return SiteReport(contents={role: found})

    def votes(self, task: Task) -> Params:
        """Return each finding's log-likelihood for each lambda and temperature."""
        chosen = deciding_images(self.site)
        labels = self.site.data.val_labels.cpu()[chosen]
        seen = self.features(VAL).cpu()[chosen].double()
        mix = self.mix_alone().log()
        grid = grid_heads(self.site.contents(task.models[GRID][0]))
        weights, biases = (of.double() for of in grid)
        z = torch.einsum("nd,lfd->nlf", seen, weights) + biases
        heated = (
            z[..., None] / torch.tensor(TEMPERATURES).double() + (mix[:, 1] - mix[:, 0])[:, None]
        )
        there = (2 * labels - 1)[:, None, :, None]
        was_read = (labels >= 0)[:, None, :, None]
        loglik = F.logsigmoid(there * heated).clamp_min(MIN_LOGLIK) * was_read
        return {LOGLIK: loglik.sum(0).transpose(0, 1).flatten().float()}

    def guesses(self, task: Task) -> Guesses:
        """Return the sums over unlabelled images, by the findings that the head predicts."""
        answers, mix = self._unlabelled(task)
        there = reweighted(answers, mix)
        both = torch.stack([1 - there, there], 2).flatten(1)
        return Guesses.of(self.features(UNLABELLED).cpu(), both)

    def shared(self, task: Task) -> FindingSolution:  # type: ignore[override]
        """Return the solution that a task names."""
        return FindingSolution.from_params(self.site.contents(task.models[SOLUTION][0]))

    def head(self, task: Task) -> Head:
        """Return the common head, since a site's own images count as others' do."""
        return self.shared(task).common


def closed_side_of(name: str, task: Task, site: SiteContext, own_mix: bool = True) -> ClosedSite:
    """Return a site's side of the closed form, of classes or of findings (`ClosedSite.of`)."""
    return (FindingSite if site.data.finds else ClosedSite).of(name, task, site, own_mix)
