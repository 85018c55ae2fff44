"""What is saved after every round: the whole state at times, between them what changed of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedapp.experiment.run_folder import RunFolder
from fedapp.protocol.traffic import Ledger
from fedapp.server.pool import ModelPool
from fedapp.server.run_state import RunState, Tables


@dataclass
class Checkpoint:
    """Saves a run's state, in time and bytes that go by what changed, not by all sites.

    Most of a state are tables with a row for each site. Rows are values: one that is the same
    object as at the last saving is not written again. A line of changes is a state of the other
    rows; after as many bytes of lines as a whole state has, the whole is written in their place.
    """

    folder: RunFolder
    _before: Tables = field(default_factory=dict)
    """The tables as last saved; empty: nothing was saved by this process."""
    _whole_bytes: int = 0
    _changed_bytes: int = 0

    def save(self, state: RunState, pool: ModelPool, ledger: Ledger) -> None:
        """Save the state after a round. Raises StoreError; what was saved before then stays."""
        tables = {**state.tables(), "pool": pool.contents}
        rows = changed(self._before, tables) if self._changed_bytes < self._whole_bytes else None
        if rows is None:
            self.save_whole(state, pool, ledger)
        else:
            plain = _plain(state.of_rows(rows), pool.to_plain(rows["pool"]), ledger)
            paths = ["pool" if name == "pool" else f"state.{name}" for name in tables]
            self._changed_bytes += self.folder.append_changes(plain, paths)
        self._before = {name: dict(table) for name, table in tables.items()}

    def save_whole(self, state: RunState, pool: ModelPool, ledger: Ledger) -> None:
        """Save the state in one file, as others may read it. Raises StoreError as `save`."""
        plain = _plain(state, pool.to_plain(), ledger)
        self._whole_bytes = self.folder.save_checkpoint(plain)
        self._changed_bytes = 0


def changed(before: Tables, now: Tables) -> Tables | None:
    """Return the rows that are new or other objects than before; None where a row is gone.

    Such a table cannot be told by its new rows alone; nor can one that was not there before.
    """
    if before.keys() != now.keys():
        return None
    if any(not before[name].keys() <= now[name].keys() for name in now):
        return None
    return {
        name: {key: row for key, row in table.items() if before[name].get(key) is not row}
        for name, table in now.items()
    }


def _plain(state: RunState, pool: Mapping[str, Any], ledger: Ledger) -> dict[str, Any]:
    return {
        "round": state.round,
        "state": state,
        "pool": pool,
        "ledger": ledger.totals(),
    }
