"""The picture and README say what docs/results and the code say."""

import json
import re
from collections import defaultdict
from statistics import mean, stdev

import pytest

from bench.gain import ALONE, anchors, by_seed, gain, lines
from bench.pictures import PANELS, SHOWN, accuracies, seed_by_seed
from bench.record import csv_rows
from fedapp.reports.comparison.figures import png
from fedapp.reports.statistics import paired_difference
from tests.docs.pages import ROOT

RESULTS = " ".join((ROOT / "docs/RESULTS.md").read_text(encoding="utf-8").split())
STUDY = ROOT / "docs/results/fresh"
ROWS = {
    "one_round": "one_round",
    "recommended": "recommended",
    "fedavg_logit_adjusted": "fedavg_logit_adjusted",
    "Ditto": "ditto",
    "FedAvg fine-tuned": "fedavg_ft",
    "FedAvg": "fedavg",
    "alone, a network": "local_only",
}
"""The methods' names in RESULTS."""
ANCHOR = "alone, the same closed form"


PLAIN = {ord("*"): None, ord("`"): None, 0x3B1: "alpha", 0x2212: "-"}


def cells(path):
    """Return the rows of a page's tables, cell by cell, without what marks them."""
    lines = path.read_text(encoding="utf-8").translate(PLAIN).splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if "|" in line]


def of_sites():
    """Return the study's sites: for each method, by seed and site, their rows."""
    found = defaultdict(dict)
    for row in csv_rows(STUDY / "sites.csv"):
        found[row["method"]][int(row["seed"]), row["site"]] = row
    return found


def worse_than_alone(method):
    """Return the share of sites more than a point worse than the closed form alone, %."""
    both = of_sites()
    lone = {place: float(row["alone_accuracy"]) for place, row in both["one_round"].items()}
    more = [float(row["final_accuracy"]) - lone[place] for place, row in both[method].items()]
    return 100 * mean(round(gained, 4) < -0.01 for gained in more)


@pytest.mark.parametrize("name", [*ROWS, ANCHOR])
def test_the_table_of_results_is_what_was_measured(name):
    """The anchor is the closed form of one_round's own runs."""
    rows = [row for row in cells(ROOT / "docs/RESULTS.md") if row[0] == name and len(row) == 5]
    [[_, accuracy, gained, _, worse]] = rows
    lone = anchors(STUDY.name, "alpha=0.5")["the closed form"]
    if name == ANCHOR:
        found = lone.values()
    else:
        found = by_seed(STUDY.name, "alpha=0.5", ROWS[name]).values()
        assert float(worse) == worse_than_alone(ROWS[name])
    assert len(found) == 5
    assert numbers(accuracy) == pytest.approx([mean(found), stdev(found)], abs=0.051)
    if gained:
        than = gain(STUDY.name, "alpha=0.5", ROWS[name], "the closed form")
        assert signed(gained) == pytest.approx([than.value, than.low, than.high], abs=0.051)


def in_readme(begin):
    """Return the rows of README's table whose first cell begins so."""
    return [row for row in cells(ROOT / "README.md") if row[0].startswith(begin)]


def numbers(text):
    """Return the numbers in a text, without their signs."""
    return list(map(float, re.findall(r"\d+\.\d+", text)))


def signed(text):
    """Return the numbers in a text."""
    return list(map(float, re.findall(r"-?[\d.]+", text)))


def test_readme_has_the_papers_table_as_measured():
    [[_, alone, joined, gained, _]] = in_readme("Fashion-MNIST, ")
    found = by_seed("one_round_fresh", "alpha=0.5", "one_round")
    lone = by_seed("one_round_fresh", "alpha=0.5", "one_round", ALONE)
    assert sorted(found) == [750, 751, 752, 753, 754]
    than = paired_difference(found, lone)
    assert numbers(alone) == pytest.approx([mean(lone.values())], abs=0.051)
    of_seeds = [mean(found.values()), stdev(found.values())]
    assert numbers(joined) == pytest.approx(of_seeds, abs=0.051)
    assert numbers(gained) == pytest.approx([than.value, than.low, than.high], abs=0.051)


def test_the_papers_table_has_its_gain_printed():
    """It has no network alone, and of CIFAR-10 one seed, so no interval."""
    printed = lines("one_round_fresh")
    gained = re.search(r"10\.9 points \((.+?)\)", RESULTS)[1]
    alone = "over training the closed form alone"
    of = "one_round_fresh, alpha=0.5: one_round"
    assert printed[0] == f"{of} +10.9 ({gained}) {alone}, 5 seeds" and len(printed) == 16
    assert printed[4] == f"one_round_fresh, cifar10, alpha=0.5: one_round +24.3 {alone}, 1 seed"


@pytest.mark.parametrize(
    ("begin", "labels"), [("Four real hospitals, ", "10 %"), ("The same, all", "100 %")]
)
def test_readme_has_the_hospitals_as_measured(begin, labels):
    [[_, *shown]] = in_readme(begin)
    rows = json.loads((ROOT / "bench/results/hospitals-heart.json").read_text())["rows"]
    of = {row["answer"]: row for row in rows if row["labels"] == labels}
    who = ("alone, the better of both", "one_round, together")
    made = [of[answer]["mean"] for answer in who]
    made += [of[who[-1]][column] for column in ("over alone", "AUROC over alone")]
    assert shown == [number.removeprefix("+") for number in made]


