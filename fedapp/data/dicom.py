"""DICOM files, read by pydicom (extra `dicom`): the pixels, and what is needed to display them.

Of a header, only the elements of `_TAGS_READ` and the file meta information (group 0002) are read.
So no name, date or identifier of a patient ever reaches memory. No error quotes a text of the
header, because a damaged header may contain anything.
"""

import io
import logging
import math
import struct
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedapp.core.errors import ImageError
from fedapp.core.optional_dependencies import needs
from fedapp.data.window import Ramp, Sigmoid, StoredImage, Values, ValueTable, Window

DICOM = (".dcm",)
"""Endings of the names of such files."""

_TAGS_READ = [
    "SamplesPerPixel", "PhotometricInterpretation", "PlanarConfiguration", "NumberOfFrames",
    "Rows", "Columns", "BitsAllocated", "BitsStored", "HighBit", "PixelRepresentation",
    "PixelPaddingValue", "PixelPaddingRangeLimit",
    "RescaleSlope", "RescaleIntercept", "ModalityLUTSequence",
    "WindowCenter", "WindowWidth", "VOILUTFunction", "VOILUTSequence",
    "SharedFunctionalGroupsSequence", "PixelData",
]  # fmt: skip
_GREY = {"MONOCHROME1": True, "MONOCHROME2": False}
"""Photometric interpretations without colours, and whether high values are dark in them."""
_COLOUR = {"RGB", "YBR_FULL", "YBR_FULL_422", "YBR_RCT", "YBR_ICT"}
_CODESTREAM = b"\xff\x4f\xff\x51"
"""The first bytes of a JPEG 2000 image, within whatever container holds it."""
_DEFLATED, _RLE = "1.2.840.10008.1.2.1.99", "1.2.840.10008.1.2.5"
_JPEG = {f"1.2.840.10008.1.2.4.{number}" for number in (50, 51)}
_JPEG_2000 = {f"1.2.840.10008.1.2.4.{number}" for number in (90, 91, 201, 202, 203)}
"""Transfer syntaxes; the last three of JPEG 2000 are its fast kind, HTJ2K."""
_STARTS_WITHOUT_PREAMBLE = (b"\x02\0", b"\x08\0")
"""First bytes of a DICOM file that lacks the usual preamble (128 bytes and "DICM")."""
_SAVE_UNCOMPRESSED = "save it uncompressed (gdcmconv --raw)"
_EXPORT_AGAIN = "export the image again"
_MAX_PIXELS = 2 * (Image.MAX_IMAGE_PIXELS or 0)
"""Pixels of an image, at most. Beyond this, Pillow refuses PNG, JPEG and TIFF files, too."""

# pydicom's warnings and log quote the header. They are off for the whole process, because filters
# of warnings cannot be set for a single thread.
warnings.filterwarnings("ignore", module="pydicom")
logging.getLogger("pydicom").propagate = False


def read_dicom(file: Path) -> StoredImage:
    """Read the only image of a file. Its values are those after rescaling (modality LUT).

    Raises ImageError where the file is damaged, has several frames, or is of a kind that is not
    supported; ConfigError where the extra `dicom` is not installed.
    """
    pydicom: Any = needs("dicom", "pydicom")
    needs("dicom", "pylibjpeg")
    try:
        _check_beginning(file)
        header = pydicom.dcmread(file, specific_tags=_TAGS_READ)
        _check(header)
        return _stored(header)
    except _NotReadError as problem:
        what, remedy = problem.args
        raise ImageError(file, f"DICOM, {what}", remedy) from None
    except Exception as error:  # pydicom and its decoders raise almost anything
        # Not `from error`, whose text may quote the header.
        what = f"damaged or not DICOM ({type(error).__name__})"
        raise ImageError(file, what, "replace it by a whole copy or remove it") from None


def is_dicom(file: Path) -> bool:
    """Whether the first bytes of a file are those of DICOM, whatever its name is."""
    try:
        # Reading something other than a plain file might block forever.
        if not file.is_file():
            return False
        with file.open("rb") as opened:
            return opened.read(132)[128:] == b"DICM"
    except OSError:
        return False


class _NotReadError(Exception):
    """The image is of a kind that is not supported. Its arguments: the kind, and the remedy."""


def _check_beginning(file: Path) -> None:
    """Raise _NotReadError for a file that must not be parsed."""
    readers: Any = needs("dicom", "pydicom.filereader")
    if is_dicom(file):
        # pydicom would inflate it whole, however large that is.
        if readers.read_file_meta_info(file).get("TransferSyntaxUID") == _DEFLATED:
            raise _NotReadError("deflated as a whole", _SAVE_UNCOMPRESSED)
        return
    with file.open("rb") as opened:
        if opened.read(2) in _STARTS_WITHOUT_PREAMBLE:
            what = "but without the preamble that its files begin with"
            raise _NotReadError(what, "write it again (dcmconv of DCMTK)")


