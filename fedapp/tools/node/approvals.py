"""Which apps a site allows: the list of its decisions, and the apps that wait for one.

    FOLDER/approvals/approvals.json     the list, which only its owner may write
    FOLDER/approvals/waiting/HASH.fab   apps that runs asked for and that nobody decided on yet
    FOLDER/approvals/approved/HASH.fab  apps that were approved, to compare the next one with

The app that is installed at the site may run without approval: whoever installed it chose it.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Literal

from filelock import FileLock, Timeout
from pydantic import Field, TypeAdapter, ValidationError

from fedapp.core.disk import check_owned, write_atomic
from fedapp.core.errors import ConfigError, StoreError
from fedapp.core.untrusted_files import first_fault
from fedapp.site.record import Record, user_name
from fedapp.tools.node.app_bundle import Bundle, installed, read_fab

FOLDER, LIST, WAITING, APPROVED = "approvals", "approvals.json", "waiting", "approved"
LASTS_DAYS = 365
"""Days for which an approval counts. Code that was reviewed long ago may have known faults now."""
MAX_WAITING = 20
"""How many apps are kept for a decision. Further ones that a server sends are not kept."""
Word = Literal["approved", "refused", "taken back"]
_LOCK_S = 10.0
_CLOSED = {"extra": "forbid", "strict": True}


@dataclass(frozen=True)
class Decision:
    """A person's decision on an app. app: its hash. when: UTC, ISO 8601. by: the user's name."""

    __pydantic_config__ = _CLOSED

    app: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    word: Word
    title: Annotated[str, Field(max_length=200)]
    when: Annotated[str, Field(max_length=40)]
    by: Annotated[str, Field(max_length=100)]

    @property
    def over(self) -> bool:
        """Whether it is older than `LASTS_DAYS` by this machine's clock, or its time is invalid."""
        try:
            return datetime.now(UTC) - datetime.fromisoformat(self.when) > timedelta(LASTS_DAYS)
        except (ValueError, TypeError):
            return True


@dataclass(frozen=True)
class Listed:
    """The content of the file: all decisions, the latest last."""

    __pydantic_config__ = _CLOSED

    version: Literal[1] = 1
    decisions: list[Decision] = field(default_factory=list)


_FILE = TypeAdapter(Listed)


@dataclass(frozen=True)
class Approvals:
    """A site's approvals. folder: the site's own folder."""

    folder: Path

    @property
    def place(self) -> Path:
        """The folder of the list."""
        return self.folder / FOLDER

    def decisions(self) -> list[Decision]:
        """Return all decisions, the latest last.

        Raises ConfigError if the list is damaged, or if another user could have written it.
        """
        path = self.place / LIST
        try:
            check_owned(path)
            return list(_FILE.validate_json(path.read_bytes()).decisions)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}: make it readable for the node") from error
        except ValidationError as error:
            raise ConfigError(
                f"{path}: {first_fault(error)}: restore it from a copy, or remove it and "
                "approve again with `fedapp approve`"
            ) from error

    def word(self, app: Bundle) -> str:
        """Return the latest decision on an app; empty: none. Raises what `decisions` raises."""
        return next((one.word for one in reversed(self.decisions()) if one.app == app.hash), "")

    def refusal(self, app: Bundle) -> str:
        """Return why an app may not run at this site; empty: it may. Raises as `decisions` does."""
        made = next((one for one in reversed(self.decisions()) if one.app == app.hash), None)
        word, here = made.word if made else "", app.hash == installed().hash
        over = made is not None and made.over and not here
        if (word == "approved" and not over) or (not word and here):
            return ""
        why = {
            "approved": f"its approval is older than {LASTS_DAYS} days",
            "refused": "this site has refused it",
            "taken back": "this site has taken its approval back",
        }.get(word, "this site has not approved it")
        return f"app {app.title} ({app.hash[:16]}): {why}; at the site: fedapp approve"

    def keep_waiting(self, app: Bundle, fab: bytes) -> None:
        """Keep an app for a person to review, unless it was decided on. Raises StoreError."""
        if any(one.app == app.hash for one in self.decisions()):
            return
        waiting = self.place / WAITING
        path = waiting / f"{app.hash}.fab"
        if not path.exists() and len(list(waiting.glob("*.fab"))) < MAX_WAITING:
            write_atomic(path, fab, durable=True, mode=0o600)

    def waiting(self) -> dict[str, Bundle]:
        """Return the apps that wait for a decision, by hash."""
        return self._kept(WAITING)

    def approved(self) -> dict[str, Bundle]:
        """Return the kept apps that were approved, by hash."""
        return self._kept(APPROVED)

    def last_approved(self) -> Bundle:
        """Return the app that was approved last, or else the installed one."""
        kept = self.approved()
        for one in reversed(self.decisions()):
            if one.word == "approved" and one.app in kept:
                return kept[one.app]
        return installed()

    def decide(self, app: str, title: str, word: Word) -> Decision:
        """Write a decision into the record and the list. Raises ConfigError or StoreError."""
        when = datetime.now(UTC).isoformat(timespec="seconds")
        made = Decision(app, word, title, when, user_name())
        with self._locked():
            Record(self.folder).add("decided", app=app, title=title, word=word, by=made.by)
            listed = Listed(decisions=[*self.decisions(), made])
            text = _FILE.dump_json(listed, indent=1) + b"\n"
            write_atomic(self.place / LIST, text, durable=True, mode=0o600)
            kept = self.place / WAITING / f"{app}.fab"
            if word == "approved" and kept.exists():
                (self.place / APPROVED).mkdir(exist_ok=True)
                os.replace(kept, self.place / APPROVED / kept.name)
            else:
                kept.unlink(missing_ok=True)
        return made

    def _kept(self, where: str) -> dict[str, Bundle]:
        found = {}
        for path in sorted((self.place / where).glob("*.fab")):
            with suppress(ConfigError, OSError):  # a damaged file is no app
                app = read_fab(path.read_bytes())
                found[app.hash] = app
        return found

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            self.place.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = FileLock(self.place / ".lock", mode=0o600)
            lock.acquire(timeout=_LOCK_S)
        except Timeout as error:
            raise StoreError(f"{self.place}: somebody else is deciding now: try again") from error
        except OSError as error:
            raise StoreError(f"{self.place}: {error.strerror}: make it writable") from error
        try:
            yield
        finally:
            lock.release()
