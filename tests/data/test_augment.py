"""FixMatch's views: what may be mirrored, what is drawn, and the whole against Pillow."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from fedapp.core.errors import ConfigError
from fedapp.data import augment, datasets
from fedapp.data.augment import OPERATIONS, STRONG_VIEWS, cutout, flips, strong, weak
from fedapp.data.randaugment import GEOMETRY, GREY
from tests.data.by_pillow import POOL, as_pillow, as_tensor, pillows

View = Callable[[Tensor, bool, torch.Generator], Tensor]
SHAPES = [
    (1, 1, 8, 8),
    (2, 3, 8, 8),
    (5, 1, 28, 28),
    (40, 3, 32, 32),
    (3, 3, 224, 224),
    (4, 1, 8, 95),
]
views = pytest.mark.parametrize("view", [weak, strong, cutout])


def stream(seed=0):
    return torch.Generator().manual_seed(seed)


def noise(*shape, seed=1):
    return torch.randint(256, shape, generator=stream(seed)).to(torch.uint8)


def places(count, height, width):
    """Images whose first channel is the row, the second the column of a pixel."""
    rows = torch.arange(height)[:, None].expand(height, width)
    columns = torch.arange(width).expand(height, width)
    image = torch.stack([rows, columns, torch.zeros_like(rows)])
    return image.to(torch.uint8).expand(count, -1, -1, -1)


# What may be mirrored


def test_every_data_set_is_decided():
    decided = {name: flips(name) for name in datasets.NAMES}
    assert {name for name, mirrored in decided.items() if not mirrored} == {
        "digits",
        "mnist",
        "svhn",
        "pneumoniamnist",
        "organamnist",
        "organcmnist",
        "organsmnist",
        "heart",
        "heart_flamby",
        "folder",
        "own",
    }
    assert augment._FLIPS.keys() == decided.keys()


def test_an_undecided_data_set_is_an_error():
    with pytest.raises(ConfigError, match=r"'chestmnist': undecided.*fedapp/data/augment\.py"):
        flips("chestmnist")


# The weak view


def drawn_shifts(images, flip):
    """Return mirrored, down, right of every weak view of `places` [n]."""
    _, _, height, width = images.shape
    seen = weak(images, flip, stream(3)).long()
    y, x = height // 2, width // 2
    mirrored = seen[:, 1, y, x + 1] < seen[:, 1, y, x]
    column = torch.where(mirrored, width - 1 - seen[:, 1, y, x], seen[:, 1, y, x])
    return mirrored, seen[:, 0, y, x] - y, column - x


def test_flips_and_shifts_are_uniform_and_independent():
    """2 x 7 x 7 equally likely cases: chi-square with 97 degrees of freedom.

    False alarm: 1 in 10 million streams (quantile 187.5); the stream is fixed.
    """
    count = 20_000
    mirrored, down, right = drawn_shifts(places(count, 28, 28), flip=True)
    case = (mirrored.long() * 7 + down + 3) * 7 + right + 3
    seen = case.bincount(minlength=98).double()
    expected = count / 98
    assert float(((seen - expected) ** 2 / expected).sum()) < 187.5


@pytest.mark.parametrize("shape", SHAPES)
def test_weak_views_one_by_one(shape):
    """The same draws, image by image, with torch's own padding."""
    count, _, height, width = shape
    images, draws = noise(*shape), stream()
    seen = weak(images, True, stream())
    mirror = torch.randint(2, (count, 1), generator=draws)
    up, left = height // 8, width // 8
    down = torch.randint(-up, up + 1, (count, 1), generator=draws)
    right = torch.randint(-left, left + 1, (count, 1), generator=draws)
    for i in range(count):
        image = images[i].flip(2) if mirror[i] else images[i]
        padded = torch.nn.functional.pad(image.float(), (left, left, up, up), mode="reflect")
        y, x = up + int(down[i]), left + int(right[i])
        assert torch.equal(seen[i], padded[:, y : y + height, x : x + width].byte())


# The strong view


@pytest.mark.parametrize("shape", [*SHAPES, (300, 1, 28, 28), (300, 3, 16, 24)])
def test_strong_views_one_by_one(shape):
    """The same draws, image by image, by Pillow: every bit, all 14 operations, twice."""
    count, _, height, width = shape
    images, draws = noise(*shape), stream()
    seen = strong(images, True, stream())
    shown = [as_pillow(image) for image in weak(images, True, draws)]
    drawn = torch.randint(14, (2, count), generator=draws).tolist()
    shares = torch.rand((2, count), generator=draws, dtype=torch.float64).tolist()
    for operations, parts in zip(drawn, shares, strict=True):
        for i, (operation, share) in enumerate(zip(operations, parts, strict=True)):
            name, low, high = POOL[operation]
            shown[i] = pillows(name, low + int(share * (high - low + 1)))(shown[i])
    rows = torch.randint(height, (count, 1), generator=draws).flatten().tolist()
    columns = torch.randint(width, (count, 1), generator=draws).flatten().tolist()
    reach = min(height, width) // 4
    for image, y, x, found in zip(shown, rows, columns, seen, strict=True):
        array = np.array(image)
        array[max(y - reach, 0) : y + reach, max(x - reach, 0) : x + reach] = GREY
        assert torch.equal(found, as_tensor(array))


