"""Commands that use the models that sites keep."""

import os
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from fedapp.cli.shared import app
from fedapp.core.errors import ConfigError
from fedapp.experiment.completion import complete_run

PANEL = "Use"
"""As `fedapp --help` shows it."""

Model = Annotated[
    str,
    typer.Argument(
        help="a model's folder (`fedapp site` names them); or RUN/SITE, or a run with one "
        "site's model, by its name or folder",
        autocompletion=complete_run,
    ),
]
Images = Annotated[
    Path, typer.Argument(help="a folder of images, a CSV file with `path`, or a file of vectors")
]


@app.command("site", rich_help_panel=PANEL)
def show_site(
    folder: Annotated[
        Path | None,
        typer.Argument(help="a node's FEDAPP_SITES, or a run's name or folder; else your runs"),
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option(
            help="write a page about each model, with its most confident mistakes, into this folder"
        ),
    ] = None,
    specificity: Annotated[
        float,
        typer.Option(help="specificity at which the page gives the sensitivity of each class"),
    ] = 0.9,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="of a simulated run: ask each kept model again, and rebuild lost ones",
        ),
    ] = False,
) -> None:
    """Show a site's models: whether joining paid, which run each is from, how good it is."""
    if check:
        from fedapp.tools.site_models import check_models

        if folder is None or page is not None:
            raise ConfigError("fedapp site --check: needs a run's name or folder, and no --page")
        check_models(str(folder), Console())
        return
    from fedapp.experiment.run_folder import runs_root
    from fedapp.tools.site_models import show_site

    place = folder or Path(os.environ.get("FEDAPP_SITES") or runs_root())
    show_site(place, Console(), page, specificity)


@app.command("predict", rich_help_panel=PANEL)
def predict_images(
    model: Model,
    images: Annotated[
        list[Path],
        typer.Argument(
            help="one or more images, folders of them, CSV files with `path`; or a file of vectors"
        ),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="CSV file to write; else standard output")
    ] = None,
    coverage: Annotated[
        float, typer.Option(help="share of prediction sets that should contain the right class")
    ] = 0.9,
    sets: Annotated[
        Literal["lac", "aps"], typer.Option(help="lac: smallest; aps: never empty")
    ] = "lac",
    passes: Annotated[int, typer.Option(min=1, help="dropout samples for the uncertainty")] = 20,
) -> None:
    """Classify images with a site's model: class, probability, uncertainty, prediction set."""
    from fedapp.models.predict import PredictionOptions
    from fedapp.tools.use.predict import model_folder, predict

    asked = PredictionOptions(coverage, sets, passes)
    raise typer.Exit(predict(model_folder(model), images, out, asked))


@app.command("next-to-label", rich_help_panel=PANEL)
def next_images(
    model: Model,
    images: Images,
    out: Annotated[Path, typer.Option("--out", "-o", help="CSV file to write")],
    count: Annotated[int, typer.Option(min=1, help="how many images")] = 50,
) -> None:
    """Choose the images to label first, and write them to a CSV file."""
    from fedapp.tools.use.next_to_label import next_to_label
    from fedapp.tools.use.predict import model_folder

    for line in next_to_label(model_folder(model), images, count, out):
        print(line)


@app.command("export", rich_help_panel=PANEL)
def export_model(
    model: Model,
    to: Annotated[Literal["onnx", "monai", "safetensors"], typer.Option(help="what to write")],
    out: Annotated[Path, typer.Option("--out", "-o", help="folder to write it to")],
    images: Annotated[
        Path | None, typer.Option(help="images to check the ONNX file with: a folder or a CSV file")
    ] = None,
) -> None:
    """Write a site's model for other programs: ONNX, a MONAI bundle or safetensors."""
    from fedapp.tools.use.export import export
    from fedapp.tools.use.predict import model_folder

    for line in export(model_folder(model), to, out, images):
        print(line)
