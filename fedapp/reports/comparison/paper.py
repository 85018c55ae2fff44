"""The paper's own numbers, to be read beside ours: `conf/paper_tables.csv`, as printed, in percent.

Which table belongs to a comparison stands in its comparison.json: `{"table": "I", "dataset":
"FashionMNIST"}`, or such a mapping by setting (directly or under `"by_setting"`), where `"setting"`
may name the table's. A number is found by alpha and by the values that setting and method are named
after, so that "nu=5" may be a setting or a method. In another paper's table, named by `"paper"`, it
is found by the setting's values and words, as in "IID gamma=0.10", and by the method's own label: a
preset under another label is not what the paper ran. Of a paper that prints errors it is 100 less
the error.
"""

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

from fedapp.core.errors import DataError
from fedapp.experiment.preset_files import CONF
from fedapp.reports.comparison.record import ComparisonRecord
from fedapp.reports.comparison.style import NAMES, parameters

PAPER, FEDSIAM, FLEXPROTO, FEDUL = "UM-pFSSL", "FedSiam", "FlexProtoFSSL", "FedUL"
BEST = "best_test_acc"
"""The paper's headline: the best mean test accuracy over rounds, chosen by test accuracy; %."""
OTHERS_BEST = "test_acc"
"""What it is called of other papers."""
ERROR = "test_error"
"""Of papers that print errors; %."""
COST = "relative_cost_percent"
"""Models sent, in % of those of the table's dearest setting."""

OTHERS: Mapping[str, Mapping[str, str]] = {
    FEDSIAM: {
        "fedavg": "FedAvg",
        "fedavg_plus": "FedAvg++",
        "fedsem": "FedSem",
        "fedsiam_pi": "FedSiam-Pi",
        "fedsiam_mt": "FedSiam-MT",
        "fedsiam_d": "FedSiam-D",
    },
    FLEXPROTO: {
        "fedavg": "FedAvg",
        "fedprox": "FedProx",
        "fixavg": "FixMatch",
        "fedmatch": "FedMatch",
        "rscfed": "RSCFed",
        "fedrgd": "FedRGD",
        "protofssl": "ProtoFSSL-FedAvg",
        "protofssl_prox": "ProtoFSSL-FedProx",
        "flexproto": "FlexProtoFSSL-FedAvg",
        "flexproto_prox": "FlexProtoFSSL-FedProx",
        "flexproto_bn": "FlexProtoFSSL(BN)-FedAvg",
        "flexproto_bn_prox": "FlexProtoFSSL(BN)-FedProx",
    },
    FEDUL: {
        "fedul": "FedUL",
        "fedpl": "FedPL",
        "fedllp": "FedLLP",
        "fedllp_vat": "FedLLP-VAT",
        "fedavg_tenth": "FedAvg 10%",
    },
}
"""The same of other papers, by label."""
UNLIKE: Mapping[tuple[str, str], tuple[Mapping[str, str], str]] = {
    (FEDSIAM, "5"): (
        {"fedfixmatch": "FedFixMatch", "fedmatch": "FedMatch"},
        "in the paper's released code these two learn nothing from unlabelled images",
    ),
    (FEDSIAM, "6"): (
        {
            "fedfixmatch": "FedFixMatch",
            "fedmatch": "FedMatch",
            "fedsiam_pi": "FedSiam-Pi",
            "fedsiam_mt": "FedSiam-MT",
        },
        "in the paper's released code the sites never see their own images",
    ),
}
"""Rows of other papers, by paper and table, that bear a method's name and are not that method; and
why: docs/research/labels_at_the_server.md."""
_SAME = {"FixMatch-FedAvg": "FixMatch"}
"""A method that FlexProtoFSSL's tables call by two names."""
_LABELLED = " labelled only"
"""What that paper adds to the setting of methods that learn from labelled images alone."""

_BOTH_TERMS = "UM-pFSSL EN+TA"
"""What Table III, the ablation of the relation's two terms, calls the whole method."""
_AT_ALPHA_HALF = {"IV", "V"}
"""Tables whose settings do not name alpha: it is 0.5 (Sec. VI-D)."""

SIZES = {
    PAPER: "100 sites (20 for the medical sets), 200 rounds, full data sets, no spread given",
    FEDSIAM: "100 sites, 50 rounds with labels at the clients, full data sets, means of 3 runs",
    FLEXPROTO: "100 sites, 500 rounds, 54,000 training images, runs and spread not said",
    FEDUL: "5 sites, 100 rounds, full data sets, means of 3 runs",
}
"""How large the papers' runs were."""

TABLES = CONF / "paper_tables.csv"


@dataclass(frozen=True)
class Printed:
    """One number: row of the CSV file, `value` as text to keep the decimals that were printed."""

    paper: str
    table: str
    dataset: str
    setting: str
    method: str
    metric: str
    value: str


