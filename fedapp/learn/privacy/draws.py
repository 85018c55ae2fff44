"""Real draws that nobody without a key can foresee, from SHAKE-256.

torch's CPU generator has 2^32 seeds: whoever knows one tensor's true change finds the seed by
trial, and with it all the noise.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

Reals = NDArray[np.float64]


def uniform(key: bytes, count: int) -> Reals:
    """Return `count` numbers in (0, 1), odd multiples of 2^-54; equal keys give equal draws."""
    words = np.frombuffer(hashlib.shake_256(key).digest(8 * count), np.dtype("<u8"))
    found: Reals = ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    return found


def normal(key: bytes, count: int) -> Reals:
    """Return `count` standard normal numbers, by Box and Muller's transform."""
    pairs = -(-count // 2)
    drawn = uniform(key, 2 * pairs)
    radius, angle = np.sqrt(-2 * np.log(drawn[:pairs])), 2 * np.pi * drawn[pairs:]
    found: Reals = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
    return found[:count]
