"""Standings by hand: what a site has in the round that validation chose, or the test."""

from dataclasses import replace

import pytest

from fedapp.protocol.messages import Evaluation, Reply, SiteFacts
from fedapp.server.accuracy_drop import accuracy_drop_warning
from fedapp.server.standings import Standing, Standings


def evaluation(right, of):
    """`right` of `of` images named rightly, of two classes."""
    return Evaluation(((right, of - right), (0, 0)), (of,), (right,), (float(right),))


def facts(site, val=10, test=10):
    return SiteFacts(site, (1, 8, 8), ("a", "b"), 5, 5, val, test, "0" * 64)


def standings(sites=2):
    return Standings({k: Standing(facts(k)) for k in range(sites)})


def reply(number, site, val=None, test=None, **metrics):
    parts = {"val": val, "test": test}
    measured = {name: evaluation(n, 10) for name, n in parts.items() if n is not None}
    learned = "loss" in metrics
    return Reply(site, number, "0" * 64, metrics=metrics, evaluations=measured, learned=learned)


def play(rounds, sites=2):
    """Rounds of (val, test) of each site; None: it was not measured in that round."""
    run = standings(sites)
    for number, results in enumerate(rounds):
        measured = [(k, r) for k, r in enumerate(results) if r is not None]
        run.close_round(number, [reply(number, k, *r) for k, r in measured], {})
    return run


ROUNDS = [
    [(9, 9), (9, 9)],  # the warm-up is no round to choose
    [(4, 8), (4, 8)],
    [(7, 3), (5, 5)],  # best by validation, worst by test
    [(5, 6), (5, 6)],
]


def test_a_site_has_the_test_accuracy_of_the_round_that_validation_chose():
    run = play(ROUNDS)
    assert [run.sites[k].by_validation_accuracy for k in (0, 1)] == [0.3, 0.5]
    assert [run.sites[k].best_round_accuracy for k in (0, 1)] == [0.8, 0.8]
    assert [run.sites[k].accuracy("test") for k in (0, 1)] == [0.6, 0.6]
    assert [row["by_validation_accuracy"] for row in run.per_site(str)] == [0.3, 0.5]


def test_the_summary_names_both_rounds_and_their_spread():
    summary = play(ROUNDS).summary()
    mean = summary["mean_test_accuracy"]
    assert (mean["best"], mean["best_round"]) == (0.8, 1)
    assert (mean["best_by_validation"], mean["best_by_validation_round"]) == (0.4, 2)
    assert mean["final"] == 0.6
    assert summary["by_validation_std_test_accuracy"] == pytest.approx(0.1)
    assert summary["by_validation_worst_decile_accuracy"] == 0.3


def test_an_equal_round_later_is_no_better():
    run = play([[(1, 1)], [(5, 4)], [(5, 9)]], sites=1)
    assert run.sites[0].by_validation_accuracy == 0.4


def test_a_site_that_was_not_measured_in_that_round_has_its_last_measurement():
    run = play([[(1, 1), (1, 1)], [(2, 2), (2, 2)], [(9, 7), None]])
    assert [run.sites[k].by_validation_accuracy for k in (0, 1)] == [0.7, 0.2]


def test_without_validation_images_nothing_is_chosen():
    run = Standings({0: Standing(facts(0, val=0))})
    run.close_round(0, [reply(0, 0, None, 5)], {})
    run.close_round(1, [reply(1, 0, None, 5)], {})
    assert run.best_by_validation is None and run.sites[0].by_validation_accuracy is None
    assert run.per_site(str)[0]["by_validation_accuracy"] is None
    assert run.sites[0].best_round_accuracy == 0.5


def test_a_round_of_two_phases_is_one_round():
    """Averaging methods: a site learns, and measures the mean afterwards; both answers count."""
    run = standings(1)
    run.close_round(0, [reply(0, 0, loss=1.0), reply(0, 0, 3, 4)], {})
    row = run.close_round(1, [reply(1, 0, loss=1.0), reply(1, 0, 5, 6)], {})
    site = run.sites[0]
    assert (row["trained"], site.rounds_trained, row["mean_test_accuracy"]) == (1, 1, 0.6)
    assert (site.warmup_accuracy, site.by_validation_accuracy) == (0.4, 0.6)
    row = run.close_round(2, [reply(2, 0, 7, 8)], {})  # it only measured
    assert (row["trained"], site.rounds_trained) == (0, 1)


def test_measurements_of_every_answer_are_kept_and_the_means_are_of_the_one_in_use():
    run = standings(1)
    run.close_round(0, [reply(0, 0, 3, 4, loss=1.0)], {})
    more = {"test_common": evaluation(9, 10), "val_tuned": evaluation(8, 10)}
    both = replace(answer := reply(1, 0, 5, 6), evaluations={**answer.evaluations, **more})
    row = run.close_round(1, [both], {})
    assert (row["mean_test_accuracy"], row["mean_val_accuracy"]) == (0.6, 0.5)
    run.close_round(2, [reply(2, 0, 7, 7)], {})  # one answer alone: the others stay
    latest = run.evaluations()["0"]
    assert {name: result["bin_correct"] for name, result in latest.items()} == {
        "test": (7,), "val": (7,), "test_common": (9,), "val_tuned": (8,),
    }  # fmt: skip


def test_a_site_that_learns_in_several_phases_trained_once():
    run = standings(2)
    row = run.close_round(0, [reply(0, k, loss=1.0) for k in (0, 0, 1, 0)], {})
    assert row["trained"] == 2
    row = run.close_round(1, [reply(1, 0, loss=1.0), reply(0, 1, loss=1.0)], {})
    assert row["trained"] == 1  # the other's warm-up is of round 0


