"""Published data sets: where their files lie, and how they are downloaded, checked and read.

torchvision and medmnist are imported where they are used. Each import takes seconds, and a site
with its own images needs neither.
"""

import fcntl
import http.client
import os
import socket
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedapp.core.errors import DataError
from fedapp.data import hospitals
from fedapp.data.inputs import UNKNOWN, DataSet, channel_stats

FETCH_ERRORS = (
    OSError,
    EOFError,
    RuntimeError,
    http.client.HTTPException,
    tarfile.TarError,
    zlib.error,
)
"""What downloading or unpacking may raise."""

_STALL_SECONDS = 30.0
"""A download that receives nothing for longer than this has failed."""

STL10_WHOLE = "stl10_unlabelled"

RawSplit = tuple[NDArray[np.uint8], NDArray[np.integer[Any]] | None]
"""Images [n, C, H, W] and labels [n] of one of a data set's own splits; None: labels are unknown.
"""


@dataclass(frozen=True)
class Source:
    """One published data set.

    files: paths under the root, each with the MD5 to check before it is read, or None.
    read: returns the whole pool from files that exist.
    fetch: downloads the files into a folder.
    origin: where a person finds the files, if they have other names there.
    """

    files: tuple[tuple[str, str | None], ...]
    read: Callable[[Path], DataSet]
    fetch: Callable[[Path], None]
    origin: str = ""


def source(name: str, sites: Sequence[str] = ()) -> Source:
    """Return the data set of this name, one of `NAMES` but 'digits'.

    sites: of data that know where they come from, the hospitals to read; empty: all.
    """
    if name in MEDMNIST:
        return _medmnist(name)
    others: dict[str, Callable[[], Source]] = {
        "mnist": lambda: _idx("MNIST", (0.1307,), (0.3081,)),
        "fashion_mnist": lambda: _idx("FashionMNIST", (0.2860,), (0.3530,)),
        "cifar10": _cifar10,
        "svhn": _svhn,
        "stl10": lambda: _stl10(False),
        STL10_WHOLE: lambda: _stl10(True),
        "heart": lambda: _heart(hospitals.read_heart, sites),
        "heart_flamby": lambda: _heart(hospitals.read_flamby, sites),
    }
    return others[name]()


def read(name: str, root: Path, download: bool, sites: Sequence[str] = ()) -> DataSet:
    """Return the whole pool of a data set, one of `NAMES`, from its files under a folder.

    download: whether missing files are downloaded. sites: as for `source`.
    Raises DataError where files are missing or damaged.
    """
    if name == "digits":
        return read_digits()
    chosen = source(name, sites)
    if _missing_files(chosen, root):
        if not download:
            raise _not_found(name, chosen, root, "data.download is off", "set data.download=true")
        _fetch(name, chosen, root)
    from torchvision.datasets.utils import check_integrity

    for file, md5 in chosen.files:
        if md5 is not None:
            with reading(root / file):
                whole = check_integrity(root / file, md5)
            if not whole:
                raise damaged(root / file, f"its MD5 is not {md5}")
    return chosen.read(root)


