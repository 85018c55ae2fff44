"""DICOM files, read by pydicom (extra `dicom`): pixels, and what it takes to show them.

Of a header only `_READ` and the technical head (group 0002) are read: no name, date or number of a
patient, not even into memory. Its texts stand in no error: a damaged one may have anything.
"""

import logging
import math
import struct
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fedapp.data.stored import Stored
from fedapp.data.window import Ramp, Sigmoid, Values, ValueTable, Window
from fedapp.ground.errors import ImageError
from fedapp.ground.extras import needs

DICOM = (".dcm",)
"""How names of such files end."""

_READ = [
    "SamplesPerPixel", "PhotometricInterpretation", "PlanarConfiguration", "NumberOfFrames",
    "Rows", "Columns", "BitsAllocated", "BitsStored", "HighBit", "PixelRepresentation",
    "RescaleSlope", "RescaleIntercept", "ModalityLUTSequence",
    "WindowCenter", "WindowWidth", "VOILUTFunction", "VOILUTSequence",
    "SharedFunctionalGroupsSequence", "PixelData",
]  # fmt: skip
_GREY = {"MONOCHROME1": True, "MONOCHROME2": False}
"""Photometric interpretations without colours: whether high values are dark."""
_COLOUR = {"RGB", "YBR_FULL", "YBR_FULL_422", "YBR_RCT", "YBR_ICT"}
_CODESTREAM = b"\xff\x4f\xff\x51"
"""How a JPEG 2000 image begins, within whatever is around it."""
_RLE, _JPEG_EXTENDED = "1.2.840.10008.1.2.5", "1.2.840.10008.1.2.4.51"
"""Two transfer syntaxes."""
_MOST_PIXELS = 2 * (Image.MAX_IMAGE_PIXELS or 0)
"""Of one image: from here on Pillow too refuses PNG, JPEG and TIFF files."""

# Its warnings and its log quote the header. For the process, as a thread has no filter of its own.
warnings.filterwarnings("ignore", module="pydicom")
logging.getLogger("pydicom").propagate = False


def read_dicom(file: Path) -> Stored:
    """Read the one image of a file; its values are those after rescaling (modality LUT).

    Raises ImageError where the file is damaged, has several frames, or is of a kind that is not
    read; ConfigError where the extra is not installed.
    """
    pydicom: Any = needs("dicom", "pydicom")
    needs("dicom", "pylibjpeg")
    try:
        header = pydicom.dcmread(file, specific_tags=_READ)
        if problem := _problem(header):
            what, remedy = problem
            raise ImageError(file, f"DICOM, {what}", remedy)
        return _stored(header)
    except ImageError:
        raise
    except Exception as error:  # pydicom and what it calls raise nearly all there are
        # Not `from error`, whose text may quote the header.
        what = f"damaged or not DICOM ({type(error).__name__})"
        raise ImageError(file, what, "replace it by a whole copy or remove it") from None


def is_dicom(file: Path) -> bool:
    """Whether a file's first bytes are those of DICOM, whatever its name."""
    try:
        with file.open("rb") as opened:
            return opened.read(132)[128:] == b"DICM"
    except OSError:
        return False


def _problem(header: Any) -> tuple[str, str] | None:
    """Return what is not read here and the remedy; None: all is well."""
    if "PixelData" not in header:
        return "no image in it", "remove it"
    frames = header.get("NumberOfFrames")
    if "SharedFunctionalGroupsSequence" in header or frames not in (None, 1):
        return "not one frame, or of an enhanced kind", "save each frame as a file of its own"
    colour = header.SamplesPerPixel == 3 and header.PhotometricInterpretation in _COLOUR
    grey = header.SamplesPerPixel == 1 and header.PhotometricInterpretation in _GREY
    if not (grey or colour):
        return "neither MONOCHROME nor RGB nor YBR", "convert it to RGB"
    if not 1 <= header.BitsStored <= header.BitsAllocated or header.BitsAllocated not in (8, 16):
        return "values are not of 1 to 16 bits in 8 or 16", "convert them"
    if colour and header.BitsStored > 8:
        return "colours of more than 8 bits", "convert them to 8"
    if not 0 < header.Rows * header.Columns <= _MOST_PIXELS:
        return f"{header.Rows} x {header.Columns} pixels, the most is {_MOST_PIXELS:,}", "cut it"
    syntax = header.file_meta.TransferSyntaxUID
    if syntax.is_encapsulated and not _decodes(syntax, header.BitsStored):
        known = f" ({syntax.name})" if syntax.is_transfer_syntax else ""
        what = f"compressed in a way that is not read{known}"
        return what, "save it uncompressed (gdcmconv --raw)"
    if _declares_more(header):
        return "its compressed image is larger than its header says", "remove it"
    slope, intercept = _rescaling(header)
    if not (math.isfinite(slope) and slope and math.isfinite(intercept)):
        return "RescaleSlope or RescaleIntercept is 0 or not finite", "export the image again"
    return None


