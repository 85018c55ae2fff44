"""The pictures and README's table say what docs/results says."""

import re
from statistics import mean, stdev

import pytest

from bench.pictures import PANELS, SHOWN, accuracies, seed_by_seed
from fedapp.results.comparison.figures import png
from tests.docs.pages import ROOT

ROWS = {
    "each site alone": "local_only",
    "average (FedAvg)": "fedavg",
    "average, then fine-tuned": "fedavg_ft",
    "Ditto (twice the steps)": "ditto",
    "one_round, no network": "one_round",
    "recommended": "recommended",
}
"""README's names of the methods."""


def readme():
    """Return the cells of README's table by the method's name."""
    lines = (ROOT / "README.md").read_text().translate({42: None, 96: None}).splitlines()
    cells = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    return {name: rest for name, *rest in cells if name in ROWS}


@pytest.mark.parametrize("column", range(len(PANELS)))
def test_readmes_table_is_what_was_measured(column):
    study, setting, _ = PANELS[column]
    found, table = accuracies(study, setting), readme()
    assert table.keys() == ROWS.keys()
    for name, method in ROWS.items():
        shown = list(map(float, re.findall(r"[\d.]+", table[name][column])))
        values = found[method]
        assert len(values) == (8, 5, 5, 3)[column]
        assert shown == pytest.approx([mean(values), stdev(values)], abs=0.051), name


def test_the_picture_has_a_panel_for_each_setting_and_a_bar_for_each_method():
    figure = seed_by_seed()
    assert [axes.get_title() for axes in figure.axes] == [title for _, _, title in PANELS]
    assert [len(axes.patches) for axes in figure.axes] == [len(SHOWN)] * len(PANELS)
    widths = [bar.get_width() for bar in figure.axes[0].patches]
    assert widths[0] == pytest.approx(86.4, abs=0.05)  # the last method is drawn first
    assert 10_000 < len(png(figure)) < 300_000
