"""Our settings and methods -> the paper's numbers."""

import re
from pathlib import Path

import pytest

from fedapp.core.errors import DataError
from fedapp.experiment.preset_files import method_presets
from fedapp.reports.comparison.paper import (
    COST,
    NAMES,
    OTHERS,
    TABLES,
    UNLIKE,
    PaperNumbers,
    Printed,
    read_printed,
)
from fedapp.reports.comparison.record import ComparisonRecord
from fedapp.reports.comparison.style import parameters
from fedapp.reports.comparison.sweep import sweeps
from fedapp.tools.compare.grid import read_grid
from tests.reports.comparison.synthetic import result, written

PRINTED = read_printed()
TABLE_OF = {
    ("I", "FashionMNIST", "fashion_mnist"): [m for m in NAMES if not re.search("_(en|ta)$", m)],
    ("II", "CIFAR10", "cifar10"): [m for m in NAMES if not re.search("_(en|ta)$", m)],
    ("III", "FashionMNIST", "fashion_mnist"): ["um_pfssl", "um_pfssl_en", "um_pfssl_ta"],
    ("III", "CIFAR10", "cifar10"): ["um_pfssl", "um_pfssl_en", "um_pfssl_ta"],
    ("VI", "PathMNIST", "pathmnist"): ["fixavg", "fixprox", "fixbn", "fedper", "lg_fedavg"],
    ("VII", "OrganAMNIST", "organamnist"): ["fixavg", "pfedme", "um_pfssl"],
}


def comparison(
    out: Path, settings: list[str], methods: list[str], dataset: str = "fashion_mnist", **plan
) -> ComparisonRecord:
    alphas = {s: parameters(s)[0].get("alpha", 0.5) for s in settings}
    rows = [
        result(s, m, 0, 0.5, dataset=dataset, alpha=alphas[s]) for s in settings for m in methods
    ]
    return written(out, rows, **plan)


# --- the file -------------------------------------------------------------------------------------


def test_the_file_says_where_its_numbers_come_from():
    head = [line for line in TABLES.read_text().splitlines() if line.startswith("#")]
    for name in ("Shi", "FedSiam", "FedUL", "FlexProtoFSSL", "percent"):
        assert any(name in line for line in head), name


def test_every_value_is_a_number_and_stands_once():
    keys = [(r.paper, r.table, r.dataset, r.setting, r.method, r.metric) for r in PRINTED]
    assert len(set(keys)) == len(keys) > 600
    assert all(float(row.value) >= 0 for row in PRINTED)


def test_a_number_read_off_the_paper():
    """Table I, Fashion-MNIST, alpha = 0.5, last row."""
    place = ("UM-pFSSL", "I", "FashionMNIST", "alpha=0.5", "UM-pFSSL", "best_test_acc")
    assert Printed(*place, "79.00") in PRINTED


def test_a_damaged_file_is_named(tmp_path):
    path = tmp_path / "paper_tables.csv"
    with pytest.raises(DataError, match=r"paper_tables\.csv: cannot be read"):
        read_printed(path)
    path.write_text("paper,table\nUM-pFSSL,I\n")
    with pytest.raises(DataError, match=r"paper_tables\.csv: cannot be read"):
        read_printed(path)


# --- the mapping ----------------------------------------------------------------------------------


def test_every_mapped_name_is_a_preset_of_ours_and_a_row_of_the_papers():
    theirs = {row.method for row in PRINTED if row.paper == "UM-pFSSL"}
    assert set(NAMES) <= set(method_presets())
    assert set(NAMES.values()) <= theirs
    assert theirs - set(NAMES.values()) == {"UM-pFSSL EN+TA"}  # um_pfssl, in Table III


@pytest.mark.parametrize("table", TABLE_OF, ids=lambda table: f"{table[0]}-{table[1]}")
def test_every_number_of_a_table_is_found(tmp_path, table):
    number, dataset, ours = table
    settings = ["alpha=0.5", "alpha=1", "alpha=5", "alpha=10"]
    paper = {"table": number, "dataset": dataset}
    found = PaperNumbers(
        comparison(tmp_path, settings, TABLE_OF[table], ours, paper=paper), PRINTED
    )
    rows = {
        (r.setting, r.method): r.value
        for r in PRINTED
        if (r.paper, r.table, r.dataset) == ("UM-pFSSL", number, dataset)
    }
    for setting in settings:
        for method in TABLE_OF[table]:
            name = "UM-pFSSL EN+TA" if (number, method) == ("III", "um_pfssl") else NAMES[method]
            assert found.find(setting, method) == rows[setting, name]


