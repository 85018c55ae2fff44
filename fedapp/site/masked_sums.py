"""A site's part in masked sums: its keys, its steps, and a journal of what it has signed and added.

Because of the journal a server cannot look behind the masks by asking twice. A *sum* is named by
its round and number; an *attempt* is one try at it, with new keys. An attempt has these stages:

    announced -> shared -> added -> confirmed

- The numbers of attempts only increase, through all sums. By announcing an attempt the site
  abandons every earlier attempt at the same sum: it has not confirmed them, and never will.
- With one set of keys, the site shares its secrets among one cohort and adds one row. If it shared
  them among two cohorts, one could reconstruct one secret and the other the second, and both
  secrets together reveal the row.
- If the site added a row in an earlier attempt at this sum, that attempt must be dead before the
  site adds another row: so many of its members have abandoned it that nobody can open it any more.
- Confirming is final: the site confirms one list of survivors, and never again takes part in that
  sum or in one before it.

There is one journal for all runs of an identity, whatever they are called. It is on the disk before
an answer leaves. Keys follow from a nonce in it, so an older copy never brings old keys back.
"""

import hashlib
import hmac
import json
import secrets
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked

from fedapp.core.disk import write_atomic
from fedapp.core.errors import ProtocolError, StoreError
from fedapp.core.settings import CLOSED
from fedapp.protocol.codec import encode
from fedapp.protocol.messages import SumAnswer, SumStep, Task
from fedapp.protocol.secure_aggregation.context import SumContext, question_digest
from fedapp.protocol.secure_aggregation.fixed_point import to_words
from fedapp.protocol.secure_aggregation.keys import Signer
from fedapp.protocol.secure_aggregation.neighbour_graph import quorum
from fedapp.protocol.secure_aggregation.site_session import MaskSite, check_announcement
from fedapp.site.rollback_guard import ABSENT, Head, digest_of_file

_SECRET_BYTES = 32
JOURNAL = "journal.json"
ANEW = "If the run was begun again, go on with runtime.resume=true, or begin one of another name"
NO_SUM = -1
"""Stands for the round and the number of no sum."""

Noise = Callable[[bytes, int], NDArray[np.int64]]
"""(key that names the cohort, number of members that add noise) -> noise [D], in fixed point."""


@dataclass(frozen=True)
class Membership:
    """Who a site is in a run's masked sums.

    site: its number. signer: its registered key. agreed: the fingerprints of all members' keys, by
    number. least: fewest members of a sum. run, identity, experiment: the run's name, its identity
    and the digest of its settings. secret: in a simulation, a secret that follows from the seed;
    None: 32 random bytes that the site keeps. vouched: most members that the site believes to be
    real sites when it makes its share of the noise; None: all, since the site knows their keys.
    computing: as of `config.computing_settings`.
    """

    site: int
    signer: Signer
    agreed: dict[int, str]
    least: int
    run: str
    identity: str
    experiment: str
    secret: bytes | None = field(default=None, repr=False)
    vouched: int | None = None
    computing: str = ""


@checked(frozen=True, config=CLOSED)
class Attempt:
    """An attempt at a sum, and the stage that the site has reached in it.

    number: counts from 1. nonce: its keys follow from it; in hex, empty in a simulation. members,
    announced: the cohort and the digest of its announcements, once the secrets are shared. asked:
    digest of the task of the step that adds. row: digest of the words that were added. survivors:
    digest of the list that was confirmed.
    """

    number: int
    nonce: str = ""
    stage: Literal["announced", "shared", "added", "confirmed"] = "announced"
    members: tuple[int, ...] = ()
    announced: str = ""
    asked: str = ""
    row: str = ""
    survivors: str = ""


