"""The results of a comparison, read once from its folder: comparison.json and three CSV files.

Accuracies are shares in [0, 1]. An empty field of a file was not measured, and is NaN here. Columns
whose names begin with "selected" are of the round with the best mean validation accuracy; without
validation images, or where the grid judges by the last round, that is the last one (`selected_by`).
Columns that begin with "best" are of the round with the best mean test accuracy, which the paper
reports. Where sites have several answers (`messages.ANSWERS`), each answer has columns of its own,
with its own selected round; columns without an answer's name are of the answer that the method
uses, or that the grid scores it by. Cells (setting, method, seed) that never ran are absent.
"""

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedapp.core.errors import RunError
from fedapp.core.untrusted_files import read_json
from fedapp.evaluation.classification_metrics import Metric
from fedapp.protocol.messages import ANSWERS
from fedapp.reports.comparison.style import Look, looks
from fedapp.reports.layout import Entry, Table, mean_percent
from fedapp.reports.statistics import Mean, mean_sd

if TYPE_CHECKING:  # pandas takes half a second to import, which a cell's process does not need
    from pandas import DataFrame, Series

Key = tuple[str, str, int]
"""One cell: setting, method and seed."""

SELECTED, BEST, FINAL = "selected_test_accuracy", "best_test_accuracy", "final_test_accuracy"
"""Columns of results.csv: accuracy at the round chosen on validation images, at the round with the
best test accuracy, and at the last round."""
VALIDATION, LAST = "validation", "last round"
"""Values of `selected_by`, for a cell with validation images and for one without."""
WORST_DECILE = "selected_worst_decile"
"""Column of results.csv: mean of the worst tenth of the sites, at the selected round."""
SITE_SELECTED, SITE_FINAL = "selected_accuracy", "final_accuracy"
"""Columns of sites.csv: a site's accuracy at the first and the last of those rounds."""
VAL_ACCURACY, LONE_VAL_ACCURACY = "val_accuracy", "alone_val_accuracy"
"""Columns of sites.csv: on validation images after the last round, of what a site uses and of what
it learned alone."""
NETWORK_ALONE = "local_only"
"""Preset of the method by which each site trains a network alone."""
BEST_ALONE = "best alone"
"""Stands for a method: at each site the better of what it learned alone, by its own validation
images: a network (`NETWORK_ALONE`) or the closed form of its own images (`LONE_FORMS`)."""
LONE_FORMS = ("one_round", "recommended")
"""Presets whose answer "alone" is the same closed form of the site's own images."""
WORK = ("steps_per_site", "images_per_site")
"""Columns of results.csv: training steps and images of a site in the whole run, repeats counted."""

BY_METRIC: Mapping[Metric, str] = {
    "balanced_accuracy": "selected_balanced_accuracy",
    "f1": "selected_f1",
    "kappa": "selected_kappa",
}
"""Columns of results.csv: metrics over the test images of all sites together, each at the round in
which the same metric is highest on their validation images."""

OF_AN_ANSWER = (SELECTED, "selected_round", FINAL)
"""Columns of results.csv that each answer has too, with the answer's name in front."""
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
        *(VAL_ACCURACY, LONE_VAL_ACCURACY),
    ),
    "rounds.csv": (
        *("setting", "method", "seed", "round", "mean_test_accuracy", "std_test_accuracy"),
        *("worst_decile_accuracy", "mean_val_accuracy", "pseudo_label_error"),
        *(f"mean_{part}_accuracy_{answer}" for answer in ANSWERS for part in ("test", "val")),
    ),
}
"""The columns of each file, in their order."""
_TEXTS = ("setting", "method", "dataset", "selected_by", "manifest", "code", "cell")
_INTEGERS = ("seed", "site", "round")
_LATER = {
    *WORK,
    *BY_METRIC.values(),
    *(VAL_ACCURACY, LONE_VAL_ACCURACY),
    *(c for of in COLUMNS.values() for c in of if "online" in c or "one_round" in c),
}
"""Columns that files of earlier versions lack."""
_READ = {
    "results.csv": COLUMNS["results.csv"],
    "sites.csv": (
        *("setting", "method", "seed", "site", "mu", "train", "labelled"),
        *(SITE_SELECTED, SITE_FINAL, "alone_accuracy", VAL_ACCURACY, LONE_VAL_ACCURACY),
    ),
    "rounds.csv": (
        *("setting", "method", "seed", "round"),
        *("mean_test_accuracy", "pseudo_label_error"),
    ),
}
"""The columns of each file that a report uses."""


