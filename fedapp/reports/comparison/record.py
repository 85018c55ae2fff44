"""What a comparison found, read once from its folder: comparison.json and three CSV files.

Accuracies are shares in [0, 1]; an empty field, here None, was not measured. "selected" is the
round with the best mean validation accuracy; without validation images it is the last
(`selected_by`). "best" is the one with the best mean test accuracy, which the paper reports. Where
sites have several answers (`protocol.ANSWERS`), each answer has columns of its own and its own
selected round. Columns without an answer's name are of the one that the method uses, or that the
grid scores it by. "selected" is the last round where the grid judges by that. Cells that never ran
are simply absent. Tables are made of columns, each of which says something of a setting and a
method.
"""

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

from fedapp.core.errors import RunError
from fedapp.core.untrusted_files import read_json
from fedapp.evaluation.classification_metrics import Metric
from fedapp.protocol.messages import ANSWERS
from fedapp.reports.comparison.style import Look, looks
from fedapp.reports.layout import Entry, Table, mean_percent
from fedapp.reports.statistics import Mean, mean_sd

Key = tuple[str, str, int]
"""Setting, method, seed: one cell."""

SELECTED, BEST, FINAL = "selected_test_accuracy", "best_test_accuracy", "final_test_accuracy"
"""Columns of results.csv: accuracy at the round chosen on validation images, at the one with the
best test accuracy, and at the last."""
VALIDATION, LAST = "validation", "last round"
"""What `selected_by` says of a cell with validation images, and of one without."""
WORST_DECILE = "selected_worst_decile"
"""Column of results.csv: mean of the worst tenth of the sites, at the selected round."""
SITE_SELECTED, SITE_FINAL = "selected_accuracy", "final_accuracy"
"""Columns of sites.csv: a site's accuracy at the first and the last of those rounds."""
WORK = ("steps_per_site", "images_per_site")
"""Columns of results.csv: what a site learned by in the whole run, repeats counted."""

BY_METRIC: Mapping[Metric, str] = {
    "balanced_accuracy": "selected_balanced_accuracy",
    "f1": "selected_f1",
    "kappa": "selected_kappa",
}
"""Columns of results.csv: metrics of all sites' test images together, each at the round that its
own is highest in of their validation images."""

OF_AN_ANSWER = (SELECTED, "selected_round", FINAL)
"""Columns of results.csv that each answer has, behind its name."""
COLUMNS: Mapping[str, Sequence[str]] = {
    "results.csv": (
        *("setting", "method", "seed", "dataset", "alpha", "sites", "rounds"),
        *(BEST, "best_round", FINAL, SELECTED, "selected_round", "selected_val_accuracy"),
        *("selected_by", "selected_std", WORST_DECILE),
        *("final_std", "final_worst_decile", "warmup_test_accuracy", "pseudo_label_error"),
        *("last5_test_accuracy", "largest_fall", "calibration_error", *BY_METRIC.values()),
        *(f"{answer}_{column}" for answer in ANSWERS for column in OF_AN_ANSWER),
        *("models_down", "models_up", "bytes_down", "bytes_up", "bytes_evaluation", *WORK),
        *("cost_bound_models", "wall_seconds", "manifest", "code", "cell"),
    ),
    "sites.csv": (
        *("setting", "method", "seed", "site", "mu", "train", "labelled", "val", "test"),
        *("warmup_accuracy", SITE_FINAL, SITE_SELECTED, "best_round_accuracy"),
        *(f"{answer}_accuracy" for answer in ANSWERS),  # after the last round
    ),
    "rounds.csv": (
        *("setting", "method", "seed", "round", "mean_test_accuracy", "std_test_accuracy"),
        *("worst_decile_accuracy", "mean_val_accuracy", "pseudo_label_error"),
        *(f"mean_{part}_accuracy_{answer}" for answer in ANSWERS for part in ("test", "val")),
    ),
}
"""The columns of each file, in their order."""
_TEXTS = ("dataset", "selected_by", "manifest", "code", "cell")
_LATER = {
    *WORK,
    *BY_METRIC.values(),
    *(c for of in COLUMNS.values() for c in of if "online" in c or "one_round" in c),
}
"""Columns that files of earlier versions lack."""