def _check(header: Any) -> None:
    """Raise _NotReadError where the header describes an image of a kind that is not supported."""
    if "PixelData" not in header:
        raise _NotReadError("no image in it", "remove it")
    frames = header.get("NumberOfFrames")
    if "SharedFunctionalGroupsSequence" in header or frames not in (None, 1):
        remedy = "save each frame as a file of its own"
        raise _NotReadError("not one frame, or of an enhanced kind", remedy)
    colour = header.SamplesPerPixel == 3 and header.PhotometricInterpretation in _COLOUR
    grey = header.SamplesPerPixel == 1 and header.PhotometricInterpretation in _GREY
    if not (grey or colour):
        raise _NotReadError("neither MONOCHROME nor RGB nor YBR", "convert it to RGB")
    allocated, stored = header.BitsAllocated, header.BitsStored
    if not 1 <= stored <= allocated or allocated not in (8, 16):
        raise _NotReadError("values are not of 1 to 16 bits in 8 or 16", "convert them")
    if not stored <= _high_bit(header) + 1 <= allocated:
        raise _NotReadError("HighBit contradicts BitsStored or BitsAllocated", _EXPORT_AGAIN)
    if header.PixelRepresentation not in (0, 1):
        raise _NotReadError("PixelRepresentation is neither 0 nor 1", _EXPORT_AGAIN)
    if colour and (allocated, stored, header.PixelRepresentation) != (8, 8, 0):
        raise _NotReadError("colours of other than 8 bits without a sign", "convert them")
    if not 0 < header.Rows * header.Columns <= _MAX_PIXELS:
        what = f"{header.Rows} x {header.Columns} pixels, the most is {_MAX_PIXELS:,}"
        raise _NotReadError(what, "cut it")
    if not header.file_meta.TransferSyntaxUID.is_encapsulated:
        _check_length(header)
    slope, intercept = _rescaling(header)
    if not (math.isfinite(slope) and slope and math.isfinite(intercept)):
        raise _NotReadError("RescaleSlope or RescaleIntercept is 0 or not finite", _EXPORT_AGAIN)


def _check_length(header: Any) -> None:
    """Raise _NotReadError where the header's image size does not match the bytes of pixels.

    Zeros may follow the pixels, because some programs use them as padding. Other bytes would be
    pixels of an image of another size, whose rows would be misread.
    """
    samples = 2 if header.PhotometricInterpretation == "YBR_FULL_422" else header.SamplesPerPixel
    said = header.Rows * header.Columns * samples * header.BitsAllocated // 8
    if len(header.PixelData) < said or any(header.PixelData[said + said % 2 :]):
        what = f"{len(header.PixelData)} bytes of pixels, its header says {said}"
        raise _NotReadError(what, _EXPORT_AGAIN)


def _high_bit(header: Any) -> int:
    return int(header.get("HighBit", header.BitsStored - 1))


class _Codestream(NamedTuple):
    """What a compressed image says of itself. bits: of a sample; signed: None if unknown."""

    rows: int
    columns: int
    samples: int
    bits: int
    signed: bool | None


def _codestream(header: Any) -> _Codestream | None:
    """Return what the compressed image says of itself; None if there is none, or it says nothing.

    Raises _NotReadError where the method of compression is not supported.
    """
    encaps: Any = needs("dicom", "pydicom.encaps")
    syntax = header.file_meta.TransferSyntaxUID
    if syntax == _RLE or not syntax.is_encapsulated:
        return None
    if syntax not in _JPEG | _JPEG_2000 or (syntax in _JPEG and header.BitsStored > 8):
        known = f" ({syntax.name})" if syntax.is_transfer_syntax else ""
        raise _NotReadError(f"compressed in a way that is not read{known}", _SAVE_UNCOMPRESSED)
    image = encaps.get_frame(header.PixelData, 0, number_of_frames=1)
    if syntax in _JPEG:
        with Image.open(io.BytesIO(image), formats=["JPEG"]) as opened:
            return _Codestream(opened.height, opened.width, len(opened.getbands()), 8, None)
    start = image.index(_CODESTREAM)
    right, bottom, left, top = struct.unpack_from(">4I", image, start + 8)
    (samples,) = struct.unpack_from(">H", image, start + 40)
    [kind] = {image[start + 42 + 3 * sample] for sample in range(samples)}
    signed = bool(kind & 0x80)
    return _Codestream(bottom - top, right - left, samples, 1 + (kind & 0x7F), signed)


