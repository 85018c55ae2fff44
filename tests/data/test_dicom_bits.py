"""DICOM: which bits of a file are a pixel's value, by every decoder; which pixels are padding."""

import io
from itertools import product

import numpy as np
import pytest
from PIL import Image
from pydicom.encaps import encapsulate
from pydicom.pixels import compress
from pydicom.uid import (
    DeflatedExplicitVRLittleEndian,
    ExplicitVRBigEndian,
    ExplicitVRLittleEndian,
    ImplicitVRLittleEndian,
    JPEG2000Lossless,
    JPEGBaseline8Bit,
    RLELossless,
)

from fedapp.core.errors import ImageError
from fedapp.data.dicom import read_dicom
from fedapp.data.folder import decode
from fedapp.tools.check.inputs import depth_of, suggested
from tests.imagefiles import dicom, header, refused

RNG = np.random.default_rng(26)
STORED = {8: (1, 4, 7, 8), 16: (1, 8, 10, 12, 15, 16)}
"""Bits of a value that are tried, by those of its cell."""
PLAIN = (ExplicitVRLittleEndian, ImplicitVRLittleEndian, ExplicitVRBigEndian)


def drawn(bits, signed, shape=(32, 35)):
    """Values over all of their range, both ends among them."""
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    values = RNG.integers(low, high, shape, endpoint=True)
    values[0, :2] = low, high
    return values


def celled(values, allocated, stored, high, others):
    """Return the cells that hold these values below bit `high`, and `others` in the rest."""
    lowest = high + 1 - stored
    mask = (2**stored - 1) << lowest
    return ((values << lowest) & mask | others & ~mask & (2**allocated - 1)).astype(
        f"u{allocated // 8}"
    )


def saved(path, cells, syntax, precision=0, signed_stream=False, **fields):
    """Write cells as they are, under a header that says of them what `fields` say.

    precision: bits that a JPEG 2000 stream is told to have, whatever the header says.
    """
    bits = precision or 8 * cells.itemsize
    if syntax == JPEG2000Lossless and signed_stream:
        cells = cells.view(f"i{cells.itemsize}")
    data = header(cells, bits)
    if syntax in PLAIN:
        data.file_meta.TransferSyntaxUID = syntax
        if syntax == ExplicitVRBigEndian:
            whole = cells.tobytes() + b"\0" * (cells.size % 2 * (cells.itemsize == 1))
            swapped = np.frombuffer(whole, "u2").byteswap().tobytes()
            data["PixelData"].VR, data.PixelData = "OW", swapped
    elif syntax == JPEGBaseline8Bit:
        packed = io.BytesIO()
        Image.fromarray(cells.astype(np.uint8)).save(packed, "JPEG", quality=100)
        data.PixelData = encapsulate([packed.getvalue()])
        data["PixelData"].VR, data["PixelData"].is_undefined_length = "OB", True
        data.file_meta.TransferSyntaxUID = syntax
    else:
        plugin = "pydicom" if syntax == RLELossless else "pylibjpeg"
        compress(data, syntax, encoding_plugin=plugin)
    for name, value in fields.items():
        if name.startswith("PixelPadding"):
            data.add_new(name, "SS" if value < 0 else "US", value)
        else:
            setattr(data, name, value)
    data.save_as(path, enforce_file_format=True)
    return path


def fields(allocated, stored, high, signed, inverted=False):
    return {
        "BitsAllocated": allocated, "BitsStored": stored, "HighBit": high,
        "PixelRepresentation": int(signed),
        "PhotometricInterpretation": "MONOCHROME1" if inverted else "MONOCHROME2",
    }  # fmt: skip