@dataclass(frozen=True)
class CellResult:
    """One row of results.csv: the result of one cell.

    numbers: by column, and `models`, sent both ways, also `models_per_site_round`. cell: its
    folder, under the comparison's.
    """

    setting: str
    method: str
    seed: int
    dataset: str
    selected_by: str
    manifest: str
    code: str
    cell: str
    numbers: Mapping[str, float | None]


@dataclass(frozen=True)
class SiteResult:
    """One row of sites.csv: one site in one cell. mu: share of its training images with a label."""

    seed: int
    site: int
    mu: float | None
    train: float | None
    labelled: float | None
    test: float | None
    selected_accuracy: float | None
    final_accuracy: float | None


@dataclass(frozen=True)
class RoundResult:
    """One row of rounds.csv: one round of one cell; 0 is the warm-up."""

    round: int
    mean_test_accuracy: float | None
    pseudo_label_error: float | None


@dataclass(frozen=True)
class ComparisonRecord:
    """All of a comparison. settings, methods, seeds: as planned, whether they ran or not.

    presets: the method preset behind each method's name, where it is another. answers: which answer
    of its sites a method is scored by, where that is not the one it uses. paper: which of the
    paper's tables to read beside ours, as comparison.json has it. reference: the method that the
    grid wants the others compared with; empty: it does not say. judged: at which round the grid
    wants every run judged, `validation` or `last`.
    """

    folder: Path
    title: str
    settings: Sequence[str]
    methods: Sequence[str]
    seeds: Sequence[int]
    cells: Mapping[Key, CellResult]
    sites: Mapping[Key, Mapping[int, SiteResult]]
    rounds: Mapping[Key, Sequence[RoundResult]]
    presets: Mapping[str, str] = field(default_factory=dict)
    paper: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    reference: str = ""
    answers: Mapping[str, str] = field(default_factory=dict)
    judged: str = "validation"

    @cached_property
    def looks(self) -> dict[str, Look]:
        """How each method is shown."""
        return looks(self.methods, self.presets)

    @property
    def places(self) -> list[tuple[str, str]]:
        """Each setting with each method that ran in it, in the order of the plan."""
        return [(setting, method) for setting in self.settings for method in self.ran(setting)]

    def of(self, setting: str, method: str) -> dict[int, CellResult]:
        """Return the cells that ran, by seed, in the order of the plan."""
        keys = ((setting, method, seed) for seed in self.seeds)
        return {key[2]: self.cells[key] for key in keys if key in self.cells}

    def by_seed(self, setting: str, method: str, column: str) -> dict[int, float]:
        """Return a number of results.csv by seed, where it was measured."""
        found = {s: cell.numbers[column] for s, cell in self.of(setting, method).items()}
        return {seed: value for seed, value in found.items() if value is not None}

    def mean(self, setting: str, method: str, column: str) -> Mean | None:
        """Return mean and sd over seeds of a number of results.csv; None where unmeasured."""
        return mean_sd(self.by_seed(setting, method, column).values())

    def value(self, setting: str, method: str, column: str) -> float | None:
        """Return that mean alone."""
        mean = self.mean(setting, method, column)
        return None if mean is None else mean.value

    def method(self, preset: str) -> str | None:
        """Return the method that is this preset, by name or behind its name; None without one."""
        names = (m for m in self.methods if preset in (m, self.presets.get(m)))
        return preset if preset in self.methods else next(names, None)

    def ran(self, setting: str) -> list[str]:
        """Return the methods with at least one cell in this setting, in the order of the plan."""
        return [method for method in self.methods if self.of(setting, method)]

    @property
    def missing(self) -> list[Key]:
        """Cells that were planned and have no result."""
        planned = ((s, m, seed) for s in self.settings for m in self.methods for seed in self.seeds)
        return [key for key in planned if key not in self.cells]

    @cached_property
    def label_share(self) -> dict[tuple[str, int, int], float]:
        """Mu of every (setting, seed, site), as the semi-supervised methods have it.

        A method that is given every label sees mu = 1 on the same split: the least mu counts.
        """
        found: dict[tuple[str, int, int], float] = {}
        for (setting, _, seed), sites in self.sites.items():
            for row in sites.values():
                if row.mu is not None:
                    place = (setting, seed, row.site)
                    found[place] = min(found.get(place, row.mu), row.mu)
        return found

    @property
    def split_twice(self) -> list[tuple[str, int]]:
        """(setting, seed) whose cells were not all dealt the same split, so cannot be paired.

        Methods that are given every label have a split of their own, of the same images.
        """
        found: dict[tuple[str, int], set[str]] = {}
        for (setting, method, seed), cell in self.cells.items():
            if cell.manifest and not self.has_all_labels(setting, method):
                found.setdefault((setting, seed), set()).add(cell.manifest)
        return [place for place, manifests in found.items() if len(manifests) > 1]

    def site_pairs(
        self,
        setting: str,
        method: str,
        other: str,
        column: str = SITE_SELECTED,
        seeds: Sequence[int] | None = None,
    ) -> list[tuple[float, float, float]]:
        """Return (mu, accuracy, the other method's accuracy) of every site and seed with both.

        column: of sites.csv, which accuracy. seeds: of these runs; None: of all. Sites without test
        images have none and are left out.
        """
        found = []
        for seed in self.seeds if seeds is None else seeds:
            theirs = self.sites.get((setting, other, seed), {})
            for site, row in self.sites.get((setting, method, seed), {}).items():
                mu = self.label_share.get((setting, seed, site))
                our = getattr(row, column)
                their = getattr(theirs[site], column) if site in theirs else None
                if mu is not None and our is not None and their is not None:
                    found.append((mu, our, their))
        return found

    def units(
        self, setting: str, by: Metric = "accuracy"
    ) -> dict[str, dict[tuple[int, int], float]]:
        """Return each method's accuracy by seed and site, at the selected round.

        A site without test images has none, and is left out, as is a method without such a site.
        by: another metric is of all sites' images together, and has the site's place 0.
        """
        if by != "accuracy":
            of = {m: self.by_seed(setting, m, BY_METRIC[by]) for m in self.ran(setting)}
            return {m: {(seed, 0): v for seed, v in values.items()} for m, values in of.items()}
        found: dict[str, dict[tuple[int, int], float]] = {}
        for method, seed in product(self.methods, self.seeds):
            for site, row in self.sites.get((setting, method, seed), {}).items():
                if row.selected_accuracy is not None:
                    found.setdefault(method, {})[seed, site] = row.selected_accuracy
        return found

    def has_all_labels(self, setting: str, method: str) -> bool:
        """Tell whether a method learned from labels that others in this setting do not see."""
        cells = (self.sites.get((setting, method, seed), {}) for seed in self.seeds)
        own = [row for sites in cells for row in sites.values()]
        more = any(
            row.mu is not None and row.mu > self.label_share[setting, row.seed, row.site]
            for row in own
        )
        return more and all(row.labelled == row.train for row in own)


