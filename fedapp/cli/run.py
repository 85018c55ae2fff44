"""Commands that run an experiment, or show which presets there are."""

import sys
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import Annotated

import typer
import yaml

from fedapp.cli.shared import Overrides, Preset, app
from fedapp.core.errors import ConfigError
from fedapp.core.formatting import counted
from fedapp.experiment.completion import complete_preset
from fedapp.experiment.preset_files import first_comment, method_path, method_presets, presets

PANEL = "Run"
"""As `fedapp --help` shows it."""

Seed = Annotated[
    int | None, typer.Option(min=0, help="seed of all random draws; --seed 3 is the same as seed=3")
]


@app.command(rich_help_panel=PANEL)
def run(
    preset: Preset,
    overrides: Overrides = None,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="the summary as JSON on standard output, all else on standard error"
        ),
    ] = False,
    seed: Seed = None,
) -> None:
    """Run an experiment in this process, without Flower, with the same rounds and numbers."""
    from fedapp.core.processes import termination_as_interrupt
    from fedapp.experiment.config import load_experiment, parse_overrides
    from fedapp.experiment.run_folder import pretty_json
    from fedapp.simulation.loopback import run_loopback

    # Whoever reads standard output as JSON must find nothing else there.
    with termination_as_interrupt(), redirect_stdout(sys.stderr) if as_json else nullcontext():
        given = [*(overrides or []), *([] if seed is None else [f"seed={seed}"])]
        experiment = load_experiment(preset, parse_overrides(given))
        summary, _ = run_loopback(experiment)
    if as_json:
        print(pretty_json(summary), end="")


@app.command(rich_help_panel=PANEL)
def demo(
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="new folder; else `demo`, `demo-2`, ... in your runs"),
    ] = None,
    seed: Seed = None,
    flower: Annotated[
        bool, typer.Option("--flower", help="through Flower on Ray, in a checkout of the project")
    ] = False,
) -> None:
    """Show in seconds what this is for: six simulated clinics, each alone and all together."""
    # PyTorch is imported after this line: slow until its files are in the system's cache.
    what = "Flower and Ray start: half a minute" if flower else "PyTorch starts: a few seconds"
    print(f"{what}, but up to two minutes the first time.", flush=True)
    from fedapp.core.processes import termination_as_interrupt
    from fedapp.tools.demo import demo as show

    with termination_as_interrupt():
        over = {} if seed is None else {"seed": seed}
        for line in show(out, flower=flower, **over):
            print(line)


@app.command("presets", rich_help_panel=PANEL)
def show_presets(
    preset: Annotated[
        str,
        typer.Argument(
            help="a preset's name or a YAML file, whose settings are shown; else all are listed",
            autocompletion=complete_preset,
        ),
    ] = "",
    overrides: Overrides = None,
    manifest: Annotated[
        Path | None,
        typer.Option(
            help="draw the preset's split and save it to this file, to be shared and cited "
            "(split.manifest=FILE)"
        ),
    ] = None,
    copy: Annotated[
        bool, typer.Option("--copy", help="print the preset's file, with its comments, to change")
    ] = False,
) -> None:
    """List all presets and method presets; or show one's settings, or save the split it draws."""
    if not preset:
        if manifest is not None or copy:
            raise ConfigError("fedapp presets --manifest, --copy: needs the preset's name first")
        _list_presets()
        return
    if copy:
        from fedapp.experiment.preset_files import preset_path

        if overrides or manifest is not None:
            raise ConfigError("fedapp presets --copy: takes the preset's name alone")
        print(preset_path(preset).read_text(encoding="utf-8"), end="")
        return
    from fedapp.experiment.config import load_experiment, parse_overrides, to_plain

    experiment = load_experiment(preset, parse_overrides(overrides or []))
    if manifest is None:
        print(yaml.safe_dump(to_plain(experiment), sort_keys=False, allow_unicode=True), end="")
        return
    from fedapp.site.federation import federation_of

    split = federation_of(experiment).manifest
    if split is None:
        raise ConfigError("data.name = 'own': nobody deals the sites' images: there is no split")
    split.save(manifest)
    size = f"{counted(len(split.site), 'images')}, {counted(split.num_clients, 'sites')}"
    print(f"{manifest}: {size}, digest {split.digest()}")
    if split.particulars:
        print(split.particulars)


def _list_presets() -> None:
    from fedapp.experiment.config import load_experiment

    for name in presets():
        experiment = load_experiment(name)
        print(
            f"{name:24} {experiment.method.name}, {experiment.data.name}, "
            f"{counted(experiment.split.num_clients, 'sites')}, "
            f"{counted(experiment.rounds.num_rounds, 'rounds')}"
        )
    print()
    for name in method_presets():
        print(f"method.preset={name:26} {first_comment(method_path(name))}")
