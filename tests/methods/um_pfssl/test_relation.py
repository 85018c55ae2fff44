"""Corr, ReplaceHelper and pseudo-labels: by hand, degenerate, extremes."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedapp.methods.um_pfssl.relation import (
    PREPRINT_FLOOR,
    admit,
    certainty,
    least_uncertain,
    most_informative,
    relation,
)
from fedapp.protocol.messages import ModelRef, ScoredRef


def scored(site, score):
    return ScoredRef(ModelRef(site, 1, "0" * 64), score)


def sites(helpers):
    return [h.model.site for h in helpers]


SURE = torch.eye(4)  # certain, a different answer for each image
ONE_ANSWER = torch.eye(4)[[0, 0, 0, 0]]
LOST = torch.full((4, 4), 0.25)
# two classes out of four, evenly: H = ln 2 on each image, ln 2 / ln 4 = 1/2
HALF = torch.tensor([[0.5, 0.5, 0, 0], [0, 0, 0.5, 0.5]])


def test_published_by_hand():
    assert certainty(HALF, "published") == pytest.approx(0.5)
    assert certainty(SURE, "published") == 1.0
    assert certainty(ONE_ANSWER, "published") == 1.0  # the flaw: narrow and sure scores best
    assert certainty(LOST, "published") == pytest.approx(0.0)


def test_preprint_by_hand_and_guarded():
    assert certainty(HALF, "preprint") == pytest.approx(2.0)
    assert certainty(LOST, "preprint") == pytest.approx(1.0)
    assert certainty(SURE, "preprint") == pytest.approx(1 / PREPRINT_FLOOR)


def test_mutual_information_by_hand():
    assert certainty(SURE, "mutual_information") == pytest.approx(1.0)
    assert certainty(ONE_ANSWER, "mutual_information") == 0.0
    assert certainty(LOST, "mutual_information") == pytest.approx(0.0)
    # marginal uniform over 4 (ln 4), mean entropy ln 2: (2 ln 2 - ln 2) / (2 ln 2)
    assert certainty(HALF, "mutual_information") == pytest.approx(0.5)


@pytest.mark.parametrize(("variant", "value"), [
    ("published", 1.0), ("preprint", 1 / PREPRINT_FLOOR), ("mutual_information", 0.0),
])  # fmt: skip
def test_one_class_and_one_image(variant, value):
    assert certainty(torch.ones(3, 1), variant) == pytest.approx(value)
    assert math.isfinite(certainty(torch.tensor([[0.2, 0.8]]), variant))


@given(st.integers(1, 20), st.integers(2, 6), st.integers(0, 2**31))
def test_certainty_stays_in_its_range(images, classes, seed):
    stream = torch.Generator().manual_seed(seed)
    rows = torch.softmax(20 * torch.randn(images, classes, generator=stream), 1)
    for variant, low, high in [
        ("published", 0, 1), ("mutual_information", 0, 1), ("preprint", 1, 1 / PREPRINT_FLOOR)
    ]:  # fmt: skip
        assert low - 1e-9 <= certainty(rows, variant) <= high + 1e-9


def test_relation_by_hand():
    assert relation(0.25, 0.8, 0.4, "both") == pytest.approx(0.75 * 0.8 + 0.25 * 0.4)
    assert relation(0.25, 0.8, 0.4, "entropy") == 0.8
    assert relation(0.25, 0.8, 0.4, "accuracy") == 0.4


def test_relation_at_the_ends_of_mu():
    for metric in ("both", "entropy", "accuracy"):
        assert relation(0.0, 0.7, None, metric) == 0.7
        assert relation(1.0, None, 0.6, metric) == 0.6
        assert relation(0.0, None, None, metric) == 0.0


def test_newcomer_takes_the_worst_candidates_place():
    helpers = [scored(1, 0.9), scored(2, 0.8), scored(3, 0.3), scored(4, 0.2)]
    assert sites(admit(helpers, [scored(9, 0.25)], 4, 2)) == [1, 2, 3, 9]
    assert sites(admit(helpers, [scored(9, 0.5), scored(8, 0.4)], 4, 2)) == [1, 2, 9, 8]


def test_only_the_lowest_r_are_up_for_replacement():
    helpers = [scored(1, 0.9), scored(2, 0.8), scored(3, 0.3), scored(4, 0.2)]
    best = [scored(k, 1.0) for k in (7, 8, 9)]
    assert sites(admit(helpers, best, 4, 2)) == [7, 8, 1, 2]
    assert sites(admit(helpers, best, 4, 0)) == [1, 2, 3, 4]


def test_equal_is_not_better_and_free_places_are_filled():
    assert sites(admit([scored(1, 0.5)], [scored(9, 0.5)], 1, 1)) == [1]
    assert sites(admit([], [scored(9, 0.0), scored(8, 0.1)], 4, 2)) == [8, 9]
    assert admit([], [], 4, 2) == ()
    assert admit([], [scored(9, 0.5)], 0, 0) == ()  # M = 1: no helpers at all


@given(st.data())
def test_admit_matches_algorithm_3_step_by_step(data):
    """Best newcomers first, each takes the worst candidate's place if it is strictly better."""
    score = st.integers(0, 6).map(lambda n: n / 6)
    places = data.draw(st.integers(1, 6))
    helpers = [scored(k, data.draw(score)) for k in range(places)]  # a full list
    replaced = data.draw(st.integers(0, places))
    newcomers = [scored(100 + k, data.draw(score)) for k in range(data.draw(st.integers(0, 4)))]

    order = sorted(helpers, key=lambda h: (-h.score, h.model.site))
    safe, candidates = order[: places - replaced], order[places - replaced :]
    for newcomer in sorted(newcomers, key=lambda h: (-h.score, h.model.site)):
        worst = min(candidates, key=lambda h: (h.score, -h.model.site), default=None)
        if worst is not None and newcomer.score > worst.score and worst in helpers:
            candidates[candidates.index(worst)] = newcomer
    after = admit(helpers, newcomers, places, replaced)
    assert sorted(h.score for h in after) == sorted(h.score for h in (*safe, *candidates))


