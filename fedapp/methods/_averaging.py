"""What methods that average models have in common: the server's round and how a site learns.

Every method has the same epochs as the others: in round 0 all sites learn from their labelled
images for `training.warmup_epochs`, afterwards the cohort learns for `training.local_epochs`. After
each round the server averages, and every site measures what it would use from then on.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedapp.data.augment import strong, weak
from fedapp.methods.base import Method, Round, ServerState, SiteContext, SiteReport
from fedapp.models.resnet9 import ResNet9
from fedapp.objectives import Work, fixmatch, supervised
from fedapp.protocol import EVALUATE, SERVER_SITE, ModelRef, Reply, SiteFacts, Task
from fedapp.rng import torch_stream
from fedapp.settings import CLOSED, Share
from fedapp.training import Step, descend


@dataclass(frozen=True, config=CLOSED)
class Averaging(Method):
    """Sites learn from the server's model on; the server averages what they send.

    A method made from this says what stays at home (`kept_private`), what else a site minimises
    (`penalty`), or overrides a side of the round.
    """

    objective: Literal["supervised", "fixmatch"] = "supervised"
    """supervised: from labelled images alone; fixmatch: from all (Sohn et al. 2020)."""
    confidence: Share = 0.95
    """Of fixmatch: least probability of a pseudo-label."""
    unlabelled_weight: Annotated[float, Field(ge=0)] = 1.0
    """Of fixmatch: lambda_u."""

    def server_round(
        self, state: ServerState, rnd: Round
    ) -> Generator[Sequence[Task], Sequence[Reply], ServerState]:
        """Average the models of those that learned, by numbers of images."""
        newest = yield from averaged(rnd, self.images)
        yield [rnd.task(site, EVALUATE, server=[newest]) for site in rnd.sites]
        return state

    def site_round(self, task: Task, site: SiteContext) -> SiteReport:
        """Learn from the server's model on, or measure it with what the site keeps to itself."""
        site.load(task.models["server"][0])
        if task.action == EVALUATE:
            return SiteReport(evaluations=site.evaluate("val", "test"))
        with site.drawing(task.round):
            steps = self.steps(task, site)
            loss = descend(site.model, steps, site.training, self.penalty(site.model))
        if loss is None:  # no images to learn from
            return SiteReport()
        return SiteReport(site.params(), metrics={"loss": site.finite(loss, task.round)})

    def penalty(self, model: ResNet9) -> Callable[[], Tensor] | None:
        """Return what is added to every mini-batch's loss; the network holds the server's model."""
        return None

    def images_per_step(self, batch_size: int) -> int:
        """FixMatch sees a labelled and two views of an unlabelled image for each of a batch."""
        return batch_size if self.objective == "supervised" else 3 * batch_size

    def images(self, facts: SiteFacts, warming_up: bool) -> int:
        """Return how many images a site learns from: its weight in the average."""
        alone = warming_up or self.objective == "supervised"
        return facts.labelled if alone else facts.labelled + facts.unlabelled

    def steps(self, task: Task, site: SiteContext) -> Iterator[Step]:
        """Yield the mini-batches of a task, drawn by (seed, purpose, round, site)."""
        warming_up = task.round == 0
        key = (task.round, site.data.site)
        work = Work(
            model=site.model,
            data=site.data,
            normalise=site.normalise,
            size=site.training.batch_size,
            epochs=site.training.warmup_epochs if warming_up else site.training.local_epochs,
            shuffle=torch_stream(site.seed, "shuffle", *key),
        )
        if warming_up or self.objective == "supervised":
            return supervised(work)
        draws = torch_stream(site.seed, "augment", *key)
        return fixmatch(
            work,
            weak=lambda images: weak(images, site.flip, draws),
            strong=lambda images: strong(images, site.flip, draws),
            confidence=self.confidence,
            weight=self.unlabelled_weight,
        )


def averaged(
    rnd: Round, images: Callable[[SiteFacts, bool], int], beta: float = 1.0
) -> Generator[Sequence[Task], Sequence[Reply], ModelRef]:
    """Let sites learn from the server's model; average what they send by numbers of images.

    images: of a site's facts, in round 0 or later, the number that it learned from. beta: the
    server's weights become (1 - beta) w + beta mean_k w_k; where nobody learned, w stays. Returns
    the server's model.
    """
    warming_up = rnd.number == 0
    before = rnd.pool.latest(SERVER_SITE)
    learners = rnd.sites if warming_up else sorted(rnd.cohort)
    action = "warmup" if warming_up else "train"
    replies = yield [rnd.task(site, action, server=[before]) for site in learners]
    learned = [r.site for r in replies if "loss" in r.metrics]  # without epochs: nobody
    counts = {site: images(rnd.facts[site], warming_up) for site in learned}
    total = sum(counts.values())
    if not total:
        return before
    return rnd.pool.average([(n / total, rnd.pool.latest(k)) for k, n in counts.items()], beta)
