"""`fedapp advise`: short runs of the candidates, then a table, a recommendation and its reason."""

import json
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from statistics import fmean
from sys import stderr

from fedapp.experiment.presetfiles import Scalar
from fedapp.ground.errors import RunError
from fedapp.ground.text import duration
from fedapp.tools.advise.plan import CANDIDATES, SETTING, plan
from fedapp.tools.advise.rule import advise
from fedapp.tools.advise.words import as_json, reason, table
from fedapp.tools.compare.collect import Collection
from fedapp.tools.compare.command import folder_of
from fedapp.tools.compare.execute import execute
from fedapp.tools.compare.telling import units_of


def advise_on(
    data: str,
    overrides: Mapping[str, Scalar],
    *,
    seeds: Sequence[int] = (),
    out: Path | None = None,
    jobs: int | None = None,
    as_data: bool = False,
) -> int:
    """Run the candidates on a preset or a folder and say which to take; return as `compare`.

    as_data: print JSON alone to standard output; progress goes to standard error.

    Raises ConfigError and RunError as `compare`, and RunError where no site has test images.
    """
    grid, words = plan(data, overrides, seeds or (0, 1, 2))
    folder = folder_of(out, f"advise-{grid.name}")
    if as_data:
        with redirect_stdout(stderr):
            code, collection, _ = execute(grid, folder, jobs, "loopback")
    else:
        code, collection, _ = execute(grid, folder, jobs, "loopback")
    if code:
        return code
    found = units_of(collection.sites, SETTING)
    advice = advise({name: found[name] for name in CANDIDATES if name in found})
    if advice is None:
        raise RunError(f"{data}: no site has labelled test images: label some, or nobody can tell")
    costs = {
        name: fmean(row["wall_seconds"] for row in collection.results if row["method"] == name)
        for name in CANDIDATES
    }
    images, shares = _tested(collection, grid.seeds[0])
    if as_data:
        print(json.dumps(as_json(found, advice, costs, images), indent=2))
        return 0
    sites = len(shares)
    print(f"\nAccuracy on each site's own test images: {sites} sites, {len(grid.seeds)} seeds")
    print("\n".join([*table(found, advice, costs), "", *reason(advice, images, shares)]))
    total = duration(sum(row["wall_seconds"] for row in collection.results))
    print(f"\nThis took {total} of computing, in {folder}; the same command goes on from there.")
    print(f"In full: fedapp run {words} method.preset={advice.method}")
    return 0


def _tested(collection: Collection, seed: int) -> tuple[int, list[float]]:
    """Return the test images of all sites, and each site's share of labels, under one seed."""
    rows = [
        row for row in collection.sites if row["seed"] == seed and row["method"] == CANDIDATES[0]
    ]
    return sum(row["test"] for row in rows), [row["mu"] for row in rows if row["mu"] is not None]
