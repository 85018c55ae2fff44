"""TIFF: each kind of pixel is read as it was written, or refused in a line; none is read wrongly.

The files are written by `imagefiles.tiff`, which shares no code with what reads them.
"""

import numpy as np
import pytest

from fedapp.data.folder import decode
from fedapp.data.image_files import read_raster
from tests.imagefiles import refused, tiff

RNG = np.random.default_rng(26)
SIZE = (13, 22)
BYTES = RNG.integers(0, 256, SIZE).astype(np.uint8)
COLOURS = RNG.integers(0, 256, (*SIZE, 3)).astype(np.uint8)
READ = ("u1", "i1", "u2", "i2", "i4", "u4", "f4")
"""Kinds of grey values that are read where the lowest byte comes first."""
NOT_READ = {"f2": "16-bit floating-point", "f8": "64-bit floating-point", "u8": "64-bit unsigned",
            "i8": "64-bit signed", "c8": "64-bit other"}  # fmt: skip


def drawn(kind):
    """Values over all the range of their kind, both ends among them."""
    numbers = np.dtype(kind)
    if numbers.kind in "fc":
        return (1000 * RNG.standard_normal(SIZE)).astype(numbers)
    ends = np.iinfo(numbers)
    values = RNG.integers(ends.min, ends.max, SIZE, dtype=numbers, endpoint=True)
    values[0, :2] = ends.min, ends.max
    return values


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("kind", READ)
def test_grey_of_every_kind(tmp_path, kind, order, compressed):
    values = drawn(kind)
    file = tiff(tmp_path / "a.tif", values, order=order, compressed=compressed)
    if kind == "u4" and order == ">":
        assert refused(file).startswith("a TIFF of 32-bit unsigned values and photometric")
    elif order == ">" and compressed and kind in ("i2", "i4", "f4"):
        assert "compressed, with the highest byte of a value first: save it" in refused(file)
    else:
        stored = read_raster(file)
        assert (stored.values == values).all() and stored.deep == (kind != "u1")


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("kind", NOT_READ)
def test_what_is_not_read_is_named(tmp_path, kind, order):
    said = refused(tiff(tmp_path / "a.tif", drawn(kind), order=order))
    assert said.startswith(f"a TIFF of {NOT_READ[kind]} values and photometric interpretation 1, ")
    assert said.endswith("save it as grey of up to 16 bits without transparency, or as 8-bit RGB")


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("kind", READ)
def test_white_is_zero(tmp_path, kind, order):
    """Its levels are those of the same values where black is zero, turned around."""
    values = drawn(kind)
    file = tiff(tmp_path / "a.tif", values, order=order, tags={262: [0]})
    if kind in ("i1", "i2", "i4", "u4") or (kind, order) == ("u2", ">"):
        assert "photometric interpretation 0, which is not read" in refused(file)
    else:
        window = "" if kind == "u1" else f"{values.min()}, {values.max()}"
        plain = decode(tiff(tmp_path / "b.tif", values), 0, 1, window)
        assert (decode(file, 0, 1, window) == 255 - plain).all()


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("bits", [1, 2, 4, 12])
@pytest.mark.parametrize("photometric", [0, 1])
def test_few_bits(tmp_path, bits, compressed, order, photometric):
    """Those of 8 and less fill all 256 levels, as viewers show them; 12 stay as they are."""
    values = RNG.integers(0, 2**bits, (9, 16))
    digits = (values[..., None] >> np.arange(bits)[::-1]) & 1
    packed = np.packbits(digits.reshape(9, -1).astype(np.uint8), axis=1).tobytes()
    file = tiff(tmp_path / "a.tif", values.astype(np.uint16), order=order, compressed=compressed,
                content=packed, tags={258: [bits], 262: [photometric]})  # fmt: skip
    if bits == 12 and (order == ">" or photometric == 0):
        assert "a TIFF of 12-bit unsigned values" in refused(file)
        return
    stored = read_raster(file)
    levels = values if bits == 12 else values * 255 // (2**bits - 1)
    assert (stored.values == (levels if photometric else 255 - levels)).all()
    assert stored.kind == f"{max(bits, 8)}-bit TIFF"


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("order", "<>")
def test_colours_pixel_by_pixel_and_plane_by_plane(tmp_path, separate, compressed, order):
    file = tiff(tmp_path / "a.tif", COLOURS, separate=separate, compressed=compressed, order=order)
    assert (read_raster(file).values == COLOURS).all()
    with_more = np.dstack([COLOURS, np.full(SIZE, 255, np.uint8)])
    for extra in (0, 1, 2):  # whatever, or transparency of two kinds: of a pixel that has none
        file = tiff(tmp_path / "a.tif", with_more, separate=separate, compressed=compressed,
                    order=order, tags={262: [2], 338: [extra]})  # fmt: skip
        if separate and not compressed and extra < 2:
            refused(file)
        else:
            assert (read_raster(file).values == COLOURS).all()


