"""`load_dataset`: settings in, one pooled data set out, whatever the source."""

import difflib
import fcntl
import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fedapp.data import published
from fedapp.data.arrays import read_arrays
from fedapp.data.folder import list_images, read_images
from fedapp.data.inputs import DataSet, resize
from fedapp.data.memory import GivenSites, given, in_memory
from fedapp.data.split.groups import by_paths
from fedapp.ground import rng
from fedapp.ground.errors import ConfigError, DataError
from fedapp.ground.functions import names_function
from fedapp.ground.settings import FOLDER, OWN, DataSettings

NAMES: tuple[str, ...] = (*published.NAMES, FOLDER, OWN)
"""Every value of `data.name` but a user's own: `package.module:function`, or given in memory."""

_STALL_SECONDS = 30.0
"""A download that stays silent for longer has failed."""


def data_root(settings_root: str) -> Path:
    """Return the folder that holds the data: the setting, $FEDAPP_DATA, or ~/.cache/um-pfssl."""
    chosen = settings_root or os.environ.get("FEDAPP_DATA") or "~/.cache/um-pfssl"
    return Path(chosen).expanduser().absolute()


def load_dataset(settings: DataSettings, seed: int) -> DataSet:
    """Return the data set's train and test inputs as one pool, on the CPU.

    `settings.subset` of them are drawn with the seed and kept in the pool's order; images are
    resized to `settings.image_size`. Absent files are fetched if `settings.download`. `DataError`
    where files are absent or damaged, `ConfigError` where there is no set of that name, or where
    what is no image is to be resized.
    """
    name, root = settings.name, data_root(settings.root)
    if name == OWN:
        raise ConfigError(
            "data.name = 'own': nobody holds all the images: use `fedapp run` or Flower, where "
            "every site reads its own"
        )
    if name == FOLDER:
        listing = list_images(root)
        chosen = _draw(settings, len(listing.files), seed)
        data = read_images(listing, chosen, settings.image_size, settings.window)
        if not settings.patients:
            return data
        paths = [listing.files[i].relative_to(root).as_posix() for i in chosen.tolist()]
        return replace(data, patients=torch.from_numpy(by_paths(paths, settings.patients)))
    if in_memory(name):
        data = _pool(name)
    elif names_function(name):
        data = read_arrays(name)
    else:
        data = published.read_digits() if name == "digits" else _read(settings, root)
    if settings.subset:
        kept = torch.from_numpy(_draw(settings, len(data.labels), seed))
        whose = (
            None if data.patients is None else data.patients[kept].unique(return_inverse=True)[1]
        )
        data = replace(data, inputs=data.inputs[kept], labels=data.labels[kept], patients=whose)
    if settings.image_size:
        if not data.are_images:
            raise ConfigError(
                f"data.image_size = {settings.image_size}: the inputs of {name} are no images: "
                "leave it out"
            )
        data = replace(data, inputs=resize(data.inputs, settings.image_size))
    return data


def _pool(name: str) -> DataSet:
    data = given(name)
    if isinstance(data, GivenSites):
        raise ConfigError(f"data.name = {name!r}: each site has data of its own: there is no pool")
    return data


def _draw(settings: DataSettings, count: int, seed: int) -> NDArray[np.int64]:
    """Return the positions to use, ascending."""
    if not settings.subset:
        return np.arange(count)
    if settings.subset > count:
        raise ConfigError(
            f"data.subset = {settings.subset}: {settings.name} has {count} inputs: "
            f"choose 1 to {count}, or 0 for all"
        )
    order = rng.numpy_stream(seed, "subset").permutation(count)
    return np.sort(order[: settings.subset])


def _read(settings: DataSettings, root: Path) -> DataSet:
    name = settings.name
    if name not in NAMES:
        near = difflib.get_close_matches(name, NAMES, 1)
        hint = f"did you mean {near[0]!r}?" if near else "choose"
        raise ConfigError(f"data.name = {name!r}: no such data set: {hint} ({', '.join(NAMES)})")
    source = published.source(name)
    if _absent(source, root):
        if not settings.download:
            raise _not_found(name, source, root, "data.download is off", "set data.download=true")
        _fetch(name, source, root)
    from torchvision.datasets.utils import check_integrity

    for file, md5 in source.files:
        if md5 is not None:
            with published.reading(root / file):
                whole = check_integrity(root / file, md5)
            if not whole:
                raise published.damaged(root / file, f"its MD5 is not {md5}")
    return source.read(root)


def _absent(source: published.Source, root: Path) -> list[str]:
    return [file for file, _ in source.files if not (root / file).is_file()]


def _not_found(
    name: str, source: published.Source, root: Path, reason: str, remedy: str
) -> DataError:
    files = ", ".join(str(root / file) for file in _absent(source, root))
    return DataError(
        f"{name}: not found and {reason}: put there {files}, or set data.root or FEDAPP_DATA to "
        f"the folder that holds them, or {remedy}"
    )


def _fetch(name: str, source: published.Source, root: Path) -> None:
    """Download into a folder of its own and move whole files only.

    An interrupted download leaves nothing that looks like data, and of several processes on one
    machine that lack the files one downloads and the others wait.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        # Before the network is asked: what is wrong with the folder no network mends.
        tempfile.TemporaryFile(dir=root).close()
    except OSError as error:
        reason = f"{root} cannot be written to ({error.strerror})"
        raise _not_found(name, source, root, reason, "make it a folder that can be") from error
    try:
        with (
            _alone(root),
            _stall_limit(_STALL_SECONDS),
            tempfile.TemporaryDirectory(dir=root, prefix=".download-") as staging,
        ):
            if _absent(source, root):
                source.fetch(Path(staging))
            for file in _absent(source, root):
                (root / file).parent.mkdir(parents=True, exist_ok=True)
                (Path(staging) / file).replace(root / file)
    except published.FETCH_ERRORS as error:
        reason = f"the download failed ({' '.join(str(error).split())})"
        remedy = "run again with data.download=true on a working network"
        raise _not_found(name, source, root, reason, remedy) from error


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold a folder, without a file in it, against others that would do the same there.

    Where the disk knows no such locks, as some of the network do, nobody waits.
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
    """Give every new connection a time limit: urllib has none of its own."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)
