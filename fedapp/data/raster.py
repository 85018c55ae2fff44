"""PNG, JPEG and TIFF files, read by Pillow."""

import struct
import warnings
import zlib
from pathlib import Path

import numpy as np
from PIL import Image

from fedapp.data.stored import Stored
from fedapp.ground.errors import ImageError

RASTER = (".png", ".jpg", ".jpeg", ".tif", ".tiff")
"""How names of such files end."""

_FORMATS = ("PNG", "JPEG", "TIFF")
"""Pillow reads many more, some by programs of others (EPS). Files are told apart by content."""
_GREY = {"1", "L", "LA"}
_COLOUR = {"P", "RGB", "RGBA", "CMYK", "YCbCr"}
_DEEP = {"I;16", "I;16B", "I;16L", "I", "F"}
"""Pillow's modes of grey values that need a window: 16 bits, 32 bits, floats."""
_BITS_PER_SAMPLE, _PHOTOMETRIC, _WHITE_IS_ZERO = 258, 262, 0
"""Two tags of TIFF, and a value of the second."""

# What Pillow raises on damaged bytes, by format and kind of damage.
_DECODE_ERRORS = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    KeyError,
    TypeError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
)

# Of a damaged TIFF Pillow also warns, in several lines; the error that follows says enough.
warnings.filterwarnings("ignore", module=r"PIL\.TiffImagePlugin")


def read_raster(file: Path) -> Stored:
    """Read an image. Transparency is dropped.

    Raises ImageError where the file is damaged, of another format, has several pages, or colours
    of more than 8 bits.
    """
    try:
        with Image.open(file, formats=_FORMATS) as opened:
            pages = getattr(opened, "n_frames", 1) if opened.format == "TIFF" else 1
            if pages > 1:
                what = f"a TIFF of {pages} pages"
                raise ImageError(file, what, "save each as a file of its own")
            return _stored(opened, file)
    except _DECODE_ERRORS as error:
        reason = " ".join(str(error).split())
        what = f"damaged or not an image ({reason})"
        raise ImageError(file, what, "replace it by a whole copy or remove it") from error


def _stored(opened: Image.Image, file: Path) -> Stored:
    mode, bits = opened.mode, _bits(opened)
    kind = f"{bits}-bit {opened.format}"
    if mode in _DEEP:
        values = np.array(opened)
        if not np.isfinite(values).all():
            raise ImageError(file, f"{kind}, some values are not finite", "save it again without")
        # Pillow inverts those of 8 bits itself.
        inverted = _tag(opened, _PHOTOMETRIC, 1) == _WHITE_IS_ZERO
        return Stored(kind, values, inverted=inverted)
    if mode not in _GREY | _COLOUR or bits > 8:
        # Pillow would drop the low bits of colours.
        remedy = "save it as grey of up to 16 bits without transparency, or as 8-bit RGB"
        raise ImageError(file, f"{kind}, pixels of type {mode!r}", remedy)
    # Pillow warns of the direct way from a palette with transparency to RGB.
    clear = mode == "P" and "transparency" in opened.info
    image = opened.convert("RGBA") if clear else opened
    return Stored(kind, np.array(image.convert("L" if mode in _GREY else "RGB")))


def _bits(opened: Image.Image) -> int:
    """Return how many bits a value has in the file, 8 if there are fewer."""
    if opened.format == "TIFF":
        return max(8, _tag(opened, _BITS_PER_SAMPLE, 1))
    # Pillow's name for how the bytes lie, such as "RGB;16B".
    return 16 if any(";16" in str(tile.args) for tile in getattr(opened, "tile", ())) else 8


def _tag(opened: Image.Image, number: int, default: int) -> int:
    """Return a tag of a TIFF, the largest of several values; of other files the default."""
    value = getattr(opened, "tag_v2", {}).get(number, default)
    return int(max(value) if isinstance(value, tuple) else value)
