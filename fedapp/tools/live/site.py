"""How a site stands, from its own folder: running, waiting, refused, what left."""

from datetime import UTC, datetime
from pathlib import Path

from fedapp.ground.errors import FedAppError, one_line
from fedapp.results.layout import Table
from fedapp.results.run.blocks import Block
from fedapp.results.run.ofrecord import left, refused, runs, whole
from fedapp.results.run.page import render
from fedapp.site.house import House
from fedapp.site.record import Record
from fedapp.tools.node.approvals import Approvals
from fedapp.tools.node.status import health, status_path
from fedapp.tools.node.terms import sentences


def site_page(folder: Path, port: int) -> str:
    """Return the page. folder: the site's own; port: its node's, by which its state is known."""
    lines = Record(folder).readable()
    lead = [f"The node is {health(status_path(port))[1]}.", whole(folder)]
    today, now = f"{datetime.now(UTC):%Y-%m-%d}", f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"
    of_today = [line for line in lines if str(line["at"]).startswith(today)]
    blocks = [
        Block("Runs", f"As the record has them, at {now}.", tables=[runs(lines)]),
        Block("What left today", "Since midnight UTC.", tables=[left(of_today)]),
        Block("Refused", "The latest first.", tables=[refused(lines)]),
        _waiting(folder),
        _allowed(folder),
    ]
    return render("This site", lead, [], [[("", block)] for block in blocks])


def _waiting(folder: Path) -> Block:
    try:
        waiting = Approvals(folder).waiting()
    except FedAppError as error:
        return Block("To be approved", "", lines=[one_line(error)])
    rows = [[app.title, key] for key, app in waiting.items()]
    tables = [Table("Apps", ("app", "hash"), rows, labels=2)]
    return Block(
        "To be approved",
        "Apps that this site has not decided on: fedapp approve HASH",
        tables=tables,
    )


def _allowed(folder: Path) -> Block:
    try:
        return Block("What this site allows", "", lines=list(sentences(House(folder).terms)))
    except FedAppError as error:
        return Block("What this site allows", "", lines=[f"Nothing: {one_line(error)}"])
