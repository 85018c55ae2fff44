"""What never leaves a site: a part of its model, such as its head, and what it remembers beside.

It is kept by content: a run that is resumed after a crash asks for what its round began with, and
newer ones do not get in the way. The server knows the digest only and cannot heal a loss. Among the
content is a secret of the site (`SALT`), another for each task: by the digest alone somebody could
try which images the site has trained on, and by two that are equal see that two trainings were.
"""

import logging
from collections.abc import Collection
from pathlib import Path

import torch

from fedapp.core.disk import write_atomic
from fedapp.core.errors import ProtocolError, StoreError
from fedapp.learn.params import Params, Schema, from_bytes, to_bytes
from fedapp.protocol.store import ModelStore

log = logging.getLogger(__name__)


OWN, VERSION = "own.", "version"
"""Before the names of the site's own model, where sums are masked, and how often it was trained."""
MEMORY = "memory."
"""Goes before the name of a tensor that a site remembers beside its model (`Method.memory`)."""
SALT = "salt"
"""Name of the tensor with 32 secret bytes of the site, uint8 [32]."""


def salted(params: Params, secret: bytes) -> Params:
    """Return what is kept with a secret of 32 bytes added, so that its digest says nothing."""
    return {**params, SALT: torch.frombuffer(bytearray(secret), dtype=torch.uint8)}


def stored_schema(kept: Collection[str], whole: Schema, memory: Schema) -> Schema:
    """Return the schema of what a site stores: the part `kept` of its model, and its memory.

    And the secret beside them; nothing where there is neither.
    """
    found = {n: whole[n] for n in kept} | {MEMORY + n: of for n, of in memory.items()}
    return {**found, SALT: ((32,), torch.uint8)} if found else {}


class PrivateParts:
    """One site's, in a folder: the last two versions, and the one that its round began with."""

    def __init__(self, root: Path) -> None:
        self._store = ModelStore(root, memory_bytes=0)
        self._began = root / "began.txt"

    @property
    def root(self) -> Path:
        """The folder."""
        return self._store.root

    def load(self, digest: str, schema: Schema) -> Params | None:
        """Return the tensors of this version; None where it is empty, or lost."""
        if not schema:
            return {}
        if digest:
            try:
                return from_bytes(self._store.get(digest), schema, "what the site keeps to itself")
            except (StoreError, ProtocolError) as error:
                log.warning("%s; the site begins it anew", error)
        return None

    def keep(self, params: Params, before: str, round: int) -> str:
        """Keep a new version, made in this round; return its digest, empty without tensors.

        The one before it and the one that the round began with stay. Raises StoreError where the
        disk refuses.
        """
        if not params:
            return ""
        began = self._round_began_with(before, round)
        digest = self._store.put(to_bytes(params), durable=True)
        self._store.keep_only({began, before, digest})
        return digest

    def _round_began_with(self, before: str, round: int) -> str:
        """Return the version that the round's first task named; note it down at the first task."""
        noted = self._began.read_text().split(",") if self._began.exists() else []
        if noted[:1] == [str(round)]:
            return noted[1]
        write_atomic(self._began, f"{round},{before}".encode(), durable=False)
        return before
