"""A site's part in masked sums: its keys, its steps, and a journal of what it has opened.

The journal is why a server cannot look behind the masks by asking twice. Each time that a site
announces keys for a sum it takes fresh ones. Under one set of keys it adds one row of numbers: the
same masks over another row would show the difference. What was opened once is opened for the same
survivors again, so that a server that was killed in between can go on, and for no others.
"""

import hashlib
import hmac
import json
import secrets
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedapp.ground.disk import write_atomic
from fedapp.ground.errors import ProtocolError, StoreError
from fedapp.messages.masks.context import SumContext
from fedapp.messages.masks.keys import Signer
from fedapp.messages.masks.session import MaskSite
from fedapp.messages.masks.words import to_words
from fedapp.messages.protocol import SumAnswer, SumStep, Task

_SECRET_BYTES = 32


@dataclass(frozen=True)
class Membership:
    """Who a site is in a run's masked sums.

    site: its number. signer: its registered key. agreed: the fingerprints of all members' keys, by
    number. least: members of a sum at least. run, experiment: the run's identity and the digest of
    its settings. secret: from the seed, in a simulation; None: 32 random bytes that the site keeps.
    """

    site: int
    signer: Signer
    agreed: dict[int, str]
    least: int
    run: str
    experiment: str
    secret: bytes | None = None


@dataclass(frozen=True)
class Entry:
    """What the journal says. attempt: how often keys were announced in this run.

    round, number: of the newest sum; -1: there was none. members, row: digests of who took part and
    of the numbers that were added; empty: not yet. survivors: digest of those for whom it was
    opened; empty: it is closed. opened: round and number of the newest sum that was opened.
    """

    attempt: int = 0
    round: int = -1
    number: int = -1
    members: str = ""
    row: str = ""
    survivors: str = ""
    opened: tuple[int, int] = (-1, -1)


@dataclass(frozen=True)
class Summing:
    """One site's part in the masked sums of one run. root: a folder of its own."""

    membership: Membership
    root: Path

    def step(self, task: Task) -> SumAnswer:
        """Do a step of a sum but the adding. Raises ProtocolError, StoreError."""
        step = task.sum
        assert step is not None
        if step.stage == "announce":
            return self._announce(task, step)
        entry = self._current(task, step)
        site = self._masks(entry.attempt)
        if step.stage == "share":
            return site.share(self._context(task, step), step)
        return self._opened(task, step, entry, site)

    def masked(
        self, task: Task, numbers: NDArray[np.float64], noise: NDArray[np.int64] | None = None
    ) -> NDArray[np.uint64]:
        """Return numbers as they leave: in fixed point, with noise, and masked. Raises as `step`.

        noise: [D], in steps of the fixed point; None: there is none.
        """
        step = task.sum
        assert step is not None
        entry = self._current(task, step)
        words = to_words(numbers, len(step.members))
        if noise is not None:
            words = words + noise.view(np.uint64)
        row, members = _digest(words.data), _digest(repr(step.members).encode())
        if entry.row and (entry.row, entry.members) != (row, members):
            raise ProtocolError(
                f"{_named(task, step)}: other numbers or members than before under the same keys; "
                "the server must ask for new keys"
            )
        self._write(replace(entry, row=row, members=members))
        return self._masks(entry.attempt).masked(self._context(task, step), step, words)

    def _announce(self, task: Task, step: SumStep) -> SumAnswer:
        before = self._entry()
        if (task.round, step.number) <= before.opened:
            raise ProtocolError(
                f"{_named(task, step)}: this site has opened a sum of round {before.opened[0]}, "
                f"number {before.opened[1]}, and never goes back: go on from the newest checkpoint"
            )
        entry = Entry(before.attempt + 1, task.round, step.number, opened=before.opened)
        self._write(entry)
        return self._masks(entry.attempt).announce(self._context(task, step))

    def _opened(self, task: Task, step: SumStep, entry: Entry, site: MaskSite) -> SumAnswer:
        """Confirm who survived, or open the sum for them: for one list of survivors only."""
        members, survivors = (
            _digest(repr(every).encode()) for every in (step.members, step.survivors)
        )
        if not entry.row or entry.members != members:
            raise ProtocolError(
                f"{_named(task, step)}: this site has added nothing to a sum of these members: "
                "leave it out of the survivors"
            )
        if entry.survivors not in ("", survivors):
            raise ProtocolError(
                f"{_named(task, step)}: confirmed already, with other survivors; a second sum "
                "would show the numbers of those who differ"
            )
        context, opened = self._context(task, step), entry.opened
        if step.stage == "confirm":
            answer = site.confirm(context, step)
        elif entry.survivors:
            answer, opened = site.opened(context, step), (task.round, step.number)
        else:
            raise ProtocolError(f"{_named(task, step)}: must be confirmed before it is opened")
        self._write(replace(entry, survivors=survivors, opened=opened))  # before it is known
        return answer

    def _current(self, task: Task, step: SumStep) -> Entry:
        """Return the entry of a sum under way. Raises ProtocolError where it is another's."""
        entry = self._entry()
        if (entry.round, entry.number) != (task.round, step.number):
            raise ProtocolError(f"{_named(task, step)}: this site has announced no keys for it")
        return entry

    def _context(self, task: Task, step: SumStep) -> SumContext:
        whose = self.membership
        return SumContext(whose.run, whose.experiment, task.round, step.number)

    @cached_property
    def _masks(self) -> Callable[[int], MaskSite]:
        """Returns the site with its secrets of an attempt; the newest is kept from step to step."""
        whose = self.membership

        def of(attempt: int) -> MaskSite:
            secret = hmac.digest(self._secret, str(attempt).encode(), "sha256")
            return MaskSite(whose.site, secret, whose.signer, whose.agreed, whose.least)

        return lru_cache(maxsize=1)(of)

    @cached_property
    def _secret(self) -> bytes:
        if self.membership.secret is not None:
            return self.membership.secret
        path = self.root / "secret.key"
        try:
            found = path.read_bytes()
        except FileNotFoundError:
            found = secrets.token_bytes(_SECRET_BYTES)
            write_atomic(path, found, durable=True, mode=0o600)
        except OSError as error:
            raise StoreError(f"{path}: cannot be read ({error.strerror}): mend it") from error
        if len(found) != _SECRET_BYTES:
            raise StoreError(f"{path}: {len(found)} bytes, must be {_SECRET_BYTES}: remove it")
        return found

    def _entry(self) -> Entry:
        try:
            plain = json.loads(self._journal.read_text())
            return Entry(**{**plain, "opened": tuple(plain["opened"])})
        except FileNotFoundError:
            return Entry()
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise StoreError(
                f"{self._journal}: the journal of masked sums is damaged: without it this site "
                "cannot tell what it has opened; leave this run"
            ) from error

    def _write(self, entry: Entry) -> None:
        durable = self.membership.secret is None  # a simulated site has nothing to hide
        write_atomic(self._journal, json.dumps(asdict(entry)).encode(), durable=durable)

    @property
    def _journal(self) -> Path:
        return self.root / "journal.json"


def _named(task: Task, step: SumStep) -> str:
    return f"masked sum {step.number} of round {task.round}"


def _digest(what: bytes | memoryview) -> str:
    return hashlib.sha256(what).hexdigest()
