"""The figures of a comparison, asked for what they show, not for pixels."""

import json
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import FillBetweenPolyCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from typer.testing import CliRunner

from fedapp.cli import app
from fedapp.core.errors import RunError
from fedapp.reports.comparison import figures
from fedapp.reports.comparison.document import write_report
from fedapp.reports.comparison.figures import (
    accuracy_curves,
    confusion,
    confusion_figure,
    data_figure,
    error_curves,
    harm_figure,
    png,
    sweep_figure,
    variance_bars,
)
from fedapp.reports.comparison.paper import PaperNumbers, read_printed
from fedapp.reports.comparison.record import read_comparison
from fedapp.reports.comparison.style import looks
from fedapp.reports.comparison.sweep import sweeps
from tests.reports.comparison.synthetic import change, realistic, result, site, written

METHODS = ("local_only", "fixavg", "um_pfssl")
TABLE_IV = {"table": "IV", "dataset": "FashionMNIST"}


def legend_of(figure: Figure) -> list[str]:
    (legend,) = figure.legends
    return [text.get_text() for text in legend.get_texts()]


def titles(figure: Figure) -> list[str]:
    return [axes.get_title() for axes in figure.axes]


def bands(axes: Axes) -> int:
    return sum(isinstance(c, FillBetweenPolyCollection) for c in axes.collections)


# --- curves ---------------------------------------------------------------------------------------


def test_a_panel_per_setting_a_line_and_a_band_per_method(tmp_path):
    figure = accuracy_curves(realistic(tmp_path))
    assert figure is not None
    assert titles(figure) == ["alpha=0.5", "alpha=5"]
    for axes in figure.axes:
        assert len(axes.lines) == len(METHODS) and bands(axes) == len(METHODS)
    assert legend_of(figure) == ["LocalOnly", "FixAvg", "UM-pFSSL"]


def test_many_methods_have_no_bands(tmp_path, monkeypatch):
    comparison = realistic(tmp_path)
    monkeypatch.setattr(figures, "MOST_BANDS", len(METHODS) - 1)
    figure = accuracy_curves(comparison)
    assert figure is not None
    assert [bands(axes) for axes in figure.axes] == [0, 0]
    assert [len(axes.lines) for axes in figure.axes] == [len(METHODS)] * 2


def test_a_curve_is_the_mean_over_seeds_in_percent(tmp_path):
    rows = [result("a", "fixavg", seed, 0.5) for seed in range(2)]
    rounds = [
        {"setting": "a", "method": "fixavg", "seed": seed, "round": n, "mean_test_accuracy": value}
        for seed, values in enumerate([[0.1, 0.4, 0.6], [0.3, 0.4]])  # the second was cut
        for n, value in enumerate(values)
    ]
    figure = accuracy_curves(written(tmp_path, rows, (), rounds))
    assert figure is not None
    (line,) = figure.axes[0].lines
    assert list(line.get_xdata()) == [0, 1, 2]
    assert np.allclose(line.get_ydata(), [20, 40, 60])
    (band,) = figure.axes[0].collections
    top = band.get_paths()[0].vertices[:, 1].max()
    assert top == pytest.approx(max(20 + 100 * np.std([0.1, 0.3], ddof=1), 60))


def test_one_seed_has_no_band_and_one_round_a_point(tmp_path):
    figure = accuracy_curves(realistic(tmp_path / "a", ["x"], ["fixavg"], (0,)))
    assert figure is not None and bands(figure.axes[0]) == 0
    rows = [{"setting": "x", "method": "mix", "seed": 0, "round": 20, "mean_test_accuracy": 0.5}]
    figure = accuracy_curves(written(tmp_path / "b", [result("x", "mix", 0, 0.5)], (), rows))
    assert figure is not None and figure.axes[0].lines[0].get_marker() == "o"


def test_pseudo_label_error_is_drawn_for_those_that_have_it(tmp_path):
    figure = error_curves(realistic(tmp_path, ["alpha=5"]))
    assert figure is not None
    assert legend_of(figure) == ["FixAvg", "UM-pFSSL"]