@pytest.mark.parametrize("table", ["IV", "V"])
def test_a_sweep_is_found_as_settings_and_as_methods(tmp_path, table):
    rows = {
        (r.setting, r.metric): r.value for r in PRINTED if (r.paper, r.table) == ("UM-pFSSL", table)
    }
    values = [setting for setting, metric in rows if metric == "best_test_acc"]
    assert len(values) == 5
    paper = {"table": table, "dataset": "FashionMNIST"}
    behind = {"paper": {"base": paper}, "presets": dict.fromkeys(values, "um_pfssl")}
    cases = [
        (comparison(tmp_path / "a", values, ["um_pfssl"], paper=paper), ("{}", "um_pfssl")),
        (comparison(tmp_path / "b", ["alpha=0.5"], values, paper=paper), ("alpha=0.5", "{}")),
        (comparison(tmp_path / "c", ["base"], values, **behind), ("base", "{}")),
    ]
    for made, (setting, method) in cases:
        numbers = PaperNumbers(made, PRINTED)
        for value in values:
            place = setting.format(value), method.format(value)
            assert numbers.find(*place) == rows[value, "best_test_acc"]
            assert numbers.find(*place, COST) == rows[value, "relative_cost_percent"]


def test_another_alpha_has_no_number_in_a_sweep_at_one_half(tmp_path):
    paper = {"table": "IV", "dataset": "FashionMNIST"}
    made = comparison(tmp_path, ["alpha=5"], ["nu=5"], paper=paper)
    assert PaperNumbers(made, PRINTED).find("alpha=5", "nu=5") is None


def test_alpha_is_read_off_the_runs_where_the_name_does_not_say_it(tmp_path):
    paper = {"base": {"table": "I", "dataset": "FashionMNIST", "paper": "UM-pFSSL"}}
    made = written(tmp_path, [result("base", "fixavg", 0, 0.5, alpha=10.0)], paper=paper)
    assert PaperNumbers(made, PRINTED).find("base", "fixavg") == "79.59"


def test_tables_may_differ_by_setting(tmp_path):
    tables = {
        "a": {"table": "I", "dataset": "FashionMNIST", "setting": "alpha=5"},
        "b": {"table": "III", "setting": "alpha=1", "dataset": "FashionMNIST"},
        "c": None,
    }
    for number, paper in enumerate([tables, {"by_setting": tables}]):
        made = comparison(tmp_path / str(number), ["a", "b", "c"], ["um_pfssl"], paper=paper)
        numbers = PaperNumbers(made, PRINTED)
        found = [numbers.find(setting, "um_pfssl") for setting in "abc"]
        assert found == ["81.16", "80.93", None]
        assert numbers.asked


@pytest.mark.parametrize(
    ("paper", "dataset", "method"),
    [
        (None, "fashion_mnist", "fixavg"),
        ({"alpha=0.5": None}, "fashion_mnist", "fixavg"),
        ({"table": "I", "dataset": "FashionMNIST"}, "fashion_mnist", "um_pfssl_mi"),  # ours
        ({"table": "I", "dataset": "FashionMNIST"}, "fashion_mnist", "local_only"),  # not printed
        ({"table": "I", "dataset": "FashionMNIST"}, "fashion_mnist", "nu=5"),  # of another table
        ({"table": "I", "dataset": "FashionMNIST"}, "cifar10", "fixavg"),  # ran on other data
        ({"table": "XX", "dataset": "FashionMNIST"}, "fashion_mnist", "fixavg"),
    ],
)
def test_what_the_paper_does_not_have_is_none(tmp_path, paper, dataset, method):
    made = comparison(tmp_path, ["alpha=0.5"], [method], dataset, paper=paper)
    assert PaperNumbers(made, PRINTED).find("alpha=0.5", method) is None


def test_no_table_asked_for():
    numbers = PaperNumbers(
        ComparisonRecord(Path(), "", ["a"], ["b"], [0], {}, {}, {}, paper={"a": None}), PRINTED
    )
    assert not numbers.asked


