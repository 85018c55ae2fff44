"""Few bytes where there are many features: what travels rounded, and how it is read again.

Of d features a covariance has d (d + 1) / 2 numbers, 3.3 MB for 1,280 features as float32, and a
run would send several to each site. `FeatureMap.rounded` says for which features these take its
place, all of them in numbers of 12 bits:

- `factor_of`: a sum of squares around the mean as standard deviations and a factor of the
  correlations: the triangular one (Cholesky), or of few images the few rows that are enough. What
  is read has no negative eigenvalues, and small ones are off by the square of the rounding;
  rounding each correlation would drown them.
- `leading`: the directions in which features vary most within classes. In these alone a site's own
  images move its head away from the common one, so that it needs the covariance only there.
- `few_rows`: heads at several lambdas, which are nearly dependent, as weighted sums of a few rows.
"""

import math

import numpy as np
import torch
from torch import Tensor

from fedapp.core.linear_algebra import eigh
from fedapp.learn.params import Params, Schema

STEPS = 2**11 - 1
"""Steps from 0 to 1, and to -1. Rounding of a factor changes no eigenvalue of a second moment by
more than 1 / STEPS of its trace: found was 0.3 of it, where each class has images that are all
alike."""
LEAST = 1e-6
"""A deviation, of one image of norm 1, below which a feature is rounding and correlates with
none."""
LEAST_EIGENVALUE = 1e-12
"""An eigenvalue of correlations below which it is rounding, in units of their trace."""
RIDGE = 1e-8
"""Added to each eigenvalue of correlations, so that they have a triangular factor also where there
are fewer images than features. Its root, 1e-4, is less than half a step."""
MOST_DIRECTIONS = 128
"""The number of directions in which a site's own images move its head."""
FEW_IMAGES = 128
"""Of so many images, or fewer, the factor of a covariance has so many rows; for 1,280 features that
is a fifth of the triangle's bytes. For fewer than twice as many features, of which a triangle is
small, it is more."""
GRID_ROWS = 4
"""Of a grid: the number of rows whose weighted sums its heads are."""
DEVIATIONS, FACTOR = "deviations", "factor"
DIRECTIONS = "directions"
ROWS, PARTS = "rows", "parts"
SCALE = "_scale"
"""Names of tensors as they travel; the last one is appended to the name of what is scaled."""
TINY = torch.finfo(torch.float32).tiny


def in_12_bits(name: str, rows: Tensor) -> Params:
    """Return rows [n, d] in 12 bits a number, and by what they are scaled, float32 [n].

    The error is half a step at most, of which 1 / `STEPS` is the row's largest number.
    """
    scale = rows.abs().amax(1).float()
    return {name: _packed(rows / scale.double().clamp_min(TINY)[:, None]), name + SCALE: scale}


def of_12_bits(name: str, params: Params, size: int) -> Tensor:
    """Return the rows [n, d], float64, that `in_12_bits` wrote under this name; d = size."""
    scale = params[name + SCALE].double()
    return _unpacked(params[name], len(scale) * size).view(-1, size) * scale[:, None]


def schema_in_12_bits(name: str, count: int, size: int) -> Schema:
    """Return the schema of `in_12_bits` for n rows of d numbers."""
    return {name: (_octets(count * size), torch.uint8), name + SCALE: ((count,), torch.float32)}


def _packed(numbers: Tensor) -> Tensor:
    """Return numbers in [-1, 1] as octets: two numbers in three of them."""
    steps = ((numbers.flatten().clamp(-1, 1) * STEPS).round() + STEPS).numpy().astype(np.uint16)
    one, other = np.pad(steps, (0, len(steps) % 2)).reshape(-1, 2).T
    octets = np.stack([one & 255, one >> 8 | (other & 15) << 4, other >> 4], 1)
    return torch.from_numpy(octets.astype(np.uint8).flatten())


def _unpacked(octets: Tensor, count: int) -> Tensor:
    """Return so many numbers, float64, that `_packed` wrote; of other bits, up to 1.0005."""
    first, middle, last = octets.numpy().astype(np.uint16).reshape(-1, 3).T
    steps = np.stack([first | (middle & 15) << 8, middle >> 4 | last << 4], 1).flatten()
    return (torch.from_numpy(steps[:count].astype(np.float64)) - STEPS) / STEPS


def _octets(count: int) -> tuple[int]:
    return (3 * math.ceil(count / 2),)


# --- covariances ----------------------------------------------------------------------------------


