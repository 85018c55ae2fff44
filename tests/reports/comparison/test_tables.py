"""The tables of a comparison against numbers worked out by hand."""

from pathlib import Path

import pytest

from fedapp.core.formatting import points
from fedapp.experiment.preset_files import method_presets
from fedapp.reports.comparison.differences import gains_table, harm, harm_table, paired_table
from fedapp.reports.comparison.paper import PaperNumbers, read_printed
from fedapp.reports.comparison.record import BEST_ALONE, ComparisonRecord
from fedapp.reports.comparison.style import featured, looks
from fedapp.reports.comparison.sweep import sweeps
from fedapp.reports.comparison.tables import (
    accuracy_table,
    answers_table,
    cost_table,
    fairness_table,
    label_table,
    paper_table,
    summary_table,
    sweep_table,
    value_table,
)
from fedapp.reports.layout import BestEntry, Table, mean_percent
from fedapp.reports.statistics import Mean
from tests.reports.comparison.synthetic import result, runs, site, written

TABLE_I = {"table": "I", "dataset": "FashionMNIST"}


def rows_of(table: Table) -> list[list[str]]:
    return [[e.text if isinstance(e, BestEntry) else e for e in row] for row in table.rows]


def column(table: Table, name: str) -> list[str]:
    return [row[list(table.columns).index(name)] for row in rows_of(table)]


def numbers_of(comparison: ComparisonRecord) -> PaperNumbers:
    return PaperNumbers(comparison, read_printed())


# --- accuracy -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mean", "planned", "text"),
    [
        (Mean(0.7891, 0.0042, 3), 3, "78.9 ± 0.4"),
        (Mean(0.7891, 0.0042, 2), 3, "78.9 ± 0.4 (n = 2)"),
        (Mean(0.7891, None, 1), 1, "78.9"),
        (None, 3, "-"),
    ],
)
def test_how_a_mean_is_written(mean, planned, text):
    assert mean_percent(mean, planned) == text


def test_accuracy_is_mean_and_sd_over_seeds_and_the_best_is_bold(tmp_path):
    rows = [*runs("a", "local_only", 0.50, 0.52, 0.54), *runs("a", "fixavg", 0.60, 0.61, 0.62)]
    table = accuracy_table(written(tmp_path, [*rows, *runs("b", "fixavg", 0.5, 0.5, 0.5)]))
    assert table.columns == ["Method", "a", "b"]
    assert table.rows == [
        ["LocalOnly", "52.0 ± 2.0", "-"],
        ["FixAvg", BestEntry("61.0 ± 1.0"), "50.0 ± 0.0"],  # of one method none is the best
    ]


def test_a_method_with_fewer_seeds_or_all_labels_is_never_the_best(tmp_path):
    rows = [
        *runs("a", "um_pfssl", 0.50, 0.51, 0.52),
        *runs("a", "fixavg", 0.4, 0.4, 0.4),
        result("a", "fixbn", 0, 0.9),  # a lucky single seed
        *runs("a", "fedavg_sl", 0.95, 0.95, 0.95),
    ]
    sites = [
        *(site("a", m, s, 0, 0.5, mu=0.5) for m in ("um_pfssl", "fixavg") for s in range(3)),
        *(site("a", "fedavg_sl", s, 0, 0.9, mu=1.0, labelled=10) for s in range(3)),
    ]
    table = accuracy_table(written(tmp_path, rows, sites))
    assert [row[0] for row in table.rows if isinstance(row[1], BestEntry)] == ["UM-pFSSL"]
    assert rows_of(table)[2] == ["FixBN", "90.0 (n = 1)"]
    assert any("With every training image labelled: FedAvg-SL." in note for note in table.notes)


def test_the_papers_number_stands_beside_the_best_over_rounds(tmp_path):
    rows = [
        result("alpha=0.5", "um_pfssl", seed, 0.75, alpha=0.5, best_test_accuracy=best,
               final_test_accuracy=0.74)
        for seed, best in enumerate([0.77, 0.79])
    ]  # fmt: skip
    made = written(tmp_path, rows, paper=TABLE_I)
    table = paper_table(made, numbers_of(made))
    assert rows_of(table) == [
        ["alpha=0.5", "UM-pFSSL", "2", "75.0 ± 0.0", "74.0 ± 0.0", "78.0 ± 1.4", "79.00", "-1.0"]
    ]
    assert any("Here: 20 sites, 20 rounds. The paper: 100 sites" in note for note in table.notes)
    other = written(tmp_path, [result("a", "um_pfssl", 0, 0.7)], paper=TABLE_I)
    table = paper_table(other, numbers_of(other))
    assert not any("aper" in column for column in table.columns)
    assert any("there is nothing to compare with" in note for note in table.notes)