def test_a_failure_to_measure_does_not_take_back_that_a_site_trained():
    run = standings(1)
    run.close_round(0, [reply(0, 0, 3, 4)], {})
    row = run.close_round(1, [reply(1, 0, loss=1.0)], {0: "no answer within 1 s"})
    site = run.sites[0]
    assert (site.rounds_trained, site.rounds_skipped) == (1, 1)
    assert row["mean_test_accuracy"] == 0.4 and row["skipped"] == {"0": "no answer within 1 s"}


def test_the_classes_with_test_images_are_counted():
    run = standings(4)
    run.sites[2] = Standing(facts(2, test=0))
    both = replace(evaluation(9, 10), confusion=((5, 1), (2, 2)))
    run.sites[0] = Standing(facts(0), {"test": evaluation(4, 10)})  # all of the first class
    run.sites[1] = Standing(facts(1), {"test": both})
    rows = run.per_site(str)
    assert [row["test_classes"] for row in rows] == [1, 2, 0, None]  # the last: not yet measured
    assert {row["classes"] for row in rows} == {2}


# --- work -----------------------------------------------------------------------------------------


def test_steps_and_images_add_up_over_rounds_and_their_means_are_over_all_sites():
    """(4 + 2) and none: 3 steps a site; (40 + 8) / 2 = 24 images. No row knows of them."""
    run = standings(2)
    run.close_round(0, [reply(0, 0, 1, 1, loss=1.0, steps=4, images=40), reply(0, 1, 1, 1)], {})
    row = run.close_round(1, [reply(1, 0, 1, 1, loss=1.0, steps=2, images=8)], {})
    summary = run.summary()
    assert (summary["steps_per_site"], summary["images_per_site"]) == (3, 24)
    assert not any("steps" in name or "images" in name for name in row)


# --- means of an answer ---------------------------------------------------------------------------


def answering(*sites):
    """A round after the warm-up; of each site what it measures by name, right of 10 images."""
    run = standings(len(sites))
    rows = []
    for number in (0, 1):
        replies = [
            replace(reply(number, k), evaluations={n: evaluation(of, 10) for n, of in site.items()})
            for k, site in enumerate(sites)
        ]
        rows.append(run.close_round(number, replies, {}))
    return run, rows[-1]


WHOLE = {"test": 9, "test_common": 8, "test_tuned": 6, "test_alone": 7,
         "val": 9, "val_common": 7, "val_tuned": 5, "val_alone": 4}  # fmt: skip


def test_a_site_that_lacks_an_answer_counts_with_what_it_has_in_its_place():
    """Tuned: 6 and, as the common one, 2 of 10; alone: 7 of 10 and one of two classes guessed."""
    run, row = answering(WHOLE, {"test": 3, "test_common": 2, "val": 3, "val_common": 1})
    means = {a: row[f"mean_test_accuracy_{a}"] for a in ("common", "tuned", "alone")}
    assert means == pytest.approx({"common": 0.5, "tuned": 0.4, "alone": 0.6})
    means = {a: row[f"mean_val_accuracy_{a}"] for a in ("common", "tuned", "alone")}
    assert means == pytest.approx({"common": 0.4, "tuned": 0.3, "alone": 0.45})
    found = run.summary()["answers"]
    assert {a: f["final"] for a, f in found.items()} == pytest.approx(
        {"common": 0.5, "tuned": 0.4, "alone": 0.6}
    )
    assert {a: f["sites_without"] for a, f in found.items()} == {
        "common": 0,
        "tuned": 1,
        "alone": 1,
    }


def test_an_answer_that_no_site_has_has_no_mean_and_a_site_without_images_counts_nowhere():
    run, row = answering({"test": 3, "test_common": 2, "val": 3, "val_common": 1}, {"val": 5})
    assert "mean_test_accuracy_alone" not in row and "mean_test_accuracy_tuned" not in row
    assert row["mean_test_accuracy_common"] == pytest.approx(0.2)
    assert list(run.summary()["answers"]) == ["common"]


# --- a round that spoilt the average --------------------------------------------------------------


def told(common=None, tuned=None, before=None):
    """What is said of round 3, of mean validation accuracies."""
    row = {"round": 3, "mean_val_accuracy_common": common, "mean_val_accuracy_tuned": tuned}
    last = {"round": 2, "mean_val_accuracy_common": before}
    return accuracy_drop_warning(
        *({k: v for k, v in each.items() if v is not None} for each in (row, last))
    )


def test_an_average_that_fell_far_below_its_models_is_told_of():
    assert told(0.4, tuned=0.75, before=0.7).startswith(
        "round 3: the average is right on 40 % of validation images, 70 % a round before, "
        "the sites' own models on 75 %; "
    )
    assert told(0.0, 1.0, 1.0)


@pytest.mark.parametrize(("common", "tuned", "before"), [
    (0.40, 0.75, 0.45),  # it was low before
    (0.40, 0.45, 0.70),  # the sites' own models fell with it
    (0.80, 0.95, 0.70),  # it rose
    (0.50, 0.75, 0.60),  # by 0.1 and no more
    (0.50, 0.60, 0.75),
    (0.00, 0.00, 0.00),
    (None, 0.90, 0.90), (0.10, None, 0.90), (0.10, 0.90, None),  # not known
])  # fmt: skip
def test_a_fall_that_is_small_or_not_the_averages_alone_is_not_told_of(common, tuned, before):
    assert told(common, tuned, before) == ""