def test_a_setting_without_rounds_has_no_panel_and_without_any_there_is_no_figure(tmp_path):
    made = realistic(tmp_path / "a")
    change(tmp_path / "a" / "rounds.csv", lambda r: r if r["setting"] == "alpha=5" else None)
    figure = accuracy_curves(read_comparison(made.folder))
    assert figure is not None and titles(figure) == ["alpha=5"]
    nothing = written(tmp_path / "b", [result("a", "x", 0, 0.5)])
    assert accuracy_curves(nothing) is None
    assert error_curves(nothing) is None
    assert variance_bars(nothing) is None


def test_a_method_has_one_colour_in_all_figures(tmp_path):
    made = realistic(tmp_path, ["alpha=5"])
    curves, bars = accuracy_curves(made), variance_bars(made)
    assert curves is not None and bars is not None
    known = [look.colour.lower() for look in looks(METHODS).values()]
    assert [to_hex(line.get_color()) for line in curves.axes[0].lines] == known
    assert [to_hex(patch.get_facecolor()) for patch in bars.axes[0].patches] == known


# --- variance -------------------------------------------------------------------------------------


def test_bars_are_variances_in_squared_points(tmp_path):
    rows = [result("a", "fixavg", s, 0.5, selected_std=v) for s, v in enumerate([0.1, 0.2])]
    figure = variance_bars(written(tmp_path, rows))
    assert figure is not None
    (bar,) = figure.axes[0].patches
    assert bar.get_width() == pytest.approx((100 + 400) / 2)


def test_no_bar_or_whisker_is_cut_off(tmp_path):
    wide = {"a": (0.1, 0.1), "b": (0.1, 0.3)}  # the last panel's reaches furthest
    rows = [
        result(setting, "fixavg", s, 0.5, selected_std=std)
        for setting, stds in wide.items()
        for s, std in enumerate(stds)
    ]
    figure = variance_bars(written(tmp_path, rows))
    assert figure is not None
    ends = 500 + 100 * np.std([1, 9], ddof=1)
    assert all(axes.get_xlim()[0] == 0 and axes.get_xlim()[1] > ends for axes in figure.axes)


def test_a_missing_bar_leaves_a_gap(tmp_path):
    rows = [result(s, "fixavg", 0, 0.5, selected_std=0.1) for s in "ab"]
    rows.append(result("b", "um_pfssl", 0, 0.5, selected_std=0.1))
    figure = variance_bars(written(tmp_path, rows))
    assert figure is not None
    assert [len(axes.patches) for axes in figure.axes] == [1, 2]
    names = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert names == ["FixAvg", "UM-pFSSL"]


# --- sweeps ---------------------------------------------------------------------------------------


def test_a_sweep_shows_ours_and_the_papers(tmp_path):
    made = realistic(tmp_path, ["nu=1", "nu=5", "nu=10"], ["um_pfssl"], (0, 1), paper=TABLE_IV)
    figure = sweep_figure(made, sweeps(made)[0], PaperNumbers(made, read_printed()))
    assert figure is not None
    left, right = figure.axes
    assert legend_of(figure) == ["ours", "ours, best over rounds", "paper, best over rounds"]
    assert [text.get_text() for text in left.get_xticklabels()] == ["1", "5", "10"]
    ours, papers = right.lines
    assert max(ours.get_ydata()) == 100
    assert list(papers.get_ydata()) == [100, 26, 16.7]
    assert to_hex(ours.get_color()) == looks(["um_pfssl"])["um_pfssl"].colour.lower()


def test_a_sweep_without_the_papers_numbers_has_a_line_per_setting(tmp_path):
    made = realistic(tmp_path, methods=["F=0", "F=10", "F=30"], seeds=(0,))
    figure = sweep_figure(made, sweeps(made)[0], PaperNumbers(made, read_printed()))
    assert figure is not None
    assert legend_of(figure) == ["alpha=0.5", "alpha=5"]
    assert figure.axes[0].get_xscale() == "linear"  # a value is 0


