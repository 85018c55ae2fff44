"""Filters learned from patches of the images of all sites through sums (Coates & Ng 2011, 2012).

A patch has 6 x 6 pixels of all channels; its mean is subtracted, and it is divided by its standard
deviation (plus a small constant). The first exchange gives the mean and the covariance of all
patches and, from these, a whitening (ZCA). Each further exchange is one round of spherical k-means:
a whitened patch is assigned to the filter with which its product is greatest in absolute value,
with that product as its weight, and a filter becomes the weighted sum of its patches, scaled to
norm 1. The first filters are random directions.

The features of an image are its responses. At each place, the response of a filter is its product
with the whitened patch, minus 0.5, cut off at 0. The responses are averaged over each quarter of
the image; the square roots of all averages together are scaled to norm 1.

Patches and weights are rounded to 1/1024 before they are added. So sums in float64 are exact, and
do not depend on how images are distributed over sites or on the order of addition. All images give
their patches at the same places, which are drawn anew for each step.
"""

from collections.abc import Mapping
from typing import ClassVar, Final, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from fedapp.core.linear_algebra import eigh
from fedapp.core.rng import torch_stream
from fedapp.learn.features._images import WorkingSize
from fedapp.learn.features.base import BELOW_ONE, MIN_NORM, LearnedFeatures, unit_rows
from fedapp.learn.networks.base import Network
from fedapp.learn.params import Schema

PATCH_SIDE: Final = 6
"""Pixels along the side of a patch."""
FILTERS: Final = 200
ROUNDS: Final = 10
"""Exchanges for k-means."""
PATCHES_PER_IMAGE: Final = 16
"""Patches of an image in one exchange, at most."""
CONTRAST_FLOOR: Final = 0.01
"""Added to a patch's variance before the square root: a fifth of a grey level is no contrast."""
RIDGE: Final = 0.1
"""Added to the eigenvalues of the covariance, as a multiple of their mean."""
THRESHOLD: Final = 0.5
"""Subtracted from responses before they are cut off at 0."""
ROUNDING_STEPS: Final = 2**10
"""Rounding steps per unit in what is added. Sums over 10^8 patches are exact."""
BOUND_SLACK: Final = 1.01
"""Factor by which received sums may exceed what is possible, because of rounding."""
IMAGES_AT_ONCE: Final = 256
"""Images whose patches are in memory at a time."""


