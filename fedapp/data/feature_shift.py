"""Feature shift between simulated sites: the images of each site look as if from its own scanner.

Everything is computed on the CPU, pixel by pixel, without sums whose order depends on the machine.
So the bytes do not depend on the process or on the number of threads.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from fedapp.core import rng

_CHUNK = 256
"""Images changed at a time, so that the float copies stay below 30 MB each."""


@dataclass(frozen=True)
class FeatureShift:
    """The changes to one site's images. The default values change nothing.

    rotation: degrees, counter-clockwise.
    brightness: added, as a share of the full scale.
    contrast: a factor above 0, about mid-grey.
    blur: sigma of a Gaussian in pixels, 0 or more.
    noise: standard deviation as a share of the full scale, 0 or more.
    """

    rotation: float = 0.0
    brightness: float = 0.0
    contrast: float = 1.0
    blur: float = 0.0
    noise: float = 0.0


def draw_shift(seed: int, site: int, strength: float, kinds: Sequence[str]) -> FeatureShift:
    """Draw the changes of a site at a strength s in [0, 1]. kinds: of `SHIFT_KINDS`.

    Uniform: rotation in +-40 s, brightness in +-0.3 s, log(contrast) in +-0.7 s, blur in 0 to 1.5
        s, noise in 0 to 0.2 s. Each kind has its own random key. So a change does not depend on the
        other kinds or sites, and it grows in proportion to the strength.
    """
    unit = {
        kind: float(rng.numpy_stream(seed, "feature-shift", kind, site).random()) for kind in kinds
    }
    both = {kind: strength * (2 * u - 1) for kind, u in unit.items()}
    return FeatureShift(
        rotation=40 * both.get("rotation", 0.0),
        brightness=0.3 * both.get("brightness", 0.0),
        contrast=math.exp(0.7 * both.get("contrast", 0.0)),
        blur=1.5 * strength * unit.get("blur", 0.0),
        noise=0.2 * strength * unit.get("noise", 0.0),
    )


def shift_sites(
    images: Tensor, site: NDArray[np.int32], seed: int, strength: float, kinds: Sequence[str]
) -> Tensor:
    """Return a pool in which each site's images are changed; `images` itself at strength 0.

    images: uint8 [N, C, H, W] on the CPU. site: int32 [N], the owner of each image.
    """
    if strength == 0:
        return images
    changed = torch.empty_like(images)
    order = np.argsort(site, kind="stable")
    owners, first = np.unique(site[order], return_index=True)
    for owner, members in zip(owners.tolist(), np.split(order, first[1:]), strict=True):
        rows = torch.from_numpy(members)
        grain = rng.numpy_stream(seed, "feature-shift", "grain", owner)
        changed[rows] = apply_shift(images[rows], draw_shift(seed, owner, strength, kinds), grain)
    return changed


def apply_shift(images: Tensor, shift: FeatureShift, grain: np.random.Generator) -> Tensor:
    """Return the changed images: uint8 [n, C, H, W], rounded and clamped once, at the end.

    images: uint8 [n, C, H, W] on the CPU. grain: the generator of noise, image after image. The
        order is that of a camera: the scene rotates, the lens blurs, the sensor scales, shifts and
        adds noise.
    """
    changed = torch.empty_like(images)
    for start in range(0, len(images), _CHUNK):
        x = images[start : start + _CHUNK].to(torch.float32)
        if shift.rotation:
            x = _rotated(x, shift.rotation)
        if shift.blur:
            x = _blurred(x, shift.blur)
        x = (x - 127.5) * shift.contrast + (127.5 + 255 * shift.brightness)
        if shift.noise:
            normal = torch.from_numpy(grain.standard_normal(x.shape, np.float32))
            x = x + normal * (255 * shift.noise)
        changed[start : start + _CHUNK] = x.round_().clamp_(0, 255)
    return changed


def _rotated(x: Tensor, degrees: float) -> Tensor:
    """Rotate about the centre, bilinearly. Outside the image its edge pixels are repeated."""
    height, width = x.shape[2:]
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    down = torch.arange(height, dtype=torch.float64)[:, None] - (height - 1) / 2
    along = torch.arange(width, dtype=torch.float64) - (width - 1) / 2
    column = (along * cos - down * sin + (width - 1) / 2).clamp_(0, width - 1).flatten()
    row = (along * sin + down * cos + (height - 1) / 2).clamp_(0, height - 1).flatten()
    left, top = column.floor(), row.floor()
    right, bottom = (left + 1).clamp_(max=width - 1), (top + 1).clamp_(max=height - 1)
    to_right, to_bottom = column - left, row - top
    pixels, turned = x.flatten(2), torch.zeros_like(x).flatten(2)
    for r, vertical in ((top, 1 - to_bottom), (bottom, to_bottom)):
        for c, horizontal in ((left, 1 - to_right), (right, to_right)):
            source = (r * width + c).long()
            turned += pixels[:, :, source] * (vertical * horizontal).float()
    return turned.view_as(x)


def _blurred(x: Tensor, sigma: float) -> Tensor:
    """Blur with a Gaussian, cut off at 3 sigma. Edge pixels are repeated outside the image."""
    reach = math.ceil(3 * sigma)
    weights = [math.exp(-((i / sigma) ** 2) / 2) for i in range(-reach, reach + 1)]
    for axis, letter in ((2, (0, 0, reach, reach)), (3, (reach, reach, 0, 0))):
        framed = functional.pad(x, letter, mode="replicate")
        x = torch.zeros_like(x)
        for i, weight in enumerate(weights):
            x += framed.narrow(axis, i, x.shape[axis]) * (weight / sum(weights))
    return x
