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
    gain_by_labels_figure,
    harm_figure,
    legend,
    panels,
    png,
    sweep_figure,
)
from fedapp.reports.comparison.paper import PaperNumbers, read_printed
from fedapp.reports.comparison.style import looks
from fedapp.reports.comparison.sweep import sweeps
from tests.reports.comparison.synthetic import realistic, result, site, written

METHODS = ("local_only", "fixavg", "um_pfssl")
LABELS = ["LocalOnly", "FixAvg", "UM-pFSSL"]
TABLE_IV = {"table": "IV", "dataset": "FashionMNIST"}


@pytest.mark.parametrize(("letters", "columns"), [(2, 4), (34, 2), (90, 1)])
def test_a_legend_of_long_names_has_fewer_columns(letters, columns):
    figure, (axes, _) = panels(2, 3.0)
    legend(figure, {f"{k}{'e' * (letters - 1)}": axes.plot([k])[0] for k in range(8)})
    figure.draw_without_rendering()
    (made,) = figure.legends
    assert made._ncols == columns and 0 <= made.get_window_extent().x0


def legend_of(figure: Figure) -> list[str]:
    (legend,) = figure.legends
    return [text.get_text() for text in legend.get_texts()]


def titles(figure: Figure) -> list[str]:
    return [axes.get_title() for axes in figure.axes]


def bands(axes: Axes) -> int:
    return sum(isinstance(c, FillBetweenPolyCollection) for c in axes.collections)


def swept(made):
    return sweep_figure(made, sweeps(made)[0], PaperNumbers(made, read_printed()))


# --- curves ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("most", "drawn"), [(8, 3), (2, 0)])
def test_a_panel_per_setting_a_line_per_method_and_bands_of_few(made, monkeypatch, most, drawn):
    monkeypatch.setattr(figures, "MOST_BANDS", most)
    figure = accuracy_curves(made)
    assert titles(figure) == ["alpha=0.5", "alpha=5"] and legend_of(figure) == LABELS
    colours = [look.colour.lower() for look in looks(METHODS).values()]
    for axes in figure.axes:
        assert [to_hex(line.get_color()) for line in axes.lines] == colours
        assert bands(axes) == drawn


def test_a_curve_is_the_mean_over_seeds_in_percent(tmp_path):
    rows = [result("a", "fixavg", seed, 0.5) for seed in range(2)]
    rounds = [
        {"setting": "a", "method": "fixavg", "seed": seed, "round": n, "mean_test_accuracy": value}
        for seed, values in enumerate([[0.1, 0.4, 0.6], [0.3, 0.4]])  # the second was cut
        for n, value in enumerate(values)
    ]
    figure = accuracy_curves(written(tmp_path, rows, (), rounds))
    (line,) = figure.axes[0].lines
    assert list(line.get_xdata()) == [0, 1, 2]
    assert np.allclose(line.get_ydata(), [20, 40, 60])
    (band,) = figure.axes[0].collections
    top = band.get_paths()[0].vertices[:, 1].max()
    assert top == pytest.approx(max(20 + 100 * np.std([0.1, 0.3], ddof=1), 60))


def test_one_seed_has_no_band_and_one_round_a_point(tmp_path):
    rows = [result(s, "mix", 0, 0.5) for s in ("x", "empty")]
    rounds = [{"setting": "x", "method": "mix", "seed": 0, "round": 9, "mean_test_accuracy": 0.5}]
    made = written(tmp_path, rows, (), rounds)
    figure = accuracy_curves(made)
    assert titles(figure) == ["x"], "a setting without rounds has no panel"
    assert bands(figure.axes[0]) == 0 and figure.axes[0].lines[0].get_marker() == "o"
    assert error_curves(made) is None


def test_pseudo_label_error_is_drawn_for_those_that_have_it(made):
    assert legend_of(error_curves(made)) == LABELS[1:]


# --- sweeps ---------------------------------------------------------------------------------------


