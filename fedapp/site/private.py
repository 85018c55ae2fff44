"""The part of a site's model that never leaves the site, such as its head or its batch norms.

It is kept by content: a run that is resumed after a crash asks for the part of its own round, and
the newer one does not get in the way. The server knows the digest only and cannot heal a loss.
"""

import logging
from collections.abc import Callable
from pathlib import Path

from fedapp.ground.errors import ProtocolError, StoreError
from fedapp.learn.params import Params, Schema, from_bytes, to_bytes
from fedapp.messages.store import ModelStore

log = logging.getLogger(__name__)


class PrivateParts:
    """One site's part, its last two versions, in a folder."""

    def __init__(self, root: Path) -> None:
        self._store = ModelStore(root, memory_bytes=0)

    @property
    def root(self) -> Path:
        """The folder."""
        return self._store.root

    def load(self, digest: str, schema: Schema, initial: Callable[[], Params]) -> Params:
        """Return the tensors of this version; those of w_0 where it is empty, or lost."""
        if not schema:
            return {}
        if digest:
            try:
                return from_bytes(self._store.get(digest), schema, "the site's private part")
            except (StoreError, ProtocolError) as error:
                log.warning("%s; the site's private part starts again from w_0", error)
        return {name: tensor for name, tensor in initial().items() if name in schema}

    def keep(self, params: Params, before: str) -> str:
        """Keep a new version beside the one before; return its digest, empty without tensors.

        Raises StoreError where the disk refuses.
        """
        if not params:
            return ""
        digest = self._store.put(to_bytes(params), durable=True)
        self._store.keep_only({before, digest})
        return digest
