"""A whole masked sum between sites in one process, with a hand on every message."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from fedapp.protocol.messages import (
    Announcement,
    Confirmation,
    OpenedShare,
    Sealed,
    SumAnswer,
    SumStep,
)
from fedapp.protocol.secure_aggregation.context import SumContext
from fedapp.protocol.secure_aggregation.fixed_point import from_words, to_words
from fedapp.protocol.secure_aggregation.server_session import (
    Unmasked,
    announcements_for,
    boxes_by_receiver,
    unmask,
)
from fedapp.protocol.secure_aggregation.simulated_keys import (
    simulated_agreed,
    simulated_secret,
    simulated_signer,
)
from fedapp.protocol.secure_aggregation.site_session import MaskSite, announcements_digest

SEED = 3
CONTEXT = SumContext("run", "run-1", "e" * 64, 4, 1, 2)
NOBODY = frozenset[int]()
QUESTION = "7" * 64
Words = np.ndarray


def site(number: int, sites: int, least: int = 3, seed: int = SEED) -> MaskSite:
    """A simulated site of a run of so many."""
    keys = simulated_secret(seed, number), simulated_signer(seed, number)
    return MaskSite(number, *keys, simulated_agreed(seed, sites), least)


@dataclass
class Sum:
    """Sites 0, 1, ... and one sum of theirs. rows: [n, D] float64, or uint64 words as they are.

    late: lost after their shares came, before their numbers do. silent: lost after that. asked: of
    sites that were asked something else than all others, the digest of that.
    """

    rows: np.ndarray
    late: Collection[int] = NOBODY
    silent: Collection[int] = NOBODY
    least: int = 3
    seed: int = SEED
    context: SumContext = CONTEXT
    asked: Mapping[int, str] = field(default_factory=dict)

    @cached_property
    def sites(self) -> list[MaskSite]:
        return [site(k, len(self.rows), self.least, self.seed) for k in range(len(self.rows))]

    @cached_property
    def members(self) -> tuple[int, ...]:
        return tuple(range(len(self.rows)))

    @cached_property
    def survivors(self) -> tuple[int, ...]:
        return tuple(k for k in self.members if k not in self.late)

    @cached_property
    def announcements(self) -> dict[int, Announcement]:
        found = {k: self.sites[k].announce(self.context).announcement for k in self.members}
        return {k: one for k, one in found.items() if one is not None}

    def step(self, stage: str, of: int, **more: object) -> SumStep:
        needed = announcements_for(self.context, of, self.members, self.announcements)
        which = self.context.number, stage, self.context.attempt
        plain = SumStep(*which, self.members, self.announced, needed)  # type: ignore[arg-type]
        return replace(plain, **more)  # type: ignore[arg-type]

    @property
    def announced(self) -> str:
        return announcements_digest(self.context, (self.announcements[k] for k in self.members))

    @property
    def cohort(self) -> str:
        return self.context.cohort(self.members, self.announced)

    @property
    def named(self) -> str:
        return self.context.masks(self.cohort, QUESTION)

    @cached_property
    def sealed(self) -> list[Sealed]:
        shared = (self.sites[k].share(self.context, self.step("share", k)) for k in self.members)
        return [box for answer in shared for box in answer.sealed]

    def words(self, k: int) -> Words:
        row = self.rows[k]
        return row if row.dtype == np.uint64 else to_words(row, len(self.rows))

    def masked(self, k: int) -> Words:
        question = self.asked.get(k, QUESTION)
        return self.sites[k].add_masks(self.context, self.step("add", k), self.words(k), question)

    @cached_property
    def total(self) -> Words:
        return total(self.masked(k) for k in self.survivors)

    @property
    def responding(self) -> tuple[int, ...]:
        return tuple(k for k in self.survivors if k not in self.silent)

    @cached_property
    def confirmations(self) -> tuple[Confirmation, ...]:
        said = (self.confirm(k).confirmation for k in self.responding)
        return tuple(one for one in said if one is not None)

    def confirm(self, k: int, **more: object) -> SumAnswer:
        step = self.step("confirm", k, survivors=self.survivors)
        return self.sites[k].confirm(self.context, replace(step, **more))  # type: ignore[arg-type]

    def open(self, k: int, **more: object) -> SumAnswer:
        plain = {
            "sealed": boxes_by_receiver(self.sealed)[k],
            "survivors": self.survivors,
            "confirmations": self.confirmations,
        }
        return self.sites[k].open_shares(self.context, self.step("open", k, **{**plain, **more}))

    @cached_property
    def opened(self) -> dict[int, SumAnswer]:
        return {k: self.open(k) for k in self.responding}

    def unmasked(self, opened: dict[int, SumAnswer] | None = None) -> Unmasked:
        given = self.opened if opened is None else opened
        return unmask(
            *(self.context, QUESTION, self.members, self.survivors),
            *(self.total, self.announcements, given),
        )

    def result(self) -> np.ndarray:
        return from_words(self.unmasked().words, len(self.members))


def total(words: Iterable[Words]) -> Words:
    """The sum modulo 2^64."""
    return np.sum(list(words), axis=0, dtype=np.uint64)


def with_share(answer: SumAnswer, of: int, share: str, which: str = "own") -> SumAnswer:
    """An answer whose share of this site is another."""
    changed = tuple(
        OpenedShare(of, share) if one.site == of else one for one in getattr(answer, which)
    )
    return replace(answer, **{which: changed})
