"""RSCFed (Liang et al. 2022): random sub-consensus models, and a mean teacher at every site.

In a round the server draws M subsets of the cohort, each for itself. All members begin with the
server's model w. A subset's models are averaged, each with the weight

    n_k exp(-s d_k / n_k),  d_k = sum over tensors of ||w_k - wbar||,  wbar = sum n_k w_k / sum n_k

(`reweighted`); the new w is the mean of the M averages. A site drawn twice learns twice from
the same w; its teacher goes on.

A site minimises CE(D_s) + lambda ||softmax(student) - sharpened teacher||^2 (`mean_teacher`). Its
teacher follows after step t by alpha = min(1 - 1 / (t + 1), alpha_max), where t counts from 0 over
all of the site's rounds; before the site's first step the teacher is w.

- DEVIATION: sites have labelled and unlabelled images, and minimise both losses at once. In the
  paper a site has the one or the other.
- DEVIATION: a labelled site counts as any other; in the authors' code, 36 times as much.
- DEVIATION: subsets are drawn of the round's cohort; where all sites take part, of all.
- DEVIATION: optimiser, warm-up and the longest gradient are those of all methods here.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from fedapp.core.settings import CLOSED, Count, Positive, Share
from fedapp.data.augment import weak
from fedapp.data.sites import SiteData
from fedapp.learn.networks.base import Network
from fedapp.learn.objectives import LocalTraining, index_pairs, labelled_loss, supervised
from fedapp.learn.params import Params, assign, weighted_mean
from fedapp.learn.prototypes import sharpened
from fedapp.learn.steps import Step, View
from fedapp.learn.training import descend, freeze_batch_norm
from fedapp.methods.averaging.base import (
    WARM_UP,
    Averaging,
    aggregate_round,
    common_models,
    measurements,
    work_of,
)
from fedapp.methods.base import MethodState, Phases, Round, SiteContext, SiteReport
from fedapp.methods.two_networks._target import decay, update_target
from fedapp.protocol.messages import EVALUATE, SERVER_SITE, ModelRef, Reply, Task

STEPS, TEACHER = "steps", "teacher."
"""What a site remembers: steps so far, and its teacher's weights under this prefix."""
NonNegativeFloat = Annotated[float, Field(ge=0)]


@dataclass(frozen=True, kw_only=True, config=CLOSED)
class RscFed(Averaging):
    """Fields are the paper's hyper-parameters, defaults the authors' code's."""

    name: ClassVar[str] = "rscfed"

    subsets: Count = 3
    """M, sub-consensus models of a round."""
    subset_share: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Share of the cohort in each, one site or more: 5 of 10, 2 of 5."""
    distance_scale: NonNegativeFloat = 100.0
    """s, where a member of the subset has labels; 0: weights by numbers of images alone."""
    distance_scale_unlabelled: NonNegativeFloat = 1e4
    """s, where none has."""
    consistency_weight: NonNegativeFloat = 0.02
    """lambda."""
    temperature: Positive = 0.5
    """T, of the teacher's answers; below 1 they become surer."""
    largest_decay: Share = 0.999
    """alpha_max, of the teacher."""

    unsupported: ClassVar = {
        "split.labels": "",  # sites learn from their teachers
        "rounds.robust": "a site is in several subsets, so it would vote on itself, and their "
        "weights be lost",
        "method.name": "learns from random views of images",
    }

    def images_per_step(self, batch_size: int, data: SiteData) -> int:
        """A labelled and an unlabelled image for each of a batch."""
        return 2 * batch_size

    def memory(self, model: nn.Module, w_0: Params) -> Params:
        """The teacher, and the steps so far."""
        teacher = {f"{TEACHER}{name}": w_0[name] for name, _ in model.named_parameters()}
        return {**teacher, STEPS: torch.zeros((), dtype=torch.int64)}

    # --- server -----------------------------------------------------------------------------------

    def server_round(self, state: MethodState, rnd: Round) -> Phases[MethodState]:
        """Average sub-consensus models, drawn subset by subset; the warm-up is all methods'."""
        if rnd.number == 0:
            yield from aggregate_round(rnd, self.weight)
        else:
            yield from self._consensus(rnd)
        yield measurements(rnd)
        return state

    def _consensus(self, rnd: Round) -> Phases[None]:
        parts: list[tuple[float, ModelRef]] = []
        for phase, sites in enumerate(self.drawn(rnd)):
            replies = yield [rnd.task(k, "train", phase, {}, **common_models(rnd)) for k in sites]
            parts += self.weighed(rnd, [reply for reply in replies if reply.learned])
        if parts:
            rnd.pool.average(parts)
        if rnd.server_learns:
            yield [rnd.task(SERVER_SITE, "train", 0, {}, **common_models(rnd))]

    def drawn(self, rnd: Round) -> list[list[int]]:
        """Return the members of each subset, ascending; drawn by (seed, round, subset)."""
        cohort = sorted(rnd.cohort)
        size = max(round(self.subset_share * len(cohort)), 1)
        return [
            sorted(rnd.stream("subset", m).choice(cohort, size, replace=False).tolist())
            for m in range(self.subsets)
        ]

    def weighed(self, rnd: Round, learned: Sequence[Reply]) -> list[tuple[float, ModelRef]]:
        """Return the newest models of a subset's members with their weights, which sum to 1.

        Nothing, where nobody learned.
        """
        counts = [self.weight(rnd.facts[reply.site], reply) for reply in learned]
        if not sum(counts):
            return []
        refs = [rnd.pool.latest(reply.site) for reply in learned]
        models = ((n, rnd.pool.read(ref)) for n, ref in zip(counts, refs, strict=True))
        mean = weighted_mean(models, rnd.pool.read(rnd.pool.common()))
        labelled = any(rnd.facts[reply.site].labelled for reply in learned)
        scale = self.distance_scale if labelled else self.distance_scale_unlabelled
        distances = (distance_to(mean, rnd.pool.read(ref)) for ref in refs)
        return list(zip(reweighted(counts, distances, scale), refs, strict=True))

    # --- site -------------------------------------------------------------------------------------

    def site_round(self, task: Task, site: SiteContext) -> SiteReport:
        """Train the network beside the site's teacher; warm up or measure as all methods do."""
        if task.action in (EVALUATE, WARM_UP):
            return super().site_round(task, site)
        site.load(task.models["server"][0])
        teacher, done = self._teacher(site)

        def bring_along() -> None:
            nonlocal done
            update_target(teacher, site.model, decay(done, self.largest_decay))
            done += 1

        draws = site.stream("augment", task)
        with site.drawing(task):
            steps = mean_teacher(
                work_of(task, site),
                teacher,
                lambda images: weak(images, site.flip, draws),
                self.temperature,
                self.consistency_weight,
                bring_along,
            )
            loss = descend(site.model, steps, site.training)
        weights = {f"{TEACHER}{n}": w.detach().cpu() for n, w in teacher.named_parameters()}
        return site.trained(loss, task, {**weights, STEPS: torch.tensor(done)})

    def _teacher(self, site: SiteContext) -> tuple[Network, int]:
        """Return the site's teacher and its steps so far; before the first: the server's model.

        The network holds that model, whose batch-norm statistics the teacher has in any case.
        """
        teacher, steps = copy.deepcopy(site.model), int(site.memory[STEPS])
        if steps:
            weights = {n: site.memory[f"{TEACHER}{n}"] for n, _ in teacher.named_parameters()}
            assign(teacher, {**teacher.state_dict(), **weights})
        return teacher, steps

    def steps(self, task: Task, site: SiteContext) -> Iterator[Step]:
        """Cross entropy on D_s: what the warm-up minimises."""
        return supervised(work_of(task, site))


