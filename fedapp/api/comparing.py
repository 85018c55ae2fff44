"""`fedapp.compare`: methods compared on equal splits, initial weights and numbers of batches."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fedapp.api.data import Federation
from fedapp.api.runs import (
    Data,
    OwnMethod,
    OwnNetwork,
    method_override,
    muted,
    preset_and_overrides,
)
from fedapp.core.errors import ConfigError, RunError
from fedapp.experiment.preset_files import Scalar
from fedapp.reports.comparison.record import SELECTED, ComparisonRecord
from fedapp.reports.comparison.summary import in_words, overview
from fedapp.reports.statistics import BestComparison, compare_with_best
from fedapp.tools.compare.compare import folder_of
from fedapp.tools.compare.execute import INTERRUPTED, execute, execute_here
from fedapp.tools.compare.grid import Grid, grid_of

SETTING_NAME = "base"
"""Name, in the files of the comparison, of the only setting that it has."""


@dataclass(frozen=True)
class Comparison:
    """The result of a comparison; `print` shows it.

    folder: holds results.csv, sites.csv and rounds.csv (`fedapp report FOLDER` draws them). rows:
    one for each method, with the columns below. Accuracies are shares in [0, 1], measured on each
    site's own test inputs at the round that was selected by validation.

    - method: its name; seeds: how many; accuracy: mean over sites and seeds; sd: standard deviation
      over seeds, None of a single seed
    - difference: from the method with the highest accuracy; low, high: its 95 % interval over
      seeds; p: p-value of the paired t-test over seeds, corrected by Holm over all pairs of
      methods. They are None for the best method itself, and with a single seed
    """

    folder: Path
    rows: list[dict[str, Any]]
    text: str

    def __str__(self) -> str:
        return self.text

    def frame(self, of: Literal["methods", "runs", "sites"] = "methods") -> Any:
        """Return a pandas DataFrame.

        of: "methods": `rows`; "runs": a row for each method and seed, as in results.csv; "sites": a
        row for each site of a run, as in sites.csv. Raises ConfigError for another `of`.
        """
        import pandas  # half a second, which other uses of the API do not need

        if of == "methods":
            return pandas.DataFrame(self.rows)
        files = {"runs": "results.csv", "sites": "sites.csv"}
        if of not in files:
            raise ConfigError(f"frame: {of!r}: must be methods, runs or sites: name one of them")
        return pandas.read_csv(self.folder / files[of])


def compare(
    data: Data,
    methods: Sequence[OwnMethod],
    *,
    seeds: Sequence[int] = (0, 1, 2),
    network: OwnNetwork | None = None,
    settings: Mapping[str, Scalar] | None = None,
    out: str | Path | None = None,
    quiet: bool = False,
) -> Comparison:
    """Run every method with every seed, and return the result; earlier runs of it are kept.

    methods: names of method presets, YAML files, or classes of your own. seeds: of the runs. out:
    the folder; None: `compare-<data>` among your runs, where <data> is the preset, or the first
    digits of the SHA-256 of data in memory. The other arguments are those of `run`.

    A preset with the project's own methods and network runs in several processes at a time. What
    only this process has (data in memory, your own code) runs here, one run after the other.

    Raises FedAppError with one line for each thing that is wrong, and where a run failed.
    """
    if isinstance(methods, str) or not methods:
        raise ConfigError(f"methods: {methods!r}: must be a list, such as ['local_only', 'fedavg']")
    chosen = [method_override(method) for method in methods]
    labels = {str(label): one for one in chosen for label in one.values()}
    preset, common = preset_and_overrides(data, None, network, settings or {}, None)
    plain = {"preset": preset, "set": common, "methods": labels, "seeds": list(seeds)}
    grid = grid_of(plain, _called(data), "compare")
    folder = folder_of(None if out is None else Path(out), f"compare-{grid.name}")
    here = isinstance(data, Federation) or not all(isinstance(m, str) for m in methods)
    with muted(quiet):
        found = _carried_out(grid, folder, here or callable(network))
    told = compare_with_best(found.units(SETTING_NAME))
    words = f"\n{in_words(told)}" if told else ""
    return Comparison(folder, _rows(found, told), overview(found) + words)


def _called(data: Data) -> str:
    """Return the name of a comparison on these data: the preset, or digits of their SHA-256."""
    if isinstance(data, Federation):
        return f"memory-{str(data.settings['data.name']).rpartition('_')[2][:8]}"
    return Path(data).stem


def _carried_out(grid: Grid, folder: Path, here: bool) -> ComparisonRecord:
    if here:
        return execute_here(grid, folder).record()
    code, collection, _ = execute(grid, folder, None, "loopback")
    if code == INTERRUPTED:
        raise KeyboardInterrupt
    if code:
        raise RunError(f"{folder}: a cell failed: its log, beside its folder in cells/, says why")
    return collection.record()


def _rows(found: ComparisonRecord, told: BestComparison | None) -> list[dict[str, Any]]:
    rows = []
    for method in found.methods:
        mean = found.mean(SETTING_NAME, method, SELECTED)
        difference = told.differences.get(method) if told else None
        rows.append({
            "method": method,
            "seeds": mean.n if mean else 0,
            "accuracy": mean.value if mean else None,
            "sd": mean.sd if mean else None,
            "difference": difference.value if difference else 0.0 if told else None,
            "low": difference.low if difference else None,
            "high": difference.high if difference else None,
            "p": told.corrected.get(method) if told else None,
        })  # fmt: skip
    return rows
