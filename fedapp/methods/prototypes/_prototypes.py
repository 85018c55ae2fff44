"""What ProtoFSSL and FlexProtoFSSL have in common: models are averaged, prototypes are shared.

A site learns by episodes (`_episodes`): images are classified by their distances to class
prototypes. The classifier head is never used, and stays at the site unchanged. With its model a
site sends the prototypes of all its labelled images, and a mask of the classes that it has labels
of. Helpers are the sites that sent prototypes in the last rounds. The server sends the helpers'
prototypes to the sites that learn next: with its own encoder a site classifies its unlabelled
images by each helper's prototypes. The common answer is the server's encoder with the mean of the
helpers' prototypes.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass as plain_dataclass
from dataclasses import field
from itertools import compress
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from fedapp.core.errors import ConfigError, ProtocolError
from fedapp.core.settings import CLOSED, Count, Positive
from fedapp.data.sites import SiteData
from fedapp.learn.networks.base import Network
from fedapp.learn.networks.parts import head_names
from fedapp.learn.objectives import detached_copies, proximal_penalty
from fedapp.learn.optimisers import Penalty
from fedapp.learn.params import Params, Schema
from fedapp.learn.predictors import Predictor, by_prototypes
from fedapp.learn.prototypes import (
    Distance,
    Prototypes,
    class_means,
    completed,
    embedded,
    mean_of,
)
from fedapp.learn.training import descend
from fedapp.methods.averaging.base import WARM_UP, aggregate_round, work_of
from fedapp.methods.base import (
    Arrived,
    Method,
    MethodState,
    Phases,
    PoolView,
    Round,
    SiteContext,
    SiteReport,
)
from fedapp.methods.prototypes._episodes import Shape, Teaching, episodes
from fedapp.protocol.messages import (
    EVALUATE,
    SERVER_SITE,
    Evaluation,
    ModelRef,
    Reply,
    SiteFacts,
    Task,
)

PROTOTYPES = "prototypes"
"""The role of prototypes."""
CENTRES, MASK = "centres", "mask"
"""Its tensors: float32 [C, d], and uint8 [C], 1 where the site has labels of the class."""
REMEDY = "have the site run this version of fedapp, unchanged"
"""The remedy where no unchanged program of a site can have sent what arrived."""
MAX_PROTOTYPE_VALUE = 1e6
"""Maximum absolute value in a prototype; after training values are below a hundred."""
SQUARE = "square."
"""Prefix of a parameter's name for the running square that a site remembers."""


@plain_dataclass(frozen=True)
class Helpers(MethodState):
    """sent: for each site, the version of its prototypes and the round in which it sent them.

    helpers: the sites whose prototypes are sent out next, ascending.
    """

    sent: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    helpers: tuple[int, ...] = ()

    def lent(self, pool: PoolView) -> list[ModelRef]:
        """Return the helpers' newest prototypes."""
        return [pool.latest(site, PROTOTYPES) for site in self.helpers]

    def after(self, rnd: Round, most: int, rounds: int) -> "Helpers":
        """Return the state after a round's training.

        Helpers are the sites that sent prototypes in the last `rounds` rounds in which any site
        did; if these are more than `most`, some are drawn.
        """
        sent = dict(self.sent)
        for site in rnd.pool.having(PROTOTYPES):
            version = rnd.pool.latest(site, PROTOTYPES).version
            if site not in sent or sent[site][0] != version:
                sent[site] = version, rnd.number
        last = sorted({number for _, number in sent.values()})[-rounds:]
        recent = sorted(site for site, (_, number) in sent.items() if number in last)
        if len(recent) > most:
            recent = sorted(rnd.stream("helpers", SERVER_SITE).permutation(recent)[:most].tolist())
        return Helpers(sent, tuple(recent))


