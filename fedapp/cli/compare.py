"""Commands that run many experiments, to compare or tune methods or to choose one."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from fedapp.cli.shared import Overrides, app
from fedapp.core.errors import ConfigError
from fedapp.experiment.completion import complete_grid, complete_methods
from fedapp.experiment.preset_files import sweeps

PANEL = "Compare"
"""As `fedapp --help` shows it."""

Jobs = Annotated[
    int | None,
    typer.Option(min=1, help="runs at a time; else one per core, as far as memory allows"),
]
By = Annotated[
    Literal["accuracy", "balanced_accuracy", "f1", "kappa"],
    typer.Option(
        help="metric that methods are compared by; all but accuracy pool the images of all sites"
    ),
]


@app.command(rich_help_panel=PANEL)
def advise(
    data: Annotated[
        str, typer.Argument(help="a preset's name or YAML file, or a folder of images by class")
    ],
    overrides: Overrides = None,
    seeds: Annotated[str, typer.Option(help="seeds, such as 0,1,2 or 0 1 2")] = "0,1,2,3,4",
    out: Annotated[
        Path | None, typer.Option(help="folder of the runs; else advise-<data> in your runs")
    ] = None,
    jobs: Jobs = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
    by: By = "accuracy",
) -> None:
    """Recommend a method for your data, after short runs of the simple and recommended ones."""
    from fedapp.experiment.config import parse_overrides
    from fedapp.tools.advise import advise_on
    from fedapp.tools.compare.grid import seeds_of

    seeds, rest = _seeds(seeds, overrides)
    given, chosen = parse_overrides(rest), seeds_of(seeds)
    raise typer.Exit(
        advise_on(data, given, seeds=chosen, out=out, jobs=jobs, as_data=as_json, by=by)
    )


@app.command(rich_help_panel=PANEL, epilog=f"Sweeps: {', '.join(sweeps())}")
def compare(
    grid: Annotated[
        str,
        typer.Argument(
            help="a grid's YAML file, a sweep's name, or a preset and --methods",
            autocompletion=complete_grid,
        ),
    ],
    overrides: Overrides = None,
    methods: Annotated[
        str,
        typer.Option(
            help="methods, such as um_pfssl,fixavg; else all of the grid's",
            autocompletion=complete_methods,
        ),
    ] = "",
    seeds: Annotated[str, typer.Option(help="seeds, such as 0,1,2 or 0 1 2; else the grid's")] = "",
    setting: Annotated[
        list[str] | None,
        typer.Option(help="a setting of the grid; several: name it again; else all"),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="folder to work in; else compare-<grid> or tune-<grid> in your runs"),
    ] = None,
    jobs: Jobs = None,
    driver: Annotated[
        Literal["loopback", "flower"],
        typer.Option(help="run without Flower (loopback), or as a Flower simulation"),
    ] = "loopback",
    keep_models: Annotated[
        bool, typer.Option("--keep-models", help="keep the models of finished runs")
    ] = False,
    by: By = "accuracy",
    tune: Annotated[
        bool,
        typer.Option(
            "--tune",
            help="instead of comparing, tune every method with the same budget, on validation "
            "images of other seeds, and write the tuned grid, which you then compare",
        ),
    ] = False,
    candidates: Annotated[
        list[str] | None,
        typer.Option(
            help="what --tune tries for every method, such as training.learning_rate=0.01,0.1; "
            "else the grid's `tune`, else five learning rates; may be repeated"
        ),
    ] = None,
) -> None:
    """Compare methods x seeds x settings, or tune them: a grid, a sweep, or a preset and --methods.

    Runs that are finished are kept, and interrupted runs go on.
    """
    from fedapp.experiment.config import parse_overrides
    from fedapp.tools.compare.compare import compare as compare_grid
    from fedapp.tools.compare.compare import tune as tune_grid
    from fedapp.tools.compare.grid import labels_of, seeds_of
    from fedapp.tools.compare.tuning import values_of

    seeds, rest = _seeds(seeds, overrides)
    given, chosen = parse_overrides(rest), labels_of(methods)
    only, own_seeds = setting or (), seeds_of(seeds)
    if not tune:
        if candidates:
            raise ConfigError("fedapp compare: --candidates: are what --tune tries: add --tune")
        code = compare_grid(
            grid,
            given,
            methods=chosen,
            seeds=own_seeds,
            settings=only,
            out=out,
            jobs=jobs,
            driver=driver,
            keep_models=keep_models,
            by=by,
        )
        raise typer.Exit(code)
    if seeds or driver != "loopback" or keep_models or by != "accuracy":
        raise ConfigError(
            "fedapp compare --tune: has seeds of its own, runs in loopback, keeps no models and "
            "judges by accuracy: leave out --seeds, --driver, --keep-models and --by"
        )
    values = values_of(candidates or [])
    code = tune_grid(grid, given, methods=chosen, settings=only, values=values, out=out, jobs=jobs)
    raise typer.Exit(code)


def _seeds(seeds: str, overrides: list[str] | None) -> tuple[str, list[str]]:
    """Return the seeds, and the overrides without those that are seeds after a space.

    In `--seeds 0 1 2` the shell hands over 1 and 2 as further arguments, which look like overrides.
    """
    given = overrides or []
    if not seeds:
        return "", given
    more = [text for text in given if text.isdecimal()]
    return " ".join([seeds, *more]), [text for text in given if text not in more]
