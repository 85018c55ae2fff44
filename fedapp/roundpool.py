"""What a method may ask of the model pool in one round (`methods.base.PoolView`)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from fedapp.params import Params, Schema, from_bytes, to_bytes, weighted_mean
from fedapp.pool import ModelPool
from fedapp.protocol import SERVER_SITE, ModelRef
from fedapp.robust import robust_mean
from fedapp.settings import Robust, TransportSettings


@dataclass(frozen=True)
class RoundPool:
    """The pool as a method sees it.

    schema: of what sites share. weights: those tensors of it that are trained; the others are
    statistics. robust: how models are averaged.
    """

    pool: ModelPool
    schema: Schema
    weights: frozenset[str]
    transport: TransportSettings
    round: int
    robust: Robust = "none"

    def latest(self, site: int) -> ModelRef:
        """Return the newest version of a site's model."""
        return self.pool.latest(site)

    def trained(self) -> tuple[int, ...]:
        """Return the sites whose model has been trained at least once, ascending."""
        return self.pool.trained()

    def average(self, parts: Sequence[tuple[float, ModelRef]], beta: float = 1.0) -> ModelRef:
        """Move the server's model to the average of these models.

        The weighted mean is streamed; what other rules hold `robust.robust_mean` says.
        """
        so_far = self._params(self.latest(SERVER_SITE))
        if self.robust == "none":
            mean = weighted_mean(((weight, self._params(ref)) for weight, ref in parts), so_far)
        else:
            weights = [weight for weight, _ in parts]
            each = partial(self._each, parts)
            mean = robust_mean(self.robust, weights, each, so_far, self.weights)
        if beta != 1:
            mean |= {name: so_far[name].lerp(mean[name], beta) for name in self.weights}
        return self.pool.made(to_bytes(mean, self.transport), self.round)

    def _each(self, parts: Sequence[tuple[float, ModelRef]]) -> Iterator[Params]:
        return (self._params(ref) for _, ref in parts)

    def _params(self, ref: ModelRef) -> Params:
        owner = f"model of site {ref.site}"
        return from_bytes(self.pool.get(ref.digest), self.schema, owner, self.transport)