# --- names that are values ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "values", "rest"),
    [
        ("nu=5", {"nu": 5.0}, ""),
        ("tau=0.05", {"tau": 0.05}, ""),
        ("lr=1e-4", {"lr": 1e-4}, ""),
        ("um_pfssl, F = 30", {"F": 30.0}, "um_pfssl"),
        ("fashion_mnist alpha=0.5 M=3", {"alpha": 0.5, "M": 3.0}, "fashion_mnist"),
        ("um_pfssl", {}, "um_pfssl"),
        ("corr=published", {}, "corr=published"),
        ("method.update_every=5", {"method.update_every": 5.0}, ""),
    ],
)
def test_the_parameters_that_a_name_gives(name, values, rest):
    assert parameters(name) == (values, rest)


def test_a_sweep_over_settings_has_a_line_per_method(tmp_path):
    made = comparison(tmp_path, ["nu=10", "nu=1"], ["um_pfssl", "um_pfssl_mi"])
    (found,) = sweeps(made)
    assert (found.parameter, list(found.values)) == ("nu", [1.0, 10.0])
    assert found.lines["", "um_pfssl"] == {10.0: ("nu=10", "um_pfssl"), 1.0: ("nu=1", "um_pfssl")}
    assert list(found.lines) == [("", "um_pfssl"), ("", "um_pfssl_mi")]


def test_a_sweep_over_methods_has_a_line_per_setting(tmp_path):
    made = comparison(tmp_path, ["alpha=0.5", "alpha=5"], ["M=3", "M=5"])
    (found,) = sweeps(made)
    assert found.parameter == "M"
    assert list(found.lines) == [("alpha=0.5", ""), ("alpha=5", "")]


def test_one_line_needs_no_name_and_the_split_is_no_parameter(tmp_path):
    (found,) = sweeps(comparison(tmp_path / "a", ["base"], ["F=0", "F=30"]))
    assert list(found.lines) == [("", "")]
    assert sweeps(comparison(tmp_path / "b", ["alpha=0.5", "alpha=5"], ["fixavg"])) == []
    assert sweeps(comparison(tmp_path / "c", ["nu=5"], ["fixavg"])) == []


@pytest.mark.parametrize(("setting", "method", "value"), [
    ("IID", "fedsiam_d", "97.22"),
    ("Non-IID-I", "fedsiam_d", "95.61"),
    ("Non-IID-I", "fedavg", "88.66"),
    ("IID", "fedsem", "96.49"),
    ("IID", "fedmatch", None),  # not what the paper describes
    ("IID", "um_pfssl", None),
])  # fmt: skip
def test_fedsiams_numbers_are_found_by_the_words_of_a_setting(tmp_path, setting, method, value):
    of = {"paper": "FedSiam", "table": "5", "dataset": "MNIST"}
    papers = {name: {**of, "setting": f"{name} gamma=0.10"} for name in ("IID", "Non-IID-I")}
    found = comparison(
        tmp_path, ["IID", "Non-IID-I"], [method], dataset="mnist", paper={"by_setting": papers}
    )
    assert PaperNumbers(found, PRINTED).find(setting, method) == value
    assert PaperNumbers(found, PRINTED).find(setting, method, COST) is None


@pytest.mark.parametrize(("setting", "method", "value"), [
    ("IID clients=5 sets=10", "fedul", "99.22"),  # an error of 0.78 %
    ("IID clients=5 sets=10", "fedavg_tenth", "98.21"),
    ("Non-IID clients=5 sets=10", "fedul", "97.02"),
    ("Non-IID clients=5 sets=10", "fedllp_vat", "76.61"),
    ("IID clients=5 sets=10", "fedavg", None),
])  # fmt: skip
def test_feduls_errors_are_shown_as_accuracies(tmp_path, setting, method, value):
    of = {"paper": "FedUL", "table": "1", "dataset": "MNIST"}
    settings = ["IID clients=5 sets=10", "Non-IID clients=5 sets=10"]
    found = comparison(tmp_path, settings, [method], dataset="mnist", paper=of)
    assert PaperNumbers(found, PRINTED).find(setting, method) == value


