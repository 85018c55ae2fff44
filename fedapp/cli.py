"""`fedapp`: run without Flower, compare, check or onboard a site, use a model, make keys."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedapp.drivers.loopback import run_loopback
from fedapp.experiment.codehash import code_hash, versions
from fedapp.experiment.config import load_experiment, parse_overrides
from fedapp.experiment.presetfiles import headline, method_path, method_presets, presets
from fedapp.experiment.runfolder import RunFolder
from fedapp.experiment.runpaths import runs_root
from fedapp.ground.errors import ConfigError, FedAppError
from fedapp.models.conformal import COVERAGE, Sets
from fedapp.models.predict import Asked
from fedapp.models.study import PASSES
from fedapp.site.federation import federation_of
from fedapp.tools.compare.command import compare as compare_grid
from fedapp.tools.compare.command import tune as tune_grid
from fedapp.tools.compare.grid import labels_of, seeds_of, sweeps
from fedapp.tools.compare.job import Driver
from fedapp.tools.deploy.certs import make_certs
from fedapp.tools.models.command import write_models
from fedapp.tools.onboard.command import onboard_site as onboard_onto
from fedapp.tools.onboard.plan import NewSite
from fedapp.tools.use.export import Form, export
from fedapp.tools.use.label import bring_back, next_to_label
from fedapp.tools.use.predict import predict

app = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__)

Preset = Annotated[
    str, typer.Argument(help="a preset's name (see `fedapp presets`) or a YAML file")
]
Overrides = Annotated[
    list[str] | None, typer.Argument(help="settings to change, such as method.num_replaced=3")
]


def _version(wanted: bool) -> None:
    if wanted:
        print(f"um-pfssl {versions().get('um-pfssl', '(not installed)')}, code {code_hash()[1]}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="say which version"),
    ] = False,
) -> None:
    """Take the options that stand before a command."""


@app.command()
def run(preset: Preset, overrides: Overrides = None) -> None:
    """Run an experiment in this process, without Flower: the same rounds, the same numbers."""
    _, folder = run_loopback(load_experiment(preset, parse_overrides(overrides or [])))
    if (models := RunFolder(folder).models_root).is_dir():
        print(f"The sites' models, ready for use: {models}")


@app.command(epilog=f"Sweeps: {', '.join(sweeps())}")
def compare(
    grid: Annotated[
        str,
        typer.Argument(help="a grid's YAML file, a sweep's name, or a preset and --methods"),
    ],
    overrides: Overrides = None,
    methods: Annotated[
        str, typer.Option(help="methods to run, such as um_pfssl,fixavg; else all of the grid's")
    ] = "",
    seeds: Annotated[str, typer.Option(help="seeds, such as 0,1,2; else the grid's")] = "",
    out: Annotated[
        Path | None, typer.Option(help="folder of the comparison; else compare-<grid> in your runs")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(help="cells at a time; else a core each, as memory allows")
    ] = None,
    driver: Annotated[Driver, typer.Option(help="what carries the messages")] = "loopback",
    keep_models: Annotated[
        bool, typer.Option("--keep-models", help="keep the models of cells that are done")
    ] = False,
) -> None:
    """Compare methods x seeds x settings: a grid's YAML file, a sweep, or a preset and --methods.

    What was run before is kept, what was cut goes on.
    """
    code = compare_grid(
        grid,
        parse_overrides(overrides or []),
        methods=labels_of(methods),
        seeds=seeds_of(seeds),
        out=out,
        jobs=jobs,
        driver=driver,
        keep_models=keep_models,
    )
    raise typer.Exit(code)


@app.command()
def tune(
    grid: Annotated[str, typer.Argument(help="a YAML file or a sweep's name, with `tune` in it")],
    overrides: Overrides = None,
    methods: Annotated[
        str, typer.Option(help="methods to tune, such as um_pfssl,fixavg; else all of the grid's")
    ] = "",
    out: Annotated[
        Path | None, typer.Option(help="folder of the tuning; else tune-<grid> in your runs")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(help="cells at a time; else a core each, as memory allows")
    ] = None,
) -> None:
    """Tune every method of a grid by one budget, on validation images; write the tuned grid.

    What was run before is kept, what was cut goes on.
    """
    changes, labels = parse_overrides(overrides or []), labels_of(methods)
    raise typer.Exit(tune_grid(grid, changes, methods=labels, out=out, jobs=jobs))


@app.command()
def report(
    runs: Annotated[
        list[str], typer.Argument(help="runs or one comparison: their names, or their folders")
    ],
    site: Annotated[str, typer.Option(help="only this site's page, for the site to read")] = "",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="file to write; else in the run's folder")
    ] = None,
    reference: Annotated[
        str, typer.Option(help="a comparison's method that the others are compared with")
    ] = "",
) -> None:
    """Write a page of a run or of several side by side; of a comparison, tables and figures."""
    # jinja2 takes a moment to import.
    from fedapp.tools.runreport.command import write_reports

    for path in write_reports(runs, reference, site, out):
        print(path)


@app.command("check")
def check_site(
    data: Annotated[Path, typer.Argument(help="a site's images: a folder or a CSV file")],
    overrides: Overrides = None,
    preset: Annotated[str, typer.Option(help="what the sites agreed upon")] = "",
    site_name: Annotated[str, typer.Option(help="the site's name in that preset")] = "",
    server: Annotated[str, typer.Option(help="host:port that the node will connect to")] = "",
    hide_below: Annotated[int, typer.Option(min=0, help="hide counts from 1 to below this")] = 0,
    store_path: Annotated[
        Path | None, typer.Option(help="where the node will keep models; else in your runs")
    ] = None,
) -> None:
    """Check a site's own data and machine before it joins. Exit code: 0 fit, 1 faults, 2 misuse."""
    # torch and Pillow take seconds to import, which no other command should pay for.
    from fedapp.tools.datacheck.command import Options, check

    experiment = load_experiment(preset, parse_overrides(overrides or [])) if preset else None
    options = Options(experiment, site_name, server, hide_below, store_path)
    raise typer.Exit(check(data, options, Console()))


