"""`fedapp advise`: short runs of the candidates, then a table, a recommendation and its reason."""

import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, redirect_stdout
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from sys import stderr

from fedapp.experiment.presetfiles import Scalar
from fedapp.ground.errors import RunError
from fedapp.ground.text import duration
from fedapp.results.comparison.record import ComparisonRecord
from fedapp.results.statistics import by_run
from fedapp.tools.advise.plan import CANDIDATES, SEEDS, SETTING, plan
from fedapp.tools.advise.rule import advise
from fedapp.tools.advise.words import as_json, reason, table, tuned_words
from fedapp.tools.compare.command import folder_of
from fedapp.tools.compare.execute import execute
from fedapp.tools.compare.grid import Grid
from fedapp.tools.compare.tuning import candidates, judge, tuning_grid


def advise_on(
    data: str,
    overrides: Mapping[str, Scalar],
    *,
    seeds: Sequence[int] = (),
    out: Path | None = None,
    jobs: int | None = None,
    as_data: bool = False,
) -> int:
    """Tune and run the candidates on a preset or a folder, and say which to take; as `compare`.

    as_data: print JSON alone to standard output; progress goes to standard error.

    Raises ConfigError and RunError as `compare`, and RunError where no site has test images.
    """
    grid, words = plan(data, overrides, seeds or SEEDS)
    folder = folder_of(out, f"advise-{grid.name}")
    with redirect_stdout(stderr) if as_data else nullcontext():
        code, chosen, tuning_seconds = _tuned(grid, folder / "tuning", jobs)
        if code:
            return code
        methods = {name: {**own, **chosen.get(name, {})} for name, own in grid.methods.items()}
        tuned = replace(grid, methods=methods, tune=None)
        code, collection, _ = execute(tuned, folder, jobs, "loopback")
    if code:
        return code
    record = collection.record()
    units = record.units(SETTING)
    found = by_run({name: units[name] for name in CANDIDATES if name in units})
    advice = advise(found)
    if advice is None:
        raise RunError(f"{data}: no site has labelled test images: label some, or nobody can tell")
    costs = {
        name: fmean(record.by_seed(SETTING, name, "wall_seconds").values()) for name in CANDIDATES
    }
    images, shares = _tested(record, grid.seeds[0])
    if as_data:
        print(json.dumps(as_json(found, advice, costs, images, chosen), indent=2))
        return 0
    sites = len(shares)
    print(f"\nAccuracy on each site's own test images: {sites} sites, {len(grid.seeds)} seeds")
    said = [*table(found, advice, costs), *tuned_words(chosen), ""]
    print("\n".join([*said, *reason(advice, images, shares)]))
    total = duration(tuning_seconds + sum(row["wall_seconds"] for row in collection.results))
    print(f"\nThis took {total} of computing, in {folder}; the same command goes on from there.")
    more = "".join(f" {key}={value}" for key, value in chosen.get(advice.method, {}).items())
    print(f"In full: fedapp run {words} method.preset={advice.method}{more}")
    return 0


def _tuned(
    grid: Grid, folder: Path, jobs: int | None
) -> tuple[int, dict[str, Mapping[str, Scalar]], float]:
    """Run what the grid's `tune` tries; return exit code, each candidate's best values, seconds."""
    if grid.tune is None:
        return 0, {}, 0.0
    tried = candidates(grid)
    code, collection, _ = execute(tuning_grid(grid, tried), folder, jobs, "loopback")
    if code:
        return code, {}, 0.0
    judged = judge(tried, collection.results)
    chosen = {one.candidate.method: one.candidate.values for one in judged if one.chosen}
    return 0, chosen, sum(row["wall_seconds"] for row in collection.results)


def _tested(record: ComparisonRecord, seed: int) -> tuple[int, list[float]]:
    """Return the test images of all sites, and each site's share of labels, under one seed."""
    rows = record.sites[SETTING, CANDIDATES[0], seed].values()
    return sum(int(row.test or 0) for row in rows), [row.mu for row in rows if row.mu is not None]
