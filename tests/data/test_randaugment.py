"""Each operation against a pencil, against its neutral setting, and against Pillow."""

import pytest
import torch
from PIL import ImageOps

from fedapp.data import randaugment as op
from fedapp.data.randaugment import GEOMETRY, PIXELS, affine, move, take
from tests.data.by_pillow import POOL, pillows, through_pillow

RANGES = {act.__name__: (act, low, high) for act, low, high in PIXELS}
KINDS = {name: index for index, (name, _) in enumerate(GEOMETRY)}


def grey(*rows):
    return torch.tensor(rows, dtype=torch.uint8)[None, None]


def at(level, count=1):
    return torch.full((count, 1, 1, 1), level, dtype=torch.int32)


def samples(channels, height=28, width=28):
    """Noise, a ramp, a narrow band of values, two values, and extremes: all black, all white."""
    stream = torch.Generator().manual_seed(5)
    shape = (channels, height, width)
    ramp = torch.arange(height * width * channels).view(shape) % 256
    cases = [
        torch.randint(256, shape, generator=stream),
        ramp,
        torch.randint(90, 110, shape, generator=stream),
        (torch.rand(shape, generator=stream) < 0.02) * 200 + 7,
        torch.zeros(shape),
        torch.full(shape, 255),
    ]
    return torch.stack([case.to(torch.uint8) for case in cases])


def levels(name):
    if name in KINDS:
        limit = GEOMETRY[KINDS[name]][1]
        return [-limit, -limit // 3, -1, 1, limit // 7, limit // 2 + 1, limit]
    _, low, high = RANGES[name]
    return sorted({low, (low + high) // 3, (low + high) // 2, high})


# By hand


@pytest.mark.parametrize(("act", "level", "before", "after"), [
    (op.autocontrast, 0, [10, 20, 30], [0, 127, 255]),  # 127.5 is cut off
    (op.autocontrast, 0, [0, 200, 255], [0, 200, 255]),
    (op.brightness, 512, [10, 21, 255], [5, 10, 127]),
    (op.contrast, 512, [0, 100, 200], [50, 100, 150]),  # mean 100
    (op.contrast, 512, [0, 0, 1], [0, 0, 0]),  # mean 1/3 rounds to 0; 1/2 is cut off
    (op.contrast, 512, [0, 1, 1], [0, 1, 1]),  # mean 2/3 rounds to 1
    (op.posterize, 4, [15, 16, 255], [0, 16, 240]),
    (op.posterize, 7, [1, 2, 3], [0, 2, 2]),
    (op.solarize, 100, [99, 100, 255], [99, 155, 0]),
    (op.solarize, 0, [0, 100, 255], [255, 155, 0]),
    (op.identity, 0, [0, 100, 255], [0, 100, 255]),
])  # fmt: skip
def test_values_by_hand(act, level, before, after):
    assert act(grey(before), at(level)).tolist() == grey(after).tolist()


def test_equalize_by_hand():
    # 510 pixels of 0, 255 of 9, 255 of 20: step = (1020 - 255) // 255 = 3 pixels a level. Before
    # each value come 0, 510 and 765 pixels, plus half a step: (1, 511, 766) // 3 = (0, 170, 255).
    values = torch.tensor([0] * 510 + [9] * 255 + [20] * 255, dtype=torch.uint8)
    even = op.equalize(values.view(1, 1, 30, 34), at(0)).flatten()
    assert torch.equal(even, torch.tensor([0] * 510 + [170] * 255 + [255] * 255).byte())


def test_sharpness_by_hand():
    # The centre's smooth version is 5 * 130 / 13 = 50; halfway to 130 is 90. Edges stay.
    image = grey([0, 0, 0], [0, 130, 0], [0, 0, 0])
    assert op.sharpness(image, at(512)).tolist() == grey([0, 0, 0], [0, 90, 0], [0, 0, 0]).tolist()


def test_color_by_hand():
    # Luma of pure red is 0.299 * 255 = 76; halfway from 76 to (255, 0, 0).
    red = torch.tensor([255, 0, 0], dtype=torch.uint8).view(1, 3, 1, 1)
    assert op.color(red, at(512)).flatten().tolist() == [165, 38, 38]


EXAMPLE = grey([1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12], [13, 14, 15, 16])


def geometry(x, name, level):
    count = len(x)
    kind = torch.full((count,), KINDS[name])
    return move(x, affine(kind, torch.full((count,), level), *x.shape[2:]))


@pytest.mark.parametrize(("name", "level", "after"), [
    # The content moves left, or up, by a quarter of the side.
    ("translate_x", 16384, [[2, 3, 4, 127], [6, 7, 8, 127]]),
    ("translate_x", -16384, [[127, 1, 2, 3], [127, 5, 6, 7]]),
    ("translate_y", 16384, [[5, 6, 7, 8], [9, 10, 11, 12]]),
    ("translate_y", -16384, [[127] * 4, [1, 2, 3, 4]]),
    # Row y takes from column x + (y + 1/2) * 0.5: 1/4, then 3/4 to the right.
    ("shear_x", 32768, [[1, 2, 3, 4], [6, 7, 8, 127]]),
    # Column x takes from row y + (x + 1/2) * 0.5.
    ("shear_y", 32768, [[1, 6, 7, 12], [5, 10, 11, 16]]),
    # A quarter turn against the clock.
    ("rotate", 90 << 16, [[4, 8, 12, 16], [3, 7, 11, 15]]),
])  # fmt: skip
def test_places_by_hand(name, level, after):
    assert geometry(EXAMPLE, name, level)[0, 0, :2].tolist() == after


# Neutral settings and extremes


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("act", "level"), [
    (op.identity, 0),
    (op.brightness, 1024),
    (op.color, 1024),
    (op.contrast, 1024),
    (op.sharpness, 1024),
    (op.posterize, 8),
    (op.solarize, 256),
])  # fmt: skip
def test_neutral_levels_change_nothing(act, level, channels):
    image = samples(channels)
    assert torch.equal(act(image, at(level, len(image))), image)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 9, 31), (3, 224, 224)])
