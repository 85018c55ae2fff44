"""The bar of a comparison, by hand and at its extremes."""

import numpy as np
import pytest
import torch

from bench.yardstick import commoner, measured, own_mix
from fedapp.data.sites import TEST, UNLABELLED, VAL, Part, SiteData


def site(number, labels, x=None, test=None):
    labels = torch.tensor(labels)
    x = torch.zeros(len(labels), 2) if x is None else x
    test = labels if test is None else torch.tensor(test)
    parts = {
        "labelled": Part(x, labels),
        UNLABELLED: Part(x[:0]),
        VAL: Part(x, labels),
        TEST: Part(x[: len(test)], test),
    }
    return SiteData(number, parts, 2, (0.0, 0.0), (1.0, 1.0), None)


def test_the_commoner_class_by_hand():
    sites = [site(0, [0, 0, 1]), site(1, [1, 1, 1], test=[0, 1]), site(2, [0], test=[])]
    assert commoner(sites) == pytest.approx((2 / 3 + 1 / 2) / 2)


def test_the_own_mix_by_hand():
    """Three of class 0 and none of class 1: (3 + 1/2) / 4 and 1/8, against even shares."""
    said = np.array([[0.2, 0.8], [0.05, 0.95]])
    found = own_mix(said, np.array([0.5, 0.5]), site(0, [0, 0, 0]), said[:0])
    np.testing.assert_allclose(found, said * np.array([7 / 4, 1 / 4]))
    assert found.argmax(1).tolist() == [0, 1]


def test_what_can_be_told_apart_is_right_and_else_the_mix_decides():
    apart = torch.tensor([[-9.0, 0.0], [9.0, 0.0]])
    found = measured([site(0, [0, 1], apart), site(1, [0, 1], apart)], torch.Tensor.numpy)
    assert found["pooled_logistic"] == found["pooled_logistic_times_own_mix"] == 1.0
    blind = measured([site(0, [0] * 9 + [1]), site(1, [1] * 9 + [0])], torch.Tensor.numpy)
    assert blind["pooled_logistic"] == pytest.approx(0.5)
    assert blind["pooled_logistic_times_own_mix"] == blind["commoner_class"] == 0.9
