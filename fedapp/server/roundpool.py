"""What a method may ask of the model pool in one round (`methods.base.PoolView`)."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from fedapp.ground.settings import Robust, TransportSettings
from fedapp.learn.params import Params, Schema, to_bytes, weighted_mean
from fedapp.learn.parsed import PARSED
from fedapp.learn.robust import (
    FAR,
    FAR_STATISTICS,
    agreement,
    middle,
    products,
    robust_mean,
    rough_length,
    times,
)
from fedapp.messages.protocol import MODEL, ModelRef
from fedapp.server.pool import ModelPool
from fedapp.server.runstate import MOST_NAMED, Moves

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RoundPool:
    """The pool as a method sees it.

    schemas: of what sites share, by role. weights: those tensors of a model that are trained; the
    others are statistics. robust: how models are averaged. agreement: what "filtered" knows of each
    site (`robust.agreement`). moves: how far members moved so far (`robust.times`). Averages change
    both. left_out: told of each site that an average was made without, and how many times as far as
    usual it had moved.
    """

    pool: ModelPool
    schemas: Mapping[str, Schema]
    weights: frozenset[str]
    transport: TransportSettings
    round: int
    robust: Robust = "none"
    agreement: dict[int, float] = field(default_factory=dict)
    moves: dict[str, Moves] = field(default_factory=dict)
    left_out: Callable[[int, float], None] = lambda site, times: None

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

        Who moved far beyond the others is left out, by every rule, and said. The weighted mean is
        streamed, once more where somebody is; what other rules hold `robust.robust_mean` says.
        """
        so_far = self.read(self.common(role))
        parts = [(weight, ref) for weight, ref in parts if weight > 0]
        lengths: list[tuple[float, float]] = []
        mean = weighted_mean(self._measured(parts, so_far, lengths), so_far)
        near = self._near(parts, lengths, role)
        if self.robust != "none":
            if self.robust == "filtered":
                near = self._heard(near, so_far)
            weights = [weight for weight, _ in near]
            each = partial(self._each, near)
            mean = robust_mean(self.robust, weights, each, so_far, self.weights)
        elif len(near) < len(parts):
            mean = weighted_mean(((weight, self.read(ref)) for weight, ref in near), so_far)
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
        changes = products(partial(self._each, parts), so_far, self.weights, len(parts))
        before = [self.agreement.get(ref.site, 0.0) for _, ref in parts]
        found = agreement(changes, before)
        self.agreement.update({ref.site: a for (_, ref), a in zip(parts, found, strict=True)})
        if out := [ref.site for (_, ref), a in zip(parts, found, strict=True) if a < 0]:
            log.info("round %d: left out of the average: site %s", self.round, out)
        return [part for part, agreed in zip(parts, found, strict=True) if agreed >= 0]

    def _measured(
        self,
        parts: Sequence[tuple[float, ModelRef]],
        so_far: Params,
        lengths: list[tuple[float, float]],
    ) -> Iterator[tuple[float, Params]]:
        """Yield members with their weights; note how far each moved: weights and statistics."""
        floating = [name for name, tensor in so_far.items() if tensor.is_floating_point()]
        weights = [name for name in floating if name in self.weights]
        others = [name for name in floating if name not in self.weights]
        for weight, ref in parts:
            params = self.read(ref)
            lengths.append(
                (rough_length(params, so_far, weights), rough_length(params, so_far, others))
            )
            yield weight, params

    def _near(
        self,
        parts: Sequence[tuple[float, ModelRef]],
        lengths: Sequence[tuple[float, float]],
        role: str,
    ) -> list[tuple[float, ModelRef]]:
        """Return the members that did not move far beyond the others; note down how far all did."""
        out: set[int] = set()
        kinds = (("", FAR), (".statistics", FAR_STATISTICS))
        for (kind, limit), column in zip(kinds, zip(*lengths, strict=True), strict=False):
            before = self.moves.get(role + kind, Moves())
            found = times(column, before.largest)
            near = [length for length, far in zip(column, found, strict=True) if far <= limit]
            order = sorted(range(len(parts)), key=lambda i: -found[i])
            furthest = tuple((parts[i][1].site, round(found[i], 1)) for i in order[:MOST_NAMED])
            if any(column):
                self.moves[role + kind] = Moves(max(before.largest, middle(near)), furthest)
            out |= (beyond := {i for i in order if found[i] > limit})
            for i in beyond:
                self.left_out(parts[i][1].site, found[i])
        return [part for i, part in enumerate(parts) if i not in out]

    def _each(self, parts: Sequence[tuple[float, ModelRef]]) -> Iterator[Params]:
        return (self.read(ref) for _, ref in parts)

    def read(self, ref: ModelRef) -> Params:
        """Return a content's tensors."""
        schema, owner = self.schemas[ref.role], f"{ref.role} of site {ref.site}"
        return PARSED.get(ref.digest, self.pool.get, schema, owner, self.transport)
