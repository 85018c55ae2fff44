"""Fixed features by name, and histograms of oriented gradients."""

import math
import warnings

import onnxruntime
import pytest
import torch

from fedapp.core.errors import ConfigError
from fedapp.core.rng import torch_stream
from fedapp.learn.features import (
    DEFAULT_FEATURES,
    FeatureMap,
    build_features,
    feature_class,
    feature_names,
)
from fedapp.learn.features.hog import Hog, gradients, in_directions

SHAPES = [(1, 8, 8), (1, 28, 28), (3, 32, 32), (3, 14, 17), (4, 31, 9), (3, 224, 300), (2, 67, 64)]


def images(count, *shape):
    return torch.randn(count, *shape, generator=torch_stream(0, "images", count, *shape))


def extremes(count, shape):
    """Noise, but for an image of zeros, a uniform one, and four of the largest or least numbers."""
    x = images(count, *shape)
    x[1], x[2], x[3], x[4], x[5] = 0, 2.5, x[3] * 1e30, x[4] * 1e-30, torch.finfo().max
    x[6, :, : shape[1] // 2] = torch.finfo().min
    return x


def exported(features, shape, path):
    """Return a session of the map as `fedapp export --to onnx` writes a graph."""
    batch = torch.export.Dim("batch")
    example = (images(2, *shape),)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's exporter warns of what torch itself will change
        graph = torch.export.export(features, example, dynamic_shapes=({0: batch},))
        torch.onnx.export(graph, example, dynamo=True, verbose=False).save(path)
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


def answers(session, x):
    [found] = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    return torch.from_numpy(found)


def test_the_registry():
    assert DEFAULT_FEATURES in feature_names()
    assert "base" not in feature_names()
    for name in feature_names():
        assert feature_class(name).name == name
        assert issubclass(feature_class(name), FeatureMap)
    built = build_features("hog", (1, 14, 14))
    assert isinstance(built, Hog) and not built.training


def test_an_unknown_name_gets_advice():
    with pytest.raises(ConfigError, match=r"no such features.*'hog'"):
        build_features("hogs", (1, 14, 14))


@pytest.mark.parametrize(("inputs", "says"), [
    ((12,), "images of 1 to 4 channels; take auto or plain"),
    ((1, 128), "images of 1 to 4 channels"),
    ((5, 28, 28), "images of 1 to 4 channels"),
    ((1, 7, 28), "8 to 1024 pixels a side; change data.image_size"),
    ((1, 28, 1025), "8 to 1024 pixels a side; change data.image_size"),
])  # fmt: skip
def test_what_does_not_fit_is_refused_in_one_line(inputs, says):
    with pytest.raises(ConfigError, match=says) as caught:
        build_features("hog", inputs)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("right", "down", "shares"), [
    (2.0, 0.0, {0: 2.0}),
    (3.0, 1.0, {0: 2.0, 1: math.sqrt(2)}),
    (0.0, 5.0, {2: 5.0}),
    (-1.0, 4.0, {2: 3.0, 3: math.sqrt(2)}),
    (-2.0, -2.0, {5: 2 * math.sqrt(2)}),
    (1.0, -3.0, {6: 2.0, 7: math.sqrt(2)}),
    (0.0, 0.0, {}),
])  # fmt: skip
def test_shares_by_hand(right, down, shares):
    found = in_directions(torch.full((1, 1, 1, 1), right), torch.full((1, 1, 1, 1), down))
    expected = torch.zeros(8)
    for direction, share in shares.items():
        expected[direction] = share
    torch.testing.assert_close(found.flatten(), expected)


def test_shares_times_directions_are_the_gradient():
    right, down = images(5, 1, 6, 6), images(6, 1, 6, 6)[:5]
    shares = in_directions(right, down)
    angles = torch.arange(8) * (math.pi / 4)
    assert bool((shares >= 0).all()) and int((shares > 0).sum(1).max()) == 2
    for axis, given in ((angles.cos(), right), (angles.sin(), down)):
        torch.testing.assert_close((shares * axis[None, :, None, None]).sum(1, keepdim=True), given)


def test_the_longest_gradient_of_three_channels():
    x = torch.zeros(1, 3, 8, 8)
    x[:, 1] = torch.arange(8.0) * 2  # to the right, 4 over two pixels
    x[:, 2] = torch.arange(8.0)[:, None]  # down, 2
    right, down = gradients(x)
    assert right[0, 0, :, 1:-1].unique().tolist() == [4.0]
    assert down[0, 0, :, 1:-1].unique().tolist() == [0.0]
    assert right[0, 0, :, 0].tolist() == [2.0] * 8  # the edge: once more the outermost pixel


