"""What a method is: a frozen value with rules for the server and for a site.

A method never sees Flower, files or sockets. The server's rule is a generator that yields the tasks
of a phase and receives the replies, so that it reads like the paper's algorithm; a site's rule is a
function of a task and the site's data.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from fedapp.aggregation.base import Rule
from fedapp.core.cache import Cache
from fedapp.core.errors import DIVERGED_REMEDY, Incompatibility, ProtocolError, RunError
from fedapp.core.rng import numpy_stream, seeded, torch_stream
from fedapp.core.settings import PrivacySettings, RoundSettings, TrainSettings
from fedapp.data.augment import weak
from fedapp.data.inputs import normalise
from fedapp.data.sites import LABELLED, UNLABELLED, SiteData
from fedapp.evaluation.ranking_metrics import score_counts
from fedapp.learn.metrics import evaluation, predict_each
from fedapp.learn.model_caches import Score
from fedapp.learn.networks.base import Network
from fedapp.learn.params import (
    Params,
    Schema,
    all_finite,
    assign,
    copied_to_cpu,
    schema_of,
    tensors_of,
    without,
)
from fedapp.learn.predictors import Predictor
from fedapp.learn.steps import View
from fedapp.learn.training import train
from fedapp.learn.work_counter import count_work
from fedapp.methods.incompatibilities import NO_REASONS, Conditions, Reasons
from fedapp.privacy.accountant import Plan, Protection
from fedapp.protocol.messages import (
    EVALUATE,
    MODEL,
    SERVER_SITE,
    Evaluation,
    ModelRef,
    PseudoLabels,
    Reply,
    ScoredRef,
    SiteFacts,
    Task,
)
from fedapp.protocol.traffic import EVALUATION, MESSAGE


class PoolView(Protocol):
    """What a method may ask of the model pool.

    Sites' models change between phases, never within one; the server's when `average` makes one.
    """

    def latest(self, site: int, role: str = MODEL) -> ModelRef:
        """Return the newest version of a site's model, or of its content of another role.

        Every site has a model, w_0 at first; of other roles only those that `having` names.
        """

    def having(self, role: str) -> tuple[int, ...]:
        """Return the sites that have sent a content of this role, ascending."""

    def has(self, site: int, role: str) -> bool:
        """Whether a site, or the server's own, has sent or made a content of this role."""

    def trained(self) -> tuple[int, ...]:
        """Return the sites whose model has been trained at least once, ascending."""

    def common(self, role: str = MODEL) -> ModelRef:
        """Return the server's newest network of a role; its model before the role's first."""

    def read(self, ref: ModelRef) -> Params:
        """Return a content's tensors. Nobody may change them in place."""

    def put(self, params: Params, role: str) -> ModelRef:
        """Make this the server's newest content of a role."""

    def average(self, parts: Sequence[tuple[float, ModelRef]], role: str = MODEL) -> ModelRef:
        """Make sum_j a_j w_j / sum_j a_j the server's network of a role.

        A role other than the model must have the model's tensors. Integer tensors are those of its
        last one (`common`). A run with `rounds.robust`, and a method with an `averaging` of its
        own, have another average in the mean's place.
        """


@dataclass(frozen=True)
class MethodState:
    """What a method remembers at the server beside the pool: here, nothing.

    A method that remembers more derives a frozen dataclass of values that JSON can hold; it is a
    part of every checkpoint.
    """

    def needs(self) -> Collection[str]:
        """Return the digests of contents that it names, beside every site's newest."""
        return ()

    def shown(self) -> Mapping[str, float]:
        """Return what a round's row and the summary show of it, by name; most methods: nothing."""
        return {}

    def in_summary(self) -> Mapping[str, float]:
        """Return what the summary shows of it beside that; most methods: nothing."""
        return {}

    def column(self, site: int) -> str:
        """Return what `per_site.csv` shows of a site's helpers; most methods: nothing."""
        return ""


State = TypeVar("State", bound=MethodState)
Result = TypeVar("Result")
Phases = Generator[Sequence[Task], Sequence[Reply], Result]
"""A round at the server, or a part of one: it yields the tasks of each phase, receives the replies,
and ends with a result."""


