"""The files of a run folder: written whole, read back.

- metrics.jsonl: one JSON object per round, appended
- sites.jsonl: one JSON object per round: what each site that answered said of itself, appended
- traffic.csv: models and bytes by round, site, direction and kind, appended
- per_site.csv: one row per site, at the end
- evaluations.json: each site's latest confusion matrix and calibration sums, at the end
- summary.json: the result, at the end
- checkpoint.json: state after a whole round
- changes.jsonl: one JSON object per round since then, appended; gone when the run has ended
"""

import csv
import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic_core import to_json

from fedapp.ground.disk import append_durable, cut_durable, write_atomic
from fedapp.ground.errors import RunError, StoreError
from fedapp.ground.foreign import json_file, json_of
from fedapp.messages.ledger import COLUMNS

Row = dict[str, Any]

METRICS, SITES, TRAFFIC = "metrics.jsonl", "sites.jsonl", "traffic.csv"
CHECKPOINT, CHANGES = "checkpoint.json", "changes.jsonl"
TABLES = "tables"
"""Of a line of changes: the mappings of which it has only what changed."""


class Records:
    """What a run writes down, in its folder `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append_metrics(self, row: Row) -> None:
        """Add a round's row (it has "round"). NaN and infinity become null: JSON has neither.

        Raises StoreError where the disk refuses; the file then is as before.
        """
        self._append(METRICS, row)

    def append_sites(self, row: Row) -> None:
        """Add a round's row of its sites (it has "round"), as `append_metrics` does."""
        self._append(SITES, row)

    def append_traffic(self, rows: Sequence[Sequence[int | str]]) -> None:
        """Add a round's rows of the ledger to traffic.csv. Raises StoreError as above."""
        path = self.path / TRAFFIC
        begun = path.exists() and path.stat().st_size  # the disk may have refused the first rows
        head = () if begun else (COLUMNS,)
        lines = (",".join(map(str, row)) + "\n" for row in (*head, *rows))
        append_durable(path, "".join(lines).encode())

    def metrics(self) -> list[Row]:
        """Return the rows of whole lines, each with its "round".

        A line cut by a crash or damaged, and what follows, is left out.
        """
        return self._rows(METRICS)

    def sites(self) -> list[Row]:
        """Return the rows of sites.jsonl likewise; none of a run by a version that had none."""
        return self._rows(SITES)

    def _append(self, name: str, row: Row) -> None:
        append_durable(self.path / name, _line(row).encode())

    def _rows(self, name: str) -> list[Row]:
        try:
            lines = (self.path / name).read_bytes().splitlines(keepends=True)
        except FileNotFoundError:
            return []
        rows: list[Row] = []
        for line in lines:
            if (row := _row(line)) is None:
                break
            rows.append(row)
        return rows

    def write_per_site(self, rows: Sequence[Row]) -> None:
        """Write per_site.csv; columns as they first come up, None as an empty field."""
        self.write("per_site.csv", _csv(rows, "site"))

    def per_site(self) -> list[Row]:
        """Return the rows of per_site.csv with numbers as numbers and empty fields as None."""
        try:
            text = (self.path / "per_site.csv").read_text(encoding="utf-8")
        except FileNotFoundError:
            return []
        return [{k: _field(v) for k, v in row.items()} for row in csv.DictReader(text.splitlines())]

    def write_evaluations(self, evaluations: Mapping[str, Any]) -> None:
        """Write evaluations.json: each site's latest confusion matrix and calibration sums."""
        self.write("evaluations.json", _compact(evaluations) + "\n")

    def write_summary(self, summary: Row) -> None:
        """Write summary.json. NaN and infinity become null."""
        self.write("summary.json", pretty(summary))

    def save_checkpoint(self, state: Mapping[str, Any]) -> int:
        """Write the state after a whole round; it has "round", the last row of the metrics.

        state: of what JSON can hold, and dataclasses of that. Returns its bytes. Raises StoreError
        where the disk refuses; what was saved before stays.
        """
        assert "round" in state
        text = _compact(state)
        self.write(CHECKPOINT, text)
        (self.path / CHANGES).unlink(missing_ok=True)  # else: of rounds before it, not read again
        return len(text)

    def append_changes(self, state: Mapping[str, Any], tables: Sequence[str]) -> int:
        """Add the state after a whole round where of some mappings only what changed is given.

        tables: those mappings, as keys with dots between. Returns bytes and raises StoreError as
        `save_checkpoint` does.
        """
        line = _compact({**state, TABLES: tables}) + "\n"
        append_durable(self.path / CHANGES, line.encode())
        return len(line)

    def load_checkpoint(self) -> Row | None:
        """Return the state last saved, or None. Raises RunError where a file is damaged.

        A last line of changes that was cut is left out: its round did not end.
        """
        path = self.path / CHANGES
        try:  # before the whole state, so that one written meanwhile takes the place of both
            lines = path.read_bytes().splitlines(keepends=True)
        except (FileNotFoundError, NotADirectoryError):
            lines = []
        state = self.read_json(CHECKPOINT)
        if state is None:
            return None
        if not isinstance(state.get("round"), int):
            raise RunError(damaged(self.path / CHECKPOINT, "has no round"))
        for line in (line for line in lines if line.endswith(b"\n")):
            try:
                change = json_of(line)
                if change["round"] > state["round"]:
                    state = followed(state, change)
            except (ValueError, LookupError, TypeError) as error:
                raise RunError(damaged(path, str(error))) from error
        return state

    def drop_rows_after(self, last: int) -> None:
        """Cut metrics, sites and traffic back to the last whole round.

        Line by line: of 10,000 rounds they need not fit in memory.
        """

        def of_json(line: bytes) -> bool:
            row = _row(line)
            return row is not None and row["round"] <= last

        def of_traffic(line: bytes) -> bool:
            first = line.partition(b",")[0]
            return first == COLUMNS[0].encode() or (first.isdigit() and int(first) <= last)

        for name, stays in ((METRICS, of_json), (SITES, of_json), (TRAFFIC, of_traffic)):
            self._cut(name, stays)

    def write(self, name: str, text: str) -> None:
        """Write a file whole. Raises StoreError where the disk refuses."""
        write_atomic(self.path / name, text.encode(), durable=True)

    def read_json(self, name: str) -> Row | None:
        """Return a file's object, None where there is none. Raises RunError, StoreError."""
        path = self.path / name
        try:
            value = json_file(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise StoreError(f"{path}: cannot be read ({error.strerror}): make it so") from error
        except ValueError as error:
            raise RunError(damaged(path, str(error))) from error
        if not isinstance(value, dict):
            raise RunError(damaged(path, "is no JSON object"))
        return value

    def _cut(self, name: str, stays: Callable[[bytes], bool]) -> None:
        """Cut a file's end off, from the first line on that is not whole or does not stay."""
        path, end = self.path / name, 0
        try:
            with path.open("rb") as file:
                for line in file:
                    if not (line.endswith(b"\n") and stays(line)):
                        break
                    end += len(line)
        except FileNotFoundError:
            return
        cut_durable(path, end)


def followed(before: Row, change: Row) -> Row:
    """Return the state after a line of changes (`Records.append_changes`).

    Raises ValueError where the line is not of the next round.
    """
    if change["round"] != before["round"] + 1:
        raise ValueError(f"round {change['round']} does not follow on {before['round']}")
    for table in change.pop(TABLES):
        *above, name = table.split(".")
        earlier, inside = before, change
        for key in above:
            earlier, inside = earlier[key], inside[key]
        inside[name] = {**earlier[name], **inside[name]}
    return change


def damaged(path: Path, what: str) -> str:
    """Say that a file is damaged, and what can be done."""
    return f"{path}: damaged ({what}): restore it from a copy, or start a new run"


def pretty(value: Mapping[str, Any]) -> str:
    """Return the value as JSON for people."""
    return json.dumps(json_values(value), indent=2, allow_nan=False) + "\n"


def json_values(value: Any) -> Any:
    """Return the value as JSON has it; NaN and infinity become null."""
    if isinstance(value, Mapping):
        return {str(key): json_values(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [json_values(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _row(line: bytes) -> Row | None:
    """Return the row of a line; None where it was cut or is damaged."""
    try:
        row = json_of(line)
    except ValueError:
        return None
    whole = line.endswith(b"\n") and isinstance(row, dict) and isinstance(row.get("round"), int)
    return row if whole else None


def _compact(value: Mapping[str, Any]) -> str:
    return to_json(value).decode()


def _line(row: Row) -> str:
    return json.dumps(json_values(row), allow_nan=False) + "\n"


def _csv(rows: Sequence[Row], first: str) -> str:
    columns = list(dict.fromkeys(key for row in rows for key in row)) or [first]
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _field(text: str) -> int | float | str | None:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text or None
