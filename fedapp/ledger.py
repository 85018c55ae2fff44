"""What was sent: models and bytes by round, site, direction and kind.

Bytes are those of the messages themselves: JSON heads and models, without Flower's own framing.
"""

from collections.abc import Sequence
from typing import Any, Literal, Self, get_args

from fedapp.errors import StoreError

Direction = Literal["up", "down"]
"""up: from a site to the server; down: from the server to a site."""
Kind = Literal["model", "message"]
"""model: contents of models; message: everything around them."""

Key = tuple[int, int, Direction, Kind]


class Ledger:
    """Sums of what was sent."""

    def __init__(self) -> None:
        self._sums: dict[Key, tuple[int, int]] = {}

    def add(
        self, round: int, site: int, direction: Direction, kind: Kind, models: int, bytes: int
    ) -> None:
        """Count `models` models and `bytes` bytes."""
        if direction not in get_args(Direction) or kind not in get_args(Kind):
            raise ValueError(f"{direction!r} of {kind!r}: must be up or down of model or message")
        if models < 0 or bytes < 0:
            raise ValueError(f"{models} models, {bytes} bytes: must not be negative")
        key = (round, site, direction, kind)
        before = self._sums.get(key, (0, 0))
        self._sums[key] = (before[0] + models, before[1] + bytes)

    def totals(self, round: int | None = None) -> dict[str, int]:
        """Return sums over all rounds, or over one.

        models_sent: models from the server to the sites; models_up: back; bytes_down, bytes_up:
        bytes, messages included.
        """
        sums = {"models_sent": 0, "models_up": 0, "bytes_up": 0, "bytes_down": 0}
        for (number, _, direction, _), (models, size) in self._sums.items():
            if round is None or number == round:
                sums["models_up" if direction == "up" else "models_sent"] += models
                sums[f"bytes_{direction}"] += size
        return sums

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per round, site, direction and kind, in this order."""
        names = ("round", "site", "direction", "kind", "models", "bytes")
        return [dict(zip(names, row, strict=True)) for row in self.to_plain()]

    def to_plain(self) -> list[list[Any]]:
        """Return what JSON can hold: [round, site, direction, kind, models, bytes] each."""
        return [[*key, *sums] for key, sums in sorted(self._sums.items())]

    @classmethod
    def from_plain(cls, plain: Sequence[Sequence[Any]]) -> Self:
        """Return the ledger that `to_plain` wrote down. Raises StoreError where it is damaged."""
        ledger = cls()
        for row in plain:
            try:
                ledger.add(*row)
            except (TypeError, ValueError) as error:
                raise StoreError(
                    f"ledger row {row!r} is damaged: restore the run folder from a copy or start "
                    "a new run"
                ) from error
        return ledger
