"""Prediction sets: by hand, identities, extremes, MAPIE as an oracle, and the coverage itself."""

import math

import numpy as np
import pytest
import torch
from mapie.classification import SplitConformalClassifier
from scipy.stats import betabinom
from sklearn.base import BaseEstimator, ClassifierMixin

from fedapp.models.conformal import (
    Calibration,
    calibrate,
    class_scores,
    conformal_quantile,
    coverage_caution,
    prediction_sets,
)

SETS = ("lac", "aps")


def drawn(count, classes=6, seed=0, sharpness=2.0):
    """Probabilities, and labels drawn from a blurred version of them: a model that is too sure."""
    source = torch.Generator().manual_seed(seed)
    logits = sharpness * torch.randn(count, classes, generator=source)
    labels = torch.multinomial(torch.softmax(logits / 2, 1), 1, generator=source)[:, 0]
    return torch.softmax(logits, 1), labels


# --- by hand --------------------------------------------------------------------------------------


def test_scores_by_hand():
    probabilities = torch.tensor([[0.2, 0.5, 0.3], [0.25, 0.25, 0.5]])
    lac = [[0.8, 0.5, 0.7], [0.75, 0.75, 0.5]]
    aps = [[0.8, 0.0, 0.5], [0.5, 0.75, 0.0]]  # of equal ones the first is ahead
    for sets, wanted in zip(SETS, (lac, aps), strict=True):
        torch.testing.assert_close(class_scores(probabilities, sets), torch.tensor(wanted).double())


def test_a_set_by_hand():
    """Nine scores 0.1 .. 0.9: the ceil(10 x 0.8) = 8th smallest is 0.8, so classes of p >= 0.2."""
    tenths = tuple(k / 10 for k in range(1, 10))
    found = prediction_sets(
        torch.tensor([[0.7, 0.19, 0.11]]), Calibration(tenths, tenths), "lac", 0.8
    )
    assert found.tolist() == [[True, False, False]]
    found = prediction_sets(
        torch.tensor([[0.5, 0.35, 0.15]]), Calibration(tenths, tenths), "aps", 0.8
    )
    assert found.tolist() == [[True, True, False]]  # ahead of them: 0, 0.5, 0.85


@pytest.mark.parametrize(("images", "coverage", "rank"), [
    (9, 0.9, 9), (10, 0.9, 10), (19, 0.95, 19), (99, 0.9, 90), (99, 0.7, 70), (4, 0.5, 3),
])  # fmt: skip
def test_the_rank_of_the_quantile(images, coverage, rank):
    assert conformal_quantile(tuple(map(float, range(1, images + 1))), coverage) == rank


def test_scores_are_rounded_up():
    probabilities = torch.tensor([[0.123456789, 0.876543211]], dtype=torch.float64)
    assert calibrate(probabilities, torch.tensor([0])) == Calibration((0.876544,), (0.876544,))


# --- extremes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("images", [0, 8])
@pytest.mark.parametrize("sets", SETS)
def test_too_few_images_for_the_coverage_give_all_classes(images, sets):
    calibration = calibrate(*drawn(images))
    assert calibration.images == images and math.isinf(calibration.threshold(sets, 0.9))
    assert bool(prediction_sets(drawn(5)[0], calibration, sets, 0.9).all())


@pytest.mark.parametrize("sets", SETS)
def test_a_sure_model_names_one_class_if_it_is_always_right_and_all_if_it_is_always_wrong(sets):
    labels = torch.arange(30) % 3
    right, wrong = (calibrate(torch.eye(3)[of], labels) for of in (labels, (labels + 1) % 3))
    assert torch.equal(prediction_sets(torch.eye(3), right, sets, 0.9), torch.eye(3).bool())
    assert bool(prediction_sets(torch.eye(3), wrong, sets, 0.9).all())


