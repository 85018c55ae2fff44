"""`fedapp compare`, with `--tune` too: a grid in, cells run, files and a table out."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from fedapp.evaluation.classification_metrics import Metric
from fedapp.experiment.preset_files import Scalar
from fedapp.experiment.run_folder import runs_root
from fedapp.reports.comparison.summary import in_words, overview
from fedapp.reports.statistics import telling
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
    """Run a grid; return 0, 1 where a cell failed, `INTERRUPTED` after Ctrl-C.

    jobs: processes at a time; None: one a core, as memory allows. by: metric of what is told at the
    end.

    Raises ConfigError and RunError before anything is started: every cell is built and checked.
    """
    grid = read_grid(name, overrides, methods, seeds, settings)
    out = folder_of(out, f"compare-{grid.name}")
    code, collection, files = execute(grid, out, jobs, driver, keep_models=keep_models)
    if code == INTERRUPTED:
        return code
    if collection.results:
        # Only here: drawing takes long to import, and every cell's process imports this module.
        from fedapp.reports.comparison.document import write_report

        found = collection.record()
        told = {name: telling(found.units(name, by)) for name in found.settings}
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
    """Run all candidates of a grid, and write the grid with the best; return as `compare`.

    settings: of the grid's, to tune on, instead of those that its `tune` names; the tuned grid has
    these alone. values: what to try for every method, instead of the grid's `tune`
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
    """Return the folder of a comparison: the one that is asked for, else of this name in yours."""
    return (out.expanduser() if out else runs_root() / name).absolute()


def _say_files(out: Path, files: Sequence[Path]) -> None:
    print(f"\nFiles in {out}\n  {' '.join(str(path.relative_to(out)) for path in files)}")