@pytest.mark.parametrize(("table", "setting", "method", "value", "why"), [
    ("5", "IID gamma=0.10", "fedmatch", "94.11", "learn nothing from unlabelled images"),
    ("6", "labels-at-server IID gamma=0.01", "fedsiam_mt", "91.25", "never see their own images"),
])  # fmt: skip
def test_a_number_that_is_not_comparable_is_marked_and_no_difference_is_taken(
    tmp_path, table, setting, method, value, why
):
    paper = {"paper": "FedSiam", "table": table, "dataset": "MNIST", "setting": setting}
    rows = [result("IID", name, 0, 0.9, dataset="mnist") for name in (method, "um_pfssl")]
    made = written(tmp_path, rows, paper={"by_setting": {"IID": paper}})
    shown = paper_table(made, numbers_of(made))
    assert [row[-2:] for row in rows_of(shown)] == [[f"{value} †", "-"], ["-", "-"]]
    [note] = [note for note in shown.notes if note.startswith("†")]
    assert why in note and numbers_of(made).find("IID", method) is None


def test_every_preset_has_a_name_and_a_line_of_its_own():
    shown = looks([*method_presets(), "mix"])
    assert len({look.label for look in shown.values()}) == len(shown)
    assert len({(look.colour, look.line) for look in shown.values()}) == len(shown)
    assert featured(["a", "x", "um_pfssl"], {"x": "um_pfssl_mi"}) == ["x", "um_pfssl", "a"]


def test_a_method_under_another_name_keeps_its_colour_if_it_is_the_only_one_of_its_preset():
    plain, named = looks(["fixavg"])["fixavg"], looks(["tuned"], {"tuned": "fixavg"})["tuned"]
    assert (named.label, named.colour) == ("tuned", plain.colour)
    assert looks(["tuned", "fixavg"], {"tuned": "fixavg"})["tuned"].colour != plain.colour


# --- paired differences ---------------------------------------------------------------------------


def test_paired_differences_by_hand(tmp_path):
    """Differences 1, 2, 3 points: interval 2 -+ 4.303 / sqrt(3), p = 1 - sqrt(12 / 14) = 0.0742."""
    rows = [*runs("a", "um_pfssl", 0.70, 0.70, 0.70), *runs("a", "fixavg", 0.71, 0.72, 0.73)]
    sites = [
        *(site("a", "um_pfssl", s, k, 0.5) for s in range(3) for k in range(2)),
        *(site("a", "fixavg", s, k, 0.6 - 0.2 * k) for s in range(3) for k in range(2)),
    ]
    table = paired_table(written(tmp_path, rows, sites), "um_pfssl")
    assert table.title == "Each method less UM-pFSSL"
    assert rows_of(table) == [
        ["a", "FixAvg", "3", "+2.0", "-0.5 to +4.5", "0.074", "0.074", "3", "3", "6"]
    ]
    assert any("2.48 standard deviations" in note for note in table.notes)


def test_holm_is_over_the_methods_of_a_setting(tmp_path):
    rows = [row for setting in "ab" for row in runs(setting, "um_pfssl", 0.7, 0.7, 0.7)]
    for setting, method in (("a", "fixavg"), ("a", "fixbn"), ("b", "fixavg")):
        rows += runs(setting, method, 0.71, 0.72, 0.73)
    table = paired_table(written(tmp_path, rows), "um_pfssl")
    assert column(table, "Setting") == ["a", "a", "b"]
    assert column(table, "p") == ["0.074"] * 3
    assert column(table, "p, Holm") == ["0.148", "0.148", "0.074"]
    assert column(table, "Sites") == ["-"] * 3


def test_what_cannot_be_tested_has_dashes(tmp_path):
    """Equal to the reference in all seeds; one seed; no run of the reference."""
    rows = [*runs("a", "um_pfssl", 0.70, 0.72, 0.74), *runs("a", "fixavg", 0.70, 0.72, 0.74)]
    rows += [*runs("a", "fixbn", 0.72), *runs("b", "fixavg", 0.7)]
    table = paired_table(written(tmp_path, rows), "um_pfssl")
    assert [row[:7] for row in rows_of(table)] == [
        ["a", "FixAvg", "3", "+0.0", "-", "-", "-"],
        ["a", "FixBN", "1", "+2.0", "-", "-", "-"],
        ["b", "FixAvg", "0", "-", "-", "-", "-"],
    ]
    assert not any("What the test can tell" in note for note in table.notes)