@dataclass(frozen=True)
class Round:
    """One round as the server sees it.

    number: 0 is the warm-up. sites: all known sites, ascending. cohort: those that train.
    facts: what each site said of its data. private: digest of what each keeps to itself.
    joined: the round in which each site that came late joined; the others were here from the start.
    server_learns: whether the server holds labelled images and can be given tasks (`SERVER_SITE`).
    last: the number of the run's last round. say: tells a person how the run goes.
    warmup_rounds: averages in round 0 of a method that averages.
    masked: sites are known by their sums alone: `sites` is `ALL_SITES`, the cohort `COHORT`.
    finds: whether sites' classes are findings.
    protection: of single images; None: there is none.
    """

    number: int
    seed: int
    sites: tuple[int, ...]
    cohort: frozenset[int]
    pool: PoolView
    facts: Mapping[int, SiteFacts] = field(default_factory=dict)
    private: Mapping[int, str] = field(default_factory=dict)
    joined: Mapping[int, int] = field(default_factory=dict)
    warmup_rounds: int = 1
    server_learns: bool = False
    masked: bool = False
    finds: bool = False
    protection: Protection | None = None
    last: int = 0
    say: Callable[[str], None] = lambda text: None

    @property
    def everybody(self) -> tuple[int, ...]:
        """All sites, ascending, the server's own first where it has labelled images."""
        return (SERVER_SITE, *self.sites) if self.server_learns else self.sites

    @property
    def newcomers(self) -> tuple[int, ...]:
        """The sites that join in this round, ascending; none in round 0."""
        return tuple(k for k in self.sites if 0 < self.joined.get(k, 0) == self.number)

    def stream(self, purpose: str, site: int) -> np.random.Generator:
        """Return the generator for this purpose, round and site."""
        return numpy_stream(self.seed, purpose, self.number, site)

    def task(
        self,
        site: int,
        action: str,
        phase: int = 0,
        numbers: Mapping[str, float] = MappingProxyType({}),
        **models: Sequence[ModelRef],
    ) -> Task:
        """Return a task for this round that builds on the site's latest model."""
        return Task(
            site=site,
            round=self.number,
            action=action,
            own=self.pool.latest(site),
            models={role: tuple(refs) for role, refs in models.items()},
            private=self.private.get(site, ""),
            phase=phase,
            numbers=dict(numbers),
        )


@dataclass(frozen=True)
class Sent:
    """Which tensors of a content travel, one at least; the others are those of another content.

    base: that content, of the same tensors, as the task named it; None: the report's own new model.
    """

    names: frozenset[str]
    base: ModelRef | None


