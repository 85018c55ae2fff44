"""Random views of images for FixMatch: a weak and a strong one (Sohn et al. 2020, Sec. 2.3).

All pixel arithmetic is in integers, and all random numbers are drawn on the CPU, equally many for
every view. So the same stream gives the same views on every device, bit by bit. Rounding follows
Pillow, which the authors' code uses.
"""

import torch
from torch import Tensor

from fedapp.core.errors import ConfigError
from fedapp.core.plugins import is_function_name
from fedapp.data.randaugment import GEOMETRY, GREY, PIXELS, affine, move, take

WEAK_VIEWS, STRONG_VIEWS_KEPT = 4, 4
"""Random views of an image in a bank (`fedapp.learn.networks.encoder_bank`)."""
VIEWS = 1 + WEAK_VIEWS + STRONG_VIEWS_KEPT
"""Views of an image in a bank: the image itself, weak views, strong ones."""

OPERATIONS = 2
"""RandAugment's N: operations applied to an image (google-research/fixmatch, nops=2)."""

_RANGES = torch.tensor(
    [(low, high - low + 1) for _, low, high in PIXELS]
    + [(-limit, 2 * limit + 1) for _, limit in GEOMETRY]
)
"""int64 [14, 2]: the least magnitude of each operation, and how many magnitudes there are."""

_FLIPS = {
    "digits": False,  # a mirrored digit is another sign
    "mnist": False,  # likewise
    "svhn": False,  # digits; the paper does not flip them either
    "fashion_mnist": True,  # clothes have no side: a shoe may point left or right
    "cifar10": True,  # no class of animals or vehicles has a side
    "stl10": True,  # likewise
    "stl10_unlabelled": True,  # likewise
    "pathmnist": True,  # tissue under a microscope has no left and right
    "dermamnist": True,  # skin from above: the camera may be turned any way
    "octmnist": True,  # a mirrored section of a right retina is one of a left retina
    "pneumoniamnist": False,  # chest X-rays: the heart lies on one side
    "retinamnist": True,  # a mirrored right fundus is a left one; the grade is the same
    "breastmnist": True,  # ultrasound: either breast, the probe held either way
    "bloodmnist": True,  # cells on a slide have no left and right
    "tissuemnist": True,  # kidney cells under a microscope likewise
    "organamnist": False,  # classes tell left from right: kidney, lung, femur
    "organcmnist": False,  # the same classes
    "organsmnist": False,  # the same classes; here a mirror turns the body's front to its back
    "heart": False,  # numbers of a table, no images
    "heart_flamby": False,  # likewise
    "folder": False,  # unknown images: a mirror might change what they mean
    "own": False,  # likewise
}


def flips(name: str) -> bool:
    """Return whether a mirror image (left to right) of such data shows the same class.

    name: a data set, either one of `datasets.NAMES`, each of which is decided here, or a user's
        own, of which nothing is known.
    Raises ConfigError for a data set that nobody has decided.
    """
    if is_function_name(name):
        return False
    if name not in _FLIPS:
        raise ConfigError(
            f"data.name = {name!r}: undecided whether its images may be mirrored: "
            "add it to _FLIPS in fedapp/data/augment.py"
        )
    return _FLIPS[name]


def place(image: Tensor, view: int = 0) -> Tensor:
    """Return places in a bank of views, float32 [n, 1], of images by their number, int64 [n].

    Exact for up to 1.8 million images.
    """
    return (image * VIEWS + view).float()[:, None]


def _from_bank(places: Tensor, first: int, count: int, stream: torch.Generator) -> Tensor:
    """Return for each place one of `count` views of its image, from view `first` on."""
    drawn = torch.randint(first, first + count, (len(places), 1), generator=stream)
    return places - places % VIEWS + drawn.to(places.device)


def weak(images: Tensor, flip: bool, stream: torch.Generator) -> Tensor:
    """Mirror with probability 1/2, if `flip`, and shift by up to 12.5 % of each side.

    images: uint8 [n, c, h, w], n >= 0, sides of at least 8 pixels. The result has the same shape
        and device. The shift is uniform over whole pixels; uncovered pixels are filled by
        reflection about the centres of the edge pixels (Sohn et al. 2020, Sec. 2.3; `augment_shift`
        in google-research/fixmatch).
    stream: a CPU generator, from which 3 n numbers are drawn.

    Of places in a bank of views, float32 [n, 1], it returns those of weak views.
    """
    if images.ndim == 2:
        return _from_bank(images, 1, WEAK_VIEWS, stream)
    count, _, height, width = images.shape
    mirror = torch.randint(2, (count, 1), generator=stream)  # drawn where `flip` is off too
    rows = _shifted(height, count, stream)
    columns = _shifted(width, count, stream)
    if flip:
        columns = torch.where(mirror.bool(), width - 1 - columns, columns)
    rows = rows.to(images.device, non_blocking=True)
    columns = columns.to(images.device, non_blocking=True)
    return take(images, rows[:, :, None] * width + columns[:, None])


