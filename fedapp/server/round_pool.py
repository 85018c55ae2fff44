"""What a method may ask of the model pool in one round (`methods.base.PoolView`)."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import Any

from fedapp.aggregation import none
from fedapp.aggregation.base import Member, Memory, Rule
from fedapp.aggregation.changes import (
    MAX_STATISTICS_CHANGE,
    MAX_WEIGHTS_CHANGE,
    middle,
    rough_length,
    times,
)
from fedapp.core.errors import RunError
from fedapp.core.settings import TransportSettings
from fedapp.learn.model_caches import PARSED_MODELS
from fedapp.learn.params import Params, Schema, schema_of, to_bytes
from fedapp.protocol.messages import MODEL, ModelRef
from fedapp.server.pool import ModelPool
from fedapp.server.run_state import MAX_NAMED_SITES, ChangeLengths

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RoundPool:
    """The pool as a method sees it.

    schemas: of what sites share, by role. weights: those tensors of a model that are trained; the
    others are statistics. rule: how models are averaged. remembered: what the rule remembers of
    each site. moves: how far members moved so far (`changes.times`). Averages change both, and the
    tensors that the pool keeps for the rule. left_out: told of each site that an average was made
    without, and how many times as far as usual it had moved.
    """

    pool: ModelPool
    schemas: Mapping[str, Schema]
    weights: frozenset[str]
    transport: TransportSettings
    round: int
    rule: Rule[Any] = none.RULE
    remembered: dict[int, float] = field(default_factory=dict)
    moves: dict[str, ChangeLengths] = field(default_factory=dict)
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

    def average(self, parts: Sequence[tuple[float, ModelRef]], role: str = MODEL) -> ModelRef:
        """Move the server's network of a role to the average of these, by the run's rule.

        Who moved far beyond the others is left out, by every rule, and said: the average then
        begins anew. Where nobody is heard, the new version is the last one's content.
        """
        own = self.read(self.common(role))
        heard = [(weight, _Reading(partial(self.read, r)), r) for weight, r in parts if weight > 0]
        members = [Member(r.site, weight, reading) for weight, reading, r in heard]
        floating = [name for name, tensor in own.items() if tensor.is_floating_point()]
        weights = [name for name in floating if name in self.weights]
        others = [name for name in floating if name not in self.weights]
        lengths: list[tuple[float, float]] = []
        total = self.rule.start(own)
        for member, (_, reading, _) in zip(members, heard, strict=True):
            with reading.at_hand() as params:
                # How far it moved: its weights, and its statistics.
                far = rough_length(params, own, weights), rough_length(params, own, others)
                lengths.append(far)
                total = self.rule.accumulate(total, member)
        near = members if self.rule.masked else self._near(members, lengths, role)
        if len(near) < len(members):
            total = reduce(self.rule.accumulate, near, self.rule.start(own))
        mean = self._finished(total, own, role) if near else own
        return self.pool.made(to_bytes(mean, self.transport), self.round, role)

    def _finished(self, total: Any, own: Params, role: str) -> Params:
        """Let the rule end an average; keep what it remembers. Return the server's next model."""
        before = Memory(self.remembered, self.pool.remembered(role))
        average = self.rule.finish(total, own, self.weights, before)
        self.remembered.update(average.memory.sites)
        self.pool.remember(average.memory.tensors, self.round, role)
        if average.left_out:
            log.info("round %d: left out of the average: site %s", self.round, average.left_out)
        made = own if average.params is None else average.params
        if schema_of(made) != schema_of(own):
            raise RunError(
                f"{type(self.rule).__name__}: its average of a {role} must have the names, shapes "
                "and dtypes of the server's last one; correct the rule"
            )
        return made

    def put(self, params: Params, role: str) -> ModelRef:
        """Make this the server's newest content of a role."""
        return self.pool.made(to_bytes(params, self.transport), self.round, role)

    def _near(
        self, members: Sequence[Member], lengths: Sequence[tuple[float, float]], role: str
    ) -> list[Member]:
        """Return the members that did not move far beyond the others; note down how far all did."""
        out: set[int] = set()
        kinds = (("", MAX_WEIGHTS_CHANGE), (".statistics", MAX_STATISTICS_CHANGE))
        for (kind, limit), column in zip(kinds, zip(*lengths, strict=True), strict=False):
            before = self.moves.get(role + kind, ChangeLengths())
            found = times(column, before.largest)
            near = [length for length, far in zip(column, found, strict=True) if far <= limit]
            order = sorted(range(len(members)), key=lambda i: -found[i])
            furthest = tuple((members[i].site, round(found[i], 1)) for i in order[:MAX_NAMED_SITES])
            if any(column):
                self.moves[role + kind] = ChangeLengths(max(before.largest, middle(near)), furthest)
            out |= (beyond := {i for i in order if found[i] > limit})
            for i in beyond:
                self.left_out(members[i].site, found[i])
        return [member for i, member in enumerate(members) if i not in out]

    def read(self, ref: ModelRef) -> Params:
        """Return a content's tensors."""
        schema, owner = self.schemas[ref.role], f"{ref.role} of site {ref.site}"
        return PARSED_MODELS.get(ref.digest, self.pool.get, schema, owner, self.transport)


class _Reading:
    """How a member's tensors are read: once for all that is done while they are at hand."""

    def __init__(self, read: Callable[[], Params]) -> None:
        self._read = read
        self._held: Params | None = None

    def __call__(self) -> Params:
        """Return the tensors, read anew where they are not at hand."""
        return self._read() if self._held is None else self._held

    @contextmanager
    def at_hand(self) -> Iterator[Params]:
        """Read them and hold them for a while: of all members one at a time."""
        self._held = self._read()
        try:
            yield self._held
        finally:
            self._held = None
