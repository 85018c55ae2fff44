"""Which files a resident worker keeps in memory, and whether they have changed on the disk."""

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from fedapp.core.plugins import is_function_name, source_path
from fedapp.data import published
from fedapp.data.datasets import data_root
from fedapp.experiment.config import load_experiment, read_run_config
from fedapp.experiment.preset_files import Scalar, method_path, preset_path


def inputs_of(node_config: Mapping[str, Scalar], run_config: Mapping[str, Scalar]) -> list[Path]:
    """Return the files and folders from which a site's data, split and settings are read.

    Raises ConfigError on settings that are wrong.
    """
    preset, overrides = read_run_config(run_config)
    experiment = load_experiment(preset, overrides)
    found = [preset_path(preset)]
    if method := overrides.get("method.preset"):
        found.append(method_path(str(method)))
    if experiment.split.manifest:
        found.append(Path(experiment.split.manifest))
    for code in (experiment.model.name, experiment.method.name):
        if is_function_name(code):
            found.append(source_path(code))
    name, root = experiment.data.name, data_root(experiment.data.root)
    if own := node_config.get("data-path"):
        path = Path(str(own)).expanduser()
        listed = path.suffix.lower() == ".csv"  # a list of images that lie in its folder
        found.append(path.parent if listed else path)
    elif is_function_name(name):  # its code; which files that code reads cannot be known
        found.append(source_path(name))
    elif name not in published.NAMES:
        found.append(root)
    elif name != "digits":  # these are part of a package
        found += [root / file for file, _ in published.source(name).files]
    return found


def stamp_of(paths: Iterable[Path]) -> str:
    """Return a hash of names, sizes and modification times of files, and of all files in folders.

    Contents are not read. A change that keeps size and modification time is not noticed.
    """
    total = hashlib.sha256()
    for path in paths:
        for name, size, changed in _files(path):
            total.update(f"{name}\0{size}\0{changed}\n".encode(errors="surrogateescape"))
    return total.hexdigest()


def _files(path: Path) -> Iterator[tuple[str, int, int]]:
    if not path.is_dir():
        yield _size_and_time(str(path))
    for folder, below, names in os.walk(path):
        below.sort()
        for name in sorted(names):
            yield _size_and_time(os.path.join(folder, name))


def _size_and_time(path: str) -> tuple[str, int, int]:
    try:
        found = os.stat(path)
    except OSError as error:  # absent or not readable: if that ends, it is a change
        return path, -1, error.errno or 0
    return path, found.st_size, found.st_mtime_ns
