"""What a method may ask of the model pool in one round (`methods.base.PoolView`)."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from fedapp.ground.settings import Robust, TransportSettings
from fedapp.learn.params import Params, Schema, to_bytes, weighted_mean
from fedapp.learn.parsed import PARSED
from fedapp.learn.robust import agreement, products, robust_mean
from fedapp.messages.protocol import MODEL, ModelRef
from fedapp.server.pool import ModelPool

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RoundPool:
    """The pool as a method sees it.

    schemas: of what sites share, by role. weights: those tensors of a model that are trained; the
    others are statistics. robust: how models are averaged. agreement: what "filtered" knows of each
    site (`robust.agreement`); an average changes it.
    """

    pool: ModelPool
    schemas: Mapping[str, Schema]
    weights: frozenset[str]
    transport: TransportSettings
    round: int
    robust: Robust = "none"
    agreement: dict[int, float] = field(default_factory=dict)

    def latest(self, site: int, role: str = MODEL) -> ModelRef:
        """Return the newest version of a site's model, or of its content of another role."""
        return self.pool.latest(site, role)

    def having(self, role: str) -> tuple[int, ...]:
        """Return the sites that have sent a content of this role, ascending."""
        return self.pool.having(role)

    def has(self, site: int, role: str) -> bool:
        """Whether a site, or the server's own, has sent or made a content of this role."""
        return (site, role) in self.pool.contents

    def trained(self) -> tuple[int, ...]:
        """Return the sites whose model has been trained at least once, ascending."""
        return self.pool.trained()

    def common(self, role: str = MODEL) -> ModelRef:
        """Return the server's newest network of a role; its model before the role's first."""
        return self.pool.common(role)

    def average(
        self, parts: Sequence[tuple[float, ModelRef]], beta: float = 1.0, role: str = MODEL
    ) -> ModelRef:
        """Move the server's network of a role to the average of these.

        The weighted mean is streamed; what other rules hold `robust.robust_mean` says.
        """
        so_far = self.read(self.common(role))
        if self.robust == "none":
            mean = weighted_mean(((weight, self.read(ref)) for weight, ref in parts), so_far)
        else:
            if self.robust == "filtered":
                parts = self._heard(parts, so_far)
            weights = [weight for weight, _ in parts]
            each = partial(self._each, parts)
            mean = robust_mean(self.robust, weights, each, so_far, self.weights)
        if beta != 1:
            mean |= {name: so_far[name].lerp(mean[name], beta) for name in self.weights}
        return self.pool.made(to_bytes(mean, self.transport), self.round, role)

    def put(self, params: Params, role: str) -> ModelRef:
        """Make this the server's newest content of a role."""
        return self.pool.made(to_bytes(params, self.transport), self.round, role)

    def _heard(
        self, parts: Sequence[tuple[float, ModelRef]], so_far: Params
    ) -> list[tuple[float, ModelRef]]:
        """Return the members that agree with the others, and take note how far each does."""
        members = [(weight, ref) for weight, ref in parts if weight > 0]
        changes = products(partial(self._each, members), so_far, self.weights, len(members))
        before = [self.agreement.get(ref.site, 0.0) for _, ref in members]
        found = agreement(changes, before)
        self.agreement.update({ref.site: a for (_, ref), a in zip(members, found, strict=True)})
        if out := [ref.site for (_, ref), a in zip(members, found, strict=True) if a < 0]:
            log.info("round %d: left out of the average: site %s", self.round, out)
        return [part for part, agreed in zip(members, found, strict=True) if agreed >= 0]

    def _each(self, parts: Sequence[tuple[float, ModelRef]]) -> Iterator[Params]:
        return (self.read(ref) for _, ref in parts)

    def read(self, ref: ModelRef) -> Params:
        """Return a content's tensors."""
        schema, owner = self.schemas[ref.role], f"{ref.role} of site {ref.site}"
        return PARSED.get(ref.digest, self.pool.get, schema, owner, self.transport)
