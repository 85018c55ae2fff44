"""What methods that average models have in common: the server's round and how a site learns.

Every method has the same epochs as the others: in round 0 all sites learn from their labelled
images for `training.warmup_epochs`, afterwards the cohort learns for `training.local_epochs`. After
each round the server averages, and every site measures what it would use from then on. A server
that has labelled images then trains the average on them, by the method's own rule and with as many
epochs or steps as a site: in every one of the warm-up's common rounds, and in every round.

The warm-up is cut into `training.warmup_rounds` common rounds: after 20 epochs apart, networks are
too far from each other for their mean to be worth anything.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from fedapp.aggregation.base import Rule
from fedapp.aggregation.server_optimizers import FedAdam, FedAvgM
from fedapp.core.errors import Incompatibility
from fedapp.core.settings import (
    CLOSED,
    Count,
    Positive,
    Rate,
    Share,
    TrainSettings,
)
from fedapp.data.augment import STRONG_VIEWS, weak
from fedapp.data.sites import SiteData
from fedapp.learn.networks.base import Network
from fedapp.learn.objectives import LocalTraining, fixmatch, supervised
from fedapp.learn.optimisers import Penalty
from fedapp.learn.predictors import Predictor
from fedapp.learn.steps import Step, View
from fedapp.learn.training import descend
from fedapp.methods.base import Method, MethodState, Phases, Round, SiteContext, SiteReport
from fedapp.methods.incompatibilities import NO_REASONS, Conditions, Reasons
from fedapp.protocol.messages import (
    EVALUATE,
    MODEL,
    SERVER_SITE,
    Evaluation,
    ModelRef,
    Reply,
    SiteFacts,
    Task,
)

WARM_UP = "warmup"


@dataclass(frozen=True, kw_only=True, config=CLOSED)
class Averaging(Method[MethodState]):
    """Sites learn from the server's model on; the server averages what they send.

    A method made from this says how a site learns (`steps`), what stays at home (`kept_private`),
    what else a site minimises (`penalty`), or overrides a side of the round.
    """

    answer: Literal["common", "tuned"] = "common"
    """What a site uses: the server's model, or its own after it trained that one last."""
    extra_roles: ClassVar[tuple[str, ...]] = ()
    """Roles of networks that are averaged beside the model."""

    def server_round(self, state: MethodState, rnd: Round) -> Phases[MethodState]:
        """Average the models of those that learned, by numbers of images."""
        yield from aggregate_round(rnd, self.weight, extra_roles=self.extra_roles)
        yield measurements(rnd, self.extra_roles)
        return state

    def site_round(self, task: Task, site: SiteContext) -> SiteReport:
        """Learn from the server's model on, or measure it and the site's own."""
        if task.action == EVALUATE:
            return SiteReport(evaluations=self.measured(task, site))
        site.load(task.models["server"][0])
        with site.drawing(task):
            steps = self.steps(task, site)
            loss = descend(site.model, steps, site.training, self.penalty(site.model))
        return site.trained(loss, task)

    unsupported: ClassVar = {"training.uneven": ""}  # `work_of` makes classes count alike

    def measured(self, task: Task, site: SiteContext) -> dict[str, Evaluation]:
        """Measure the server's model and the site's own, where it has one, each under its name."""
        site.load(task.models["server"][0])
        results = site.evaluate("val", "test", answer="common")
        if task.own.version or task.private:
            # Nothing else is in the site's own model, which stays as it is until it learns again.
            model = task.own if task.own.version else task.models["server"][0]
            known = model.digest, task.private

            def tuned() -> dict[str, Evaluation]:
                self.load_tuned(task, site)
                return site.evaluate("val", "test", answer="tuned")

            results |= site.cache.get_or_make("tuned", tuned, of=known)
        else:  # it has never learned, and answers with the server's
            results |= {f"{part}_tuned": results[f"{part}_common"] for part in ("val", "test")}
        return results | {part: results[f"{part}_{self.answer}"] for part in ("val", "test")}

    def used(self, task: Task, site: SiteContext, answer: str = "") -> dict[str, Predictor]:
        """Return the server's model or the site's own, with what the site keeps to itself."""
        answer = answer or self.answer
        if answer == "common":
            site.load(task.models["server"][0])
        else:
            self.load_tuned(task, site)
        return {answer: Predictor(site.params())}

    def load_tuned(self, task: Task, site: SiteContext) -> None:
        """Load the model that the site trained last; the server's where it has never learned.

        It may depend on nothing but this, what the site keeps to itself, and the site's images: it
        is measured once until the site learns again.
        """
        site.load(task.own if task.own.version else task.models["server"][0])

    def penalty(self, model: Network) -> Penalty | None:
        """Return what is added to every mini-batch's loss; the network holds the server's model."""
        return None

    def weight(self, facts: SiteFacts, reply: Reply) -> float:
        """Return a site's weight in the average: the number of images that it learned from."""
        return facts.labelled if reply.round == 0 else facts.labelled + facts.unlabelled

    @abstractmethod
    def steps(self, task: Task, site: SiteContext) -> Iterator[Step]:
        """Yield the mini-batches of a task, drawn by (seed, purpose, round, site)."""