def test_bits_that_are_said_once_for_all_samples(tmp_path):
    assert (read_raster(tiff(tmp_path / "a.tif", COLOURS, tags={258: [8]})).values == COLOURS).all()


@pytest.mark.parametrize("tags", [{256: [21]}, {257: [14]}, {258: [1]}, {279: [1]}])
def test_a_size_that_its_bytes_do_not_have_is_refused(tmp_path, tags):
    assert "bytes of pixels, its size takes" in refused(tiff(tmp_path / "a.tif", BYTES, tags=tags))


def test_a_last_strip_may_be_filled_up(tmp_path):
    """A strip of 16 rows, the last 3 of which are none of the 13."""
    content = BYTES.tobytes() + bytes(3 * SIZE[1])
    start = tiff(tmp_path / "a.tif", BYTES, content=content, tags={278: [16], 279: [16 * SIZE[1]]})
    assert (read_raster(start).values == BYTES).all()


@pytest.mark.parametrize("strips", [1, 3])
def test_zeros_may_follow_in_a_strip_and_nothing_else(tmp_path, strips):
    """As of writers that fill up to an even number of bytes, or to a sector of a disk."""
    rows = -(-SIZE[0] // strips)
    for behind in (b"", b"\0", bytes(490), b"\0\1"):
        parts = [BYTES[k : k + rows].tobytes() + behind for k in range(0, SIZE[0], rows)]
        file = tiff(tmp_path / "a.tif", BYTES, content=b"".join(parts))
        first = file.read_bytes().index(parts[0])
        starts = [first + sum(map(len, parts[:k])) for k in range(strips)]
        if strips > 1:  # three places and lengths stand outside of their entries
            starts = [start + 2 * 4 * strips for start in starts]
        tags = {273: starts, 278: [rows], 279: [len(part) for part in parts]}
        file = tiff(tmp_path / "a.tif", BYTES, content=b"".join(parts), tags=tags)
        if any(behind):
            assert "bytes of pixels, its size takes" in refused(file)
        else:
            assert (read_raster(file).values == BYTES).all()


def test_transparency(tmp_path):
    """It is dropped; colours that it has been multiplied into are divided by it again."""
    alpha = RNG.integers(64, 256, SIZE).astype(np.uint8)
    for extra, shown in ((2, COLOURS), (1, np.rint(COLOURS / 255 * alpha[..., None]))):
        values = np.dstack([shown.astype(np.uint8), alpha])
        file = tiff(tmp_path / "a.tif", values, tags={262: [2], 338: [extra]})
        off = read_raster(file).values.astype(int) - COLOURS
        assert np.abs(off).max() <= (0 if extra == 2 else 3)


def test_two_samples_of_grey(tmp_path):
    """The second is read over if it is transparency, and refused if nobody says what it is."""
    values = np.dstack([BYTES, 255 - BYTES])
    file = tiff(tmp_path / "a.tif", values, tags={262: [1], 338: [2]})
    assert (read_raster(file).values == BYTES).all()
    for extra in (0, 1):
        file = tiff(tmp_path / "a.tif", values, tags={262: [1], 338: [extra]})
        assert "pixels of type 'L" in refused(file)
    file = tiff(tmp_path / "a.tif", values, tags={262: [1]})
    assert "a TIFF of 8-bit unsigned values" in refused(file)


def test_a_palette(tmp_path):
    palette = RNG.integers(0, 256, (3, 256))
    file = tiff(tmp_path / "a.tif", BYTES, tags={262: [3], 320: (257 * palette).ravel().tolist()})
    assert (read_raster(file).values == palette.T[BYTES]).all()


def test_cmyk(tmp_path):
    """Without a profile: of each light what its ink and black let through."""
    inks = RNG.integers(0, 256, (*SIZE, 4)).astype(np.uint8)
    stored = read_raster(tiff(tmp_path / "a.tif", inks, tags={262: [5]}))
    through = (255.0 - inks[..., :3]) * (255.0 - inks[..., 3:]) / 255
    assert np.abs(stored.values - through).max() <= 1


@pytest.mark.parametrize(("values", "tags"), [
    (COLOURS.astype(np.uint16), {}),
    (COLOURS.astype(np.float32), {}),
    (COLOURS.astype(np.int8), {}),
    (COLOURS, {262: [8]}),
    (COLOURS, {262: [1]}),
    (BYTES, {262: [32803]}),
    (BYTES, {259: [7]}),
    (BYTES, {259: [60000]}),
    (BYTES, {258: [7]}),
    (BYTES, {256: [0]}),
    (BYTES, {339: [4]}),
])  # fmt: skip
@pytest.mark.parametrize("order", "<>")
def test_what_else_there_is_is_refused(tmp_path, values, tags, order):
    refused(tiff(tmp_path / "a.tif", values, tags=tags, order=order))
