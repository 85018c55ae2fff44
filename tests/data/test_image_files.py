"""PNG, JPEG and TIFF before their window: whole, or refused by name; never silently 8 bits."""

import numpy as np
import pytest
from PIL import Image

from fedapp.core.errors import ImageError
from fedapp.data.folder import decode, read_stored
from fedapp.data.image_files import read_raster
from fedapp.data.window import DepthError
from tests.imagefiles import raster

DEEP = np.random.default_rng(0).integers(0, 2**16, (12, 10)).astype(np.uint16)
GREY = (DEEP >> 8).astype(np.uint8)
RGB = np.stack([GREY, GREY // 2, 255 - GREY], 2)


@pytest.mark.parametrize(("name", "values", "kind"), [
    ("a.png", DEEP, "16-bit PNG"),
    ("a.tif", DEEP, "16-bit TIFF"),
    ("a.tif", DEEP.astype(">u2"), "16-bit TIFF"),
    ("a.tif", DEEP.astype(np.int32) - 40_000, "32-bit TIFF"),
    ("a.tif", DEEP.astype(np.float32) / 7, "32-bit TIFF"),
    ("a.png", GREY, "8-bit PNG"),
    ("a.TIFF", GREY, "8-bit TIFF"),
    ("a.tiff", RGB, "8-bit TIFF"),
    ("a.png", RGB, "8-bit PNG"),
])  # fmt: skip
def test_values_are_those_that_were_written(tmp_path, name, values, kind):
    stored = read_stored(raster(tmp_path / name, values))
    assert stored.kind == kind and (stored.values == values).all()
    assert stored.deep == (values.dtype != np.uint8) and stored.grey == (values.ndim == 2)
    assert stored.window is None and not stored.inverted


@pytest.mark.parametrize("compression", ["tiff_lzw", "tiff_adobe_deflate", "packbits"])
def test_compressed_tiffs(tmp_path, compression):
    for values in (DEEP, GREY, RGB):
        file = raster(tmp_path / "a.tif", values, compression=compression)
        assert (read_raster(file).values == values).all()


def test_sixteen_bits_by_a_window(tmp_path):
    values = np.full((8, 8), 1500, np.uint16)
    values[0, :4] = 0, 1000, 2000, 65535
    file = raster(tmp_path / "a.png", values)
    image = decode(file, 0, 1, "1000, 2000")
    assert image[0, 0].tolist() == [0, 0, 255, 255, 128, 128, 128, 128]
    assert decode(file, 0, 3, "1000, 2000").tolist() == image.expand(3, -1, -1).tolist()


def test_eight_bits_are_as_they_are_whatever_the_window(tmp_path):
    file = raster(tmp_path / "a.png", GREY)
    for window in ("", "dicom", "0, 4095"):
        assert (decode(file, 0, 1, window)[0].numpy() == GREY).all()


@pytest.mark.parametrize(
    ("window", "why"), [("", "data.window is not set"), ("dicom", "it has no window of its own")]
)
def test_without_a_window_the_values_are_told(tmp_path, window, why):
    file = raster(tmp_path / "a.png", np.array([[5] * 8] * 7 + [[4095] * 8], np.uint16))
    with pytest.raises(DepthError) as caught:
        decode(file, 0, 1, window)
    start = f"{file}: 16-bit PNG, values 5 to 4095, but {why}: set data.window to the two values"
    assert str(caught.value).startswith(start) and "\n" not in str(caught.value)


def png16(path, colour):
    """Write a 16-bit PNG of this colour type, which Pillow cannot: 2 RGB, 4 grey and alpha."""
    import struct
    import zlib

    def chunk(kind, data):
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    samples = {0: 1, 2: 3, 4: 2, 6: 4}[colour]
    head = struct.pack(">IIBBBBB", 8, 8, 16, colour, 0, 0, 0)
    rows = (b"\0" + b"\1\2" * 8 * samples) * 8
    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + body)
    return path


@pytest.mark.parametrize("colour", [2, 4, 6])
def test_deep_colours_are_refused_rather_than_cut(tmp_path, colour):
    with pytest.raises(ImageError, match=r"a\.png: 16-bit PNG, pixels of type 'RGBA?': save it as"):
        read_raster(png16(tmp_path / "a.png", colour))
    assert (read_raster(png16(tmp_path / "b.png", 0)).values == 0x0102).all()


def test_several_pages_are_refused(tmp_path):
    more = [Image.fromarray(GREY)] * 2
    file = raster(tmp_path / "a.tif", DEEP, save_all=True, append_images=more)
    with pytest.raises(ImageError, match=r"a TIFF of 3 pages: save each as a file of its own"):
        read_raster(file)


def test_values_that_are_no_numbers(tmp_path):
    values = DEEP.astype(np.float32)
    values[3, 4] = np.nan
    with pytest.raises(ImageError, match="some values are not finite"):
        read_raster(raster(tmp_path / "a.tif", values))