def strong(images: Tensor, flip: bool, stream: torch.Generator) -> Tensor:
    """Make a weak view, then apply RandAugment `OPERATIONS` times, then Cutout.

    images, flip, result: as for `weak`. Each operation is drawn uniformly from 14, and its
        magnitude uniformly from its range, for each image (Sohn et al. 2020, Sec. 2.3: magnitudes
        are drawn at random rather than tuned; the authors' code, but not the paper, also skips each
        operation with probability 1/2). Cutout sets a square with half the length of the shorter
        side to grey 127. Its centre is uniform over the image's pixels, and what lies outside the
        image is cut off (`create_cutout_mask` in google-research/fixmatch).
    stream: a CPU generator, from which 9 n numbers are drawn.

    Of places in a bank of views it returns those of strong views.
    """
    if images.ndim == 2:
        return _from_bank(images, 1 + WEAK_VIEWS, STRONG_VIEWS_KEPT, stream)
    images = weak(images, flip, stream)
    height, width = images.shape[2:]
    drawn = torch.randint(len(_RANGES), (OPERATIONS, len(images)), generator=stream)
    share = torch.rand(drawn.shape, generator=stream, dtype=torch.float64)
    least, choices = _RANGES[drawn].unbind(-1)
    level = least + (share * choices).long()
    coefficients = affine(drawn - len(PIXELS), level, height, width)
    for each in zip(drawn, level.int(), coefficients, strict=True):
        images = _operate(images, *each)
    return _cutout(images, stream)


def cutout(images: Tensor, flip: bool, stream: torch.Generator) -> Tensor:
    """Make a weak view, then hide the square that `strong` hides, and change nothing else.

    images, flip, result: as for `weak`. stream: a CPU generator, from which 5 n numbers are drawn.

    Raises ConfigError for places in a bank, which has no such views.
    """
    if images.ndim == 2:
        raise ConfigError(
            "method.strong_view = 'cutout': the bank of model.name=encoder_bank has no such views: "
            "take randaugment or weak"
        )
    return _cutout(weak(images, flip, stream), stream)


STRONG_VIEWS = {"randaugment": strong, "cutout": cutout, "weak": weak}
"""Choices for the strong view, by name; all take the same arguments."""


def _operate(images: Tensor, drawn: Tensor, level: Tensor, coefficients: Tensor) -> Tensor:
    """Apply operation drawn[i] to image i, with magnitude level[i] or coefficients[i].

    The images are sorted by operation. Each operation on values processes one group, and the last
    group goes through all geometric operations. The CPU sorts and counts, so that nothing waits for
    the device.
    """
    if not len(images):
        return images
    device, order = images.device, drawn.argsort()
    sizes = drawn.clamp(max=len(PIXELS)).bincount(minlength=len(PIXELS) + 1).tolist()
    levels = level[order].view(-1, 1, 1, 1).to(device, non_blocking=True).split(sizes)
    moves = coefficients[order[len(order) - sizes[-1] :]].to(device, non_blocking=True)
    order = order.to(device, non_blocking=True)
    groups = images[order].split(sizes)
    done = [act(x, v) for (act, _, _), x, v in zip(PIXELS, groups, levels, strict=False) if len(x)]
    done.append(move(groups[-1], moves))
    return torch.empty_like(images).index_copy_(0, order, torch.cat(done))


def _cutout(images: Tensor, stream: torch.Generator) -> Tensor:
    """Set a square of each image to grey. Its side is half the image's shorter side, rounded."""
    count, _, height, width = images.shape
    reach = min(height, width) // 4
    hidden = []
    for side in (height, width):
        centre = torch.randint(side, (count, 1), generator=stream)
        offset = torch.arange(side) - centre
        hidden.append(((offset >= -reach) & (offset < reach)).to(images.device, non_blocking=True))
    rows, columns = hidden
    return images.masked_fill((rows[:, :, None] & columns[:, None])[:, None], GREY)


def _shifted(side: int, count: int, stream: torch.Generator) -> Tensor:
    """Return where each of `side` pixels comes from after a random shift, int64 [count, side]."""
    limit = side // 8
    shift = torch.randint(-limit, limit + 1, (count, 1), generator=stream)
    last = side - 1
    return last - (last - (torch.arange(side) + shift).abs()).abs()