Column = Callable[[str, str], Entry]
"""What a column says of a setting and a method."""


def by_method(
    title: str,
    comparison: ComparisonRecord,
    columns: Mapping[str, Column],
    notes: Sequence[str],
    without: str = "",
) -> Table:
    """Return a table with a row for each method that ran in each setting, but for one method."""
    rows = [
        [s, comparison.looks[m].label, *(entry(s, m) for entry in columns.values())]
        for s, m in comparison.places
        if m != without
    ]
    return Table(title, ["Setting", "Method", *columns], rows, notes)


def spread(comparison: ComparisonRecord, column: str, *, ran: bool = False) -> Column:
    """Mean ± sd of a number of results.csv; n is said where it is not the plan's, or what ran."""

    def entry(setting: str, method: str) -> str:
        planned = comparison.of(setting, method) if ran else comparison.seeds
        return mean_percent(comparison.mean(setting, method, column), len(planned))

    return entry


def mean(comparison: ComparisonRecord, column: str, words: Callable[[float | None], str]) -> Column:
    """Mean of a number of results.csv, in these words."""
    return lambda setting, method: words(comparison.value(setting, method, column))


def seeds(comparison: ComparisonRecord) -> Column:
    """How many runs there are."""
    return lambda setting, method: str(len(comparison.of(setting, method)))


