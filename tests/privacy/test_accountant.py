"""Noise for an epsilon and epsilon of noise: against dp-accounting, closed forms, and by hand."""

import math
from dataclasses import replace

import dp_accounting as dp
import pytest
from dp_accounting import gaussian_mechanism, pld, rdp

from fedapp.core import optional_dependencies
from fedapp.core.optional_dependencies import NotInstalled
from fedapp.core.settings import PrivacySettings
from fedapp.privacy.accountant import Plan, Protection, epsilon_spent, noise_multiplier

ONCE = Plan(releases=1)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0, 8.0])
@pytest.mark.parametrize("delta", [1e-5, 1e-8])
def test_one_release_is_dp_accountings_to_a_millionth(epsilon, delta):
    z = noise_multiplier(epsilon, delta, ONCE)
    assert z == pytest.approx(gaussian_mechanism.get_sigma_gaussian(epsilon, delta), rel=1e-6)
    assert epsilon_spent(z, delta, ONCE) == pytest.approx(epsilon, rel=1e-6)


def test_by_hand():
    """Balle and Wang 2018: sigma = 3.7306 for sensitivity 1 at epsilon 1, delta 1e-5."""
    assert noise_multiplier(1.0, 1e-5, ONCE) == pytest.approx(3.7306, abs=1e-4)


def test_several_releases_are_one_of_less_noise():
    assert noise_multiplier(2.0, 1e-5, Plan(4)) == pytest.approx(
        2 * noise_multiplier(2.0, 1e-5, ONCE)
    )
    assert epsilon_spent(6.0, 1e-5, Plan(9)) == pytest.approx(epsilon_spent(2.0, 1e-5, ONCE))


STEPS = Plan(releases=0, steps=60, rate=0.1)


def test_steps_are_dp_accountings_and_below_renyis_bound():
    ours = epsilon_spent(1.1, 1e-5, STEPS)
    event = dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(1.1)), 60)
    theirs = pld.PLDAccountant(dp.NeighboringRelation.ADD_OR_REMOVE_ONE, 1e-3).compose(event)
    assert ours == pytest.approx(theirs.get_epsilon(1e-5), rel=1e-6)
    finer = pld.PLDAccountant(dp.NeighboringRelation.ADD_OR_REMOVE_ONE, 1e-4).compose(event)
    assert finer.get_epsilon(1e-5) <= ours < 1.001 * finer.get_epsilon(1e-5)
    orders = [1 + x / 4 for x in range(8, 200)]
    bound = rdp.RdpAccountant(orders=orders).compose(event)
    assert ours < bound.get_epsilon(1e-5) < 1.2 * ours


def test_an_image_that_is_in_every_step_is_released_every_time():
    certain = Plan(releases=0, steps=16, rate=1.0)
    assert epsilon_spent(8.0, 1e-5, certain) == pytest.approx(
        epsilon_spent(8.0, 1e-5, Plan(16)), rel=2e-3
    )


def test_the_noise_of_steps_is_found_and_not_too_little():
    z = noise_multiplier(3.0, 1e-5, STEPS)
    assert 0.995 * 3.0 < epsilon_spent(z, 1e-5, STEPS) <= 3.0


def test_releases_and_steps_share_one_epsilon():
    both = replace(STEPS, releases=1)
    first = noise_multiplier(1.0, 1e-5, ONCE)
    z = noise_multiplier(3.0, 1e-5, both, release_z=first)
    spent = epsilon_spent(z, 1e-5, both, release_z=first)
    assert 0.995 * 3.0 < spent <= 3.0
    assert epsilon_spent(z, 1e-5, STEPS) < spent < 1.0 + epsilon_spent(z, 1e-5, STEPS)
    with pytest.raises(ValueError, match="releases alone"):
        noise_multiplier(1.0, 1e-5, both, release_z=first)


def test_more_costs_more():
    costs = [epsilon_spent(1.0, 1e-5, Plan(0, steps, 0.1)) for steps in (1, 5, 25)]
    assert costs == sorted(costs) and costs[0] < costs[-1]
    assert epsilon_spent(1e6, 1e-5, ONCE) < 1e-4
    assert math.isfinite(epsilon_spent(0.01, 1e-5, ONCE))
    with pytest.raises(ValueError, match="no noise is enough"):
        noise_multiplier(1e-9, 1e-12, Plan(0, 10, 1.0))


def test_without_the_library_one_line_says_how_to_get_it(monkeypatch):
    def gone(name):
        raise ModuleNotFoundError(f"No module named {name!r}", name="dp_accounting")

    monkeypatch.setattr(optional_dependencies, "import_module", gone)
    with pytest.raises(NotInstalled, match=r"fedapp\[privacy\]") as error:
        noise_multiplier(3.1, 1e-5, ONCE)
    assert "\n" not in str(error.value)


def test_releases_beside_steps_get_half_of_epsilon_and_alone_all_of_it():
    """All of it together is what was set, and hardly less."""
    privacy = PrivacySettings(epsilon=3.0)
    both = Protection(privacy, Plan(releases=2, steps=10, rate=0.1, trainings=(10,)))
    alone = epsilon_spent(both.release_multiplier, privacy.delta, Plan(releases=2))
    assert alone == pytest.approx(1.5, rel=1e-6)
    assert 2.9 < both.epsilon <= 3.0
    assert both.step_multiplier > noise_multiplier(3.0, privacy.delta, Plan(0, 10, 0.1, (10,)))
    only = Protection(privacy, Plan(releases=2))
    spent = epsilon_spent(only.release_multiplier, privacy.delta, Plan(releases=2))
    assert spent == pytest.approx(3.0)