def read_digits() -> DataSet:
    """Return scikit-learn's 1797 handwritten digits, 8 x 8 grey, which come with the package."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    # Stored as 0 to 16; scaled in integers, with halves rounded up.
    pixels = (digits.images.astype(np.int64) * 255 + 8) // 16
    images = torch.from_numpy(pixels.astype(np.uint8))[:, None]
    labels = torch.from_numpy(digits.target.astype(np.int64))
    return DataSet(images, labels, tuple(map(str, digits.target_names)), *channel_stats(images))


def _missing_files(source: Source, root: Path) -> list[str]:
    return [file for file, _ in source.files if not (root / file).is_file()]


def _not_found(name: str, source: Source, root: Path, reason: str, remedy: str) -> DataError:
    files = ", ".join(str(root / file) for file in _missing_files(source, root))
    origin = f" ({source.origin})" * bool(source.origin)
    return DataError(
        f"{name}: not found and {reason}: put there {files}{origin}, or set data.root or "
        f"FEDAPP_DATA to the folder that holds them, or {remedy}"
    )


def _fetch(name: str, source: Source, root: Path) -> None:
    """Download into a temporary folder, and move only complete files from there.

    An interrupted download leaves nothing that looks like data. If several processes on one machine
    lack the files, one downloads and the others wait.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        # Check the folder before downloading, so that its faults are not taken for the network's.
        tempfile.TemporaryFile(dir=root).close()
    except OSError as error:
        reason = f"{root} cannot be written to ({error.strerror})"
        raise _not_found(name, source, root, reason, "make it a folder that can be") from error
    try:
        with (
            _locked(root),
            _stall_limit(_STALL_SECONDS),
            tempfile.TemporaryDirectory(dir=root, prefix=".download-") as staging,
        ):
            if _missing_files(source, root):
                source.fetch(Path(staging))
            for file in _missing_files(source, root):
                (root / file).parent.mkdir(parents=True, exist_ok=True)
                (Path(staging) / file).replace(root / file)
    except FETCH_ERRORS as error:
        reason = f"the download failed ({' '.join(str(error).split())})"
        remedy = "run again with data.download=true on a working network"
        raise _not_found(name, source, root, reason, remedy) from error


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock a folder against other processes that would download into it, without a lock file.

    Where the file system has no such locks, as some network file systems, nobody waits.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _stall_limit(seconds: float) -> Iterator[None]:
    """Set a timeout for every new connection, because urllib has none of its own."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn whatever a parser raises on damaged bytes into a one-line error that names the file."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:  # a parser fed garbage may raise anything, SyntaxError included
        raise damaged(path, " ".join(f"{type(error).__name__} {error}".split())) from error


def damaged(path: Path, reason: str) -> DataError:
    """Return the error for a file that exists but is damaged."""
    return DataError(
        f"{path}: damaged ({reason}): delete it and run again with data.download=true, or put a "
        "whole copy there"
    )


def _pool(parts: Sequence[tuple[Path, RawSplit]], classes: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Join the splits of a data set into one contiguous tensor.

    Raises DataError naming the file that does not fit.

    The peak memory is the parts plus the pool, in uint8. The parts may be transposed views.
    """
    known = []
    for path, (images, given) in parts:
        labels = np.full(len(images), UNKNOWN) if given is None else given
        known.append(labels)
        if images.dtype != np.uint8 or images.ndim != 4 or labels.shape != (len(images),):
            raise damaged(
                path, f"{images.dtype} images {images.shape}, labels {labels.shape} do not match"
            )
        if given is not None and len(given) and not 0 <= given.min() <= given.max() < len(classes):
            raise damaged(path, f"labels outside [0, {len(classes) - 1}]")
        if images.shape[1:] != parts[0][1][0].shape[1:]:
            raise damaged(path, f"images {images.shape[1:]} unlike those of {parts[0][0].name}")
    total = sum(map(len, known))
    pool = np.empty((total, *parts[0][1][0].shape[1:]), np.uint8)
    np.concatenate([images for _, (images, _) in parts], out=pool)
    return torch.from_numpy(pool), torch.from_numpy(np.concatenate(known).astype(np.int64))


def _idx(name: str, mean: tuple[float, ...], std: tuple[float, ...]) -> Source:
    """MNIST and Fashion-MNIST: unpacked idx files, for which no checksums are published."""
    from torchvision import datasets
    from torchvision.datasets.mnist import read_image_file, read_label_file

    kind = getattr(datasets, name)
    pairs = [
        (f"{name}/raw/{part}-images-idx3-ubyte", f"{name}/raw/{part}-labels-idx1-ubyte")
        for part in ("train", "t10k")
    ]

    def part(root: Path, images: str, labels: str) -> tuple[Path, RawSplit]:
        with reading(root / images):
            pixels = read_image_file(str(root / images)).numpy()[:, None]
        with reading(root / labels):
            return root / labels, (pixels, read_label_file(str(root / labels)).numpy())

    def read(root: Path) -> DataSet:
        pool = _pool([part(root, *pair) for pair in pairs], kind.classes)
        return DataSet(*pool, tuple(kind.classes), mean, std)

    return Source(
        files=tuple((file, None) for pair in pairs for file in pair),
        read=read,
        fetch=lambda root: kind(root, download=True),
    )


def _cifar10() -> Source:
    from torchvision.datasets import CIFAR10
    from torchvision.datasets.utils import download_and_extract_archive

    folder = CIFAR10.base_folder
    batches = [*CIFAR10.train_list, *CIFAR10.test_list]
    meta = (CIFAR10.meta["filename"], CIFAR10.meta["md5"])

    def part(root: Path, train: bool) -> tuple[Path, RawSplit]:
        # The files are pickles. torchvision loads them only once their MD5 is the published one,
        # so what is unpickled is what the data set's authors wrote.
        with reading(root / folder):
            stored = CIFAR10(root, train=train)
            images = stored.data.transpose(0, 3, 1, 2)
            return root / folder, (images, np.array(stored.targets, np.int64))

    def read(root: Path) -> DataSet:
        # As in the published `batches.meta`.
        classes = "airplane automobile bird cat deer dog frog horse ship truck".split()
        pool = _pool([part(root, True), part(root, False)], classes)
        mean, std = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
        return DataSet(*pool, tuple(classes), mean, std)

    return Source(
        files=tuple((f"{folder}/{name}", md5) for name, md5 in (*batches, meta)),
        read=read,
        fetch=lambda root: download_and_extract_archive(
            CIFAR10.url, root, filename=CIFAR10.filename, md5=CIFAR10.tgz_md5
        ),
    )