def factor_of(scatter: Tensor, images: float = 1.0, few: bool = False) -> Params:
    """Return a covariance, [d, d], or a sum of so many images' squares: float32 [d], and 12 bits.

    The variances are exact but for float32. Images have norm 1 at most. few: as rows, of which
    there are enough for `FEW_IMAGES` images; else as a triangle.
    """
    deviations = scatter.diagonal().clamp_min(0).sqrt()
    each = deviations.clamp_min(LEAST * math.sqrt(max(images, 1.0)))
    correlations = scatter / each / each[:, None]
    if few:
        values, vectors = eigh(correlations)
        # Rows of eigenvalues that are 0 hold rounding, which would be scaled up to 12 bits.
        values = values.where(values > LEAST_EIGENVALUE * len(values), 0.0)
        roots = (vectors * values.sqrt()).T
        found = in_12_bits(FACTOR, roots[max(len(roots) - FEW_IMAGES, 0) :])
        return {DEVIATIONS: deviations.float(), **found}
    correlations.fill_diagonal_(1 + RIDGE)
    lower, failed = torch.linalg.cholesky_ex(correlations)
    if failed:  # eigenvalues below 0, by more than rounding
        values, vectors = eigh(correlations)
        lower = torch.linalg.qr((vectors * values.clamp_min(0).sqrt()).T).R.T
    rows, columns = torch.tril_indices(*lower.shape)
    return {DEVIATIONS: deviations.float(), FACTOR: _packed(lower[rows, columns])}


def scatter_of(params: Params) -> Tensor:
    """Return the sum of squares, float64 [d, d], that `factor_of` wrote.

    It has no negative eigenvalues, whatever the bits are.
    """
    each = params[DEVIATIONS].double()
    if FACTOR + SCALE in params:
        lower = of_12_bits(FACTOR, params, len(each)).T.contiguous()
    else:
        lower = torch.zeros(len(each), len(each), dtype=torch.float64)
        rows, columns = torch.tril_indices(*lower.shape)
        lower[rows, columns] = _unpacked(params[FACTOR], len(rows))
    lower *= (each / lower.norm(dim=1).clamp_min(1 / STEPS))[:, None]
    return lower @ lower.T


def factor_schema(size: int, few: bool = False) -> Schema:
    """Return the schema of `factor_of` for d features."""
    deviations: Schema = {DEVIATIONS: ((size,), torch.float32)}
    if few:
        return {**deviations, **schema_in_12_bits(FACTOR, min(size, FEW_IMAGES), size)}
    return {**deviations, FACTOR: (_octets(size * (size + 1) // 2), torch.uint8)}


# --- directions -----------------------------------------------------------------------------------


def leading(spectrum: tuple[Tensor, Tensor]) -> Params:
    """Return the leading directions [r, d] of eigenvalues [d], ascending, and eigenvectors."""
    values, vectors = spectrum
    return in_12_bits(DIRECTIONS, vectors[:, max(len(values) - MOST_DIRECTIONS, 0) :].T)


def directions_schema(size: int) -> Schema:
    """Return the schema of `leading` for d features."""
    return schema_in_12_bits(DIRECTIONS, min(size, MOST_DIRECTIONS), size)


# --- grids ----------------------------------------------------------------------------------------


def few_rows(heads: Tensor) -> Params:
    """Return heads, float64 [L, C, d], as weighted sums of q <= L rows of C d numbers.

    Each is as exact in relation to its own norm as any other, however large that is.
    """
    flat = heads.flatten(1)
    norms = flat.norm(dim=1, keepdim=True).clamp_min(TINY)
    left, values, rows = torch.linalg.svd(flat / norms, full_matrices=False)
    parts = norms * left[:, :GRID_ROWS] * values[:GRID_ROWS]
    each = rows[:GRID_ROWS].unflatten(1, heads.shape[1:]).flatten(0, 1)
    return {**in_12_bits(ROWS, each), PARTS: parts.float().flatten()}


def heads_of(params: Params, count: int, classes: int) -> Tensor:
    """Return the heads, float32 [L, C, d], that `few_rows` wrote."""
    parts = params[PARTS].double().view(count, -1)
    few = parts.shape[1]
    size = 2 * len(params[ROWS]) // 3 // (few * classes)
    rows = of_12_bits(ROWS, params, size).view(few, -1)
    return (parts @ rows).float().view(count, classes, size)


def few_rows_schema(count: int, classes: int, size: int) -> Schema:
    """Return the schema of `few_rows` for L heads of C classes and d features."""
    few = min(GRID_ROWS, count, classes * size)
    each = schema_in_12_bits(ROWS, few * classes, size)
    return {**each, PARTS: ((count * few,), torch.float32)}
