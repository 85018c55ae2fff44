"""What was sent: contents and bytes by round, site, direction and kind.

Bytes are those of the messages themselves: JSON heads and models, without Flower's own framing.
"""

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Literal, Self, get_args

from fedapp.core.errors import StoreError
from fedapp.protocol.messages import MODEL

Direction = Literal["up", "down"]
"""up: from a site to the server; down: from the server to a site."""
MESSAGE = "message"
"""Kind: everything around contents. Contents have their role as kind, such as `protocol.MODEL`."""
EVALUATION = "evaluation"
"""Kind: messages and contents where a site is asked only to measure a model. That is no part of a
method's cost, and has a total of its own."""

COLUMNS = ("round", "site", "direction", "kind", "models", "bytes", "layers")
"""layers: of a content that was sent in part, the names of those that were, spaces between them."""

_ZERO_TOTALS = MappingProxyType(
    dict.fromkeys(
        ("models_sent", "models_up", "bytes_up", "bytes_down", "bytes_evaluation", "bytes_spared"),
        0,
    )
)


class Ledger:
    """Totals of the run, and the rows of the round under way.

    Whole rounds are for the disk: in memory nothing grows with rounds.
    """

    def __init__(self, totals: Mapping[str, int] = _ZERO_TOTALS) -> None:
        self._totals = dict(totals)
        self._open: dict[tuple[int, int, Direction, str], tuple[int, int]] = {}
        self._layers: dict[tuple[int, int, Direction, str], tuple[str, ...]] = {}

    def add(
        self, round: int, site: int, direction: Direction, kind: str, models: int, bytes: int
    ) -> None:
        """Count `models` contents and `bytes` bytes."""
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
        """Take note that these layers alone of a site's content were sent.

        spared: the bytes that the others would have been; those of the layers are counted by `add`.
        """
        self.add(round, site, "up", role, 0, 0)
        self._layers[round, site, "up", role] = tuple(sorted(layers))
        self._totals["bytes_spared"] += spared

    def totals(self) -> dict[str, int]:
        """Return sums over all rounds.

        models_sent: models from the server to the sites; models_up: back; bytes_down, bytes_up:
        bytes, messages and contents of every role included; bytes_evaluation: both ways, for
        measuring alone; bytes_spared: more would have come up if no content came in part.
        """
        return dict(self._totals)

    def close_round(self) -> list[tuple[int | str, ...]]:
        """Return the open rows, in the order of `COLUMNS`, sorted, and forget them."""
        rows: list[tuple[int | str, ...]] = [
            (*key, *sums, " ".join(self._layers.get(key, ())))
            for key, sums in sorted(self._open.items())
        ]
        self._open.clear()
        self._layers.clear()
        return rows

    @classmethod
    def from_totals(cls, plain: Mapping[str, object]) -> Self:
        """Return a ledger that goes on from these totals. Raises StoreError if damaged."""
        counts = {name: value for name, value in plain.items() if type(value) is int and value >= 0}
        if counts.keys() != _ZERO_TOTALS.keys() or len(counts) != len(plain):
            raise StoreError(
                f"the ledger's totals {dict(plain)!r} are damaged: restore the run folder from a "
                "copy or start a new run"
            )
        return cls(counts)