@dataclass(frozen=True)
class ComparisonRecord:
    """All results of a comparison.

    Attributes:
        folder: the comparison's folder.
        title: its title for readers.
        settings: names of the settings as planned, whether they ran or not.
        methods: names of the methods as planned.
        seeds: seeds as planned.
        results: rows of results.csv, indexed by (setting, method, seed) in the order of the plan.
            Two columns are added: `models` (models sent, both ways) and `models_per_site_round`.
        sites: rows of sites.csv, indexed by (setting, method, seed, site). The column `seen_mu` is
            added: the share of labels that semi-supervised methods see at the site. Methods that
            are given every label have mu = 1 on the same split, so it is the least mu of all
            methods.
        rounds: rows of rounds.csv, indexed by (setting, method, seed, round); round 0 is the warm-
        up.
        presets: the method preset behind a method's name, where the name is another.
        paper: which of the paper's tables is printed beside the results, as comparison.json has it.
        versions: of the libraries that ran it.
        reference: the method that the grid compares the others with; empty: it names none.
        answers: by which answer of its sites a method is scored, where it is not the one in use.
        judged: at which round the grid judges every run, `validation` or `last`.
    """

    folder: Path
    title: str
    settings: Sequence[str]
    methods: Sequence[str]
    seeds: Sequence[int]
    results: "DataFrame"
    sites: "DataFrame"
    rounds: "DataFrame"
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

    @cached_property
    def _by_place(self) -> dict[str, dict[tuple[str, str], "DataFrame"]]:
        """The rows of each table by (setting, method)."""
        tables = {"results": self.results, "sites": self.sites, "rounds": self.rounds}
        return {
            name: {
                place: rows.droplevel(["setting", "method"])
                for place, rows in table.groupby(level=["setting", "method"], sort=False)
            }
            for name, table in tables.items()
        }

    def rows(self, table: str, setting: str, method: str) -> "DataFrame":
        """Return a method's rows of `results`, `sites` or `rounds` in one setting.

        They are indexed by seed, and by site or round.
        """
        empty = getattr(self, table).iloc[:0].droplevel(["setting", "method"])
        return self._by_place[table].get((setting, method), empty)

    def by_seed(self, setting: str, method: str, column: str) -> dict[int, float]:
        """Return a column of results.csv by seed, where it was measured."""
        found: dict[int, float] = self.rows("results", setting, method)[column].dropna().to_dict()
        return found

    def mean(self, setting: str, method: str, column: str) -> Mean | None:
        """Return mean and sd over seeds of a column of results.csv; None where unmeasured."""
        return mean_sd(self.by_seed(setting, method, column).values())

    def value(self, setting: str, method: str, column: str) -> float | None:
        """Return the mean over seeds of a column of results.csv; None where unmeasured."""
        mean = self.mean(setting, method, column)
        return None if mean is None else mean.value

    def method(self, preset: str) -> str | None:
        """Return the name of the method that is this preset; None where there is none."""
        names = (m for m in self.methods if preset in (m, self.presets.get(m)))
        return preset if preset in self.methods else next(names, None)

    def ran(self, setting: str) -> list[str]:
        """Return the methods with at least one cell in this setting, in the order of the plan."""
        return [m for m in self.methods if (setting, m) in self._by_place["results"]]

    @property
    def missing(self) -> list[Key]:
        """Cells that were planned and have no result."""
        planned = product(self.settings, self.methods, self.seeds)
        return [key for key in planned if key not in self.results.index]

    @property
    def split_twice(self) -> list[tuple[str, int]]:
        """Each (setting, seed) whose cells do not all have the same split, so cannot be paired.

        Methods that are given every label have a split of their own, of the same images.
        """
        found: dict[tuple[str, int], set[str]] = {}
        for (setting, method, seed), manifest in self.results["manifest"].items():
            if manifest and not self.has_all_labels(setting, method):
                found.setdefault((setting, seed), set()).add(manifest)
        return [place for place, manifests in found.items() if len(manifests) > 1]

    def site_pairs(
        self, setting: str, method: str, other: str, column: str = SITE_SELECTED
    ) -> "DataFrame":
        """Return the accuracies of two methods at every site and seed that both measured.

        The columns are `mu` (share of labels), `ours` and `theirs`, the index is (seed, site).
        Sites without test images have no accuracy and are left out.

        column: of sites.csv, at which round the accuracies are.
        """
        ours = self.rows("sites", setting, method)[["seen_mu", column]]
        theirs = self.of_sites(setting, other, column).rename("theirs")
        return ours.set_axis(["mu", "ours"], axis=1).join(theirs).dropna()

    def lone_form(self, setting: str) -> str | None:
        """Return the method whose answer "alone" is the closed form of each site's own images."""
        names = (found for preset in LONE_FORMS if (found := self.method(preset)))
        measured = (m for m in names if self.rows("sites", setting, m)["alone_accuracy"].any())
        return next(measured, None)

    def behind(self, reference: str) -> str:
        """Return the method that is not compared with a reference, since it is a part of it."""
        return (self.method(NETWORK_ALONE) or "") if reference == BEST_ALONE else reference

    @property
    def has_alone(self) -> bool:
        """Whether some setting has a network or a closed form alone."""
        network = self.method(NETWORK_ALONE) is not None
        return network or any(self.lone_form(setting) for setting in self.settings)

    @property
    def lone_label(self) -> str:
        """What `BEST_ALONE` is in this comparison, for people to read."""
        form = any(self.lone_form(setting) for setting in self.settings)
        network = self.method(NETWORK_ALONE)
        if form and network and not self.sites[LONE_VAL_ACCURACY].isna().all():
            return "alone"
        return "the closed form alone" if form and not network else "a network alone"

    def label(self, method: str) -> str:
        """Return a method's label, or that of `BEST_ALONE`."""
        return self.lone_label if method == BEST_ALONE else self.looks[method].label

    def of_sites(self, setting: str, method: str, column: str = SITE_SELECTED) -> "Series[float]":
        """Return a column of sites.csv by (seed, site), also of `BEST_ALONE`."""
        if method != BEST_ALONE:
            return self.rows("sites", setting, method)[column]
        form, network = self.lone_form(setting), self.method(NETWORK_ALONE)
        trained = self.rows("sites", setting, network or "")
        if form is None:
            return trained[column]
        of_form = self.rows("sites", setting, form)
        solved = of_form["alone_accuracy"]
        if network is None:
            return solved
        trained = trained.reindex(of_form.index)
        # Where validation images do not say, as in files of earlier versions, it is the network.
        better = of_form[LONE_VAL_ACCURACY] >= trained[VAL_ACCURACY]
        return solved.where(better & solved.notna(), trained[column])

    def units(
        self, setting: str, by: Metric = "accuracy"
    ) -> dict[str, dict[tuple[int, int], float]]:
        """Return each method's accuracy at the selected round, by (seed, site).

        A site without test images has none and is left out, as is a method without any site.
        Another metric `by` is over the images of all sites together, and has site 0.
        """
        if by != "accuracy":
            of = {m: self.by_seed(setting, m, BY_METRIC[by]) for m in self.ran(setting)}
            return {m: {(seed, 0): v for seed, v in values.items()} for m, values in of.items()}
        every = {m: self.rows("sites", setting, m)[SITE_SELECTED].dropna() for m in self.methods}
        return {method: values.to_dict() for method, values in every.items() if len(values)}

    def has_all_labels(self, setting: str, method: str) -> bool:
        """Return whether a method learned from labels that others in this setting do not see."""
        own = self.rows("sites", setting, method)
        more = (own["mu"] > own["seen_mu"]).any()
        return bool(more and (own["labelled"] == own["train"]).all())


