"""What a method is: a frozen value with one rule for the server and one for a site.

A method never sees Flower, files or sockets. The server's rule is a generator that yields the tasks
of a phase and receives the replies, so that it reads like the paper's algorithm. A site's rule is a
function of a task and the site's data.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

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
from fedapp.evaluation.verdict import WARM_UP_ALONE
from fedapp.learn.metrics import evaluation, predict_each
from fedapp.learn.model_caches import Score
from fedapp.learn.networks.base import Network, NetworkSettings
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
from fedapp.methods.incompatibilities import NO_REASONS, Conditions, Reasons, reasons_of
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
    """The part of the model pool that a method may use.

    The models of sites change between phases, never within one; the server's model changes when
    `average` is called.
    """

    def latest(self, site: int, role: str = MODEL) -> ModelRef:
        """Return the newest version of a site's model, or of its content of another role.

        Every site has a model, at first w_0; a content of another role exists only for the sites
        that `having` returns.
        """

    def having(self, role: str) -> tuple[int, ...]:
        """Return the sites that have sent a content of this role, ascending."""

    def has(self, site: int, role: str) -> bool:
        """Whether a site, or the server's own, has sent or made a content of this role."""

    def trained(self) -> tuple[int, ...]:
        """Return the sites whose model has been trained at least once, ascending."""

    def common(self, role: str = MODEL) -> ModelRef:
        """Return the server's newest content of a role; without one, its newest model."""

    def read(self, ref: ModelRef) -> Params:
        """Return a content's tensors. Nobody may change them in place."""

    def put(self, params: Params, role: str) -> ModelRef:
        """Store these tensors as the server's newest content of a role."""

    def average(self, parts: Sequence[tuple[float, ModelRef]], role: str = MODEL) -> ModelRef:
        """Store sum_j a_j w_j / sum_j a_j as the server's newest content of a role.

        Every averaged role must have the model's tensors. Integer tensors are those of the role's
        current content (`common`). With `rounds.robust`, or where a method overrides `averaging`,
        another rule takes the mean's place.
        """


@dataclass(frozen=True)
class MethodState:
    """What a method remembers at the server beside the pool; this base class holds nothing.

    A method that remembers more derives a frozen dataclass of values that JSON can hold. It is
    saved with every checkpoint.
    """

    def needs(self) -> Collection[str]:
        """Return the digests of contents that the state refers to, beside every site's newest."""
        return ()

    def shown(self) -> Mapping[str, float]:
        """Return numbers, by name, for the row of each round and for the summary; usually none."""
        return {}

    def in_summary(self) -> Mapping[str, float]:
        """Return further numbers that only the summary shows, by name; usually none."""
        return {}

    def column(self, site: int) -> str:
        """Return the text that `per_site.csv` shows about a site's helpers; usually none."""
        return ""


State = TypeVar("State", bound=MethodState)
Result = TypeVar("Result")
Phases = Generator[Sequence[Task], Sequence[Reply], Result]
"""A round at the server, or a part of one: a generator that yields the tasks of each phase,
receives the replies, and returns a result."""


@dataclass(frozen=True)
class Round:
    """One round as the server sees it.

    number: 0 is the warm-up. sites: all known sites, ascending. cohort: the sites that train.
    facts: what each site reported about its data. private: the digest of what each site keeps to
    itself. joined: for each site that came late, the round in which it joined. server_learns:
    whether the server holds labelled images and can be given tasks (`SERVER_SITE`). last: the
    number of the run's last round. say: prints a line for the person who watches the run.
    warmup_rounds: how many averages round 0 has in a method that averages. masked: sums over sites
    are all that is known: `sites` is `EVERYBODY`, the cohort is `COHORT`. finds: whether the
    classes are findings, of which an image may show several. protection: of single images; None:
    there is none.
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
        """All sites, ascending; before them the server's own where it has labelled images."""
        return (SERVER_SITE, *self.sites) if self.server_learns else self.sites

    @property
    def newcomers(self) -> tuple[int, ...]:
        """The sites that join in this round, ascending; none in round 0."""
        return tuple(k for k in self.sites if 0 < self.joined.get(k, 0) == self.number)

    def stream(self, purpose: str, site: int) -> np.random.Generator:
        """Return a generator determined by the seed, the purpose, the round and the site."""
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
    """Which tensors of a content travel, at least one; the others are taken from another content.

    base: that other content, which has the same tensors and is named in the task; None: the
    report's own new model.
    """

    names: frozenset[str]
    base: ModelRef | None