def distance_to(mean: Params, model: Params) -> float:
    """Return the sum over all floating tensors, batch-norm statistics included, of ||w - wbar||."""
    lengths = [
        torch.linalg.vector_norm((model[name] - tensor).double())
        for name, tensor in mean.items()
        if tensor.is_floating_point()
    ]
    return torch.stack(lengths).sum().item()


def reweighted(counts: Sequence[float], distances: Iterable[float], scale: float) -> list[float]:
    """Return n_k exp(-s d_k / n_k), scaled to sum 1: each model's weight in a sub-consensus.

    counts: n_k, images, 0 or more; one at least above 0. distances: d_k >= 0. scale: s >= 0, in
    images per distance; 0: by counts alone. Where s d / n is in the thousands the weights are still
    in proportion: the largest exponent is taken off first.
    """
    n = torch.tensor(counts, dtype=torch.float64)
    d = torch.tensor(list(distances), dtype=torch.float64)
    exponents = n.log() - scale * d / n.clamp_min(torch.finfo(n.dtype).tiny)
    found: list[float] = torch.softmax(exponents.masked_fill(n == 0, -torch.inf), 0).tolist()
    return found


def taught_squares(teacher: Tensor, student: Tensor, temperature: float) -> Tensor:
    """Return the mean over images of ||softmax(student) - sharpened softmax(teacher)||^2, >= 0.

    teacher, student: logits [n, C]; 0 without images. No gradient flows into the teacher.
    """
    if not len(student):
        return student.sum()
    target = sharpened(torch.softmax(teacher.detach(), 1), temperature)
    return (torch.softmax(student, 1) - target).square().sum(1).mean()


def mean_teacher(
    work: LocalTraining,
    teacher: Network,
    weak: View,
    temperature: float,
    weight: float,
    after: Callable[[], None],
) -> Iterator[Step]:
    """CE(D_s, weak views) + weight * `taught_squares` of two weak views of D_u.

    teacher: another network than `work.model`. after: called once each step is taken; it is to
    bring the teacher along. Steps and epochs are those of `objectives.two_views`.
    """
    data, shift = work.data, work.shift
    work.begin(len(data.labels) + len(data.unlabelled))
    teacher.train()
    if len(data.unlabelled) == 1:
        freeze_batch_norm(teacher)

    def loss(student: nn.Module, x: Tensor, y: Tensor, seen: Tensor) -> Tensor:
        logits, count = student(x), len(y)
        total = labelled_loss(shift(logits[:count]), y)
        if not len(seen):
            return total
        with torch.no_grad():
            wanted = teacher(seen)
        return total + weight * taught_squares(wanted, logits[count:], temperature)

    def epoch() -> Iterator[Step]:
        for labelled, unlabelled in index_pairs(work):
            x_u = data.unlabelled[unlabelled]
            x = work.normalise(torch.cat([weak(data.labelled[labelled]), weak(x_u)]))
            yield Step(loss, (x, data.labels[labelled], work.normalise(weak(x_u))))

    for step in work.passes(epoch):
        yield step
        after()


METHOD = RscFed
