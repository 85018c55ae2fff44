"""Which model a site keeps: by hand, in its limits, and whatever order the rounds are looked at."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedapp.evaluation.classification_metrics import sensitivity_shortfall
from fedapp.evaluation.model_selection import (
    Candidate,
    Choice,
    candidates,
    margin,
    select,
    still_needed,
)
from fedapp.protocol.messages import Evaluation

IMAGES = 12


def one(number, right, answer="used", alone=False, images=IMAGES):
    return Candidate(number, answer, alone, right, images, 0, 0)


def evaluation(right, images=4):
    return Evaluation(((right, images - right), (0, 0)), (images,), (right,), (images / 2,))


rows = st.lists(
    st.tuples(st.integers(0, 6), st.sampled_from(("alone", "tuned", "common", "used")),
              st.integers(0, IMAGES)),
    min_size=1, max_size=20, unique_by=lambda row: row[:2],
)  # fmt: skip


def test_the_margin_by_hand():
    """b = 7 of 14 right: p = 8 / 16, m = sqrt(1/4 * 14) / 2 = 0.9354."""
    assert margin(7, 14) == pytest.approx(0.935414)
    assert margin(14, 14) == pytest.approx((15 / 16 * 1 / 16 * 14) ** 0.5 / 2)  # not 0: few images
    assert margin(0, 0) == 0


def test_a_later_one_within_the_margin_is_kept_and_one_beyond_it_is_not():
    best = one(1, 80, images=100)  # p = 81 / 102, m = sqrt(81 * 21 / 102 ** 2 * 100) / 2 = 2.02
    later = [one(n, right, images=100) for n, right in ((2, 78), (3, 77))]
    assert select([best, *later]) == later[0]
    assert select([best, later[1]]) == best
    assert select([one(0, 12), *(one(n, 3) for n in range(1, 50))]) == one(0, 12)
    equal = [one(n, 5, a, a == "alone") for n in (1, 2) for a in ("used", "alone", "common")]
    assert select(equal) == one(2, 5), "in a round the answer used counts as the last"


def test_without_validation_images_the_servers_last_is_kept_or_what_was_used_last():
    found = [one(n, 0, a, images=0) for n in (1, 2) for a in ("tuned", "common", "used")]
    assert select(found) == one(2, 0, "common", images=0)
    assert select([one(n, 0, images=0) for n in (1, 2)]) == one(2, 0, images=0)
    nothing = Evaluation(((0,),), (0,), (0,), (0.0,))
    said = {"val": nothing, "val_common": nothing}  # equal, but not known to be one answer
    assert [c.answer for c in candidates(1, said, False)] == ["common", "used"]
    assert select([]) is None and Choice().kept is None and Choice().helped is None


@given(rows)
def test_round_by_round_is_as_all_at_once_and_again_changes_nothing(found):
    every = sorted((one(n, r, a, a == "alone") for n, a, r in found), key=lambda c: c.when)
    choice, seen = Choice(), []
    for number in range(7):
        new = [c for c in every if c.round == number]
        seen += new
        before, choice = choice, choice.after(new)
        assert choice.kept == select(seen)
        assert choice.alone == select([c for c in seen if c.alone])
        assert choice.after(new) == choice
        # Only what is there already or comes now can be kept: the networks of others are gone.
        assert choice.kept in (before.kept, *new)
    assert still_needed(every) == choice.candidates and len(choice.candidates) <= 10


rounds = st.lists(rows, min_size=1, max_size=8)


@given(rounds)
def test_rounds_that_come_again_and_otherwise_never_put_a_worse_model_in_the_place_of_a_better(
    batches,
):
    """A run that begins anew, is resumed from an old copy, or whose site lost what it keeps."""
    choice = Choice()
    for batch in batches:
        new = [one(n, r, a, a == "alone") for n, a, r in batch]
        before, choice = choice.kept, choice.after(new)
        assert choice.kept in (before, *new)
        if before is not None:
            least = before.val_right - margin(before.val_right, IMAGES)
            assert choice.kept.val_right >= least


def test_a_round_done_again_replaces_the_kept_model_only_by_one_as_good():
    kept = Choice().after([one(5, 12)])
    assert kept.after([one(5, 3)]) == kept
    assert kept.after([one(n, 3) for n in range(5)]).kept == one(5, 12)
    again = replace(one(5, 12), test_right=1, test_images=2)
    assert kept.after([again]).kept == again


@given(rows)
def test_what_is_kept_is_never_further_below_the_best_than_the_margin(found):
    every = [one(n, r, a) for n, a, r in found]
    best = max(c.val_right for c in every)
    kept = select(every)
    assert kept.val_right >= best - margin(best, IMAGES)
    assert all(c.val_right < best - margin(best, IMAGES) for c in every if c.when > kept.when)


def test_joining_helped_where_what_others_had_a_part_in_is_kept():
    alone = one(3, 11, "alone", alone=True)
    assert Choice().after([alone, one(3, 11)]).helped is True
    assert Choice().after([alone, one(3, 5)]).helped is False
    assert Choice().after([alone]).helped is None
    assert Choice().after([one(3, 5)]).helped is None
    assert Choice().after([replace(alone, val_images=0), one(3, 0, images=0)]).helped is None


def test_a_joined_model_was_trained_longer_than_one_of_the_warm_up_not_than_one_of_its_round():
    begun, after = one(0, 5, alone=True), one(3, 9)
    assert Choice().after([begun]).after([after]).trained_longer
    assert not Choice().after([begun]).trained_longer
    assert not Choice().after([one(3, 5, "alone", alone=True), after]).trained_longer


def test_candidates_are_the_answers_that_were_measured_each_once():
    val, tuned, alone = evaluation(3), evaluation(2), evaluation(1)
    said = {
        "val": val, "test": val, "val_common": val, "test_common": val,
        "val_tuned": tuned, "test_tuned": tuned, "val_alone": alone, "test_before": val,
    }  # fmt: skip
    assert candidates(4, said, apart=False) == (
        Candidate(4, "alone", True, 1, 4, 0, 0),
        Candidate(4, "tuned", False, 2, 4, 2, 4),
        Candidate(4, "used", False, 3, 4, 3, 4),
    )
    assert candidates(4, {"test": val}, False) == ()
    [before_it_joins] = candidates(0, {"val": val}, apart=True)
    assert before_it_joins.alone


def by_class(*rows):
    """An evaluation with these rows of the confusion matrix of two classes."""
    images, right = sum(map(sum, rows)), rows[0][0] + rows[1][1]
    return Evaluation(rows, (images,), (right,), (images / 2,))


def test_a_model_that_never_finds_a_class_is_kept_by_accuracy_and_not_by_balanced_accuracy():
    blind = {"val": by_class((90, 0), (10, 0))}  # 90 % right, balanced 50 %
    seeing = {"val": by_class((70, 20), (1, 9))}  # 79 % right, balanced 84 %
    for metric, kept in (("accuracy", 1), ("balanced_accuracy", 2), ("kappa", 2), ("f1", 2)):
        first, second = candidates(1, blind, False, metric), candidates(2, seeing, False, metric)
        assert Choice().after(first).after(second).kept.round == kept
        assert Choice().after(second).after(first).kept.round == kept
    assert candidates(1, blind, False)[0].worth is None
    assert candidates(1, blind, False, "balanced_accuracy")[0].worth == 0.5


def test_what_a_site_trained_alone_is_a_candidate_though_it_was_measured_by_itself():
    alone = {"val_alone": evaluation(3), "val_one_round": evaluation(4)}
    assert [(c.answer, c.alone) for c in candidates(0, alone, False)] == [("alone", True)]
    choice = Choice().after(candidates(0, alone, False)).after([one(0, 4, images=4)])
    assert choice.joined == one(0, 4, images=4) and choice.alone.val_right == 3


def test_a_verdict_compares_the_kept_model_where_its_kind_would_choose_another_by_hand():
    """Of 30 images 25 alone, then 24, 23 and 20 together: within m = 1.0 of 25 lies 24, and of 24
    also 23, which a choice among the joined ones alone takes."""
    alone = one(0, 25, "alone", True, images=30)
    first, later, last = (one(n, right, images=30) for n, right in ((1, 24), (6, 23), (10, 20)))
    choice = Choice()
    for new in (alone, first, later, last):
        choice = choice.after([new])
    assert (choice.kept, choice.joined) == (first, later)
    assert choice.compared == (first, alone)
    turned = Choice(tuple(replace(c, alone=not c.alone) for c in (alone, first, later)))
    joined, kept, _ = turned.candidates
    assert turned.kept == kept and turned.compared == (joined, kept)
    assert Choice().compared == (None, None)


def test_how_far_a_model_is_from_a_sensitivity_by_hand():
    """9 of 10 and 4 of 10: the worst class lacks 0.3 of 0.7; of 9 images nothing is said."""
    said = ((9, 1), (6, 4))
    assert sensitivity_shortfall(0.7, said) == pytest.approx(0.3)
    assert sensitivity_shortfall(0.4, said) == sensitivity_shortfall(0.0, said) == 0
    assert sensitivity_shortfall(0.7, ((9, 1), (9, 0))) == 0  # too few of the second class
    assert sensitivity_shortfall(1.0, ((0, 0), (0, 0))) == 0


def test_the_kept_model_finds_each_class_or_comes_nearest():
    blind = by_class((90, 0), (10, 0))  # right on 90 of 100, and finds none of the second class
    fair, nearer = by_class((60, 30), (2, 8)), by_class((70, 20), (5, 5))

    def kept(least, *said):
        found = [candidates(n, {"val": one}, False, least=least)[0] for n, one in enumerate(said)]
        return select(found).round

    assert kept(0.0, blind, nearer, fair) == 0
    assert kept(0.6, blind, fair, nearer) == 1  # alone in having it
    assert kept(0.9, blind, nearer, fair) == 2  # lacks least
    assert kept(0.4, fair, nearer) == 1  # both have it: more are right, and it is later


@given(rows, st.lists(st.sampled_from((0.0, 0.1, 0.5)), min_size=20, max_size=20))
def test_what_is_dropped_never_matters_where_a_sensitivity_is_asked_for(found, shorts):
    every = [
        replace(one(n, right, a, a == "alone"), short=short)
        for (n, a, right), short in zip(found, shorts, strict=False)
    ]
    choice = Choice()
    for number in sorted({c.round for c in every}):
        choice = choice.after([c for c in every if c.round == number])
    assert choice.kept == select(every)
    assert choice.alone == select([c for c in every if c.alone])