@dataclass(frozen=True, kw_only=True, config=CLOSED)
class WithPrototypes(Method[Helpers]):
    """A method derived from this defines which answers of helpers are used (`thresholds`)."""

    state: ClassVar[type[MethodState]] = Helpers

    distance: Distance = "euclidean"
    """How the distance from an embedding to a prototype is measured."""
    temperature: Positive = 0.1
    """T: the probabilities of a helper's answer are sharpened to the power 1 / T."""
    unlabelled_weight: Annotated[float, Field(ge=0)] = 0.3
    """lambda: weight of the unlabelled images' loss."""
    unlabelled_from: Count = 1
    """First round in which sites learn from unlabelled images."""
    support: Count = 1
    """Images of a class that make its prototype in an episode."""
    query: Count = 2
    """Images of a class that are classified in an episode."""
    helper_count: Annotated[int, Field(ge=1, le=64)] = 5
    """Maximum number of helpers."""
    helper_rounds: Count = 1
    """How many of the last rounds with prototypes the helpers come from."""
    proximal: Annotated[float, Field(ge=0)] = 0.0
    """mu of FedProx's term, mu / 2 ||w - w_t||^2; 0: FedAvg."""
    keep_optimiser: bool = False
    """A site keeps RMSprop's running squares from task to task; they take as much disk space as the
    model. training.optimiser=sgd has none, and starts anew in each task."""
    answer: Literal["common", "tuned"] = "common"
    """What a site uses: the server's model with the helpers' prototypes (common), or its own model
    with its own prototypes (tuned)."""

    def server_round(self, state: Helpers, rnd: Round) -> Phases[Helpers]:
        """Average models by numbers of images, and send helpers' prototypes to the sites."""
        lent = state.lent(rnd.pool)
        newest = yield from aggregate_round(rnd, self.weight, extra_payloads={PROTOTYPES: lent})
        state = state.after(rnd, self.helper_count, self.helper_rounds)
        lent = state.lent(rnd.pool)
        yield [rnd.task(k, EVALUATE, server=[newest], prototypes=lent) for k in rnd.sites]
        return state

    def weight(self, facts: SiteFacts, reply: Reply) -> float:
        """Return a site's weight in the average: the number of images that it learned from."""
        alone = reply.round < self.unlabelled_from or not self.unlabelled_weight
        return facts.labelled if alone else facts.labelled + facts.unlabelled

    def site_round(self, task: Task, site: SiteContext) -> SiteReport:
        """Train the server's model by episodes, or evaluate."""
        if task.action == EVALUATE:
            return SiteReport(evaluations=self.measured(task, site))
        site.load(task.models["server"][0])
        squares = self._squares(site)
        penalty = self.penalty(site.model)
        teaching = self.teaching(task, site)
        with site.drawing(task):
            shape = Shape(self.support, self.query)
            steps = episodes(work_of(task, site), shape, self.distance, teaching)
            loss = descend(site.model, steps, site.training, penalty, squares)
        if loss is None:  # nothing to ask
            return SiteReport()
        return SiteReport(
            site.params(),
            contents={PROTOTYPES: written(own_prototypes(site))} if len(site.data.labels) else {},
            learned=True,
            metrics={"loss": site.finite(loss, task)},
            memory={f"{SQUARE}{name}": of.cpu() for name, of in squares.items()} or None,
        )

    def teaching(self, task: Task, site: SiteContext) -> Teaching | None:
        """Return what unlabelled images are learned from; None: they are not used in this task.

        The network must hold the received model.
        """
        lent = self.lent(task, site)
        wanted = self.unlabelled_weight and task.round >= self.unlabelled_from
        if task.action == WARM_UP or not wanted or not lent.known.any():
            return None
        lent = completed(lent, mean_of(lent))
        limits = self.thresholds(lent, site)
        return Teaching(lent, limits, self.temperature, self.unlabelled_weight)

    @abstractmethod
    def thresholds(self, lent: Prototypes, site: SiteContext) -> Tensor:
        """Return T(k), [C]: a helper's answer "class k" is used if its probability is above it.

        lent: the helpers' prototypes [H, C, d], H >= 1. The network must hold the received model.
        """

    def lent(self, task: Task, site: SiteContext) -> Prototypes:
        """Return the helpers' prototypes that came with a task, [H, C, d], H >= 0."""
        classes, features = site.data.num_classes, site.model.features
        each = [read(site.contents(ref)) for ref in task.models[PROTOTYPES]]
        centres = torch.zeros(len(each), classes, features)
        known = torch.zeros(len(each), classes, dtype=torch.bool)
        for place, one in enumerate(each):
            centres[place], known[place] = one.centres, one.known
        return Prototypes(centres.to(site.device), known.to(site.device))

    def measured(self, task: Task, site: SiteContext) -> dict[str, Evaluation]:
        """Evaluate the common answer and the site's own, each under its name."""
        results: dict[str, Evaluation] = {}
        for answer in ("common", "tuned"):
            with self.answering(answer, task, site):
                results |= site.evaluate("val", "test", answer=answer)
        return results | {part: results[f"{part}_{self.answer}"] for part in ("val", "test")}

    def used(self, task: Task, site: SiteContext, answer: str = "") -> dict[str, Predictor]:
        """Return the common answer or the site's own."""
        answer = answer or self.answer
        with self.answering(answer, task, site):
            return {answer: Predictor(site.params(), distance=self.distance)}

    @contextmanager
    def answering(self, answer: str, task: Task, site: SiteContext) -> Iterator[None]:
        """Make the network answer as the server's model does, or as the site's own.

        The site's own answer uses the prototypes of its labelled images under the model that it
        trained last, or under the server's; prototypes of further classes come from the helpers.
        """
        prototypes = mean_of(self.lent(task, site))
        tuned = answer == "tuned"
        site.load(task.own if tuned and task.own.version else task.models["server"][0])
        if tuned:
            prototypes = completed(own_prototypes(site), prototypes)
        with by_prototypes(site.model, prototypes, self.distance):
            yield

    def penalty(self, model: Network) -> Penalty | None:
        """mu / 2 ||w - w_t||^2 over the encoder, w_t being what the network holds now."""
        if not self.proximal:
            return None
        head = head_names(model)  # without a gradient, not even one of 0, it stays as it is
        encoder = [name not in head for name, _ in model.named_parameters()]
        anchors = detached_copies(compress(model.parameters(), encoder))

        def pulled(parameters: Sequence[Tensor]) -> Tensor:
            return proximal_penalty(list(compress(parameters, encoder)), anchors, self.proximal)

        return pulled

    def images_per_step(self, batch_size: int, data: SiteData) -> int:
        """B unlabelled images, and an episode's labelled ones, estimated to be as many."""
        return 2 * batch_size

    def kept_private(self, model: nn.Module) -> frozenset[str]:
        """The head: it is not used, so it need not travel."""
        return head_names(model)

    def memory(self, model: nn.Module, w_0: Params) -> Params:
        """With `keep_optimiser`, RMSprop's running squares."""
        if not self.keep_optimiser:
            return {}
        encoder = {name for name, _ in model.named_parameters()} - head_names(model)
        return {f"{SQUARE}{name}": torch.zeros_like(w_0[name]) for name in encoder}

    unsupported: ClassVar = {"privacy.clip": "it sends prototypes beside models"}

    def roles(self, model: nn.Module) -> Mapping[str, Schema]:
        """Prototypes with their mask."""
        assert isinstance(model, Network)
        classes, features = model.head.weight.shape
        return {
            PROTOTYPES: {
                CENTRES: ((classes, features), torch.float32),
                MASK: ((classes,), torch.uint8),
            }
        }

    def check_contents(
        self, task: Task, reply: Reply, arrived: Mapping[str, Arrived], facts: SiteFacts
    ) -> None:
        """Refuse prototypes that cannot be of the site's labelled images.

        Only the mask tells the server which classes a site has labels of. The first mask that
        arrives is compared with all later ones, since a site's labels do not change during a run.
        """
        if PROTOTYPES not in arrived:
            return
        known = read(arrived[PROTOTYPES].whole).known
        has = int(known.sum())
        if not has:
            raise ProtocolError(
                f"prototypes: {MASK} has no class; a site sends those of its labelled images, or "
                f"none at all: {REMEDY}"
            )
        if has > facts.labelled:
            raise ProtocolError(
                f"prototypes: classes sent: {has}, labelled images of the site: {facts.labelled}; "
                f"a class needs one image at least: {REMEDY}"
            )
        before = arrived[PROTOTYPES].before()
        if before is not None and not torch.equal(known, read(before).known):
            raise ProtocolError(
                f"prototypes: {MASK} has the classes {class_numbers(known)}, the one before had "
                f"{class_numbers(read(before).known)}; a site's labels stay the same in a run: "
                "restore its labels, or start a new run"
            )

    def _squares(self, site: SiteContext) -> dict[str, Tensor]:
        """Return the running squares to continue from, on the device; empty where none are kept.

        SGD has none. Adam has a state of its own; whoever sets it might assume that it is kept.
        """
        optimiser = site.training.optimiser
        if self.keep_optimiser and optimiser == "adam":
            raise ConfigError(
                "method.keep_optimiser keeps RMSprop's running squares, not Adam's: set "
                "training.optimiser=rmsprop or keep_optimiser=false"
            )
        if optimiser != "rmsprop":
            return {}
        return {
            name.removeprefix(SQUARE): of.to(site.device, copy=True)
            for name, of in site.memory.items()
        }


