"""A folder of images as a data set: `<root>/<class>/*.png`, or with other endings in `SUFFIXES`.

`<root>/train/<class>/` and `<root>/test/<class>/` (and `val`) are pooled if the root contains
nothing else. Images that lie deeper, or in no class's folder, are refused, because their class is
not known.
"""

import os
import unicodedata
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from fedapp.core.errors import DataError, ImageError
from fedapp.data.dicom import DICOM, is_dicom, read_dicom
from fedapp.data.image_files import RASTER, read_raster
from fedapp.data.inputs import MAX_SIDE, MIN_SIDE, DataSet, channel_stats, resize
from fedapp.data.window import StoredImage, levels

SUFFIXES = RASTER + DICOM
FORMATS = "PNG, JPEG, TIFF or DICOM (.png, .jpg, .jpeg, .tif, .tiff, .dcm)"
"""The supported formats in words."""
SPLITS = {
    "train": "train", "training": "train", "val": "val", "valid": "val", "validation": "val",
    "test": "test", "testing": "test",
}  # fmt: skip
"""Names for the parts of a split, in lower case, and the part that each of them means. "dev" and
"held-out" are missing on purpose, because they mean different things in different places.
"""
_SYSTEM_FOLDERS = {"@eadir", "__macosx", "#recycle", "lost+found"}
"""Folders that file servers and archive programs create beside a person's own, in lower case."""

_BATCH = 64
"""Files that a thread decodes at a time. Handing over single files would cost as much as decoding a
small image.
"""

_THREADED_BYTES = 8192
"""Mean file size from which threads are faster. Measured on 2 cores: 256-pixel JPEGs of 8 kB take
0.7 of the time of one thread, but 32-pixel ones of 1 kB take 1.5, because threads then wait for the
interpreter.
"""


@dataclass(frozen=True, eq=False)
class Listing:
    """The files of a folder, in sorted order, before any of them is opened.

    labels: int64 [len(files)], the index of each file's class in `classes` (sorted by name).
    """

    files: tuple[Path, ...]
    labels: NDArray[np.int64]
    classes: tuple[str, ...]


def list_images(root: Path) -> Listing:
    """List the images under `root`. Raises DataError where there are none.

    Hidden files and folders, those that file servers create, and classes without images are
    ignored. Raises DataError, naming the image, where one lies too deep or in no class's folder.
    """
    parts = _split_folders(root)
    for folder in (inner for part in parts for inner in _folders(part)):
        _refuse_deeper(root, folder)
    found = [
        (nfc(folder.name), file)
        for part in parts
        for folder in _folders(part)
        for file in _entries(folder)
        if is_image(file)
    ]
    if not found:
        raise DataError(
            f"{root}: no images of the form <class>/*.png, or of {FORMATS} (train/ "
            "and test/ in front are allowed): put them there, or set data.root or FEDAPP_DATA to "
            "their folder"
        )
    above = dict.fromkeys((root, *parts))
    beside = (file for folder in above for file in _entries(folder) if file.is_file())
    if loose := next(filter(is_image, beside), None):
        raise DataError(
            f"{root}: {loose.relative_to(root)} lies beside the folders of the classes: move it "
            "into the folder of its class, or elsewhere"
        )
    classes = tuple(sorted({name for name, _ in found}))
    number = {name: index for index, name in enumerate(classes)}
    labels = np.array([number[name] for name, _ in found], np.int64)
    return Listing(tuple(file for _, file in found), labels, classes)


def read_images(
    listing: Listing, chosen: NDArray[np.int64], side: int, window: str = ""
) -> DataSet:
    """Decode the chosen files of a listing, int64 [n] positions, n >= 1, into one data set.

    side: pixels to which images are resized; 0: none is resized, and all must have equal sizes.
    window: as `data.window`.

    The images are grey if every file is grey, otherwise RGB. Transparency is dropped. Raises
    DataError naming the first file that is damaged or does not fit.
    """
    files = [listing.files[i] for i in chosen.tolist()]
    decoded = decode_all(files, side, window=window)
    first = decoded[0].shape[1:]
    for file, image in zip(files, decoded, strict=True):
        if image.shape[1:] != first:
            other = f"{files[0]} has {first[0]} x {first[1]}"
            what = f"{image.shape[1]} x {image.shape[2]} pixels, but {other}"
            raise ImageError(file, what, "set data.image_size to give all one size")
    channels = max(image.shape[0] for image in decoded)
    images = torch.empty((len(files), channels, *first), dtype=torch.uint8)
    for index, image in enumerate(decoded):
        images[index] = image  # a grey image fills all three channels
    mean, std = channel_stats(images)
    labels = torch.from_numpy(listing.labels[chosen])
    return DataSet(images, labels, listing.classes, mean, std)


