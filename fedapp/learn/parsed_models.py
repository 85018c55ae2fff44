"""Models that were read and checked, by their content: one model is asked for by many sites.

A content has one meaning, so what was checked once need not be checked again. Kept for the whole
process: server and sites share it where they are one process.
"""

from collections.abc import Callable, Collection

from fedapp.core.cache import Cache
from fedapp.core.settings import TransportSettings
from fedapp.learn.params import Params, Schema, from_bytes
from fedapp.protocol.store import ModelStore

MEMORY = 512 * 2**20
"""Most bytes of tensors that are kept."""


class Parsed:
    """The models last used, up to `memory` bytes. Threads may share it.

    Nobody may change a tensor that comes from here in place.
    """

    def __init__(self, memory: int = MEMORY) -> None:
        self.cache = Cache[Params](memory)

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

        def checked() -> Params:
            return from_bytes(read(digest), schema, owner, transport)

        return dict(self.cache.found(digest, checked, of=(schema, transport)))

    def put(
        self, digest: str, params: Params, schema: Schema, transport: TransportSettings
    ) -> None:
        """Keep a model that `from_bytes` made of the content of this digest."""
        self.cache.put(digest, dict(params), of=(schema, transport))

    def keep_only(
        self, store: ModelStore, digests: Collection[str], *, reuse: bool = False
    ) -> None:
        """Let a store keep these contents only (`ModelStore.keep_only`), and forget what goes.

        Models of earlier rounds would otherwise fill all of `memory`, each in memory that the
        system must first clear.
        """
        self.cache.drop(store.keep_only(digests, reuse=reuse))


PARSED = Parsed()
"""This process's."""
