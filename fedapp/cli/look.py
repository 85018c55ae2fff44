"""Commands that show a run: its page, its progress, its rounds in another program."""

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from fedapp.cli.shared import SiteFolder, app, needed
from fedapp.experiment.completion import complete_run

PANEL = "Look"
"""As `fedapp --help` shows it."""


@app.command(rich_help_panel=PANEL)
def report(
    runs: Annotated[
        list[str],
        typer.Argument(
            help="runs or one comparison: their names, or their folders",
            autocompletion=complete_run,
        ),
    ],
    site: Annotated[str, typer.Option(help="only this site's page, for the site to read")] = "",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="file to write; else in the run's folder")
    ] = None,
    reference: Annotated[
        str, typer.Option(help="a comparison's method that the others are compared with")
    ] = "",
    site_folder: SiteFolder = None,
) -> None:
    """Write a page about one run or several side by side; of a comparison, tables and figures."""
    from fedapp.reports.report import write_reports

    record = None if site_folder is None else needed(site_folder, "report")
    for path in write_reports(runs, reference, site, out, record):
        print(path)


@app.command("watch", rich_help_panel=PANEL)
def watch_run(
    run: Annotated[
        str,
        typer.Argument(
            help="a run: its name, or its folder; else the newest", autocompletion=complete_run
        ),
    ] = "",
) -> None:
    """Follow a run in progress from another terminal; of a finished run, show how it ended."""
    from fedapp.tools.watch import watch

    raise typer.Exit(watch(run, Console()))


@app.command("track", rich_help_panel=PANEL)
def track_run(
    run: Annotated[
        str,
        typer.Argument(
            help="a run or a comparison: its name, or its folder; else the newest run",
            autocompletion=complete_run,
        ),
    ] = "",
    to: Annotated[
        Literal["tensorboard", "mlflow"], typer.Option(help="program to copy to")
    ] = "tensorboard",
    out: Annotated[
        Path | None,
        typer.Option(
            help="folder of the event files, else in the run's; or of MLflow's store, else "
            "MLFLOW_TRACKING_URI, else mlruns in your runs"
        ),
    ] = None,
) -> None:
    """Copy a run's rounds to TensorBoard or MLflow; calling it again only adds what is new."""
    from fedapp.tools.track import track

    track(run, to, out)
