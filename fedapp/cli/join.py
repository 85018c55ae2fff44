"""Commands of a site: what it should know before it joins, and while it is in a federation."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedapp.cli.shared import Overrides, SiteFolder, app, needed
from fedapp.core.errors import ConfigError

PANEL = "Join"
"""As `fedapp --help` shows it."""


@app.command("check", rich_help_panel=PANEL)
def check_site(
    data: Annotated[
        Path, typer.Argument(help="a site's data: a folder, CSV file or file of vectors")
    ],
    overrides: Overrides = None,
    preset: Annotated[str, typer.Option(help="what the sites agreed upon")] = "",
    site_name: Annotated[str, typer.Option(help="the site's name in that preset")] = "",
    server: Annotated[str, typer.Option(help="host:port that the node will connect to")] = "",
    hide_below: Annotated[int, typer.Option(min=0, help="hide counts from 1 to below this")] = 0,
    store_path: Annotated[
        Path | None, typer.Option(help="where the node will keep models; else in your runs")
    ] = None,
    site_folder: SiteFolder = None,
) -> None:
    """Check a site's own data and machine before it joins. Exit code: 0 fit, 1 faults, 2 misuse."""
    from fedapp.experiment.config import load_experiment, parse_overrides
    from fedapp.tools.check.check import Options, check

    experiment = load_experiment(preset, parse_overrides(overrides or [])) if preset else None
    patients = ""
    if site_folder is not None:
        from fedapp.site.terms import FILE, read_terms

        patients = read_terms(site_folder / FILE).patients
    options = Options(experiment, site_name, server, hide_below, store_path, patients)
    raise typer.Exit(check(data, options, Console()))


@app.command("check-server", rich_help_panel=PANEL)
def check_server(
    server: Annotated[str, typer.Argument(help="host:port that the node will connect to")],
    keys: Annotated[Path, typer.Option(help="folder with ca.crt and the site's supernode.key")],
    site_folder: SiteFolder = None,
) -> None:
    """Look at the way to the server before joining. Exit code: 0 free, 1 something is in the way.

    Reachable, certificate, clock, version, key: each with what to do.
    """
    from fedapp.tools.node.check_server import show

    raise typer.Exit(show(server, keys, site_folder or keys, Console()))


@app.command("node", rich_help_panel=PANEL)
def keep_node(
    data: Annotated[
        Path | None, typer.Argument(help="the site's images: a folder or a CSV file")
    ] = None,
    server: Annotated[str, typer.Option(help="host:port of the federation's gateway")] = "",
    keys: Annotated[
        Path | None, typer.Option(help="folder with ca.crt and the site's supernode.key")
    ] = None,
    site_name: Annotated[str, typer.Option(help="the site's name in the federation's preset")] = "",
    node_config: Annotated[
        str, typer.Option(help="further settings of the node, such as 'worker-idle-s=60'")
    ] = "",
    site_folder: SiteFolder = None,
    no_terms: Annotated[
        bool, typer.Option("--no-terms", help="allow every run of an approved app: no site.yaml")
    ] = False,
    port: Annotated[int, typer.Option(min=1, max=65535, help="of the node's own programs")] = 9094,
    status: Annotated[
        bool, typer.Option("--status", help="only say how the node on this port is; 0: online")
    ] = False,
) -> None:
    """Keep this site online: start Flower's SuperNode, and again whenever it is not online."""
    if status:
        from fedapp.tools.node.status import health, status_path

        online, words = health(status_path(port))
        print(words)
        raise typer.Exit(0 if online else 1)
    from fedapp.tools.node.node import SiteNode
    from fedapp.tools.node.node import node_config as config

    if not server or keys is None:
        raise ConfigError("fedapp node: needs --server host:port and --keys FOLDER")
    own = config(site_name, data, node_config)
    SiteNode(server, keys, port, own, site_folder, no_terms).run()


@app.command("approve", rich_help_panel=PANEL)
def approve_app(
    what: Annotated[
        str, typer.Argument(help="a hash, a FAB or a checkout; else the list of apps is shown")
    ] = "",
    site_folder: SiteFolder = None,
    refuse: Annotated[bool, typer.Option("--refuse", help="it may not run here")] = False,
    take_back: Annotated[
        bool, typer.Option("--take-back", help="it may not run here any more, from now on")
    ] = False,
    lines: Annotated[bool, typer.Option("--lines", help="show the changed lines too")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="decide without being asked")] = False,
) -> None:
    """Look at an app that a run wants to bring to this site; approve it or refuse it."""
    from fedapp.tools.node.approvals import Approvals, Word
    from fedapp.tools.node.approve import decide, overview

    if refuse and take_back:
        raise ConfigError("fedapp approve: --refuse and --take-back: say one of them")
    approvals, console = Approvals(needed(site_folder, "approve")), Console()
    if not what:
        overview(approvals, console)
    else:
        word: Word = "refused" if refuse else "taken back" if take_back else "approved"
        done = decide(what, word, approvals, console, sure=yes, lines=lines)
        raise typer.Exit(0 if done else 1)


@app.command("terms", rich_help_panel=PANEL)
def explain_terms(
    site_folder: SiteFolder = None,
    example: Annotated[
        bool, typer.Option("--example", help="print a commented file to begin with")
    ] = False,
) -> None:
    """Say in plain words what a site's site.yaml allows."""
    from fedapp.tools.node.terms import EXAMPLE, explained

    if example:
        print(EXAMPLE.read_text(encoding="utf-8"), end="")
        return
    for line in explained(needed(site_folder, "terms")):
        print(line)


@app.command("audit", rich_help_panel=PANEL)
def audit_record(
    site_folder: SiteFolder = None,
    export: Annotated[
        Path | None, typer.Option("--csv", help="write the record's lines into this new file")
    ] = None,
    accept: Annotated[
        str,
        typer.Option(
            help="take the record as it is for the newest one, as after restoring a backup or "
            "moving to another machine; the reason, which is written into the record"
        ),
    ] = "",
) -> None:
    """Verify a site's record and show what it says, by run. Exit code: 0 whole, 1 broken or none.

    Broken is a record that is not the newest one that this machine knows, too.
    """
    from fedapp.site.record import Record, user_name
    from fedapp.site.rollback_guard import heads_root
    from fedapp.tools.node.audit import audit

    folder = needed(site_folder, "audit")
    if accept:
        Record(folder).accept(accept)
        print(f"taken as it is, in {user_name()}'s heads: {heads_root()}")
    whole = audit(folder, Console(), export)
    raise typer.Exit(0 if whole else 1)


@app.command("code-hash", rich_help_panel=PANEL)
def hash_of_app(
    where: Annotated[
        Path | None, typer.Argument(help="a checkout or a FAB; else what is installed here")
    ] = None,
) -> None:
    """Say an app's hash, to be compared with what a run brings; the same wherever it is made."""
    from fedapp.experiment.code_hash import hash_of_files
    from fedapp.tools.node.app_bundle import installed, read_app

    found = read_app(where) if where else installed()
    print(f"{found.hash}  {found.title}, code {hash_of_files(found.files)}")
