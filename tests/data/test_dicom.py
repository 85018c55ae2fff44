"""DICOM: what is shown is what a viewer shows; what is not read is named; no header gets out."""

import struct

import numpy as np
import pydicom
import pytest
from pydicom.dataset import Dataset
from pydicom.uid import (
    JPEG2000Lossless,
    JPEGExtended12Bit,
    JPEGLosslessSV1,
)

from fedapp.core import optional_dependencies
from fedapp.core.errors import ConfigError
from fedapp.data import dicom as reader
from fedapp.data.dicom import is_dicom, read_dicom
from fedapp.data.folder import decode
from fedapp.data.window import DepthError, Ramp, Sigmoid, ValueTable
from tests.imagefiles import PATIENT, PATIENT_ID, dicom, header, refused

VALUES = np.random.default_rng(0).integers(0, 4096, (40, 36)).astype(np.uint16)
SIGNED = VALUES.astype(np.int16) - 2000
BYTES = (VALUES >> 4).astype(np.uint8)
RGB = np.stack([BYTES, BYTES // 2, 255 - BYTES], 2)


# --- values ---------------------------------------------------------------------------------------


def test_hounsfield_units_by_hand(tmp_path):
    file = dicom(tmp_path / "a.dcm", VALUES, RescaleSlope=2, RescaleIntercept=-1024)
    assert (read_dicom(file).values == 2.0 * VALUES - 1024).all()
    assert decode(file, 0, 1, "-1024, 7166")[0].tolist() == Ramp(0, 4095)(VALUES).tolist()


def test_eight_bits_that_are_rescaled_need_a_window(tmp_path):
    file = dicom(tmp_path / "a.dcm", BYTES, 8, RescaleSlope=4, RescaleIntercept=0)
    with pytest.raises(DepthError, match=r"8-bit DICOM, values 0 to 1020, but data\.window"):
        decode(file, 0, 1)


def test_a_table_instead_of_a_slope(tmp_path):
    item = Dataset()
    item.LUTDescriptor, item.LUTData = [4096, 0, 16], [5 * v for v in range(4096)]
    item.ModalityLUTType = "US"
    item["LUTDescriptor"].VR = item["LUTData"].VR = "US"
    file = dicom(tmp_path / "a.dcm", VALUES, ModalityLUTSequence=[item])
    assert (read_dicom(file).values == 5 * VALUES.astype(int)).all()


def test_monochrome1_is_turned_around(tmp_path):
    for values, bits, window in ((VALUES, 12, "0, 4095"), (BYTES, 8, "")):
        one = dicom(tmp_path / "a.dcm", values, bits)
        two = dicom(tmp_path / "b.dcm", values, bits, PhotometricInterpretation="MONOCHROME1")
        assert (decode(two, 0, 1, window) == 255 - decode(one, 0, 1, window)).all()


def test_colours_become_grey_where_that_is_agreed(tmp_path):
    file = dicom(tmp_path / "a.dcm", RGB, 8)
    assert (decode(file, 0)[:, 3, 4].numpy() == RGB[3, 4]).all()
    red, green, blue = (int(v) for v in RGB[3, 4])
    luma = 0.299 * red + 0.587 * green + 0.114 * blue
    assert abs(int(decode(file, 0, 1)[0, 3, 4]) - luma) <= 1


def test_ybr_becomes_rgb(tmp_path):
    grey = np.stack([BYTES, np.full_like(BYTES, 128), np.full_like(BYTES, 128)], 2)
    file = dicom(tmp_path / "a.dcm", grey, 8, PhotometricInterpretation="YBR_FULL")
    assert np.abs(decode(file, 0).numpy().astype(int) - BYTES.astype(int)).max() <= 1


# --- windows of their own -------------------------------------------------------------------------


@pytest.mark.parametrize(("fields", "window"), [
    ({"WindowCenter": 1000, "WindowWidth": 401}, Ramp(799.5, 1199.5)),
    ({"WindowCenter": [1000, 5], "WindowWidth": [401, 9]}, Ramp(799.5, 1199.5)),
    ({"WindowCenter": 1000, "WindowWidth": 400, "VOILUTFunction": "LINEAR_EXACT"},
     Ramp(800, 1200)),
    ({"WindowCenter": 1000, "WindowWidth": 400, "VOILUTFunction": "SIGMOID"},
     Sigmoid(1000, 400)),
    ({"WindowCenter": 1000, "WindowWidth": 0}, None),
    ({"WindowCenter": 1000, "WindowWidth": 0.5}, None),
    ({"WindowCenter": 1000}, None),
    ({"WindowCenter": 1, "WindowWidth": 2, "VOILUTFunction": "SQUARE"}, None),
    ({}, None),
])  # fmt: skip
def test_a_files_own_window(tmp_path, fields, window):
    file = dicom(tmp_path / "a.dcm", VALUES, **fields)
    assert read_dicom(file).window == window
    if window is None:
        with pytest.raises(DepthError, match="no window of its own"):
            decode(file, 0, 1, "dicom")
    else:
        assert decode(file, 0, 1, "dicom")[0].tolist() == window(VALUES).tolist()
    assert decode(file, 0, 1, "0, 4095")[0].tolist() == Ramp(0, 4095)(VALUES).tolist()


def test_a_window_as_a_table(tmp_path):
    item = Dataset()
    item.LUTDescriptor, item.LUTData = [3, 2000, 10], [0, 500, 1023]
    item["LUTDescriptor"].VR = item["LUTData"].VR = "US"
    stored = read_dicom(dicom(tmp_path / "a.dcm", VALUES, VOILUTSequence=[item]))
    assert isinstance(stored.window, ValueTable) and stored.window.ends == (2000, 2002)
    assert stored.window(np.array([[0, 2001, 4000]])).tolist() == [[0, 125, 255]]


# --- what is not read -----------------------------------------------------------------------------


@pytest.mark.parametrize(("fields", "said"), [
    ({"NumberOfFrames": 2}, "not one frame"),
    ({"NumberOfFrames": 0}, "not one frame"),
    ({"SharedFunctionalGroupsSequence": []}, "not one frame, or of an enhanced kind"),
    ({"PhotometricInterpretation": "PALETTE COLOR"}, "neither MONOCHROME nor RGB nor YBR"),
    ({"SamplesPerPixel": 3}, "neither MONOCHROME nor RGB nor YBR"),
    ({"BitsStored": 0}, "values are not of 1 to 16 bits"),
    ({"BitsStored": 17}, "values are not of 1 to 16 bits"),
    ({"BitsAllocated": 1, "BitsStored": 1}, "values are not of 1 to 16 bits"),
    ({"BitsAllocated": 32, "BitsStored": 32}, "values are not of 1 to 16 bits"),
    ({"Rows": 60_000, "Columns": 60_000}, "60000 x 60000 pixels, the most is 178,956,970"),
    ({"Rows": 0}, "0 x 36 pixels"),
    ({"RescaleSlope": "0"}, "RescaleSlope or RescaleIntercept is 0 or not finite"),
    ({"PixelData": None}, "no image in it: remove it"),
    ({"Rows": 80}, "2880 bytes of pixels, its header says 5760: export the image again"),
    ({"Rows": None}, "damaged or not DICOM (AttributeError)"),
])  # fmt: skip
def test_what_is_not_read_is_named(tmp_path, fields, said):
    assert said in refused(dicom(tmp_path / "a.dcm", VALUES, **fields))


def test_zeros_behind_the_pixels_are_passed_over(tmp_path):
    """Some programs fill up with them; other bytes are pixels of an image of another size."""
    data = header(VALUES)
    for more in (2, 72, 4096, len(data.PixelData)):
        file = dicom(tmp_path / "a.dcm", VALUES, PixelData=data.PixelData + bytes(more))
        assert (read_dicom(file).values == VALUES).all()
    said = f"{len(data.PixelData) + 2} bytes of pixels, its header says {len(data.PixelData)}: "
    file = dicom(tmp_path / "a.dcm", VALUES, PixelData=data.PixelData + b"\0\1")
    assert said in refused(file)


@pytest.mark.parametrize("slope", ["NaN ", "-inf"])
def test_slopes_that_are_no_numbers(tmp_path, slope):
    file = dicom(tmp_path / "a.dcm", VALUES, RescaleSlope="1.25")
    file.write_bytes(file.read_bytes().replace(b"1.25", slope.encode()))
    assert "RescaleSlope or RescaleIntercept is 0 or not finite" in refused(file)


@pytest.mark.parametrize("syntax", [JPEGLosslessSV1, JPEGExtended12Bit])
def test_a_way_of_compressing_that_nobody_here_reads(tmp_path, syntax):
    data = header(VALUES)
    data.PixelData = pydicom.encaps.encapsulate([b"\xff\xd8" * 20])
    data["PixelData"].is_undefined_length = True
    data.file_meta.TransferSyntaxUID = syntax
    data.save_as(tmp_path / "a.dcm", enforce_file_format=True)
    said = refused(tmp_path / "a.dcm")
    assert "not read (JPEG " in said and said.endswith("uncompressed (gdcmconv --raw)")


def test_without_the_extra(tmp_path, monkeypatch):
    def absent(name):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(optional_dependencies, "import_module", absent)
    with pytest.raises(ConfigError, match=r"pydicom is not installed.*fedapp\[dicom\]"):
        read_dicom(dicom(tmp_path / "a.dcm", VALUES))


# --- hostile and damaged files --------------------------------------------------------------------


def test_a_compressed_bomb(tmp_path):
    """A JPEG 2000 image of 60,000 x 60,000 in a file that says 40 x 36."""
    file = dicom(tmp_path / "a.dcm", VALUES, syntax=JPEG2000Lossless)
    bomb = bytearray(file.read_bytes())
    at = bomb.find(b"\xff\x4f\xff\x51") + 8
    struct.pack_into(">II", bomb, at, 60_000, 60_000)
    file.write_bytes(bomb)
    assert "its compressed image has another size than its header says" in refused(file)


def test_only_what_shows_the_pixels_is_read(tmp_path, monkeypatch):
    seen, stored = [], reader._stored
    monkeypatch.setattr(reader, "_stored", lambda header: seen.append(header) or stored(header))
    read_dicom(dicom(tmp_path / "a.dcm", VALUES))
    assert {element.keyword for element in seen[0]} <= {*reader._TAGS_READ}
    assert PATIENT not in str(seen[0]) and PATIENT_ID not in str(seen[0])


def test_what_begins_like_dicom(tmp_path):
    dicom(tmp_path / "IM0001", VALUES)
    (tmp_path / "notes").write_text("DICM")
    assert is_dicom(tmp_path / "IM0001") and not is_dicom(tmp_path / "notes")
    assert not is_dicom(tmp_path) and not is_dicom(tmp_path / "absent")
