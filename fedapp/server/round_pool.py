"""The model pool as a method sees it in one round (`methods.base.PoolView`)."""

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
    length_ratios,
    median_length,
    rough_length,
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
    """The pool, with the averaging rule of the run.

    schemas: names, shapes and dtypes of what sites share, by role. weights: names of the tensors
    that are trained; the others are statistics. transport: how contents are encoded. round: its
    number. rule: the averaging rule. remembered: what the rule remembers of each site. moves: how
    far uploads lay from the average so far. Averages change `remembered`, `moves`, and the tensors
    that the pool keeps for the rule. left_out: is called for each site that is left out of an
    average, with its distance as a multiple of the usual one.
    """

    pool: ModelPool
    schemas: Mapping[str, Schema]
    weights: frozenset[str]
    transport: TransportSettings
    round: int
    rule: Rule[Any] = none.RULE
    remembered: dict[int, float] = field(default_factory=dict)
    moves: dict[str, ChangeLengths] = field(default_factory=dict)
    left_out: Callable[[int, float], None] = lambda site, length_ratios: None

    def latest(self, site: int, role: str = MODEL) -> ModelRef:
        """Return the newest version of a site's content of a role, by default its model."""
        return self.pool.latest(site, role)

    def having(self, role: str) -> tuple[int, ...]:
        """Return the sites that have sent a content of this role, ascending."""
        return self.pool.having(role)

    def has(self, site: int, role: str) -> bool:
        """Return whether a site, or the server as `SERVER_SITE`, has a content of this role."""
        return (site, role) in self.pool.contents

    def trained(self) -> tuple[int, ...]:
        """Return the sites whose model has been trained at least once, ascending."""
        return self.pool.trained()

    def common(self, role: str = MODEL) -> ModelRef:
        """Return the server's newest content of a role; until there is one, its model."""
        return self.pool.common(role)

    def average(self, parts: Sequence[tuple[float, ModelRef]], role: str = MODEL) -> ModelRef:
        """Replace the server's content of a role by the average of `parts`; return the new version.

        parts: weight and content of each member; those with weight 0 are ignored. The average is
        made by the rule of the run. Whatever the rule, members whose content lies far beyond the
        others' are left out and reported, and the average is computed again without them. Without
        members the new version has the content of the last one.
        """
        own = self.read(self.common(role))
        heard = [
            (weight, _MemberReader(partial(self.read, r)), r) for weight, r in parts if weight > 0
        ]
        members = [Member(r.site, weight, reading) for weight, reading, r in heard]
        floating = [name for name, tensor in own.items() if tensor.is_floating_point()]
        weights = [name for name in floating if name in self.weights]
        others = [name for name in floating if name not in self.weights]
        lengths: list[tuple[float, float]] = []
        total = self.rule.start(own)
        for member, (_, reading, _) in zip(members, heard, strict=True):
            with reading.in_memory() as params:
                # The distances of its weights and of its statistics from the server's content.
                far = rough_length(params, own, weights), rough_length(params, own, others)
                lengths.append(far)
                total = self.rule.accumulate(total, member)
        near = members if self.rule.masked else self._without_outliers(members, lengths, role)
        if len(near) < len(members):
            total = reduce(self.rule.accumulate, near, self.rule.start(own))
        mean = self._finish(total, own, role) if near else own
        return self.pool.add_server_content(to_bytes(mean, self.transport), self.round, role)

    def _finish(self, total: Any, own: Params, role: str) -> Params:
        """Finish an average, store what the rule remembers, and return the server's next content.

        total: what the rule has accumulated. own: the server's last content.
        """
        before = Memory(self.remembered, self.pool.rule_memory(role))
        average = self.rule.finish(total, own, self.weights, before)
        self.remembered.update(average.memory.sites)
        self.pool.store_rule_memory(average.memory.tensors, self.round, role)
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
        """Store these tensors as the server's newest content of a role."""
        return self.pool.add_server_content(to_bytes(params, self.transport), self.round, role)

    def _without_outliers(
        self, members: Sequence[Member], lengths: Sequence[tuple[float, float]], role: str
    ) -> list[Member]:
        """Return the members that do not lie far beyond the others, and update `moves`.

        lengths: of each member, the distances of its weights and of its statistics.
        """
        out: set[int] = set()
        kinds = (("", MAX_WEIGHTS_CHANGE), (".statistics", MAX_STATISTICS_CHANGE))
        for (kind, limit), column in zip(kinds, zip(*lengths, strict=True), strict=False):
            before = self.moves.get(role + kind, ChangeLengths())
            found = length_ratios(column, before.largest)
            near = [length for length, far in zip(column, found, strict=True) if far <= limit]
            order = sorted(range(len(members)), key=lambda i: -found[i])
            furthest = tuple((members[i].site, round(found[i], 1)) for i in order[:MAX_NAMED_SITES])
            if any(column):
                self.moves[role + kind] = ChangeLengths(
                    max(before.largest, median_length(near)), furthest
                )
            out |= (beyond := {i for i in order if found[i] > limit})
            for i in beyond:
                self.left_out(members[i].site, found[i])
        return [member for i, member in enumerate(members) if i not in out]

    def read(self, ref: ModelRef) -> Params:
        """Return the tensors of a content."""
        schema, owner = self.schemas[ref.role], f"{ref.role} of site {ref.site}"
        return PARSED_MODELS.get(ref.digest, self.pool.get, schema, owner, self.transport)


class _MemberReader:
    """Reads the tensors of a member: once while `in_memory` is open, otherwise at each call."""

    def __init__(self, read: Callable[[], Params]) -> None:
        self._read = read
        self._held: Params | None = None

    def __call__(self) -> Params:
        """Return the tensors. They are read again unless they are held in memory."""
        return self._read() if self._held is None else self._held

    @contextmanager
    def in_memory(self) -> Iterator[Params]:
        """Read the tensors and hold them inside the block, so that one member is in memory."""
        self._held = self._read()
        try:
            yield self._held
        finally:
            self._held = None
