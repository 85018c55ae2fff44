"""What was sent: models and bytes by round, site, direction and kind; and what the paper allows.

Costs are in models (|w| = 1), as the paper counts; bytes are those of the messages themselves.
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


def cost_greedy(*, num_clients: int, sample_rate: float, num_rounds: int) -> float:
    """Return Cost_1 = tau K^2 n (Eq. 27), in models.

    Every sampled site uploads its model and downloads those of all K - 1 others, every round.
    """
    return sample_rate * num_clients**2 * num_rounds


def cost_bound(
    *,
    num_clients: int,
    sample_rate: float,
    num_rounds: int,
    helper_list_size: int,
    num_replaced: int,
    search_rounds: int,
    update_every: int,
) -> float:
    """Return Cost_2 = K M n / nu + F R K + tau K n (Eq. 28), in models, downloads and uploads.

    The paper leaves out the first models (w_0), the warm-up's uploads and the models that fill a
    list which is not full. F R K presumes F <= n; a shorter run stays further below.
    """
    refreshed = num_clients * helper_list_size * num_rounds / update_every
    searched = search_rounds * num_replaced * num_clients
    uploaded = sample_rate * num_clients * num_rounds
    return refreshed + searched + uploaded


def saving(greedy: float, bound: float) -> float:
    """Return Delta = Cost_1 - Cost_2 (Eq. 29), in models; negative where greedy is cheaper."""
    return greedy - bound