@pytest.mark.parametrize("syntax", [*PLAIN, RLELossless, JPEG2000Lossless])
@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("allocated", STORED)
def test_the_value_is_in_the_bits_that_the_header_names(tmp_path, allocated, signed, syntax):
    """Wherever they are in a cell, and whatever is in its other bits: nothing, a sign, overlays."""
    for stored in STORED[allocated]:
        values = drawn(stored, signed)
        places = sorted({stored - 1, (stored + allocated) // 2 - 1, allocated - 1})
        overlays = RNG.integers(0, 2**allocated, values.shape)
        for (number, high), others in product(enumerate(places), (0 * values, values, overlays)):
            cells = celled(values, allocated, stored, high, others)
            inverted = bool((number + stored) % 2)
            said = fields(allocated, stored, high, signed, inverted)
            read = read_dicom(saved(tmp_path / "a.dcm", cells, syntax, **said))
            assert (read.values == values).all(), said
            assert read.inverted == inverted and read.deep == (stored > 8 or signed)


@pytest.mark.parametrize("signed_stream", [False, True])
@pytest.mark.parametrize("signed", [False, True])
def test_a_jpeg_2000_stream_of_the_stored_bits_alone(tmp_path, signed, signed_stream):
    """Of two signs that differ the header's is right; HighBit counts for nothing."""
    for allocated, sizes in STORED.items():
        for stored in sizes[1:]:
            values = drawn(stored, signed)
            cells = values.astype(f"i{allocated // 8}")
            if signed_stream != signed:  # the same bits, read as the stream's sign has it
                cells = values & (2**stored - 1)
                if signed_stream:
                    cells = cells - ((cells >> (stored - 1)) << stored)
            cells = cells.astype(f"u{allocated // 8}")
            for high in {stored - 1, allocated - 1}:
                said = fields(allocated, stored, high, signed)
                file = saved(
                    tmp_path / "a.dcm", cells, JPEG2000Lossless, stored, signed_stream, **said
                )
                assert (read_dicom(file).values == values).all(), said


def test_a_stream_of_fewer_bits_than_the_header_says(tmp_path):
    for signed in (False, True):
        values = drawn(12, signed)
        cells = values.astype("i2").view("u2")
        said = fields(16, 16, 15, signed)
        file = saved(tmp_path / "a.dcm", cells, JPEG2000Lossless, 12, signed, **said)
        assert (read_dicom(file).values == values).all()


@pytest.mark.parametrize(("said", "signed_stream"), [
    (fields(8, 8, 7, False), False),
    (fields(16, 8, 7, False), False),
    (fields(16, 10, 9, True), True),
    (fields(16, 16, 15, True), False),
    (fields(16, 16, 15, False), True),
])  # fmt: skip
def test_a_stream_of_12_bits_under_another_header(tmp_path, said, signed_stream):
    cells = drawn(12, signed_stream).astype("i2").view("u2")
    file = saved(tmp_path / "a.dcm", cells, JPEG2000Lossless, 12, signed_stream, **said)
    assert "compressed values, of 12 bits, do not match its header" in refused(file)


def test_jpeg(tmp_path):
    """Of 8 bits without a sign, which is all that it can say; in 16 bits too."""
    levels = np.repeat(np.repeat(RNG.integers(0, 256, (3, 4)), 8, 0), 8, 1).astype(np.uint8)
    for allocated in (8, 16):
        file = saved(tmp_path / "a.dcm", levels, JPEGBaseline8Bit, **fields(allocated, 8, 7, False))
        read = read_dicom(file)
        assert np.abs(read.values.astype(int) - levels).max() <= 1 and not read.deep
    for said in (fields(8, 8, 7, True), fields(8, 7, 6, False)):
        file = saved(tmp_path / "a.dcm", levels, JPEGBaseline8Bit, **said)
        assert "compressed values, of 8 bits, do not match its header" in refused(file)
    file = saved(tmp_path / "a.dcm", levels, JPEGBaseline8Bit, **fields(16, 12, 11, False))
    assert "compressed in a way that is not read (JPEG Baseline" in refused(file)


@pytest.mark.parametrize("syntax", [JPEG2000Lossless, JPEGBaseline8Bit])
@pytest.mark.parametrize("shape", [{"Rows": 16}, {"Columns": 96}, {"Rows": 64, "Columns": 48}])
def test_a_stream_of_another_size(tmp_path, syntax, shape):
    levels = drawn(8, False, (48, 64)).astype(np.uint8)
    file = saved(tmp_path / "a.dcm", levels, syntax, **fields(8, 8, 7, False), **shape)
    assert "its compressed image has another size than its header says" in refused(file)


@pytest.mark.parametrize(("said", "rule"), [
    (fields(16, 12, 10, False), "HighBit contradicts"),
    (fields(16, 12, 16, False), "HighBit contradicts"),
    (fields(8, 8, 15, False), "HighBit contradicts"),
    (fields(16, 12, 11, False) | {"PixelRepresentation": 2}, "neither 0 nor 1"),
])  # fmt: skip
def test_headers_that_contradict_themselves(tmp_path, said, rule):
    cells = drawn(8, False).astype(f"u{said['BitsAllocated'] // 8}")
    assert rule in refused(saved(tmp_path / "a.dcm", cells, ExplicitVRLittleEndian, **said))


@pytest.mark.parametrize(
    "said", [{"PixelRepresentation": 1}, {"BitsStored": 7, "HighBit": 6}, {"BitsAllocated": 16}]
)
def test_colours_are_of_eight_bits_in_eight(tmp_path, said):
    colours = RNG.integers(0, 256, (8, 16, 3)).astype(np.uint8)
    rule = "colours of other than 8 bits without a sign"
    assert rule in refused(dicom(tmp_path / "a.dcm", colours, 8, **said))


def test_without_a_high_bit_it_is_the_last_stored(tmp_path):
    values = drawn(12, False).astype(np.uint16)
    assert (read_dicom(dicom(tmp_path / "a.dcm", values, HighBit=None)).values == values).all()


# --- padding --------------------------------------------------------------------------------------

BODY = np.linspace(-150, 250, 32 * 40).reshape(32, 40).round().astype(np.int16)
"""A CT slice in Hounsfield units."""
AROUND = np.zeros(BODY.shape, bool)
AROUND[:, :9] = True


@pytest.mark.parametrize(("stored", "signed", "said"), [
    (16, True, {"PixelPaddingValue": -2000}),
    (12, True, {"PixelPaddingValue": -2000}),
    (16, True, {"PixelPaddingValue": -2500, "PixelPaddingRangeLimit": -1900}),
    (16, True, {"PixelPaddingValue": -1900, "PixelPaddingRangeLimit": -2500}),
    (16, False, {"PixelPaddingValue": 63536}),
    (12, False, {"PixelPaddingValue": 63536}),  # in all 16 bits of the cells
])  # fmt: skip
@pytest.mark.parametrize("other_sign", [False, True])
@pytest.mark.parametrize("syntax", [ExplicitVRLittleEndian, RLELossless, JPEG2000Lossless])
def test_padding_of_ct_is_in_no_window(tmp_path, stored, signed, said, other_sign, syntax):
    """In files, too, that give its value a sign where pixels have none, or the other way round."""
    shift = 0 if signed else 1024
    cells = np.where(AROUND, -2000, BODY + shift).astype(np.int16).view(np.uint16)
    file = tmp_path / "a.dcm"
    data = fields(16, stored, stored - 1, signed) | said | {"RescaleIntercept": -shift}
    saved(file, cells, syntax, RescaleSlope=1, **_as_words(data, signed != other_sign))
    read = read_dicom(file)
    assert (read.padding == AROUND).all() and (read.values[~AROUND] == BODY[~AROUND]).all()
    depth = depth_of(read)
    assert depth.values == (BODY[~AROUND].min(), BODY[~AROUND].max())
    low, high = (int(end) for end in suggested([depth]).strip("'").split(","))
    assert -150 <= low < -140 and 240 < high <= 250


def _as_words(data, signed):
    """Return the fields with those of padding in the range of 16 bits, with a sign or without."""
    least = -(2**15) if signed else 0
    return {
        name: (value - least) % 2**16 + least if name.startswith("PixelPadding") else value
        for name, value in data.items()
    }


@pytest.mark.parametrize(("bits", "window"), [(8, ""), (12, "0, 4095"), (12, "dicom")])
@pytest.mark.parametrize("photometric", ["MONOCHROME1", "MONOCHROME2"])
@pytest.mark.parametrize("filled", [0, 200])
def test_padding_is_black(tmp_path, bits, window, photometric, filled):
    """In a radiograph whose high values are dark too, where 0 would become white."""
    values = RNG.integers(1, 100, AROUND.shape).astype(f"u{-(-bits // 8)}")
    said = {"PhotometricInterpretation": photometric, "WindowCenter": 50, "WindowWidth": 100}
    plain = dicom(tmp_path / "plain.dcm", values, bits, **said)
    padded = np.where(AROUND, filled, values).astype(values.dtype)
    file = dicom(tmp_path / "a.dcm", padded, bits, **said, PixelPaddingValue=filled)
    shown = decode(file, 0, 1, window)[0].numpy()
    assert (shown[AROUND] == 0).all()
    assert (shown[~AROUND] == decode(plain, 0, 1, window)[0].numpy()[~AROUND]).all()


def test_an_image_that_is_all_padding(tmp_path):
    file = dicom(tmp_path / "a.dcm", np.full((9, 9), 7, np.uint16), PixelPaddingValue=7)
    assert depth_of(read_dicom(file)).values == (7, 7) and decode(file, 0, 1, "0, 9").max() == 0
    with pytest.raises(ImageError, match="values 7 to 7"):
        decode(file, 0, 1)


# --- what must not be parsed ----------------------------------------------------------------------


def test_a_deflated_file_is_not_inflated(tmp_path):
    """It may hold a thousand times its size."""
    data = header(drawn(12, False).astype(np.uint16))
    data.file_meta.TransferSyntaxUID = DeflatedExplicitVRLittleEndian
    data.save_as(tmp_path / "a.dcm", enforce_file_format=True)
    assert "DICOM, deflated as a whole: save it uncompressed" in refused(tmp_path / "a.dcm")


def test_without_a_preamble_it_is_told(tmp_path):
    data = header(drawn(12, False).astype(np.uint16))
    for name, start in (("head.dcm", 132), ("bare.dcm", 0)):
        data.save_as(tmp_path / name, enforce_file_format=True)
        whole = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(whole[start or whole.index(b"\x08\0\x16\0") :])
        said = refused(tmp_path / name)
        assert said.endswith(
            "without the preamble that its files begin with: write it again (dcmconv of DCMTK)"
        )
