"""Commands for a site: before it joins a federation, and while it takes part."""

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
        Path | None,
        typer.Argument(help="a site's data: a folder, CSV file or file of vectors"),
    ] = None,
    overrides: Overrides = None,
    preset: Annotated[str, typer.Option(help="the preset that the sites agreed upon")] = "",
    site_name: Annotated[str, typer.Option(help="the site's name in that preset")] = "",
    server: Annotated[str, typer.Option(help="host:port that the node will connect to")] = "",
    keys: Annotated[
        Path | None,
        typer.Option(
            help="folder with ca.crt and the site's supernode.key, with which the way to --server "
            "is checked: connection, certificate, clock, version, registered key"
        ),
    ] = None,
    hide_below: Annotated[int, typer.Option(min=0, help="hide counts from 1 to below this")] = 0,
    store_path: Annotated[
        Path | None, typer.Option(help="where the node will keep models; else in your runs")
    ] = None,
    site_folder: SiteFolder = None,
) -> None:
    """Check a site's data and machine, and its way to the server, before it joins.

    Without DATA only the way to the server. Exit code: 0 fit, 1 faults, 2 misuse.
    """
    if keys is not None and not server:
        raise ConfigError("fedapp check: --keys: needs --server host:port, which they are for")
    if data is None and keys is None:
        raise ConfigError("fedapp check: needs DATA, or --server host:port and --keys FOLDER")
    console, faults = Console(), 0
    if data is not None:
        from fedapp.experiment.config import load_experiment, parse_overrides, unchecked_settings
        from fedapp.tools.check.check import Options, check

        given = parse_overrides(overrides or [])
        experiment = load_experiment(preset, given) if preset else None
        terms, said = None, unchecked_settings(preset, given) if preset else {}
        if site_folder is not None:
            from fedapp.site.terms import TERMS_FILE, read_terms

            terms = read_terms(site_folder / TERMS_FILE)
        reach = server if keys is None else ""  # with keys all of the way is looked at, below
        options = Options(experiment, site_name, reach, hide_below, store_path, terms, said)
        faults = check(data, options, console)
    if keys is not None:
        from fedapp.tools.check.server import show

        faults |= show(server, keys, site_folder or keys, console)
    raise typer.Exit(faults)


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
    port: Annotated[
        int, typer.Option(min=1, max=65535, help="port for the node's own programs")
    ] = 9094,
    status: Annotated[
        bool,
        typer.Option(
            "--status", help="only say whether the node on this port is online; exit code 0: online"
        ),
    ] = False,
) -> None:
    """Keep this site online: start Flower's SuperNode, and restart it when it goes offline."""
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
    only_hash: Annotated[
        bool,
        typer.Option(
            "--hash",
            help="only print the hash of a FAB, of a checkout or, else, of what is installed here, "
            "to be compared by phone",
        ),
    ] = False,
    site_folder: SiteFolder = None,
    refuse: Annotated[
        bool, typer.Option("--refuse", help="refuse it: it may not run here")
    ] = False,
    take_back: Annotated[
        bool,
        typer.Option("--take-back", help="take an approval back: it may not run here from now on"),
    ] = False,
    lines: Annotated[bool, typer.Option("--lines", help="show the changed lines too")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="decide without a question")] = False,
) -> None:
    """Review the app (the code) that a run brings to this site, and approve or refuse it."""
    from fedapp.tools.node.approvals import Approvals, Word
    from fedapp.tools.node.approve import decide, hash_line, overview

    if only_hash:
        print(hash_line(Path(what) if what else None))
        return
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
        bool, typer.Option("--example", help="print a commented site.yaml to begin with")
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="print a strict one, for patients, in its place")
    ] = False,
) -> None:
    """Explain in plain words what a site's site.yaml allows."""
    from fedapp.tools.node.terms import EXAMPLE, STRICT, explained

    if example or strict:
        print((STRICT if strict else EXAMPLE).read_text(encoding="utf-8"), end="")
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
            help="accept the record as the newest one, as after restoring a backup or moving to "
            "another machine; give the reason, which is written into the record"
        ),
    ] = "",
) -> None:
    """Verify a site's record and show what it says, by run. Exit code: 0 whole, 1 broken or none.

    A record that is older than the newest one that this machine knows counts as broken too.
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
