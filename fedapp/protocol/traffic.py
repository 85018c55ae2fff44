"""The ledger of what was sent: contents and bytes by round, site, direction and kind.

Bytes are those of the messages themselves, JSON heads and models, without Flower's own framing.
"""

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Literal, Self, get_args

from fedapp.core.errors import StoreError
from fedapp.protocol.messages import MODEL

Direction = Literal["up", "down"]
"""up: from a site to the server; down: from the server to a site."""
MESSAGE = "message"
"""Kind of everything but contents. The kind of a content is its role, such as `messages.MODEL`."""
EVALUATION = "evaluation"
"""Kind of messages and contents of tasks that only measure a model. They are not part of a
method's cost, and have a total of their own."""

COLUMNS = ("round", "site", "direction", "kind", "models", "bytes", "layers")
"""Columns of traffic.csv. layers: if only a part of a content was sent, the names of the layers
that were, separated by spaces."""

_ZERO_TOTALS = MappingProxyType(
    dict.fromkeys(
        ("models_sent", "models_up", "bytes_up", "bytes_down", "bytes_evaluation", "bytes_spared"),
        0,
    )
)


class Ledger:
    """Totals of the run, and the rows of the current round.

    Rows of finished rounds go to the disk, so that memory does not grow with the number of rounds.
    """

    def __init__(self, totals: Mapping[str, int] = _ZERO_TOTALS) -> None:
        self._totals = dict(totals)
        self._open: dict[tuple[int, int, Direction, str], tuple[int, int]] = {}
        self._layers: dict[tuple[int, int, Direction, str], tuple[str, ...]] = {}

    def add(
        self, round: int, site: int, direction: Direction, kind: str, models: int, bytes: int
    ) -> None:
        """Count `models` contents and `bytes` bytes in the current round's row and the totals."""
        if direction not in get_args(Direction):
            raise ValueError(f"{direction!r} of {kind!r}: must be up or down")
        if models < 0 or bytes < 0:
            raise ValueError(f"{models} models, {bytes} bytes: must not be negative")
        key = (round, site, direction, kind)
        before = self._open.get(key, (0, 0))
        self._open[key] = (before[0] + models, before[1] + bytes)
        if kind == EVALUATION:
            self._totals["bytes_evaluation"] += bytes
            return
        if kind == MODEL:
            self._totals["models_up" if direction == "up" else "models_sent"] += models
        self._totals[f"bytes_{direction}"] += bytes

    def add_part(
        self, round: int, site: int, role: str, layers: Collection[str], spared: int
    ) -> None:
        """Record that only these layers of a site's content were sent.

        spared: the bytes of the layers that were not sent; `add` counts those that were.
        """
        self.add(round, site, "up", role, 0, 0)
        self._layers[round, site, "up", role] = tuple(sorted(layers))
        self._totals["bytes_spared"] += spared

    def totals(self) -> dict[str, int]:
        """Return the sums over all rounds.

        models_sent, models_up: models from the server to the sites, and from the sites to the
        server. bytes_down, bytes_up: bytes of messages and contents of every role.
        bytes_evaluation: bytes in both directions of tasks that only measure. bytes_spared: bytes
        that were saved by uploading only parts of contents.
        """
        return dict(self._totals)

    def close_round(self) -> list[tuple[int | str, ...]]:
        """Return the current round's rows, sorted, with `COLUMNS` as columns, and drop them."""
        rows: list[tuple[int | str, ...]] = [
            (*key, *sums, " ".join(self._layers.get(key, ())))
            for key, sums in sorted(self._open.items())
        ]
        self._open.clear()
        self._layers.clear()
        return rows

    @classmethod
    def from_totals(cls, plain: Mapping[str, object]) -> Self:
        """Return a ledger that continues from these totals. Raises StoreError if damaged."""
        counts = {name: value for name, value in plain.items() if type(value) is int and value >= 0}
        if counts.keys() != _ZERO_TOTALS.keys() or len(counts) != len(plain):
            raise StoreError(
                f"the ledger's totals {dict(plain)!r} are damaged: restore the run folder from a "
                "copy or start a new run"
            )
        return cls(counts)
