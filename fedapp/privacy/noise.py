"""Draws that nobody without a key can foresee, from SHAKE-256: real ones, and whole noise.

Keyed, so that they can be made again. torch's and numpy's generators are no secret: torch's on a
CPU has 2^32 seeds, and whoever knows one tensor's true change finds the seed by trial, and with it
all the noise.

The discrete Gaussian is noise for sums of whole numbers: Pr[X = x] is proportional to
exp(-x^2 / (2 sigma^2)) on the integers (Canonne, Kamath, Steinke 2020); the sampler is theirs
(Algorithms 1 to 3), for many numbers at a time. Where they toss a coin of probability exp(-x), this
one compares 53 random bits with exp(-x) in float64: each coin is off by less than 2^-50, and all
else is exact. Why not a library's: those samplers' draws cannot be keyed, and a round that is
repeated after a crash must show the same noise again, not a second look at the same sum
(`site.privacy_budget.Releases.key`). Each site makes a share of a masked sum's noise, so that the
sum over sites has enough (`draw_noise_share`).
"""

import hashlib
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MAX_SIGMA = 2.0**46
"""Numbers drawn stay below 2^53, which float64 holds exactly."""
MIN_SHARE_SIGMA = 2.0**24
"""Steps that the standard deviation of a share has at least: what the account presumes."""
_MAX_DIVERGENCE = 1e-9
"""How far the shares' sum may be from the noise of the account."""

Words = NDArray[np.uint64]
Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]
Reals = NDArray[np.float64]


def uniform(key: bytes, count: int) -> Reals:
    """Return `count` numbers in (0, 1), odd multiples of 2^-54; equal keys give equal draws."""
    return _between_0_and_1(_words(key, count))


def normal(key: bytes, count: int) -> Reals:
    """Return `count` standard normal numbers, by Box and Muller's transform."""
    pairs = -(-count // 2)
    drawn = uniform(key, 2 * pairs)
    radius, angle = np.sqrt(-2 * np.log(drawn[:pairs])), 2 * np.pi * drawn[pairs:]
    found: Reals = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
    return found[:count]


def discrete_gaussian(key: bytes, count: int, sigma: float) -> Integers:
    """Return `count` draws, int64; equal arguments give equal draws.

    key: 32 secret bytes, used for nothing else. sigma: in [0, 2^46]; 0: all are 0. Raises
    ValueError beyond.
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
    """Return how far a sum of discrete Gaussians is from one discrete Gaussian at most.

    sigma: of each share. The greatest |ln ratio| of the probabilities of any number under the sum
    and under a discrete Gaussian of variance shares sigma^2 (Kairouz, Liu, Steinke 2021,
    "The Distributed Discrete Gaussian Mechanism", Theorem 1: 10 sum_k exp(-2 pi^2 sigma^2 k / (k +
    1)), k = 1 ... shares - 1; sigma at least 1/2). From sigma = 9 on it is 0 in float64.
    """
    terms = (math.exp(-2 * (math.pi * sigma) ** 2 * k / (k + 1)) for k in range(1, shares))
    return 10 * math.fsum(terms)


def max_lost_members(members: int) -> int:
    """Return how many of so many sites may be lost before a masked sum is opened: a third."""
    return members // 3


def honest_members(members: int, colluding: int) -> int:
    """Return how many sites, 1 at least, make the noise of a masked sum for certain.

    Of so many members a third may be lost, and `colluding` others may know their own noise, or add
    none.
    """
    return max(members - max_lost_members(members) - colluding, 1)


def draw_noise_share(
    key: bytes, count: int, sensitivity: float, multiplier: float, step: float, makers: int = 1
) -> Integers:
    """Return a site's share of the noise of a sum in fixed point, int64 [count], in steps.

    key: 32 secret bytes of the site, of this sum alone. sensitivity: L2 norm of what one image
    changes in the site's numbers at most. multiplier: z, standard deviation over sensitivity.
    step: of the fixed point. makers: sites whose shares make the account's noise together
    (`honest_members`); 1: the site adds all of it itself. The sum of so many shares, or more, is as
    good as one discrete Gaussian of at least the account's variance (`shares_divergence`). Raises
    ValueError where the step is too wide for so little noise.
    """
    # A site's numbers are rounded to whole steps before: two data sets may differ by one step more
    # in each.
    widest = sensitivity / step + math.sqrt(count)
    sigma = multiplier * widest / math.sqrt(makers)
    if sigma < MIN_SHARE_SIGMA or shares_divergence(sigma, makers) > _MAX_DIVERGENCE:
        raise ValueError(
            f"noise of {sigma:g} steps of {step:g}: must be {MIN_SHARE_SIGMA:g} or more"
        )
    return discrete_gaussian(key, count, sigma)


@dataclass
class _Stream:
    """Words that nobody without the key can tell from chance: of key and block number."""

    key: bytes
    block: int = 0

    def words(self, count: int) -> Words:
        """Return the next `count` words of 64 bits."""
        drawn = _words(self.key + self.block.to_bytes(8, "little"), count)
        self.block += 1
        return drawn

    def uniform(self, count: int) -> Reals:
        """Return numbers in (0, 1): odd multiples of 2^-54."""
        return _between_0_and_1(self.words(count))

    def coins(self, x: NDArray[np.float64]) -> Mask:
        """Return for each x >= 0 whether its coin of probability exp(-x) shows heads."""
        heads: Mask = self.uniform(len(x)) < np.exp(-x)
        return heads

    def below(self, count: int, scale: int) -> Integers:
        """Return at most `count` even draws from 0 ... scale - 1: others are thrown away."""
        some = self.words(count) & np.uint64((1 << scale.bit_length()) - 1)
        return some[some < np.uint64(scale)].astype(np.int64)


def _laplace(stream: _Stream, count: int, scale: int) -> Integers:
    """Return at most `count` draws with probabilities proportional to exp(-|x| / scale)."""
    low = stream.below(count, scale)
    low = low[stream.coins(low / scale)]
    high = np.floor(-np.log(stream.uniform(len(low)))).astype(np.int64)  # Pr[h >= n] = exp(-n)
    size = low + scale * high
    negative = (stream.words(len(size)) & np.uint64(1)).astype(bool)
    once = ~(negative & (size == 0))  # 0 would come twice as often
    drawn: Integers = np.where(negative, -size, size)[once]
    return drawn


def _words(key: bytes, count: int) -> Words:
    return np.frombuffer(hashlib.shake_256(key).digest(8 * count), np.dtype("<u8"))


def _between_0_and_1(words: Words) -> Reals:
    return ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
