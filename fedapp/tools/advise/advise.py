"""`fedapp advise`: short runs of the candidates, then a table, a recommendation and its reason."""

import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, redirect_stdout
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from sys import stderr

from fedapp.experiment.experiment import Experiment
from fedapp.experiment.presetfiles import Scalar
from fedapp.ground.errors import RunError
from fedapp.ground.progress import doing
from fedapp.ground.text import duration
from fedapp.learn.quality import NAMES, Metric
from fedapp.results.comparison.record import SELECTED, ComparisonRecord
from fedapp.results.statistics import by_run
from fedapp.site.federation import federation_of, forget
from fedapp.tools.advise.plan import SEEDS, SETTING, UNTRAINED, plan
from fedapp.tools.advise.rule import advise
from fedapp.tools.advise.words import anchored, as_json, left_out_words, reason, table, tuned_words
from fedapp.tools.compare.cells import Cell, build_cells
from fedapp.tools.compare.compare import folder_of
from fedapp.tools.compare.earlier import check_cells
from fedapp.tools.compare.execute import execute
from fedapp.tools.compare.grid import Grid
from fedapp.tools.compare.tuning import candidates, judge, tuning_grid

ALONE = "alone_selected_test_accuracy"
"""Column of a run of one round: what the same closed form reaches with each site's own sums."""


def advise_on(
    data: str,
    overrides: Mapping[str, Scalar],
    *,
    seeds: Sequence[int] = (),
    out: Path | None = None,
    jobs: int | None = None,
    as_data: bool = False,
    by: Metric = "accuracy",
) -> int:
    """Tune and run the candidates on a preset or a folder, and say which to take; as `compare`.

    by: metric in which candidates are compared. as_data: print JSON alone to standard output;
    progress goes to standard error.

    Raises ConfigError and RunError as `compare`, and RunError where no site has test images.
    """
    grid, words, left_out = plan(data, overrides, seeds or SEEDS)
    folder = folder_of(out, f"advise-{grid.name}")
    with redirect_stdout(stderr) if as_data else nullcontext():
        for line in left_out_words(left_out):
            print(line)
        read_once(check(grid, folder))
        code, chosen, tuning_seconds = _tuned(grid, folder / "tuning", jobs)
        if code:
            return code
        code, collection, _ = execute(_with(grid, chosen), folder, jobs, "loopback")
    if code:
        return code
    record = collection.record()
    units = record.units(SETTING, by)
    found = by_run({name: units[name] for name in grid.methods if name in units})
    advice = advise(found)
    if advice is None:
        raise RunError(f"{data}: no site has labelled test images: label some, or nobody can tell")
    costs = {
        name: fmean(record.by_seed(SETTING, name, "wall_seconds").values()) for name in grid.methods
    }
    images, shares = _tested(record, next(iter(grid.methods)), grid.seeds[0])
    if as_data:
        print(json.dumps(as_json(found, advice, costs, images, chosen, left_out), indent=2))
        return 0
    sites = len(shares)
    what = NAMES[by][0].upper() + NAMES[by][1:]
    print(f"\n{what} on each site's own test images: {sites} sites, {len(grid.seeds)} seeds")
    worth = []
    if UNTRAINED in found and by == "accuracy":
        alone = record.by_seed(SETTING, UNTRAINED, ALONE)
        worth = anchored(record.by_seed(SETTING, UNTRAINED, SELECTED), alone)
    said = [*table(found, advice, costs, NAMES[by]), *worth, *tuned_words(chosen), ""]
    print("\n".join([*said, *reason(advice, images, shares)]))
    total = duration(tuning_seconds + sum(row["wall_seconds"] for row in collection.results))
    print(f"\nThis took {total} of computing, in {folder}; the same command goes on from there.")
    more = "".join(f" {key}={value}" for key, value in chosen.get(advice.method, {}).items())
    print(f"In full: fedapp run {words} method.preset={advice.method}{more}")
    return 0


def read_once(experiment: Experiment) -> None:
    """Read all sites' data, so that a fault of theirs is said once, and before anything is run.

    Raises DataError, and ConfigError where the sites do not fit the settings.
    """
    with doing("reading the sites' data"):
        federation = federation_of(experiment)
        for site in range(experiment.split.num_clients):
            federation.dealt.site(site)
    forget()  # the cells' processes need the memory


def check(grid: Grid, folder: Path) -> Experiment:
    """Raise now what would be refused after hours of tuning; nothing is run.

    Returns the first cell's experiment. Raises ConfigError where a cell of the tuning or of the
    comparison cannot be built, whichever values are chosen, and RunError where the folder holds one
    that none of these values fits.
    """
    ways = [_with(grid, {})]
    if grid.tune is not None:
        tried = candidates(grid)
        build_cells(tuning_grid(grid, tried), folder / "tuning")
        by_method = {name: [c.values for c in tried if c.method == name] for name in grid.methods}
        tuned = {name: values for name, values in by_method.items() if values}
        ways = [
            _with(grid, dict(zip(tuned, values, strict=True)))
            for values in zip(*tuned.values(), strict=True)
        ]
    cells = list(zip(*(build_cells(way, folder) for way in ways), strict=True))
    check_cells([same[0] for same in cells if not any(map(_fits, same))])
    first: Cell = cells[0][0]
    return first.experiment


def _fits(cell: Cell) -> bool:
    return cell.state() == "new" or cell.run_facts().get("experiment") == cell.digest


def _with(grid: Grid, chosen: Mapping[str, Mapping[str, Scalar]]) -> Grid:
    """Return the comparison with the values that were chosen for its methods."""
    methods = {name: {**own, **chosen.get(name, {})} for name, own in grid.methods.items()}
    return replace(grid, methods=methods, tune=None)


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


def _tested(record: ComparisonRecord, method: str, seed: int) -> tuple[int, list[float]]:
    """Return the test images of all sites, and each site's share of labels, under one seed."""
    rows = record.sites[SETTING, method, seed].values()
    return sum(int(row.test or 0) for row in rows), [row.mu for row in rows if row.mu is not None]
