"""The site's side of a task: take in models, do the method's rule, give an answer.

The same code runs at a hospital, in a simulated site and in the loopback driver.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch

from fedapp.core.cache import Cache
from fedapp.core.devices import deterministic, pick_dtype, torch_threads
from fedapp.core.errors import (
    ConfigError,
    FedAppError,
    ProtocolError,
    StoreError,
    message_for_server,
    one_line,
)
from fedapp.data.augment import flips
from fedapp.data.sites import TEST, SiteData
from fedapp.experiment.experiment import Experiment
from fedapp.learn.frozen_answers import answers_cached_in
from fedapp.learn.model_caches import Score, score_cache
from fedapp.learn.networks import Network, NetworkSettings, build_model, initial_params
from fedapp.learn.params import Params, Schema, schema_of
from fedapp.learn.work_counter import WorkCount, counting_work
from fedapp.methods.base import CACHED_AT_A_SITE, Contents, SiteContext, SiteReport, schemas
from fedapp.protocol.codec import encode
from fedapp.protocol.messages import (
    EVALUATE,
    IMAGES,
    MEMORY_LOST,
    MODEL,
    SERVER_SITE,
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
from fedapp.site.privacy_budget import Releases, clipped
from fedapp.site.private_state import (
    MEMORY,
    PrivateParts,
    salted,
    stored_schema,
)
from fedapp.site.protected_sums import (
    pay,
    protected,
    simulated_secret,
    withheld,
)
from fedapp.site.rollback_guard import Head

log = logging.getLogger(__name__)


class Keeper(Protocol):
    """Keeps what a site is to have of a run, at the site."""

    def take(self, task: Task, report: SiteReport, site: SiteContext) -> None:
        """Look at what a task brought: the report as it is before clipping and noise."""


@dataclass(frozen=True)
class SiteClient:
    """One site, ready to work.

    folder: the site's own, for what it shares with nobody.
    shares_pool: the store is the server's own pool, on the same machine: nothing is copied, and the
        server alone removes contents. Otherwise the store is this site's: it holds what its task
        names and no more (for UM-pFSSL M + R models), and trouble with it is this site's trouble.
    keeps_scores: scores are kept in its folder too, since another process may do its next task.
    keeper: sees what every task brought; None: nobody does.
    features: folder for what frozen networks say of its images; None: nothing is kept there.
    released: head of its list of releases, where single images are protected; None: in simulations.
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
    """Whether its answers are masked (`site.masked_site`); else they go to the server as they
    are."""

    @property
    def inputs(self) -> tuple[int, ...]:
        """Shape of one of the site's inputs."""
        return self.data.inputs

    def facts(self) -> SiteFacts:
        """Introduce the site to the server."""
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
        """Introduce the site as far as the server is to know it."""
        return self.facts()

    def handle(self, task: Task, payloads: Mapping[str, bytes]) -> Incoming:
        """Do a task; whatever goes wrong becomes an answer, never an exception.

        But for a StoreError of a shared store: a full disk there must end the run, not be taken for
        the refusal of one site after the other.
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
        except Exception as error:  # the server must hear of it: silence would block the round
            log.exception("site %d failed in round %d", task.site, task.round)
            incoming = Incoming(Refusal(task.site, task.round, message_for_server(error)))
        return incoming

    def _incoming(self, task: Task, payloads: Mapping[str, bytes]) -> Incoming:
        """Do a task whose contents may still lack."""
        if missing := self._holdings.take_in(task, payloads):
            return Incoming(Missing(task.site, task.round, missing))
        return self._work(task)

    def _work(self, task: Task) -> Incoming:
        """Do a task on the site's images. Where these are protected, it is paid for before."""
        own = self._own(task)
        context = self._context(task, own)
        if context.protection is not None and task.site != SERVER_SITE:
            pay(task, context, self.experiment.method, self.releases)
        with withheld(self._protects):
            return self._answer(task, self._done(task, context, own), context, own)

    @property
    def _protects(self) -> bool:
        """Whether nothing of a single image may be seen in what the site answers."""
        real = self.data.audit is None and self.data.site != SERVER_SITE
        return real and self.experiment.protection is not None

    def _reported(self, task: Task, context: SiteContext) -> SiteReport:
        """Do the method's rule, and let the site keep what it is to have of it."""
        scored_before = self.scores.misses
        report = self.experiment.method.site_round(task, context)
        # A matter of the log: a round that is done again finds its scores in hand.
        if scored := self.scores.misses - scored_before:
            log.info("site %d, round %d: %d models scored", task.site, task.round, scored)
        if self.keeper is not None:
            self.keeper.take(task, report, context)
        return report

    def _done(self, task: Task, context: SiteContext, own: "Own") -> SiteReport:
        """Do the method's rule; return what it reports, as it may leave the site."""
        task = replace(task, own=own.ref)
        with counting_work() as work:
            try:
                report = self._reported(task, context)
            except Exception:
                if not (self._protects and task.action == EVALUATE):
                    raise
                # Nothing of it would leave, and so nobody is to see whether it could be done.
                log.exception("site %d, round %d: nothing was measured", task.site, task.round)
                report = SiteReport()
        if self.experiment.privacy.clip and task.site != SERVER_SITE:  # the server's stays with it
            report = self._clipped(task, report, context)
        if context.protection is not None and task.site != SERVER_SITE:
            report = protected(task, report, context, self.experiment.method, self.releases)
            work = WorkCount()  # how many images it drew is its own affair
        told = _told(report.evaluations)
        metrics = {**report.metrics, **_noted(work, own.lost)}
        return replace(report, metrics=metrics, evaluations=told)

    def _answer(
        self, task: Task, report: SiteReport, context: SiteContext, before: "Own"
    ) -> Incoming:
        """Keep what is new; return what the server is told and sent."""
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

    def _keep(self, task: Task, report: SiteReport, context: SiteContext, before: "Own") -> str:
        """Keep what stays at the site, where it is new; return its digest."""
        if report.params is None and report.memory is None:
            return task.private
        own = {n: (report.params or context.kept)[n] for n in context.kept}
        memory = context.memory if report.memory is None else report.memory
        own |= {MEMORY + name: tensor for name, tensor in memory.items()}
        own |= self._kept_model(report, context, before)
        own = salted(own, self._salt(task)) if own else own
        return self.private_parts.keep(own, task.private, task.round)

    def _kept_model(self, report: SiteReport, context: SiteContext, before: "Own") -> Params:
        """Return what is kept of the site's own model: nothing, since the server has it."""
        return {}

    def _salt(self, task: Task) -> bytes:
        """Return the secret that goes with what is kept of a task; of the same task the same.

        Tasks have different ones: else the server would see that two of them left the same behind.
        """
        number = b"" if task.sum is None else b"%d" % task.sum.number
        return self.releases.key(b"what stays here " + number + encode(replace(task, sum=None)))

    def context(self, task: Task) -> tuple[SiteContext, bool]:
        """Return what a rule works with in a task whose contents are in the store.

        And whether the site has lost what it keeps to itself, which then begins anew.
        """
        own = self._own(task)
        return self._context(task, own), own.lost

    def _context(self, task: Task, own: "Own") -> SiteContext:
        return SiteContext(
            data=self._data,
            model=self._network,
            contents=self._contents(own),
            kept={name: own.tensors[name] for name in self._kept},
            memory=own.named(MEMORY),
            scores=self.scores,
            training=self.experiment.training,
            seed=self.experiment.seed,
            device=self.device,
            # What a lost model answered is known under a digest that no longer tells what it is.
            cache=Cache(CACHED_AT_A_SITE) if own.lost else self._cache,
            protection=self.experiment.protection,
            secret=self.releases.key,
            flip=flips(self.experiment.data.name),
            scored=self.experiment.rounds.pooled_auroc,
        )

    def _contents(self, own: "Own") -> Contents:
        """Return how contents are read."""
        return self._holdings.read

    @cached_property
    def _data(self) -> SiteData:
        """The data on the device that it works on, scaled as the network wants it."""
        data = self.data.to(self.device)
        return data.raw() if self.experiment.model.raw else data

    @cached_property
    def private_parts(self) -> PrivateParts:
        """What never leaves the site."""
        return PrivateParts(self.folder / "private")

    @cached_property
    def scores(self) -> Cache[Score]:
        """What the site knows of other sites' models."""
        folder = self.folder / "scores" if self.keeps_scores else None
        return score_cache(len(self.data.unlabelled), len(self.classes), folder)

    @cached_property
    def _cache(self) -> Cache[Any]:
        """See `SiteContext.cache`."""
        return Cache(CACHED_AT_A_SITE)

    @cached_property
    def _holdings(self) -> Holdings:
        transport = self.experiment.transport
        return Holdings(self.store, self.shares_pool, self.shared, transport, self._initial)

    @cached_property
    def shared(self) -> Mapping[str, Schema]:
        """The schema of what may travel between sites and server, by role."""
        return schemas(self.experiment.method, self._network)

    @cached_property
    def _kept(self) -> frozenset[str]:
        """The names of the model's tensors that never leave the site."""
        return self.experiment.method.kept_private(self._network)

    @cached_property
    def _stored(self) -> Schema:
        """The schema of what the site keeps to itself."""
        network = self._network
        whole = network.state_dict()
        memory = schema_of(self.experiment.method.memory(network, whole))  # its values do not count
        own = self._own_model
        return stored_schema({*self._kept, *own}, {**schema_of(whole), **own}, memory)

    @property
    def _own_model(self) -> Schema:
        """The schema of what is kept of the site's own model."""
        return {}

    @cached_property
    def _network(self) -> Network:
        """The network that all sites of this process load their weights into."""
        precision = pick_dtype(self.experiment.runtime.precision, self.device)
        model, finds = self.experiment.model, bool(self.experiment.data.findings)
        return _network(model, self.inputs, len(self.classes), str(self.device), precision, finds)

    def _initial(self) -> Params:
        settings, classes = self.experiment.model, len(self.classes)
        return initial_params(settings, self.inputs, classes, self.experiment.seed)

    def _own(self, task: Task) -> "Own":
        """Return what the site keeps to itself."""
        own = self.private_parts.load(task.private, self._stored)
        lost = own is None and bool(task.private)
        if own is None:
            w_0 = self._initial()
            start = self.experiment.method.memory(self._network, w_0)
            own = {n: w_0[n] for n in self._kept} | {MEMORY + n: of for n, of in start.items()}
            own |= self._first_model(w_0)
        return Own(own, lost, self._own_ref(task, own))

    def _first_model(self, w_0: Params) -> Params:
        """Return what is kept of the site's own model before it learned."""
        return {}

    def _own_ref(self, task: Task, own: Params) -> ModelRef:
        """Return which model is the site's own. own: what it keeps to itself."""
        return task.own

    def _clipped(self, task: Task, report: SiteReport, context: SiteContext) -> SiteReport:
        """Clip what leaves the site. Raises ConfigError where more than a model does."""
        if report.contents or report.sent:
            raise ConfigError(
                f"privacy.clip covers whole models; method {self.experiment.method.name} sends "
                f"{', '.join(report.contents) or 'parts of them'}: set privacy.clip to 0"
            )
        if report.params is not None:
            report = clipped(task, report, context, self.experiment.privacy.clip)
        return report

    @property
    def releases(self) -> Releases:
        """What the site has released with noise, and the key to that.

        In a simulation it follows from the seed, equal in all drivers.
        """
        root, secret = self.folder / "privacy", None
        if self.data.audit is not None:
            secret = simulated_secret(self.experiment.seed, self.data.site)
        return Releases(root, secret, self.released)


@dataclass(frozen=True)
class Own:
    """What a site keeps to itself, when a task begins.

    lost: whether it had lost that. ref: its own model.
    """

    tensors: Params
    lost: bool
    ref: ModelRef

    def named(self, prefix: str) -> Params:
        """Return the tensors whose names begin so, without that."""
        return {n.removeprefix(prefix): t for n, t in self.tensors.items() if n.startswith(prefix)}


def _noted(done: WorkCount, lost: bool) -> dict[str, float]:
    """Return the metrics that every method's reply has: what there is nothing of is left out."""
    counts = {STEPS: done.steps, IMAGES: done.images} if done.steps else {}
    return {**counts, **({MEMORY_LOST: 1} if lost else {})}


def _told(evaluations: Mapping[str, Evaluation]) -> dict[str, Evaluation]:
    """Return evaluations as they leave: score counts only of what the site uses, in testing.

    Those that are one and the same stay so.
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
    """Build a network once a process: every use begins with loading weights into it."""
    return build_model(settings, inputs, classes, compute, finds).to(torch.device(device))
