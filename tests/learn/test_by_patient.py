"""The bootstrap of whole patients: by hand, where each has one image, and how often it covers."""

import numpy as np
import pytest
import torch

from fedapp.evaluation.intervals import interval, weights
from fedapp.learn.metrics import evaluation
from fedapp.models.description import Measured


def test_a_patients_images_are_drawn_together():
    drawn = weights(5, "a", 200, np.array([7, 3, 7, 7, 3]))
    assert (drawn[:, 0] == drawn[:, 2]).all() and (drawn[:, 1] == drawn[:, 4]).all()
    assert (drawn[:, 0] + drawn[:, 1] == 2).all()  # two patients are drawn


def test_patients_of_one_image_each_are_images():
    assert (weights(6, "b", 50, np.arange(6)) == weights(6, "b", 50)).all()
    assert (weights(6, "b", 50, np.array([9, 11, 12, 30, 31, 99])) == weights(6, "b", 50)).all()


def test_one_patient_is_always_drawn_whole():
    assert (weights(4, "c", 20, np.zeros(4, np.int64)) == 1).all()


def test_it_covers_where_images_by_themselves_do_not():
    """400 sites of 40 patients with five images that are all right or all wrong, p = 0.7.

    By patient 95 % of the intervals are to hold 0.7, and 90 % or more do in all but 1 of 10,000
    such tests; by image they are too narrow by the root of five, and hold it in six of ten.
    """
    stream, groups = np.random.default_rng(0), np.repeat(np.arange(40), 5)
    held = {"patient": 0, "image": 0}
    of = {"patient": weights(200, "d", 400, groups), "image": weights(200, "d", 400)}
    for _ in range(400):
        right = np.repeat(stream.random(40) < 0.7, 5)
        for kind, drawn in of.items():
            low, high = interval(drawn @ right / drawn.sum(1))
            held[kind] += low <= 0.7 <= high
    assert held["patient"] / 400 > 0.9
    assert held["image"] / 400 < 0.75


def test_the_spread_is_that_of_as_many_images_by_hand():
    """Of 50 patients the share's standard error is sqrt(p q / 50), whatever their images."""
    groups, right = np.repeat(np.arange(50), 4), np.repeat(np.arange(50) < 20, 4)
    drawn = weights(200, "e", 4000, groups)
    assert (drawn @ right / drawn.sum(1)).std() == pytest.approx((0.4 * 0.6 / 50) ** 0.5, rel=0.05)


def measured(right, patients=None):
    right = np.asarray(right)
    answers, labels = torch.eye(2)[torch.as_tensor(right).long()], torch.ones(len(right)).long()
    found = Measured.of(evaluation(answers, labels))
    return found if patients is None else found.by_patient(right, np.asarray(patients))


def test_accuracys_interval_is_as_wide_as_that_of_patients():
    """Ten images each of 12 patients, all right or all wrong, say what 12 images do."""
    right = np.repeat(np.arange(12) < 9, 10)
    by_image, by_patient = measured(right), measured(right, np.repeat(np.arange(12), 10))
    few = measured(np.arange(12) < 9)
    reach = [one.interval[1] - one.interval[0] for one in (by_image, by_patient, few)]
    assert reach[1] == pytest.approx(reach[2], abs=0.1) and reach[1] > 2.5 * reach[0]
    assert by_patient.ends.endswith(", by 12 patients") and "patient" not in by_image.ends


def test_patients_of_one_image_each_and_a_single_patient():
    right = np.arange(40) % 4 > 0
    each, plain = measured(right, np.arange(40)), measured(right)
    assert each.interval == pytest.approx(plain.interval, abs=0.03)
    assert each.interval[0] <= plain.interval[0] and each.interval[1] >= plain.interval[1]
    one = measured(right, np.zeros(40, np.int64))
    assert one.interval == plain.interval and one.ends.endswith("by 1 patient")
