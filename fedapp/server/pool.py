"""The model pool: every site's latest model, and the update records that say who has changed."""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Self

from fedapp.ground.errors import ProtocolError, StoreError
from fedapp.messages.protocol import INITIAL_SITE, SERVER_SITE, ModelRef
from fedapp.messages.store import ModelStore

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class UpdateRecord:
    """One site's latest model: `version` counts changes of content, 0 is w_0; `round` of upload."""

    version: int
    digest: str
    round: int


class ModelPool:
    """Update records over a store.

    The record of `INITIAL_SITE` is w_0. After a change, save the records (`to_plain`) first and
    collect garbage (`keep`) then: the other way round, a crash in between would leave saved
    records whose contents are gone.
    """

    def __init__(
        self, store: ModelStore, records: Mapping[int, UpdateRecord] = MappingProxyType({})
    ) -> None:
        self.store = store
        self._records = dict(records)

    @property
    def records(self) -> Mapping[int, UpdateRecord]:
        """Every site's record, w_0's included; read-only."""
        return MappingProxyType(self._records)

    @property
    def initial(self) -> ModelRef:
        """w_0."""
        return self.latest(INITIAL_SITE)

    def start(self, sites: Sequence[int], blob: bytes) -> ModelRef:
        """Give every site, and the server, w_0 as model, version 0, round 0; return w_0."""
        digest = self.store.put(blob, durable=True)
        everybody = (SERVER_SITE, INITIAL_SITE, *sites)
        self._records = {site: UpdateRecord(0, digest, 0) for site in everybody}
        return self.initial

    def join(self, site: int) -> ModelRef:
        """Give a new site w_0 as model, version 0; one with a model keeps it. Return its model."""
        self._records.setdefault(site, UpdateRecord(0, self.initial.digest, 0))
        return self.latest(site)

    def adopt(self, site: int, version: int, blob: bytes) -> ModelRef:
        """Take in a site's or the server's model of an earlier run, of this version; return it."""
        self._records[site] = UpdateRecord(version, self.store.put(blob, durable=True), 0)
        return self.latest(site)

    def latest(self, site: int) -> ModelRef:
        """Return the newest version of a site's model. Raises ProtocolError on an unknown site."""
        record = self._record(site)
        return ModelRef(site, record.version, record.digest)

    def upload(self, site: int, named: str, blob: bytes, round: int) -> ModelRef:
        """Take in a site's model, `named` by its digest; content equal to its latest is no version.

        Raises ProtocolError on an unknown site and on another content than was named, StoreError
        where the disk refuses: the record then stays as it was.
        """
        record = self._record(site)
        digest = self.store.put(blob, durable=True)
        if digest != named:  # it goes with the next `keep`
            raise ProtocolError("its upload is not the content it names")
        if digest != record.digest:
            self._records[site] = UpdateRecord(record.version + 1, digest, round)
        return self.latest(site)

    def made(self, blob: bytes, round: int) -> ModelRef:
        """Take in a model that the server made; it is the newest version of `SERVER_SITE`'s."""
        version, digest = self._records[SERVER_SITE].version + 1, self.store.put(blob, durable=True)
        self._records[SERVER_SITE] = UpdateRecord(version, digest, round)
        return self.latest(SERVER_SITE)

    def trained(self) -> tuple[int, ...]:
        """Return the sites whose model has been trained at least once, ascending."""
        return tuple(sorted(k for k, record in self._records.items() if k >= 0 < record.version))

    def get(self, digest: str) -> bytes:
        """Return a content. Raises StoreError where it is absent or damaged."""
        return self.store.get(digest)

    def keep(self, also: Collection[str] = ()) -> None:
        """Remove every content but w_0, every site's latest and `also` (digests)."""
        self.store.keep_only({record.digest for record in self._records.values()} | set(also))

    def to_plain(self) -> dict[str, list[Any]]:
        """Return the records as JSON can hold them: site -> [version, digest, round]."""
        return {
            str(site): [record.version, record.digest, record.round]
            for site, record in sorted(self._records.items())
        }

    @classmethod
    def from_plain(cls, store: ModelStore, plain: Mapping[str, Sequence[Any]]) -> Self:
        """Return the pool that `to_plain` wrote down.

        Raises StoreError where a record is damaged.
        """
        records = {}
        for site, fields in plain.items():
            try:
                version, digest, round_ = fields
                record = UpdateRecord(int(version), str(digest), int(round_))
                records[int(site)] = record
            except (TypeError, ValueError) as error:
                raise StoreError(
                    f"update record of site {site} is damaged ({fields!r}): restore the run folder "
                    "from a copy or start a new run"
                ) from error
            if not store.has(record.digest):  # its site still has it: only peers must wait
                log.warning("the pool lacks the model of site %s, version %d", site, version)
        return cls(store, records)

    def _record(self, site: int) -> UpdateRecord:
        if site not in self._records:
            raise ProtocolError(
                f"site {site} has no record in the pool: it must be there when the run starts"
            )
        return self._records[site]