SETTINGS = {
    "Fashion-MNIST, alpha = 0.5": ("fresh", "alpha=0.5"),
    "alpha = 0.1": ("fresh", "alpha=0.1"),
    "alpha = 5": ("fresh", "alpha=5"),
    "shift 0.5": ("fresh", "shift=0.5"),
    "shift 1": ("fresh", "shift=1"),
    "20 % of the labels": ("fresh", "labels=0.2"),
    "5 % of the labels": ("fresh", "labels=0.05"),
    "1 % of the labels": ("fresh", "labels=0.01"),
    "CIFAR-10, alpha = 0.5": ("fresh", "cifar10, alpha=0.5"),
    "CIFAR-10, alpha = 0.1": ("fresh", "cifar10, alpha=0.1"),
    "CIFAR-10, alpha = 5": ("fresh", "cifar10, alpha=5"),
}
"""Rows of RESULTS' table of what joining is worth."""
OF_RIVALS = {
    "Fashion-MNIST, alpha = 0.5": ("50 %", 0.5),
    "alpha = 0.1": ("50 %", 0.1),
    "alpha = 5": ("50 %", 5.0),
    "shift 0.5": ("50 %, shift 0.5", 0.5),
    "shift 1": ("50 %, shift 1", 0.5),
    "20 % of the labels": ("20 %", 0.5),
    "5 % of the labels": ("5 %", 0.5),
    "1 % of the labels": ("1 %", 0.5),
}
"""Their labels and alpha in `bench.rivals clothes`."""


@pytest.mark.parametrize("name", SETTINGS)
def test_the_table_of_what_joining_is_worth_is_what_was_measured(name):
    rows = [row for row in cells(ROOT / "docs/RESULTS.md") if row[0] == name and len(row) == 7]
    [[_, joined, *lone, over_form, of_regression, over_regression]] = rows
    known = by_seed(*SETTINGS[name], "one_round").values()
    assert numbers(joined) == pytest.approx([mean(known), stdev(known)], abs=0.051)
    both = anchors(*SETTINGS[name])
    alone = [mean(both[anchor].values()) for anchor in ("the closed form", "a network")]
    assert list(map(float, lone)) == pytest.approx(alone, abs=0.051)
    found = gain(*SETTINGS[name], "one_round", "the closed form")
    assert signed(over_form) == pytest.approx([found.value, found.low, found.high], abs=0.051)
    if name in OF_RIVALS:
        rows = json.loads((ROOT / "bench/results/rivals-clothes.json").read_text())["rows"]
        of = {(row["labels"], row["alpha"]): row for row in rows if "FedAvg" in row["answer"]}
        row = of[OF_RIVALS[name]]
        assert (of_regression, over_regression) == (row["own mix"][:4], row["ahead, own mix"])


def test_how_many_are_worse_than_the_same_closed_form_alone():
    rows = list(of_sites()["one_round"].values())
    more = [100 * (float(r["final_accuracy"]) - float(r["alone_accuracy"])) for r in rows]
    worse = sum(difference < -1 for difference in more)
    assert len(more) == 50 and f"{worse} of 50 are worse by more than a point" in RESULTS
    labelled = [int(row["labelled"]) for row in rows]
    none, few, some, many = (
        mean(d for d, n in zip(more, labelled, strict=True) if low <= n <= high)
        for low, high in [(0, 0), (1, 20), (21, 100), (101, 1000)]
    )
    said = f"the {labelled.count(0)} of 50 sites without labels gain {none:.1f} points, with 1 to"
    assert f"{said} 20 labels {few:.1f}, with 21 to 100 {some:.1f}, with more {many:.1f}" in RESULTS
    by_run = [
        mean(float(r["final_accuracy"]) for r in rows if int(r["seed"]) == seed)
        for seed in range(750, 755)
    ]
    known = by_seed(STUDY.name, "alpha=0.5", "one_round").values()
    assert [100 * value for value in by_run] == pytest.approx(list(known), abs=1e-3)


@pytest.mark.parametrize("name", list(SETTINGS)[:9])
def test_the_advice_has_what_was_measured(name):
    rows = [row for row in cells(ROOT / "docs/WHICH_METHOD.md") if len(row) == 6]
    [[_, *shown]] = [row for row in rows if row[0] == name]
    methods = ("local_only", "fedavg", "fedavg_ft", "one_round")
    network, *others = (mean(by_seed(*SETTINGS[name], method).values()) for method in methods)
    found = [network, mean(anchors(*SETTINGS[name])["the closed form"].values()), *others]
    assert list(map(float, shown)) == pytest.approx(found, abs=0.051)


def test_the_picture_has_a_panel_for_each_setting_and_a_bar_for_each_method():
    figure = seed_by_seed()
    assert [axes.get_title() for axes in figure.axes] == [title for _, _, title in PANELS]
    assert [len(axes.patches) for axes in figure.axes] == [len(SHOWN)] * len(PANELS)
    for axes, (study, setting, _) in zip(figure.axes, PANELS, strict=True):
        widths = [bar.get_width() for bar in axes.patches]  # the last method is drawn first
        found = [mean(values) for values in accuracies(study, setting).values()]
        assert widths == pytest.approx(found[::-1])
    assert 10_000 < len(png(figure)) < 300_000