@app.command("onboard")
def onboard_site(
    run: Annotated[str, typer.Argument(help="a finished run: its name, or its folder")],
    overrides: Overrides = None,
    data: Annotated[
        Path | None, typer.Option(help="the new site's images: a folder or a CSV file")
    ] = None,
    site_name: Annotated[str, typer.Option(help="the new site's name")] = "",
    site: Annotated[
        int | None, typer.Option(help="instead: a part of a data set that the program splits")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="rounds to train")] = 5,
) -> None:
    """Give a new site a model of its own from a finished run's models, on this machine alone."""
    new = NewSite(data, site_name, site)
    onboard_onto(run, new, rounds, parse_overrides(overrides or []), Console())


@app.command("export")
def export_model(
    model: Annotated[Path, typer.Argument(help="a model's folder")],
    to: Annotated[Form, typer.Option(help="what to write")],
    out: Annotated[Path, typer.Option("--out", "-o", help="folder to write it to")],
    images: Annotated[
        Path | None, typer.Option(help="images to check the ONNX file with: a folder or CSV file")
    ] = None,
) -> None:
    """Write a site's model for other programs: ONNX, a MONAI bundle or safetensors."""
    for line in export(model, to, out, images):
        print(line)


@app.command("labels")
def labels_from(
    export: Annotated[Path, typer.Argument(help="what Label Studio exported, as JSON")],
    data: Annotated[Path, typer.Option(help="the site's images: a folder or a CSV file")],
    out: Annotated[Path, typer.Option("--out", "-o", help="new CSV file, in the images' folder")],
) -> None:
    """Bring labels back from Label Studio: a site's table with them in it."""
    for line in bring_back(export, data, out):
        print(line)


@app.command("models")
def models_of(
    run: Annotated[str, typer.Argument(help="a finished run: its name, or its folder")],
) -> None:
    """Check the models that the sites of a simulated run kept; make those that are gone anew."""
    write_models(run, Console())


