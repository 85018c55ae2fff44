"""Distance-reweighted averaging: numbers by hand, what it becomes at its ends."""

import math

import pytest
import torch

from fedapp.methods.two_networks.rscfed import distance_to, reweighted


def test_weights_by_hand():
    found = reweighted([600, 600, 300], [1, 2, 1], 100)
    assert found == pytest.approx([0.4406, 0.3729, 0.1865], abs=5e-5)
    plain = [600 * math.exp(-1 / 6), 600 * math.exp(-1 / 3), 300 * math.exp(-1 / 3)]
    assert found == pytest.approx([w / sum(plain) for w in plain])


@pytest.mark.parametrize("distances", [[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]])
def test_without_scale_weights_go_by_counts(distances):
    assert reweighted([2, 5, 1], distances, 0.0) == pytest.approx([0.25, 0.625, 0.125])


def test_identical_models_weigh_by_counts():
    assert reweighted([2, 5, 1], [0.0] * 3, 1e4) == pytest.approx([0.25, 0.625, 0.125])


def test_far_models_underflow_in_proportion():
    """exp(-10,000) is 0 in floating point; the ratio of two such is not."""
    found = reweighted([10, 10], [1000.0, 1000.1], 100.0)
    assert found == pytest.approx([1 / (1 + math.exp(-1)), 1 / (1 + math.exp(1))])
    assert reweighted([10, 10], [0.0, 1e6], 1e4) == [1.0, 0.0]


def test_a_model_of_no_images_has_no_part():
    assert reweighted([0, 4], [0.0, 3.0], 100.0) == [0.0, 1.0]


def test_a_single_model_has_all_the_weight():
    assert reweighted([7], [123.0], 100.0) == [1.0]


def test_the_distance_is_a_sum_over_tensors_without_whole_numbers():
    mean = {"a": torch.zeros(2), "b": torch.ones(1), "n": torch.tensor(3)}
    model = {"a": torch.tensor([3.0, 4.0]), "b": torch.tensor([-1.0]), "n": torch.tensor(9)}
    assert distance_to(mean, model) == pytest.approx(5 + 2)
    assert distance_to(mean, mean) == 0.0
