"""Commands of whoever sets a federation up: keys, signed runs, who is registered."""

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
    sites: Annotated[str, typer.Option(help="sites that get a key each")] = "north,south,west",
) -> None:
    """Make a trial's keys and certificates: a CA, the server's, a SuperNode key for each site."""
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
        float, typer.Option(min=0.01, max=366, help="within which each site must have begun it")
    ] = 7.0,
    identity: Annotated[
        str, typer.Option(help="of a run that goes on with other rounds: what its run.id holds")
    ] = "",
) -> None:
    """Sign a run, for sites that do signed runs only; print the command that starts it."""
    from fedapp.tools.deploy.sign import signed_run

    def passphrase() -> str:
        return str(typer.prompt("passphrase", hide_input=True, err=True))

    for line in signed_run(preset, overrides or [], key, days, identity, passphrase):
        print(line)


@app.command("members", rich_help_panel=PANEL)
def list_members(
    keys: Annotated[
        list[Path], typer.Argument(help="the sites' public keys, NAME.pub, or folders")
    ],
) -> None:
    """Say whose keys mask a run's sums: a setting of the preset, by fingerprints."""
    from fedapp.tools.deploy.members import members_line

    print(members_line(keys))


@app.command("sites", rich_help_panel=PANEL)
def list_sites(
    superlink: Annotated[
        str, typer.Argument(help="a connection of Flower's config.toml; else its default")
    ] = "",
) -> None:
    """List the sites that are registered at the server, by name, with state and number."""
    from fedapp.tools.deploy.registered_sites import sites_at

    Console().print(sites_at(superlink or None))
