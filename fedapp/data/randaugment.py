"""RandAugment's operations in FixMatch, each on many images at once, in integers.

Integers give the same bits on every device. Rounding follows Pillow, which the authors' code uses
(google-research/fixmatch, third_party/auto_augment/augmentations.py). The ranges of magnitudes are
those in the paper's appendix (Sohn et al. 2020, transformations of RandAugment); the authors' code
has others.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

GREY = 127
"""Value of pixels that lie outside the image or are cut out: middle grey, as in the authors' code.
"""

_FIXED_POINT = 1 << 16
"""Geometric coefficients are integers in units of 1/65536, as in Pillow."""

PixelOperation = Callable[[Tensor, Tensor], Tensor]
"""uint8 images [m, c, h, w] and their magnitudes, int32 [m, 1, 1, 1] -> new uint8 images."""


def autocontrast(x: Tensor, _level: Tensor) -> Tensor:
    """Stretch each channel to 0 ... 255; a constant channel stays as it is."""
    low = x.amin((2, 3), keepdim=True).int()
    span = x.amax((2, 3), keepdim=True).int() - low
    return torch.where(span > 0, (x - low) * 255 // span.clamp(min=1), x).byte()


def brightness(x: Tensor, level: Tensor) -> Tensor:
    """Blend with black."""
    return (x * level >> 10).byte()


def color(x: Tensor, level: Tensor) -> Tensor:
    """Blend with the image's grey version; a grey image stays as it is."""
    return _blend(_grey(x), x, level)


