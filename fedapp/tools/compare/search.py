"""What `fedapp tune` tries where the grid does not say it, or the command line says otherwise."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from fedapp.experiment.presetfiles import Scalar, scalar
from fedapp.ground.errors import ConfigError
from fedapp.tools.compare.grid import MIX, Grid
from fedapp.tools.compare.gridfile import Tune
from fedapp.tools.compare.tuning import RATE

RATES = (0.003, 0.01, 0.03, 0.1, 0.3)
"""Learning rates by which the methods of docs/RESULTS.md are tuned; the best is none of the ends
for most of them."""


def searched(grid: Grid, values: Mapping[str, Sequence[Scalar]]) -> Grid:
    """Return the grid with a `tune`: its own, else the same candidates for every method.

    values: key -> what to try, all combinations, instead of what the grid says; empty: as the grid
    says, else `RATES`. A grid without `tune` is tuned on all its settings and on one seed, the
    first after its own.
    """
    own = grid.tune
    if own is not None and not values:
        return grid
    tried = {key: list(listed) for key, listed in values.items()} or {RATE: list(RATES)}
    plan = Tune(
        budget=math.prod(map(len, tried.values())),
        values={label: tried for label in grid.methods if label != MIX},
        settings=own.settings if own else [],
        each_setting=own.each_setting if own else False,
        seeds=own.seeds if own else [max(grid.seeds) + 1],
    )
    return replace(grid, tune=plan)


def values_of(texts: Sequence[str]) -> dict[str, list[Scalar]]:
    """Return what a command line tries: "training.learning_rate=0.01,0.1" -> two values of a key.

    Raises ConfigError where a text has another form, or a key or a value stands twice.
    """
    found: dict[str, list[Scalar]] = {}
    for text in texts:
        key, _, listed = text.partition("=")
        parts = [part.strip() for part in listed.split(",") if part.strip()]
        where = f"--candidates {text!r}"
        if not key.strip() or not parts:
            raise ConfigError(f"{where}: must be key=value,value, such as {RATE}=0.01,0.1")
        if key.strip() in found or len(set(parts)) < len(parts):
            raise ConfigError(f"{where}: the key or a value stands twice; keep one")
        found[key.strip()] = [scalar(part) for part in parts]
    return found


def budget(grid: Grid, runs: int, rounds: int) -> str:
    """Say what a tuning costs. runs: cells; rounds: of all of them together."""
    tune = grid.tune
    assert tune is not None
    methods = len([label for label in grid.methods if label != MIX and tune.values[label]])
    settings = len(tune.settings or grid.settings)
    return (
        f"{tune.budget} candidates of each of {methods} methods, {settings} settings, "
        f"{len(tune.seeds)} seeds: {runs} runs, {rounds} rounds in all"
    )
