"""The contents that a site holds: those that its task names, and what is to be named next."""

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from fedapp.core.errors import ConfigError, ProtocolError, StoreError
from fedapp.core.settings import TransportSettings
from fedapp.learn.model_caches import PARSED_MODELS
from fedapp.learn.params import Params, Schema, digest_of, from_bytes, max_bytes, to_bytes, without
from fedapp.methods.base import SiteReport
from fedapp.protocol.messages import MODEL, ModelRef, PartSent, Task
from fedapp.protocol.store import ModelStore

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Packed:
    """What became of a report's contents.

    contents: digests of the new ones, whole, by role. parts: of those of which a part is sent.
    payloads: what is sent, by digest. held: what the site holds now.
    """

    contents: dict[str, str]
    parts: dict[str, PartSent]
    payloads: dict[str, bytes]
    held: frozenset[str]


@dataclass(frozen=True)
class Holdings:
    """A site's contents, in a store of its own or in the server's pool.

    shares_pool: they lie in the pool, of which the server alone removes any. schemas: of what sites
    share, by role. initial: makes w_0.
    """

    store: ModelStore
    shares_pool: bool
    schemas: Mapping[str, Schema]
    transport: TransportSettings
    initial: Callable[[], Params]

    def read(self, ref: ModelRef) -> Params:
        """Return the tensors of a content that is here."""
        owner = f"{ref.role} of site {ref.site}"
        return PARSED_MODELS.get(
            ref.digest, self.store.get, self.schemas[ref.role], owner, self.transport
        )

    def take_in(self, task: Task, payloads: Mapping[str, bytes]) -> tuple[str, ...]:
        """Keep what a task names and what came along with it; return what still lacks.

        Where it starts from w_0, that is made. Raises ProtocolError where something else came.
        """
        wanted = {ref.digest: ref for ref in task.refs()}
        self._keep_only(wanted)
        for digest, blob in payloads.items():
            ref = wanted.get(digest)
            schema = self.schemas.get(ref.role) if ref else None
            if not (ref and schema) or len(blob) > max_bytes(schema) or digest_of(blob) != digest:
                raise ProtocolError(f"content {digest[:12]} from the server is not what it names")
            owner = f"{ref.role} of site {ref.site} from the server"
            params = from_bytes(blob, schema, owner, self.transport)
            PARSED_MODELS.put(digest, params, schema, self.transport)
            self.store.put(blob)
        every = (task.own, *task.refs())  # a content of another role may be w_0 too
        first = next((ref.digest for ref in every if ref.version == 0), None)
        if first is not None and not self.store.has(first):
            self._make(first)
        return tuple(digest for digest in wanted if not self._has(digest))

    def pack(self, task: Task, report: SiteReport, kept: Collection[str]) -> Packed:
        """Keep a report's new contents, and of the others what it says; return what is sent.

        kept: the names of the model's tensors that stay at the site.
        """
        new = dict(report.contents)
        if report.params is not None:  # first: a part of another role may be based on it
            new = {MODEL: without(report.params, kept), **new}
        keeps = {helper.model.digest for helper in report.helpers}
        keeps |= {ref.digest for ref in report.holds}
        if new:  # make room before the new ones come
            bases = {sent.base.digest for sent in report.sent.values() if sent.base}
            self._keep_only({task.own.digest, *keeps, *bases})
        named: dict[str, str] = {}
        parts: dict[str, PartSent] = {}
        payloads: dict[str, bytes] = {}
        for role, tensors in new.items():
            sent = report.sent.get(role)
            came = {name: tensors[name] for name in sent.names} if sent else tensors
            blob = to_bytes(came, self.transport)
            digest = named[role] = self.store.put(blob)
            if sent:
                others = self.read(sent.base) if sent.base else new[MODEL]
                named[role] = self.store.put(to_bytes({**others, **came}, self.transport))
            if role == MODEL and named[role] == task.own.digest:
                continue
            payloads[digest] = blob
            if sent:
                base = sent.base.digest if sent.base else named[MODEL]
                parts[role] = PartSent(base, digest)
        held = frozenset({named.get(MODEL, task.own.digest), *keeps, *named.values()})
        self._keep_only(held)
        return Packed(named, parts, payloads, held)

    def _keep_only(self, digests: Collection[str]) -> None:
        """Remove all other contents, but from the server's pool."""
        if not self.shares_pool:
            PARSED_MODELS.keep_only(self.store, digests)

    def _make(self, digest: str) -> None:
        """Make w_0; not where its bytes are others here, as by another torch: then they come."""
        try:
            w_0 = self.initial()
        except ConfigError as error:  # such as no weights file here
            log.info("w_0 comes from the server: %s", error)
        else:
            shared = {name: w_0[name] for name in w_0 if name in self.schemas[MODEL]}
            blob = to_bytes(shared, self.transport)
            if digest_of(blob) == digest:
                self.store.put(blob)

    def _has(self, digest: str) -> bool:
        """Whether the content is here and whole; a damaged file is removed by the store."""
        whole = False
        try:
            whole = self.store.verify(digest)
        except StoreError as error:
            log.warning("%s; asking the server for it", error)
        return whole