def contrast(x: Tensor, level: Tensor) -> Tensor:
    """Blend with the image's mean grey, rounded half up."""
    pixels = x.shape[2] * x.shape[3]
    total = _grey(x).sum((2, 3), keepdim=True)
    return _blend(((2 * total + pixels) // (2 * pixels)).int(), x, level)


def equalize(x: Tensor, _level: Tensor) -> Tensor:
    """Make each channel's histogram flat; where no step of one level fits, it stays as it is."""
    pixels = x.flatten(2).long()
    counts = pixels.new_zeros((*x.shape[:2], 256)).scatter_add_(2, pixels, torch.ones_like(pixels))
    brightest = counts.gather(2, pixels.amax(2, keepdim=True))
    step = (pixels.shape[2] - brightest) // 255
    table = (counts.cumsum(2) - counts + step // 2) // step.clamp(min=1)
    even = table.clamp(max=255).gather(2, pixels)
    return torch.where(step > 0, even, pixels).byte().view_as(x)


def identity(x: Tensor, _level: Tensor) -> Tensor:
    """Leave the image as it is."""
    return x


def posterize(x: Tensor, level: Tensor) -> Tensor:
    """Keep the highest bits of each value."""
    return (x.int() >> (8 - level) << (8 - level)).byte()


def sharpness(x: Tensor, level: Tensor) -> Tensor:
    """Blend with a smoothed version: a 3 x 3 mean, the centre counted 5 times; edges stay."""
    smooth = x.int()
    rows = smooth[:, :, :-2] + smooth[:, :, 1:-1] + smooth[:, :, 2:]
    total = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:] + 4 * smooth[:, :, 1:-1, 1:-1]
    smooth[:, :, 1:-1, 1:-1] = (2 * total + 13) // 26
    return _blend(smooth, x, level)


def solarize(x: Tensor, level: Tensor) -> Tensor:
    """Invert the values from the threshold on."""
    return torch.where(x < level, x, 255 - x)


PIXELS: tuple[tuple[PixelOperation, int, int], ...] = (
    (autocontrast, 0, 0),
    (brightness, 52, 972),  # the image's share in 1/1024: 0.05 to 0.95
    (color, 52, 972),
    (contrast, 52, 972),
    (equalize, 0, 0),
    (identity, 0, 0),
    (posterize, 4, 8),  # bits
    (sharpness, 52, 972),
    (solarize, 0, 256),  # 0 to 1 of the range of values; 256 leaves all as it is
)
"""Operations on values, with their least and greatest magnitude, integers."""

GEOMETRY: tuple[tuple[str, int], ...] = (
    ("rotate", 30 * _FIXED_POINT),  # degrees, counter-clockwise, about the centre
    ("shear_x", 19660),  # 0.3
    ("shear_y", 19660),
    ("translate_x", 19660),  # of the width
    ("translate_y", 19660),  # of the height
)
"""Geometric operations, with their greatest magnitude in units of 1/65536; the least is its
negative.
"""


def affine(kind: Tensor, level: Tensor, height: int, width: int) -> Tensor:
    """Return the coefficients (a, b, c, d, e, f) of operations of `GEOMETRY`, int32 [..., 6].

    kind: int64 [...], indices into `GEOMETRY`; any other value means no movement.
    level: int64 [...], the magnitudes.

    The pixel in row y, column x is taken from column (a x + b y + c) >> 16 and row (d x + e y + f)
    >> 16. All is computed on the CPU, because sines differ between devices.
    """
    amount = level[..., None] * (kind[..., None] == torch.arange(len(GEOMETRY)))
    degrees, shear_x, shear_y, move_x, move_y = (amount.double() / _FIXED_POINT).unbind(-1)
    angle = degrees.deg2rad()
    cos, sin = angle.cos(), angle.sin()
    # Rotations turn about the middle pixel; Pillow's shears hold the outer edge of the first row or
    # column, half a pixel before its middle. + 1/2 rounds to the nearest pixel.
    x, y = (width - 1) / 2, (height - 1) / 2
    c = x - x * cos + y * sin + shear_x / 2 + move_x * width + 0.5
    f = y - x * sin - y * cos + shear_y / 2 + move_y * height + 0.5
    wanted = torch.stack([cos, shear_x - sin, c, shear_y + sin, cos, f], -1)
    return (wanted * _FIXED_POINT + 0.5).floor().int()


def move(x: Tensor, coefficients: Tensor) -> Tensor:
    """Take each pixel from the place that `affine` gives, nearest neighbour; outside: `GREY`."""
    height, width = x.shape[2:]
    a, b, c, d, e, f = coefficients.view(-1, 6, 1, 1).unbind(1)
    along = torch.arange(width, dtype=torch.int32, device=x.device)
    down = torch.arange(height, dtype=torch.int32, device=x.device)[:, None]
    columns = (a * along + (b * down + c) >> 16).clamp_(-1, width)
    rows = (d * along + (e * down + f) >> 16).clamp_(-1, height)
    framed = F.pad(x, (1, 1, 1, 1), value=GREY)  # so that -1 and height are pixels too
    return take(framed, (rows + 1) * (width + 2) + (columns + 1))


def take(x: Tensor, source: Tensor) -> Tensor:
    """Return images [m, c, h, w] whose pixel [i, y, x] is pixel number source[i, y, x] of image i.

    x: images of any size, whose pixels are numbered row by row. source: integers [m, h, w].
    """
    index = source.flatten(1).long()[:, None].expand(-1, x.shape[1], -1)
    return x.flatten(2).gather(2, index).view(*x.shape[:2], *source.shape[1:])


def _blend(base: Tensor, x: Tensor, factor: Tensor) -> Tensor:
    """Return base + factor (x - base), truncated to integers.

    base: int32. factor: in units of 1/1024.
    """
    return (base + ((x - base) * factor >> 10)).byte()


def _grey(x: Tensor) -> Tensor:
    """Return luma [m, 1, h, w], int32, by the weights of ITU-R 601-2 in 1/65536."""
    if x.shape[1] == 1:
        return x.int()
    red, green, blue = x.int().split(1, 1)
    luma: Tensor = 19595 * red + 38470 * green + 7471 * blue + (1 << 15) >> 16
    return luma