# --- sites: harm, gains, labels -------------------------------------------------------------------


@pytest.fixture(scope="module")
def fair(tmp_path_factory) -> ComparisonRecord:
    """Two seeds, four sites: mu 0, 0.3, 0.9, and one without test images."""
    out: Path = tmp_path_factory.mktemp("fair")
    alone = [[0.2, 0.5, 0.9, None], [0.1, 0.6, 0.8, None]]
    ours = [[0.4, 0.5, 0.8, None], [0.0, 0.5, 0.7, None]]
    mus = [0.0, 0.3, 0.9, 0.9]
    rows, sites = [], []
    for method, accuracies in (("local_only", alone), ("fixavg", ours), ("fedavg_sl", alone)):
        for seed, values in enumerate(accuracies):
            rows.append(result("a", method, seed, 0.5, selected_std=0.1 + seed / 10))
            for number, (mu, value) in enumerate(zip(mus, values, strict=True)):
                all_labels = method == "fedavg_sl"
                more = {"mu": 1.0 if all_labels else mu, "labelled": 10 if all_labels else 10 * mu}
                sites.append(site("a", method, seed, number, value, **more))
    return written(out, rows, sites)


def test_harmed_sites_by_hand(fair):
    """FixAvg is lower at mu 0.9 twice, at mu 0.3 and mu 0 once each; equal is no harm."""
    overall, few, some, many = harm(fair, "a", "fixavg", BEST_ALONE)
    assert [(t.lower, t.n) for t in (overall, few, some, many)] == [(4, 6), (1, 2), (1, 2), (2, 2)]
    assert rows_of(fairness_table(fair))[1] == ["a", "FixAvg", "15.0 ± 7.1", "-", "-", "-"]
    table = harm_table(fair, BEST_ALONE)
    assert rows_of(table)[0] == [
        *("a", "FixAvg", "66.7 % (4 of 6)", "16.7 % (1 of 6)", "-", "-"),
        *("50.0 % (1 of 2)", "50.0 % (1 of 2)", "100.0 % (2 of 2)"),
    ]
    assert column(table, "Method") == ["FixAvg", "FedAvg-SL"]  # LocalOnly itself is left out
    # Methods with all labels are grouped by the share that the others see.
    assert rows_of(label_table(fair))[2][1:] == [
        "FedAvg-SL", "15.0 (n = 2)", "55.0 (n = 2)", "85.0 (n = 2)"
    ]  # fmt: skip


def test_gains_by_hand_a_run_is_one_observation(fair, tmp_path):
    """Gains are 0.2, 0, -0.1 in one run and -0.1, -0.1, -0.1 in the other: means 0.0333 and -0.1.

    Half their difference is the standard error, and t(0.975, 1) = 12.706.
    """
    table = gains_table(fair)
    assert rows_of(table)[0] == ["a", "LocalOnly", "0", "-", "-", "-", "-"]
    mean, reach = (0.1 / 3 - 0.1) / 2, 12.706 * (0.1 / 3 + 0.1) / 2
    gain = f"{points(mean)} ({points(mean - reach)} to {points(mean + reach)})"
    assert rows_of(table)[1][:4] == ["a", "FixAvg", "2", gain]
    assert rows_of(table)[1][4] == f"{points(-0.1)}"  # the worst site of both runs alike
    # One of three sites is worse in the first run, all are in the second.
    assert rows_of(table)[1][5] == "66.7 (0.0 to 100.0)"
    without = written(tmp_path, [result("a", "fixavg", 0, 0.5)])
    assert gains_table(without) is None
    table = summary_table(without)
    assert not any("worse" in name for name in table.columns)
    assert any(
        "local_only, one_round and fedavg_ft are not in this" in note for note in table.notes
    )


