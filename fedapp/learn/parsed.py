"""Models that were read and checked, by their content: one model is asked for by many sites.

A content has one meaning, so what was checked once need not be checked again. Kept for the whole
process: server and sites share it where they are one process.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from fedapp.ground.settings import TransportSettings
from fedapp.learn.params import Params, Schema, from_bytes

MEMORY = 512 * 2**20
"""Most bytes of tensors that are kept."""


@dataclass(frozen=True, eq=False)
class _Known:
    params: Params
    schema: Schema
    transport: TransportSettings
    size: int


class Parsed:
    """The models last used, up to `memory` bytes. Threads may share it.

    Nobody may change a tensor that comes from here in place.
    """

    def __init__(self, memory: int = MEMORY) -> None:
        self._memory, self._used = memory, 0
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def used(self) -> int:
        """Bytes of tensors that are kept now, at most `memory`."""
        return self._used

    def get(
        self,
        digest: str,
        read: Callable[[str], bytes],
        schema: Schema,
        owner: str,
        transport: TransportSettings,
    ) -> Params:
        """Return a model; where it is not known, read it and check it as `from_bytes` does.

        read: returns the content of a digest, having compared the two.
        """
        with self._lock:
            known = self._known.get(digest)
            if known and known.schema == schema and known.transport == transport:
                self._known.move_to_end(digest)
                return dict(known.params)
        params = from_bytes(read(digest), schema, owner, transport)
        self.put(digest, params, schema, transport)
        return params

    def put(
        self, digest: str, params: Params, schema: Schema, transport: TransportSettings
    ) -> None:
        """Keep a model that `from_bytes` made of the content of this digest."""
        size = sum(tensor.nbytes for tensor in params.values())
        if size > self._memory:
            return
        with self._lock:
            if known := self._known.pop(digest, None):
                self._used -= known.size
            self._known[digest] = _Known(dict(params), schema, transport, size)
            self._used += size
            while self._used > self._memory:
                self._used -= self._known.popitem(last=False)[1].size

    def forget(self, digests: Iterable[str]) -> None:
        """Keep none of these any longer; those that are not known are passed over.

        For contents that nobody will ask for again. Models of earlier rounds would otherwise fill
        all of `memory`, each in memory that the system must first clear.
        """
        with self._lock:
            for digest in digests:
                if known := self._known.pop(digest, None):
                    self._used -= known.size


PARSED = Parsed()
"""This process's."""