def test_a_ramp_by_hand():
    """Grey, x = column: everything points right; 2 inside, 1 in the outermost columns."""
    x = torch.arange(8.0).repeat(8, 1)[None, None]
    found = build_features("hog", (1, 8, 8))(x)[0]
    assert found.shape == (720,)
    whole = math.sqrt(2 * 1.25)
    fine, levels, coarse, coarse_levels = found.split([512, 64, 128, 16])
    expected = torch.zeros(8, 8, 8)
    expected[0] = torch.tensor([1, 2, 2, 2, 2, 2, 2, 1.0]).sqrt() / math.sqrt(8 * 14)
    torch.testing.assert_close(fine, expected.flatten() / whole, rtol=2e-5, atol=0)
    expected = torch.zeros(8, 4, 4)
    expected[0] = torch.tensor([1.5, 2, 2, 1.5]).sqrt() / math.sqrt(4 * 7)
    torch.testing.assert_close(coarse, expected.flatten() / whole, rtol=2e-5, atol=0)
    expected = (torch.arange(8.0) - 3.5).repeat(8) / math.sqrt(8 * 42) / 2
    torch.testing.assert_close(levels, expected / whole, rtol=2e-5, atol=0)
    expected = torch.tensor([-3.0, -1, 1, 3]).repeat(4) / math.sqrt(4 * 20) / 2
    torch.testing.assert_close(coarse_levels, expected / whole, rtol=2e-5, atol=0)


def histograms(features, x):
    """Return the finer grid's part, [8 directions, rows, columns] of each image."""
    count = features.grids[0].count
    side = round(math.sqrt(count))
    return features(x)[:, : 8 * count].unflatten(1, (8, side, side))


def test_a_quarter_turn_permutes_directions_and_cells():
    features, x = build_features("hog", (3, 32, 32)), images(3, 3, 32, 32)
    turned = histograms(features, x.rot90(1, (2, 3)))  # what pointed right points up: 270 degrees
    expected = histograms(features, x).rot90(1, (2, 3)).roll(6, 1)
    torch.testing.assert_close(turned, expected, rtol=1e-5, atol=1e-7)


def test_neither_brightness_nor_contrast_counts():
    features, x = build_features("hog", (3, 16, 16)), images(3, 3, 16, 16)
    torch.testing.assert_close(features(0.25 * x + 3), features(x), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
def test_sizes_norms_and_extremes(shape):
    features, x = build_features("hog", shape), extremes(9, shape)
    grids = [(math.ceil(h / c), math.ceil(w / d)) for h, w, c, d in cells_of(shape)]
    assert features.size == sum(a * b for a, b in grids) * (8 + shape[0]) <= 960
    x[7] = 0
    x[7, 0, shape[1] // 2, shape[2] // 2] = 100  # one pixel
    found = features(x)
    assert found.dtype == torch.float32 and found.shape == (9, features.size)
    norms = found.norm(dim=1)
    assert bool(found.isfinite().all()) and float(norms.max()) <= 1
    assert norms[[0, 7]].tolist() == pytest.approx([1, 1], abs=1e-4)
    assert norms[1] == 0 and norms[2] < 1e-4  # even; a mean is rounded
    assert features(x[:0]).shape == (0, features.size)


def cells_of(shape):
    """Return height, width and a cell's two sides for both grids."""
    shrink = max(1, min(shape[1:]) // 32)
    sides = [side // shrink for side in shape[1:]]
    return [(*sides, *(math.ceil(side / most) for side in sides)) for most in (8, 4)]


def test_even_channels_of_different_levels_are_a_colour():
    x = torch.tensor([0.0, 1, 2])[None, :, None, None].expand(1, 3, 8, 8)
    features = build_features("hog", (3, 8, 8))
    assert not histograms(features, x).any()
    assert float(features(x).norm()) == pytest.approx(math.sqrt(0.25 / 1.25), abs=1e-4)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_row_does_not_depend_on_the_others(shape):
    features, x = build_features("hog", shape), images(7, *shape)
    whole = features(x)
    assert torch.equal(torch.cat([features(part) for part in x.split(3)]), whole)
    assert torch.equal(torch.cat([features(part) for part in x.split(1)]), whole)
    assert torch.equal(features(x.flip(0)).flip(0), whole)


def test_larger_images_are_averaged_first():
    x = images(2, 3, 32, 32)
    large = x.repeat_interleave(7, 2).repeat_interleave(7, 3)  # 224 pixels
    found = build_features("hog", (3, 224, 224))(large)
    torch.testing.assert_close(found, build_features("hog", (3, 32, 32))(x), rtol=1e-3, atol=1e-5)