@dataclass(frozen=True)
class SiteReport:
    """What a site's rule produced. params: all of its new model; None: it did not change.

    contents: its new contents of other roles (`Method.roles`). learned: whether it trained.
    sent: what travels of a new content, by role; the server and all others have the base's tensors
    in place of the rest. Of a role not named the whole travels.
    memory: the new tensors of `Method.memory`; None: they did not change.
    personal: the model that `evaluations` are of, where the site never sends it; None: `params`, or
    the model that the task named.
    pseudo: the pseudo-labels that it learned from, counted.
    holds: contents that the task named and that the site keeps, since tasks to come name them too.
    """

    params: Params | None = None
    sent: Mapping[str, Sent] = field(default_factory=dict)
    contents: Mapping[str, Params] = field(default_factory=dict)
    learned: bool = False
    helpers: tuple[ScoredRef, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    evaluations: Mapping[str, Evaluation] = field(default_factory=dict)
    personal: Params | None = None
    memory: Params | None = None
    pseudo: PseudoLabels | None = None
    holds: tuple[ModelRef, ...] = ()


@dataclass(frozen=True)
class Arrived:
    """A new content of a site, as the server got it.

    whole: all its tensors. came: the names of those that were sent; none, where it is the site's
    model over again. before: reads the site's last content of that role, as the pool has it, also
    after a resume; None: it is the site's first, or the server's disk lost it.
    """

    whole: Params
    came: frozenset[str]
    before: Callable[[], Params | None] = lambda: None


Asked = Callable[[Sequence[str]], Sequence[Tensor]]
"""Parts of a site's data -> a model's probabilities [n, C] for the images of each."""


CACHED_AT_A_SITE = 2**27
"""Most bytes of `SiteContext.cache`."""


class Contents(Protocol):
    """Contents by reference, parsed and checked."""

    def __call__(self, ref: ModelRef) -> Params:
        """Return the tensors that the method shares in that role; all of the task can be had."""


@dataclass(frozen=True)
class SiteContext:
    """What a site's rule works with. model: one network to load weights into, on the device.

    kept: the tensors of the site's model that it keeps to itself, none for most methods.
    memory: what it remembers between its tasks (`Method.memory`).
    scores: what the site knows of other sites' models (`learn.model_caches`).
    cache: what else was computed from the site's images and need not be computed again: fixed
    features, answers of models and their evaluation. It is kept from task to task. Of a model it
    goes by the digests of all that the model depends on.
    protection: of single images; None: there is none. secret: 32 bytes that only this site can
    compute, equal for equal text: draws that nobody else may know are keyed by them.
    flip: whether a mirror image of such data is an image of the same class.
    scored: whether evaluations have score counts.
    """

    data: SiteData
    model: Network
    contents: Contents
    kept: Params
    training: TrainSettings
    seed: int
    device: torch.device
    flip: bool = False
    scored: bool = False
    memory: Params = field(default_factory=dict)
    scores: Cache[Score] = field(default_factory=lambda: Cache(CACHED_AT_A_SITE))
    cache: Cache[Any] = field(default_factory=lambda: Cache(CACHED_AT_A_SITE))
    protection: Protection | None = None
    secret: Callable[[bytes], bytes] = lambda what: b""

    def load(self, ref: ModelRef) -> None:
        """Load a model into the network, with what this site keeps to itself."""
        assign(self.model, {**self.contents(ref), **self.kept})

    def normalise(self, images: Tensor) -> Tensor:
        """uint8 images, or float32 numbers -> float32, scaled per channel.

        Those that a gradient may come of are counted as learned from.
        """
        if torch.is_grad_enabled():
            count_work(images=len(images))
        return normalise(images, self.data.mean, self.data.std)

    def one_hot(self, labels: Tensor) -> Tensor:
        """Labels [n] -> targets float32 [n, C]."""
        return torch.nn.functional.one_hot(labels, self.data.num_classes).float()

    def fit(self, images: Tensor, targets: Tensor, labelled: int, epochs: int, task: Task) -> float:
        """Train the context's model; return the last epoch's mean loss.

        The first `labelled` images have labels, the others pseudo-labels.
        Raises RunError when training diverged.
        """
        with self.drawing(task):
            shuffle = self.stream("shuffle", task)
            loss = train(
                self.model,
                images,
                targets,
                labelled,
                self.normalise,
                self.training,
                epochs,
                shuffle,
                self.view(task),
            )
        return self.finite(loss, task)

    def view(self, task: Task, purpose: str = "view") -> View:
        """Return what a training image goes through before the network sees it, at every step."""
        if self.training.augment == "none":
            return lambda images: images
        draws = self.stream(purpose, task)
        return lambda images: weak(images, self.flip, draws)

    def stream(self, purpose: str, task: Task) -> torch.Generator:
        """Return the CPU generator for this purpose, task and site."""
        return torch_stream(self.seed, purpose, task.when, self.data.site)

    @contextmanager
    def drawing(self, task: Task, purpose: str = "train") -> Iterator[None]:
        """Key the draws of training (dropout) by seed, round and site."""
        with seeded(self.device, self.seed, purpose, task.when, self.data.site):
            yield

    def finite(self, loss: float, task: Task) -> float:
        """Return the loss. Raises RunError when training diverged: nothing broken is uploaded."""
        if not math.isfinite(loss):
            raise RunError(
                f"site {self.data.site}, round {task.round}: the training loss is {loss}; "
                f"{DIVERGED_REMEDY}"
            )
        return loss

    def trained(self, loss: float | None, task: Task, memory: Params | None = None) -> SiteReport:
        """Return the report of a site that trained its model; loss: the mean one.

        None: it had no images to learn from, and all stays as it was. Raises RunError as `finite`.
        """
        if loss is None:
            return SiteReport()
        metrics = {"loss": self.finite(loss, task)}
        return SiteReport(self.params(), learned=True, metrics=metrics, memory=memory)

    def labelled_part(self, part: str) -> tuple[Tensor, Tensor]:
        """Return the images of "val" or "test" on the device, and their labels on the CPU."""
        found = self.data.parts[part]
        return found.inputs, found.labels.cpu()

    def predicted(self, images: Tensor) -> Tensor:
        """Return the context's model's answer without dropout, float32 [n, C], on the CPU.

        Raises RunError where it answers NaN.
        """
        [probabilities] = self.predicted_each([images])
        return probabilities

    def predicted_each(self, sets: Sequence[Tensor]) -> list[Tensor]:
        """Return the model's answer for each set of images, as `predicted` does."""
        every = predict_each(self.model, sets, self.normalise)
        if not all(map(all_finite, every)):
            raise RunError(f"site {self.data.site}: the model answers NaN; {DIVERGED_REMEDY}")
        return every

    def answers(
        self, name: str, of: tuple[str, ...], parts: Collection[str], asked: Asked
    ) -> list[Tensor]:
        """Return the probabilities [n, C] of parts of the site's data; each is asked for once.

        name: of the answer; of: the digests of all that it depends on. asked: answers parts that
        are not known yet.
        """
        known: dict[str, Tensor] = {}
        for part in parts:
            if (answer := self.cache.get(("answer", name, part), of)) is not None:
                known[part] = answer
        if missing := [part for part in dict.fromkeys(parts) if part not in known]:
            for part, answer in zip(missing, asked(missing), strict=True):
                self.cache.put(("answer", name, part), answer, of)
                known[part] = answer
        return [known[part] for part in parts]

    def of_parts(self, parts: Sequence[str]) -> list[Tensor]:
        """Return the model's answer for the images of parts, as `predicted_each` does."""
        return self.predicted_each([self.data.parts[part].inputs for part in parts])

    def evaluate(self, *parts: str, answer: str = "") -> dict[str, Evaluation]:
        """Evaluate the context's model on the site's "val" and "test" images.

        answer: one of `protocol.ANSWERS`, under whose name the results go; empty: they are of what
        the site uses.
        """
        found = [self.labelled_part(part) for part in parts]
        answers = self.predicted_each([images for images, _ in found])
        return {
            f"{part}_{answer}" if answer else part: self.evaluation(probabilities, labels)
            for part, probabilities, (_, labels) in zip(parts, answers, found, strict=True)
        }

    def evaluation(self, answers: Tensor, labels: Tensor) -> Evaluation:
        """Sum up answers [n, C] to images of these labels, as `learn.metrics.evaluation` does."""
        found = evaluation(answers, labels)
        if not self.scored:
            return found
        return found.with_scores(score_counts(answers.numpy(), labels.numpy()).tolist())

    def params(self) -> Params:
        """Return a copy of the context's model on the CPU. Raises RunError where it diverged."""
        params, sure = copied_to_cpu(tensors_of(self.model))
        for name, tensor in () if sure else params.items():
            if not all_finite(tensor):
                raise RunError(
                    f"site {self.data.site}: {name} is NaN or infinite after training; "
                    f"{DIVERGED_REMEDY}"
                )
        return params


class ImageLevel(ABC):
    """How what leaves a site protects single images, of a method that has such a form.

    noisy_training: whether the noise of a model that leaves a protected site is in its training
    already.
    """

    noisy_training: ClassVar[bool] = False

    def plan(
        self, training: TrainSettings, rounds: RoundSettings, privacy: PrivacySettings
    ) -> Plan:
        """Return what a run releases of one image; here one release."""
        return Plan()

    @abstractmethod
    def released(self, task: Task, site: SiteContext) -> frozenset[str]:
        """Return the roles of the contents that a protected site's task sends, before it is done.

        From the question alone: by it the task is paid for or refused, and neither may depend on an
        image.
        """

    def steps(self, task: Task, site: SiteContext) -> int:
        """Return how many steps that protect single images a task takes, of its question alone."""
        return 0

    @abstractmethod
    def sensitivity(self, task: Task, site: SiteContext) -> Mapping[str, float]:
        """Return what one image changes at most in each content that a task releases, by role.

        L2 norm over all numbers of the content; of one that is averaged, times the site's weight.
        Noise is added to it outside of the method. No other content leaves a protected site, but
        for a model in whose training the noise is.
        """


class Method(ABC, Generic[State]):
    """Base of every method; methods derive from it only, never from one another."""

    name: ClassVar[str]
    state: ClassVar[type[MethodState]] = MethodState
    """What it remembers at the server; made without arguments, it is what a run begins with."""
    begins: ClassVar[str] = "warm-up"
    """What round 0 is, for people to read."""
    joins_at: ClassVar[float] = 0
    """First round whose answers other sites have a part in; a model of a round before is trained at
    the site alone. 0: all begin with the server's common model; above, there is none."""
    optional: ClassVar[frozenset[str]] = frozenset()
    """Actions of tasks that any number of sites may leave undone: the others go on without them."""
    learns_from: ClassVar[frozenset[str]] = frozenset({LABELLED, UNLABELLED})
    """The parts of a site's data that it can learn from, of `fedapp.data.sites.TRAINING`."""
    image_level: ClassVar[ImageLevel | None] = None
    """How what leaves a site protects single images; None: it has no such form."""

    unsupported: ClassVar[Reasons] = {
        "split.labels": "its sites learn from labels of their own",
        "training.uneven": "how it learns from labels has no form in which classes count alike",
        "privacy.epsilon": "it has no form in which single images are protected",
        "data.findings": "it has no form in which an image has several labels: choose recommended "
        "or fedavg",
    }
    """Why it cannot run with a setting, by its dotted key (`incompatibilities.SETTINGS`).

    A class says what differs from those that it is made from; an empty text: it can. What nobody
    has made a form for is refused, so that no run begins that means nothing.
    """

    def incompatibilities(
        self, conditions: Conditions, why: Reasons = NO_REASONS
    ) -> list[Incompatibility]:
        """Return with what it cannot run, of settings, inputs and a site's data.

        why: in the place of `unsupported`, from a class made from this one whose reasons depend on
        its own settings.
        """
        reasons: dict[str, str] = {}
        for each in reversed(type(self).__mro__):
            reasons |= vars(each).get("unsupported", NO_REASONS)
        if self.image_level:
            reasons["privacy.epsilon"] = ""
        return conditions.refused(self.name, {**reasons, **why})

    @abstractmethod
    def server_round(self, state: State, rnd: Round) -> Phases[State]:
        """Run one round: yield the tasks of each phase, receive its replies, return the state.

        A phase has one task for a site at most; a site may be asked in several phases. Replies come
        in site order, the server's own first; sites that failed or were silent are absent.
        """

    @abstractmethod
    def site_round(self, task: Task, site: SiteContext) -> SiteReport:
        """Do a task at a site."""

    def used(self, task: Task, site: SiteContext, answer: str = "") -> Mapping[str, Predictor]:
        """Return what the site answers with, by name; most methods: its own model alone.

        The networks whose answers its evaluations of "val" and "test" were of, for others to use.
        task: names the models, as one that only measures does. answer: one of `protocol.ANSWERS`
        that it measures; empty: the one that it uses. Most methods measure the answer that they
        use, and no other. Raises RunError as `SiteContext`.
        """
        site.load(task.own)
        return {"own": Predictor(site.params())}

    def welcome(self, rnd: Round) -> Sequence[Task]:
        """Return what the round's newcomers do before it; most methods: nothing."""
        return ()

    @property
    def called(self) -> str:
        """The name under which people know a method of these settings."""
        return self.name

    def images_per_step(self, batch_size: int, data: SiteData) -> int:
        """Return how many images go through the network at once in training, at most.

        data: of the site with most training images.
        """
        return batch_size

    def kept_private(self, model: nn.Module) -> frozenset[str]:
        """Return the names of the model's tensors that never leave a site; most methods: none."""
        return frozenset()

    def memory(self, model: nn.Module, w_0: Params) -> Params:
        """Return what a site remembers between its tasks, with the values that it starts from.

        Such as a second network, an optimiser's state or a step counter, by name. It never leaves
        the site. A site that lost it starts again from here, and the run says so. Most methods:
        nothing. w_0: all tensors of the network; names, shapes and dtypes of the result must not
        depend on their values.
        """
        return {}

    def roles(self, model: nn.Module) -> Mapping[str, Schema]:
        """Return the schemas of what sites send beside their model, by role; most: nothing."""
        return {}

    def check_reply(self, task: Task, reply: Reply, facts: SiteFacts) -> None:
        """Check what only the method knows of a reply. Raises ProtocolError naming the rule.

        facts: what the site said of its data.
        """

    def check_contents(
        self, task: Task, reply: Reply, arrived: Mapping[str, Arrived], facts: SiteFacts
    ) -> None:
        """Check what only the method knows of a reply's new contents, by role.

        Each is of its role's schema. facts: what the site said of its data. Raises ProtocolError
        naming the rule.
        """

    sums_suffice: ClassVar[bool] = False
    """Whether its server needs nothing of a site but sums over sites (`privacy.sums=masked`)."""
    counted: ClassVar[tuple[str, ...]] = ()
    """Names of metrics of the method's own that the server adds up."""

    def summed(self, task: Task) -> Mapping[str, bool]:
        """Return the roles of the contents that a task's replies may have, for masked sums.

        True: the server wants their mean by `weight`; False: their sum. Most: models, averaged.
        """
        return {} if task.action == EVALUATE else {MODEL: True}

    def weight(self, facts: SiteFacts, reply: Reply) -> float:
        """Return a site's weight in an average, at least 0; of methods that average."""
        return 0.0

    def averaging(self, rule: Rule[Any]) -> Rule[Any]:
        """Return how the server averages, given the rule that the run names; most: by that rule."""
        return rule

    def costs(self, num_clients: int, sample_rate: float, num_rounds: int) -> dict[str, float]:
        """Return what the method's paper says that it sends, in models, by name."""
        return {}


def check_counts(metrics: Mapping[str, float], most: Mapping[str, float]) -> None:
    """Check that these metrics, 0 where absent, are counts up to these bounds.

    Raises ProtocolError naming the metric.
    """
    for name, limit in most.items():
        value = metrics.get(name, 0)
        if not 0 <= value <= limit or value != int(value):
            raise ProtocolError(f"metric {name} = {value:g}; must be a count in [0, {limit:g}]")


def check_unchanged(task: Task, reply: Reply) -> None:
    """Check that a site that was only to look has sent nothing new. Raises ProtocolError."""
    before = task.own.digest, task.private
    if (reply.model, reply.private) != before or reply.contents:
        raise ProtocolError(f"asked to {task.action} only, it changed its own model")


def schemas(method: Method[State], model: nn.Module) -> dict[str, Schema]:
    """Return the schema of what sites share, by role."""
    kept, others = method.kept_private(model), method.roles(model)
    assert not others.keys() & {MODEL, MESSAGE, EVALUATION}, "a role must have a name of its own"
    return {MODEL: schema_of(without(model.state_dict(), kept)), **others}


def warm_ups(rnd: Round) -> list[Task]:
    """Return the tasks of round 0 for sites that begin now: all in round 0, else the newcomers.

    They are the same tasks at any time, so a site that comes late has the model after them that it
    would have had from the start.
    """
    beginners = rnd.newcomers if rnd.number else rnd.sites
    return [replace(rnd, number=0).task(site, "warmup") for site in beginners]


def warm_up(task: Task, site: SiteContext) -> SiteReport:
    """Supervised training on the labelled images alone (Alg. 1, line 5).

    A site without labels keeps w_0, version 0.
    """
    site.load(task.own)
    if not len(site.data.labels) or not site.training.warmup_epochs:
        return SiteReport(evaluations=site.evaluate("val", "test"))
    targets = site.one_hot(site.data.labels)
    count, epochs = len(site.data.labels), site.training.warmup_epochs
    loss = site.fit(site.data.labelled, targets, count, epochs, task)
    return replace(site.trained(loss, task), evaluations=site.evaluate("val", "test"))
