"""A picture that its file turns or mirrors is one picture, wherever it is read."""

import io

import numpy as np
import pytest
from PIL import ExifTags, Image

from fedapp.data.folder import decode, list_images, read_images
from fedapp.data.image_files import read_raster
from fedapp.data.own import list_own
from fedapp.tools.check.inputs import look_at_images
from tests.imagefiles import raster, tiff

GREY = np.kron(np.arange(24).reshape(4, 6) * 10 + 5, np.ones((8, 8))).astype(np.uint8)
"""32 x 48 pixels in 24 squares of other levels, no two ways of turning it alike."""
COLOUR = np.stack([GREY, 255 - GREY, GREY // 2], 2)
DEEP = GREY.astype(np.uint16) * 200
AS_STORED = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.swapaxes(0, 1),
    6: lambda a: a.swapaxes(0, 1)[::-1],
    7: lambda a: a.swapaxes(0, 1)[::-1, ::-1],
    8: lambda a: a.swapaxes(0, 1)[:, ::-1],
}
"""How the rows and columns of an upright picture lie in a file of each orientation (TIFF 6.0).

6, a camera turned to the right: row 0 of the file is the picture's right side, column 0 its top.
"""


def turned(path, values, orientation):
    """Write an upright picture as a file of this orientation."""
    stored = np.ascontiguousarray(AS_STORED[orientation](values))
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    options = {"quality": 100, "subsampling": 0} if path.suffix == ".jpg" else {}
    if path.suffix == ".tif":
        return tiff(path, stored, tags={274: [orientation]})
    return raster(path, stored, exif=exif, **options)


@pytest.mark.parametrize("orientation", AS_STORED)
@pytest.mark.parametrize("values", [GREY, COLOUR, DEEP], ids=["grey", "colour", "deep"])
@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.tif"])
def test_one_picture_in_eight_orientations_and_three_formats(tmp_path, name, values, orientation):
    if values is DEEP and name == "a.jpg":
        return
    stored = read_raster(turned(tmp_path / name, values, orientation))
    assert stored.values.shape == values.shape
    assert np.abs(stored.values.astype(int) - values).max() <= (4 if name == "a.jpg" else 0)


@pytest.mark.parametrize("orientation", [1, 6])
def test_compressed(tmp_path, orientation):
    for compression, off in (("tiff_lzw", 0), ("tiff_adobe_deflate", 0), ("jpeg", 40)):
        stored = np.ascontiguousarray(AS_STORED[orientation](COLOUR))
        file = raster(
            tmp_path / "a.tif", stored, compression=compression, tiffinfo={274: orientation}
        )
        found = read_raster(file).values
        assert found.shape == COLOUR.shape
        assert np.abs(found.astype(int) - COLOUR).max() <= off


@pytest.mark.parametrize("orientation", [0, 9, 65535])
def test_an_orientation_that_there_is_not_turns_nothing(tmp_path, orientation):
    for name, off in (("a.jpg", 4), ("a.png", 0)):
        exif = Image.Exif()
        exif[ExifTags.Base.Orientation] = orientation
        found = read_raster(raster(tmp_path / name, GREY, exif=exif)).values
        assert np.abs(found.astype(int) - GREY).max() <= off


def test_all_that_reads_an_image_reads_it_upright(tmp_path):
    """A network, `fedapp check` and the pages that show images: copies of one picture to all."""
    for orientation in AS_STORED:
        turned(tmp_path / "labelled" / "one" / f"{orientation}.png", GREY, orientation)
        turned(tmp_path / "labelled" / "one" / f"{orientation}.tif", GREY, orientation)
    files = sorted((tmp_path / "labelled" / "one").iterdir())
    [first, *others] = [decode(file, 16, 1) for file in files]
    assert all((one == first).all() for one in others)
    listing = list_images(tmp_path / "labelled")
    images = read_images(listing, np.arange(len(files)), 0).inputs
    assert (images == images[:1]).all() and images.shape[2:] == GREY.shape
    entries = list_own(tmp_path, ()).entries
    contents, said, _ = look_at_images(entries, None, console())
    assert len(set(contents)) == 1 and dict(said)["images"] == "48 x 32 pixels"


def console():
    from rich.console import Console

    return Console(file=io.StringIO())