def _svhn() -> Source:
    """SVHN's 32 x 32 crops, without its 'extra' part."""
    from torchvision.datasets import SVHN

    names = {part: SVHN.split_list[part][1] for part in ("train", "test")}

    def part(root: Path, name: str) -> tuple[Path, RawSplit]:
        with reading(root / names[name]):
            stored = SVHN(root, split=name)
            return root / names[name], (stored.data, stored.labels)

    def fetch(root: Path) -> None:
        for name in names:
            SVHN(root, split=name, download=True)

    def read(root: Path) -> DataSet:
        classes = tuple("0123456789")
        pool = _pool([part(root, name) for name in names], classes)
        mean, std = (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)
        return DataSet(*pool, classes, mean, std)

    return Source(
        files=tuple((names[name], SVHN.split_list[name][2]) for name in names),
        read=read,
        fetch=fetch,
    )


def _stl10(whole: bool) -> Source:
    """STL-10's labelled part, 96 x 96; if `whole`, also its 100,000 images of unknown classes.

    It is read here because torchvision's class always requires all 2.6 GB.
    """
    from torchvision.datasets import STL10
    from torchvision.datasets.utils import download_and_extract_archive

    folder = STL10.base_folder
    md5 = dict(map(tuple, (*STL10.train_list, *STL10.test_list)))
    names = [(f"{part}_X.bin", f"{part}_y.bin") for part in ("train", "test")]
    if whole:
        names.append(("unlabeled_X.bin", ""))

    def part(root: Path, images: str, labels: str) -> tuple[Path, RawSplit]:
        with reading(root / folder / images):  # mapped, so that it is not in memory twice
            pixels = np.memmap(root / folder / images, np.uint8, "r").reshape(-1, 3, 96, 96)
        numbers = None
        if labels:
            with reading(root / folder / labels):
                numbers = np.fromfile(root / folder / labels, np.uint8).astype(np.int64) - 1
        # Stored column by column, classes numbered from 1.
        return root / folder / images, (pixels.transpose(0, 1, 3, 2), numbers)

    def read(root: Path) -> DataSet:
        # As in the published `class_names.txt`.
        classes = tuple("airplane bird car cat deer dog horse monkey ship truck".split())
        pool = _pool([part(root, *pair) for pair in names], classes)
        mean, std = (0.4467, 0.4398, 0.4066), (0.2603, 0.2566, 0.2713)
        return DataSet(*pool, classes, mean, std)

    return Source(
        files=tuple((f"{folder}/{name}", md5[name]) for pair in names for name in pair if name),
        read=read,
        fetch=lambda root: download_and_extract_archive(
            STL10.url, root, filename=STL10.filename, md5=STL10.tgz_md5
        ),
    )


def _heart(read: Callable[[Path, Sequence[str]], DataSet], sites: Sequence[str]) -> Source:
    """Hospitals' patients; UCI publishes no checksums, so every line is checked instead."""
    return Source(
        files=tuple((file, None) for file in hospitals.files(sites)),
        read=lambda root: read(root, sites),
        fetch=lambda root: hospitals.fetch(root, sites),
        origin=f"each is {hospitals.ADDRESS}/processed.NAME.data, saved as NAME.csv",
    )


MEDMNIST = (
    "pathmnist",
    "dermamnist",
    "octmnist",
    "pneumoniamnist",
    "retinamnist",
    "breastmnist",
    "bloodmnist",
    "tissuemnist",
    "organamnist",
    "organcmnist",
    "organsmnist",
)
"""MedMNIST's 2-D sets with one label per image (all but ChestMNIST)."""


def _medmnist(name: str) -> Source:
    """One MedMNIST set at 28 x 28. The checksums in the archive itself detect damage."""
    try:
        from medmnist.info import INFO
    except ImportError as error:
        raise DataError(
            f"{name}: the package medmnist is not installed: pip install medmnist"
        ) from error
    from torchvision.datasets.utils import download_url

    info = INFO[name]
    file = f"{name}.npz"
    classes = tuple(str(info["label"][key]) for key in sorted(info["label"], key=int))
    channels = int(info["n_channels"])

    def part(archive: Any, path: Path, split: str) -> tuple[Path, RawSplit]:
        images = archive[f"{split}_images"]
        if images.ndim == 3:
            images = images[..., None]
        return path, (images.transpose(0, 3, 1, 2), archive[f"{split}_labels"].squeeze(1))

    def read(root: Path) -> DataSet:
        path = root / file
        # Opened here, because numpy does not close a damaged file.
        with reading(path), path.open("rb") as opened, np.load(opened) as archive:
            pool = _pool([part(archive, path, s) for s in ("train", "val", "test")], classes)
        # The normalisation of MedMNIST's own baselines.
        return DataSet(*pool, classes, (0.5,) * channels, (0.5,) * channels)

    return Source(
        files=((file, None),),
        read=read,
        fetch=lambda root: download_url(info["url"], root, filename=file, md5=info["MD5"]),
    )


NAMES = (
    *("digits", "fashion_mnist", "mnist", "cifar10", "svhn", "stl10", STL10_WHOLE),
    *("heart", "heart_flamby"),
    *MEDMNIST,
)
"""Every published data set."""
