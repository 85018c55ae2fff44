"""The contents that a site holds: those that its task names, and those that it made in the task."""

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
    """A report's contents, stored and ready to be sent.

    contents: digests of the new contents, whole, by role. parts: those of which only a part is
    sent, by role. payloads: the bytes to send, by digest. held: digests of all that the site holds
    now.
    """

    contents: dict[str, str]
    parts: dict[str, PartSent]
    payloads: dict[str, bytes]
    held: frozenset[str]


@dataclass(frozen=True)
class Holdings:
    """A site's contents, in a store of its own or in the server's pool.

    shares_pool: whether the store is the server's pool, from which only the server removes
    contents. schemas: of what sites share, by role. initial: makes the initial model w_0.
    """

    store: ModelStore
    shares_pool: bool
    schemas: Mapping[str, Schema]
    transport: TransportSettings
    initial: Callable[[], Params]

    def read(self, ref: ModelRef) -> Params:
        """Return the tensors of a content that the site holds."""
        owner = f"{ref.role} of site {ref.site}"
        return PARSED_MODELS.get(
            ref.digest, self.store.get, self.schemas[ref.role], owner, self.transport
        )

    def take_in(self, task: Task, payloads: Mapping[str, bytes]) -> tuple[str, ...]:
        """Store the payloads that came with a task, and remove what the task does not name.

        Returns the digests that the task names and the site lacks. If the task starts from the
        initial model w_0, the site makes that itself. Raises ProtocolError for a payload that the
        task does not name, or that is not what its name says.
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
        every = (task.own, *task.refs())  # w_0 can also be the content of another role
        first = next((ref.digest for ref in every if ref.version == 0), None)
        if first is not None and not self.store.has(first):
            self._make(first)
        return tuple(digest for digest in wanted if not self._has(digest))

    def pack(self, task: Task, report: SiteReport, kept: Collection[str]) -> Packed:
        """Store a report's new contents and remove the old ones that it does not name.

        kept: the names of the model's tensors that never leave the site. Returns what is sent.
        """
        new = dict(report.contents)
        if report.params is not None:  # the model comes first: other roles may be based on it
            new = {MODEL: without(report.params, kept), **new}
        keeps = {helper.model.digest for helper in report.helpers}
        keeps |= {ref.digest for ref in report.holds}
        if new:  # remove old contents before new ones are written, to need less disk
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
        """Remove all other contents, unless the store is the server's pool."""
        if not self.shares_pool:
            PARSED_MODELS.keep_only(self.store, digests)

    def _make(self, digest: str) -> None:
        """Make w_0. If its bytes differ here, as with another torch, the server sends it."""
        try:
            w_0 = self.initial()
        except ConfigError as error:  # for instance, the file of pretrained weights is not here
            log.info("w_0 comes from the server: %s", error)
        else:
            shared = {name: w_0[name] for name in w_0 if name in self.schemas[MODEL]}
            blob = to_bytes(shared, self.transport)
            if digest_of(blob) == digest:
                self.store.put(blob)

    def _has(self, digest: str) -> bool:
        """Whether the content is here and undamaged; the store removes a damaged file."""
        whole = False
        try:
            whole = self.store.verify(digest)
        except StoreError as error:
            log.warning("%s; asking the server for it", error)
        return whole