def test_a_sweep_without_accuracies_gives_no_figure(tmp_path):
    made = written(tmp_path, [result(s, "um_pfssl", 0, None) for s in ("nu=1", "nu=5")])
    assert sweep_figure(made, sweeps(made)[0], PaperNumbers(made, read_printed())) is None


def test_a_sweep_of_the_data_has_a_line_a_method_and_no_costs(tmp_path):
    made = realistic(tmp_path, [f"labels={v}" for v in (0.01, 0.1, 0.5)], METHODS)
    figure = data_figure(made, sweeps(made)[0])
    assert figure is not None
    assert legend_of(figure) == ["LocalOnly", "FixAvg", "UM-pFSSL"]
    for axes in figure.axes:
        assert axes.get_xscale() == "log"
        assert axes.get_xlabel() == "mean share of labelled training images"
        assert [text.get_text() for text in axes.get_xticklabels()] == ["0.01", "0.1", "0.5"]
    lines = [line for line in figure.axes[0].lines if not line.get_label().startswith("_")]
    firsts = [line.get_xdata()[0] for line in lines]
    assert firsts == sorted(firsts) and firsts[1] == pytest.approx(0.01)
    assert max(firsts) < 0.05 and len({line.get_marker() for line in lines}) == len(METHODS)
    spread = made.mean("labels=0.01", "fixavg", "selected_test_accuracy")
    assert lines[1].get_ydata()[0] == pytest.approx(100 * spread.value)


def test_a_sweep_of_few_sizes_is_linear(tmp_path):
    made = realistic(tmp_path, ["sites=20", "sites=100"], METHODS, (0,))
    figure = data_figure(made, sweeps(made)[0])
    assert figure is not None and figure.axes[0].get_xscale() == "linear"
    nothing = written(tmp_path / "b", [result(f"shift={v}", "x", 0, None) for v in (0, 1)])
    assert data_figure(nothing, sweeps(nothing)[0]) is None


# --- harm -----------------------------------------------------------------------------------------


def test_harm_is_sorted_differences_from_training_alone_in_points(tmp_path):
    rows = [result("a", m, s, 0.5) for m in ("local_only", "fixavg") for s in (0, 1)]
    sites = [
        site("a", m, s, number, value)
        for s, (alone, ours) in enumerate([([0.5, 0.6], [0.7, 0.5]), ([0.4, None], [0.4, 0.9])])
        for m, accuracies in (("local_only", alone), ("fixavg", ours))
        for number, value in enumerate(accuracies)
    ]
    figure = harm_figure(written(tmp_path, rows, sites), ["local_only", "fixavg"])
    assert figure is not None
    zero, line = figure.axes[0].lines
    assert list(zero.get_ydata()) == [0, 0]
    assert np.allclose(line.get_ydata(), [-10, 0, 20])
    assert np.allclose(line.get_xdata(), [100 / 6, 50, 500 / 6])
    assert legend_of(figure) == ["FixAvg"]


def test_harm_has_a_panel_a_setting_and_eight_lines_at_most(tmp_path):
    methods = ["local_only", *(f"m{number}" for number in range(10))]
    made = realistic(tmp_path, ["a", "b"], methods, (0,))
    figure = harm_figure(made, methods)
    assert figure is not None
    assert titles(figure) == ["a", "b"]
    assert legend_of(figure) == methods[1:9]
    lines = figure.axes[0].lines[1:]
    assert len({line.get_marker() for line in lines}) == len(lines) == 8
    assert harm_figure(made, ["local_only"]) is None
    without = realistic(tmp_path / "b", ["a"], ["fixavg"], (0,))
    assert harm_figure(without, ["fixavg"]) is None


# --- confusion matrices ---------------------------------------------------------------------------


def evaluations(out: Path, cell: str, *confusions: list[list[int]]) -> None:
    plain = {str(k): {"test": {"confusion": c}, "val": {}} for k, c in enumerate(confusions)}
    (out / cell).mkdir(parents=True)
    (out / cell / "evaluations.json").write_text(json.dumps(plain))