def test_adaptive_sets_are_never_empty_and_least_ambiguous_ones_may_be():
    sure = torch.tensor([[0.99, 0.01]]).expand(50, 2)
    calibration = calibrate(sure, torch.zeros(50, dtype=torch.int64))
    unsure = torch.tensor([[0.5, 0.5]])
    assert prediction_sets(unsure, calibration, "aps", 0.9).sum() == 1
    assert prediction_sets(unsure, calibration, "lac", 0.9).sum() == 0


@pytest.mark.parametrize(("images", "says"), [
    (0, "has no calibration images: every set holds all"),
    (8, "8 calibration images are too few for a coverage of 0.9"),
    (49, "weak: 49 calibration images only"),
    (50, ""),
])  # fmt: skip
def test_what_a_person_is_told(images, says):
    said = coverage_caution(calibrate(*drawn(images)), 0.9)
    assert says in said and bool(said) == bool(says)


@pytest.mark.parametrize("wrong", [((0.1,), ()), ((0.2, 0.1), (0.1, 0.2)), ((0.1,), (1.1,))])
def test_what_is_no_calibration_is_refused(wrong):
    with pytest.raises(ValueError, match=r"score for each|ascend|less than"):
        Calibration(*wrong)


# --- MAPIE ----------------------------------------------------------------------------------------


class Given(ClassifierMixin, BaseEstimator):
    """A fitted classifier whose inputs are the probabilities themselves."""

    def fit(self, x, y):
        self.classes_ = np.arange(x.shape[1])
        self.fitted_ = True
        return self

    def predict_proba(self, x):
        return x

    def predict(self, x):
        return x.argmax(1)


class LastClassStays(np.random.RandomState):
    """The draw with which Romano et al.'s sets keep their last class."""

    def uniform(self, *_, size):
        return np.ones(size)


@pytest.mark.parametrize("sets", SETS)
@pytest.mark.parametrize("coverage", [0.7, 0.8, 0.9, 0.95])
def test_sets_are_those_of_mapie(sets, coverage):
    probabilities, labels = (t.numpy() for t in drawn(300, seed=3))
    probabilities = probabilities.astype(np.float64)
    probabilities /= probabilities.sum(1, keepdims=True)
    new = drawn(500, seed=4)[0].double().numpy()
    new /= new.sum(1, keepdims=True)
    mapie = SplitConformalClassifier(
        Given().fit(probabilities, labels), coverage, sets, random_state=LastClassStays(0)
    )
    mapie.conformalize(probabilities, labels)
    options = {"include_last_label": "randomized"} if sets == "aps" else {}
    theirs = mapie.predict_set(new, conformity_score_params=options)[1][:, :, 0]
    ours = prediction_sets(
        torch.from_numpy(new),
        calibrate(torch.from_numpy(probabilities), torch.from_numpy(labels)),
        sets,
        coverage,
    )
    assert 0.1 < ours.double().mean() < 0.9 and np.array_equal(ours.numpy(), theirs)


# --- the coverage ---------------------------------------------------------------------------------


@pytest.mark.parametrize("sets", SETS)
@pytest.mark.parametrize("coverage", [0.8, 0.9])
def test_new_images_are_covered_as_asked(sets, coverage):
    """Of m new images, exchangeable with n calibration images, without ties, the number covered is
    beta-binomial (k, n + 1 - k), k the quantile's rank. Ties, as of APS's score 0, only add to it.
    The test fails below the 1e-4 quantile: four false alarms in 10,000 runs of all its cases. The
    draws are fixed, so it gives one of them always.
    """
    n, m = 300, 2000
    probabilities, labels = drawn(n + m, seed=7)
    calibration = calibrate(probabilities[:n], labels[:n])
    found = prediction_sets(probabilities[n:], calibration, sets, coverage)
    covered = int(found.gather(1, labels[n:, None]).sum())
    rank = math.ceil((n + 1) * coverage)
    law = betabinom(m, rank, n + 1 - rank)
    assert covered >= law.ppf(1e-4)
    if sets == "lac":  # no ties: nor does it cover many more
        assert covered <= law.ppf(1 - 1e-4)