@dataclass(frozen=True, kw_only=True, config=CLOSED)
class FromLabelled(Averaging):
    """Sites learn from their labelled images alone, by cross entropy."""

    def weight(self, facts: SiteFacts, reply: Reply) -> float:
        """Return the number of labelled images."""
        return facts.labelled

    def steps(self, task: Task, site: SiteContext) -> Iterator[Step]:
        """Cross entropy on D_s."""
        return supervised(work_of(task, site))


@dataclass(frozen=True, kw_only=True, config=CLOSED)
class WithPseudoLabels(Averaging):
    """What all methods with pseudo-labels and two views of an image have in common."""

    confidence: Share = 0.95
    """Least probability of a pseudo-label."""
    unlabelled_weight: Annotated[float, Field(ge=0)] = 1.0
    """lambda_u: weight of the unlabelled images' loss."""
    strong_view: Literal["randaugment", "cutout", "weak"] = "randaugment"
    """What learns from a pseudo-label: RandAugment and Cutout, Cutout alone, a second weak view."""

    unsupported: ClassVar = {
        "split.labels": "",  # sites learn from pseudo-labels
        "method.name": "learns from random views of images",
    }

    def images_per_step(self, batch_size: int, data: SiteData) -> int:
        """A labelled and two views of an unlabelled image for each of a batch."""
        return 3 * batch_size

    def views(self, task: Task, site: SiteContext) -> tuple[View, View]:
        """Return the task's weak and its strong view; both draw from one stream."""
        draws, strong = site.stream("augment", task), STRONG_VIEWS[self.strong_view]
        return (
            lambda images: weak(images, site.flip, draws),
            lambda images: strong(images, site.flip, draws),
        )