def test_a_row_of_another_answer_has_that_ones_matrix(tmp_path):
    rows = [result("a", m, 0, 0.5, cell="cells/0") for m in ("fedavg_ft", "fedavg")]
    made = written(tmp_path, rows, answers={"fedavg": "common"})
    sites = {"0": {"test": {"confusion": [[2, 0]]}, "test_common": {"confusion": [[1, 1]]}}}
    (tmp_path / "cells" / "0").mkdir(parents=True)
    (tmp_path / "cells" / "0" / "evaluations.json").write_text(json.dumps(sites))
    found = [confusion(made, "a", method) for method in ("fedavg_ft", "fedavg")]
    assert [total.tolist() for total in found if total is not None] == [[[2, 0]], [[1, 1]]]


def test_matrices_are_summed_over_sites_and_seeds_and_rows_are_percent(tmp_path):
    rows = [result("a", "fixavg", seed, 0.5, cell=f"cells/{seed}") for seed in range(2)]
    made = written(tmp_path, rows)
    evaluations(tmp_path, "cells/0", [[3, 1], [0, 0]], [[2, 0], [0, 0]])
    evaluations(tmp_path, "cells/1", [[1, 1], [0, 0]])
    total = confusion(made, "a", "fixavg")
    assert total is not None and total.tolist() == [[6, 2], [0, 0]]
    figure = confusion_figure(made, "a")
    assert figure is not None
    (image,) = figure.axes[0].images
    assert image.get_array().filled(-1).tolist() == [[75, 25], [-1, -1]]  # no image of class 1
    assert [text.get_text() for text in figure.axes[0].texts] == ["75", "25"]


def test_four_methods_are_shown_those_of_most_interest_first(tmp_path):
    methods = ["local_only", "fixbn", "fixavg", "mix", "um_pfssl"]
    figure = confusion_figure(realistic(tmp_path, ["a"], methods, (0,)), "a")
    assert figure is not None
    assert titles(figure) == ["UM-pFSSL", "Mix", "FixAvg", "LocalOnly"]


def test_no_test_image_no_matrix_and_a_damaged_file_is_named(tmp_path):
    made = written(tmp_path, [result("a", "fixavg", 0, 0.5, cell="c")])
    assert confusion_figure(made, "a") is None
    evaluations(tmp_path, "c", [[0, 0], [0, 0]])
    assert confusion_figure(made, "a") is None
    (tmp_path / "c" / "evaluations.json").write_text('{"0": {"test": 1}}')
    with pytest.raises(RunError, match=r"evaluations\.json: is damaged"):
        confusion_figure(made, "a")


# --- files ----------------------------------------------------------------------------------------


def test_a_figure_is_the_same_file_whatever_the_callers_style(tmp_path):
    made = realistic(tmp_path, ["a"], ["fixavg"])
    plain = variance_bars(made)
    with matplotlib.rc_context({"font.size": 30, "axes.grid": False}):
        other = variance_bars(made)
        assert plain is not None and other is not None
        assert png(plain) == png(other)
    assert png(plain).startswith(b"\x89PNG\r\n")


def test_every_file_is_written_and_named(tmp_path):
    realistic(tmp_path, ["alpha=0.5"], methods=["nu=1", "nu=5"])
    said = CliRunner().invoke(app, ["report", str(tmp_path)])
    listed = said.output.split()
    names = [str(Path(path).relative_to(tmp_path)) for path in listed]
    assert names == [
        *("tables.md", "tables.html", "figures/curves.png", "figures/sweep-nu.png"),
        *("figures/variance.png", "figures/pseudo-label-error.png"),
        *("figures/confusion-1-alpha_0.5.png",),
    ]
    assert all(Path(path).stat().st_size > 1000 for path in listed)


def test_writing_again_gives_the_same_bytes(tmp_path):
    realistic(tmp_path, ["a"], ["fixavg"], (0,))
    first = [path.read_bytes() for path in write_report(tmp_path)]
    assert [path.read_bytes() for path in write_report(tmp_path)] == first
