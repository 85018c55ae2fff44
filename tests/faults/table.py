"""What the tests of this folder saw, as the table of docs/results/faults.md.

    FEDAPP_FAULTS=bench/results/faults.json python -m pytest -m slow tests/faults
    python -m tests.faults.table bench/results/faults.json

Each test that passes writes its row to the file that FEDAPP_FAULTS names, if it does; the second
command puts the rows between the marks of docs/results/faults.md.
"""

import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from filelock import FileLock

DOCUMENT = Path(__file__).parents[2] / "docs/results/faults.md"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"


@dataclass(frozen=True)
class Row:
    """One fault. number: its place in the table. repeated: rounds; lost: models."""

    number: float
    fault: str
    happened: str
    repeated: int
    lost: int

    def line(self) -> str:
        """Return the row as Markdown."""
        happened = self.happened.replace("|", "\\|")
        return f"| {self.fault} | {happened} | {self.repeated} | {self.lost} |"


def note(number: float, fault: str, happened: str, repeated: int = 0, lost: int = 0) -> None:
    """Write a `Row` to the file that FEDAPP_FAULTS names, in the place of an older one."""
    row = Row(number, fault, happened, repeated, lost)
    if not (named := os.environ.get("FEDAPP_FAULTS")):
        return
    path = Path(named)
    with FileLock(f"{named}.lock"):
        rows = {r["fault"]: r for r in json.loads(path.read_text())} if path.exists() else {}
        rows[row.fault] = asdict(row)
        ordered = sorted(rows.values(), key=lambda r: float(r["number"]))
        path.write_text(json.dumps(ordered, indent=1, ensure_ascii=False) + "\n")


def write(rows: list[Row], document: Path) -> None:
    """Put the table into the document, between its marks."""
    head, _, rest = document.read_text().partition(BEGIN)
    _, _, tail = rest.partition(END)
    table = [
        "| fault | what happened | rounds repeated | models lost |",
        "|---|---|---|---|",
        *(row.line() for row in rows),
    ]
    document.write_text("\n".join([head + BEGIN, *table, END + tail]))


if __name__ == "__main__":
    write([Row(**row) for row in json.loads(Path(sys.argv[1]).read_text())], DOCUMENT)