@dataclass(frozen=True, config=CLOSED)
class ByObjective(WithPseudoLabels):
    """Sites minimise one of the objectives that all methods of the comparison share."""

    objective: Literal["supervised", "fixmatch"] = "supervised"
    """supervised: from labelled images alone; fixmatch: from all (Sohn et al. 2020)."""
    labelled_repeat: Count = 1
    """How often each labelled image stands among those that a pass goes through."""

    def incompatibilities(
        self, conditions: Conditions, why: Reasons = NO_REASONS
    ) -> list[Incompatibility]:
        """Labels alone teach findings, and protected images; and FixMatch alone makes views."""
        if self.objective == "supervised":
            return super().incompatibilities(
                conditions, {"method.name": "", "data.findings": "", **why}
            )
        remedy = "set method.objective=supervised"
        reasons = {"data.findings": f"its pseudo-labels are of classes: {remedy}"}
        if self.image_level:
            reasons["privacy.epsilon"] = f"labels alone may teach then: {remedy}"
        return super().incompatibilities(conditions, {**reasons, **why})

    def images_per_step(self, batch_size: int, data: SiteData) -> int:
        """Without unlabelled images a step has the batch alone."""
        return (
            batch_size
            if self.objective == "supervised"
            else super().images_per_step(batch_size, data)
        )

    def weight(self, facts: SiteFacts, reply: Reply) -> float:
        """The labelled ones where nothing is learned from the others."""
        return facts.labelled if self.objective == "supervised" else super().weight(facts, reply)

    def steps(self, task: Task, site: SiteContext) -> Iterator[Step]:
        """Cross entropy on D_s or, after the warm-up, FixMatch."""
        work = replace(work_of(task, site), labelled_repeat=self.labelled_repeat)
        if task.action == WARM_UP or self.objective == "supervised":
            return supervised(work)
        return fixmatch(
            work, *self.views(task, site), confidence=self.confidence, weight=self.unlabelled_weight
        )


@dataclass(frozen=True, config=CLOSED)
class ByServerOptimizer(ByObjective):
    """The server goes along the average's change by an optimiser's rule (Reddi et al. 2021).

    So it does in every average, the warm-up's too; `aggregation.server_optimizers` has the
    equations.
    """

    server_optimizer: Literal["none", "fedavgm", "fedadam"] = "none"
    """How the server goes on from its model and the average; none: to the average."""
    server_rate: Positive = 1.0
    """eta: the server's learning rate; Reddi et al. have 0.001 to 0.1 with fedadam, 1 with none."""
    server_momentum: Rate = 0.9
    """beta of fedavgm, beta_1 of fedadam."""
    server_beta2: Rate = 0.99
    """beta_2 of fedadam, of squares."""
    server_tau: Annotated[float, Field(ge=1e-6)] = 1e-3
    """tau of fedadam, added to the squares' root; Reddi et al. have 1e-5 to 0.1."""

    def __post_init__(self) -> None:
        """Refuse what the optimiser has no use for. Raises ValueError."""
        used = {"none": 0, "fedavgm": 2, "fedadam": 4}[self.server_optimizer]
        for name in ("server_rate", "server_momentum", "server_beta2", "server_tau")[used:]:
            if getattr(self, name) != getattr(ByServerOptimizer, name):
                raise ValueError(f"{name} has no use with this server_optimizer; leave it out")

    def averaging(self, rule: Rule[Any]) -> Rule[Any]:
        """Put the optimiser around the run's rule."""
        if self.server_optimizer == "fedavgm":
            return FedAvgM(rule, self.server_rate, self.server_momentum)
        if self.server_optimizer == "fedadam":
            decays = self.server_momentum, self.server_beta2
            return FedAdam(rule, self.server_rate, *decays, self.server_tau)
        return rule


def work_of(task: Task, site: SiteContext) -> LocalTraining:
    """Return how a site goes through its images in this task."""
    epochs, steps = budget_of(task, site.training)
    return LocalTraining(
        model=site.model,
        data=site.data,
        normalise=site.normalise,
        size=site.training.batch_size,
        epochs=epochs,
        shuffle=site.stream("shuffle", task),
        steps=steps,
        view=site.view(task),
        uneven=site.training.uneven,
    )


def budget_of(task: Task, training: TrainSettings) -> tuple[int, int | None]:
    """Return the passes over a site's images in a task, and the mini-batches in place of them.

    E passes, or the task's share of the warm-up's; None: the passes decide.
    """
    return budget(task.action, task.phase, training)


def budget(action: str, phase: int, training: TrainSettings) -> tuple[int, int | None]:
    """Return the same of an action and, in the warm-up, the number of the common round."""
    if action != WARM_UP:
        return training.local_epochs, training.steps(training.local_epochs)
    whole, rest = divmod(training.warmup_epochs, training.warmup_rounds)
    epochs, before = whole + (phase < rest), whole * phase + min(phase, rest)
    return epochs, training.steps(epochs, before)


