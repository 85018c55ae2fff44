"""Random shares, distribution of items in whole numbers, and what each site then owns."""

import numpy as np
from numpy.typing import NDArray


def dirichlet(draw: np.random.Generator, alpha: float, size: int) -> NDArray[np.float64]:
    """Draw from the symmetric Dir_size(alpha): [size], >= 0, sum 1; for any alpha > 0.

    It uses logarithms of gamma variates, Gamma(a) = Gamma(a + 1) * U ** (1 / a). At a small alpha
    the variates themselves would underflow to 0, and their shares would be NaN. An alpha below
    1e-300 counts as 1e-300; one entry has the whole mass in either case.
    """
    alpha = max(alpha, 1e-300)
    uniform = 1.0 - draw.random(size)  # in (0, 1]: the logarithm is finite
    logs = np.log(draw.standard_gamma(alpha + 1.0, size)) + np.log(uniform) / alpha
    shares = np.exp(logs - logs.max())
    normalised: NDArray[np.float64] = shares / shares.sum()
    return normalised


def apportion(
    draw: np.random.Generator, count: int, shares: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Distribute `count` items in whole numbers by shares: [len(shares)], >= 0, sum `count`.

    Systematic rounding: the cumulative shares are cut at the integers after one random shift. Each
    number is within 1 of count * share, and its expectation is exactly that. The method of largest
    remainders would give small shares nothing in every small split, so that a site with few
    training images would usually have no test images.
    """
    edges = np.floor(np.cumsum(shares) * count + draw.random()).astype(np.int64)
    edges[-1] = count  # the sum of the shares may miss 1 by a rounding error
    return np.diff(np.minimum(edges, count), prepend=0)


def by_owner(
    samples: NDArray[np.int64], site: NDArray[np.int32], sites: int
) -> list[NDArray[np.int64]]:
    """Return the samples of each site, in their order. None of the samples may be the server's."""
    owned = samples[np.argsort(site[samples], kind="stable")]
    ends = np.cumsum(np.bincount(site[samples], minlength=sites))
    return np.split(owned, ends[:-1])