@dataclass(frozen=True)
class SiteReport:
    """What a site's rule returns for a task.

    params: all tensors of the site's new model; None: it did not change. contents: its new contents
    of other roles (`Method.roles`). learned: whether it trained. sent: for a content of which only
    a part travels, which tensors do; the server and all others take the rest from the base. A role
    that is absent travels whole. memory: the new tensors of `Method.memory`; None: they did not
    change. personal: the model that was evaluated, where the site never sends it; None: `params`,
    or the model that the task named. pseudo: statistics of the pseudo-labels that were used for
    training. holds: contents named in the task that the site keeps because later tasks name them
    again.
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
    """A new content of a site, as the server received it.

    whole: all its tensors. came: names of the tensors that were sent; empty where it is the site's
    model once more. before: reads the site's previous content of that role from the pool, also
    after a resume; it returns None where there is none, or the server's disk lost it.
    """

    whole: Params
    came: frozenset[str]
    before: Callable[[], Params | None] = lambda: None


Answerer = Callable[[Sequence[str]], Sequence[Tensor]]
"""A function from names of parts of a site's data to a model's probabilities [n, C] for each
part."""


SITE_CACHE_BYTES = 2**27
"""Maximum size of each cache of a `SiteContext`."""


class Contents(Protocol):
    """Returns the parsed and checked tensors of a content."""

    def __call__(self, ref: ModelRef) -> Params:
        """Return the tensors of a content that the task names."""


@dataclass(frozen=True)
class SiteContext:
    """What a site's rule works with. model: a network on the device, to load weights into.

    kept: the tensors of the site's model that never leave it; usually none. memory: what it
    remembers between its tasks (`Method.memory`). scores: the site's scores of other sites' models
    (`learn.score_cache`). cache: other results computed from the site's images that later tasks can
    use again: fixed features, answers of models and their evaluation. The key of a result that
    depends on a model contains the digests of everything the model depends on. protection: of
    single images; None: there is none. secret: maps a text to 32 bytes that only this site can
    compute; it seeds draws that nobody else may predict. flip: whether the mirror image of an input
    has the same class. scored: whether evaluations include counts of scores
    (`rounds.pooled_auroc`).
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
    scores: Cache[Score] = field(default_factory=lambda: Cache(SITE_CACHE_BYTES))
    cache: Cache[Any] = field(default_factory=lambda: Cache(SITE_CACHE_BYTES))
    protection: Protection | None = None
    secret: Callable[[bytes], bytes] = lambda what: b""

    def load(self, ref: ModelRef) -> None:
        """Load a model into the network, together with the tensors that this site keeps."""
        assign(self.model, {**self.contents(ref), **self.kept})

    def normalise(self, images: Tensor) -> Tensor:
        """Return uint8 images, or float32 numbers, as float32, scaled per channel.

        Images that are normalised while gradients are enabled are counted as learned from.
        """
        if torch.is_grad_enabled():
            count_work(images=len(images))
        return normalise(images, self.data.mean, self.data.std)

    def one_hot(self, labels: Tensor) -> Tensor:
        """Return labels [n] as targets, float32 [n, C]."""
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
        """Return the augmentation that is applied to training images at every step."""
        if self.training.augment == "none":
            return lambda images: images
        draws = self.stream(purpose, task)
        return lambda images: weak(images, self.flip, draws)

    def stream(self, purpose: str, task: Task) -> torch.Generator:
        """Return a CPU generator determined by the seed, the purpose, the task and the site."""
        return torch_stream(self.seed, purpose, task.when, self.data.site)

    @contextmanager
    def drawing(self, task: Task, purpose: str = "train") -> Iterator[None]:
        """Seed torch's global draws (dropout) by the seed, the purpose, the task and the site."""
        with seeded(self.device, self.seed, purpose, task.when, self.data.site):
            yield

    def finite(self, loss: float, task: Task) -> float:
        """Return the loss. Raises RunError when training diverged: no broken model is sent."""
        if not math.isfinite(loss):
            raise RunError(
                f"site {self.data.site}, round {task.round}: the training loss is {loss}; "
                f"{DIVERGED_REMEDY}"
            )
        return loss

    def trained(self, loss: float | None, task: Task, memory: Params | None = None) -> SiteReport:
        """Return the report of a site that trained its model. loss: the mean loss.

        None: there were no images to learn from, and nothing changed. Raises RunError as `finite`.
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
        self, name: str, of: tuple[str, ...], parts: Collection[str], asked: Answerer
    ) -> list[Tensor]:
        """Return the probabilities [n, C] for parts of the site's data, each computed only once.

        name: of the answer. of: the digests of everything that it depends on. asked: computes the
        answers for parts that are not cached.
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
        """Return the model's answers to the images of parts of the data (`predicted_each`)."""
        return self.predicted_each([self.data.parts[part].inputs for part in parts])

    def evaluate(self, *parts: str, answer: str = "") -> dict[str, Evaluation]:
        """Evaluate the context's model on the site's "val" and "test" images.

        answer: one of `protocol.ANSWERS`, which becomes a part of the results' names; empty: the
        results are those of the answer that the site uses.
        """
        found = [self.labelled_part(part) for part in parts]
        answers = self.predicted_each([images for images, _ in found])
        return {
            f"{part}_{answer}" if answer else part: self.evaluation(probabilities, labels)
            for part, probabilities, (_, labels) in zip(parts, answers, found, strict=True)
        }

    def evaluation(self, answers: Tensor, labels: Tensor) -> Evaluation:
        """Return the evaluation of answers [n, C] to images with these labels (`learn.metrics`)."""
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
    """How a method protects single images in what leaves a site (differential privacy).

    noisy_training: whether a model that leaves a protected site has its noise from training
    already.
    """

    noisy_training: ClassVar[bool] = False

    def plan(
        self, training: TrainSettings, rounds: RoundSettings, privacy: PrivacySettings
    ) -> Plan:
        """Return what a run releases about one image; by default a single release."""
        return Plan()

    @abstractmethod
    def released(self, task: Task, site: SiteContext) -> frozenset[str]:
        """Return the roles of the contents that a protected site's task will send.

        It is computed from the task alone, before any image is used: the privacy budget is charged,
        or the task refused, by this answer, which therefore must not depend on an image.
        """

    def steps(self, task: Task, site: SiteContext) -> int:
        """Return how many private training steps a task takes, computed from the task alone."""
        return 0

    @abstractmethod
    def sensitivity(self, task: Task, site: SiteContext) -> Mapping[str, float]:
        """Return how much one image can change each content that a task releases, by role.

        It is the L2 norm over all numbers of the content, and for a content that is averaged, that
        norm times the site's weight. The caller adds the noise. No other content leaves a protected
        site, except a model that was trained with noise.
        """