def _decodes(syntax: Any, bits: int) -> bool:
    """Whether a library for values of so many bits, compressed in this way, is installed."""
    if syntax == _JPEG_EXTENDED and bits > 8:
        return False  # pydicom counts on Pillow, which reads 8 bits
    pixels: Any = needs("dicom", "pydicom.pixels")
    try:
        return bool(pixels.get_decoder(syntax).is_available)
    except NotImplementedError:
        return False


def _declares_more(header: Any) -> bool:
    """Whether a JPEG 2000 image is larger than the header says: its decoder believes the image."""
    syntaxes: Any = needs("dicom", "pydicom.uid")
    if header.file_meta.TransferSyntaxUID not in syntaxes.JPEG2000TransferSyntaxes:
        return False
    start = header.PixelData.find(_CODESTREAM)
    if start < 0:
        return False
    right, bottom = struct.unpack_from(">II", header.PixelData, start + 8)
    return bool(right > header.Columns or bottom > header.Rows)


def _stored(header: Any) -> Stored:
    pixels: Any = needs("dicom", "pydicom.pixels")
    # Of damaged RLE pylibjpeg's decoder panics, past all `except Exception`.
    rle = header.file_meta.TransferSyntaxUID == _RLE
    values: Values = pixels.pixel_array(header, decoding_plugin="pydicom" if rle else "")
    if values.shape[:2] != (header.Rows, header.Columns):
        raise ValueError("pixels of another size than the header says")
    kind = f"{header.BitsStored}-bit DICOM"
    if values.ndim == 3:
        return Stored(kind, values)
    if "ModalityLUTSequence" in header:
        values = pixels.apply_modality_lut(values, header).astype(np.int32)
    elif (scale := _rescaling(header)) != (1, 0):
        values = scale[0] * values.astype(np.float64) + scale[1]
    elif values.dtype != np.uint8:
        # 8 bits in 16 are levels too.
        plain = header.BitsStored <= 8 and not header.PixelRepresentation
        values = values.astype(np.uint8 if plain else np.int32)
    return Stored(kind, values, _window(header), _GREY[header.PhotometricInterpretation])


def _rescaling(header: Any) -> tuple[float, float]:
    """Return slope and intercept, 1 and 0 where there are none."""
    return _first(header, "RescaleSlope", 1.0), _first(header, "RescaleIntercept", 0.0)


def _window(header: Any) -> Window | None:
    """Return the file's own window, the first of several; None: there is none, or none usable."""
    if "VOILUTSequence" in header:
        return _table(header.VOILUTSequence[0], header.file_meta.TransferSyntaxUID)
    centre, width = (_first(header, f"Window{name}", math.nan) for name in ("Center", "Width"))
    function = header.get("VOILUTFunction") or "LINEAR"
    least = 1 if function == "LINEAR" else 0
    if not (math.isfinite(centre) and math.isfinite(width) and width > 0 and width >= least):
        return None
    if function == "LINEAR":
        return Ramp.of_dicom(centre, width)
    if function == "LINEAR_EXACT":
        return Ramp.of_dicom_exact(centre, width)
    return Sigmoid(centre, width) if function == "SIGMOID" else None


def _table(item: Any, syntax: Any) -> ValueTable:
    """Return a lookup table."""
    count, first, bits = (int(number) for number in item.LUTDescriptor)
    words = item.LUTData
    if isinstance(words, bytes):
        words = np.frombuffer(words, "<u2" if syntax.is_little_endian else ">u2")
    entries, top = np.array(words, np.int64)[: count or 2**16], 2**bits - 1
    if len(entries) != (count or 2**16) or not 8 <= bits <= 16 or entries.max() > top:
        raise ValueError("a table that is not as it says")
    return ValueTable(first, entries, top)


def _first(header: Any, name: str, default: float) -> float:
    """Return a number of the header, the first of several."""
    value = header.get(name)
    if value is None:
        return default
    return float(value if isinstance(value, (int, float, str)) else value[0])
