"""How much noise a server takes a masked sum to have, where sites count upon different numbers."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from fedapp.core.settings import PrivacySettings, RoundSettings
from fedapp.experiment.experiment import Experiment
from fedapp.methods._summed import ADDED, NOISE_SHARE, Contribution, Layout
from fedapp.methods.closed_form import _server
from fedapp.methods.closed_form._protected import SENSITIVITY
from fedapp.methods.closed_form.one_round import OneRound
from fedapp.privacy.accountant import Plan, Protection
from fedapp.privacy.noise import honest_members
from fedapp.protocol.messages import ModelRef, SumStep, Task
from fedapp.protocol.secure_aggregation.fixed_point import from_words, to_words
from fedapp.simulation.loopback import run_loopback
from fedapp.site import mask_identity
from fedapp.site.privacy_budget import Releases
from fedapp.site.protected_sums import FIXED_POINT_STEP as STEP
from fedapp.site.protected_sums import noise_share, row_noise
from tests.small import small

pytest.importorskip("dp_accounting")

SITES, NUMBERS = 5, 2000
ONE = SimpleNamespace(
    protection=Protection(PrivacySettings(sums="masked", epsilon=3.0), Plan(releases=1))
)
"""Of a site, with one in league by default."""


def read(shares: list[float]) -> float:
    """What the server reads of rows in which sites say these shares, masked words included."""
    layout = Layout({}, {}, ("loss", NOISE_SHARE), 2, False, 0.5)
    rows = [layout.row(Contribution(metrics={NOISE_SHARE: share})) for share in shares]
    words = sum(to_words(row, len(rows)) for row in rows)
    found = layout.read(from_words(words, len(rows)))
    return _server.noise_variance({**found.metrics, ADDED: found.sites})


def test_sites_that_add_different_shares_by_hand() -> None:
    """Of twenty members 20 - 6 - 1 = 13 make the noise, of five 3, and of three a single one."""
    shares = [noise_share(counted, ONE) for counted in (20, 5, 3)]
    assert shares == [1 / 13, 1 / 3, 1.0]
    assert read(shares) == pytest.approx(1 / 13 + 1 / 3 + 1, abs=3 * 2.0**-31)
    # Twenty sites that nobody vouches for: the deviation is 3.6 times the one of 20 / 13.
    assert read([1.0] * 20) == 20
    assert np.sqrt(20 / (20 / 13)) == pytest.approx(3.6, abs=0.01)


@pytest.mark.parametrize("count", [3, 4, 7, 20, 100])
def test_where_all_count_upon_all_and_none_is_lost_it_is_what_it_was(count) -> None:
    found = read([noise_share(count, ONE)] * count)
    assert found == pytest.approx(count / honest_members(count, 1), abs=count * 2.0**-31)


def test_lost_sites_take_their_noise_along() -> None:
    """Six of twenty are lost: 14 / 13, not the 14 / honest(14) = 14 / 9 of before."""
    assert read([noise_share(20, ONE)] * 14) == pytest.approx(14 / 13, abs=1e-8)


@pytest.mark.parametrize(
    ("said", "believed"), [([-5.0, 0.5, 0.5], 1), ([0.0] * 3, 1), ([1e6, 1.0, 1.0], 3), ([1.0], 1)]
)
def test_what_no_honest_sites_can_say_is_the_nearest_that_can_be(said, believed) -> None:
    assert read(said) == believed


def test_what_sites_say_is_what_they_add(tmp_path) -> None:
    """The variance of 2000 sums of noise: off by a sixth (5 deviations) once in 1.7 million."""
    layout = SimpleNamespace(size=NUMBERS, places={"means": slice(0, NUMBERS)})
    image_level = SimpleNamespace(sensitivity=lambda task, site: {"means": 1.0})
    method = SimpleNamespace(image_level=image_level)
    total, shares = np.zeros(NUMBERS), []
    for site, counted in enumerate((3, 3, 4, 9)):
        task = Task(site, 0, "release", ModelRef(0, 0, "0" * 64), sum=SumStep(0, "add", 1))
        releases = Releases(tmp_path / str(site), b"%d" % site * 32)
        total += row_noise(task, b"cohort", counted, layout, ONE, method, releases) * STEP
        shares.append(noise_share(counted, ONE))
    variance = ONE.protection.release_multiplier**2 * read(shares)
    assert total.var() == pytest.approx(variance, rel=5 * np.sqrt(2 / NUMBERS))


def experiment(**changes) -> Experiment:
    return small(
        method=OneRound(features="plain"),
        rounds=RoundSettings(num_rounds=1),
        privacy=PrivacySettings(epsilon=100.0, sums="masked"),
        **changes,
    )


@pytest.mark.parametrize(
    ("vouched", "variance"),
    [
        ((None,) * SITES, SITES / 3),  # as ever: of five members three make it
        ((3, 3, 4, None, 9), 1 + 1 + 1 / 2 + 1 / 3 + 1 / 3),
        ((3,) * SITES, SITES),
    ],
)
def test_a_run_solves_with_the_noise_that_its_sites_added(
    vouched, variance, tmp_path, monkeypatch
) -> None:
    simulated = mask_identity.simulated

    def member(of, number):
        return replace(simulated(of, number), vouched=vouched[number])

    solves, seen = _server.classes_of, []
    monkeypatch.setattr(mask_identity, "simulated", member)
    monkeypatch.setattr(
        _server, "classes_of", lambda total, noise, *more: (
            seen.append(noise) or solves(total, noise, *more)
        )
    )  # fmt: skip
    made = experiment(runtime__out=str(tmp_path))
    run_loopback(made)
    unit = made.protection.release_multiplier * SENSITIVITY
    assert [(noise / unit) ** 2 for noise in seen] == pytest.approx([variance], abs=1e-7)
