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
    other = comparison(
        tmp_path, ["alpha=5"], values, paper={"table": table, "dataset": "FashionMNIST"}
    )
    assert PaperNumbers(other, PRINTED).find("alpha=5", values[0]) is None  # the table has 0.5
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
    numbers = PaperNumbers(made, PRINTED)
    assert numbers.find("alpha=0.5", method) is None
    assert numbers.asked == bool(paper and "table" in paper)


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


@pytest.mark.parametrize(
    ("settings", "methods", "parameter", "lines"),
    [
        (["nu=10", "nu=1"], ["um_pfssl", "um_pfssl_mi"], "nu",
         [("", "um_pfssl"), ("", "um_pfssl_mi")]),
        (["alpha=0.5", "alpha=5"], ["M=3", "M=5"], "M", [("alpha=0.5", ""), ("alpha=5", "")]),
        (["base"], ["F=0", "F=30"], "F", [("", "")]),  # one line needs no name
        (["alpha=0.5", "alpha=5"], ["fixavg"], "", []),  # the split is no parameter
        (["nu=5"], ["fixavg"], "", []),
    ],
)  # fmt: skip
def test_a_sweep_has_a_line_for_each_other_part_of_the_names(
    tmp_path, settings, methods, parameter, lines
):
    found = sweeps(comparison(tmp_path, settings, methods))
    assert [one.parameter for one in found] == [parameter] * bool(parameter)
    for one in found:
        assert list(one.lines) == lines and list(one.values) == sorted(one.values)
        for line in one.lines.values():
            for value, (setting, method) in line.items():
                assert f"{parameter}={value:g}" in (setting, method)


OTHERS_NUMBERS = {
    ("FedSiam", "5", "mnist"): {
        ("IID gamma=0.10", "fedsiam_d"): "97.22",
        ("Non-IID-I gamma=0.10", "fedsiam_d"): "95.61",
        ("Non-IID-I gamma=0.10", "fedavg"): "88.66",
        ("IID gamma=0.10", "fedsem"): "96.49",
        ("IID gamma=0.10", "fedmatch"): None,  # not what the paper describes
        ("IID gamma=0.10", "um_pfssl"): None,
    },
    ("FedUL", "1", "mnist"): {
        ("IID clients=5 sets=10", "fedul"): "99.22",  # an error of 0.78 %
        ("IID clients=5 sets=10", "fedavg_tenth"): "98.21",
        ("Non-IID clients=5 sets=10", "fedul"): "97.02",
        ("Non-IID clients=5 sets=10", "fedllp_vat"): "76.61",
        ("IID clients=5 sets=10", "fedavg"): None,
    },
    ("FlexProtoFSSL", "1", "cifar10"): {
        ("IID", "fedavg"): "62.2",  # printed under "IID labelled only"
        ("IID", "fixavg"): "63.4",
        ("IID", "protofssl"): "66.3",
        ("Non-IID alpha=0.01", "flexproto"): "68.1",
        ("IID", "flexproto_bn"): "71.7",
        ("Non-IID alpha=0.01", "flexproto_bn_prox"): "71.5",
        ("Non-IID alpha=0.01", "fedavg"): None,
        ("IID", "mixmatch_avg"): None,
        ("IID", "prototypes_alone"): None,  # under another label: not what the paper ran
    },
    ("FlexProtoFSSL", "2", "cifar10"): {
        ("100:440 Non-IID", "fedavg"): "67.5",
        ("100:440 Non-IID", "fixavg"): "68.6",  # called FixMatch-FedAvg there
    },
}
"""By paper, table and data set: numbers read off the page, by setting and method."""


@pytest.mark.parametrize(("paper", "table", "dataset"), OTHERS_NUMBERS)
@pytest.mark.parametrize("named_by", ["itself", "comparison.json"])
def test_numbers_of_other_papers_are_found_by_the_words_of_a_setting(
    tmp_path, paper, table, dataset, named_by
):
    wanted = OTHERS_NUMBERS[paper, table, dataset]
    of = {"paper": paper, "table": table, "dataset": dataset}
    names = {s: s if named_by == "itself" else f"ours {k}" for k, (s, _) in enumerate(wanted)}
    papers = {ours: {**of, "setting": theirs} for theirs, ours in names.items()}
    plan = of if named_by == "itself" else {"by_setting": papers}
    methods = list(dict.fromkeys(method for _, method in wanted))
    made = comparison(tmp_path, [*papers], methods, dataset, paper=plan,
                      presets={"prototypes_alone": "flexproto"})  # fmt: skip
    numbers = PaperNumbers(made, PRINTED)
    assert {at: numbers.find(names[at[0]], at[1]) for at in wanted} == wanted
    assert all(numbers.find(names[s], m, COST) is None for s, m in wanted)
    assert ("500 rounds" in numbers.sizes) == (paper == "FlexProtoFSSL")


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