class Method(ABC, Generic[State]):
    """Base of every method.

    Methods derive from it or from shared base classes, never from one another.
    """

    name: ClassVar[str]
    state: ClassVar[type[MethodState]] = MethodState
    """The class of what it remembers at the server. A run begins with an instance made without
    arguments."""
    begins: ClassVar[str] = "warm-up"
    """A name of round 0 for people to read."""
    joins_at: ClassVar[float] = 0
    """First round whose answers depend on other sites; a model of an earlier round is trained at
    its site alone. 0: all sites begin with the server's common model; infinity: they never depend
    on other sites."""
    optional: ClassVar[frozenset[str]] = frozenset()
    """Actions of tasks that any number of sites may fail to do without stopping the run."""
    learns_from: ClassVar[frozenset[str]] = frozenset({LABELLED, UNLABELLED})
    """The parts of a site's data that it can learn from, among `fedapp.data.parts.TRAINING`."""
    sends_models: ClassVar[bool] = True
    """Whether its sites send models; else only contents of `roles` leave them."""
    image_level: ClassVar[ImageLevel | None] = None
    """How it protects single images in what leaves a site; None: it cannot."""

    unsupported: ClassVar[Reasons] = {
        "split.labels": "its sites learn from labels of their own",
        "training.uneven": "how it learns from labels has no form in which classes count alike",
        "privacy.epsilon": "it has no form in which single images are protected",
        "privacy.sums": "its server needs more of sites than sums over them",
        "data.findings": "it has no form in which an image has several labels: choose recommended "
        "or fedavg",
    }
    """Why it cannot run with a setting, by the setting's dotted key (`incompatibilities.SETTINGS`).

    A class declares only what differs from its base classes; an empty text means that the setting
    is supported. Whatever is not supported explicitly is refused, so that no run begins whose
    result would be meaningless."""

    def incompatibilities(
        self, conditions: Conditions, why: Reasons = NO_REASONS
    ) -> list[Incompatibility]:
        """Return with which settings, inputs and data of a site it cannot run.

        why: replaces entries of `unsupported`; for subclasses whose reasons depend on their own
        settings.
        """
        reasons = reasons_of(type(self))
        if self.image_level:
            reasons["privacy.epsilon"] = ""
        return conditions.refused(self.name, {**reasons, **why})

    def suited_to(self, network: NetworkSettings) -> Self:
        """Return the method with what its settings leave open, as suits the network.

        It is asked when a preset is read, so that a run's record names what was used.
        """
        return self

    @abstractmethod
    def server_round(self, state: State, rnd: Round) -> Phases[State]:
        """Run one round: yield the tasks of each phase, receive the replies, return the new state.

        A phase has at most one task for a site; a site may get tasks in several phases. Replies
        come in the order of sites, the server's own first; sites that failed or did not answer in
        time are absent.
        """

    @abstractmethod
    def site_round(self, task: Task, site: SiteContext) -> SiteReport:
        """Do a task at a site."""

    def used(self, task: Task, site: SiteContext, answer: str = "") -> Mapping[str, Predictor]:
        """Return the networks that a site answers with, by name; usually its own model alone.

        They are the ones that its evaluations of "val" and "test" were computed with, and are
        exported for use. task: names the models, like a task that only evaluates. answer: one of
        `protocol.ANSWERS` that the method evaluates; empty: the answer that the site uses. Raises
        RunError as `SiteContext`.
        """
        site.load(task.own)
        return {"own": Predictor(site.params())}

    def welcome(self, rnd: Round) -> Sequence[Task]:
        """Return the tasks of sites that join in this round, done before it; usually none."""
        return ()

    @property
    def lone_model(self) -> str:
        """What the model is that a site made alone, for people to read."""
        return WARM_UP_ALONE

    @property
    def called(self) -> str:
        """The name by which people know the method with these settings."""
        return self.name

    def images_per_step(self, batch_size: int, data: SiteData) -> int:
        """Return the maximum number of images in one pass through the network during training.

        data: of the site with the most training images.
        """
        return batch_size

    def kept_private(self, model: nn.Module) -> frozenset[str]:
        """Return the names of the model's tensors that never leave a site; usually none."""
        return frozenset()

    def memory(self, model: nn.Module, w_0: Params) -> Params:
        """Return the initial values of what a site remembers between its tasks, by name.

        For example a second network, an optimiser's state or a step counter; usually nothing. It
        never leaves the site. A site that lost it starts again from these values, and the run
        reports it. w_0: all tensors of the initial network; names, shapes and dtypes of the result
        must not depend on their values.
        """
        return {}

    def roles(self, model: nn.Module) -> Mapping[str, Schema]:
        """Return the schemas of contents that sites send beside their model, by role."""
        return {}

    def check_reply(self, task: Task, reply: Reply, facts: SiteFacts) -> None:
        """Check what only the method knows about a reply. Raises ProtocolError naming the rule.

        facts: what the site reported about its data.
        """

    def check_contents(
        self, task: Task, reply: Reply, arrived: Mapping[str, Arrived], facts: SiteFacts
    ) -> None:
        """Check what only the method knows about a reply's new contents, by role.

        Each already has the schema of its role. facts: what the site reported about its data.
        Raises ProtocolError naming the rule.
        """

    counted: ClassVar[tuple[str, ...]] = ()
    """Names of the method's own metrics that the server adds up."""

    def summed(self, task: Task) -> Mapping[str, bool]:
        """Return the roles of contents that replies to a task may have when sums are masked.

        True: the server needs their mean by `weight`; False: their sum. Usually models, averaged.
        """
        return {} if task.action == EVALUATE else {MODEL: True}

    def weight(self, facts: SiteFacts, reply: Reply) -> float:
        """Return a site's weight in an average, at least 0; for methods that average."""
        return 0.0

    def averaging(self, rule: Rule[Any]) -> Rule[Any]:
        """Return the rule by which the server averages; rule: the one that the settings name."""
        return rule

    def costs(self, num_clients: int, sample_rate: float, num_rounds: int) -> dict[str, float]:
        """Return the communication costs that the method's paper states, in models, by name."""
        return {}


