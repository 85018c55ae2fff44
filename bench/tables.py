"""Write the results in bench/results into documents, as tables: docs/results/benchmarks.md.

`python -m bench.tables` fills each block between `<!-- bench:NAME -->` and `<!-- /bench:NAME -->`
with the rows of bench/results/NAME.json, NAME.png where there is one, and below them the command,
the machine and the versions. A block without results stays as it is; a second run changes nothing.
"""

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bench.record import RESULTS
from fedapp.core.disk import write_atomic
from fedapp.core.errors import ConfigError, FedAppError

DOCS = Path(__file__).parents[1] / "docs"
DOCUMENTS = tuple(
    DOCS / "results" / f"{name}.md"
    for name in ("benchmarks", "encoder", "hospitals", "rivals", "why_um_pfssl")
)

Row = Mapping[str, Any]

_OPENING = re.compile(r"<!-- bench:([\w-]+) -->")
_OWN_LINE = {"name", "command", "machine", "versions", "code", "rows"}
_BEFORE_1_0_0 = {"bench.prototype_helpers", "bench.prototypes", "bench.thresholds"}
"""Programs that version 1.0.0 no longer had."""
_LONGEST_NOTE = 200
"""Characters of a note. A longer one is a series for a plot, and is left out."""


def filled(text: str, results: Path, shown: str = "../bench/results") -> str:
    """Return the document with every block filled for which there are results.

    shown: path of the results' folder from the document, for figures. Raises ConfigError for a
    block without an end and for a file that holds no result.
    """
    for name in _OPENING.findall(text):
        block = re.compile(rf"<!-- bench:{name} -->\n.*?<!-- /bench:{name} -->", re.DOTALL)
        if not block.search(text):
            raise ConfigError(f"block {name}: has no end; write <!-- /bench:{name} --> below it")
        path = results / f"{name}.json"
        if path.exists():
            lines = (f"<!-- bench:{name} -->", _section(path, shown), f"<!-- /bench:{name} -->")
            text = block.sub("\n".join(lines).replace("\\", r"\\"), text)
    return text


def unplaced(text: str, results: Path) -> list[str]:
    """Return the names of results that the documents, joined as one text, have no block for."""
    return sorted({path.stem for path in results.glob("*.json")} - set(_OPENING.findall(text)))


def table(rows: Sequence[Row]) -> str:
    """Return rows as a Markdown table, in which a value shares a cell with its minimum and maximum.

    These are columns x, x_min, x_max, or median_s, min_s, max_s with any unit in place of s.
    """
    columns = list(dict.fromkeys(key for row in rows for key in row))
    spreads = {c: both for c in columns if (both := _spread_of(c)) and {*both} <= {*columns}}
    inside = {bound for both in spreads.values() for bound in both}
    shown = [column for column in columns if column not in inside]
    lines = [
        [_heading(column, column in spreads) for column in shown],
        ["---"] * len(shown),
        *([_cell(row, column, spreads.get(column)) for column in shown] for row in rows),
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _section(path: Path, shown: str) -> str:
    try:
        result = json.loads(path.read_text())
        machine, versions = result["machine"], result["versions"]
        notes = {name: _plain(result[name]) for name in result if name not in _OWN_LINE}
        gpu = "no GPU" if machine["gpu"] == "none" else machine["gpu"]
        facts = [
            f"`{result['command']}`{_where(result['command'])}",
            f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gib']} GiB, {gpu}",
            ", ".join(f"{name} {version}" for name, version in versions.items()),
            f"code {result['code']}",
            *(f"{name} {text}" for name, text in notes.items() if len(text) <= _LONGEST_NOTE),
        ]
        return f"{table(result['rows'])}\n\n{_figure(path, shown)}{'; '.join(facts)}."
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path}: holds no result ({error!r}); run its benchmark again") from None


def _where(command: str) -> str:
    """Return at which commit a command's program is, if this version no longer has it."""
    name = re.search(r"-m (bench\.\w+)", command)
    if name is None or find_spec(name[1]) is not None:
        return ""
    return " at commit 9d6a908" if name[1] in _BEFORE_1_0_0 else " at commit 2eea95e1"


def _figure(path: Path, shown: str) -> str:
    drawn = path.with_suffix(".png")
    return f"![{path.stem}]({shown}/{drawn.name})\n\n" if drawn.exists() else ""


def _spread_of(column: str) -> tuple[str, str] | None:
    """Return the columns that would hold the minimum and the maximum of this one."""
    if column.startswith("median_"):
        unit = column.removeprefix("median_")
        return f"min_{unit}", f"max_{unit}"
    return f"{column}_min", f"{column}_max"


def _heading(column: str, spread: bool) -> str:
    return column.replace("_", " ") + (" (min to max)" if spread else "")


def _cell(row: Row, column: str, spread: tuple[str, str] | None) -> str:
    value = _plain(row.get(column))
    if spread and value and row.get(spread[0]) != row.get(spread[1]):
        value += f" ({_plain(row.get(spread[0]))} to {_plain(row.get(spread[1]))})"
    return value.replace("|", "\\|")


def _plain(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, list | tuple):
        return " ".join(map(_plain, value))
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_plain(inner)}" for name, inner in value.items())
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{value:,}" if type(value) is int and value >= 10_000 else str(value)


def main() -> None:
    """Rewrite the documents whose tables changed; an error is one line and exit code 2."""
    texts = [written(document) for document in DOCUMENTS]
    for name in unplaced("\n".join(texts), RESULTS):
        print(f"{name}.json has no block; add <!-- bench:{name} --> <!-- /bench:{name} -->")


def written(document: Path) -> str:
    """Write a document's tables if they changed; return its text."""
    try:
        before = document.read_text()
        after = filled(before, RESULTS, os.path.relpath(RESULTS, document.parent))
        if after != before:
            write_atomic(document, after.encode(), durable=False)
    except FedAppError as error:
        print(f"{document.name}: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    print(f"{document.name}: {'tables written' if after != before else 'tables are as they were'}")
    return after


if __name__ == "__main__":
    main()