def parts_of(task: Task, training: TrainSettings) -> list[Task]:
    """Return the parts in which a task is trained: the warm-up's common rounds, else the task.

    For a site that does a whole warm-up in one task, with the draws of each common round.
    """
    if task.action != WARM_UP:
        return [task]
    return [replace(task, phase=phase) for phase in range(training.warmup_rounds)]


def trained_alone(task: Task, site: SiteContext) -> float | None:
    """Train the context's model on the site's labelled images alone; return the mean loss.

    None: without labels or mini-batches there is nothing to do. What is called "alone" everywhere:
    an optimiser of its own for every part of the warm-up and every round, and draws of purposes of
    its own, so that it is one model whatever else the site trains beside.
    """
    if not len(site.data.labels):
        return None
    work = replace(
        work_of(task, site),
        shuffle=site.stream("alone-shuffle", task),
        view=site.view(task, "alone-view"),
    )
    with site.drawing(task, "alone"):
        loss = descend(site.model, supervised(work), site.training)
    return None if loss is None else site.finite(loss, task)


def aggregate_round(
    rnd: Round,
    weight: Callable[[SiteFacts, Reply], float],
    numbers: Mapping[str, float] = MappingProxyType({}),
    extra_roles: Sequence[str] = (),
    on_replies: Callable[[Sequence[Reply]], None] = lambda replies: None,
    extra_payloads: Mapping[str, Sequence[ModelRef]] = MappingProxyType({}),
) -> Phases[ModelRef]:
    """Let sites learn from the server's model; average what they send. Return the server's model.

    weight: of a site in the average, by its facts and its reply. Where nobody learned, or the model
    is fixed, the server's model stays. numbers: what the sites are told beside the model.
    extra_roles: of networks that are sent and averaged as the model is; who learned has sent one of
    each. on_replies: is given the replies of those who learned. extra_payloads: other contents that
    go to all, by role. Round 0 has several such phases. In each a server with labelled images
    trains last.
    """
    warming_up = rnd.number == 0
    learners = beginners(rnd) if warming_up else sorted(rnd.cohort)
    action = WARM_UP if warming_up else "train"
    for phase in range(rnd.warmup_rounds if warming_up else 1):
        models = {**common(rnd, extra_roles), **extra_payloads}
        replies = yield [rnd.task(site, action, phase, numbers, **models) for site in learners]
        learned = [r for r in replies if r.learned]  # without epochs: nobody
        on_replies(learned)
        counts = {r.site: weight(rnd.facts[r.site], r) for r in learned}
        if total := sum(counts.values()):
            for role in (*extra_roles, MODEL):
                parts = [(n / total, rnd.pool.latest(k, role)) for k, n in counts.items()]
                rnd.pool.average(parts, role)
        if rnd.server_learns:
            models = {**common(rnd, extra_roles), **extra_payloads}
            yield [rnd.task(SERVER_SITE, action, phase, numbers, **models)]
    return rnd.pool.common()


def beginners(rnd: Round) -> Sequence[int]:
    """Return the sites that warm up: all, or those that know something of their images' classes.

    Where the server has labels, all others may have none, and would be sent models for nothing.
    """
    if not rnd.server_learns:
        return rnd.sites
    return [k for k in rnd.sites if rnd.facts[k].supervised]


def measurements(rnd: Round, extra_roles: Sequence[str] = ()) -> list[Task]:
    """Return the tasks that have every site measure the server's newest networks."""
    models = common(rnd, extra_roles)
    return [rnd.task(site, EVALUATE, 0, {}, **models) for site in rnd.sites]


def common(rnd: Round, extra_roles: Sequence[str] = ()) -> dict[str, list[ModelRef]]:
    """Return what tasks name: the server's newest model as "server", other networks by role."""
    others = {role: [rnd.pool.common(role)] for role in extra_roles}
    return {"server": [rnd.pool.common()], **others}
