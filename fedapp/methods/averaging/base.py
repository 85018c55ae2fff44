"""What methods that average models have in common: the server's round, and how a site learns.

All methods have the same number of epochs: in round 0 all sites learn from their labelled images
for `training.warmup_epochs`, afterwards the cohort learns for `training.local_epochs`. After each
round the server averages, and every site evaluates the model that it would use from then on. A
server that has labelled images then trains the average on them, by the method's own rule and for as
many epochs or steps as a site: after every average of the warm-up, and in every round.

The warm-up is divided into `training.warmup_rounds` common rounds, each ending with an average:
after 20 epochs of separate training the networks are too far apart for their mean to be useful.
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
    """Sites train the server's model; the server averages what they send.

    A method derived from this defines how a site learns (`steps`), which tensors stay at the site
    (`kept_private`), what is added to the loss (`penalty`), or overrides the server's or the site's
    round.
    """

    answer: Literal["common", "tuned"] = "common"
    """Which model a site uses: the server's (common), or its own as trained last (tuned)."""
    extra_roles: ClassVar[tuple[str, ...]] = ()
    """Roles of further networks that are averaged in the same way as the model."""

    def server_round(self, state: MethodState, rnd: Round) -> Phases[MethodState]:
        """Average the models of the sites that learned, weighted by numbers of images."""
        yield from aggregate_round(rnd, self.weight, extra_roles=self.extra_roles)
        yield measurements(rnd, self.extra_roles)
        return state

    def site_round(self, task: Task, site: SiteContext) -> SiteReport:
        """Train the server's model, or evaluate it and the site's own."""
        if task.action == EVALUATE:
            return SiteReport(evaluations=self.measured(task, site))
        site.load(task.models["server"][0])
        with site.drawing(task):
            steps = self.steps(task, site)
            loss = descend(site.model, steps, site.training, self.penalty(site.model))
        return site.trained(loss, task)

    unsupported: ClassVar = {"training.uneven": ""}  # `work_of` makes classes count alike

    def measured(self, task: Task, site: SiteContext) -> dict[str, Evaluation]:
        """Evaluate the server's model and the site's own, where it has one, each by its name."""
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
        """Return the server's model or the site's own, with the tensors that the site keeps."""
        answer = answer or self.answer
        if answer == "common":
            site.load(task.models["server"][0])
        else:
            self.load_tuned(task, site)
        return {answer: Predictor(site.params())}

    def load_tuned(self, task: Task, site: SiteContext) -> None:
        """Load the model that the site trained last; without one, the server's.

        The result may depend only on that model, on what the site keeps, and on the site's images:
        it is evaluated once and then cached until the site learns again.
        """
        site.load(task.own if task.own.version else task.models["server"][0])

    def penalty(self, model: Network) -> Penalty | None:
        """Return a term added to every mini-batch's loss; the network holds the server's model."""
        return None

    def weight(self, facts: SiteFacts, reply: Reply) -> float:
        """Return a site's weight in the average: the number of images that it learned from."""
        return facts.labelled if reply.round == 0 else facts.labelled + facts.unlabelled

    @abstractmethod
    def steps(self, task: Task, site: SiteContext) -> Iterator[Step]:
        """Yield a task's mini-batches, drawn by the seed, the purpose, the round and the site."""


@dataclass(frozen=True, kw_only=True, config=CLOSED)
class FromLabelled(Averaging):
    """Sites learn by cross entropy from their labelled images only."""

    def weight(self, facts: SiteFacts, reply: Reply) -> float:
        """Return the number of labelled images."""
        return facts.labelled

    def steps(self, task: Task, site: SiteContext) -> Iterator[Step]:
        """Cross entropy on D_s."""
        return supervised(work_of(task, site))


