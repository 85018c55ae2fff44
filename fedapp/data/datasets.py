"""`load_dataset`: settings in, one pooled data set out, whatever the source."""

import difflib
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fedapp.core import rng
from fedapp.core.errors import ConfigError
from fedapp.core.plugins import is_function_name
from fedapp.core.settings import FOLDER, OWN, DataSettings
from fedapp.data import published
from fedapp.data.arrays import read_arrays
from fedapp.data.folder import list_images, read_images
from fedapp.data.in_memory import GivenSites, in_memory, registered
from fedapp.data.inputs import DataSet, resize
from fedapp.data.split.groups import patients_of_paths

NAMES: tuple[str, ...] = (*published.NAMES, FOLDER, OWN)
"""Every value of `data.name`, except a user's own function (`package.module:function`) and data
given in memory.
"""


def data_root(settings_root: str) -> Path:
    """Return the folder that holds the data: the setting, $FEDAPP_DATA, or ~/.cache/fedapp."""
    chosen = settings_root or os.environ.get("FEDAPP_DATA") or "~/.cache/fedapp"
    return Path(chosen).expanduser().absolute()


def load_dataset(settings: DataSettings, seed: int) -> DataSet:
    """Return the train and test inputs of the data set as one pool, on the CPU.

    `settings.subset` of them are drawn with the seed and kept in the pool's order. Images are
    resized to `settings.image_size`. Missing files are downloaded if `settings.download` is set.
    Raises DataError where files are missing or damaged, and ConfigError where there is no data set
    of that name, or where inputs that are not images should be resized.
    """
    name, root = settings.name, data_root(settings.root)
    if name == OWN:
        raise ConfigError(
            "data.name = 'own': nobody holds all the images: use `fedapp run` or Flower, where "
            "every site reads its own"
        )
    if name == FOLDER:
        listing = list_images(root)
        chosen = _subset_positions(settings, len(listing.files), seed)
        data = read_images(listing, chosen, settings.image_size, settings.window)
        if not settings.patients:
            return data
        paths = [listing.files[i].relative_to(root).as_posix() for i in chosen.tolist()]
        return replace(data, patients=torch.from_numpy(patients_of_paths(paths, settings.patients)))
    if in_memory(name):
        data = _pool(name)
    elif is_function_name(name):
        data = read_arrays(name)
    else:
        data = _published(settings, root)
    if settings.subset:
        data = data.chosen(_subset_positions(settings, len(data.labels), seed))
    if settings.image_size:
        if not data.are_images:
            raise ConfigError(
                f"data.image_size = {settings.image_size}: the inputs of {name} are no images: "
                "leave it out"
            )
        data = replace(data, inputs=resize(data.inputs, settings.image_size))
    return data


def _pool(name: str) -> DataSet:
    data = registered(name)
    if isinstance(data, GivenSites):
        raise ConfigError(f"data.name = {name!r}: each site has data of its own: there is no pool")
    return data


def _subset_positions(settings: DataSettings, count: int, seed: int) -> NDArray[np.int64]:
    """Return the positions of the inputs to use, ascending."""
    if not settings.subset:
        return np.arange(count)
    if settings.subset > count:
        raise ConfigError(
            f"data.subset = {settings.subset}: {settings.name} has {count} inputs: "
            f"choose 1 to {count}, or 0 for all"
        )
    order = rng.numpy_stream(seed, "subset").permutation(count)
    return np.sort(order[: settings.subset])


def _published(settings: DataSettings, root: Path) -> DataSet:
    name = settings.name
    if name not in NAMES:
        near = difflib.get_close_matches(name, NAMES, 1)
        hint = f"did you mean {near[0]!r}?" if near else "choose"
        raise ConfigError(f"data.name = {name!r}: no such data set: {hint} ({', '.join(NAMES)})")
    return published.read(name, root, settings.download, settings.site_names)
