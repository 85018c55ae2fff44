"""`fedapp compare`, also with `--tune`: runs the cells of a grid, writes files, prints a table."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from fedapp.evaluation.classification_metrics import Metric
from fedapp.experiment.preset_files import Scalar
from fedapp.experiment.run_folder import runs_root
from fedapp.reports.comparison.summary import in_words, overview
from fedapp.reports.statistics import compare_with_best
from fedapp.tools.compare.cell_process import Driver
from fedapp.tools.compare.cells import build_cells, runs_of
from fedapp.tools.compare.execute import INTERRUPTED, execute
from fedapp.tools.compare.grid import read_grid
from fedapp.tools.compare.tuning import (
    budget,
    candidates,
    judge,
    searched,
    tuning_grid,
    tuning_overview,
    write_tuned,
)


def compare(
    name: str,
    overrides: Mapping[str, Scalar],
    *,
    methods: Sequence[str] = (),
    seeds: Sequence[int] = (),
    settings: Sequence[str] = (),
    out: Path | None = None,
    jobs: int | None = None,
    driver: Driver = "loopback",
    keep_models: bool = False,
    by: Metric = "accuracy",
) -> int:
    """Run a grid and print its table; return 0, 1 if a cell failed, `INTERRUPTED` after Ctrl-C.

    name: of a grid (`read_grid`). overrides: for all cells. methods, seeds, settings: those to run,
    instead of the grid's; empty: all. jobs: processes at a time; None: one for each core, as far as
    memory allows. by: the metric of the printed table.

    Raises ConfigError and RunError before anything is started, since every cell is built first.
    """
    grid = read_grid(name, overrides, methods, seeds, settings)
    out = folder_of(out, f"compare-{grid.name}")
    code, collection, files = execute(grid, out, jobs, driver, keep_models=keep_models)
    if code == INTERRUPTED:
        return code
    if collection.results:
        # Imported late: drawing takes long to import, and each cell's process imports this module.
        from fedapp.reports.comparison.document import write_report

        found = collection.record()
        told = {name: compare_with_best(found.units(name, by)) for name in found.settings}
        print(f"\n{overview(found, by)}")
        print("\n".join(f"{name}: {in_words(of)}" for name, of in told.items() if of is not None))
        files += write_report(out)
    _say_files(out, files)
    return code


def tune(
    name: str,
    overrides: Mapping[str, Scalar],
    *,
    methods: Sequence[str] = (),
    settings: Sequence[str] = (),
    values: Mapping[str, Sequence[Scalar]] = MappingProxyType({}),
    out: Path | None = None,
    jobs: int | None = None,
) -> int:
    """Run all candidates of a grid and write the grid with the best ones; return as `compare` does.

    settings: those of the grid to tune on, instead of the ones that its `tune` names; the tuned
    grid has only these. values: what to try for every method, instead of the grid's `tune`
    (`tuning.searched`).
    The grid is written only when every candidate has its result.
    """
    grid = searched(read_grid(name, overrides, methods, settings=settings), values)
    assert grid.tune is not None
    tried = candidates(grid)
    out = folder_of(out, f"tune-{grid.name}")
    plan = tuning_grid(grid, tried)
    cells = runs_of(build_cells(plan, out))
    rounds = [cell.experiment.rounds.num_rounds for cell in cells]
    print(budget(grid, len(rounds), sum(rounds)), flush=True)
    code, collection, files = execute(plan, out, jobs, "loopback")
    if code:
        return code
    judged = judge(tried, collection.results, grid.tune.each_setting)
    print(f"\n{tuning_overview(judged)}")
    files += write_tuned(out, grid, judged)
    _say_files(out, files)
    print(f"\nTo compare with these: fedapp compare {out / grid.name}.yaml")
    return 0


def folder_of(out: Path | None, name: str) -> Path:
    """Return the folder of a comparison: `out`, or else `name` among the user's runs."""
    return (out.expanduser() if out else runs_root() / name).absolute()


def _say_files(out: Path, files: Sequence[Path]) -> None:
    print(f"\nFiles in {out}\n  {' '.join(str(path.relative_to(out)) for path in files)}")
