"""A user's own data set as arrays: what it may be and what is refused."""

import numpy as np
import pytest
import torch

from fedapp.core.errors import ConfigError, DataError
from fedapp.core.settings import DataSettings
from fedapp.data.arrays import read_arrays
from fedapp.data.augment import flips
from fedapp.data.datasets import load_dataset
from tests import arrays

VECTORS, IMAGES = "tests.arrays:vectors", "tests.arrays:images"


def test_vectors_are_taken_as_they_are_and_measured():
    data = read_arrays(VECTORS)
    assert data.inputs.shape == (1797, 64) and data.inputs.dtype == torch.float32
    assert not data.are_images and data.classes[:2] == ("digit 0", "digit 1")
    assert data.mean[1] == pytest.approx(float(data.inputs[:, 1].double().mean()))
    assert data.std[0] == 1.0  # the upper left pixel is always empty


def test_images_are_images_and_classes_may_go_without_names():
    data = read_arrays(IMAGES)
    assert data.are_images and data.classes == ("0", "1")
    assert 0 < data.mean[0] < 1
    assert not flips(IMAGES)


def test_a_subset_is_drawn_and_images_are_resized_as_of_any_data_set():
    assert len(load_dataset(DataSettings(name=VECTORS, subset=9), 0).labels) == 9
    assert load_dataset(DataSettings(name=IMAGES, image_size=16), 0).inputs.shape[2:] == (16, 16)


def returned(monkeypatch, value):
    monkeypatch.setattr(arrays, "vectors", lambda: value)


@pytest.mark.parametrize(("changes", "says"), [
    ({"inputs": np.zeros((3, 2))}, "inputs are float64, must be uint8"),
    ({"inputs": [[0.0]] * 3}, "inputs are list, must be a NumPy array"),
    ({"inputs": np.zeros((3, 2), object)}, "inputs are object"),
    (
        {"inputs": np.zeros((3, 2), np.uint8)},
        r"images are .* \[3, 2\], must be uint8",
    ),
    ({"inputs": np.zeros(3, np.float32)}, r"float32 \[3\], must be"),
    ({"inputs": np.zeros((3, 0), np.float32)}, "no dimension 0"),
    ({"inputs": np.full((3, 2), np.nan, np.float32)}, "NaN or infinity"),
    ({"labels": np.array([0, 1])}, r"labels are int64 \[2\], must be integers \[3\]"),
    ({"labels": np.array([0.0, 1.0, 0.0])}, "labels are float64"),
    ({"labels": np.array([0, -2, 0])}, r"\[-2, 0\], must lie in"),
    ({"labels": np.array([-1, -1, -1])}, "no input has a known class"),
    ({"labels": np.array([0, 1, 5000])}, "up to 5000, must be below 1000"),
    ({"classes": ["a"]}, r"\[0, 1\], must lie in \[0, 0\]"),
    ({"classes": "ab"}, "classes are str, must be a list"),
    ({"classes": ["a", "a"]}, "classes name one class twice"),
    ({"label": 1}, r"returned \['inputs', 'label', 'labels'\], must be a dict"),
])  # fmt: skip
def test_what_breaks_a_rule_is_refused(monkeypatch, changes, says):
    good = {"inputs": np.zeros((3, 2), np.float32), "labels": np.array([0, 1, 0])}
    returned(monkeypatch, good | changes)
    with pytest.raises(DataError, match=says) as caught:
        read_arrays(VECTORS)
    assert str(caught.value).startswith(f"{VECTORS}: ") and "\n" not in str(caught.value)


def test_a_function_that_fails_or_returns_something_else_is_refused(
    monkeypatch,
):
    with pytest.raises(DataError, match="arrays:failing: failed with KeyError") as caught:
        read_arrays("tests.arrays:failing")
    assert "patient" not in str(caught.value)  # it may be told to the server
    returned(monkeypatch, (1, 2))
    with pytest.raises(DataError, match="returned tuple, must be a dict"):
        read_arrays(VECTORS)
    with pytest.raises(ConfigError, match=r"data\.name = .* 'tests\.arrays' has no function"):
        read_arrays("tests.arrays:none")
