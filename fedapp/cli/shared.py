"""The Typer app, and the arguments that commands of several panels share."""

from pathlib import Path
from typing import Annotated

import typer
from click import Command, Context
from typer.core import TyperGroup

from fedapp.core.errors import ConfigError
from fedapp.core.withdrawn import refuse_command
from fedapp.experiment.code_hash import code_hash, versions
from fedapp.experiment.completion import complete_override, complete_preset


class _Commands(TyperGroup):
    """The group of commands. It refuses a command of an earlier version, and says what to use."""

    def resolve_command(
        self, ctx: Context, args: list[str]
    ) -> tuple[str | None, Command | None, list[str]]:
        refuse_command(args[0])
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    suggest_commands=False,  # click does, and twice is once too often
    pretty_exceptions_show_locals=False,
    help="Federated learning from partly labelled images: run, compare, use models, take part.",
)

Preset = Annotated[
    str,
    typer.Argument(
        help="a preset's name (see `fedapp presets`) or a YAML file", autocompletion=complete_preset
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        help="settings to change, such as training.learning_rate=0.03",
        autocompletion=complete_override,
    ),
]
SiteFolder = Annotated[
    Path | None,
    typer.Option(
        help="the site's own folder: site.yaml, approvals, record; a node's default is its --keys"
    ),
]


def _version(wanted: bool) -> None:
    if wanted:
        print(f"fedapp {versions().get('fedapp', '(not installed)')}, code {code_hash()[1]}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="print the version"),
    ] = False,
) -> None:
    """Handle the options that stand before a command."""


def needed(site_folder: Path | None, command: str) -> Path:
    """Return the site's own folder.

    command: name of the command, for the error. Raises ConfigError where no folder is named, or
    the named one is not there.
    """
    if site_folder is not None and not site_folder.is_dir():
        raise ConfigError(
            f"--site-folder {site_folder}: there is no such folder: name the one that "
            "`fedapp node` has (its --site-folder, else its --keys)"
        )
    if site_folder is None:
        raise ConfigError(
            f"fedapp {command}: needs --site-folder, the folder that `fedapp node` has"
        )
    return site_folder
