"""Image files of the kinds that hospitals hold: 16-bit PNG, TIFF, DICOM of many sorts."""

import struct
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
from numpy.typing import NDArray
from PIL import Image
from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, generate_uid

from fedapp.core.errors import ImageError
from fedapp.data.folder import read_stored

PATIENT = "Doe^Jane"
PATIENT_ID = "P-4711"  # with a letter: unique identifiers are random digits
"""Stands in every DICOM file's header, and must stand nowhere else."""


def twelve_bits(levels: NDArray[np.uint8]) -> NDArray[np.uint16]:
    """Return values in [0, 4095] that the window "0, 4095" turns into these levels again."""
    return np.rint(levels.astype(np.float64) * 4095 / 255).astype(np.uint16)


def raster(path: Path, values: NDArray[Any], **options: Any) -> Path:
    """Write an array as PNG or TIFF, by the path's ending."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(values).save(path, **options)
    return path


FORMATS = {"u": 1, "i": 2, "f": 3, "c": 6}
"""TIFF's sample formats, by NumPy's kinds of numbers."""


def tiff(
    path: Path,
    values: NDArray[Any],
    *,
    order: str = "<",
    compressed: bool = False,
    separate: bool = False,
    tags: Mapping[int, Sequence[int]] | None = None,
    content: bytes | None = None,
) -> Path:
    """Write an array [H, W] or [H, W, samples] as TIFF, by nothing but TIFF's own rules.

    order: "<" or ">", of bytes. separate: sample by sample, not pixel by pixel. tags: what is said
    otherwise than the array has it, or besides. content: the pixels' bytes, if not the array's.
    """
    height, width, *rest = values.shape
    samples = rest[0] if rest else 1
    planes = [values] if not separate else [values[..., k] for k in range(samples)]
    strips = [plane.astype(values.dtype.newbyteorder(order)).tobytes() for plane in planes]
    strips = [content] if content is not None else strips
    strips = [zlib.compress(strip) for strip in strips] if compressed else strips
    said: dict[int, Sequence[int]] = {
        256: [width], 257: [height], 258: [8 * values.dtype.itemsize] * samples,
        259: [8 if compressed else 1], 262: [2 if samples == 3 else 1], 273: [0] * len(strips),
        277: [samples], 278: [height], 279: [len(strip) for strip in strips],
        284: [2 if separate else 1], 339: [FORMATS[values.dtype.kind]] * samples, **(tags or {}),
    }  # fmt: skip
    at = 8 + 2 + 12 * len(said) + 4
    outside = at + sum(4 * len(numbers) for numbers in said.values() if len(numbers) > 1)
    starts = [outside + sum(map(len, strips[:k])) for k in range(len(strips))]
    said[273] = said[273] if any(said[273]) else starts
    entries, longer = b"", b""
    for tag, numbers in sorted(said.items()):
        short = tag == 320  # a palette must be of 16 bits
        packed = struct.pack(f"{order}{len(numbers)}{'H' if short else 'I'}", *numbers)
        where = packed
        if len(numbers) > 1:
            where, longer = (
                struct.pack(f"{order}I", at + len(longer)),
                longer + packed.ljust(4 * len(numbers), b"\0"),
            )
        entries += struct.pack(f"{order}HHI", tag, 3 if short else 4, len(numbers)) + where
    head = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(f"{order}IH", 8, len(said))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(head + entries + bytes(4) + longer + b"".join(strips))
    return path


def header(values: NDArray[Any], bits: int = 12, **fields: Any) -> pydicom.Dataset:
    """Return a CT slice, or what `fields` make of it; a field of None is left out."""
    data = pydicom.Dataset()
    data.file_meta = pydicom.dataset.FileMetaDataset()
    data.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    data.file_meta.MediaStorageSOPClassUID = data.SOPClassUID = CTImageStorage
    data.file_meta.MediaStorageSOPInstanceUID = data.SOPInstanceUID = generate_uid()
    data.PatientName, data.PatientID, data.PatientBirthDate = PATIENT, PATIENT_ID, "19700101"
    colour = values.ndim == 3
    data.Rows, data.Columns = values.shape[:2]
    data.SamplesPerPixel = 3 if colour else 1
    data.PhotometricInterpretation = "RGB" if colour else "MONOCHROME2"
    if colour:
        data.PlanarConfiguration = 0
    data.BitsAllocated = 8 * values.dtype.itemsize
    data.BitsStored, data.HighBit = bits, bits - 1
    data.PixelRepresentation = int(values.dtype.kind == "i")
    pixels = values.tobytes()
    data.add_new(
        "PixelData", "OB" if data.BitsAllocated == 8 else "OW", pixels + b"\0" * (len(pixels) % 2)
    )
    for name, value in fields.items():
        if value is None:
            del data[name]
        else:
            setattr(data, name, value)
    return data


def dicom(
    path: Path, values: NDArray[Any], bits: int = 12, syntax: str = "", **fields: Any
) -> Path:
    """Write a DICOM file. syntax: the transfer syntax to compress by; empty: uncompressed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = header(values, bits, **fields)
    if syntax:
        data.compress(syntax, encoding_plugin="pylibjpeg")
    data.save_as(path, enforce_file_format=True)
    return path


def refused(file: Path) -> str:
    """Return what is said of a file that cannot be read, without its name: one line."""
    with pytest.raises(ImageError) as caught:
        read_stored(file)
    said = str(caught.value)
    assert said.startswith(f"{file}: ") and "\n" not in said
    return said.removeprefix(f"{file}: ")
