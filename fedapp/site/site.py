"""The site's side of a task: take in models, do the method's rule, give an answer.

The same code runs at a hospital, in a simulated site and in the loopback driver.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import torch

from fedapp.data.augment import flips
from fedapp.data.sites import SiteData
from fedapp.ground.devices import pick_dtype, torch_threads
from fedapp.ground.errors import FedAppError, ProtocolError, StoreError, one_line, told
from fedapp.ground.settings import Experiment, ModelSettings
from fedapp.learn.networks import ResNet9, build_model, initial_params
from fedapp.learn.params import (
    Params,
    Schema,
    digest_of,
    from_bytes,
    max_bytes,
    schema_of,
    to_bytes,
    without,
)
from fedapp.learn.scores import ScoreStore
from fedapp.messages.poolkey import read_key
from fedapp.messages.protocol import (
    Answer,
    Incoming,
    Missing,
    ModelRef,
    Refusal,
    Reply,
    SiteFacts,
    Task,
)
from fedapp.messages.store import ModelStore
from fedapp.methods.base import SiteContext, SiteReport
from fedapp.site.privacy import Releases, privately
from fedapp.site.private import PrivateParts

log = logging.getLogger(__name__)

BESIDE = "beside."
"""Goes before the name of a tensor that a site has of its own beside one that it shares."""
SCORES_KEPT = 64
"""Scores a site keeps: a model turned down once is often drawn again before it changes. A score is
small: 10 kB for 250 images and 10 classes, where a model has 26 MB."""


@dataclass(frozen=True)
class Site:
    """One site, ready to work.

    shares_pool: the store is the server's own pool, on the same machine: nothing is copied, and the
        server alone removes contents. Otherwise the store is this site's: it holds what its task
        names and no more (for UM-pFSSL M + R models), and trouble with it is this site's trouble.
    """

    experiment: Experiment
    data: SiteData
    classes: tuple[str, ...]
    manifest: str
    store: ModelStore
    scores: ScoreStore
    private: PrivateParts
    device: torch.device
    shares_pool: bool = False

    @property
    def channels(self) -> int:
        """Colour channels of the site's images."""
        return self.data.labelled.shape[1]

    def facts(self) -> SiteFacts:
        """Introduce the site to the server."""
        return SiteFacts(
            site=self.data.site,
            channels=self.channels,
            classes=self.classes,
            labelled=len(self.data.labels),
            unlabelled=len(self.data.unlabelled),
            val=len(self.data.val_labels),
            test=len(self.data.test_labels),
            manifest=self.manifest,
            pool_key=read_key(self.store.root) if self.shares_pool else "",
            name=self.data.name,
        )

    def handle(self, task: Task, payloads: Mapping[str, bytes]) -> Incoming:
        """Do a task; whatever goes wrong becomes an answer, never an exception.

        But for a StoreError of a shared store: a full disk there must end the run, not be taken for
        the refusal of one site after the other.
        """
        try:
            with torch_threads(self.experiment.runtime.threads):
                return self._handle(task, payloads)
        except FedAppError as error:
            if isinstance(error, StoreError) and self.shares_pool:
                raise
            log.warning("site %d, round %d: %s", task.site, task.round, one_line(error))
            return Incoming(Refusal(task.site, task.round, told(error)))
        except Exception as error:  # the server must hear of it: silence would block the round
            log.exception("site %d failed in round %d", task.site, task.round)
            return Incoming(Refusal(task.site, task.round, told(error)))

    def _handle(self, task: Task, payloads: Mapping[str, bytes]) -> Incoming:
        network = _network(
            self.experiment.model,
            self.channels,
            len(self.classes),
            str(self.device),
            pick_dtype(self.experiment.runtime.precision, self.device),
        )
        kept = self.experiment.method.kept_private(network)
        beside = self.experiment.method.kept_beside(network)
        whole = schema_of(network.state_dict())
        schema = {name: shape for name, shape in whole.items() if name not in kept}
        self._take_in(task, payloads, schema)
        missing = tuple(ref.digest for ref in task.refs() if not self._holds(ref))
        if missing:
            return Incoming(Missing(task.site, task.round, missing))

        def contents(ref: ModelRef) -> Params:
            blob, owner = self.store.get(ref.digest), f"model of site {ref.site}"
            return from_bytes(blob, schema, owner, self.experiment.transport)

        own = self.private.load(
            task.private,
            {n: whole[n] for n in kept} | {BESIDE + n: whole[n] for n in beside},
            lambda: {k: t for n, t in self._initial().items() for k in (n, BESIDE + n)},
        )
        context = SiteContext(
            data=self.data.to(self.device),
            model=network,
            contents=contents,
            private={name: own[name] for name in kept},
            beside={name: own[BESIDE + name] for name in beside},
            scores=self.scores,
            training=self.experiment.training,
            seed=self.experiment.seed,
            device=self.device,
            flip=flips(self.experiment.data.name),
        )
        scored_before = self.scores.computed
        report = self.experiment.method.site_round(task, context)
        if report.params is not None and self.experiment.privacy.clip:
            releases = Releases(self.private.root.with_name("privacy"))
            report = privately(task, report, context, self.experiment.privacy, releases)
        # A matter of the log: a round that is done again finds its scores in hand.
        if scored := self.scores.computed - scored_before:
            log.info("site %d, round %d: %d models scored", task.site, task.round, scored)
        return self._answer(task, report, context)

    def _take_in(self, task: Task, payloads: Mapping[str, bytes], schema: Schema) -> None:
        """Keep the contents that came along; where the task starts from w_0, make it."""
        wanted = {ref.digest: ref for ref in task.refs()}
        transport = self.experiment.transport
        if not self.shares_pool:
            self.store.keep_only(wanted)
        for digest, blob in payloads.items():
            if digest not in wanted or len(blob) > max_bytes(schema) or digest_of(blob) != digest:
                raise ProtocolError(f"content {digest[:12]} from the server is not what it names")
            owner = f"model of site {wanted[digest].site} from the server"
            from_bytes(blob, schema, owner, transport)
            self.store.put(blob)
        first = next((ref for ref in task.refs() if ref.version == 0), None)
        if first is not None and not self.store.has(first.digest):
            w_0 = {name: tensor for name, tensor in self._initial().items() if name in schema}
            blob = to_bytes(w_0, transport)
            if digest_of(blob) == first.digest:  # else another torch version: ask for the bytes
                self.store.put(blob)

    def _initial(self) -> Params:
        settings, classes = self.experiment.model, len(self.classes)
        return initial_params(settings, self.channels, classes, self.experiment.seed)

    def _holds(self, ref: ModelRef) -> bool:
        """Whether the content is here and whole; a damaged file is removed by the store."""
        try:
            return self.store.has(ref.digest) and bool(self.store.get(ref.digest))
        except StoreError as error:
            log.warning("%s; asking the server for it", error)
            return False

    def _answer(self, task: Task, report: SiteReport, context: SiteContext) -> Incoming:
        payloads = {}
        digest, private, kept = task.own.digest, task.private, context.private.keys()
        helpers = {helper.model.digest for helper in report.helpers}
        if report.params is not None or report.beside is not None:
            own = {name: (report.params or context.private)[name] for name in kept}
            beside = context.beside if report.beside is None else report.beside
            own |= {BESIDE + name: tensor for name, tensor in beside.items()}
            private = self.private.keep(own, before=task.private)
        if report.params is not None:
            blob = to_bytes(without(report.params, kept), self.experiment.transport)
            if not self.shares_pool:
                self.store.keep_only({digest, *helpers})  # make room before the new model comes
            digest = self.store.put(blob)
            if digest != task.own.digest:
                payloads[digest] = blob
        held = sorted({digest, *helpers})
        if not self.shares_pool:
            self.store.keep_only(held)
        self.scores.keep_newest(SCORES_KEPT)
        answer: Answer = Reply(
            site=task.site,
            round=task.round,
            model=digest,
            helpers=report.helpers,
            held=tuple(held),
            private=private,
            metrics=report.metrics,
            evaluations=report.evaluations,
        )
        return Incoming(answer, payloads)


@lru_cache(maxsize=1)
def _network(
    settings: ModelSettings, channels: int, classes: int, device: str, compute: torch.dtype
) -> ResNet9:
    """Build the network once a process: every use begins with loading weights into it."""
    return build_model(settings, channels, classes, compute).to(torch.device(device))
