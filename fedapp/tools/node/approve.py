"""`fedapp approve`: shows the app that a run would bring, and asks a person to decide on it."""

from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.prompt import Confirm
from rich.table import Table

from fedapp.core.errors import ConfigError
from fedapp.tools.node.app_bundle import Bundle, installed, read_app
from fedapp.tools.node.approvals import Approvals, Word

SHOWN = 16
"""How many digits of a hash are shown. They suffice to name the app."""
_FEWEST = 8
KEEPER = "fedapp/site/rollback_guard.py"
"""A file that marks an app which keeps a site's terms and record as this version does. An older app
would add lines that the record's head does not know, which stops the site."""


def hash_line(where: Path | None) -> str:
    """Return the hash of an app's code, with the app's title, on one line.

    where: a checkout or a FAB; None: what is installed here. The hash is the same wherever it is
    made, so that a site can compare it with what a run brings; logs and results show its first 16
    digits. Raises ConfigError as `read_app`.
    """
    app = read_app(where) if where else installed()
    return f"{app.hash}  {app.title}"


def overview(approvals: Approvals, console: Console) -> None:
    """Print the installed app, the latest decision on each app, and the apps that wait for one."""
    here = installed()
    table = Table("app", "code", "state", "since", "by", box=None, pad_edge=False)
    latest = {one.app: one for one in approvals.decisions()}
    if here.hash not in latest:
        table.add_row(here.title, here.hash[:SHOWN], "may run: it is installed here")
    for one in latest.values():
        note = ", installed here" if one.app == here.hash else ""
        table.add_row(escape(one.title), one.app[:SHOWN], one.word + note, one.when, one.by)
    for app in approvals.waiting().values():
        table.add_row(escape(app.title), app.hash[:SHOWN], "[bold]waits for your word[/bold]")
    console.print(table)
    console.print("To look at one and decide: fedapp approve HASH", highlight=False)


def chosen(what: str, approvals: Approvals) -> tuple[str, Bundle | None]:
    """Return the hash of the app that a person named, and the app if its files are here.

    what: a FAB file, a checkout, or at least the first 8 digits of a hash. Raises ConfigError.
    """
    if what and (path := Path(what)).exists():
        app = read_app(path)
        return app.hash, app
    known: Mapping[str, Bundle | None] = {
        **{one.app: None for one in approvals.decisions()},
        **approvals.approved(),
        **approvals.waiting(),
        installed().hash: installed(),
    }
    found = [one for one in known if one.startswith(what.lower())]
    if len(what) < _FEWEST or len(found) != 1:
        raise ConfigError(
            f"fedapp approve {what!r}: name a FAB, a checkout, or {_FEWEST} or more digits of the "
            "hash of an app that waits or was decided on; `fedapp approve` lists them"
        )
    return found[0], known[found[0]]


def describe(app: Bundle, approvals: Approvals, console: Console, lines: bool) -> None:
    """Print an app's hash and how its files differ. lines: with the changed lines."""
    before = approvals.last_approved()
    kind = "the installed app" if before.hash == installed().hash else "the one approved last"
    console.print(f"app       {escape(app.title)}", highlight=False)
    console.print(f"code      {app.hash}", highlight=False)
    keeps = (
        "kept by this code"
        if KEEPER in app.files
        else "[bold red]NOT KEPT[/]: this code is older than the rules of this site"
    )
    console.print(f"terms     {keeps}")
    console.print("signed    no: a run from a folder carries no signature; compare the hash")
    console.print(f"against   {kind}, {escape(before.title)} ({before.hash[:SHOWN]})")
    if not (found := app.differences(before)):
        console.print("differs   in nothing that a program reads")
        return
    console.print(f"differs   in {len(found)} of {len(app.files)} files:", highlight=False)
    for name, how in found.items():
        console.print(f"  {how:8} {escape(name)}", highlight=False)
        if lines:
            for line in app.lines(before, name):
                style = {"+": "green", "-": "red"}.get(line[:1], "dim")
                console.print(f"    {escape(line)}", style=style, highlight=False, soft_wrap=True)
    if not lines:
        console.print("To see the changed lines too: --lines")


def decide(
    what: str, word: Word, approvals: Approvals, console: Console, *, sure: bool, lines: bool
) -> bool:
    """Show an app and write down a person's decision; return whether there was one.

    sure: decide without a question. Raises ConfigError if the app is to be approved but its files
    are not here to be reviewed.
    """
    app_hash, app = chosen(what, approvals)
    earlier = next((one for one in approvals.decisions() if one.app == app_hash), None)
    if app is not None:
        describe(app, approvals, console, lines)
    elif word == "approved":
        raise ConfigError(
            f"app {app_hash[:SHOWN]} is no longer available: name its FAB or checkout, so that "
            "what is approved can be looked at"
        )
    asked = f"This app is to be {word} at this site?"
    if not (sure or Confirm.ask(asked, console=console, default=False)):
        console.print("Nothing is decided.")
        return False
    title = app.title if app is not None else earlier.title if earlier else ""
    made = approvals.decide(app_hash, title, word)
    console.print(f"{escape(title)} ({app_hash[:SHOWN]}) is {made.word}; {made.when}, {made.by}.")
    return True