@pytest.mark.parametrize(("setting", "method", "value"), [
    ("IID", "fedavg", "62.2"),  # printed under "IID labelled only"
    ("IID", "fixavg", "63.4"),
    ("IID", "protofssl", "66.3"),
    ("Non-IID", "flexproto", "68.1"),
    ("IID", "flexproto_bn", "71.7"),
    ("Non-IID", "flexproto_bn_prox", "71.5"),
    ("Non-IID", "fedavg", None),
    ("IID", "mixmatch_avg", None),
])  # fmt: skip
def test_flexprotos_numbers_are_found(tmp_path, setting, method, value):
    of = {"paper": "FlexProtoFSSL", "table": "1", "dataset": "CIFAR10"}
    papers = {"IID": of, "Non-IID": {**of, "setting": "Non-IID alpha=0.01"}}
    found = comparison(
        tmp_path, ["IID", "Non-IID"], [method], dataset="cifar10", paper={"by_setting": papers}
    )
    assert PaperNumbers(found, PRINTED).find(setting, method) == value
    assert "500 rounds" in PaperNumbers(found, PRINTED).sizes


def test_flexprotos_table_2_calls_fixmatch_by_another_name(tmp_path):
    of = {"paper": "FlexProtoFSSL", "table": "2", "dataset": "CIFAR10"}
    setting = "100:440 Non-IID"
    found = comparison(tmp_path, [setting], ["fedavg", "fixavg"], dataset="cifar10", paper=of)
    numbers = PaperNumbers(found, PRINTED)
    assert [numbers.find(setting, m) for m in ("fedavg", "fixavg")] == ["67.5", "68.6"]


@pytest.mark.parametrize("sweep", [
    "fedsiam_mnist", "fedul_table1_mnist", "fedul_table1_mnist_sets", "fedul_table1_cifar10",
    "fedul_table1_cifar10_sets", "fedul_noise", "flexproto_table1", "flexproto_table2",
    "flexproto_table1_svhn", "flexproto_table4",
])  # fmt: skip
def test_every_number_that_a_sweep_can_show_is_found(tmp_path, sweep):
    """As often as one of its settings meets one of its methods that the paper's table has."""
    grid = read_grid(sweep)
    papers = {s.name: s.paper.model_dump() for s in grid.settings if s.paper}
    of = next(iter(papers.values()))
    for name, paper in papers.items():
        paper["setting"] = paper["setting"] or name
    found = PaperNumbers(
        comparison(tmp_path, [*papers], [*grid.methods], of["dataset"], paper=papers), PRINTED
    )
    shown = {(s, m) for s in papers for m in grid.methods if found.find(s, m) is not None}
    ours = {OTHERS[of["paper"]].get(m) for m in grid.methods}
    names = {"FixMatch-FedAvg": "FixMatch"}
    settings = {paper["setting"] for paper in papers.values()}
    printed = [
        r for r in PRINTED
        if (r.paper, r.table, r.dataset) == (of["paper"], of["table"], of["dataset"])
        and r.setting.removesuffix(" labelled only") in settings
        and names.get(r.method, r.method) in ours
    ]  # fmt: skip
    assert len(shown) == len(printed) > 0


def test_every_name_of_another_paper_is_a_method_of_its_tables():
    for paper, names in OTHERS.items():
        theirs = {row.method for row in PRINTED if row.paper == paper}
        assert set(names.values()) <= theirs
    for (paper, table), (names, why) in UNLIKE.items():
        assert why
        of_table = {r.method for r in PRINTED if (r.paper, r.table) == (paper, table)}
        assert set(names.values()) <= of_table


def test_all_rows_of_fedsiams_table_6_are_not_comparable(tmp_path):
    rows = {r.method for r in PRINTED if (r.paper, r.table) == ("FedSiam", "6")}
    assert set(UNLIKE["FedSiam", "6"][0].values()) == rows
    of = {"paper": "FedSiam", "table": "6", "dataset": "SVHN"}
    setting = "labels-at-server IID gamma=0.01"
    found = comparison(tmp_path, [setting], ["fedsiam_pi"], dataset="mnist", paper=of)
    assert PaperNumbers(found, PRINTED).unlike(setting, "fedsiam_pi") is None  # other images


def test_a_preset_under_another_label_is_not_what_the_paper_ran(tmp_path):
    of = {"paper": "FlexProtoFSSL", "table": "1", "dataset": "CIFAR10"}
    plan = {"paper": of, "presets": {"prototypes_alone": "flexproto"}}
    found = comparison(tmp_path, ["IID"], ["prototypes_alone"], dataset="cifar10", **plan)
    assert PaperNumbers(found, PRINTED).find("IID", "prototypes_alone") is None
