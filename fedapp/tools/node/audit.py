"""`fedapp audit`: verifies a site's record and shows it by run, or writes it as CSV."""

import csv
from contextlib import suppress
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedapp.core.errors import FedAppError, one_line
from fedapp.core.formatting import counted, size
from fedapp.protocol.messages import EPSILON
from fedapp.site.record import Line, Record, by_run, minute
from fedapp.tools.node.approvals import Approvals

COLUMNS = ("number", "at", "event", "run", "asked", "what", "bytes", EPSILON, "code", "hash")
_DECIDED = "decided"


def audit(folder: Path, console: Console, export: Path | None) -> bool:
    """Print the record by run; return whether there is one and it is whole.

    export: new CSV file with one row for each line of the record; None: none. A broken record is
    shown as far as it can be read.
    """
    record = Record(folder)
    whole = True
    try:
        count, remarks = record.verify()
        whole = count > 0
        nothing = (
            "there is no record: name the folder of `fedapp node --site-folder`, or its --keys"
        )
        said = f"{record.path}: {'whole, ' + counted(count, 'lines') if count else nothing}"
        console.print(said, highlight=False, soft_wrap=True)
        for remark in [*remarks, *_unrecorded(folder, record)]:
            console.print(f"worth a look: {escape(remark)}", highlight=False, soft_wrap=True)
    except FedAppError as broken:
        whole = False
        console.print(f"[bold red]BROKEN[/bold red] {escape(str(broken))}", soft_wrap=True)
    with suppress(FedAppError):
        number, digest = record.last()
        if number and not whole:
            console.print("Yet each line follows the one before it. Is this a copy of the record?")
        if number:
            said = f"last line {number}, hash {digest}: read these two to your auditor"
            console.print(said, highlight=False, soft_wrap=True)
    lines = record.readable()
    if lines:
        console.print(_by_run(lines))
    if export is not None:
        with export.open("x", newline="") as file:
            rows = csv.DictWriter(file, COLUMNS)
            rows.writeheader()
            rows.writerows(map(_row, lines))
        console.print(f"{export}: {counted(len(lines), 'lines')}", highlight=False)
    return whole


def _by_run(lines: list[Line]) -> Table:
    table = Table(box=None, pad_edge=False)
    for head in ("run", "code", "last, UTC", "asked", "sent", "bytes", EPSILON, "refused"):
        # A code is compared digit by digit, so a narrow window must not cut it.
        table.add_column(head, no_wrap=head == "code")
    for one in by_run(lines):
        table.add_row(
            escape(one_line(one.run)),
            str(one.lines[-1].get("code", "")),
            minute(one.lines[-1]),
            str(len(one.of("asked"))),
            str(len(one.of("sent"))),
            size(one.bytes_sent),
            "none" if one.epsilon is None else f"{one.epsilon:.4g}",
            str(len(one.of("refused"))),
        )
    return table


def _row(line: Line) -> dict[str, object]:
    told = {**line.get("digests", {}), **line.get("counts", {})}
    sent = [f"{k} {v}" for k, v in told.items()] + line.get("told", [])
    what = line.get("why") or line.get("word") or "; ".join(sent)
    row = {name: line.get(name, "") for name in COLUMNS} | {"what": what}
    # A spreadsheet would read a text that begins with these as a formula.
    return {k: f"'{v}" if str(v)[:1] in ("=", "+", "-", "@") else v for k, v in row.items()}


def _unrecorded(folder: Path, record: Record) -> list[str]:
    """Return a remark for each app on which the list and the record have different decisions."""
    said = {line["app"]: line["word"] for line in record.lines() if line["event"] == _DECIDED}
    listed = {one.app: one.word for one in Approvals(folder).decisions()}
    return [
        f"app {app[:16]}: the list has {listed.get(app, 'nothing')!r}, the record "
        f"{said.get(app, 'nothing')!r}: an old list may have been put back"
        for app in sorted(said.keys() | listed.keys())
        if said.get(app) != listed.get(app)
    ]
