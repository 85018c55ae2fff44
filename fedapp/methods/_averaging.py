"""What methods that average models have in common: the server's round and how a site learns.

Every method has the same budget as the others: in round 0 all sites learn from their labelled
images for `training.warmup_epochs`, afterwards the cohort learns for `training.local_epochs`. After
each round the server averages, and every site measures what it would use from then on.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedapp.data.augment import strong, weak
from fedapp.methods.base import EVALUATE, Round, SiteContext, SiteReport
from fedapp.objectives import Step, Work, fixmatch, supervised
from fedapp.protocol import SERVER_SITE, Reply, SiteFacts, Task
from fedapp.rng import torch_stream
from fedapp.settings import CLOSED, Share
from fedapp.training import descend


@dataclass(frozen=True, config=CLOSED)
class Learning:
    """How a site learns from its own images."""

    objective: Literal["supervised", "fixmatch"] = "supervised"
    """supervised: from labelled images alone; fixmatch: from all (Sohn et al. 2020)."""
    confidence: Share = 0.95
    """Of fixmatch: least probability of a pseudo-label."""
    unlabelled_weight: Annotated[float, Field(ge=0)] = 1.0
    """Of fixmatch: lambda_u."""

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


def averaging_round(
    rnd: Round,
    images: Callable[[SiteFacts, bool], int],
    beta: float = 1.0,
    measure: bool = True,
) -> Generator[Sequence[Task], Sequence[Reply], None]:
    """Let sites learn, average what they send by numbers of images, let all sites measure.

    images: of a site's facts, in round 0 or later, the number that it learned from. beta: the
    server's model becomes (1 - beta) w + beta mean_k w_k. measure: let every site measure what it
    would use from now on; otherwise the learners' own reports are all there is.
    """
    warming_up = rnd.number == 0
    before = rnd.pool.latest(SERVER_SITE)
    learners = rnd.sites if warming_up else sorted(rnd.cohort)
    action = "warmup" if warming_up else "train"
    tasks = [rnd.task(site, action, server=[before]) for site in learners]
    replies = yield tasks
    counts = {r.site: images(rnd.facts[r.site], warming_up) for r in replies}
    total = sum(counts.values())
    if total:
        parts = [(beta * n / total, rnd.pool.latest(k)) for k, n in counts.items() if n]
        if beta != 1:
            parts.append((1 - beta, before))
        rnd.pool.average(parts)
    if measure:
        newest = rnd.pool.latest(SERVER_SITE)
        yield [rnd.task(site, EVALUATE, server=[newest]) for site in rnd.sites]


def learn(
    task: Task,
    site: SiteContext,
    steps: Iterator[Step],
    penalty: Callable[[], Tensor] | None = None,
) -> SiteReport:
    """Load the server's model beside what the site keeps, and measure it or learn from `steps`."""
    site.load(task.models["server"][0])
    if task.action == EVALUATE:
        return SiteReport(evaluations=site.evaluate("val", "test"))
    with site.drawing(task.round):
        loss = descend(site.model, steps, site.training, penalty)
    if loss is None:  # no images to learn from
        return SiteReport()
    return SiteReport(site.params(), metrics={"loss": site.finite(loss, task.round)})