Column = Callable[[str, str], Entry]
"""The entries of a table's column: a function of setting and method."""


def by_method(
    title: str,
    comparison: ComparisonRecord,
    columns: Mapping[str, Column],
    notes: Sequence[str],
    without: str = "",
) -> Table:
    """Return a table with a row for each method that ran in each setting.

    without: a method that gets no row.
    """
    rows = [
        [s, comparison.looks[m].label, *(entry(s, m) for entry in columns.values())]
        for s, m in comparison.places
        if m != without
    ]
    return Table(title, ["Setting", "Method", *columns], rows, notes)


def spread(comparison: ComparisonRecord, column: str, *, ran: bool = False) -> Column:
    """Return mean ± sd over seeds of a column of results.csv.

    The number of values is added where it differs from the number of planned seeds, or with `ran`
    from the number of cells that ran.
    """

    def entry(setting: str, method: str) -> str:
        planned = comparison.rows("results", setting, method) if ran else comparison.seeds
        return mean_percent(comparison.mean(setting, method, column), len(planned))

    return entry


def mean(comparison: ComparisonRecord, column: str, words: Callable[[float | None], str]) -> Column:
    """Return the mean over seeds of a column of results.csv. words: writes a number as text."""
    return lambda setting, method: words(comparison.value(setting, method, column))


