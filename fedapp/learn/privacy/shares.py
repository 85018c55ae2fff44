"""How each site's share of the noise is made, so that the sum over sites has enough."""

import math

from fedapp.learn.privacy.discrete import Integers, discrete_gaussian, shares_differ

LEAST = 2.0**24
"""Steps that the standard deviation of a share has at least: what the account presumes."""
_ALIKE = 1e-9
"""How far the shares' sum may be from the noise of the account."""


def lost_allowed(members: int) -> int:
    """Return how many of so many sites may be lost before a masked sum is opened: a third."""
    return members // 3


def honest(members: int, colluding: int) -> int:
    """Return how many sites, 1 at least, make the noise of a masked sum for certain.

    Of so many members a third may be lost, and `colluding` others may know their own noise, or add
    none.
    """
    return max(members - lost_allowed(members) - colluding, 1)


def share(
    key: bytes, count: int, sensitivity: float, multiplier: float, step: float, makers: int = 1
) -> Integers:
    """Return a site's share of the noise of a sum in fixed point, int64 [count], in steps.

    key: 32 secret bytes of the site, of this sum alone. sensitivity: L2 norm of what one image
    changes in the site's numbers at most. multiplier: z, standard deviation over sensitivity.
    step: of the fixed point. makers: sites whose shares make the account's noise together
    (`honest`); 1: the site adds all of it itself. The sum of so many shares, or more, is as good as
    one discrete Gaussian of at least the account's variance (`shares_differ`). Raises ValueError
    where the step is too wide for so little noise.
    """
    # A site's numbers are rounded to whole steps before: two data sets may differ by one step more
    # in each.
    widest = sensitivity / step + math.sqrt(count)
    sigma = multiplier * widest / math.sqrt(makers)
    if sigma < LEAST or shares_differ(sigma, makers) > _ALIKE:
        raise ValueError(f"noise of {sigma:g} steps of {step:g}: must be {LEAST:g} or more")
    return discrete_gaussian(key, count, sigma)
