"""The difference of two AUROCs on the same images (DeLong et al. 1988), fast by ranks.

X. Sun, W. Xu: Fast implementation of DeLong's algorithm (IEEE Signal Processing Letters 2014).
With m images of the class and n others, image i of the class beats, of the others, the share

    V_i = (R_i - r_i) / n,

R_i its rank among all scores and r_i among those of its class (equal scores share a middle rank);
of an other image j the share that it loses to is W_j = 1 - (R_j - s_j) / m. AUROC is the mean of V,
and of two tests' difference, by images,

    variance = var(V - V') / m + var(W - W') / n.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm, rankdata

from fedapp.learn.metrics import Z95

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Difference:
    """gain: AUROC of the first scores less that of the second, in [-1, 1]. error: standard error.

    p: that a gain as large comes of equal AUROCs, two-sided; 1 where both rank the images alike.
    """

    gain: float
    error: float
    p: float

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the gain, within [-1, 1]."""
        return max(self.gain - Z95 * self.error, -1.0), min(self.gain + Z95 * self.error, 1.0)


def difference(first: Values, second: Values, of: NDArray[np.bool_]) -> Difference:
    """Compare two scores of the same images. of: which are of the class; two of each at least."""
    (v, w), (other_v, other_w) = (placements(scores, of) for scores in (first, second))
    gain = float(v.mean() - other_v.mean())
    spread = np.var(v - other_v, ddof=1) / len(v) + np.var(w - other_w, ddof=1) / len(w)
    error = math.sqrt(spread)
    if error == 0:
        return Difference(gain, 0.0, 0.0 if gain else 1.0)
    return Difference(gain, error, float(2 * norm.sf(abs(gain) / error)))


def placements(scores: Values, of: NDArray[np.bool_]) -> tuple[Values, Values]:
    """Return V [m] and W [n] above; the mean of each is the AUROC."""
    every = rankdata(scores)
    inside, outside = scores[of], scores[~of]
    v = (every[of] - rankdata(inside)) / len(outside)
    w = 1 - (every[~of] - rankdata(outside)) / len(inside)
    return v, w