def test_operations_and_magnitudes_are_uniform(monkeypatch):
    """14 x 14 pairs of operations, and solarize's 257 thresholds: chi-square.

    False alarm: 1 in 10 million streams for each (quantiles 315.6 and 391.5 at 195 and 256 degrees
    of freedom); the stream is fixed.
    """
    calls: list[tuple[Tensor, Tensor]] = []

    def operate(images, drawn, level, coefficients):
        calls.append((drawn, level))
        return images

    def chi_square(cases, number):
        expected = len(cases) / number
        return float(((cases.bincount(minlength=number) - expected) ** 2 / expected).sum())

    monkeypatch.setattr(augment, "_operate", operate)
    strong(noise(40_000, 1, 8, 8), True, stream(3))
    (first, level), (second, other) = calls
    assert len(calls) == OPERATIONS
    assert chi_square(first * 14 + second, 196) < 315.6
    solarize = [name for name, _, _ in POOL].index("solarize")
    assert chi_square(torch.cat([level[first == solarize], other[second == solarize]]), 257) < 391.5


def test_the_pool_is_fixmatchs():
    """Sohn et al. 2020, appendix: RandAugment's transformations and their ranges."""
    factor = (0.05, 0.95)
    wanted = {
        "autocontrast": (0, 0),
        "brightness": factor,
        "color": factor,
        "contrast": factor,
        "equalize": (0, 0),
        "identity": (0, 0),
        "posterize": (4, 8),
        "rotate": (-30, 30),
        "sharpness": factor,
        "shear_x": (-0.3, 0.3),
        "shear_y": (-0.3, 0.3),
        "solarize": (0, 256),
        "translate_x": (-0.3, 0.3),
        "translate_y": (-0.3, 0.3),
    }
    units = {"posterize": 1, "solarize": 1} | {name: 65536 for name, _ in GEOMETRY}
    found = {
        name: (low / units.get(name, 1024), high / units.get(name, 1024))
        for name, low, high in POOL
    }
    assert found.keys() == wanted.keys()
    for name, (low, high) in wanted.items():
        assert low <= found[name][0] <= low + 0.001
        assert high - 0.001 <= found[name][1] <= high


def test_cutout_alone_is_a_weak_view_with_one_grey_square():
    """The same draws by hand: first those of the weak view, then two centres."""
    images, draws = noise(40, 3, 28, 32), stream()
    wanted = weak(images, True, draws)
    rows = torch.randint(28, (40, 1), generator=draws).flatten().tolist()
    columns = torch.randint(32, (40, 1), generator=draws).flatten().tolist()
    for view, y, x in zip(wanted, rows, columns, strict=True):
        view[:, max(y - 7, 0) : y + 7, max(x - 7, 0) : x + 7] = GREY
    assert torch.equal(cutout(images, True, stream()), wanted)
    assert STRONG_VIEWS == {"randaugment": strong, "cutout": cutout, "weak": weak}


# All views


@views
@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("shape", [(0, 1, 8, 8), *SHAPES])
def test_views_are_like_their_images(view, flip, shape):
    images = noise(*shape)
    before = images.clone()
    seen = view(images, flip, stream())
    assert (seen.dtype, seen.shape, seen.device) == (torch.uint8, images.shape, images.device)
    assert seen.is_contiguous()
    assert torch.equal(images, before)
    assert not len(seen) or seen.data_ptr() != images.data_ptr()


@views
def test_no_other_generator_is_touched(view):
    before = torch.get_rng_state()
    view(noise(12, 1, 28, 28), True, stream())
    assert torch.equal(torch.get_rng_state(), before)


@views
@pytest.mark.parametrize("flip", [False, True])
def test_as_many_numbers_whatever_is_drawn(view, flip):
    """After views of other images, sizes, and with or without flips, the stream is at one place."""
    ends = []
    for images in (noise(12, 1, 28, 28), noise(12, 3, 8, 96), torch.zeros(12, 1, 9, 9).byte()):
        draws = stream(7)
        view(images, flip, draws)
        ends.append(draws.get_state())
    draws = stream(7)
    view(noise(12, 1, 28, 28), not flip, draws)
    assert all(torch.equal(end, draws.get_state()) for end in ends)


def test_nothing_is_mirrored_where_that_is_not_allowed():
    mirrored, _, _ = drawn_shifts(places(2000, 28, 28), flip=False)
    assert not mirrored.any()
    # Off and on share all their draws: the views that are not mirrored are the same.
    turned, _, _ = drawn_shifts(places(2000, 28, 28), flip=True)
    images = places(2000, 28, 28)
    off, on = strong(images, False, stream(3)), strong(images, True, stream(3))
    assert torch.equal(off[~turned], on[~turned])
    assert not torch.equal(off[turned], on[turned])


@views
def test_nobody_waits_for_the_device(view):
    """A meta tensor has no values: reading one back from the device would fail."""
    images = torch.empty(64, 3, 28, 28, dtype=torch.uint8, device="meta")
    seen = view(images, True, stream())
    assert (seen.device.type, seen.shape) == ("meta", images.shape)


@pytest.mark.cuda
@views
@pytest.mark.parametrize("shape", [(300, 1, 28, 28), (300, 3, 32, 32)])
def test_a_gpu_gives_the_same_bits(view, shape):
    images = noise(*shape)
    assert torch.equal(view(images.cuda(), True, stream()).cpu(), view(images, True, stream()))