class Patches(LearnedFeatures):
    """Four features for each filter, 800 by default."""

    name: ClassVar[str] = "patches"
    of_images: ClassVar[bool] = True
    at_once: ClassVar[int] = 16
    mean: Tensor
    """Mean of all patches, [d]."""
    whitening: Tensor
    """Whitening matrix, symmetric, [d, d]."""
    filters: Tensor
    """Filters in whitened space, each with norm 1, [filters, d]."""

    def __init__(
        self, inputs: tuple[int, ...], seed: int, filters: int = FILTERS, rounds: int = ROUNDS
    ) -> None:
        super().__init__()
        self.seed, self.rounds = seed, rounds
        self.working = WorkingSize(inputs)
        height, width = (side - PATCH_SIDE + 1 for side in self.working.sides)
        self.places = height * width
        self.quarter = -(-height // 2), -(-width // 2)
        self.channels, self.size = inputs[0], 4 * filters
        d = inputs[0] * PATCH_SIDE**2
        start = torch.randn(filters, d, generator=torch_stream(seed, "filters' start"))
        self.register_buffer("mean", torch.zeros(d))
        self.register_buffer("whitening", torch.eye(d))
        self.register_buffer("filters", unit_rows(start))

    @classmethod
    def build(cls, inputs: tuple[int, ...], seed: int, network: Network | None) -> Self:
        """Build the map in its initial state."""
        return cls(inputs, seed)

    def forward(self, x: Tensor) -> Tensor:
        """float32 [n, channels, height, width] -> float32 [n, size], with norms of at most 1.

        The quarters are of equal size, except that the last rows or columns of an odd number are
        fewer.
        """
        x = self.working(x).contiguous(memory_format=torch.channels_last)
        kernels = self.filters @ self.whitening
        offset = kernels @ self.mean
        kernels = kernels - kernels.mean(1, keepdim=True)  # a patch's mean is subtracted
        level = F.avg_pool2d(x, PATCH_SIDE, 1).mean(1, keepdim=True)
        square = F.avg_pool2d(x.square(), PATCH_SIDE, 1).mean(1, keepdim=True)
        contrast = ((square - level.square()).clamp_min(0) + CONTRAST_FLOOR).sqrt()
        response = F.conv2d(x, kernels.view(-1, self.channels, PATCH_SIDE, PATCH_SIDE))
        # In place: the responses are large, and allocating them takes longer than the convolution.
        response = response.div_(contrast).sub_((offset + THRESHOLD)[:, None, None]).relu_()
        quarters = F.avg_pool2d(response, self.quarter, ceil_mode=True, count_include_pad=False)
        return unit_rows(quarters.flatten(1).sqrt()) * BELOW_ONE

    def exchanges(self) -> int:
        """Return the number of steps: one for the whitening and those of k-means."""
        return 1 + self.rounds

    def sum_schema(self, step: int) -> Schema:
        """Return the shapes and dtypes of a step's sums."""
        filters, d = self.filters.shape
        if step == 0:
            shapes: dict[str, tuple[int, ...]] = {"count": (), "sum": (d,), "products": (d, d)}
        else:
            shapes = {"weight": (filters,), "sum": (filters, d)}
        return {name: (shape, torch.float64) for name, shape in shapes.items()}

    @torch.no_grad()
    def sums(self, step: int, x: Tensor) -> dict[str, Tensor]:
        """Return the sums over patches: at step 0 for the whitening, then for the filters.

        Step 0: `count`, `sum`, and `products`, the sum of the outer product of each patch with
        itself. Later: for each filter `weight`, the sum of the weights of the patches assigned to
        it, and `sum`, the sum of weights times patches.
        """
        added = {
            name: torch.zeros(shape, dtype=dtype, device=x.device)
            for name, (shape, dtype) in self.sum_schema(step).items()
        }
        for some in x.split(IMAGES_AT_ONCE) if len(x) else ():
            patches = self._patches(step, some)
            if step == 0:
                added["count"] += len(patches)
                added["sum"] += patches.sum(0)
                added["products"] += patches.T @ patches
            else:
                found, weights = self._assigned(patches)
                added["weight"].index_add_(0, found, weights)
                added["sum"].index_add_(0, found, patches * weights[:, None])
        return added

    @torch.no_grad()
    def impossible(self, step: int, sums: Mapping[str, Tensor], images: int) -> str:
        """Return why no `images` images can have these sums; empty if some can.

        The norm of a patch of d numbers is at most sqrt(d), except for rounding.
        """
        patches, long = (
            images * min(PATCHES_PER_IMAGE, self.places),
            self.mean.numel() ** 0.5 * BOUND_SLACK,
        )
        if step:
            kernels = self.filters.double() @ self.whitening.double()
            weight = (
                (long + float(self.mean.norm())) * float(kernels.norm(dim=1).max()) * BOUND_SLACK
            )
            weights, moved = sums["weight"].abs().sum(), sums["sum"].norm(dim=1).sum()
            if weights > patches * weight or moved > patches * weight * long:
                return f"weights {float(weights):g}, more than {images} images have"
            return ""
        count, products = float(sums["count"]), sums["products"]
        if count != patches:
            return f"of {count:g} patches, {images} images have {patches}"
        trace, total = float(products.trace()), sums["sum"]
        if not 0 <= trace <= patches * long**2:
            return f"products of patches add up to {trace:g}, more than {images} images have"
        slack = (BOUND_SLACK - 1) * (trace + 1e-9)
        left = products - total.outer(total) / max(count, 1) + slack * torch.eye(len(total))
        if not products.equal(products.T) or int(torch.linalg.cholesky_ex(left).info):
            return "products of patches are not positive semi-definite once their mean is taken out"
        return ""

    @torch.no_grad()
    def learned(self, step: int, total: Mapping[str, Tensor]) -> None:
        """Learn the whitening or the filters. A filter without patches stays as it is."""
        if step == 0:
            if not total["count"] > 0:
                return
            mean = total["sum"] / total["count"]
            self.mean.copy_(mean)
            self.whitening.copy_(whitening(total["products"] / total["count"] - mean.outer(mean)))
            return
        centred = total["sum"] - total["weight"][:, None] * self.mean.double()
        whitened = centred @ self.whitening.double()
        long = whitened.norm(dim=1, keepdim=True)
        self.filters.copy_(
            torch.where(long > MIN_NORM, whitened / long.clamp_min(MIN_NORM), self.filters)
        )

    def _patches(self, step: int, x: Tensor) -> Tensor:
        """Return the rounded patches of a step, float64 [patches, d]."""
        stream = torch_stream(self.seed, "places of patches", step)
        places = torch.randperm(self.places, generator=stream)[:PATCHES_PER_IMAGE]
        small, across = self.working(x), self.working.sides[1] - PATCH_SIDE + 1
        cut = [
            small[:, :, place // across :, place % across :][:, :, :PATCH_SIDE, :PATCH_SIDE]
            for place in places.tolist()
        ]
        whole: Tensor = torch.stack(cut, 1).flatten(0, 1).flatten(1).double()
        whole = whole - whole.mean(1, keepdim=True)
        whole /= (whole.square().mean(1, keepdim=True) + CONTRAST_FLOOR).sqrt()
        return whole.mul_(ROUNDING_STEPS).round_().div_(ROUNDING_STEPS)

    def _assigned(self, patches: Tensor) -> tuple[Tensor, Tensor]:
        """Return the filter to which each patch is assigned, and its rounded weight."""
        kernels = (self.filters.double() @ self.whitening.double()).T
        products = (patches - self.mean.double()) @ kernels
        found = products.abs().argmax(1)
        weights = products.gather(1, found[:, None])[:, 0]
        return found, weights.mul_(ROUNDING_STEPS).round_().div_(ROUNDING_STEPS)


def whitening(covariance: Tensor) -> Tensor:
    """Return the ZCA whitening V (w + RIDGE mean(w))^(-1/2) V^T of V w V^T, float64 [d, d].

    Negative eigenvalues count as 0. If all are 0, the result is the identity.
    """
    values, vectors = eigh(covariance)
    values = values.clamp_min(0)
    level = float(values.mean())
    if level <= MIN_NORM:
        return torch.eye(len(values), dtype=covariance.dtype)
    found: Tensor = (vectors * (values + RIDGE * level).rsqrt()) @ vectors.T
    return found


FEATURES = Patches
