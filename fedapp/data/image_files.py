"""PNG, JPEG and TIFF files, read by Pillow."""

import logging
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from PIL import ExifTags, Image, TiffImagePlugin, UnidentifiedImageError

from fedapp.core.errors import ImageError
from fedapp.data.window import StoredImage

RASTER = (".png", ".jpg", ".jpeg", ".tif", ".tiff")
"""Endings of the names of such files."""

_FORMATS = ("PNG", "JPEG", "TIFF")
"""Supported formats, which are detected by content. Pillow reads many more, some of them by
external programs (EPS).
"""
_GREY = {"1", "L", "LA"}
_COLOUR = {"P", "RGB", "RGBA", "CMYK", "YCbCr"}
_DEEP = {"I;16", "I;16B", "I;16L", "I", "F"}
"""Pillow's modes of grey values that need a window: 16 bits, 32 bits, floating point."""
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""The operation that brings an image upright, by its orientation (EXIF, TIFF); 1 is upright
already.
"""
_WIDTH, _HEIGHT, _BITS_PER_SAMPLE, _COMPRESSION, _PHOTOMETRIC = 256, 257, 258, 259, 262
_STRIP_STARTS, _SAMPLES, _STRIP_ROWS, _STRIP_BYTES = 273, 277, 278, 279
_PLANES, _SAMPLE_FORMAT = 284, 339
"""Tags of TIFF."""
_WHITE_IS_ZERO = 0
"""The photometric interpretation of TIFF in which 0 is white."""
_NUMBERS = {1: "unsigned", 2: "signed", 3: "floating-point"}
"""Sample formats of TIFF."""
_REMEDY = "save it as grey of up to 16 bits without transparency, or as 8-bit RGB"

# Pillow warns or logs about much of what it refuses, in several lines. The error is enough.
warnings.filterwarnings("ignore", module=r"PIL\.")
logging.getLogger("PIL").setLevel(logging.CRITICAL)


def read_raster(file: Path) -> StoredImage:
    """Read an image. Transparency is dropped.

    Raises ImageError where the file is damaged, of another format, or has several pages or colours
    of more than 8 bits.
    """
    try:
        # Given a name, Pillow would map an uncompressed TIFF into memory, and would mix up the
        # pixels of one that must be rotated by a quarter turn.
        with file.open("rb") as raw, Image.open(raw, formats=_FORMATS) as opened:
            pages = getattr(opened, "n_frames", 1) if opened.format == "TIFF" else 1
            if pages > 1:
                what = f"a TIFF of {pages} pages"
                raise ImageError(file, what, "save each as a file of its own")
            return _stored(opened, file)
    except ImageError:
        raise
    except UnidentifiedImageError as error:
        what = _kind_of_tiff(file)
        remedy = _REMEDY if what else "replace it by a whole copy or remove it"
        raise ImageError(file, what or "damaged or not an image", remedy) from error
    except Exception as error:  # on damaged bytes Pillow raises almost anything
        reason = " ".join(str(error).split())
        what = f"damaged or not an image ({reason})"
        raise ImageError(file, what, "replace it by a whole copy or remove it") from error


def _stored(opened: Image.Image, file: Path) -> StoredImage:
    mode, bits = opened.mode, _bits(opened)
    kind, numbers = f"{bits}-bit {opened.format}", _NUMBERS.get(_tag(opened, _SAMPLE_FORMAT, 1))
    if mode in ("I", "F") and opened.format == "TIFF" and _misread(opened):
        what = f"{kind}, compressed, with the highest byte of a value first"
        raise ImageError(file, what, "save it uncompressed or with the lowest byte first")
    # Pillow would drop the low bits of colours, and all but the first of several grey samples.
    several = mode == "L" and _tag(opened, _SAMPLES, 1) > 1
    if mode not in _DEEP and (mode not in _GREY | _COLOUR or bits > 8 or several):
        raise ImageError(file, f"{kind}, pixels of type {mode!r}", _REMEDY)
    if opened.format == "TIFF":
        _check_bytes(opened, file)
    opened.load()
    # Pillow rotates a TIFF itself, and then drops its orientation.
    turn = _UPRIGHT.get(opened.getexif().get(ExifTags.Base.Orientation, 1))
    image = opened if turn is None else opened.transpose(turn)
    if mode in _DEEP or numbers == "signed":
        values = np.array(image)
        if numbers == "signed" and mode == "L":
            values = values.view(np.int8)
        elif numbers == "unsigned" and mode == "I":
            values = values.view(np.uint32)
        if not np.isfinite(values).all():
            raise ImageError(file, f"{kind}, some values are not finite", "save it again without")
        # Pillow inverts those of 8 bits itself.
        inverted = _tag(opened, _PHOTOMETRIC, 1) == _WHITE_IS_ZERO
        return StoredImage(kind, values, inverted=inverted)
    # Pillow warns about converting a palette with transparency directly to RGB.
    if mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    return StoredImage(kind, np.array(image.convert("L" if mode in _GREY else "RGB")))


def _misread(opened: Image.Image) -> bool:
    """Whether Pillow would take the bytes of values of 16 or 32 bits in the wrong order.

    It takes the bytes that libtiff has decompressed, which are in the machine's order, to be in the
    order of the file.
    """
    [*_, tile] = opened.tile  # type: ignore[attr-defined]
    prefix = opened.tag_v2.prefix  # type: ignore[attr-defined]
    return bool(tile[0] == "libtiff" and prefix == b"MM")


def _check_bytes(opened: Image.Image, file: Path) -> None:
    """Raise ImageError where a strip of an uncompressed TIFF has too few or too many bytes.

    The last strip may be padded to as many rows as the others have, and zeros may follow in each
    strip. Other bytes would be pixels of an image of another size, whose rows would be misread.
    """
    tags: Any = opened.tag_v2  # type: ignore[attr-defined]
    if tags.get(_COMPRESSION, 1) != 1 or _STRIP_BYTES not in tags:
        return
    width, height, bits = tags[_WIDTH], tags[_HEIGHT], tags.get(_BITS_PER_SAMPLE, (1,))
    bits = bits * tags.get(_SAMPLES, 1) if len(bits) == 1 else bits  # given once for all samples
    # With separate planes, a strip has one sample of each pixel, otherwise all samples.
    planes = bits if tags.get(_PLANES, 1) == 2 else (sum(bits),)
    strip = tags.get(_STRIP_ROWS) or height
    tops = range(0, height, strip)
    # The bytes that each strip takes, and those of a strip of all rows.
    takes = [
        (row * min(strip, height - top), row * strip)
        for row in (-(-width * plane // 8) for plane in planes)
        for top in tops
    ]
    starts, found = tags[_STRIP_STARTS], tags[_STRIP_BYTES]
    right = len(starts) == len(found) == len(takes)
    with file.open("rb") as raw:
        for start, there, (least, whole) in zip(starts, found, takes, strict=False):
            raw.seek(start + least)
            right &= there == whole or (there >= least and not any(raw.read(there - least)))
    if not right:
        size = sum(least for least, _ in takes)
        what = f"TIFF, {sum(found)} bytes of pixels, its size takes {size}"
        raise ImageError(file, what, "replace it by a whole copy or remove it")


def _kind_of_tiff(file: Path) -> str:
    """Return what a TIFF that Pillow does not support says of its pixels; empty: not a TIFF."""
    with file.open("rb") as opened:
        head = opened.read(16)
        try:
            start = (
                head if head[2:4] in (b"+\0", b"\0+") else head[:8]
            )  # offsets of 64 bits or 32 bits
            tags: Any = TiffImagePlugin.ImageFileDirectory_v2(start)
            opened.seek(tags.next)
            tags.load(opened)
            bits, numbers = (tags.get(tag, (1,))[0] for tag in (_BITS_PER_SAMPLE, _SAMPLE_FORMAT))
            colours = tags[_PHOTOMETRIC]
        except Exception:  # Pillow raises almost anything
            return ""
    values = f"{bits}-bit {_NUMBERS.get(numbers, 'other')} values"
    return f"a TIFF of {values} and photometric interpretation {colours}, which is not read"


def _bits(opened: Image.Image) -> int:
    """Return the number of bits of a value in the file, or 8 if there are fewer."""
    if opened.format == "TIFF":
        return max(8, _tag(opened, _BITS_PER_SAMPLE, 1))
    # Pillow's name of the layout of the bytes, such as "RGB;16B".
    return 16 if any(";16" in str(tile.args) for tile in getattr(opened, "tile", ())) else 8


def _tag(opened: Image.Image, number: int, default: int) -> int:
    """Return a tag of a TIFF, the largest of several values; for other files the default."""
    value = getattr(opened, "tag_v2", {}).get(number, default)
    return int(max(value) if isinstance(value, tuple) else value)
