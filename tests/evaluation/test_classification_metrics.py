"""Every metric is scikit-learn's on random cases, by hand, and at the borders."""

import numpy as np
import pytest
from sklearn import metrics as theirs

from fedapp.core.errors import RunError
from fedapp.evaluation.classification_metrics import (
    METRICS,
    MIN_CLASS_IMAGES,
    accuracy,
    balanced_accuracy,
    brier,
    confusion_matrix,
    enough_images_per_class,
    f1,
    kappa,
    mean_of_known,
    metric_value,
    one_vs_rest,
    sensitivity,
    specificity,
)
from fedapp.evaluation.confidence_intervals import (
    bootstrap_weights,
    percentile_interval,
    resampled_counts,
    resampled_one_vs_rest,
)

HAND = np.array([[8, 2, 0], [1, 3, 0], [0, 1, 5]])  # 20 images


def drawn(seed, classes=4, images=200, odds=None):
    """Return probabilities [n, C], some of them equal, and labels of which some are rare."""
    stream = np.random.default_rng(seed)
    labels = stream.choice(classes, images, p=odds)
    scores = stream.dirichlet(np.ones(classes), images) + 0.4 * np.eye(classes)[labels]
    scores = np.round(scores, 1) + 1e-3  # ties
    return scores / scores.sum(1, keepdims=True), labels


def test_numbers_by_hand():
    assert sensitivity(HAND).tolist() == pytest.approx([0.8, 0.75, 5 / 6])
    assert specificity(HAND).tolist() == pytest.approx([9 / 10, 13 / 16, 1])
    assert accuracy(HAND) == pytest.approx(0.8)
    assert balanced_accuracy(HAND) == pytest.approx((0.8 + 0.75 + 5 / 6) / 3)
    assert f1(HAND) == pytest.approx((16 / 19 + 6 / 10 + 10 / 11) / 3)
    # By chance: (10 * 9 + 4 * 6 + 6 * 5) / 400 = 0.36.
    assert kappa(HAND) == pytest.approx((0.8 - 0.36) / (1 - 0.36))


@pytest.mark.parametrize("seed", range(20))
def test_metrics_of_counts_are_scikit_learns(seed):
    odds = [0.6, 0.3, 0.09, 0.01] if seed % 2 else None
    probabilities, labels = drawn(seed, odds=odds)
    said, counts = probabilities.argmax(1), confusion_matrix(probabilities, labels)
    every = list(range(4))
    assert counts.tolist() == theirs.confusion_matrix(labels, said, labels=every).tolist()
    assert accuracy(counts) == pytest.approx(theirs.accuracy_score(labels, said))
    assert balanced_accuracy(counts) == pytest.approx(theirs.balanced_accuracy_score(labels, said))
    assert f1(counts) == pytest.approx(theirs.f1_score(labels, said, average="macro"))
    assert kappa(counts) == pytest.approx(theirs.cohen_kappa_score(labels, said))
    recalls = theirs.recall_score(labels, said, labels=every, average=None, zero_division=np.nan)
    assert sensitivity(counts) == pytest.approx(recalls, nan_ok=True)
    per_class = theirs.multilabel_confusion_matrix(labels, said, labels=every)
    true_negatives, false_positives = per_class[:, 0, 0], per_class[:, 0, 1]
    assert specificity(counts) == pytest.approx(true_negatives / (true_negatives + false_positives))


@pytest.mark.parametrize("seed", range(10))
def test_metrics_of_scores_are_scikit_learns(seed):
    probabilities, labels = drawn(seed)
    found = one_vs_rest(probabilities, labels, at_specificity=0.9)
    whole = theirs.roc_auc_score(labels, probabilities, multi_class="ovr", average="macro")
    assert mean_of_known([one.auroc for one in found]) == pytest.approx(whole)
    hot = np.eye(4)[labels]
    assert mean_of_known([one.average_precision for one in found]) == pytest.approx(
        theirs.average_precision_score(hot, probabilities, average="macro")
    )
    squares = ((probabilities - hot) ** 2).sum(1).mean()
    assert brier(probabilities, labels) == pytest.approx(squares)


@pytest.mark.parametrize("seed", range(5))
def test_resamples_are_scikit_learns_of_weighted_images(seed):
    probabilities, labels = drawn(seed, images=80)
    times = bootstrap_weights(80, "test", 7)
    assert times.sum(1).tolist() == [80] * 7
    said = probabilities.argmax(1)
    counts = resampled_counts(times, said, labels, 4)
    scores, of = probabilities[:, 1], labels == 1
    area, average, reached = resampled_one_vs_rest(times, scores, of, 0.9)
    for b, weight in enumerate(times):
        own = {"sample_weight": weight}
        assert area[b] == pytest.approx(theirs.roc_auc_score(of, scores, **own))
        assert average[b] == pytest.approx(theirs.average_precision_score(of, scores, **own))
        wrong, right, _ = theirs.roc_curve(of, scores, drop_intermediate=False, **own)
        assert reached[b] == pytest.approx(right[wrong <= 0.1 + 1e-12].max())
        repeated = np.repeat(np.arange(80), weight)
        again = confusion_matrix(probabilities[repeated], labels[repeated])
        assert counts[b].tolist() == again.tolist()