def seeds(comparison: ComparisonRecord) -> Column:
    """Return the number of runs."""
    return lambda setting, method: str(len(comparison.rows("results", setting, method)))


def read_comparison(folder: Path) -> ComparisonRecord:
    """Read the folder of a comparison, finished or not.

    Raises RunError where it holds no comparison, or where one of its files is damaged.
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
    results, sites, rounds = (
        _read(folder / name, list(product(settings, methods, seeds))) for name in COLUMNS
    )
    models, work = (
        results["models_down"] + results["models_up"],
        results["sites"] * results["rounds"],
    )
    least = sites.groupby(level=["setting", "seed", "site"])["mu"].transform("min")
    return ComparisonRecord(
        folder=folder,
        title=str(plan.get("title") or folder.name),
        settings=settings,
        methods=methods,
        seeds=seeds,
        results=results.assign(models=models, models_per_site_round=models / work.where(work > 0)),
        sites=sites.assign(seen_mu=least),
        rounds=rounds,
        presets={k: str(v) for k, v in (plan.get("presets") or {}).items() if v},
        paper=plan.get("paper") or {},
        versions=plan.get("versions") or {},
        reference=str(plan.get("reference") or ""),
        answers=plan.get("answers") or {},
        judged=str(plan.get("judged") or "validation"),
    )


def _read(path: Path, planned: Sequence[Key]) -> "DataFrame":
    """Return the planned cells' rows of a CSV file, indexed and in the order of the plan.

    A file that is absent has no rows, because nothing has run yet.
    """
    from pandas import DataFrame

    columns, rows = _READ[path.name], list[list[Any]]()
    if path.exists():
        with path.open(encoding="utf-8", newline="") as file:
            reader: csv.DictReader[str] = csv.DictReader(file)
            there = {*(reader.fieldnames or ()), *_LATER}
            if lacking := [name for name in COLUMNS[path.name] if name not in there]:
                raise RunError(
                    f"{path}: has no column {', '.join(lacking)}; run the comparison again"
                )
            for row in reader:
                try:
                    rows.append([_value(name, row.get(name, "")) for name in columns])
                except (ValueError, TypeError, AttributeError) as error:
                    raise RunError(
                        f"{path}: line {reader.line_num} is damaged ({error}); run the comparison "
                        "again"
                    ) from error
    place = {key: number for number, key in enumerate(planned)}
    key = [name for name in columns if name in ("setting", "method", *_INTEGERS)]
    kept = [row for row in rows if tuple(row[:3]) in place]
    kept.sort(key=lambda row: place[row[0], row[1], row[2]])
    table = DataFrame(kept, columns=columns).set_index(key)
    return table[~table.index.duplicated(keep="last")]


def _value(column: str, text: str) -> str | int | float:
    """Return a field of a CSV file; NaN for a number that is empty or not finite."""
    if column in _TEXTS:
        return text
    if column in _INTEGERS:
        return int(text)
    number = float(text) if text.strip() else math.nan
    return number if math.isfinite(number) else math.nan