def test_alone_is_the_better_of_both_by_validation_site_by_site(tmp_path):
    """Site 0: the closed form by validation; 1: the network; 2 has no labels and so no closed form.

    Gains of x: 0.9 less 0.8, 0.4 and 0.1. Without validation accuracies, less 0.5, 0.4 and 0.1.
    """
    lone, val = [0.8, 0.7, None], [0.7, 0.5, None]
    of = {"local_only": [0.5, 0.4, 0.1], "one_round": [0.9] * 3, "x": [0.9] * 3}
    more = {"local_only": [{"val_accuracy": 0.6}] * 3, "x": [{}] * 3, "one_round": [
        {"alone_accuracy": a, "alone_val_accuracy": v} for a, v in zip(lone, val, strict=True)
    ]}  # fmt: skip
    sites = [
        site("a", method, 0, k, value, **more[method][k])
        for method, values in of.items()
        for k, value in enumerate(values)
    ]
    rows = [result("a", m, 0, 0.5, alone_selected_test_accuracy=0.6 if m == "one_round" else None)
            for m in of]  # fmt: skip
    found = written(tmp_path / "both", rows, sites)
    pairs = found.site_pairs("a", "x", BEST_ALONE)
    assert pairs["theirs"].tolist() == [0.8, 0.4, 0.1]
    gain = rows_of(gains_table(found))
    assert [row[1:4] for row in gain] == [
        ["LocalOnly", "0", "-"],
        *([name, "1", points((0.1 + 0.5 + 0.8) / 3)] for name in ("One round", "x")),
    ]
    table = summary_table(found)
    assert [row[1] for row in table.rows][2:] == ["x", "One round, of each site alone"]
    assert "60.0" in str(table.rows[3][2]) and "Sites worse than alone, %" in table.columns
    without = [{k: v for k, v in row.items() if "val_" not in k} for row in sites]
    old = written(tmp_path / "old", rows, without)
    assert old.site_pairs("a", "x", BEST_ALONE)["theirs"].tolist() == [0.5, 0.4, 0.1]
    assert "Sites worse than a network alone, %" in summary_table(old).columns
    alone = [row for row in sites if row["method"] != "local_only"]
    form = written(tmp_path / "form", rows[1:], alone)
    assert form.site_pairs("a", "x", BEST_ALONE)["theirs"].tolist() == [0.8, 0.7]
    assert "Sites worse than the closed form alone, %" in summary_table(form).columns


def test_only_more_than_a_point_is_harm_or_help(tmp_path):
    """Of six sites: a point and a little less, nothing, a point and a little more, both ways."""
    alone = 0.63
    selected = [alone + d for d in (-0.0101, -0.01, 0.0, 0.01, 0.0101, 0.2)]
    last = [alone] * 5 + [alone - 0.02]
    sites = [
        site("a", method, 0, number, chosen, final_accuracy=final)
        for method, both in (("local_only", ([alone] * 6, [alone] * 6)), ("x", (selected, last)))
        for number, (chosen, final) in enumerate(zip(*both, strict=True))
    ]
    rows = [result("a", m, 0, 0.5) for m in ("local_only", "x")]
    assert rows_of(harm_table(written(tmp_path, rows, sites), BEST_ALONE))[0][2:6] == [
        *("16.7 % (1 of 6)", "33.3 % (2 of 6)", "16.7 % (1 of 6)", "0.0 % (0 of 6)"),
    ]


# --- everything of a method -----------------------------------------------------------------------


def test_the_summary_has_means_over_seeds_and_both_references(tmp_path):
    more = {"last5_test_accuracy": 0.7, "selected_worst_decile": 0.5, "calibration_error": 0.08}
    more |= {"final_test_accuracy": 0.72, "models_down": 600, "models_up": 200}
    more |= {"steps_per_site": 250.4, "images_per_site": 16_000}
    rows = [
        *(result("a", m, s, 0.6) for m in ("alone", "fedavg_ft") for s in (0, 1)),
        result("a", "recommended", 0, 0.74, largest_fall=0.01, **more),
        result("a", "recommended", 1, 0.76, largest_fall=0.03, **more),
    ]
    sites = [
        site("a", method, seed, 0, value)
        for method, value in (("alone", 0.5), ("fedavg_ft", 0.7), ("recommended", 0.6))
        for seed in (0, 1)
    ]
    table = summary_table(written(tmp_path, rows, sites, presets={"alone": "local_only"}))
    assert rows_of(table)[2] == [
        *("a", "Recommended", "75.0 ± 1.4", "72.0 ± 0.0", "70.0 ± 0.0", "50.0 ± 0.0"),
        *("2.0 ± 1.4", "8.0 ± 0.0", "0.0", "100.0", "2.00"),  # 800 models, 20 sites, 20 rounds
        *("250", "16,000"),
    ]
    assert column(table, "Sites worse than a network alone, %") == ["-", "0.0", "0.0"]
    assert column(table, "Sites worse than FedAvg fine-tuned, %") == ["100.0", "-", "100.0"]


