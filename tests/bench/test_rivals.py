"""python -m bench.rivals: other papers' heads against the library's and by hand."""

from functools import reduce
from operator import add
from pathlib import Path

import numpy as np
import pytest
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.naive_bayes import GaussianNB

from bench import heads
from bench.heads import Head, Moments
from bench.rivals import (
    ALONE,
    OURS,
    Cell,
    Rival,
    Site,
    Sites,
    cases_of,
    chosen,
    experiment_of,
    measured,
    rows,
)
from fedapp.core.errors import ConfigError


@pytest.fixture
def sites():
    """Six sites, 20 images of each of 3 classes in all, 4 features; no site has every class."""
    draw = np.random.default_rng(0)
    y = np.repeat(np.arange(3), 20)
    x = draw.normal(size=(60, 4)) * [1, 2, 0.5, 1] + draw.normal(size=(3, 4))[y]
    return [(x[k : k + 10], y[k : k + 10]) for k in range(0, 60, 10)]


@pytest.fixture
def pooled(sites):
    x, y = zip(*sites, strict=True)
    return np.concatenate(x), np.concatenate(y)


def test_afl_aggregates_the_sites_own_solutions_to_the_pooled_ridge(sites, pooled):
    """Exactly, whatever the split: also where a site has fewer images than features."""
    x, y = pooled
    level = 0.3 / ((x.T @ x).trace() / 4)
    head = heads.ridge(pooled, 3, level)
    found = heads.absolute_aggregation(sites, 3, 0.3)
    np.testing.assert_allclose(x @ found, head.scores(x), rtol=1e-8, atol=1e-10)
    uneven = [(x[:2], y[:2]), (x[2:], y[2:])]
    np.testing.assert_allclose(heads.absolute_aggregation(uneven, 3, 0.3), found, atol=1e-10)
    one = heads.ridge((np.array([[2.0]]), np.array([1])), 2, 1.0)  # 2 / (4 + 4)
    assert one.scores(np.array([[1.0]])) == pytest.approx(np.array([[0, 0.25]]))


def test_heads_of_summed_moments_are_the_librarys(sites, pooled):
    x, y = pooled
    moments = reduce(add, (Moments.of(known, 3) for known in sites))
    np.testing.assert_allclose(moments.second, Moments.of(pooled, 3).second)

    for shrinkage in (0.0, 0.4):
        theirs = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=shrinkage or None).fit(x, y)
        same_up_to_a_constant(heads.lda(moments, shrinkage), x, theirs.decision_function(x))
    theirs = GaussianNB(var_smoothing=0).fit(x, y).predict_joint_log_proba(x)
    same_up_to_a_constant(heads.naive_bayes(moments, 0.0), x, theirs)

    from scipy.stats import multivariate_normal

    each = [
        multivariate_normal(x[y == c].mean(0), np.cov(x[y == c].T, bias=True)).logpdf(x)
        for c in range(3)
    ]
    same_up_to_a_constant(heads.qda(moments, 0.0), x, np.stack(each, 1))


def test_em_of_images_that_nobody_mistakes_is_lda_of_all_with_labels():
    """Classes 20 standard deviations apart; weight 0 or no image: LDA of the labelled ones."""
    y = np.repeat([0, 1, 2], 20)
    x = np.random.default_rng(0).normal(size=(60, 4)) + 20 * np.eye(4)[y]
    labelled = Moments.of((x[::10], y[::10]), 3)
    others = [(x, np.full(3, 1 / 3)), (np.zeros((0, 4)), np.array([0.8, 0.1, 0.1]))]
    every = heads.lda(labelled + Moments.of((x, y), 3), 0.2)
    same_up_to_a_constant(heads.lda_em(labelled, others, 0.2, 1.0), x, every.scores(x))
    for without in (heads.lda_em(labelled, others, 0.2, 0.0), heads.lda_em(labelled, [], 0.2, 1.0)):
        same_up_to_a_constant(without, x, heads.lda(labelled, 0.2).scores(x))


def test_a_step_of_em_by_hand(monkeypatch):
    """An image in the middle of two classes is of each as the site's mix says."""
    monkeypatch.setattr(heads, "EM_STEPS", 1)
    x = np.array([[0.0], [2.0], [4.0], [6.0]])
    labelled, mix = Moments.of((x, np.array([0, 0, 1, 1])), 2), np.array([0.8, 0.2])
    middle = np.array([[3.0]])
    head = heads.lda_em(labelled, [(middle, mix)], 0.2, 0.5)
    wanted = heads.lda(labelled + Moments.expected(middle, 0.5 * mix[None]), 0.2)
    np.testing.assert_allclose(head.scores(x), wanted.scores(x))


def test_a_cell_without_guesses_has_none():
    made = experiment_of("clothes", Path(), "1 %", 0.5, 0, {"method.guesses": 0})
    assert made.method.guesses == 0 and made.split.label_share == 0.01


def test_what_images_are_expected_to_be_by_hand():
    """An image at 2, three quarters of it class 1: counts, sums and squares by class."""
    of = Moments.expected(np.array([[2.0]]), np.array([[0.25, 0.75]]))
    assert (of.counts.tolist(), of.first.tolist()) == ([0.25, 0.75], [[0.5], [1.5]])
    assert of.second.tolist() == [[[1.0]], [[3.0]]]


def same_up_to_a_constant(head, x, scores):
    """Compare scores but for what all classes have in common, which no answer depends on."""
    found = head.scores(x)
    found = found - found.mean(1, keepdims=True)
    np.testing.assert_allclose(found, scores - scores.mean(1, keepdims=True), atol=1e-6)