@checked(frozen=True, config=CLOSED)
class Entry:
    """The content of the journal.

    round, number: of the newest sum. run: digest of the name and the settings of that sum's run.
    attempt: the newest attempt at it. alive: an earlier attempt at it, to which the site added a
    row, and which may still be opened. final: round and number of the newest confirmed sum. state:
    digest of the private state with which the site does this sum. ahead: of that which it left it
    with; the server goes on from either, as the sum was opened with the site's row or without it.
    """

    round: int = NO_SUM
    number: int = NO_SUM
    run: str = ""
    attempt: Attempt = Attempt(0)
    alive: Attempt | None = None
    final: tuple[int, int] = (NO_SUM, NO_SUM)
    state: str = ""
    ahead: str = ""

    @property
    def sum(self) -> tuple[int, int]:
        """Round and number."""
        return self.round, self.number


_ENTRY = TypeAdapter(Entry)


@dataclass(frozen=True)
class Summing:
    """One site's part in the masked sums of all runs of one identity.

    root: its folder. head: recognises an older copy of the journal; None: in simulations.
    """

    membership: Membership
    root: Path
    head: Head | None = None

    def step(self, task: Task) -> SumAnswer:
        """Do any step of a sum except adding. Raises ProtocolError, StoreError, RecordError."""
        with self._locked():
            return self._step(task)

    def begin(self, task: Task) -> None:
        """Note what the site is to add, before it looks at an image. Raises as `step`.

        Under one set of keys it does one task: else a server could ask two, and learn from the
        refusal of other numbers whether they have the same answer. It also does no task with a
        state of long ago: else a server could put all sites but one back to the beginning.
        """
        with self._locked():
            self._begin(task)

    def masked(
        self,
        task: Task,
        numbers: NDArray[np.float64],
        noise: Noise | None = None,
        left: str = "",
    ) -> NDArray[np.uint64]:
        """Return numbers [D] as they leave: in fixed point, with noise, and masked.

        noise: is called only if the step names the right cohort, since calling it pays for a
        release; None: no noise is added. left: digest of the site's private state after the task.
        Raises as `step`.
        """
        with self._locked():
            return self._masked(task, numbers, noise, left)

    def counted(self, step: SumStep) -> int:
        """Return how many members the site expects to add noise to a sum."""
        most = self.membership.vouched
        return len(step.members) if most is None else min(len(step.members), most)

    def _step(self, task: Task) -> SumAnswer:
        step = task.sum
        assert step is not None
        if step.stage == "announce":
            return self._announce(task, step)
        entry = self._current(task, step)
        site = self._masks(entry.attempt)
        if step.stage == "share":
            return self._share(task, step, entry, site)
        return self._opened(task, step, entry, site)

    def _begin(self, task: Task) -> Entry:
        step = task.sum
        assert step is not None
        entry = self._current(task, step)
        attempt, asked = entry.attempt, _digest(encode(replace(task, sum=None)))
        self._check_cohort(task, step, attempt)
        if attempt.asked == asked:
            return entry
        if attempt.asked:
            raise ProtocolError(
                f"{_label(task, step)}: another task than before under the same keys; the server "
                "must ask for new keys, in another attempt"
            )
        if task.private not in (entry.state, entry.ahead):
            raise ProtocolError(
                f"{_label(task, step)}: names another state than this site left the newest sum "
                "with: go on from the newest checkpoint"
            )
        begun = replace(attempt, asked=asked)
        self._write(entry := replace(entry, attempt=begun, state=task.private, ahead=task.private))
        return entry

    def _masked(
        self, task: Task, numbers: NDArray[np.float64], noise: Noise | None, left: str
    ) -> NDArray[np.uint64]:
        step = task.sum
        assert step is not None
        entry, context = self._begin(task), self._context(task, step)
        attempt = entry.attempt
        words = to_words(numbers, len(step.members))
        if noise is not None:
            key = context.bind("noise", context.cohort(step.members, step.announced))
            words = words + noise(key, self.counted(step)).view(np.uint64)
        row = _digest(words.data)
        if attempt.row not in ("", row):
            raise ProtocolError(
                f"{_label(task, step)}: other numbers than before under the same keys; the server "
                "must ask for new keys, in another attempt"
            )
        masked = self._masks(attempt).add_masks(
            context, step, words, question_digest(task, self.membership.computing)
        )
        self._check_dead(task, context, step, entry.alive)
        if attempt.stage == "shared":
            added = replace(attempt, stage="added", row=row)
            self._write(replace(entry, attempt=added, ahead=left))
        return masked

    def _announce(self, task: Task, step: SumStep) -> SumAnswer:
        before, run = self._entry(), self._run
        asked = task.round, step.number
        if asked <= before.final:
            raise ProtocolError(
                f"{_label(task, step)}: this site has confirmed a sum of round {before.final[0]}, "
                f"number {before.final[1]}, and never goes back: go on from the newest checkpoint"
            )
        newest, again = (*before.sum, before.attempt.number), (*asked, step.attempt)
        if again == newest and before.run == run and not before.attempt.row:
            return self._masks(before.attempt).announce(self._context(task, step))
        if again <= newest:
            raise ProtocolError(
                f"{_label(task, step)}: this site is at attempt {newest[2]} of sum {newest[1]} of "
                f"round {newest[0]}, and only goes on: the server must count attempts up. {ANEW}"
            )
        alive = None
        if asked == before.sum:
            alive = before.attempt if before.attempt.stage == "added" else before.alive
            if alive is not None and before.run != run:
                raise ProtocolError(
                    f"{_label(task, step)}: this site added its numbers to it under another name "
                    "or other settings of the run: go on under those"
                )
        nonce = "" if self.membership.secret is not None else secrets.token_hex(_SECRET_BYTES)
        attempt = Attempt(step.attempt, nonce)
        ahead = before.state if asked == before.sum else before.ahead
        self._write(Entry(*asked, run, attempt, alive, before.final, before.state, ahead))
        return self._masks(attempt).announce(self._context(task, step))

    def _share(self, task: Task, step: SumStep, entry: Entry, site: MaskSite) -> SumAnswer:
        """Share the secrets of an attempt among one cohort."""
        answer = site.share(self._context(task, step), step)
        if entry.attempt.stage == "announced":
            shared = replace(
                entry.attempt, stage="shared", members=step.members, announced=step.announced
            )
            self._write(replace(entry, attempt=shared))
        else:
            self._check_cohort(task, step, entry.attempt)
        return answer

    def _opened(self, task: Task, step: SumStep, entry: Entry, site: MaskSite) -> SumAnswer:
        """Confirm the list of survivors, or open the sum for it; only one list is ever accepted."""
        attempt, survivors = entry.attempt, _digest(repr(step.survivors).encode())
        self._check_cohort(task, step, attempt)
        if attempt.stage not in ("added", "confirmed"):
            raise ProtocolError(
                f"{_label(task, step)}: this site has added nothing to it: leave it out of the "
                "survivors"
            )
        if attempt.survivors not in ("", survivors):
            raise ProtocolError(
                f"{_label(task, step)}: confirmed already, with other survivors; a second sum "
                "would show the numbers of those who differ"
            )
        if step.stage == "open":
            if attempt.stage != "confirmed":
                raise ProtocolError(f"{_label(task, step)}: must be confirmed before it is opened")
            return site.open_shares(self._context(task, step), step)
        answer = site.confirm(self._context(task, step), step)
        if attempt.stage == "added":  # written before the answer leaves, since it is final
            last = replace(attempt, stage="confirmed", survivors=survivors)
            left = entry.ahead
            self._write(replace(entry, attempt=last, alive=None, final=entry.sum, state=left))
        return answer

    # --- what is checked --------------------------------------------------------------------------

    def _current(self, task: Task, step: SumStep) -> Entry:
        """Return the newest attempt's entry. Raises ProtocolError if the step is of another."""
        entry = self._entry()
        newest = (*entry.sum, entry.attempt.number, entry.run)
        if newest != (task.round, step.number, step.attempt, self._run):
            raise ProtocolError(
                f"{_label(task, step)}: this site has announced no keys for it, or newer ones since"
            )
        return entry

    def _check_cohort(self, task: Task, step: SumStep, attempt: Attempt) -> None:
        """Check that a step names the cohort among which the site shared its secrets."""
        if attempt.stage == "announced":
            raise ProtocolError(f"{_label(task, step)}: this site has not shared its secrets yet")
        if (attempt.members, attempt.announced) != (step.members, step.announced):
            raise ProtocolError(
                f"{_label(task, step)}: this site shared its secrets among other members, or for "
                f"other keys of theirs: the server must ask for new keys, in another attempt. "
                f"{ANEW}"
            )

    def _check_dead(
        self, task: Task, context: SumContext, step: SumStep, alive: Attempt | None
    ) -> None:
        """Check that an earlier row of the site in this sum cannot be opened any more.

        alive: the attempt with that row; None: there is none. To open it, ceil(2 n / 3) of its n
        members must confirm it, and an honest member either confirms or abandons an attempt. So it
        cannot be opened if ceil(2 n / 3) have abandoned it. Raises ProtocolError.
        """
        if alive is None:
            return
        gone = {one.site for one in step.announcements}
        for one in step.earlier:
            if one.attempt > alive.number:
                where = replace(context, attempt=one.attempt)
                check_announcement(where, one, self.membership.agreed)
                gone.add(one.site)
        found, needed = len(gone.intersection(alive.members)), quorum(len(alive.members))
        if found < needed:
            raise ProtocolError(
                f"{_label(task, step)}: attempt {alive.number}, to which this site added its "
                f"numbers, may still be opened: {found} of its {len(alive.members)} members have "
                f"announced keys since, {needed} must: repeat the sum when more are online"
            )

    # --- what is kept -----------------------------------------------------------------------------

    def _context(self, task: Task, step: SumStep) -> SumContext:
        whose = self.membership
        run = whose.run, whose.identity, whose.experiment
        return SumContext(*run, task.round, step.number, step.attempt)

    @property
    def _run(self) -> str:
        whose = self.membership
        return _digest(json.dumps([whose.run, whose.identity, whose.experiment]).encode())

    @cached_property
    def _masks(self) -> Callable[[Attempt], MaskSite]:
        """Makes the site's session of an attempt; the newest one is kept from step to step."""
        whose = self.membership

        def of(number: int, nonce: str) -> MaskSite:
            secret = hmac.digest(self._secret, f"{nonce} {number}".encode(), "sha256")
            return MaskSite(whose.site, secret, whose.signer, whose.agreed, whose.least)

        newest = lru_cache(maxsize=1)(of)
        return lambda attempt: newest(attempt.number, attempt.nonce)

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
            raise StoreError(f"{path}: cannot be read ({error.strerror}): fix that") from error
        if len(found) != _SECRET_BYTES:
            raise StoreError(f"{path}: {len(found)} bytes, must be {_SECRET_BYTES}: remove it")
        return found

    def _locked(self) -> AbstractContextManager[None]:
        return self.head.locked() if self.head else nullcontext()

    def _entry(self) -> Entry:
        try:
            text = self.journal.read_bytes() if self.journal.exists() else None
            if self.head:
                self.head.check(ABSENT if text is None else _digest(text))
            return Entry() if text is None else _ENTRY.validate_json(text)
        except (OSError, ValidationError) as error:
            raise StoreError(
                f"{self.journal}: the journal of masked sums is damaged: without it this site "
                "cannot tell what it has confirmed; leave this run"
            ) from error

    def _write(self, entry: Entry) -> None:
        durable = self.membership.secret is None  # a simulated site need not survive a power cut
        text, head = json.dumps(asdict(entry)).encode(), self.head
        before = digest_of_file(self.journal) if head else ""
        with head.advance(before, _digest(text)) if head else nullcontext():
            write_atomic(self.journal, text, durable=durable, mode=0o600)

    @property
    def journal(self) -> Path:
        """The file of the journal, which holds the newest entry."""
        return self.root / JOURNAL


def _label(task: Task, step: SumStep) -> str:
    return f"masked sum {step.number} of round {task.round}, attempt {step.attempt}"


def _digest(what: bytes | memoryview) -> str:
    return hashlib.sha256(what).hexdigest()
