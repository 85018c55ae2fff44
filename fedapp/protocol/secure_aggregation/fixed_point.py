"""Numbers as words modulo 2^64, which can be masked and added without error.

A number x becomes the integer nearest to x * 2^FRACTION, in two's complement. FRACTION = 30 is a
compromise: its step of 9.3e-10 is finer than float32's of any number above 0.016, and 100 sites may
each add up to 8.6e7, a million images times weights of 86. Rounding is the only error: of the sum
of n sites it is at most n * 2^-(FRACTION + 1), besides float64's own (relative 2^-53) of the sum.
"""

import numpy as np
from numpy.typing import NDArray

from fedapp.protocol.secure_aggregation.context import MaskError

FRACTION = 30
"""Binary digits behind the point."""
_STEP = 2.0**-FRACTION

Words = NDArray[np.uint64]
Numbers = NDArray[np.float64]


def max_number(sites: int) -> float:
    """Return what a number of each of `sites` sites may be at most, so that no sum overflows.

    About 2^(63 - FRACTION) / sites. sites: at least 1.
    """
    most = (2**63 - 1) // sites
    # float(most) may lie above it.
    nearest = float(most)
    return (nearest if int(nearest) <= most else float(np.nextafter(nearest, 0.0))) * _STEP


def to_words(numbers: Numbers, sites: int) -> Words:
    """Return numbers [D] as words [D] of a sum of at most `sites` sites.

    Raises MaskError on NaN and on what is above `bound(sites)`. It says which, and not how large:
    the server reads errors.
    """
    most = max_number(sites)
    wrong = np.flatnonzero(~(np.abs(numbers) <= most))
    if wrong.size:
        raise MaskError(
            f"number {wrong[0]} of {numbers.size} of a masked sum: must be within ±{most:.6g} so "
            f"that the sum of {sites} sites cannot overflow; lower training.learning_rate, or scale"
        )
    return np.rint(numbers * 2.0**FRACTION).astype(np.int64).view(np.uint64)


def from_words(words: Words, sites: int, largest: float | None = None) -> Numbers:
    """Return the sum of `sites` sites as numbers [D].

    largest: what a number of one site can be at most; None: `bound(sites)`. Raises MaskError where
    the sum is above what all sites together can give: masks were left in it, or a site broke it.
    """
    numbers = words.view(np.int64).astype(np.float64) * _STEP
    one = max_number(sites) if largest is None else largest
    most = sites * (one + _STEP)
    wrong = np.flatnonzero(~(np.abs(numbers) <= most))
    if wrong.size:
        raise MaskError(
            f"number {wrong[0]} of {numbers.size} of a masked sum: {sites} sites can give at most "
            f"{most:.6g}, it is more; a site broke the sum: repeat it without some, to find it"
        )
    return numbers
