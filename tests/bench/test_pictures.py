"""The picture and README say what docs/results and the code say."""

import csv
import re
from itertools import takewhile
from statistics import mean, stdev

import pytest
import torch

from bench.pictures import PANELS, SHOWN, accuracies, seed_by_seed
from fedapp.learn.priors import class_mix, weighted
from fedapp.methods.um_pfssl.relation import relation
from fedapp.results.comparison.figures import png
from fedapp.results.statistics import paired_difference
from tests.docs.pages import ROOT

README = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
STUDY = ROOT / "docs/results/second_fashion_mnist"
ROWS = {
    "each site alone": "local_only",
    "average (FedAvg)": "fedavg",
    "average, then fine-tuned": "fedavg_ft",
    "UM-pFSSL as published": "um_pfssl",
    "one_round, no training": "one_round",
    "recommended": "recommended",
}
"""README's names of the methods."""
TABLES = {
    "local_only": "LocalOnly",
    "fedavg": "FedAvg (labelled)",
    "fedavg_ft": "FedAvg fine-tuned",
    "um_pfssl": "UM-pFSSL",
    "one_round": "One round",
    "recommended": "Recommended",
}
"""Those of the study's tables."""


def cells(path):
    """Return the rows of a page's tables, cell by cell, without what marks them."""
    lines = path.read_text(encoding="utf-8").translate({42: None, 96: None}).splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if "|" in line]


def by_seed(method):
    """Return a method's accuracy after the last round, in %, by seed."""
    with (STUDY / "results.csv").open(encoding="utf-8", newline="") as file:
        return {
            int(row["seed"]): 100 * float(row["final_test_accuracy"])
            for row in csv.DictReader(file)
            if row["setting"] == "alpha=0.5" and row["method"] == method
        }


def worse_than_alone():
    """Return the share of sites, by the study's names, as its table has it."""
    found = cells(STUDY / "tables.md")
    head = next(row for row in found if "Sites worse than LocalOnly, %" in row)
    place, first = head.index("Sites worse than LocalOnly, %"), found.index(head) + 2
    rows = takewhile(lambda row: len(row) == len(head), found[first:])
    return {row[1]: row[place] for row in rows if row[0] == "alpha=0.5"}


@pytest.mark.parametrize("name", ROWS)
def test_readmes_table_is_what_was_measured(name):
    [[_, accuracy, worse]] = [row for row in cells(ROOT / "README.md") if row[0] == name]
    found = by_seed(ROWS[name]).values()
    assert len(found) == 8
    shown = list(map(float, re.findall(r"[\d.]+", accuracy)))
    assert shown == pytest.approx([mean(found), stdev(found)], abs=0.051)
    assert (worse if ROWS[name] != "local_only" else "-") == worse_than_alone()[TABLES[ROWS[name]]]


def test_readmes_number_is_the_paired_difference_over_seeds():
    said = re.search(r"alone: \+([\d.]+) points, 95 % interval ([\d.]+) to ([\d.]+)\*", README)
    found = paired_difference(by_seed("recommended"), by_seed("local_only"))
    expected = [found.value, found.low, found.high]
    assert list(map(float, said.groups())) == pytest.approx(expected, abs=0.051)


def test_readmes_examples_are_what_the_code_computes():
    trust = [relation(0.1, *peer, "both") for peer in [(0.8, 0.6), (0.3, 0.9)]]
    assert trust == pytest.approx([0.78, 0.36])
    assert "0.9 · 0.8 + 0.1 · 0.6 = 0.78. Another, 0.3 sure and right on 90 %: 0.36." in README
    mix = class_mix(torch.tensor([3, 1]), torch.empty(0, 2))
    assert mix.tolist() == pytest.approx([0.7, 0.3])
    answer = weighted(torch.tensor([[0.5, 0.5]]), mix)
    assert answer.tolist() == [pytest.approx([0.7, 0.3])]
    assert (
        "3 cats and 1 dog has the mix 0.7 and 0.3" in README and "answers cat with 70 %" in README
    )


def test_the_picture_has_a_panel_for_each_setting_and_a_bar_for_each_method():
    figure = seed_by_seed()
    assert [axes.get_title() for axes in figure.axes] == [title for _, _, title in PANELS]
    assert [len(axes.patches) for axes in figure.axes] == [len(SHOWN)] * len(PANELS)
    for axes, (study, setting, _) in zip(figure.axes, PANELS, strict=True):
        found = accuracies(study, setting)
        widths = [bar.get_width() for bar in axes.patches]  # the last method is drawn first
        assert widths == pytest.approx([mean(found[method]) for method in reversed(SHOWN)])
    assert 10_000 < len(png(figure)) < 300_000