def read_comparison(folder: Path) -> ComparisonRecord:
    """Read the folder of a comparison, finished or not.

    Raises RunError where it is none, or where one of its files is damaged.
    """
    path = folder / "comparison.json"
    try:
        plan = read_json(path)
        settings, methods = [str(s) for s in plan["settings"]], [str(m) for m in plan["methods"]]
        seeds = [int(seed) for seed in plan["seeds"]]
    except FileNotFoundError as error:
        raise RunError(f"{path}: is missing; name the folder of a comparison") from error
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path}: is damaged ({error}); run the comparison again") from error
    planned = {(s, m, seed) for s in settings for m in methods for seed in seeds}
    cells = dict(_read(folder / "results.csv", _cell))
    sites: dict[Key, dict[int, SiteResult]] = {}
    for key, site in _read(folder / "sites.csv", _site):
        sites.setdefault(key, {})[site.site] = site
    rounds: dict[Key, list[RoundResult]] = {}
    for key, row in _read(folder / "rounds.csv", _round):
        rounds.setdefault(key, []).append(row)
    return ComparisonRecord(
        folder=folder,
        title=str(plan.get("title") or folder.name),
        settings=settings,
        methods=methods,
        seeds=seeds,
        cells={key: cell for key, cell in cells.items() if key in planned},
        sites={key: rows for key, rows in sites.items() if key in planned},
        rounds={key: rows for key, rows in rounds.items() if key in planned},
        presets={k: str(v) for k, v in (plan.get("presets") or {}).items() if v},
        paper=plan.get("paper") or {},
        versions=plan.get("versions") or {},
        reference=str(plan.get("reference") or ""),
        answers=plan.get("answers") or {},
        judged=str(plan.get("judged") or "validation"),
    )


Result = TypeVar("Result", CellResult, SiteResult, RoundResult)
Fields = Mapping[str, str]


def _read(path: Path, of: Callable[[Fields], Result]) -> list[tuple[Key, Result]]:
    """Return the rows of a CSV file; none where it is absent, for nothing has run yet."""
    if not path.exists():
        return []
    found = []
    with path.open(encoding="utf-8", newline="") as file:
        reader: csv.DictReader[str] = csv.DictReader(file)
        there = {*(reader.fieldnames or ()), *_LATER}
        if lacking := [name for name in COLUMNS[path.name] if name not in there]:
            raise RunError(f"{path}: has no column {', '.join(lacking)}; run the comparison again")
        for row in reader:
            try:
                found.append(((row["setting"], row["method"], int(row["seed"])), of(row)))
            except (ValueError, TypeError) as error:
                raise RunError(
                    f"{path}: line {reader.line_num} is damaged ({error}); run the comparison again"
                ) from error
    return found


def _cell(row: Fields) -> CellResult:
    texts = {name: row[name] for name in ("setting", "method", *_TEXTS)}
    columns = [name for name in COLUMNS["results.csv"] if name not in texts]
    numbers = {name: _number(row.get(name, "")) for name in columns}
    down, up = numbers["models_down"], numbers["models_up"]
    models = None if down is None or up is None else down + up
    whole = (numbers["sites"] or 0) * (numbers["rounds"] or 0)
    numbers["models"] = models
    numbers["models_per_site_round"] = models / whole if models is not None and whole else None
    return CellResult(**texts, seed=int(row["seed"]), numbers=numbers)


def _site(row: Fields) -> SiteResult:
    named = ("mu", "train", "labelled", "test", SITE_SELECTED, SITE_FINAL)
    return SiteResult(int(row["seed"]), int(row["site"]), *(_number(row[name]) for name in named))


def _round(row: Fields) -> RoundResult:
    named = ("mean_test_accuracy", "pseudo_label_error")
    return RoundResult(int(row["round"]), *(_number(row[name]) for name in named))


def _number(text: str) -> float | None:
    """Return a field's number; None where it is empty or not finite, so was not measured."""
    number = float(text) if text.strip() else math.nan
    return number if math.isfinite(number) else None
