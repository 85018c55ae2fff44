"""The state that never leaves a site: part of its model, such as the head, and its method's memory.

Versions of the state are stored by their digest: a run that is resumed after a crash asks for the
version with which its round began, even if there are newer ones. The server knows only the digest
and cannot restore a lost state. Each version holds a secret of the site (`SALT`), another one for
each task. Without it, somebody who knows digests could test which images the site has trained on,
and two equal digests would show that two trainings ended in the same state.
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
"""If sums are masked: prefix of the tensors of the site's own model, and the tensor that counts how
often it was trained."""
MEMORY = "memory."
"""Prefix of the tensors of the method's memory (`Method.memory`)."""
SALT = "salt"
"""Name of the tensor with the 32 bytes of the secret, uint8 [32]."""


def salted(params: Params, secret: bytes) -> Params:
    """Return a state with a secret of 32 bytes added, so that its digest reveals nothing."""
    return {**params, SALT: torch.frombuffer(bytearray(secret), dtype=torch.uint8)}


def stored_schema(kept: Collection[str], whole: Schema, memory: Schema) -> Schema:
    """Return the schema of the private state: part `kept` of the model, the memory and the secret.

    It is empty if the site keeps neither a part of its model nor a memory.
    """
    found = {n: whole[n] for n in kept} | {MEMORY + n: of for n, of in memory.items()}
    return {**found, SALT: ((32,), torch.uint8)} if found else {}


class PrivateParts:
    """One site's private state, in a folder.

    It has the last two versions and the one with which the current round began.
    """

    def __init__(self, root: Path) -> None:
        self._store = ModelStore(root, memory_bytes=0)
        self._began = root / "began.txt"

    @property
    def root(self) -> Path:
        """The folder."""
        return self._store.root

    def load(self, digest: str, schema: Schema) -> Params | None:
        """Return the tensors of a version; None if `digest` is empty, or if the version is lost."""
        if not schema:
            return {}
        if digest:
            try:
                return from_bytes(self._store.get(digest), schema, "what the site keeps to itself")
            except (StoreError, ProtocolError) as error:
                log.warning("%s; the site begins it again", error)
        return None

    def keep(self, params: Params, before: str, round: int) -> str:
        """Store a new version, made in this round; return its digest, empty if it has no tensors.

        before: digest of the version before it, which stays, as does the one with which the round
        began. Raises StoreError if the disk refuses.
        """
        if not params:
            return ""
        began = self._round_began_with(before, round)
        digest = self._store.put(to_bytes(params), durable=True)
        self._store.keep_only({began, before, digest})
        return digest

    def _round_began_with(self, before: str, round: int) -> str:
        """Return the version that the first task of the round named; that task writes it down."""
        noted = self._began.read_text().split(",") if self._began.exists() else []
        if noted[:1] == [str(round)]:
            return noted[1]
        write_atomic(self._began, f"{round},{before}".encode(), durable=False)
        return before
