"""The discrete Gaussian against its own definition, at its limits, and shared among sites."""

import math
import statistics

import numpy as np
import pytest
from scipy.stats import chisquare, kstest

from fedapp.privacy.noise import (
    MAX_SIGMA,
    MIN_SHARE_SIGMA,
    discrete_gaussian,
    draw_noise_share,
    honest_members,
    max_lost_members,
    shares_divergence,
)

KEY = b"k" * 32


def probabilities(sigma, most):
    x = np.arange(-most, most + 1)
    weight = np.exp(-(x**2) / (2 * sigma**2))
    return x, weight / weight.sum()


def test_by_hand_with_half_a_step():
    """sigma = 1/2: weights 1, e^-2 twice, e^-8 twice, so Pr[0] = 0.78657."""
    by_hand = 1 / (1 + 2 * math.exp(-2) + 2 * math.exp(-8) + 2 * math.exp(-18))
    assert by_hand == pytest.approx(0.78657, abs=1e-5)
    count = 200_000
    zeros = int((discrete_gaussian(KEY, count, 0.5) == 0).sum())
    # A binomial count; 5 sigma: one key in 1.7 million would fail.
    assert abs(zeros - count * by_hand) < 5 * math.sqrt(count * by_hand * (1 - by_hand))


@pytest.mark.parametrize("sigma", [0.3, 1.0, 2.7, 6.0])
def test_every_number_comes_as_often_as_it_should(sigma):
    """Chi-square of all numbers that are expected five times; a false alarm in 1e6 keys."""
    count = 300_000
    drawn = discrete_gaussian(KEY, count, sigma)
    x, p = probabilities(sigma, 60)
    often = p * count >= 5
    seen = np.array([(drawn == value).sum() for value in x[often]])
    rest, expected = count - seen.sum(), count * (1 - p[often].sum())
    if expected >= 5:
        seen, p = np.append(seen, rest), np.append(p[often], 1 - p[often].sum())
    else:
        p = p[often] / p[often].sum()
    assert chisquare(seen, p * seen.sum()).pvalue > 1e-6


@pytest.mark.parametrize("sigma", [1.0, 3.3, 1000.5, 2.0**24, 2.0**40, MAX_SIGMA])
def test_moments(sigma):
    """Mean 0, and the variance of the definition; above some steps sigma^2. 5 sigma each."""
    count = 100_000
    drawn = discrete_gaussian(KEY, count, sigma).astype(np.float64)
    x, p = probabilities(sigma, 60)
    variance = float(p @ x**2) if sigma < 5 else sigma**2
    assert abs(drawn.mean()) < 5 * math.sqrt(variance / count)
    assert abs(drawn.var() / variance - 1) < 5 * math.sqrt(2 / count)


@pytest.mark.parametrize("sigma", [2.0**20, 2.0**40, MAX_SIGMA])
def test_wide_noise_is_the_normal_distribution_rounded(sigma):
    """Kolmogorov and Smirnov; a false alarm in 1e6 keys. And no bit of a number is fixed."""
    drawn = discrete_gaussian(KEY, 100_000, sigma)
    assert kstest(drawn / sigma, "norm").pvalue > 1e-6
    ones = [float(((drawn >> bit) & 1).mean()) for bit in range(int(math.log2(sigma)) - 2)]
    assert max(abs(one - 0.5) for one in ones) < 6 * 0.5 / math.sqrt(100_000)


def test_it_is_keyed_and_each_number_stands_for_itself():
    one = discrete_gaussian(KEY, 1000, 5.0)
    assert np.array_equal(one, discrete_gaussian(KEY, 1000, 5.0))
    assert not np.array_equal(one, discrete_gaussian(b"j" * 32, 1000, 5.0))
    wide = discrete_gaussian(KEY, 50_000, 1e6).astype(float)
    lag = np.corrcoef(wide[:-1], wide[1:])[0, 1]
    assert abs(lag) < 5 / math.sqrt(50_000)


def test_the_extremes():
    assert not discrete_gaussian(KEY, 100, 0.0).any()
    assert not discrete_gaussian(KEY, 100, 0.01).any()  # the next number has weight e^-5000
    assert discrete_gaussian(KEY, 0, 3.0).shape == (0,)
    assert discrete_gaussian(KEY, 5, MAX_SIGMA).dtype == np.int64
    for wrong in (-1.0, 2 * MAX_SIGMA, math.nan, math.inf):
        with pytest.raises(ValueError, match="sigma"):
            discrete_gaussian(KEY, 1, wrong)


def test_a_sum_of_shares_is_one_discrete_gaussian_by_enumeration():
    """Two shares of sigma = 1: the worst ratio of probabilities is within the bound."""
    _, p = probabilities(1.0, 40)
    both, (_, one) = np.convolve(p, p), probabilities(math.sqrt(2), 80)
    middle = slice(60, 101)  # beyond 20 the tails that were cut off begin to count
    worst = np.abs(np.log(both[middle] / one[middle])).max()
    assert worst <= shares_divergence(1.0, 2) == pytest.approx(10 * math.exp(-(math.pi**2)))
    assert shares_divergence(1.0, 1) == 0  # one share is itself
    assert shares_divergence(9.0, 1000) == 0  # e^-799 and less a term
    assert shares_divergence(0.5, 3) > shares_divergence(0.5, 2) > 1e-1


def test_the_sum_has_the_accounts_noise_though_sites_are_lost_and_one_tells_its_own():
    """Of seven sites two are lost; of the other five one is in league, and takes its noise off."""
    members, multiplier, sensitivity, step = 7, 1.5, 2.0, 2.0**-30
    count = 40_000
    makers = honest_members(members, colluding=1)
    assert (max_lost_members(members), makers) == (2, 4)
    shares = [
        draw_noise_share(bytes([k]) * 32, count, sensitivity, multiplier, step, makers)
        for k in range(makers)
    ]
    total = np.sum(shares, axis=0) * step
    assert abs(total.var() / 3.0**2 - 1) < 5 * math.sqrt(2 / count)  # 5 sigma
    alone = draw_noise_share(KEY, count, sensitivity, multiplier, step) * step
    assert abs(alone.var() / 3.0**2 - 1) < 5 * math.sqrt(2 / count)
    assert [max_lost_members(n) for n in (1, 2, 3, 10, 100)] == [0, 0, 1, 3, 33]


def test_how_many_sites_make_the_noise_by_hand():
    assert [honest_members(n, 1) for n in (3, 4, 7, 12, 100)] == [1, 2, 4, 7, 66]
    assert [honest_members(12, c) for c in (2, 3, 7, 8, 50)] == [
        6,
        5,
        1,
        1,
        1,
    ]  # never less than one


def test_rounding_to_whole_steps_is_in_the_sensitivity():
    """With steps as wide as the noise the rounding of 10,000 numbers would count 100 steps."""
    fine = draw_noise_share(KEY, 10_000, 1.0, 1.0, 2.0**-30) * 2.0**-30
    coarse = draw_noise_share(KEY, 10_000, 2.0**-20, MIN_SHARE_SIGMA / 2**4, 2.0**-20)
    assert statistics.pstdev(fine.tolist()) == pytest.approx(1.0, rel=0.05)
    assert coarse.std() == pytest.approx(101 * MIN_SHARE_SIGMA / 2**4, rel=0.05)


def test_too_wide_a_step_is_refused():
    with pytest.raises(ValueError, match="steps"):
        draw_noise_share(KEY, 10, 1.0, 1.0, 2.0**-8)
