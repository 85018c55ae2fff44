"""The checkpoint after every round: now and then the whole state, otherwise what has changed."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedapp.experiment.run_folder import RunFolder
from fedapp.protocol.traffic import Ledger
from fedapp.server.pool import ModelPool
from fedapp.server.run_state import RunState, Tables


@dataclass
class Checkpoint:
    """Saves the state of a run. Time and bytes depend on what has changed, not on all sites.

    Most of a state is in tables with a row for each site. Rows are immutable values: a row that is
    the same object as when the state was last saved is not written again. A line of changes.jsonl
    is a state with the other rows only. When the lines have as many bytes as a whole state, the
    whole state is written and replaces them.
    """

    folder: RunFolder
    _before: Tables = field(default_factory=dict)
    """The tables as they were last saved; empty: this process has saved nothing."""
    _whole_bytes: int = 0
    _changed_bytes: int = 0

    def save(self, state: RunState, pool: ModelPool, ledger: Ledger) -> None:
        """Save the state after a round. Raises StoreError; the earlier state then stays saved."""
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
        """Save the whole state in one file. Raises StoreError as `save` does."""
        plain = _plain(state, pool.to_plain(), ledger)
        self._whole_bytes = self.folder.save_checkpoint(plain)
        self._changed_bytes = 0


def changed(before: Tables, now: Tables) -> Tables | None:
    """Return the rows that are new, or other objects than before.

    None where a table is new or a row is gone: new rows alone cannot express that.
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