def test_both_ways_stand_side_by_side_for_those_that_have_them(tmp_path):
    def answers(common: float, tuned: float) -> dict[str, float]:
        return {
            f"{name}_{at}_test_accuracy": value
            for name, value in (("common", common), ("tuned", tuned))
            for at in ("selected", "final")
        }

    rows = [
        result("a", "local_only", 0, 0.5),
        result("a", "fedavg", 0, 0.5, **answers(0.5, 0.6)),
        result("a", "fedavg", 1, 0.5, **answers(0.6, 0.6)),
    ]
    way = ["55.0 ± 7.1", "60.0 ± 0.0", "+5.0"]
    table = answers_table(written(tmp_path, rows))
    assert rows_of(table) == [["a", "FedAvg (labelled)", *way, *way]]
    table = answers_table(written(tmp_path, [r | {"alone_final_test_accuracy": 0.4} for r in rows]))
    assert column(table, "Last round: alone, %") == ["40.0 ± 0.0"]
    assert column(table, "Selected: alone, %") == ["-"]
    assert answers_table(written(tmp_path, rows[:1])) is None


def test_a_sweep_of_the_data_is_a_table_of_methods_by_value(tmp_path):
    rows = [
        result(f"labels={share}", m, 0, accuracy, selected_worst_decile=accuracy - 0.1)
        for share, better in ((0.1, "fedavg"), (0.01, "sage"))
        for m in ("fedavg", "sage")
        for accuracy in [0.7 if m == better else 0.6]
    ]
    made = written(tmp_path, rows)
    (sweep,) = sweeps(made)
    assert sweep.of_the_data and sweep.settings == {"labels=0.1", "labels=0.01"}
    table = value_table(made, sweep, "selected_test_accuracy")
    assert table.columns == ["Method", "labels = 0.01", "labels = 0.1"]
    assert table.rows == [
        ["FedAvg (labelled)", "60.0", BestEntry("70.0")],
        ["SAGE", BestEntry("70.0"), "60.0"],
    ]
    assert rows_of(value_table(made, sweep, "selected_worst_decile"))[1] == ["SAGE", "60.0", "50.0"]


# --- cost -----------------------------------------------------------------------------------------


def test_cost_is_the_mean_over_seeds_and_what_is_unknown_a_dash(tmp_path):
    more = {"models_up": 84, "bytes_down": 93_300_000, "wall_seconds": 102}
    more |= {"steps_per_site": 300, "images_per_site": 4_000}
    rows = [
        result("a", "um_pfssl", 0, 0.5, models_down=200, pseudo_label_error=0.30, **more),
        result("a", "um_pfssl", 1, 0.5, models_down=300, pseudo_label_error=0.32, **more),
        result("a", "local_only", 0, 0.5),
    ]
    assert rows_of(cost_table(written(tmp_path, rows))) == [
        [
            *("a", "UM-pFSSL", "2", "300", "4,000", "250", "84", "-", "93.3 MB", "-", "-"),
            *("1 min 42 s", "31.0 ± 1.4"),
        ],
        ["a", "LocalOnly", "1", *"----------"],
    ]


def test_a_sweeps_cost_is_in_percent_of_the_dearest(tmp_path):
    more = {"alpha": 0.5, "models_up": 100, "best_test_accuracy": 0.8}
    rows = [
        result(s, "um_pfssl", 0, 0.7, models_down=n, **more)
        for s, n in {"nu=1": 400, "nu=5": 100}.items()
    ]
    made = written(tmp_path, rows, paper={"table": "IV", "dataset": "FashionMNIST"})
    (sweep,) = sweeps(made)
    assert rows_of(sweep_table(made, sweep, numbers_of(made))) == [
        ["1", "1", "70.0", "80.0", "80.32", "100.0", "100"],
        ["5", "1", "70.0", "80.0", "79.85", "40.0", "26"],
    ]


def test_a_sweep_of_two_methods_names_its_lines(tmp_path):
    rows = [result(s, m, 0, 0.7) for s in ("nu=1", "nu=5") for m in ("um_pfssl", "um_pfssl_mi")]
    made = written(tmp_path, rows)
    table = sweep_table(made, sweeps(made)[0], numbers_of(made))
    assert column(table, "Line") == ["UM-pFSSL", "UM-pFSSL", "UM-pFSSL MI", "UM-pFSSL MI"]
    assert column(table, "Cost, % of the dearest") == ["-"] * 4
