"""Fixed point: numbers as words modulo 2^64, which can be masked and added without error.

A number x becomes the integer nearest to x * 2^FRACTION, in two's complement. FRACTION = 30 is a
compromise: its step of 9.3e-10 is finer than that of float32 for any number above 0.016, and each
of 100 sites may add numbers up to 8.6e7, such as a million images times weights of 86. Rounding is
the only error: at most n * 2^-(FRACTION + 1) for the sum of n sites, besides float64's own relative
error of 2^-53 of the sum.
"""

import numpy as np
from numpy.typing import NDArray

from fedapp.protocol.secure_aggregation.context import MaskError

FRACTION = 30
"""Number of binary digits after the point."""
_STEP = 2.0**-FRACTION

Words = NDArray[np.uint64]
Numbers = NDArray[np.float64]


def max_number(sites: int) -> float:
    """Return the largest absolute value that each of `sites` >= 1 sites may add without overflow.

    It is about 2^(63 - FRACTION) / sites.
    """
    most = (2**63 - 1) // sites
    # float(most) may be rounded up.
    nearest = float(most)
    return (nearest if int(nearest) <= most else float(np.nextafter(nearest, 0.0))) * _STEP


def to_words(numbers: Numbers, sites: int) -> Words:
    """Return numbers [D] as words [D] for a sum of at most `sites` sites.

    Raises MaskError for NaN and for a number beyond `max_number(sites)`. The error names its index
    and not its value, since the server reads the error.
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
    """Return the words [D] of a sum of `sites` sites as numbers [D].

    largest: largest absolute value of one site's number; None: `max_number(sites)`. Raises
    MaskError if a number is larger than all sites together can give: then masks are left in the
    sum, or a site has broken it.
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