def test_a_sweep_shows_ours_and_the_papers(tmp_path):
    made = realistic(tmp_path, ["nu=1", "nu=5", "nu=10"], ["um_pfssl"], (0, 1), paper=TABLE_IV)
    figure = swept(made)
    left, right = figure.axes
    assert legend_of(figure) == ["ours", "ours, best over rounds", "paper, best over rounds"]
    assert [text.get_text() for text in left.get_xticklabels()] == ["1", "5", "10"]
    ours, papers = right.lines
    assert max(ours.get_ydata()) == 100
    assert list(papers.get_ydata()) == [100, 26, 16.7]
    assert to_hex(ours.get_color()) == looks(["um_pfssl"])["um_pfssl"].colour.lower()


def test_a_sweep_without_the_papers_numbers_has_a_line_per_setting(tmp_path):
    figure = swept(realistic(tmp_path, methods=["F=0", "F=10", "F=30"], seeds=(0,)))
    assert legend_of(figure) == ["alpha=0.5", "alpha=5"]
    assert figure.axes[0].get_xscale() == "linear"  # a value is 0


def test_a_sweep_of_the_data_has_a_line_a_method_and_no_costs(tmp_path):
    made = realistic(tmp_path, [f"labels={v}" for v in (0.01, 0.1, 0.5)], METHODS)
    figure = data_figure(made, sweeps(made)[0])
    assert legend_of(figure) == LABELS
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


def test_a_sweep_of_few_sizes_is_linear_and_without_accuracies_there_is_none(tmp_path):
    rows = [result(f"sites={n}", "x", 0, 0.5) for n in (20, 100)]
    made = written(tmp_path, rows)
    assert data_figure(made, sweeps(made)[0]).axes[0].get_xscale() == "linear"
    nothing = written(tmp_path, [row | {"selected_test_accuracy": None} for row in rows])
    assert data_figure(nothing, sweeps(nothing)[0]) is None and swept(nothing) is None


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
    zero, line = figure.axes[0].lines
    assert list(zero.get_ydata()) == [0, 0]
    assert np.allclose(line.get_ydata(), [-10, 0, 20])
    assert np.allclose(line.get_xdata(), [100 / 6, 50, 500 / 6])
    assert legend_of(figure) == ["FixAvg"]


def test_harm_has_a_panel_a_setting_and_eight_lines_at_most(many, tmp_path):
    figure = harm_figure(many, many.methods)
    assert titles(figure) == ["a", "b"] and legend_of(figure) == many.methods[1:9]
    lines = figure.axes[0].lines[1:]
    assert len({line.get_marker() for line in lines}) == len(lines) == 8
    assert harm_figure(many, ["local_only"]) is None
    assert harm_figure(written(tmp_path, [result("a", "fixavg", 0, 0.5)]), ["fixavg"]) is None


def test_gain_by_labels_has_the_mean_of_each_group_and_no_site_without_labels(tmp_path):
    """By hand: +20 of 10 sites with 10 or 20 labels, +10 of 5 with 100, 0 of 5 with 101."""
    labels, gains = (
        [0] + [10] * 5 + [20] * 5 + [100] * 5 + [101] * 5,
        [0.4] + [0.2] * 10 + [0.1] * 5 + [0] * 5,
    )
    rows = [result("a", m, 0, 0.5) for m in ("local_only", "fixavg")]
    sites = [
        site("a", m, 0, number, 0.5 + gain * (m == "fixavg")) | {"labelled": count}
        for m in ("local_only", "fixavg")
        for number, (count, gain) in enumerate(zip(labels, gains, strict=True))
    ]
    figure = gain_by_labels_figure(written(tmp_path, rows, sites), ["local_only", "fixavg"])
    _, dots, means = figure.axes[0].lines[:3]
    assert len(dots.get_xdata()) == 20
    assert np.allclose(means.get_xdata(), [15, 100, 101])
    assert np.allclose(means.get_ydata(), [20, 10, 0])
    few = written(tmp_path, rows, sites[:19] + sites[21:40])
    assert gain_by_labels_figure(few, ["local_only", "fixavg"]) is None