def check_counts(metrics: Mapping[str, float], most: Mapping[str, float]) -> None:
    """Check that metrics are counts of at most these limits; an absent one is 0.

    Raises ProtocolError naming the metric.
    """
    for name, limit in most.items():
        value = metrics.get(name, 0)
        if not 0 <= value <= limit or value != int(value):
            raise ProtocolError(f"metric {name} = {value:g}; must be a count in [0, {limit:g}]")


def check_unchanged(task: Task, reply: Reply) -> None:
    """Check that a site whose task does not train has sent nothing new. Raises ProtocolError."""
    before = task.own.digest, task.private
    if (reply.model, reply.private) != before or reply.contents:
        raise ProtocolError(f"asked to {task.action} only, it changed its own model")


def schemas(method: Method[State], model: nn.Module) -> dict[str, Schema]:
    """Return the schemas of everything that sites share, by role."""
    kept, others = method.kept_private(model), method.roles(model)
    assert not others.keys() & {MODEL, MESSAGE, EVALUATION}, "a role must have a name of its own"
    return {MODEL: schema_of(without(model.state_dict(), kept)), **others}


def sent_roles(method: Method[State], shared: Iterable[str]) -> list[str]:
    """Return those of the roles that sites share whose contents a site may send."""
    return [role for role in shared if method.sends_models or role != MODEL]


def warm_ups(rnd: Round) -> list[Task]:
    """Return the warm-up tasks: in round 0 for all sites, later for those that join.

    They are the same tasks at any time, so that a site that joins late has the same model after
    them as if it had been there from the start.
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