def test_pseudo_label_is_the_surest_helpers_answer():
    first = torch.tensor([[1.0, 0.0], [0.5, 0.5]])
    second = torch.tensor([[0.6, 0.4], [0.1, 0.9]])
    labels, chosen = least_uncertain([first, second])
    assert chosen.tolist() == [0, 1]
    assert torch.equal(labels, torch.tensor([[1.0, 0.0], [0.1, 0.9]]))


def test_pseudo_labels_of_one_helper_are_its_own_and_ties_go_to_the_first():
    only = torch.tensor([[0.3, 0.7]])
    labels, chosen = least_uncertain([only])
    assert torch.equal(labels, only)
    _, chosen = least_uncertain([only, only.flip(1)])
    assert chosen.tolist() == [0]
    assert least_uncertain([torch.empty(0, 3)])[0].shape == (0, 3)


def test_the_most_informative_answer_by_hand():
    """KL to the helper's own mean; two images, two classes, mean (1/2, 1/2) for the first helper.

    First: P = (3/4, 1/4) and (1/4, 3/4): 3/4 ln 3/2 + 1/4 ln 1/2 = 0.1308 on both images. Second:
    P = (1, 0) and (0.99, 0.01), mean (0.995, 0.005): 0.0050 and 0.0020. It is surer of both images
    and tells less of either.
    """
    first = torch.tensor([[0.75, 0.25], [0.25, 0.75]])
    second = torch.tensor([[1.0, 0.0], [0.99, 0.01]])
    labels, chosen = most_informative([second, first])
    assert chosen.tolist() == [1, 1] and torch.equal(labels, first)
    assert least_uncertain([second, first])[1].tolist() == [0, 0]
    told = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    assert certainty(first, "mutual_information") * math.log(2) == pytest.approx(told, abs=1e-6)


def test_helpers_without_a_prior_of_their_own_are_chosen_by_certainty():
    """Where each helper's mean answer is uniform, KL = ln C - H: the least uncertain one."""
    draws = torch.rand(3, 50, 1, generator=torch.Generator().manual_seed(0))
    pairs = torch.cat([draws, 1 - draws], 2)
    helpers = list(torch.cat([pairs, pairs.flip(2)], 1))
    assert torch.equal(most_informative(helpers)[1], least_uncertain(helpers)[1])
    assert torch.equal(most_informative(helpers)[0], least_uncertain(helpers)[0])


def test_the_most_informative_at_the_extremes():
    _, chosen = most_informative([ONE_ANSWER, LOST, SURE])
    assert chosen.tolist() == [2, 2, 2, 2]
    _, chosen = most_informative([ONE_ANSWER, LOST])  # nobody tells anything: the first
    assert chosen.tolist() == [0, 0, 0, 0]
    only = torch.tensor([[0.3, 0.7]])
    assert torch.equal(most_informative([only])[0], only)
    assert most_informative([torch.empty(0, 3)])[0].shape == (0, 3)
