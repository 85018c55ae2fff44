"""Unsure images that are unlike each other: by hand, identities, extremes."""

import itertools

import torch

from fedapp.models.choose import POOL, candidates, spread


def test_points_far_apart_by_hand():
    points = torch.tensor([[0.0], [1.0], [10.0], [6.0], [0.0]])
    assert spread(points, 4).tolist() == [0, 2, 3, 1]


def test_no_point_is_much_farther_than_with_the_best_choice():
    """Gonzalez's bound: twice the best radius, over all choices of 3 of 9 points."""
    points = torch.randn(9, 2, generator=torch.Generator().manual_seed(1))
    apart = torch.cdist(points, points)

    def radius(chosen):
        return float(apart[:, list(chosen)].min(1).values.max())

    best = min(map(radius, itertools.combinations(range(9), 3)))
    assert best <= radius(spread(points, 3).tolist()) <= 2 * best


def test_equal_points_are_each_chosen_once():
    assert sorted(spread(torch.zeros(4, 3), 9).tolist()) == [0, 1, 2, 3]
    assert spread(torch.ones(1, 2), 1).tolist() == [0]


def test_candidates_are_the_most_unsure():
    doubt = torch.tensor([0.1, 0.3, 0.2, 0.3])
    even = torch.tensor([0.9, 0.5, 0.7, 0.6])
    assert candidates(doubt, even, 1).tolist() == [3, 1, 2, 0][:POOL]
    assert candidates(torch.zeros(4), even, 9).tolist() == [0, 2, 3, 1]


def test_only_so_many_are_candidates():
    unsure = torch.arange(100.0)
    assert candidates(unsure, unsure, 2).tolist() == list(range(99, 99 - 2 * POOL, -1))
