"""The model pool: the latest contents of every site, with a record of each one's last change.

A content is what a site uploads in one role: its model (`MODEL`), or for example its prototypes.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Self

from safetensors.torch import load

from fedapp.core.errors import ProtocolError, StoreError
from fedapp.learn.model_caches import PARSED_MODELS
from fedapp.learn.params import Params, to_bytes
from fedapp.protocol.messages import INITIAL_SITE, MODEL, SERVER_SITE, ModelRef
from fedapp.protocol.store import ModelStore

log = logging.getLogger(__name__)

RULE_MEMORY_SITE = -3
"""Site number under which the pool keeps the tensors that the averaging rule remembers."""


@dataclass(frozen=True)
class UpdateRecord:
    """Record of a site's latest content of one role.

    version: how often the content has changed; version 0 of a model is w_0, the initial one.
    digest: SHA-256 of the content. round: the round of the upload.
    """

    version: int
    digest: str
    round: int


Records = Mapping[tuple[int, str], UpdateRecord]
"""Update records by site and role."""


class ModelPool:
    """The update records, and the store that holds the contents.

    The record of `INITIAL_SITE` is w_0, the initial model. After a change, first write the contents
    to the disk (`sync`), then save the records (`to_plain`), and only then remove old contents
    (`collect_garbage`). In any other order, a crash in between could leave saved records whose
    contents are gone.
    """

    def __init__(
        self,
        store: ModelStore,
        records: Records = MappingProxyType({}),
    ) -> None:
        self.store = store
        self._records = dict(records)
        self._unsynced: set[str] = set()

    @property
    def contents(self) -> Records:
        """All records."""
        return self._records

    @property
    def initial(self) -> ModelRef:
        """The initial model, w_0."""
        return self.latest(INITIAL_SITE)

    def start(self, sites: Sequence[int], blob: bytes) -> ModelRef:
        """Make w_0 the model of every site and of the server: version 0, round 0. Return w_0.

        blob: the bytes of w_0.
        """
        digest = self.store.put(blob, durable=True)
        everybody = (SERVER_SITE, INITIAL_SITE, *sites)
        self._records = {(site, MODEL): UpdateRecord(0, digest, 0) for site in everybody}
        return self.initial

    def join(self, site: int) -> ModelRef:
        """Give a new site w_0 as its model, version 0, and return its model.

        A site that has a model already keeps it.
        """
        self._records.setdefault((site, MODEL), UpdateRecord(0, self.initial.digest, 0))
        return self.latest(site)

    def latest(self, site: int, role: str = MODEL) -> ModelRef:
        """Return the newest version of a site's content of this role.

        Raises ProtocolError where the site is unknown or never sent such a content.
        """
        record = self._record(site, role)
        return ModelRef(site, record.version, record.digest, role)

    def having(self, role: str) -> tuple[int, ...]:
        """Return the sites that have a content of this role, ascending. All have a model."""
        return tuple(sorted(site for site, of in self._records if of == role and site >= 0))

    def upload(self, site: int, named: str, blob: bytes, round: int, role: str = MODEL) -> ModelRef:
        """Store a site's upload, and return its newest version.

        An upload that equals the site's latest content is no new version. named: the digest that
        the site gave. Raises ProtocolError where the site is unknown or the content has another
        digest, and StoreError where the disk refuses; the record then stays as it was.
        """
        self._record(site)
        record = self._records.get((site, role), UpdateRecord(0, "", 0))
        digest = self.store.put(blob, named=named)
        if digest != named:  # the next `collect_garbage` removes it from the store
            raise ProtocolError("its upload is not the content it names")
        self._unsynced.add(digest)
        if digest != record.digest:
            self._records[site, role] = UpdateRecord(record.version + 1, digest, round)
        return self.latest(site, role)

    def add_server_content(self, blob: bytes, round: int, role: str = MODEL) -> ModelRef:
        """Store what the server has made, as the newest version of `SERVER_SITE`'s content."""
        digest = self.store.put(blob)
        self._unsynced.add(digest)
        version = self.common(role).version + 1
        self._records[SERVER_SITE, role] = UpdateRecord(version, digest, round)
        return self.latest(SERVER_SITE, role)

    def drop_role(self, role: str) -> None:
        """Drop the records of a role. The next `collect_garbage` removes the contents."""
        self._records = {whose: of for whose, of in self._records.items() if whose[1] != role}

    def store_rule_memory(self, tensors: Params, round: int, role: str) -> None:
        """Store the tensors that the averaging rule remembers for a role; replaces earlier ones."""
        if not tensors:
            self._records.pop(_remembered(role), None)
            return
        digest = self.store.put(to_bytes(tensors))
        self._unsynced.add(digest)
        before = self._records.get(_remembered(role), UpdateRecord(0, "", 0))
        self._records[_remembered(role)] = UpdateRecord(before.version + 1, digest, round)

    def rule_memory(self, role: str) -> Params:
        """Return the tensors that the averaging rule remembers for a role. Raises StoreError."""
        record = self._records.get(_remembered(role))
        return load(self.store.get(record.digest)) if record else {}

    def common(self, role: str = MODEL) -> ModelRef:
        """Return the server's newest content of a role; until there is one, its model."""
        known = (SERVER_SITE, role) in self._records
        return self.latest(SERVER_SITE, role if known else MODEL)

    def server_contents(self) -> dict[str, tuple[ModelRef, ...]]:
        """Return all contents that the server made, by their names in tasks."""
        roles = (role for site, role in self._records if site == SERVER_SITE)
        return {
            "server" if role == MODEL else role: (self.latest(SERVER_SITE, role),) for role in roles
        }

    def trained(self) -> tuple[int, ...]:
        """Return the sites whose model has been trained at least once, ascending."""
        models = ((k, r) for (k, role), r in self._records.items() if role == MODEL)
        return tuple(sorted(k for k, record in models if k >= 0 < record.version))

    def get(self, digest: str) -> bytes:
        """Return a content. Raises StoreError where it is absent or damaged."""
        return self.store.get(digest)

    def sync(self, also: Collection[str] = ()) -> None:
        """Write all new contents that `collect_garbage` will keep to the disk, at once.

        also: digests to keep beside those of the records. Raises StoreError where the disk refuses.
        """
        self.store.sync(self._unsynced & self._named(also))
        self._unsynced.clear()

    def collect_garbage(self, also: Collection[str] = (), *, more_come: bool = False) -> None:
        """Remove all contents except those of the records and of `also` (digests).

        more_come: whether more uploads will come, for which the files of removed contents can be
        reused; False at the end of a run.
        """
        PARSED_MODELS.keep_only(self.store, self._named(also), reuse=more_come)

    def _named(self, also: Collection[str]) -> set[str]:
        return {record.digest for record in self._records.values()} | set(also)

    def to_plain(self, records: Records | None = None) -> dict[str, list[Any]]:
        """Return records in types that JSON has: site -> [version, digest, round].

        records: which ones; None: all. The key of another role than the model has the role after
        the site, as in "3 prototypes".
        """
        return {
            str(site) if role == MODEL else f"{site} {role}": [
                record.version,
                record.digest,
                record.round,
            ]
            for (site, role), record in sorted(
                (self._records if records is None else records).items()
            )
        }

    @classmethod
    def from_plain(cls, store: ModelStore, plain: Mapping[str, Sequence[Any]]) -> Self:
        """Return the pool from what `to_plain` returned.

        Raises StoreError where a record is damaged. A missing content is only logged.
        """
        records = {}
        for whose, fields in plain.items():
            site, _, role = whose.partition(" ")
            try:
                version, digest, round_ = fields
                record = UpdateRecord(int(version), str(digest), int(round_))
                records[int(site), role or MODEL] = record
            except (TypeError, ValueError) as error:
                raise StoreError(
                    f"update record of site {whose} is damaged ({fields!r}): restore the run "
                    "folder from a copy or start a new run"
                ) from error
            if not store.has(record.digest):  # the site has it still, but others cannot be sent it
                log.warning("the pool lacks the content of site %s, version %d", whose, version)
        return cls(store, records)

    def _record(self, site: int, role: str = MODEL) -> UpdateRecord:
        if (site, MODEL) not in self._records:
            raise ProtocolError(
                f"site {site} has no record in the pool: it must be there when the run starts"
            )
        if (site, role) not in self._records:
            raise ProtocolError(f"site {site} has sent no {role} yet: ask `having` who has")
        return self._records[site, role]


def _remembered(role: str) -> tuple[int, str]:
    return RULE_MEMORY_SITE, f"remembered_{role}"
