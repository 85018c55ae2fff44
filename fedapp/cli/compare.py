"""Commands that run many experiments: methods compared, tuned, and which to take."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from fedapp.cli.shared import Overrides, app
from fedapp.experiment.completion import complete_grid, complete_methods
from fedapp.experiment.preset_files import sweeps

PANEL = "Compare"
"""As `fedapp --help` shows it."""

Grid = Annotated[
    str,
    typer.Argument(
        help="a grid's YAML file, a sweep's name, or a preset and --methods",
        autocompletion=complete_grid,
    ),
]
Methods = Annotated[
    str,
    typer.Option(
        help="methods, such as um_pfssl,fixavg; else all of the grid's",
        autocompletion=complete_methods,
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(help="a setting of the grid; several: name it again; else all"),
]
Jobs = Annotated[
    int | None,
    typer.Option(min=1, help="cells at a time; else a core each, as memory allows"),
]
By = Annotated[
    Literal["accuracy", "balanced_accuracy", "f1", "kappa"],
    typer.Option(
        help="what methods are compared by; all but accuracy: of all sites' images as one"
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
    """Say which method to take on your data, after short runs of the simple and recommended."""
    from fedapp.experiment.config import parse_overrides
    from fedapp.tools.advise.advise import advise_on
    from fedapp.tools.compare.grid import seeds_of

    seeds, rest = _seeds(seeds, overrides)
    given, chosen = parse_overrides(rest), seeds_of(seeds)
    raise typer.Exit(
        advise_on(data, given, seeds=chosen, out=out, jobs=jobs, as_data=as_json, by=by)
    )


@app.command(rich_help_panel=PANEL, epilog=f"Sweeps: {', '.join(sweeps())}")
def compare(
    grid: Grid,
    overrides: Overrides = None,
    methods: Methods = "",
    seeds: Annotated[str, typer.Option(help="seeds, such as 0,1,2 or 0 1 2; else the grid's")] = "",
    setting: Settings = None,
    out: Annotated[
        Path | None, typer.Option(help="folder of the comparison; else compare-<grid> in your runs")
    ] = None,
    jobs: Jobs = None,
    driver: Annotated[
        Literal["loopback", "flower"], typer.Option(help="what carries the messages")
    ] = "loopback",
    keep_models: Annotated[
        bool, typer.Option("--keep-models", help="keep the models of cells that are done")
    ] = False,
    by: By = "accuracy",
) -> None:
    """Compare methods x seeds x settings: a grid's YAML file, a sweep, or a preset and --methods.

    What was run before is kept, what was cut goes on.
    """
    from fedapp.experiment.config import parse_overrides
    from fedapp.tools.compare.compare import compare as compare_grid
    from fedapp.tools.compare.grid import labels_of, seeds_of

    seeds, rest = _seeds(seeds, overrides)
    code = compare_grid(
        grid,
        parse_overrides(rest),
        methods=labels_of(methods),
        seeds=seeds_of(seeds),
        settings=setting or (),
        out=out,
        jobs=jobs,
        driver=driver,
        keep_models=keep_models,
        by=by,
    )
    raise typer.Exit(code)


@app.command(rich_help_panel=PANEL)
def tune(
    grid: Grid,
    overrides: Overrides = None,
    methods: Methods = "",
    setting: Settings = None,
    candidates: Annotated[
        list[str] | None,
        typer.Option(
            help="what to try for every method, such as training.learning_rate=0.01,0.1; else the "
            "grid's `tune`, else five learning rates; may be repeated"
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="folder of the tuning; else tune-<grid> in your runs")
    ] = None,
    jobs: Jobs = None,
) -> None:
    """Tune every method of a grid by one budget, on validation images; write the tuned grid.

    What was run before is kept, what was cut goes on.
    """
    from fedapp.experiment.config import parse_overrides
    from fedapp.tools.compare.compare import tune as tune_grid
    from fedapp.tools.compare.grid import labels_of
    from fedapp.tools.compare.tuning import values_of

    code = tune_grid(
        grid,
        parse_overrides(overrides or []),
        methods=labels_of(methods),
        settings=setting or (),
        values=values_of(candidates or []),
        out=out,
        jobs=jobs,
    )
    raise typer.Exit(code)


def _seeds(seeds: str, overrides: list[str] | None) -> tuple[str, list[str]]:
    """Return the seeds with those that follow after a space, and the overrides without them."""
    given = overrides or []
    if not seeds:
        return "", given
    more = [text for text in given if text.isdecimal()]
    return " ".join([seeds, *more]), [text for text in given if text not in more]
