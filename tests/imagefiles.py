"""Image files of the kinds that hospitals hold: 16-bit PNG, TIFF, DICOM of many sorts."""

from pathlib import Path
from typing import Any

import numpy as np
import pydicom
from numpy.typing import NDArray
from PIL import Image
from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, generate_uid

PATIENT = "Doe^Jane"
"""Stands in every DICOM file's header, and must stand nowhere else."""


def twelve_bits(levels: NDArray[np.uint8]) -> NDArray[np.uint16]:
    """Return values in [0, 4095] that the window "0, 4095" turns into these levels again."""
    return np.rint(levels.astype(np.float64) * 4095 / 255).astype(np.uint16)


def raster(path: Path, values: NDArray[Any], **options: Any) -> Path:
    """Write an array as PNG or TIFF, by the path's ending."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(values).save(path, **options)
    return path


def header(values: NDArray[Any], bits: int = 12, **fields: Any) -> pydicom.Dataset:
    """Return a CT slice, or what `fields` make of it; a field of None is left out."""
    data = pydicom.Dataset()
    data.file_meta = pydicom.dataset.FileMetaDataset()
    data.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    data.file_meta.MediaStorageSOPClassUID = data.SOPClassUID = CTImageStorage
    data.file_meta.MediaStorageSOPInstanceUID = data.SOPInstanceUID = generate_uid()
    data.PatientName, data.PatientID, data.PatientBirthDate = PATIENT, "4711", "19700101"
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
