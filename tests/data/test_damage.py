"""Damage of every kind of file: bytes turned, and files cut off; one line of ours, or no harm."""

import logging

import numpy as np
import pytest
from PIL import Image
from pydicom.uid import JPEG2000Lossless, RLELossless

from fedapp.core.errors import DataError, ImageError
from fedapp.core.settings import SplitSettings
from fedapp.data.folder import decode
from fedapp.data.own import list_own
from fedapp.data.split.manifest import Manifest
from fedapp.data.split.partition import partition
from tests.imagefiles import PATIENT, dicom, raster

DEEP = np.random.default_rng(0).integers(0, 2**16, (12, 10)).astype(np.uint16)
GREY = (DEEP >> 8).astype(np.uint8)
RGB = np.stack([GREY, GREY // 2, 255 - GREY], 2)
CELLS = np.random.default_rng(0).integers(0, 4096, (40, 36)).astype(np.uint16)


def damaged(whole, turned, lengths, by=0xFF):
    """Yield a file's bytes with each of these places turned, then cut off at each length."""
    for at in turned:
        yield whole[:at] + bytes([whole[at] ^ by]) + whole[at + 1 :]
    for length in lengths:
        yield whole[:length]


# Pillow warns of half of what it refuses.
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize(
    ("name", "values"), [("a.tif", DEEP), ("a.png", DEEP), ("a.png", GREY), ("a.png", RGB)]
)
def test_every_byte_and_every_length_of_an_image(tmp_path, monkeypatch, name, values):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10**6)
    file = raster(tmp_path / name, values)
    whole = file.read_bytes()
    for content in damaged(whole, range(len(whole)), range(len(whole))):
        file.write_bytes(content)
        try:
            decode(file, 8, 1, "0, 65535")
        except ImageError as error:
            assert str(error).startswith(f"{file}: ") and "\n" not in str(error)


@pytest.mark.parametrize("syntax", ["", RLELossless, JPEG2000Lossless])
def test_dicom_whose_header_no_error_quotes(tmp_path, syntax, capfd):
    fields = {"WindowCenter": "40", "WindowWidth": "80", "RescaleSlope": 2, "RescaleIntercept": 1}
    file = dicom(tmp_path / "a.dcm", CELLS, syntax=syntax, **fields)
    whole, draw = file.read_bytes(), np.random.default_rng(0)
    start = whole.find(b"DICM")
    turned = [*range(start, start + 900, 5), *draw.integers(0, len(whole), 60).tolist()]
    for content in damaged(whole, turned, draw.integers(0, len(whole), 60).tolist()):
        file.write_bytes(content)
        try:
            assert decode(file, 8, 1, "dicom").shape == (1, 8, 8)
        except ImageError as error:
            said = str(error)
            assert said.startswith(f"{file}: ") and "\n" not in said and PATIENT not in said
            assert error.__cause__ is None
    out, err = capfd.readouterr()
    assert out == err == "" and not logging.getLogger("pydicom").propagate


def test_a_manifest_notices_every_byte_that_matters(tmp_path):
    path = tmp_path / "m.safetensors"
    manifest = partition(np.arange(9) % 3, SplitSettings(num_clients=2), 0, "tiny")
    manifest.save(path)
    whole = path.read_bytes()
    for content in damaged(whole, range(len(whole)), range(len(whole)), by=1):
        path.write_bytes(content)
        try:
            loaded = Manifest.load(path)
        except DataError as error:
            assert str(error).startswith(f"{path}: not a whole manifest (")
            assert "\n" not in str(error)
        else:
            assert len(content) == len(whole)
            assert loaded.digest() == manifest.digest()  # harmless, such as padding


def test_vectors_are_listed_whole_or_with_a_fault(tmp_path):
    path = tmp_path / "vectors.npz"
    np.savez(path, ids=np.array(["a", "b"]), vectors=np.eye(2, 3, dtype=np.float32))
    whole = path.read_bytes()
    for content in damaged(whole, range(0, len(whole), 3), range(0, len(whole), 20)):
        path.write_bytes(content)
        listing = list_own(path, ())
        assert (len(listing.entries) == 2) != bool(listing.faults)