def _value_bits(header: Any, stream: _Codestream | None) -> tuple[int, int]:
    """Return which bits of a decoded number are the value: the lowest one, and how many there are.

    Raises _NotReadError where the compressed image and the header contradict each other.
    """
    stored, allocated = header.BitsStored, header.BitsAllocated
    if stream is None:
        return _high_bit(header) + 1 - stored, stored
    if stream[:3] != (header.Rows, header.Columns, header.SamplesPerPixel):
        what = "its compressed image has another size than its header says"
        raise _NotReadError(what, _EXPORT_AGAIN)
    if stream.samples == 3 and stream.bits != 8:
        raise _NotReadError("colours of other than 8 bits without a sign", "convert them")
    same_sign = bool(header.PixelRepresentation) == bool(stream.signed)
    if stream.bits == stored and (same_sign or stream.signed is not None):
        return 0, stored  # if the signs differ, the header is right
    if stream.bits == allocated and stream.signed is not None:
        return _high_bit(header) + 1 - stored, stored  # other data may be in the remaining bits
    if stream.bits < stored and same_sign:
        return 0, stream.bits
    what = f"its compressed values, of {stream.bits} bits, do not match its header"
    raise _NotReadError(what, _EXPORT_AGAIN)


def _stored(header: Any) -> StoredImage:
    pixels: Any = needs("dicom", "pydicom.pixels")
    syntax, stream = header.file_meta.TransferSyntaxUID, _codestream(header)
    lowest, bits = _value_bits(header, stream)
    # On damaged RLE data pylibjpeg's decoder panics, which no `except Exception` catches.
    plugin = "pydicom" if syntax == _RLE else "pillow" if syntax in _JPEG else "pylibjpeg"
    options: dict[str, Any] = {"apply_j2k_sign_correction": False, "correct_unused_bits": False}
    options["allow_excess_frames"] = False  # zeros behind the pixels are not a frame
    if stream:
        options["bits_allocated"] = 8 if stream.bits <= 8 else 16
    decoded: Values = pixels.pixel_array(
        header, decoding_plugin=plugin if syntax.is_encapsulated else "", **options
    )
    if decoded.shape[:2] != (header.Rows, header.Columns):
        raise ValueError("pixels of another size than the header says")
    kind = f"{header.BitsStored}-bit DICOM"
    if decoded.ndim == 3:
        return StoredImage(kind, decoded)
    cells = decoded.astype(np.int32) & (2 ** (8 * decoded.itemsize) - 1)
    values: Values = cells >> lowest & 2**bits - 1
    if header.PixelRepresentation:
        values = values - ((values & 2 ** (bits - 1)) << 1)  # two's complement
    padding = _padding(header, cells, values)
    if "ModalityLUTSequence" in header:
        values = pixels.apply_modality_lut(values, header).astype(np.int32)
    elif (scale := _rescaling(header)) != (1, 0):
        values = scale[0] * values.astype(np.float64) + scale[1]
    elif header.BitsStored <= 8 and not header.PixelRepresentation:
        values = values.astype(np.uint8)  # these are levels, even if stored in 16 bits
    inverted = _GREY[header.PhotometricInterpretation]
    return StoredImage(kind, values, _window(header), inverted, padding)


def _padding(header: Any, cells: Values, values: Values) -> NDArray[np.bool_] | None:
    """Return which pixels are padding; None where the file has no padding value.

    cells: the decoded numbers, unsigned. values: the values in them, before rescaling.
    """
    if "PixelPaddingValue" not in header:
        return None
    said = header.PixelPaddingValue, header.get("PixelPaddingRangeLimit", header.PixelPaddingValue)
    # Some files give it a sign where pixels have none, or the other way round.
    half, whole = 2 ** (header.BitsAllocated - 1), 2**header.BitsAllocated
    least = -half if header.PixelRepresentation else 0
    low, high = sorted((int(number) - least) % whole + least for number in said)
    # And some fill whole cells with it, including bits that are not part of the value.
    padding: NDArray[np.bool_] = (low <= values) & (values <= high)
    padding |= cells == int(said[0]) % whole
    return padding


def _rescaling(header: Any) -> tuple[float, float]:
    """Return slope and intercept; 1 and 0 if the file has none."""
    return _first(header, "RescaleSlope", 1.0), _first(header, "RescaleIntercept", 0.0)


def _window(header: Any) -> Window | None:
    """Return the file's own window, the first of several; None if it has none that is usable."""
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
        raise ValueError("a table that contradicts its own header")
    return ValueTable(first, entries, top)


def _first(header: Any, name: str, default: float) -> float:
    """Return a number of the header, the first one of several."""
    value = header.get(name)
    if value is None:
        return default
    return float(value if isinstance(value, (int, float, str)) else value[0])
