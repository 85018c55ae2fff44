"""The closed form of sums with noise: what the server makes of them, and a site of that.

All that the server does with a noisy row costs nothing more. Nothing else leaves a site: lambda
follows from the noise, and each site chooses by its own validation images how much its own labelled
images count, and its temperature.
"""

import math

import torch
from torch import Tensor

from fedapp.methods.closed_form._calibration import bounded
from fedapp.methods.closed_form._contents import LEAD, OWN_WEIGHTS, WORST, Solution
from fedapp.methods.closed_form._discriminant import Classes
from fedapp.methods.closed_form._released import COUNTED, SQUARED, Released, scale

RIDGE = 0.1
"""lambda without noise, in mean eigenvalues of the covariance within classes."""
OF_NOISE = 0.1
"""What is added to it, in spectral radii of the second moment's noise."""
TEMPERATURES = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
"""What a site may divide its logits by."""
LIKELY = 4.0
"""Temperature of the common answer, around which a site's own is log-normal before it looks."""


def classes_of(
    total: Released, images: float, noise: float, columns: Tensor
) -> tuple[Classes, float]:
    """Return class means and covariance within classes of features, and what lambda adds.

    images: number of all images, which everybody knows. noise: standard deviation of each number of
    counts and sums, of the second moment's row at most; 0: none. columns: as of `projection`; the
    result is of all d features, and lies in that subspace. A class whose count is not above twice
    its noise is taken for one that nobody has images of. A class mean is drawn to the mean of all
    of these as far as the noise in it outweighs how far class means lie apart (the best linear
    estimate). What remains negative of the covariance's eigenvalues is cut at 0, before lambda is
    added: after it, the cut would take lambda from just these.
    """
    size = len(total.second)
    counts = torch.where(total.counts > 2 * noise / COUNTED, total.counts, 0.0)
    share = counts / counts.sum().clamp_min(1.0)
    mean = total.sums[counts > 0].sum(0) / counts.sum().clamp_min(1.0)
    apart = total.sums / counts.clamp_min(1.0)[:, None] - mean
    erring = (noise / counts.clamp_min(1.0)).square()  # of each number of a class mean
    between = max(float(share @ apart.square().mean(1) - share @ erring), 1e-12)
    apart = (between / (between + erring))[:, None] * apart
    apart = torch.where(counts[:, None] > 0, apart, 0.0)
    spread = apart - share @ apart
    whole = total.second / images - torch.outer(mean, mean)
    left = whole - (spread * share[:, None]).T @ spread
    values, vectors = torch.linalg.eigh((left + left.T) / 2)
    values = values.clamp_min(0)
    radius = noise / SQUARED * math.sqrt(2 * size) / images
    level = RIDGE * float(values.mean()) + OF_NOISE * radius
    kept, within = scale(columns), (vectors * values) @ vectors.T
    found = Classes(
        counts,
        kept * (mean + apart) @ columns.T,
        kept**2 * columns @ within @ columns.T,
        images,
    )
    return found, kept**2 * level


def solution_of(classes: Classes, level: float) -> Solution:
    """Return the common answer. The federation's mean mix is worth nothing: it has no noise."""
    weight, bias = classes.head(level)
    none = torch.zeros(len(classes.counts), dtype=torch.float64)
    return Solution(classes, weight / LIKELY, bias / LIKELY, none, level, LIKELY)


def chosen_at_home(
    solution: Solution, known: tuple[Tensor, Tensor], seen: tuple[Tensor, Tensor], mix: Tensor
) -> Tensor:
    """Return the temperature and the weight of own images that a site uses, float64 [2].

    known: features and labels of its labelled images. seen: of the validation images that decide.
    mix: the site's class mix [C]. The likeliest is chosen: a weight above 0 must be likelier than
    none by `LEAD`, and temperatures count as log-normal around `LIKELY`.
    """
    features, labels = seen[0].double(), seen[1]
    rows, best = torch.arange(len(labels)), (-math.inf, LIKELY, 0.0)
    for own in OWN_WEIGHTS if len(known[1]) else (0.0,):
        weight, bias = (LIKELY * part.double() for part in solution.head(*known, own))
        logits = bounded(features @ weight.T + bias)
        for t in TEMPERATURES:
            logs = torch.log_softmax(logits / t + mix.log(), dim=1)[rows, labels]
            score = float(logs.clamp_min(WORST).sum()) - LEAD * (own > 0)
            best = max(best, (score - math.log(t / LIKELY) ** 2 / 2, t, own))
    return torch.tensor(best[1:], dtype=torch.float64)
