"""The closed form of sums with noise: what the server makes of them, and a site of that.

All that the server does with noisy rows costs nothing more. Nothing else leaves a site: each
chooses by its own validation images how much its own labelled images count, and its temperature.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedapp.methods.closed_form._calibration import bounded
from fedapp.methods.closed_form._contents import OWN_WEIGHTS, WORST, Solution
from fedapp.methods.closed_form._discriminant import Classes, Sums
from fedapp.methods.closed_form._released import COUNTED, RADIUS, Released

RIDGE = 0.3
"""lambda, in mean eigenvalues of the covariance within classes."""
TEMPERATURES = (0.75, 1.5, 3.0, 6.0, 12.0, 24.0, 48.0)
"""What a site may divide its logits by."""
LIKELY = 6.0
"""Temperature of the common answer, around which a site's own is log-normal before it looks."""
USUAL, FEW = 10.0, 0.3
"""Weight of own images around which a site's own is log-normal before it looks, with `FEW` added to
both. Own images have no noise; so they are worth more than what all sites' are with it."""


@dataclass(frozen=True, eq=False)
class Cleared:
    """What is left of a noisy second moment without its noise.

    moment: [d, d]. vectors: its eigenvectors [d, d]. seen: bool [d], whose eigenvalues are not
    hidden in the noise. floor: eigenvalue of all the others.
    """

    moment: Tensor
    vectors: Tensor
    seen: Tensor
    floor: float


def cleared(moment: Tensor, radius: float) -> Cleared:
    """Return what is left of a noisy second moment [d, d] without its noise.

    radius: of the spectrum of the noise, a semicircle around 0; 0: there is none. An eigenvalue t
    of the images above radius / 2 is seen at t + radius^2 / (4 t) (Peche 2006), and is put back.
    All others are hidden in the noise: they share evenly what they add to the trace, which is known
    well. That share is the floor.
    """
    values, vectors = torch.linalg.eigh((moment + moment.T) / 2)
    seen = values > radius
    true = torch.where(seen, (values + (values**2 - radius**2).clamp_min(0).sqrt()) / 2, 0.0)
    hidden = (values.sum() - true.sum()) / (~seen).sum().clamp_min(1)
    floor = max(float(hidden), 0.0)
    return Cleared((vectors * true.clamp_min(floor)) @ vectors.T, vectors, seen, floor)


def drawn(apart: Tensor, erring: Tensor, counts: Tensor, clear: Cleared) -> Tensor:
    """Return noisy class means [C, d] drawn to the mean of all, which they are measured from.

    As far as the noise in them outweighs how far they lie from there: the best linear estimate, one
    factor in all directions that are seen in the second moment, another in those that are hidden,
    where means lie nearer. It is that of a class of usual noise, and the same for all: were some
    drawn farther, they would be the answer to images near it. Only a class of more noise
    than usual, so of few images, is drawn farther, by a factor in all directions. erring: [C],
    variance of the noise in each number of a mean. counts: [C], images of each class; of those
    without any the mean is 0.
    """
    weights = counts.square() / counts.square().sum().clamp_min(1.0)  # by how exact means are
    noise = float(weights @ erring)

    def size(means: Tensor) -> float:
        return max(float(weights @ means.square().mean(1)) - noise, 1e-12)

    turned, whole = apart @ clear.vectors, size(apart)
    for part in (clear.seen, ~clear.seen):
        if bool(part.any()):
            here = size(turned[:, part])
            turned[:, part] *= here / (here + noise)
    farther = ((whole + noise) / (whole + erring)).clamp_max(1.0)
    return farther[:, None] * turned @ clear.vectors.T


def classes_of(total: Released, noise: float, middle: Tensor) -> Classes:
    """Return class means and covariance within classes, of coordinates.

    noise: standard deviation of each number of the row at most; 0: none. middle: as of `shortened`.
    A class whose count is not above twice its noise is taken for one that nobody has images of. No
    eigenvalue within classes is below the second moment's floor.
    """
    size, images = len(total.second), max(float(total.counts.sum()), 1.0)
    counts = torch.where(total.counts > 2 * noise / COUNTED, total.counts, 0.0)[:-1]
    mean = total.mean
    means = total.sums[:-1] / counts.clamp_min(1.0)[:, None]
    apart = torch.where(counts[:, None] > 0, means - mean, 0.0)
    erring = (noise / counts.clamp_min(1.0)).square()
    moment = total.second / total.weight - torch.outer(mean, mean)
    clear = cleared(moment, noise * math.sqrt(2 * size) / total.weight)
    whole, floor = clear.moment, clear.floor
    sums = counts[:, None] * drawn(apart, erring, counts, clear)
    found = Classes(counts, torch.zeros_like(sums), whole, images)
    if bool(counts.any()):
        found = Classes.of(Sums(counts, sums, images, torch.zeros_like(middle), images * whole))
    values, vectors = found.spectrum
    within = (vectors * values.clamp_min(floor)) @ vectors.T
    return Classes(counts, middle + RADIUS * (mean + found.means), RADIUS**2 * within, images)


def solution_of(classes: Classes) -> Solution:
    """Return the common answer. The federation's mean mix is worth nothing: it has no noise."""
    level = classes.level(RIDGE)
    weight, bias = classes.head(level)
    none = torch.zeros(len(classes.counts), dtype=torch.float64)
    return Solution(classes, weight / LIKELY, bias / LIKELY, none, level, LIKELY)


def chosen_at_home(
    solution: Solution, known: tuple[Tensor, Tensor], seen: tuple[Tensor, Tensor], mix: Tensor
) -> Tensor:
    """Return the temperature and the weight of own images that a site uses, float64 [2].

    known: coordinates and labels of its labelled images. seen: of the validation images that
    decide. mix: the site's class mix [C]. The likeliest is chosen; before a look temperatures are
    log-normal around `LIKELY`, with variance 1/4, and weights around `USUAL`, with variance 1/2:
    wider, few validation images cost a point.
    """
    features, labels = seen[0].double(), seen[1]
    rows, best = torch.arange(len(labels)), (-math.inf, LIKELY, 0.0)
    for own in OWN_WEIGHTS if len(known[1]) else (0.0,):
        unusual = math.log((own + FEW) / (USUAL + FEW)) ** 2
        weight, bias = (LIKELY * part.double() for part in solution.head(*known, own))
        logits = bounded(features @ weight.T + bias)
        for t in TEMPERATURES:
            logs = torch.log_softmax(logits / t + mix.log(), dim=1)[rows, labels]
            score = float(logs.clamp_min(WORST).sum()) - unusual
            best = max(best, (score - 2 * math.log(t / LIKELY) ** 2, t, own))
    return torch.tensor(best[1:], dtype=torch.float64)