@dataclass(frozen=True, kw_only=True, config=CLOSED)
class WithPseudoLabels(Averaging):
    """What methods with pseudo-labels and two views of an image have in common."""

    confidence: Share = 0.95
    """Least probability of a pseudo-label."""
    unlabelled_weight: Annotated[float, Field(ge=0)] = 1.0
    """lambda_u: weight of the unlabelled images' loss."""
    strong_view: Literal["randaugment", "cutout", "weak"] = "randaugment"
    """The view that is trained on a pseudo-label: RandAugment and Cutout, Cutout alone, or a second
    weak view."""

    unsupported: ClassVar = {
        "split.labels": "",  # sites learn from pseudo-labels
        "method.name": "learns from random views of images",
    }

    def images_per_step(self, batch_size: int, data: SiteData) -> int:
        """For each image of a batch, a labelled image and two views of an unlabelled one."""
        return 3 * batch_size

    def views(self, task: Task, site: SiteContext) -> tuple[View, View]:
        """Return the task's weak and strong view, which draw from the same stream."""
        draws, strong = site.stream("augment", task), STRONG_VIEWS[self.strong_view]
        return (
            lambda images: weak(images, site.flip, draws),
            lambda images: strong(images, site.flip, draws),
        )


@dataclass(frozen=True, config=CLOSED)
class ByObjective(WithPseudoLabels):
    """Sites minimise one of the two objectives that the methods of the comparison share."""

    objective: Literal["supervised", "fixmatch"] = "supervised"
    """supervised: learn from labelled images only; fixmatch: from all images (Sohn et al. 2020)."""
    labelled_repeat: Count = 1
    """How many times each labelled image is used in one pass."""

    def incompatibilities(
        self, conditions: Conditions, why: Reasons = NO_REASONS
    ) -> list[Incompatibility]:
        """Findings and protected images need the supervised objective; FixMatch needs images."""
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
        """Supervised: the batch. FixMatch: three views for each image of it."""
        return (
            batch_size
            if self.objective == "supervised"
            else super().images_per_step(batch_size, data)
        )

    def weight(self, facts: SiteFacts, reply: Reply) -> float:
        """Unlabelled images count only where the objective uses them."""
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
    """The server moves along the average's change by an optimiser (Reddi et al. 2021).

    It does so after every average, those of the warm-up included. `aggregation.server_optimizers`
    has the equations.
    """

    server_optimizer: Literal["none", "fedavgm", "fedadam"] = "none"
    """How the server moves from its model towards the average; none: it takes the average."""
    server_rate: Positive = 1.0
    """eta: the server's learning rate. Reddi et al. use 0.001 to 0.1 with fedadam, and 1 without an
    optimiser."""
    server_momentum: Rate = 0.9
    """beta of fedavgm, beta_1 of fedadam."""
    server_beta2: Rate = 0.99
    """beta_2 of fedadam, of squares."""
    server_tau: Annotated[float, Field(ge=1e-6)] = 1e-3
    """tau of fedadam, added to the root of the squares. Reddi et al. use 1e-5 to 0.1."""

    def __post_init__(self) -> None:
        """Refuse settings that the chosen optimiser does not have. Raises ValueError."""
        used = {"none": 0, "fedavgm": 2, "fedadam": 4}[self.server_optimizer]
        for name in ("server_rate", "server_momentum", "server_beta2", "server_tau")[used:]:
            if getattr(self, name) != getattr(ByServerOptimizer, name):
                raise ValueError(f"{name} has no use with this server_optimizer; leave it out")

    def averaging(self, rule: Rule[Any]) -> Rule[Any]:
        """Wrap the run's rule in the optimiser."""
        if self.server_optimizer == "fedavgm":
            return FedAvgM(rule, self.server_rate, self.server_momentum)
        if self.server_optimizer == "fedadam":
            decays = self.server_momentum, self.server_beta2
            return FedAdam(rule, self.server_rate, *decays, self.server_tau)
        return rule


