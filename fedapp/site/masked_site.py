"""A site whose answers leave as rows of masked words, of which the server learns the sum alone.

It is a plain site with three differences. It does the steps of a masked sum that need no images
(`masked_sums`). It keeps its own model, since the server never gets it. And its answer to the step
that adds is one row of masked words: all that a plain site would have sent, in a fixed order. An
error of the arithmetic, which may depend on a single image, is no refusal: the sum alone tells it.
"""

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from fedapp.core.errors import DataError, StoreError, one_line
from fedapp.learn.params import Params, Schema, digest_of, to_bytes, without
from fedapp.methods._summed import (
    FACT_COUNTS,
    MASKED_ROW,
    Contribution,
    Layout,
    Row,
    within_range,
)
from fedapp.methods.base import Contents, SiteContext, SiteReport
from fedapp.protocol.messages import (
    EVALUATE,
    MASKED,
    MODEL,
    Incoming,
    ModelRef,
    Reply,
    SiteFacts,
    Task,
)
from fedapp.protocol.secure_aggregation.fixed_point import max_number
from fedapp.site.private_state import OWN, VERSION
from fedapp.site.site import OwnState, SiteClient

if TYPE_CHECKING:  # it needs cryptography
    from fedapp.site.masked_sums import Summing

log = logging.getLogger(__name__)

_SAID = (
    DataError,
    StoreError,
    OSError,
    MemoryError,
    torch.OutOfMemoryError,
    torch.AcceleratorError,
)
"""What a site that cannot work says so of: no model that a server sends brings it about."""
FAILED = "failed"
"""Metric of a report that stays at the site: its work came to no numbers."""


@dataclass(frozen=True, kw_only=True)
class MaskedSite(SiteClient):
    """A site that masks its answers.

    summing: its part in masked sums.
    """

    masks: ClassVar[bool] = True
    summing: "Summing"

    def introduction(self) -> SiteFacts:
        """Return the facts without the numbers of images: the server learns only their sums."""
        none: dict[str, Any] = dict.fromkeys(FACT_COUNTS, 0)
        return replace(self.facts(), **none)

    def _incoming(self, task: Task, payloads: Mapping[str, bytes]) -> Incoming:
        assert task.sum is not None
        if task.sum.stage == "add":
            self.summing.begin(task)
            return super()._incoming(task, payloads)
        answer = self.summing.step(task)
        own = task.own.digest
        return Incoming(Reply(task.site, task.round, own, private=task.private, sum=answer))

    # --- its own model ----------------------------------------------------------------------------

    def _contents(self, own: OwnState) -> Contents:
        params = own.named(OWN)
        return lambda ref: params if ref.digest == own.ref.digest else self._holdings.read(ref)

    @property
    def _own_model(self) -> Schema:
        own = {OWN + name: of for name, of in self.shared[MODEL].items()}
        return {**own, VERSION: ((), torch.int64)}

    def _first_model(self, w_0: Params) -> Params:
        return {**{OWN + n: w_0[n] for n in self.shared[MODEL]}, VERSION: torch.tensor(0)}

    def _own_ref(self, task: Task, own: Params) -> ModelRef:
        # Nothing of the task's: a server that named each site another would ask each another thing.
        model = {n: own[OWN + n] for n in self.shared[MODEL]}
        return ModelRef(task.site, int(own[VERSION]), digest_of(to_bytes(model)))

    def _kept_model(self, report: SiteReport, context: SiteContext, before: OwnState) -> Params:
        new = report.params
        params = before.named(OWN) if new is None else without(new, context.kept)
        version = {VERSION: torch.tensor(int(before.tensors[VERSION]) + (new is not None))}
        return {**version, **{OWN + name: of for name, of in params.items()}}

    # --- its answer -------------------------------------------------------------------------------

    def _apply_rule(self, task: Task, context: SiteContext) -> SiteReport:
        try:
            return super()._apply_rule(task, context)
        except _SAID:
            raise
        except Exception as error:
            # A simulated site has nothing to hide, and a protected one has its own way.
            if not self.real or context.protection is not None:
                raise
            log.exception("site %d, round %d: %s", task.site, task.round, one_line(error))
            return SiteReport(metrics={FAILED: 1})

    def _answer(
        self, task: Task, report: SiteReport, context: SiteContext, before: OwnState
    ) -> Incoming:
        """Keep what is new at the site; return what leaves: one row of masked words."""
        private = self._keep(task, report, context, before)
        assert task.sum is not None
        method, facts = self.experiment.method, self.facts()
        said = Reply(task.site, task.round, task.own.digest, metrics=report.metrics)
        contents = dict(report.contents)
        if report.params is not None and report.learned:
            contents[MODEL] = report.params
        added = Contribution(
            contents,
            weight=method.weight(facts, said) if report.learned else 0.0,
            learned=float(report.learned),
            sites=math.nan if FAILED in report.metrics else 1.0,
            metrics=report.metrics,
            evaluations=report.evaluations,
            counts=self.data.counts,
        )
        finds, scored = bool(self.experiment.data.findings), self.experiment.rounds.pooled_auroc
        layout = Layout.of(method, task, self.shared, len(self.classes), finds, scored)
        words = self._masked(task, layout.row(added), layout, context, private)
        blob = to_bytes({MASKED_ROW: torch.from_numpy(words.view(np.int64))})
        named = {MASKED: digest_of(blob)}
        if self.shares_pool:
            self.store.put(blob)
        held = {ref.digest for ref in task.refs()}  # not what it needs: that may tell of its images
        answer = Reply(
            task.site,
            task.round,
            task.own.digest,
            held=tuple(sorted(held)),
            private=private,
            contents=named,
        )
        return Incoming(answer, {named[MASKED]: blob})

    def _keep(self, task: Task, report: SiteReport, context: SiteContext, before: OwnState) -> str:
        if self.real and task.action != EVALUATE and report.memory is None:
            # Written anew in any case, so that a new digest does not tell whether it has learned.
            report = replace(report, memory=context.memory)
        return super()._keep(task, report, context, before)

    def _masked(
        self, task: Task, row: Row, layout: Layout, context: SiteContext, left: str
    ) -> NDArray[np.uint64]:
        """Return a row of numbers as it leaves: as masked words. left: as of `Summing.masked`."""
        assert task.sum is not None
        held = within_range(row, max_number(len(task.sum.members))) if self.real else row
        if held is not row:
            log.error("site %d, round %d: no numbers, or NaN, or too large", task.site, task.round)
        return self.summing.masked(task, held, left=left)
