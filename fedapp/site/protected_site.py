"""Sites that bound what leaves them: the change of their model, or what one image contributes.

Each kind is a plain site (`site.SiteClient`), or a masked one, with these differences and no other:

- `ClippedSite`, with `privacy.clip`: the change of the model that it uploads has a bounded length.
- `ProtectedSite`, with `privacy.epsilon`: a task is paid for before an image is looked at, what
  leaves are sums with noise, and an error tells nothing of an image.
- `ProtectedMaskedSite`: with masked sums, where each member adds a share of the noise.

The server's own site is always a plain one: nothing leaves it (`federation.LoadedSites.site`).
"""

import logging
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedapp.core.errors import ConfigError
from fedapp.methods._summed import NOISE_SHARE, Layout, Row
from fedapp.methods.base import SiteContext, SiteReport
from fedapp.privacy.noise import Integers
from fedapp.protocol.messages import EVALUATE, Incoming, Task
from fedapp.site.masked_site import MaskedSite
from fedapp.site.privacy_budget import clipped
from fedapp.site.protected_sums import (
    errors_withheld,
    noise_share,
    pay,
    protected,
    row_noise,
    within_bound,
)
from fedapp.site.site import OwnState, SiteClient

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ClippedSite(SiteClient):
    """A site that clips the change of the model that it uploads (`privacy_budget.clipped`)."""

    def _may_leave(self, task: Task, report: SiteReport, context: SiteContext) -> SiteReport:
        """Clip the model. Raises ConfigError where more than a whole model would leave."""
        if report.contents or report.sent:
            raise ConfigError(
                f"privacy.clip covers whole models; method {self.experiment.method.name} sends "
                f"{', '.join(report.contents) or 'parts of them'}: set privacy.clip to 0"
            )
        if report.params is None:
            return report
        return clipped(task, report, context, self.experiment.privacy.clip)


@dataclass(frozen=True)
class ProtectedSite(SiteClient):
    """A site whose answers show nothing of a single image, or patient (`protected_sums`)."""

    def _do(self, task: Task, context: SiteContext, own: OwnState) -> Incoming:
        pay(task, context, self.experiment.method, self.releases)
        with errors_withheld(self.real):
            return super()._do(task, context, own)

    def _apply_rule(self, task: Task, context: SiteContext) -> SiteReport:
        try:
            return super()._apply_rule(task, context)
        except Exception:
            if not (self.real and task.action == EVALUATE):
                raise
            # Nothing of an evaluation would leave, so the server must not see whether it worked.
            log.exception("site %d, round %d: nothing was measured", task.site, task.round)
            return SiteReport()

    def _may_leave(self, task: Task, report: SiteReport, context: SiteContext) -> SiteReport:
        return protected(task, report, context, self.experiment.method, self.releases)


@dataclass(frozen=True, kw_only=True)
class ProtectedMaskedSite(ProtectedSite, MaskedSite):
    """A protected site whose noise is a share of that of a masked sum."""

    def _may_leave(self, task: Task, report: SiteReport, context: SiteContext) -> SiteReport:
        report = super()._may_leave(task, report, context)
        assert task.sum is not None
        share = noise_share(self.summing.counted(task.sum), context)
        return replace(report, metrics={**report.metrics, NOISE_SHARE: share})

    def _masked(
        self, task: Task, row: Row, layout: Layout, context: SiteContext, left: str
    ) -> NDArray[np.uint64]:
        method = self.experiment.method

        def noise(key: bytes, counted: int) -> Integers:
            return row_noise(task, key, counted, layout, context, method, self.releases)

        return self.summing.masked(task, within_bound(task, row), noise, left)
