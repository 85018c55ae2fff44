"""Numbers printed in papers, to be read beside ours: `conf/paper_tables.csv`, in percent.

The comparison.json of a comparison names the table to read: `{"table": "I", "dataset":
"FashionMNIST"}`, or such a mapping for each setting (directly or under `"by_setting"`), in which
`"setting"` may give the table's name of the setting.

A number is found by alpha and by the values in the names of setting and method, so that "nu=5" may
be a setting or a method. In a table of another paper, named by `"paper"`, a number is found by the
values and the words of the setting, as in "IID gamma=0.10", and by the method's own label: a preset
under another label is not what the paper ran. An error that a paper prints is shown as 100 less the
error.
"""

import csv
import math
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
"""Metric of the UM-pFSSL paper: the best mean test accuracy over rounds, in percent."""
OTHERS_BEST = "test_acc"
"""Metric of other papers: test accuracy, in percent."""
ERROR = "test_error"
"""Metric of papers that print errors, in percent."""
COST = "relative_cost_percent"
"""Metric: models sent, in percent of the most expensive setting of the table."""

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
"""Names of methods in other papers, by paper and label of the method."""
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
"""By paper and table: rows that have a method's name but are not comparable with it, and the reason
(docs/research/labels_at_the_server.md)."""
_SAME = {"FixMatch-FedAvg": "FixMatch"}
"""A second name of a method in FlexProtoFSSL's tables."""
_LABELLED = " labelled only"
"""FlexProtoFSSL adds this to the setting of methods that learn from labelled images only."""

_BOTH_TERMS = "UM-pFSSL EN+TA"
"""The whole method's name in Table III, the ablation of the relation's two terms."""
_AT_ALPHA_HALF = {"IV", "V"}
"""Tables whose settings do not name alpha, because it is 0.5 in all of them (Sec. VI-D)."""

SIZES = {
    PAPER: "100 sites (20 for the medical sets), 200 rounds, full data sets, no spread given",
    FEDSIAM: "100 sites, 50 rounds with labels at the clients, full data sets, means of 3 runs",
    FLEXPROTO: "100 sites, 500 rounds, 54,000 training images, runs and spread not said",
    FEDUL: "5 sites, 100 rounds, full data sets, means of 3 runs",
}
"""The size of the runs in each paper."""

TABLES = CONF / "paper_tables.csv"


@dataclass(frozen=True)
class Printed:
    """One row of the CSV file. `value` is a text, which keeps the decimals that were printed."""

    paper: str
    table: str
    dataset: str
    setting: str
    method: str
    metric: str
    value: str


def read_printed(path: Path = TABLES) -> list[Printed]:
    """Return all rows of the file. Lines that begin with # are comments on the sources.

    Raises DataError where the file is absent or damaged.
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
        results = comparison.results.groupby(level="setting").last()
        self._datasets, self._alphas = results["dataset"].to_dict(), results["alpha"].to_dict()
        self._values = {
            (r.paper, r.table, _plain(r.dataset), *_place(r.setting), r.method, r.metric): r.value
            for r in map(_as_asked, printed)
        }

    @property
    def asked(self) -> bool:
        """Whether comparison.json names a table for any setting."""
        return any(wanted.get("table") for wanted in self._wanted.values())

    @property
    def sizes(self) -> str:
        """The size of the runs in the papers whose tables are named."""
        papers = {str(w.get("paper", PAPER)) for w in self._wanted.values() if w.get("table")}
        return "; ".join(SIZES[paper] for paper in SIZES if paper in papers)

    def find(self, setting: str, method: str, metric: str = BEST) -> str | None:
        """Return the number as printed, in percent; None where there is no comparable one.

        There is none where the cells ran on another data set than the table's, or where `unlike`
        has a number.
        """
        wanted = self._wanted.get(setting, {})
        table, dataset = str(wanted.get("table", "")), _plain(str(wanted.get("dataset", "")))
        if not table or not self._same_data(setting):
            return None
        paper = str(wanted.get("paper", PAPER))
        if paper != PAPER:
            if method in UNLIKE.get((paper, table), ({}, ""))[0]:
                return None
            # Found by its own name only: a preset under another name is a variant of the paper's.
            return self._other(setting, OTHERS.get(paper, {}).get(method, ""), metric)
        swept, rest = parameters(method)
        alpha = self._alphas.get(setting)
        values = {} if alpha is None or math.isnan(alpha) else {"alpha": alpha}
        values |= parameters(str(wanted.get("setting", setting)))[0] | swept
        if table in _AT_ALPHA_HALF and values.get("alpha") == 0.5:
            del values["alpha"]
        name = NAMES.get(self._presets.get(method, rest)) or rest or PAPER
        if table == "III" and name == PAPER:
            name = _BOTH_TERMS
        place = (frozenset(values.items()), "")
        return self._values.get((paper, table, dataset, *place, name, metric))

    def unlike(self, setting: str, method: str) -> tuple[str, str] | None:
        """Return a number of the same name that is not comparable, and the reason, if any."""
        wanted = self._wanted.get(setting, {})
        if not self._same_data(setting):
            return None
        table = str(wanted.get("paper", PAPER)), str(wanted.get("table", ""))
        names, why = UNLIKE.get(table, ({}, ""))
        value = self._other(setting, names.get(method, ""), BEST)
        return None if value is None else (value, why)

    def _same_data(self, setting: str) -> bool:
        """Return whether the setting's cells, if any, have the data set of the table."""
        dataset = _plain(str(self._wanted.get(setting, {}).get("dataset", "")))
        return setting not in self._datasets or _plain(self._datasets[setting]) == dataset

    def _other(self, setting: str, name: str, metric: str) -> str | None:
        """Return a number of another paper, by the name that the method has there."""
        wanted = self._wanted.get(setting, {})
        paper, table = str(wanted.get("paper", PAPER)), str(wanted.get("table", ""))
        place = _place(str(wanted.get("setting", setting)))
        metric = OTHERS_BEST if metric == BEST else metric
        dataset = _plain(str(wanted.get("dataset", "")))
        return self._values.get((paper, table, dataset, *place, name, metric))


def _wanted(paper: Mapping[str, Any], setting: str) -> Mapping[str, Any]:
    """Return the part of comparison.json's `paper` that belongs to a setting."""
    own = (paper.get("by_setting") or paper).get(setting)
    return {**paper, **own} if isinstance(own, Mapping) else paper


def _as_asked(printed: Printed) -> Printed:
    """Return a row with the names that `find` uses, and with an error turned into an accuracy."""
    if printed.metric == ERROR:
        return replace(printed, metric=OTHERS_BEST, value=str(100 - Decimal(printed.value)))
    if printed.paper == FLEXPROTO:
        name = _SAME.get(printed.method, printed.method)
        return replace(printed, method=name, setting=printed.setting.removesuffix(_LABELLED))
    return printed


def _place(setting: str) -> tuple[frozenset[tuple[str, float]], str]:
    """Return the values and the words of a setting's name; tau=1 and tau=1.0 are the same."""
    values, words = parameters(setting)
    return frozenset(values.items()), words


def _plain(name: str) -> str:
    """Return a name such that FashionMNIST and fashion_mnist are the same."""
    return "".join(filter(str.isalnum, name)).casefold()
