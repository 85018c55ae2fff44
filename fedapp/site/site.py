"""A site's work on a task: take in models, apply the method's rule, give an answer.

`SiteClient.handle` is the way of every task: `_incoming` takes in the models that the task names,
`_do` applies the method's rule and `_answer` packs what the rule reports. The same code runs at a
hospital, in a simulated site and without Flower. Sites that mask or bound what leaves them override
single steps: `masked_site` and `protected_site`.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

import torch

from fedapp.core.cache import Cache
from fedapp.core.devices import deterministic, pick_dtype, torch_threads
from fedapp.core.errors import FedAppError, ProtocolError, StoreError, message_for_server, one_line
from fedapp.data.augment import flips
from fedapp.data.sites import TEST, SiteData
from fedapp.experiment.experiment import Experiment
from fedapp.learn.frozen_answers import answers_cached_in
from fedapp.learn.model_caches import Score, score_cache
from fedapp.learn.networks import Network, NetworkSettings, build_model, initial_params
from fedapp.learn.params import Params, Schema, schema_of
from fedapp.learn.work_counter import counting_work
from fedapp.methods.base import SITE_CACHE_BYTES, Contents, SiteContext, SiteReport, schemas
from fedapp.protocol.codec import encode
from fedapp.protocol.messages import (
    IMAGES,
    MEMORY_LOST,
    MODEL,
    STEPS,
    Evaluation,
    Incoming,
    Missing,
    ModelRef,
    Refusal,
    Reply,
    SiteFacts,
    Task,
    without_repeats,
)
from fedapp.protocol.pool_key import read_key
from fedapp.protocol.store import ModelStore
from fedapp.site.held_contents import Holdings
from fedapp.site.privacy_budget import Releases, simulated_secret
from fedapp.site.private_state import MEMORY, PrivateParts, salted, stored_schema
from fedapp.site.rollback_guard import Head

log = logging.getLogger(__name__)


class Keeper(Protocol):
    """Keeps the results of a run that a site is to have, at the site."""

    def take(self, task: Task, report: SiteReport, site: SiteContext) -> Mapping[str, float]:
        """Keep the results of a task. Its report is neither clipped nor has it noise yet.

        Returns metrics that the server may know of what is kept (`verdict.PAIRS`).
        """


@dataclass(frozen=True)
class SiteClient:
    """One site with its data, its stores and its model.

    folder: the site's own folder, for what it shares with nobody.
    shares_pool: whether the store is the server's own pool, on the same machine. Then nothing is
        copied, and only the server removes contents. Otherwise the store is this site's: it holds
        what the current task names and no more (for UM-pFSSL M + R models), and an error of it
        concerns this site alone.
    keeps_scores: whether scores are also kept on the disk, since another process may do the next
        task.
    keeper: is shown the report of every task; None: nothing is kept for later use.
    features: folder for the answers of frozen networks to its images; None: these are not kept.
    released: head of its list of noisy releases; None: there is none, as in simulations.
    """

    experiment: Experiment
    data: SiteData
    classes: tuple[str, ...]
    split_digest: str
    store: ModelStore
    folder: Path
    device: torch.device
    shares_pool: bool = False
    keeps_scores: bool = False
    keeper: Keeper | None = None
    features: Path | None = None
    released: Head | None = None

    masks: ClassVar[bool] = False
    """Whether the site masks its answers (`masked_site`): the server learns only sums."""

    @classmethod
    def around(cls, site: "SiteClient", **more: Any) -> Self:
        """Return a plain site as one of this kind. more: the fields that only this kind has."""
        return cls(**{field.name: getattr(site, field.name) for field in fields(site)}, **more)

    @property
    def real(self) -> bool:
        """Whether its images are real; what a simulated site does tells nothing of anybody."""
        return self.data.audit is None

    @property
    def inputs(self) -> tuple[int, ...]:
        """The shape of one input."""
        return self.data.inputs

    def facts(self) -> SiteFacts:
        """Return all facts of the site and its data."""
        return SiteFacts(
            site=self.data.site,
            inputs=self.inputs,
            classes=self.classes,
            split_digest=self.split_digest,
            pool_key=read_key(self.store.root) if self.shares_pool else "",
            name=self.data.name,
            **self.data.counts,
        )

    def introduction(self) -> SiteFacts:
        """Return the facts that the server may know."""
        return self.facts()

    def handle(self, task: Task, payloads: Mapping[str, bytes]) -> Incoming:
        """Do a task. An error becomes an answer, a refusal, and is not raised.

        Only a StoreError of a shared store is raised: a full disk of the server must end the run,
        and must not look like the refusal of one site after the other.
        """
        runtime = self.experiment.runtime
        try:
            with (
                torch_threads(runtime.threads),
                deterministic(runtime.deterministic),
                answers_cached_in(self.features),
            ):
                if (task.sum is not None) != self.masks:
                    raise ProtocolError(
                        f"privacy.sums = {self.experiment.privacy.sums!r}, and the server asks "
                        "otherwise: this site answers as the run's settings say, or not at all"
                    )
                incoming = self._incoming(task, payloads)
        except FedAppError as error:
            if isinstance(error, StoreError) and self.shares_pool:
                raise
            log.warning("site %d, round %d: %s", task.site, task.round, one_line(error))
            incoming = Incoming(Refusal(task.site, task.round, message_for_server(error)))
        except Exception as error:  # without an answer, the server would wait until the deadline
            log.exception("site %d failed in round %d", task.site, task.round)
            incoming = Incoming(Refusal(task.site, task.round, message_for_server(error)))
        return incoming

    def _incoming(self, task: Task, payloads: Mapping[str, bytes]) -> Incoming:
        """Do a task, or say which of the contents that it names the site has not got."""
        if missing := self._holdings.take_in(task, payloads):
            return Incoming(Missing(task.site, task.round, missing))
        own = self._own(task)
        return self._do(task, self._context(task, own), own)

    def _do(self, task: Task, context: SiteContext, own: "OwnState") -> Incoming:
        """Do a task whose contents are all here: apply the method's rule and answer."""
        named = replace(task, own=own.ref)
        report = self._may_leave(named, self._apply_rule(named, context), context)
        lost = {MEMORY_LOST: 1} if own.lost else {}
        evaluations = _without_score_counts(report.evaluations)
        report = replace(report, metrics={**report.metrics, **lost}, evaluations=evaluations)
        return self._answer(task, report, context, own)

    def _apply_rule(self, task: Task, context: SiteContext) -> SiteReport:
        """Apply the method's rule, and let the site keep what it is to have of it."""
        scored_before = self.scores.misses
        with counting_work() as work:
            report = self.experiment.method.site_round(task, context)
            pairs = {} if self.keeper is None else self.keeper.take(task, report, context)
        # Only logged, and no metric: a round that is repeated finds its scores in the cache.
        if scored := self.scores.misses - scored_before:
            log.info("site %d, round %d: %d models scored", task.site, task.round, scored)
        counts = {STEPS: work.steps, IMAGES: work.images} if work.steps else {}
        return replace(report, metrics={**report.metrics, **counts, **pairs})

    def _may_leave(self, task: Task, report: SiteReport, context: SiteContext) -> SiteReport:
        """Return what may leave the site of a report. At a plain site that is all of it."""
        return report

    def _answer(
        self, task: Task, report: SiteReport, context: SiteContext, before: "OwnState"
    ) -> Incoming:
        """Keep what is new at the site; return the reply and the payloads for the server."""
        private = self._keep(task, report, context, before)
        packed = self._holdings.pack(task, report, context.kept)
        evaluations, equal = without_repeats(report.evaluations)
        answer = Reply(
            site=task.site,
            round=task.round,
            model=packed.contents.pop(MODEL, task.own.digest),
            contents=packed.contents,
            parts=packed.parts,
            learned=report.learned,
            helpers=report.helpers,
            held=tuple(sorted(packed.held)),
            private=private,
            metrics=report.metrics,
            evaluations=evaluations,
            equal=equal,
            pseudo=report.pseudo,
        )
        return Incoming(answer, packed.payloads)

    def _keep(
        self, task: Task, report: SiteReport, context: SiteContext, before: "OwnState"
    ) -> str:
        """Keep the state that stays at the site, if it is new; return its digest."""
        if report.params is None and report.memory is None:
            return task.private
        own = {n: (report.params or context.kept)[n] for n in context.kept}
        memory = context.memory if report.memory is None else report.memory
        own |= {MEMORY + name: tensor for name, tensor in memory.items()}
        own |= self._kept_model(report, context, before)
        own = salted(own, self._salt(task)) if own else own
        return self.private_parts.keep(own, task.private, task.round)

    def _kept_model(self, report: SiteReport, context: SiteContext, before: "OwnState") -> Params:
        """Return what is kept of the site's shared model: nothing, since the server has it."""
        return {}

    def _salt(self, task: Task) -> bytes:
        """Return the secret that is kept with the state after a task; the same for the same task.

        Each task has another secret: otherwise equal digests would show the server that two tasks
        ended in the same state.
        """
        number = b"" if task.sum is None else b"%d" % task.sum.number
        return self.releases.key(b"what stays here " + number + encode(replace(task, sum=None)))

    def context(self, task: Task) -> tuple[SiteContext, bool]:
        """Return a rule's context for a task whose contents are in the store.

        Also returns whether the site has lost its private state, which then begins anew.
        """
        own = self._own(task)
        return self._context(task, own), own.lost

    def _context(self, task: Task, own: "OwnState") -> SiteContext:
        return self._context_with(
            contents=self._contents(own),
            kept={name: own.tensors[name] for name in self._kept},
            memory=own.named(MEMORY),
            # The cache is keyed by digests, and that of a lost state now names another state.
            cache=Cache(SITE_CACHE_BYTES) if own.lost else self._cache,
        )

    @cached_property
    def _context_with(self) -> Callable[..., SiteContext]:
        """Returns a context: all that is the same in each of the site's tasks is given already."""
        return partial(
            SiteContext,
            data=self._data,
            model=self._network,
            scores=self.scores,
            training=self.experiment.training,
            seed=self.experiment.seed,
            device=self.device,
            protection=self.experiment.protection,
            secret=self.releases.key,
            flip=flips(self.experiment.data.name),
            scored=self.experiment.rounds.pooled_auroc,
        )

    def _contents(self, own: "OwnState") -> Contents:
        """Return a function that reads the contents which a task names."""
        return self._holdings.read

    @cached_property
    def _data(self) -> SiteData:
        """The data, on the device on which the site works, scaled as the network expects."""
        data = self.data.to(self.device)
        return data.raw() if self.experiment.model.raw else data

    @cached_property
    def private_parts(self) -> PrivateParts:
        """What never leaves the site."""
        return PrivateParts(self.folder / "private")

    @cached_property
    def scores(self) -> Cache[Score]:
        """The scores that the site has computed of other sites' models."""
        folder = self.folder / "scores" if self.keeps_scores else None
        return score_cache(len(self.data.unlabelled), len(self.classes), folder)

    @cached_property
    def _cache(self) -> Cache[Any]:
        """See `SiteContext.cache`."""
        return Cache(SITE_CACHE_BYTES)

    @cached_property
    def _holdings(self) -> Holdings:
        transport = self.experiment.transport
        return Holdings(self.store, self.shares_pool, self.shared, transport, self._initial)

    @cached_property
    def shared(self) -> Mapping[str, Schema]:
        """The schemas of what may travel between sites and server, by role."""
        return schemas(self.experiment.method, self._network)

    @cached_property
    def _kept(self) -> frozenset[str]:
        """The names of the model's tensors that never leave the site."""
        return self.experiment.method.kept_private(self._network)

    @cached_property
    def _stored(self) -> Schema:
        """The schema of the private state, which the site keeps to itself."""
        network = self._network
        whole = network.state_dict()
        memory = schema_of(self.experiment.method.memory(network, whole))  # its values do not count
        own = self._own_model
        return stored_schema({*self._kept, *own}, {**schema_of(whole), **own}, memory)

    @property
    def _own_model(self) -> Schema:
        """The schema of what is kept of the site's shared model."""
        return {}

    @cached_property
    def _network(self) -> Network:
        """The network into which all sites of this process load their weights."""
        precision = pick_dtype(self.experiment.runtime.precision, self.device)
        model, finds = self.experiment.model, bool(self.experiment.data.findings)
        return _network(model, self.inputs, len(self.classes), str(self.device), precision, finds)

    def _initial(self) -> Params:
        settings, classes = self.experiment.model, len(self.classes)
        return initial_params(settings, self.inputs, classes, self.experiment.seed)

    def _own(self, task: Task) -> "OwnState":
        """Return the private state that a task names, or a new one if it has none or lost it."""
        own = self.private_parts.load(task.private, self._stored)
        lost = own is None and bool(task.private)
        if own is None:
            w_0 = self._initial()
            start = self.experiment.method.memory(self._network, w_0)
            own = {n: w_0[n] for n in self._kept} | {MEMORY + n: of for n, of in start.items()}
            own |= self._first_model(w_0)
        return OwnState(own, lost, self._own_ref(task, own))

    def _first_model(self, w_0: Params) -> Params:
        """Return what is kept of the site's shared model before it has learned."""
        return {}

    def _own_ref(self, task: Task, own: Params) -> ModelRef:
        """Return which model is the site's own. own: its private state."""
        return task.own

    @property
    def releases(self) -> Releases:
        """What the site has released with noise, and the secret key of that noise.

        In a simulation the key follows from the seed, so that all drivers give equal numbers.
        """
        root, secret = self.folder / "privacy", None
        if self.data.audit is not None:
            secret = simulated_secret(self.experiment.seed, self.data.site)
        return Releases(root, secret, self.released)


@dataclass(frozen=True)
class OwnState:
    """A site's private state when a task begins.

    tensors: the state. lost: whether the state that the task names was lost, and begins anew. ref:
    the site's own model.
    """

    tensors: Params
    lost: bool
    ref: ModelRef

    def named(self, prefix: str) -> Params:
        """Return the tensors whose names begin with a prefix, by the rest of their names."""
        return {n.removeprefix(prefix): t for n, t in self.tensors.items() if n.startswith(prefix)}


def _without_score_counts(evaluations: Mapping[str, Evaluation]) -> dict[str, Evaluation]:
    """Return evaluations as they may leave: only that of the test part has score counts.

    Evaluations that are one object stay one object, so that they are sent once.
    """
    plain = {id(one): one.plain for one in evaluations.values()}
    return {name: one if name == TEST else plain[id(one)] for name, one in evaluations.items()}


@lru_cache(maxsize=1)
def _network(
    settings: NetworkSettings,
    inputs: tuple[int, ...],
    classes: int,
    device: str,
    compute: torch.dtype,
    finds: bool,
) -> Network:
    """Build a network once in a process: every use begins with loading weights into it."""
    return build_model(settings, inputs, classes, compute, finds).to(torch.device(device))