def test_fedcgs_has_the_direction_of_lda(pooled):
    """Of two classes: Fisher's direction is the same by either covariance."""
    x, y = pooled
    two = Moments.of((x[y < 2], y[y < 2]), 2)
    directions = [
        (said := head.scores(np.eye(4)) - head.scores(np.zeros((1, 4))))[:, 1] - said[:, 0]
        for head in (heads.fedcgs(two, 0.0), heads.lda(two, 0.0))
    ]
    one, other = (d / np.linalg.norm(d) for d in directions)
    np.testing.assert_allclose(one, other, atol=1e-8)


def test_a_class_without_images_is_nobodys_answer(pooled):
    moments = Moments.of(pooled, 5)
    made = [heads.fedcgs(moments, 0.1), heads.lda(moments, 0.1), heads.naive_bayes(moments, 0.1)]
    made += [heads.qda(moments, 0.1), heads.logistic(pooled, 5, 1.0)]
    for head in made:
        said = heads.times_mix(head, head.scores(pooled[0]), 10.0, np.full(5, 0.2))
        assert set(said) <= {0, 1, 2}
    only = heads.logistic((np.ones((2, 4)), np.array([3, 3])), 5, 1.0)
    assert only.scores(np.zeros((1, 4))).argmax() == 3


def test_a_step_of_fedavg_by_hand():
    """From 0, sites of one class each: softmax(ln mix) is the mix, 3/4 for the own class."""
    given = [(np.array([[1.0], [3.0]])[:1], np.array([0])), (np.array([[2.0]]), np.array([1]))]
    head = heads.fedavg([*given, (np.zeros((0, 1)), np.zeros(0, int))], 2, 0.8, 1, 1)
    # Each site's gradient: feature x (own mix - truth) = feature x (-1/4, 1/4) for its own class.
    own, other = 0.8 * np.array([1, -1]) / 4, 0.8 * 2 * np.array([-1, 1]) / 4
    weight = head.scores(np.ones((1, 1))) - head.scores(np.zeros((1, 1)))
    assert weight[0] == pytest.approx((own + other) / 2)
    assert head.scores(np.zeros((1, 1)))[0] == pytest.approx([0, 0])


def test_another_mix_by_bayes_rule():
    """Odds of 2 to 1 among even classes are 1 to 2 where the other is four times as frequent."""
    head = Head(lambda x: np.log(x), np.array([0.5, 0.5]))
    scores = head.scores(np.array([[2 / 3, 1 / 3]]))
    assert heads.times_mix(head, scores, 1.0, np.array([0.2, 0.8])) == [1]
    assert heads.times_mix(head, scores, 0.1, np.array([0.2, 0.8])) == [0]  # 2^10 to 1


def test_each_site_counts_once_and_is_answered_for_its_mix():
    """Two sites of one class each, features without meaning: the mix alone is right."""
    known = [(np.zeros((3, 2)), np.full(3, c)) for c in (0, 1)]
    every = [
        Site(k, np.zeros((0, 2)), np.zeros((n, 2)), np.full(n, c))
        for c, (k, n) in enumerate(zip(known, (1, 9), strict=True))
    ]
    none = Site(known[0], np.zeros((0, 2)), np.zeros((0, 2)), np.zeros(0, int))
    head = Head.linear(np.zeros((2, 2)), np.array([0.1, 0.0]), np.array([0.5, 0.5]))
    rival = Rival(lambda sites, tried: (head, 8.0, 4.0), (None,))
    found = measured(rival, Sites([*every, none], 2, 0), None)
    assert found["common"] == 50 and found["own"]["1.0"] == 100
    assert found["own"]["0.03"] == 50  # the head's 0.1 is then 3.3, ln of the mix's odds is 1.9


def test_the_first_of_the_best_settings_is_chosen():
    own = [{"1.0": 5.0}, {"1.0": 7.0}, {"1.0": 7.0}]
    found = [
        {
            "common": c,
            "own": {**dict.fromkeys(map(str, (0.03, 0.1, 0.3, 3.0, 10.0, 30.0, 100.0)), 0.0), **o},
        }
        for c, o in zip((2.0, 3.0, 3.0), own, strict=True)
    ]
    assert chosen(found) == {"common": 1, "own": 1, "temperature": "1.0"}


def test_a_share_of_labels_that_was_not_planned_is_named():
    assert cases_of("xrays", "1,10") == ["1 %", "10 %"]
    assert "50 %, shift 1" in cases_of("clothes", "")
    with pytest.raises(ConfigError, match=r"--labels 3 %: must be of 50, 20, 5, 1:"):
        cases_of("clothes", "20,3")


def test_rows_have_paired_differences():
    """one_round ahead by 10 and 20: 15 +- 63.5 with t = 12.7 for two seeds."""
    ours = {740: 80.0, 741: 90.0}
    cost = {"seconds": 1.0, "up": 2000.0, "down": 1000.0}
    found = {
        seed: {
            OURS: {"common": of, "own": of, **cost, "exchanges": 4},
            ALONE: {"common": None, "own": 70.0},
            "AFL": {"common": 70.0, "own": 70.0, **cost},
        }
        for seed, of in ours.items()
    }
    table = rows(Cell("xrays", Path(), "1 %", 5.0, Path()), found)
    assert [row["answer"] for row in table] == [OURS, ALONE, "AFL"]
    assert table[2]["one_round ahead"] == "+15.0 ± 63.5" and table[0]["own mix"] == "85.0 ± 63.5"
    assert table[1]["one for all"] == "" and table[2]["exchanges"] == 1 and table[2]["kB up"] == 2