def decode_all(
    files: Sequence[Path], side: int, channels: int = 0, window: str = ""
) -> list[Tensor]:
    """Return the images in these files, as `decode` returns them, decoding several at a time."""
    with ThreadPoolExecutor(_threads(files)) as pool:
        # If a file fails, the batches that have not begun are cancelled.
        batches = pool.map(
            lambda batch: [decode(file, side, channels, window) for file in batch],
            (files[i : i + _BATCH] for i in range(0, len(files), _BATCH)),
        )
        return [image for batch in batches for image in batch]


def decode_into(files: Sequence[Path], images: Tensor, window: str = "") -> None:
    """Fill `images`, uint8 [n, C, H, H], with the images in these n files, as from `decode`."""
    channels, side = images.shape[1], images.shape[-1]

    def fill(start: int) -> None:
        for place, file in enumerate(files[start : start + _BATCH], start):
            images[place] = decode(file, side, channels, window)

    with ThreadPoolExecutor(_threads(files)) as pool:
        for _ in pool.map(fill, range(0, len(files), _BATCH)):
            pass  # this raises the error of a file that failed


def _threads(files: Sequence[Path]) -> int | None:
    """Return the number of threads for decoding: 1 for small files, otherwise None (automatic)."""
    if not files:
        return 1
    sample = files[:: len(files) // _BATCH + 1]
    try:
        mean = sum(file.stat().st_size for file in sample) / len(sample)
    except OSError:
        return 1  # decoding will raise an error that names the file
    return None if mean >= _THREADED_BYTES else 1


def _refuse_deeper(root: Path, folder: Path) -> None:
    """Raise DataError where a folder inside a class's folder contains images, at any depth."""
    for inner in _folders(folder):
        for place, below, files in os.walk(inner):
            below[:] = [name for name in below if not is_ignored(name)]
            names = (name for name in sorted(files) if not is_ignored(name))
            deep = next((name for name in names if is_image(Path(place) / name)), "")
            if deep:
                image = (Path(place) / deep).relative_to(root)
                raise DataError(
                    f"{root}: {image} lies deeper than <class>/image, and the folder above it may "
                    f"be a class or not: move the images up into {folder.name}/, or set data.root "
                    "to the folder that holds one folder per class"
                )


def _split_folders(root: Path) -> list[Path]:
    """Return the folders train/, val/ and test/ if the root contains only these; else the root."""
    folders = _folders(root)
    if (
        folders
        and {f.name.lower() for f in folders} <= SPLITS.keys()
        and any(map(_folders, folders))
    ):
        return folders
    return [root]


def _folders(path: Path) -> list[Path]:
    return [entry for entry in _entries(path) if entry.is_dir()]


def _entries(path: Path) -> list[Path]:
    """Return the contents of a folder, by name, except what `is_ignored`."""
    try:
        return sorted(entry for entry in path.iterdir() if not is_ignored(entry.name))
    except OSError as error:
        raise DataError(
            f"{path}: cannot be listed ({error.strerror}): set data.root or FEDAPP_DATA to the "
            "folder that holds one folder of images per class"
        ) from error


def is_ignored(name: str) -> bool:
    """Whether a file or folder with this name is hidden, or was created by a system."""
    return name.startswith(".") or name.lower() in _SYSTEM_FOLDERS


def decode(file: Path, side: int, channels: int = 0, window: str = "") -> Tensor:
    """Return one image, uint8 [C, H, W], resized to `side` unless that is 0.

    channels: C, 1 or 3, to which the image is converted; 0: 1 if the file is grey, else 3.
    window: as `data.window`.
    Raises ImageError where the file cannot be used.
    """
    return rendered(read_stored(file), file, side, channels, window)


def read_stored(file: Path) -> StoredImage:
    """Read an image before its window is applied. Raises ImageError if it cannot be used."""
    return (read_raster if file.suffix.lower() in RASTER else read_dicom)(file)


def is_image(file: Path) -> bool:
    """Whether the name ends like that of an image, or the file is DICOM, whatever its name."""
    return file.suffix.lower() in SUFFIXES or is_dicom(file)


def nfc(name: str) -> str:
    """Return a name with each accented letter as one character (Unicode's form NFC).

    A Mac stores the names of files in the decomposed form NFD, which looks the same but is not
    equal.
    """
    return unicodedata.normalize("NFC", name)


def rendered(stored: StoredImage, file: Path, side: int, channels: int, window: str) -> Tensor:
    """Return what `decode` returns, for an image that was read already."""
    height, width = stored.values.shape[:2]
    if not side and not all(MIN_SIDE <= s <= MAX_SIDE for s in (height, width)):
        rule = f"each side must be in [{MIN_SIDE}, {MAX_SIDE}]"
        what = f"{height} x {width} pixels, {rule}"
        raise ImageError(file, what, "set data.image_size to resize")
    pixels = levels(stored, window, file)
    if channels == 1 and not stored.grey:
        pixels = np.array(Image.fromarray(pixels).convert("L"))
    tensor = torch.from_numpy(pixels.reshape(height, width, -1)).permute(2, 0, 1)
    if channels == 3:
        tensor = tensor.expand(3, -1, -1)
    return resize(tensor[None], side)[0] if side else tensor
