"""What ProtoFSSL and FlexProtoFSSL have in common: models are averaged, prototypes are lent.

A site learns by episodes (`_episodes`): its images are told apart by their distances to class
prototypes; the classifier head is never used, and stays at home as it was. With its model a site
sends the prototypes of all its labelled images, and a mask of the classes that it has labels of.
Helpers are the sites that sent some last. To those that learn next the server lends the helpers'
prototypes: under its own encoder a site asks each helper's what an unlabelled image is. The common
answer is the server's encoder with the mean of the helpers' prototypes.
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
"""The role."""
CENTRES, MASK = "centres", "mask"
"""Its tensors: float32 [C, d], and uint8 [C], 1 where the site has labels of the class."""
MEND = "have the site run this version of fedapp, unchanged"
"""The remedy where an honest site's program cannot have sent what came."""
GREATEST = 1e6
"""Of a prototype's numbers, which after training are some tens."""
SQUARE = "square."
"""Goes before the name of a parameter whose running square a site remembers."""


@plain_dataclass(frozen=True)
class Helpers(MethodState):
    """sent: by site, the version of its prototypes and the round in which it sent them.

    helpers: the sites whose prototypes are lent next, ascending.
    """

    sent: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    helpers: tuple[int, ...] = ()

    def lent(self, pool: PoolView) -> list[ModelRef]:
        """Return the helpers' newest prototypes."""
        return [pool.latest(site, PROTOTYPES) for site in self.helpers]

    def after(self, rnd: Round, most: int, rounds: int) -> "Helpers":
        """Return what follows from what the pool has after a round's training.

        Helpers are of the last so many rounds in which any site sent prototypes; of more than
        `most` sites, some drawn.
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
    """A method made from this says which answers of helpers pass (`thresholds`)."""

    state: ClassVar[type[MethodState]] = Helpers

    distance: Distance = "euclidean"
    """From an embedding to a prototype."""
    temperature: Positive = 0.1
    """T: a helper answer's probabilities are sharpened to the power 1 / T."""
    unlabelled_weight: Annotated[float, Field(ge=0)] = 0.3
    """lambda: weight of the unlabelled images' loss."""
    unlabelled_from: Count = 1
    """First round in which sites learn from unlabelled images."""
    support: Count = 1
    """Images of a class that make its prototype in an episode."""
    query: Count = 2
    """Images of a class that are asked about in an episode."""
    helper_count: Annotated[int, Field(ge=1, le=64)] = 5
    """Most sites whose prototypes are lent."""
    helper_rounds: Count = 1
    """Rounds, counted back, whose prototypes are lent."""
    proximal: Annotated[float, Field(ge=0)] = 0.0
    """mu of FedProx's term, mu / 2 ||w - w_t||^2; 0: FedAvg."""
    keep_optimiser: bool = False
    """A site goes on with RMSprop's running squares, as large as the model on its disk. Under
    training.optimiser=sgd there are none, and it begins anew in each task."""
    answer: Literal["common", "tuned"] = "common"
    """What a site uses: the server's model with the helpers' prototypes, or its own with its own.
    """

    def server_round(self, state: Helpers, rnd: Round) -> Phases[Helpers]:
        """Average the models of those that learned, by numbers of images; lend prototypes."""
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
        """Learn from the server's model on, by episodes; or measure."""
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
        """Return what unlabelled images are learned by; None: they are not yet, or by nobody.

        The network holds the received model.
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
        """Return T(k), [C]: above it a helper's answer "class k" passes.

        lent: the helpers' prototypes [H, C, d], H >= 1. The network holds the received model.
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
        """Measure the common answer and the site's own, each under its name."""
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
        """Let the network answer as the server's model does, or as the site's own.

        The site's own has the prototypes of the site's own labelled images under the model that it
        trained last, or under the server's; what is missing there, the helpers have.
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
        """B unlabelled images, and the labelled ones of an episode, taken to be as many."""
        return 2 * batch_size

    def kept_private(self, model: nn.Module) -> frozenset[str]:
        """The head: it is not used, so it need not travel."""
        return head_names(model)

    def memory(self, model: nn.Module, w_0: Params) -> Params:
        """RMSprop's running squares, if so set."""
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

        Which classes it has labels of the server is told by the mask alone: by the first that comes
        it judges all others, since a site's labels stay as they are for the whole run.
        """
        if PROTOTYPES not in arrived:
            return
        known = read(arrived[PROTOTYPES].whole).known
        has = int(known.sum())
        if not has:
            raise ProtocolError(
                f"prototypes: {MASK} has no class; a site sends those of its labelled images, or "
                f"none at all: {MEND}"
            )
        if has > facts.labelled:
            raise ProtocolError(
                f"prototypes: classes sent: {has}, labelled images of the site: {facts.labelled}; "
                f"a class needs one image at least: {MEND}"
            )
        before = arrived[PROTOTYPES].before()
        if before is not None and not torch.equal(known, read(before).known):
            raise ProtocolError(
                f"prototypes: {MASK} has the classes {listed(known)}, the one before had "
                f"{listed(read(before).known)}; a site's labels stay the same in a run: restore "
                "its labels, or start a new run"
            )

    def _squares(self, site: SiteContext) -> dict[str, Tensor]:
        """Return the running squares to go on from, on the device; none where none are kept.

        SGD has none. Adam has its own, and who sets it may think that they are kept.
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
    """Return prototypes [C, d] as they travel."""
    centres, mask = prototypes.centres.cpu(), prototypes.known.to("cpu", torch.uint8)
    return {CENTRES: centres, MASK: mask}


def read(content: Params) -> Prototypes:
    """Return prototypes that came, [C, d]. Raises ProtocolError where they cannot be true."""
    centres, mask = content[CENTRES], content[MASK]
    if int(mask.max()) > 1:
        raise ProtocolError(
            f"prototypes: {MASK} must hold 0 and 1 alone, it holds {int(mask.max())}: {MEND}"
        )
    known, some = mask.bool(), centres.any(1)
    if bool((some & ~known).any()):
        raise ProtocolError(
            f"prototypes: {MASK} says that there is none of class {listed(some & ~known)}, and "
            f"its numbers are not 0: {MEND}"
        )
    if bool((known & ~some).any()):
        raise ProtocolError(
            f"prototypes: {MASK} says that there is one of class {listed(known & ~some)}, and all "
            "its numbers are 0: the site's network answers nothing; lower training.learning_rate"
        )
    large = centres.abs().amax(1) > GREATEST
    if bool(large.any()):
        raise ProtocolError(
            f"prototypes: a number beyond {GREATEST:g} in class {listed(large)}; "
            "lower training.learning_rate"
        )
    return Prototypes(centres, known)


def listed(chosen: Tensor) -> str:
    """Name the chosen classes, bool [C], by number, counted from 0; "none" of no class."""
    return ", ".join(str(k) for k in chosen.nonzero().flatten().tolist()) or "none"