def work_of(task: Task, site: SiteContext) -> LocalTraining:
    """Return how a site passes over its images in this task."""
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
    """Return how much a site trains in a task: epochs, and mini-batches that replace them.

    The epochs are E, or the task's share of the warm-up's. Mini-batches are None where the epochs
    decide.
    """
    return budget(task.action, task.phase, training)


def budget(action: str, phase: int, training: TrainSettings) -> tuple[int, int | None]:
    """Return the same for an action and, in the warm-up, the number of the common round."""
    if action != WARM_UP:
        return training.local_epochs, training.steps(training.local_epochs)
    whole, rest = divmod(training.warmup_epochs, training.warmup_rounds)
    epochs, before = whole + (phase < rest), whole * phase + min(phase, rest)
    return epochs, training.steps(epochs, before)


def warm_up_parts(task: Task, training: TrainSettings) -> list[Task]:
    """Return the parts in which a task is trained: the warm-up's common rounds, or itself.

    For a site that does the whole warm-up in one task, with the random draws of each common round.
    """
    if task.action != WARM_UP:
        return [task]
    return [replace(task, phase=phase) for phase in range(training.warmup_rounds)]


def train_alone(task: Task, site: SiteContext) -> float | None:
    """Train the context's model on the site's labelled images only; return the mean loss.

    None: there are no labels or no mini-batches. This is what "alone" means everywhere: every part
    of the warm-up and every round has a new optimiser, and the draws have purposes of their own, so
    that the model is the same whatever else the site trains.
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
    """Let sites train the server's model, average what they send, and return the average.

    weight: of a site in the average, from its facts and its reply. Where nobody learned, the
    server's model stays. numbers: sent to the sites with the model. extra_roles: of networks that
    are sent and averaged like the model; every site that learned has sent one of each. on_replies:
    is called with the replies of the sites that learned. extra_payloads: other contents sent to all
    sites, by role. Round 0 has several such phases. At the end of each phase a server with labelled
    images trains.
    """
    warming_up = rnd.number == 0
    learners = warm_up_sites(rnd) if warming_up else sorted(rnd.cohort)
    action = WARM_UP if warming_up else "train"
    for phase in range(rnd.warmup_rounds if warming_up else 1):
        models = {**common_models(rnd, extra_roles), **extra_payloads}
        replies = yield [rnd.task(site, action, phase, numbers, **models) for site in learners]
        learned = [r for r in replies if r.learned]  # without epochs: nobody
        on_replies(learned)
        counts = {r.site: weight(rnd.facts[r.site], r) for r in learned}
        if total := sum(counts.values()):
            for role in (*extra_roles, MODEL):
                parts = [(n / total, rnd.pool.latest(k, role)) for k, n in counts.items()]
                rnd.pool.average(parts, role)
        if rnd.server_learns:
            models = {**common_models(rnd, extra_roles), **extra_payloads}
            yield [rnd.task(SERVER_SITE, action, phase, numbers, **models)]
    return rnd.pool.common()


def warm_up_sites(rnd: Round) -> Sequence[int]:
    """Return the sites that warm up: all, or those with labels or bags.

    Where the server has labels, the other sites may have none, and would receive models for
    nothing.
    """
    if not rnd.server_learns:
        return rnd.sites
    return [k for k in rnd.sites if rnd.facts[k].supervised]


def measurements(rnd: Round, extra_roles: Sequence[str] = ()) -> list[Task]:
    """Return the tasks in which every site evaluates the server's newest networks."""
    models = common_models(rnd, extra_roles)
    return [rnd.task(site, EVALUATE, 0, {}, **models) for site in rnd.sites]


def common_models(rnd: Round, extra_roles: Sequence[str] = ()) -> dict[str, list[ModelRef]]:
    """Return the models of a task: the server's newest as "server", further networks by role."""
    others = {role: [rnd.pool.common(role)] for role in extra_roles}
    return {"server": [rnd.pool.common()], **others}
