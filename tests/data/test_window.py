"""Values to 256 levels: by hand, what changes nothing, the extremes, and pydicom as the oracle."""

import numpy as np
import pytest
from pydicom.dataset import Dataset
from pydicom.pixels import apply_voi, apply_windowing

from fedapp.core.settings import window_ends
from fedapp.data.window import Ramp, Sigmoid, ValueTable

TWELVE_BITS = np.arange(4096, dtype=np.uint16).reshape(64, 64)


def test_a_ramp_by_hand():
    values = np.array([[-3, 0, 1, 2, 3, 4, 9]])
    assert Ramp(0, 4)(values).tolist() == [[0, 0, 64, 128, 191, 255, 255]]  # 63.75, 127.5, 191.25


def test_dicoms_linear_by_hand():
    """PS3.3 C.11.2.1.2.1: centre 2048, width 4096 takes 0 to black and 4095 to white."""
    assert Ramp.of_dicom(2048, 4096).ends == (0, 4095)
    assert Ramp.of_dicom(0, 100)(np.array([[-50, -49, 49, 50]])).tolist() == [[0, 3, 255, 255]]
    assert Ramp.of_dicom_exact(50, 100).ends == (0, 100)


def test_a_window_one_value_wide_is_a_step():
    assert Ramp.of_dicom(10, 1)(np.array([[9, 9.5, 10, 11]])).tolist() == [[0, 0, 255, 255]]


def test_a_sigmoid_by_hand_and_at_the_extremes():
    window = Sigmoid(100, 40)
    values = np.array([[100, 120, 80, 1e9, -1e9]])  # 255 / (1 + exp(-2)) = 224.6
    assert window(values).tolist() == [[128, 225, 30, 255, 0]]
    assert window.ends == (80, 120)


def test_a_table_by_hand_and_beyond_its_ends():
    table = ValueTable(10, np.array([0, 100, 200]), 200)
    assert table(np.array([[-5, 10, 11, 12, 99]])).tolist() == [[0, 0, 128, 255, 255]]
    assert table(np.array([[10.4, 10.6]])).tolist() == [[0, 128]]
    assert table.ends == (10, 12)


def described(**fields):
    data = Dataset()
    data.PhotometricInterpretation = "MONOCHROME2"
    data.BitsStored, data.PixelRepresentation = 12, 0
    for name, value in fields.items():
        setattr(data, name, value)
    return data


@pytest.mark.parametrize(("centre", "width"), [(2048, 4096), (1000, 350), (100.5, 7), (50, 1)])
@pytest.mark.parametrize("function", ["LINEAR", "LINEAR_EXACT", "SIGMOID"])
def test_pydicom_computes_the_same(centre, width, function):
    window = {
        "LINEAR": Ramp.of_dicom, "LINEAR_EXACT": Ramp.of_dicom_exact, "SIGMOID": Sigmoid,
    }[function](centre, width)  # fmt: skip
    data = described(WindowCenter=centre, WindowWidth=width, VOILUTFunction=function)
    theirs = apply_windowing(TWELVE_BITS, data) * (255 / 4095)
    assert np.abs(window(TWELVE_BITS) - theirs).max() <= 0.5 + 1e-9


def test_pydicom_looks_up_the_same():
    entries = np.sort(np.random.default_rng(0).integers(0, 1024, 300))
    item = Dataset()
    item.LUTDescriptor, item.LUTData = [300, 700, 10], entries.tolist()
    item["LUTData"].VR = "US"
    theirs = apply_voi(TWELVE_BITS, described(VOILUTSequence=[item])) * (255 / 1023)
    assert np.abs(ValueTable(700, entries, 1023)(TWELVE_BITS) - theirs).max() <= 0.5 + 1e-9


def test_what_data_window_may_say():
    assert window_ends("") is window_ends("dicom") is None
    assert window_ends("-1000,400") == window_ends(" -1000.0 , 4e2") == (-1000, 400)