# --- confusion matrices ---------------------------------------------------------------------------


def evaluations(out: Path, cell: str, **parts: list[list[list[int]]]) -> None:
    """Write a cell's evaluations: by part, a confusion matrix for each site."""
    plain = [
        {part: {"confusion": one} for part, one in zip(parts, each, strict=True)}
        for each in zip(*parts.values(), strict=True)
    ]
    (out / cell).mkdir(parents=True)
    (out / cell / "evaluations.json").write_text(json.dumps(dict(enumerate(plain))))


def test_a_row_of_another_answer_has_that_ones_matrix(tmp_path):
    rows = [result("a", m, 0, 0.5, cell="cells/0") for m in ("fedavg_ft", "fedavg")]
    made = written(tmp_path, rows, answers={"fedavg": "common"})
    evaluations(tmp_path, "cells/0", test=[[[2, 0]]], test_common=[[[1, 1]]])
    found = [confusion(made, "a", method) for method in ("fedavg_ft", "fedavg")]
    assert [total.tolist() for total in found] == [[[2, 0]], [[1, 1]]]


def test_matrices_are_summed_over_sites_and_seeds_and_rows_are_percent(tmp_path):
    rows = [result("a", "fixavg", seed, 0.5, cell=f"cells/{seed}") for seed in range(2)]
    made = written(tmp_path, rows)
    evaluations(tmp_path, "cells/0", test=[[[3, 1], [0, 0]], [[2, 0], [0, 0]]])
    evaluations(tmp_path, "cells/1", test=[[[1, 1], [0, 0]]])
    assert confusion(made, "a", "fixavg").tolist() == [[6, 2], [0, 0]]
    figure = confusion_figure(made, "a")
    (image,) = figure.axes[0].images
    assert image.get_array().filled(-1).tolist() == [[75, 25], [-1, -1]]  # no image of class 1
    assert [text.get_text() for text in figure.axes[0].texts] == ["75", "25"]


def test_four_methods_are_shown_those_of_most_interest_first(tmp_path):
    methods = ["local_only", "fixbn", "fixavg", "mix", "um_pfssl"]
    figure = confusion_figure(realistic(tmp_path, ["a"], methods, (0,)), "a")
    assert titles(figure) == ["UM-pFSSL", "Mix", "FixAvg", "LocalOnly"]


def test_no_test_image_no_matrix_and_a_damaged_file_is_named(tmp_path):
    made = written(tmp_path, [result("a", "fixavg", 0, 0.5, cell="c")])
    assert confusion_figure(made, "a") is None
    evaluations(tmp_path, "c", test=[[[0, 0], [0, 0]]])
    assert confusion_figure(made, "a") is None
    (tmp_path / "c" / "evaluations.json").write_text('{"0": {"test": 1}}')
    with pytest.raises(RunError, match=r"evaluations\.json: is damaged"):
        confusion_figure(made, "a")


# --- files ----------------------------------------------------------------------------------------


def test_a_figure_is_the_same_file_whatever_the_callers_style(made):
    plain = png(error_curves(made))
    with matplotlib.rc_context({"font.size": 30, "axes.grid": False}):
        assert png(error_curves(made)) == plain
    assert plain.startswith(b"\x89PNG\r\n")


def test_every_file_is_written_and_named_and_again_to_the_same_bytes(tmp_path):
    realistic(tmp_path, ["alpha=0.5"], ["nu=1", "nu=5"], (0,))
    listed = [
        Path(path) for path in CliRunner().invoke(app, ["report", str(tmp_path)]).stdout.split()
    ]
    assert [str(path.relative_to(tmp_path)) for path in listed] == [
        *("tables.md", "tables.html", "figures/curves.png", "figures/sweep-nu.png"),
        *("figures/pseudo-label-error.png", "figures/confusion-1-alpha_0.5.png"),
    ]
    first = [path.read_bytes() for path in listed]
    assert min(map(len, first)) > 1000
    assert [path.read_bytes() for path in write_report(tmp_path)] == first
