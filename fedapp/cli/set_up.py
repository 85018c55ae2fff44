"""Commands for whoever sets up a federation: keys, signed runs, registered sites."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedapp.cli.shared import Overrides, Preset, app

PANEL = "Set up"
"""As `fedapp --help` shows it."""


@app.command(rich_help_panel=PANEL)
def certs(
    out: Annotated[Path, typer.Argument(help="folder for them; nothing in it is overwritten")],
    host: Annotated[
        list[str] | None,
        typer.Option(help="name or address at which sites reach the server; may be repeated"),
    ] = None,
    sites: Annotated[
        str, typer.Option(help="names of the sites, each of which gets a key")
    ] = "north,south,west",
) -> None:
    """Make keys and certificates for a trial: a CA, the server's, and a SuperNode key per site."""
    from fedapp.tools.compare.grid import labels_of
    from fedapp.tools.deploy.certs import make_certs

    for line in make_certs(out, host or [], list(labels_of(sites) or ())):
        print(line)


@app.command("sign", rich_help_panel=PANEL)
def sign_run(
    preset: Preset,
    overrides: Overrides = None,
    key: Annotated[
        Path, typer.Option(help="the coordinator's private key: ssh-keygen -t ed25519")
    ] = Path("coordinator.key"),
    days: Annotated[
        float,
        typer.Option(min=0.01, max=366, help="days within which each site must have begun it"),
    ] = 7.0,
    identity: Annotated[
        str, typer.Option(help="of a run that goes on with more rounds: what its file run.id holds")
    ] = "",
) -> None:
    """Sign a run, for sites that accept only signed runs; print the command that starts it."""
    from fedapp.tools.deploy.sign import signed_run

    def passphrase() -> str:
        return str(typer.prompt("passphrase", hide_input=True, err=True))

    *remarks, command = signed_run(preset, overrides or [], key, days, identity, passphrase)
    print("\n".join(remarks), file=sys.stderr)
    print(command)


@app.command("sites", rich_help_panel=PANEL)
def list_sites(
    superlink: Annotated[
        str, typer.Argument(help="a connection of Flower's config.toml; else its default")
    ] = "",
    members: Annotated[
        list[Path] | None,
        typer.Option(
            help="instead print `privacy.members` for a preset, which says whose keys mask a run's "
            "sums: a site's public key, NAME.pub, or a folder of them; may be repeated"
        ),
    ] = None,
) -> None:
    """List the sites registered at the server; or print the setting that names their mask keys."""
    from fedapp.tools.deploy.registered_sites import members_line, sites_at

    if members:
        print(members_line(members))
    else:
        Console().print(sites_at(superlink or None))