@app.command("next-to-label")
def next_images(
    model: Annotated[Path, typer.Argument(help="a model's folder")],
    images: Annotated[Path, typer.Argument(help="a folder of images, or a CSV file with `path`")],
    out: Annotated[Path, typer.Option("--out", "-o", help="folder for the four files")],
    count: Annotated[int, typer.Option(min=1, help="how many images")] = 50,
) -> None:
    """Choose the images to label first: CSV, Label Studio tasks and a contact sheet."""
    for line in next_to_label(model, images, count, out):
        print(line)


@app.command("predict")
def predict_images(
    model: Annotated[Path, typer.Argument(help="a folder that `fedapp models` wrote")],
    images: Annotated[Path, typer.Argument(help="a folder of images, or a CSV file with `path`")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="CSV file to write; else standard output")
    ] = None,
    coverage: Annotated[
        float, typer.Option(help="share of prediction sets that are to hold the right class")
    ] = COVERAGE,
    sets: Annotated[Sets, typer.Option(help="lac: smallest; aps: never empty")] = "lac",
    passes: Annotated[
        int, typer.Option(min=1, help="dropout samples for the uncertainty")
    ] = PASSES,
) -> None:
    """Classify images with a site's model: class, probability, uncertainty, prediction set."""
    raise typer.Exit(predict(model, images, out, Asked(coverage, sets, passes)))


@app.command("presets")
def list_presets() -> None:
    """List the presets, and the method presets that `method.preset=NAME` lays over them."""
    for name in presets():
        experiment = load_experiment(name)
        print(
            f"{name:24} {experiment.method.name}, {experiment.data.name}, "
            f"{experiment.split.num_clients} sites, {experiment.rounds.num_rounds} rounds"
        )
    print()
    for name in method_presets():
        print(f"method.preset={name:26} {headline(method_path(name))}")


@app.command()
def manifest(
    preset: Preset,
    out: Annotated[Path, typer.Option("--out", "-o", help="file to write")],
    overrides: Overrides = None,
) -> None:
    """Draw the split of a preset and save it, to be shared and cited (split.manifest=FILE)."""
    experiment = load_experiment(preset, parse_overrides(overrides or []))
    split = federation_of(experiment).manifest
    if split is None:
        raise ConfigError("data.name = 'own': nobody deals the sites' images: there is no split")
    split.save(out)
    print(f"{out}: {len(split.site)} images, {split.num_clients} sites, digest {split.digest()}")


@app.command()
def certs(
    out: Annotated[Path, typer.Argument(help="folder for them; nothing in it is overwritten")],
    host: Annotated[
        list[str] | None,
        typer.Option(help="name or address at which sites reach the server; may be repeated"),
    ] = None,
    sites: Annotated[str, typer.Option(help="sites that get a key each")] = "north,south,west",
) -> None:
    """Make a trial's keys and certificates: a CA, the server's, a SuperNode key for each site."""
    for line in make_certs(out, host or [], list(labels_of(sites) or ())):
        print(line)


@app.command("site")
def show_site(
    folder: Annotated[
        Path | None, typer.Argument(help="a node's store-path, or a run's folder; else your runs")
    ] = None,
) -> None:
    """Say which models this site has: of which run and round, why, how good, beside alone."""
    from fedapp.tools.models.mine import show_site

    show_site(folder or Path(os.environ.get("FEDAPP_SITES") or runs_root()), Console())


@app.command("sites")
def list_sites(
    superlink: Annotated[
        str, typer.Argument(help="a connection of Flower's config.toml; else its default")
    ] = "",
) -> None:
    """List the sites that are registered at the server, by name, with state and number."""
    # Flower takes a second to import.
    from fedapp.tools.deploy.roster import sites_at

    Console().print(sites_at(superlink or None))


def main() -> None:
    """Entry point: an error of ours is one line and exit code 2."""
    try:
        app()
    except FedAppError as error:
        print(f"fedapp: {error}", file=sys.stderr)
        raise SystemExit(2) from error


if __name__ == "__main__":
    main()