def test_moving_by_nothing_changes_nothing(name, shape):
    image = samples(*shape)
    assert torch.equal(geometry(image, name, 0), image)


# Other people's code


@pytest.mark.parametrize("name", [name for name, *_ in POOL])
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 28, 28), (3, 8, 8), (3, 33, 20)])
def test_every_operation_is_pillows(name, shape):
    image = samples(*shape)
    for level in levels(name):
        if name in KINDS:
            ours = geometry(image, name, level)
        else:
            ours = RANGES[name][0](image, at(level, len(image)))
        assert torch.equal(ours, through_pillow(image, pillows(name, level))), level


@pytest.mark.parametrize("channels", [1, 3])
def test_autocontrast_is_pillows_own_but_for_its_rounding(channels):
    """Pillow multiplies by a rounded 255 / (high - low): whole numbers may come out one too low."""
    image = samples(channels)
    ours = op.autocontrast(image, at(0, len(image))).int()
    assert (ours - through_pillow(image, ImageOps.autocontrast)).abs().max() <= 1


# The batch


@pytest.mark.parametrize("name", RANGES)
@pytest.mark.parametrize("channels", [1, 3])
def test_every_image_has_its_own_level(name, channels):
    image = samples(channels)
    before = image.clone()
    act, low, high = RANGES[name]
    level = torch.linspace(low, high, len(image)).int().view(-1, 1, 1, 1)
    together = act(image, level)
    alone = [act(image[i : i + 1], level[i : i + 1]) for i in range(len(image))]
    assert together.dtype == torch.uint8
    assert torch.equal(together, torch.cat(alone))
    assert torch.equal(image, before)
    assert act(image[:0], level[:0]).shape == (0, channels, 28, 28)


def test_all_places_in_one_call():
    image = samples(3, 12, 10)[:5]
    before = image.clone()
    level = torch.tensor([limit // 2 for _, limit in GEOMETRY])
    together = move(image, affine(torch.arange(5), level, 12, 10))
    alone = [geometry(image[i : i + 1], name, int(level[i])) for name, i in KINDS.items()]
    assert torch.equal(together, torch.cat(alone))
    assert torch.equal(image, before)
    assert move(image[:0], affine(torch.arange(0), level[:0], 12, 10)).shape == (0, 3, 12, 10)


def test_take_by_hand():
    image = torch.tensor([[[1, 2], [3, 4]], [[5, 6], [7, 8]]], dtype=torch.uint8)[None]
    wanted = [[[[4, 1, 1], [2, 3, 3]], [[8, 5, 5], [6, 7, 7]]]]
    assert take(image, torch.tensor([[[3, 0, 0], [1, 2, 2]]])).tolist() == wanted
