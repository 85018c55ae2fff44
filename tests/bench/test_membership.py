"""Membership inference: its scores by hand, at the extremes, and a toy run."""

import math

import numpy as np
import pytest
import torch

from bench.hostile import QUICK, experiment_of
from bench.membership import SHUFFLES, advantage, attacked, entropies, losses, measured, rows_of

ANSWERS = torch.tensor([[0.25, 0.75], [1.0, 0.0]])


def draws():
    return np.random.default_rng(0)


def test_scores_by_hand():
    found = losses(ANSWERS, torch.tensor([0, 0]))
    assert found.tolist() == [pytest.approx(math.log(4)), 0.0]
    assert np.isfinite(losses(ANSWERS, torch.tensor([0, 1]))).all()  # an answer of 0 for the label
    expected = 0.25 * math.log(4) + 0.75 * math.log(4 / 3)
    assert entropies(ANSWERS).tolist() == [pytest.approx(expected), 0.0]


def test_advantage_and_auc_by_hand():
    """Of 12 pairs 10 are in order: 0.9 is above 0.3 and 0.8."""
    found = attacked(np.array([0.1, 0.2, 0.9]), np.array([0.3, 0.8, 1.0, 2.0]), draws())
    assert found["advantage"] == pytest.approx(2 / 3)  # at 0.25: 2 of 3, nobody
    assert found["auc"] == pytest.approx(10 / 12)


def test_what_tells_nothing_and_what_tells_all():
    same = np.full(30, 0.5)
    assert attacked(same, same, draws()) == {"advantage": 0.0, "chance": 0.0, "auc": 0.5}
    apart = attacked(np.zeros(30), np.ones(40), draws())
    assert (apart["advantage"], apart["auc"]) == (1.0, 1.0) and apart["chance"] < 0.5
    wrong = attacked(np.ones(30), np.zeros(40), draws())
    assert (wrong["advantage"], wrong["auc"]) == (0.0, 0.0)


def test_chance_is_what_members_drawn_at_random_give():
    """Kolmogorov and Smirnov's one-sided mean is sqrt(pi / 8) sqrt(1 / n + 1 / m).

    A mean of 20 draws is within half of it but in one of 10^4 seeds; the seed is fixed.
    """
    scores = draws().normal(size=200)
    found = attacked(scores[:100], scores[100:], draws())["chance"]
    assert SHUFFLES == 20
    assert found == pytest.approx(math.sqrt(math.pi / 8) * math.sqrt(2 / 100), rel=0.5)
    assert advantage(np.array([True, False]), np.array([1.0, 0.0])) == 1.0


def test_a_toy_run_attacks_every_site_with_enough_images():
    found = measured(experiment_of(QUICK, "fedavg", 0))
    assert found["attacks"] and 0 <= found["accuracy"] <= 1
    for site in found["attacks"].values():
        for attack in ("loss", "entropy"):
            assert all(0 <= site[attack][value] <= 1 for value in ("advantage", "chance", "auc"))
    [row] = rows_of({("fedavg", "without", 0): found})
    assert row["sites"] == len(found["attacks"]) and 0 <= row["loss_auc"] <= 1
    clip = {"privacy.clip": 0.01}
    clipped = measured(experiment_of(QUICK, "fedavg", 0, changes=clip))
    assert clipped["attacks"] != found["attacks"]


def test_a_row_is_the_mean_over_sites_and_seeds():
    def site(value):
        one = {"advantage": value, "chance": 0.1, "auc": value}
        return {"loss": one, "entropy": one}

    results = {
        ("m", "without", 0): {"accuracy": 0.5, "attacks": {1: site(0.2), 2: site(0.3)}},
        ("m", "without", 1): {"accuracy": 0.7, "attacks": {4: site(0.7)}},
        ("m", "with", 1): {"accuracy": 0.7, "attacks": {}},
    }
    first, second = rows_of(results)
    assert (first["accuracy_%"], first["sites"], first["loss_auc"]) == (60.0, 3, 0.4)
    assert second["sites"] == 0 and second["entropy_advantage"] is None
