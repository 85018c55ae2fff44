"""AUROC and average precision from counts of scores: by hand, by scikit-learn, at the extremes."""

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, roc_auc_score

from fedapp.core.errors import RunError
from fedapp.evaluation.confidence_intervals import delong_test, placements
from fedapp.evaluation.ranking_metrics import (
    BIN_EDGES,
    PooledScores,
    class_means,
    ranking_quality,
    score_counts,
)
from fedapp.protocol.messages import SCORE_BINS


def counts_of(scores, of):
    """Return the counts [2 B] of one class's scores [n]; of: which images are of it."""
    both = np.stack([1 - scores, scores], 1)
    return score_counts(both, of.astype(np.int64))[1]


def drawn(seed, images=400, share=0.2, shift=1.5):
    """Return scores with several in most bins, and which are of the class."""
    rng = np.random.default_rng(seed)
    of = rng.random(images) < share
    of[:10], of[-10:] = True, False
    return 1 / (1 + np.exp(-rng.normal(shift * of, 2.0))), of


def rounded(scores):
    return np.searchsorted(BIN_EDGES, scores, side="right")


def test_by_hand():
    """Of 6 pairs the class wins 4, and 1 lies in one bin: 4.5 / 6."""
    scores, of = np.array([0.9, 0.3, 0.3001, 0.2, 0.8]), np.array([1, 1, 0, 0, 0]) == 1
    found = ranking_quality(counts_of(scores, of), 1)
    assert found.auroc == pytest.approx((3 + 1.5) / 6)
    assert found.within == pytest.approx(1 / 12)
    # From the top: one of 1 is right, then two of 4.
    assert found.average_precision == pytest.approx(1 / 2 * 1 + 1 / 2 * 2 / 4)


@pytest.mark.parametrize("seed", range(20))
def test_it_is_scikit_learns_of_the_rounded_scores(seed):
    scores, of = drawn(seed, share=0.05 + 0.04 * seed, shift=seed / 5)
    found = ranking_quality(counts_of(scores, of))
    assert found.auroc == pytest.approx(roc_auc_score(of, rounded(scores)), abs=1e-12)
    exact = average_precision_score(of, rounded(scores))
    assert found.average_precision == pytest.approx(exact, abs=1e-12)
    off = abs(found.auroc - roc_auc_score(of, scores))
    assert off <= found.within + 1e-12 and found.within < 0.02


def test_the_bound_is_met_where_one_bin_holds_all():
    scores, of = np.linspace(0.5001, 0.5002, 20), np.arange(20) >= 10
    found = ranking_quality(counts_of(scores, of))
    assert (found.auroc, found.within) == (0.5, 0.5) and roc_auc_score(of, scores) == 1


def test_the_interval_is_delongs():
    scores, of = drawn(3)
    found = ranking_quality(counts_of(scores, of))
    one = delong_test(rounded(scores).astype(float), np.zeros(len(of)), of)  # of nothing: 0.5 each
    assert (found.low, found.high) == pytest.approx([0.5 + end for end in one.interval])
    assert found.auroc == pytest.approx(placements(rounded(scores), of)[0].mean())


@pytest.mark.parametrize(("high", "auroc"), [(True, 1.0), (False, 0.0)])
def test_perfect_and_reversed(high, auroc):
    of = np.arange(30) % 2 == 0
    found = ranking_quality(counts_of(np.where(of == high, 0.99, 0.01), of))
    assert found.auroc == auroc and found.within == 0


def test_a_constant_score_says_nothing():
    of = np.arange(40) < 15
    found = ranking_quality(counts_of(np.full(40, 0.7), of))
    assert found.auroc == 0.5 and found.average_precision == 15 / 40
    assert (found.low, found.high) == (0.5, 0.5) and found.within == 0.5


def test_0_and_1_and_each_edge_have_a_bin():
    scores = np.array([0.0, 1e-30, 0.5, 1 - 1e-9, 1.0])
    assert rounded(scores).tolist() == [0, 0, SCORE_BINS // 2, SCORE_BINS - 1, SCORE_BINS - 1]
    assert len(BIN_EDGES) == SCORE_BINS - 1 and (np.diff(BIN_EDGES) > 0).all()


@pytest.mark.parametrize(("ours", "others"), [(0, 50), (50, 0), (9, 50), (50, 9), (0, 0)])
def test_of_few_images_nothing_is_said(ours, others):
    of = np.arange(ours + others) < ours
    assert ranking_quality(counts_of(np.full(len(of), 0.5), of)) is None


def test_an_answer_that_is_nan_is_refused():
    with pytest.raises(RunError, match="NaN"):
        score_counts(np.array([[np.nan, 0.5]]), np.array([0]))


def test_a_finding_that_was_not_read_is_not_counted():
    counts = score_counts(np.full((4, 2), 0.6), np.array([[1, -1], [0, -1], [-1, 1], [1, 0]]))
    both = counts.reshape(2, 2, SCORE_BINS).sum(2)
    assert both.tolist() == [[2, 1], [1, 1]]


def test_sites_counts_are_the_counts_of_all_images():
    """The pitfall: by sites' mean the model is no better than chance; over all images it is."""
    scores, of = drawn(5)
    pooled = PooledScores()
    for part in np.array_split(np.arange(len(of)), 7):
        both = np.stack([1 - scores[part], scores[part]], 1)
        pooled.add(score_counts(both, of[part].astype(np.int64)))
    case = ranking_quality(counts_of(scores, of))
    row = pooled.rows()[1]
    assert row["auroc"] == case.auroc and row["sites_in_mean"] == 7
    few = PooledScores()
    for case, others in ((0.4, [0.5] * 10), (0.4, [0.5] * 10), *[(0.9, [0.1] * 10)] * 10):
        site = np.array([case, *others])
        few.add(score_counts(np.stack([1 - site, site], 1), np.arange(11) == 0))
    case = few.rows()[1]
    assert case["auroc_of_sites"] == pytest.approx(10 / 12) and case["sites_in_mean"] == 12
    assert case["auroc"] == pytest.approx((10 * 120 + 2 * 100) / (12 * 120))


def test_all_sites_as_one_have_no_mean_over_sites_and_nothing_has_no_rows():
    scores, of = drawn(1)
    pooled = PooledScores()
    pooled.add(score_counts(np.stack([1 - scores, scores], 1), of.astype(np.int64)), False)
    rows = pooled.rows()
    assert rows[1]["auroc"] is not None and rows[1]["auroc_of_sites"] is None
    assert class_means(rows)["auroc"] == pytest.approx(rows[0]["auroc"])
    assert (
        PooledScores().rows() == []
        and class_means([]) == {}
        and class_means([{"class": "a"}]) == {}
    )
