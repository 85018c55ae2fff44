"""What a method may ask of the model pool in one round (`methods.base.PoolView`)."""

from collections.abc import Sequence
from dataclasses import dataclass

from fedapp.params import Params, Schema, from_bytes, to_bytes, weighted_mean
from fedapp.pool import ModelPool
from fedapp.protocol import SERVER_SITE, ModelRef
from fedapp.settings import TransportSettings


@dataclass(frozen=True)
class RoundPool:
    """The pool as a method sees it.

    schema: of what sites share. weights: those tensors of it that are trained; the others are
    statistics.
    """

    pool: ModelPool
    schema: Schema
    weights: frozenset[str]
    transport: TransportSettings
    round: int

    def latest(self, site: int) -> ModelRef:
        """Return the newest version of a site's model."""
        return self.pool.latest(site)

    def trained(self) -> tuple[int, ...]:
        """Return the sites whose model has been trained at least once, ascending."""
        return self.pool.trained()

    def average(self, parts: Sequence[tuple[float, ModelRef]], beta: float = 1.0) -> ModelRef:
        """Move the server's model to the weighted mean of these models, which are streamed."""
        so_far = self._params(self.latest(SERVER_SITE))
        mean = weighted_mean(((weight, self._params(ref)) for weight, ref in parts), so_far)
        if beta != 1:
            mean |= {name: so_far[name].lerp(mean[name], beta) for name in self.weights}
        return self.pool.made(to_bytes(mean, self.transport), self.round)

    def _params(self, ref: ModelRef) -> Params:
        owner = f"model of site {ref.site}"
        return from_bytes(self.pool.get(ref.digest), self.schema, owner, self.transport)
