"""Secret noise, drawn from SHAKE-256 with a key: uniform, normal and discrete Gaussian numbers.

The same key gives the same draws, and without the key nobody can predict them. The generators of
PyTorch and NumPy would not be secret: PyTorch's has 2^32 seeds on a CPU, so that whoever knows the
true change of one tensor finds the seed by trial, and with it all the noise.

The discrete Gaussian is noise for sums of integers: Pr[X = x] is proportional to
exp(-x^2 / (2 sigma^2)) (Canonne, Kamath, Steinke 2020). The sampler is theirs (Algorithms 1 to 3),
vectorised. Where they flip a coin of probability exp(-x), this one compares 53 random bits with
exp(-x) in float64: the probability of each coin is off by less than 2^-50, and everything else is
exact. No library is used because the draws of libraries cannot be keyed: a round that is repeated
after a crash must show the same noise again and not a second sample of the same sum
(`site.privacy_budget.Releases.key`). Each site adds a share of a masked sum's noise, so that the
sum over all sites has enough (`draw_noise_share`).
"""

import hashlib
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MAX_SIGMA = 2.0**46
"""Largest sigma: all draws then stay below 2^53, up to which float64 holds integers exactly."""
MIN_SHARE_SIGMA = 2.0**24
"""Smallest standard deviation, in steps, of a share of the noise: the accountant assumes it."""
_MAX_DIVERGENCE = 1e-9
"""Largest accepted `shares_divergence` between the sum of the shares and the accounted noise."""

Words = NDArray[np.uint64]
Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]
Reals = NDArray[np.float64]


def uniform(key: bytes, count: int) -> Reals:
    """Return float64 [count] in (0, 1), odd multiples of 2^-54; equal keys give equal draws."""
    return _between_0_and_1(_words(key, count))


def normal(key: bytes, count: int) -> Reals:
    """Return float64 [count] of standard normal numbers, by the Box-Muller transform."""
    pairs = -(-count // 2)
    drawn = uniform(key, 2 * pairs)
    radius, angle = np.sqrt(-2 * np.log(drawn[:pairs])), 2 * np.pi * drawn[pairs:]
    found: Reals = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
    return found[:count]


def discrete_gaussian(key: bytes, count: int, sigma: float) -> Integers:
    """Return int64 [count] of discrete Gaussian numbers; equal arguments give equal draws.

    key: 32 secret bytes that are used for nothing else. sigma: in [0, 2^46], otherwise ValueError
    is raised; at 0 all numbers are 0.
    """
    if not 0 <= sigma <= MAX_SIGMA:
        raise ValueError(f"sigma = {sigma:g}: must lie in [0, 2^46]")
    if not sigma:
        return np.zeros(count, np.int64)
    stream, scale = _Stream(key), math.floor(sigma) + 1
    found: list[Integers] = []
    missing = count
    while missing > 0:
        some = _laplace(stream, 2 * missing + 64, scale)
        far = (np.abs(some) - sigma**2 / scale) / sigma
        found.append(some[stream.coins(far**2 / 2)][:missing])
        missing -= len(found[-1])
    return np.concatenate([np.zeros(0, np.int64), *found])


def shares_divergence(sigma: float, shares: int) -> float:
    """Return a bound on how far a sum of discrete Gaussians is from one discrete Gaussian.

    sigma: standard deviation of each of the `shares` summands, at least 1/2. The bound is on
    |ln(p / q)| of the probabilities p of any number under the sum and q under a discrete Gaussian
    of variance shares sigma^2: 10 sum_k exp(-2 pi^2 sigma^2 k / (k + 1)), k = 1 ... shares - 1
    (Kairouz, Liu, Steinke 2021, "The Distributed Discrete Gaussian Mechanism", Theorem 1). From
    sigma = 9 on it is 0 in float64.
    """
    terms = (math.exp(-2 * (math.pi * sigma) ** 2 * k / (k + 1)) for k in range(1, shares))
    return 10 * math.fsum(terms)


def max_lost_members(members: int) -> int:
    """Return how many members of a masked sum may drop out before it is opened: a third."""
    return members // 3


def honest_members(members: int, colluding: int) -> int:
    """Return how many members certainly add secret noise to a masked sum, at least 1.

    A third of the members may drop out, and `colluding` others may reveal their noise or add none.
    """
    return max(members - max_lost_members(members) - colluding, 1)


def draw_noise_share(
    key: bytes, count: int, sensitivity: float, multiplier: float, step: float, makers: int = 1
) -> Integers:
    """Return a site's share of the noise of a sum in fixed point: int64 [count], in steps.

    key: 32 secret bytes of the site, used for this sum only. sensitivity: L2 norm of the largest
    change that one image makes to the site's numbers. multiplier: z, standard deviation over
    sensitivity. step: distance between two neighbouring numbers of the fixed point. makers: number
    of sites whose shares together are the accounted noise (`honest_members`); 1: the site adds all
    of it. The sum of that many shares, or more, is as good as one discrete Gaussian of at least the
    accounted variance (`shares_divergence`). Raises ValueError if the step is too large for so
    little noise.
    """
    # The site's numbers are first rounded to whole steps, so that two data sets may differ by one
    # more step in each number.
    widest = sensitivity / step + math.sqrt(count)
    sigma = multiplier * widest / math.sqrt(makers)
    if sigma < MIN_SHARE_SIGMA or shares_divergence(sigma, makers) > _MAX_DIVERGENCE:
        raise ValueError(
            f"noise of {sigma:g} steps of {step:g}: must be {MIN_SHARE_SIGMA:g} or more"
        )
    return discrete_gaussian(key, count, sigma)


@dataclass
class _Stream:
    """A stream of pseudo-random words: SHAKE-256 of the key and the number of the block."""

    key: bytes
    block: int = 0

    def words(self, count: int) -> Words:
        """Return the next `count` words of 64 bits."""
        drawn = _words(self.key + self.block.to_bytes(8, "little"), count)
        self.block += 1
        return drawn

    def uniform(self, count: int) -> Reals:
        """Return float64 [count] in (0, 1): odd multiples of 2^-54."""
        return _between_0_and_1(self.words(count))

    def coins(self, x: NDArray[np.float64]) -> Mask:
        """Flip a coin with probability exp(-x) of heads for each x >= 0; True is heads."""
        heads: Mask = self.uniform(len(x)) < np.exp(-x)
        return heads

    def below(self, count: int, scale: int) -> Integers:
        """Return at most `count` uniform draws from 0 ... scale - 1 (rejection sampling)."""
        some = self.words(count) & np.uint64((1 << scale.bit_length()) - 1)
        return some[some < np.uint64(scale)].astype(np.int64)


def _laplace(stream: _Stream, count: int, scale: int) -> Integers:
    """Return at most `count` draws with probabilities proportional to exp(-|x| / scale)."""
    low = stream.below(count, scale)
    low = low[stream.coins(low / scale)]
    high = np.floor(-np.log(stream.uniform(len(low)))).astype(np.int64)  # Pr[h >= n] = exp(-n)
    size = low + scale * high
    negative = (stream.words(len(size)) & np.uint64(1)).astype(bool)
    once = ~(negative & (size == 0))  # without this, 0 would be twice as likely (as +0 and -0)
    drawn: Integers = np.where(negative, -size, size)[once]
    return drawn


def _words(key: bytes, count: int) -> Words:
    return np.frombuffer(hashlib.shake_256(key).digest(8 * count), np.dtype("<u8"))


def _between_0_and_1(words: Words) -> Reals:
    return ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