def test_the_bootstrap_covers_the_truth_in_19_of_20():
    """500 draws of 100 images at accuracy 0.7: covered 95 % +- 2.5 points.

    The exact binomial coverage of such an interval is 94 %; 5 deviations of 500 draws are 5 points,
    so that this fails by chance less than once in 10^5.
    """
    stream, held = np.random.default_rng(0), 0
    times = bootstrap_weights(100, "coverage")
    for _ in range(500):
        right = (stream.random(100) < 0.7).astype(float)
        low, high = percentile_interval(times @ right / 100)
        held += low <= 0.7 <= high
    assert 0.89 <= held / 500 <= 0.99


def test_a_class_absent_from_the_test_images_is_left_out():
    probabilities, labels = drawn(1, images=300)
    there = labels != 2
    found = one_vs_rest(probabilities[there], labels[there], at_specificity=0.9)
    assert found[2].images == 0 and found[2].average_precision is None
    assert found[0].auroc is not None
    counts = confusion_matrix(probabilities[there], labels[there])
    assert np.isnan(sensitivity(counts)[2])
    said = probabilities[there].argmax(1)
    with pytest.warns(UserWarning, match="y_pred contains classes not in y_true"):
        whole = theirs.balanced_accuracy_score(labels[there], said)
    assert balanced_accuracy(counts) == pytest.approx(whole)
    assert percentile_interval(np.array([0.5, np.nan])) is None


def test_a_constant_score_tells_nothing():
    labels = np.repeat([0, 1], 20)
    even = np.full((40, 2), 0.5)
    [one, _] = one_vs_rest(even, labels, at_specificity=0.9)
    assert (one.auroc, one.average_precision, one.sensitivity_at) == (0.5, 0.5, 0)
    counts = confusion_matrix(even, labels)
    assert (balanced_accuracy(counts), kappa(counts)) == (0.5, 0)


def test_extremes():
    right, nothing = np.diag([5, 5]), np.zeros((2, 2), dtype=np.int64)
    for metric, of in METRICS.items():
        assert of(right) == 1
        assert metric_value(metric, nothing.tolist()) is None
    assert metric_value("kappa", [[5, 0], [0, 0]]) is None  # one class, and no other answer
    assert metric_value("accuracy", [[5, 0], [0, 0]]) == 1
    perfect = np.eye(2)[np.repeat([0, 1], 20)]
    assert brier(perfect, np.repeat([0, 1], 20)) == 0
    assert brier(np.empty((0, 2)), np.empty(0, dtype=np.int64)) is None


def test_an_answer_that_is_nan_is_refused():
    probabilities, labels = drawn(0)
    probabilities[3, 1] = np.nan
    for ask in (
        lambda: one_vs_rest(probabilities, labels, 0.9),
        lambda: brier(probabilities, labels),
    ):
        with pytest.raises(RunError, match="the model answers NaN"):
            ask()


def test_matrices_of_many_sites_are_measured_at_once():
    both = np.stack([HAND, np.diag([1, 2, 3])])
    assert balanced_accuracy(both).tolist() == [balanced_accuracy(HAND), 1]


def test_the_sensitivity_counts_where_the_specificity_is_met_exactly():
    """One of ten others above the threshold is a specificity of 9/10, though 1 - 0.9 is not 1/10.

    There all ten of the class are found; with none of the others above, five.
    """
    scores = np.array([0.9] * 5 + [0.6] * 5 + [0.7] + [0.1] * 9)
    labels = np.repeat([1, 0], 10)
    [_, one] = one_vs_rest(np.stack([1 - scores, scores], 1), labels, at_specificity=0.9)
    assert one.sensitivity_at == 1.0
    [_, more] = one_vs_rest(np.stack([1 - scores, scores], 1), labels, at_specificity=0.91)
    assert more.sensitivity_at == 0.5


def test_a_class_has_numbers_from_ten_images_and_ten_others_on():
    def said(images, others):
        labels = np.repeat([1, 0], [images, others])
        return one_vs_rest(np.eye(2)[labels], labels, at_specificity=0.9)[1].auroc

    assert MIN_CLASS_IMAGES == 10
    assert said(10, 10) == 1.0
    assert said(9, 30) is None and said(30, 9) is None
    assert enough_images_per_class(np.diag([10, 30, 0]))
    assert not enough_images_per_class(np.diag([9, 30]))