def read_printed(path: Path = TABLES) -> list[Printed]:
    """Return every number of the file; lines that begin with # say where they come from.

    Raises DataError where the file is absent or not as it ships.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            lines = csv.DictReader(line for line in file if not line.startswith("#"))
            return [Printed(**row) for row in lines]
    except (OSError, TypeError) as error:
        raise DataError(f"{path}: cannot be read ({error}); install the project again") from error


class PaperNumbers:
    """The numbers that belong to a comparison's settings and methods."""

    def __init__(self, comparison: ComparisonRecord, printed: Iterable[Printed]) -> None:
        self._wanted = {s: _wanted(comparison.paper, s) for s in comparison.settings}
        self._presets = comparison.presets
        self._of_setting = {key[0]: cell for key, cell in comparison.cells.items()}
        self._values = {
            (r.paper, r.table, _plain(r.dataset), *_place(r.setting), r.method, r.metric): r.value
            for r in map(_as_asked, printed)
        }

    @property
    def asked(self) -> bool:
        """Whether the comparison names a table for any of its settings."""
        return any(wanted.get("table") for wanted in self._wanted.values())

    @property
    def sizes(self) -> str:
        """How large the runs were of the papers whose tables are asked for."""
        papers = {str(w.get("paper", PAPER)) for w in self._wanted.values() if w.get("table")}
        return "; ".join(SIZES[paper] for paper in SIZES if paper in papers)

    def find(self, setting: str, method: str, metric: str = BEST) -> str | None:
        """Return the number as printed, in percent; None where the paper has none to compare with.

        It has none where the cells ran on another data set than the table's. See `unlike` too.
        """
        wanted, cell = self._wanted.get(setting, {}), self._of_setting.get(setting)
        table, dataset = str(wanted.get("table", "")), _plain(str(wanted.get("dataset", "")))
        if not table or (cell and _plain(cell.dataset) != dataset):
            return None
        paper = str(wanted.get("paper", PAPER))
        if paper != PAPER:
            if method in UNLIKE.get((paper, table), ({}, ""))[0]:
                return None
            # By its own name alone: a preset under another name is a variant of the paper's.
            return self._other(setting, OTHERS.get(paper, {}).get(method, ""), metric)
        swept, rest = parameters(method)
        alpha = cell.numbers["alpha"] if cell else None
        values = {} if alpha is None else {"alpha": alpha}
        values |= parameters(str(wanted.get("setting", setting)))[0] | swept
        if table in _AT_ALPHA_HALF and values.get("alpha") == 0.5:
            del values["alpha"]
        name = NAMES.get(self._presets.get(method, rest)) or rest or PAPER
        if table == "III" and name == PAPER:
            name = _BOTH_TERMS
        place = (frozenset(values.items()), "")
        return self._values.get((paper, table, dataset, *place, name, metric))

    def unlike(self, setting: str, method: str) -> tuple[str, str] | None:
        """Return a number of the same name that is not comparable, and why; None: there is none."""
        wanted, cell = self._wanted.get(setting, {}), self._of_setting.get(setting)
        if cell and _plain(cell.dataset) != _plain(str(wanted.get("dataset", ""))):
            return None
        table = str(wanted.get("paper", PAPER)), str(wanted.get("table", ""))
        names, why = UNLIKE.get(table, ({}, ""))
        value = self._other(setting, names.get(method, ""), BEST)
        return None if value is None else (value, why)

    def _other(self, setting: str, name: str, metric: str) -> str | None:
        """Return what another paper's table has in a setting under a name of its own."""
        wanted = self._wanted.get(setting, {})
        paper, table = str(wanted.get("paper", PAPER)), str(wanted.get("table", ""))
        place = _place(str(wanted.get("setting", setting)))
        metric = OTHERS_BEST if metric == BEST else metric
        dataset = _plain(str(wanted.get("dataset", "")))
        return self._values.get((paper, table, dataset, *place, name, metric))


def _wanted(paper: Mapping[str, Any], setting: str) -> Mapping[str, Any]:
    """Return which table to look in for a setting."""
    own = (paper.get("by_setting") or paper).get(setting)
    return {**paper, **own} if isinstance(own, Mapping) else paper


def _as_asked(printed: Printed) -> Printed:
    """Return a number with the names that one is asked for by, an error as an accuracy."""
    if printed.metric == ERROR:
        return replace(printed, metric=OTHERS_BEST, value=str(100 - Decimal(printed.value)))
    if printed.paper == FLEXPROTO:
        name = _SAME.get(printed.method, printed.method)
        return replace(printed, method=name, setting=printed.setting.removesuffix(_LABELLED))
    return printed


def _place(setting: str) -> tuple[frozenset[tuple[str, float]], str]:
    """Return the values and the words of a setting's name; tau=1 and tau=1.0 are one."""
    values, words = parameters(setting)
    return frozenset(values.items()), words


def _plain(name: str) -> str:
    """FashionMNIST and fashion_mnist are one."""
    return "".join(filter(str.isalnum, name)).casefold()
