"""The discrete Gaussian: noise for sums of whole numbers, keyed, so that it can be made again.

Pr[X = x] is proportional to exp(-x^2 / (2 sigma^2)) on the integers (Canonne, Kamath, Steinke
2020); the sampler is theirs (Algorithms 1 to 3), for many numbers at a time. Where they toss a coin
of probability exp(-x), this one compares 53 random bits with exp(-x) in float64: each coin is off
by less than 2^-50, and all else is exact. Why not a library's: those samplers' draws cannot be
keyed, and a round that is repeated after a crash must show the same noise again, not a second look
at the same sum (`site.privacy.Releases.key`).
"""

import hashlib
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

WIDEST = 2.0**46
"""Largest sigma: numbers drawn stay below 2^53, which float64 holds exactly."""

Words = NDArray[np.uint64]
Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]


def discrete_gaussian(key: bytes, count: int, sigma: float) -> Integers:
    """Return `count` draws, int64; equal arguments give equal draws.

    key: 32 secret bytes, used for nothing else. sigma: in [0, 2^46]; 0: all are 0. Raises
    ValueError beyond.
    """
    if not 0 <= sigma <= WIDEST:
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


def shares_differ(sigma: float, shares: int) -> float:
    """Return how far a sum of discrete Gaussians is from one discrete Gaussian at most.

    sigma: of each share. The greatest |ln ratio| of the probabilities of any number under the sum
    and under a discrete Gaussian of variance shares sigma^2 (Kairouz, Liu, Steinke 2021,
    "The Distributed Discrete Gaussian Mechanism", Theorem 1: 10 sum_k exp(-2 pi^2 sigma^2 k / (k +
    1)), k = 1 ... shares - 1; sigma at least 1/2). From sigma = 9 on it is 0 in float64.
    """
    terms = (math.exp(-2 * (math.pi * sigma) ** 2 * k / (k + 1)) for k in range(1, shares))
    return 10 * math.fsum(terms)


@dataclass
class _Stream:
    """Words that nobody without the key can tell from chance: SHAKE-256 of key and block number.

    torch's and numpy's generators are no secret: see `learn.privacy.draws`.
    """

    key: bytes
    block: int = 0

    def words(self, count: int) -> Words:
        """Return the next `count` words of 64 bits."""
        drawn = hashlib.shake_256(self.key + self.block.to_bytes(8, "little")).digest(8 * count)
        self.block += 1
        return np.frombuffer(drawn, np.dtype("<u8"))

    def uniform(self, count: int) -> NDArray[np.float64]:
        """Return numbers in (0, 1): odd multiples of 2^-54."""
        return ((self.words(count) >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53

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