def own_prototypes(site: SiteContext) -> Prototypes:
    """Return the prototypes of all the site's labelled images under the context's model."""
    embeddings = embedded(site.model, site.data.labelled, site.normalise)
    return class_means(embeddings, site.data.labels, site.data.num_classes)


def written(prototypes: Prototypes) -> Params:
    """Return prototypes [C, d] as the tensors that travel."""
    centres, mask = prototypes.centres.cpu(), prototypes.known.to("cpu", torch.uint8)
    return {CENTRES: centres, MASK: mask}


def read(content: Params) -> Prototypes:
    """Return the prototypes of a content, [C, d]. Raises ProtocolError if impossible."""
    centres, mask = content[CENTRES], content[MASK]
    if int(mask.max()) > 1:
        raise ProtocolError(
            f"prototypes: {MASK} must hold 0 and 1 alone, it holds {int(mask.max())}: {REMEDY}"
        )
    known, some = mask.bool(), centres.any(1)
    if bool((some & ~known).any()):
        raise ProtocolError(
            f"prototypes: {MASK} says that there is none of class {class_numbers(some & ~known)}, "
            f"and its numbers are not 0: {REMEDY}"
        )
    if bool((known & ~some).any()):
        raise ProtocolError(
            f"prototypes: {MASK} says that there is one of class {class_numbers(known & ~some)}, "
            "and all its numbers are 0: the site's network answers nothing; lower "
            "training.learning_rate"
        )
    large = centres.abs().amax(1) > MAX_PROTOTYPE_VALUE
    if bool(large.any()):
        raise ProtocolError(
            f"prototypes: a number beyond {MAX_PROTOTYPE_VALUE:g} in class {class_numbers(large)}; "
            "lower training.learning_rate"
        )
    return Prototypes(centres, known)


def class_numbers(chosen: Tensor) -> str:
    """Return the numbers of the chosen classes, bool [C], as text; "none" of no class."""
    return ", ".join(str(k) for k in chosen.nonzero().flatten().tolist()) or "none"
