"""Who labels in UM-pFSSL: the rules and the tables by hand; watched, a run has the same numbers."""

import pytest
import torch

from bench import pseudo_labels as bench
from bench.pseudo_labels import ALONE, BASE, QUICK, Watched, watched
from fedapp.protocol.messages import ModelRef, ScoredRef
from tests.flower.results import loopback

MEMBERS = [
    ScoredRef(ModelRef(site, 1, str(site) * 64), score)
    for site, score in ((3, 0.0), (5, 0.75), (6, 0.25))
]
ANSWERS = [
    torch.tensor(rows)
    for rows in (
        [[0.6, 0.4], [0.5, 0.5]],  # of site 3, the one that trains
        [[0.99, 0.01], [0.98, 0.02]],  # one class, whatever the image
        [[0.8, 0.2], [0.1, 0.9]],
    )
]


@pytest.mark.parametrize(("rule", "first", "second", "whose"), [
    ("published", 0.99, 0.98, [1, 1]),  # the surest wins all
    ("mutual_information", 0.8, 0.1, [2, 2]),  # whose answers differ
    ("wide", 0.8, 0.1, [2, 2]),  # among those who know eight classes
    ("own", 0.6, 0.5, [-1, -1]),
    ("mean", 2.39 / 3, 1.58 / 3, [-1, -1]),
    ("relation", 0.75 * 0.99 + 0.25 * 0.8, 0.75 * 0.98 + 0.25 * 0.1, [-1, -1]),
])  # fmt: skip
def test_the_rules_by_hand(monkeypatch, rule, first, second, whose):
    monkeypatch.setattr(bench, "_classes", {3: 2, 5: 1, 6: 9})
    monkeypatch.setattr(bench, "_at_work", {"site": 3})
    soft, chosen = Watched().by_rule(rule, MEMBERS, ANSWERS)
    assert soft[:, 0].tolist() == pytest.approx([first, second]) and chosen.tolist() == whose


def test_where_nobody_knows_many_classes_all_may_label_and_relations_of_0_count_alike(monkeypatch):
    monkeypatch.setattr(bench, "_classes", {3: 2, 5: 1, 6: 7})
    method = Watched()
    assert method.by_rule("wide", MEMBERS, ANSWERS)[1].tolist() == [1, 1]
    none = [ScoredRef(member.model, 0.0) for member in MEMBERS]
    alike, _ = method.by_rule("relation", none, ANSWERS)
    assert torch.equal(alike, method.by_rule("mean", MEMBERS, ANSWERS)[0])


def test_watched_a_run_has_the_same_numbers_and_every_label_has_a_giver(tmp_path):
    small = {**QUICK, "data.name": "digits", "data.subset": 300, "training.warmup_epochs": 1}
    given = {**small, "method.preset": "um_pfssl_mi_labels", "runtime.out": str(tmp_path)}
    found = bench.measured(watched("digits_demo", given))
    again = bench.measured(watched("digits_demo", given))  # with the warm-up of before
    assert {**again, "seconds": 0} == {**found, "seconds": 0}
    folder = loopback(bench.load_experiment("digits_demo", given))
    assert found["rounds"] == bench.accuracies(folder)
    for training in found["trainings"]:
        wrong = sum(wrong for _, wrong in training["by"].values())
        assert wrong == training["rules"]["mutual_information"] <= bench.count_of(training)


def result(last, by=None, rules=None):
    trainings = [{"round": 1, "site": 0, "by": by or {}, "rules": rules or {}}] if by else []
    return {
        "rounds": [50.0, 60.0, last],
        "trainings": trainings,
        "classes": {"1": 9, "2": 2},
        "seconds": 3,
    }


def test_the_tables_by_hand():
    rules = dict.fromkeys((*bench.VARIANTS, *bench.RULES), 5)
    results = {
        (BASE, ALONE, 0): result(70.0), (BASE, ALONE, 1): result(60.0),
        (BASE, "um_pfssl", 0): result(58.0, {"1": [10, 2], "2": [30, 24], "-1": [10, 4]}, rules),
        (BASE, "um_pfssl", 1): result(52.0, {"2": [50, 50], "0": [10, 10]}, rules),
    }  # fmt: skip
    alone, published = bench.rows(results)
    assert alone["last round, %"] == "65.0 ± 7.1" and alone["less alone"] == ""
    assert published["less alone"].startswith("-10.0 (-35.4 to 15.4")
    assert (published["wrong labels, %"], published["best round"]) == ("82", "60.0")
    assert published["classes of the helper"] == "2.8"  # (10 of 9 and 80 of 2) / 90
    itself, several, two, nine = bench.by_classes(results)
    assert itself == {
        "classes of the helper": "the site itself", "um_pfssl: labels, %": "9",
        "um_pfssl: wrong, %": "100",
    }  # fmt: skip
    assert (several["um_pfssl: labels, %"], two["um_pfssl: labels, %"]) == ("9", "73")
    assert (two["um_pfssl: wrong, %"], nine["um_pfssl: wrong, %"]) == ("92", "20")
    found = bench.by_rule(results)[0]
    assert found["first round: wrong, %"] == found["all rounds: wrong, %"] == "9.2 ± 1.2"
    assert (found["whose answer"], found["seeds"]) == ("published", 2)
