"""Which code this is: where it lies, its hash, the libraries it runs on."""

import hashlib
import importlib.metadata
import platform
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from fedapp.experiment.presetfiles import CONF

PACKAGES = ("fedapp", "server_app", "client_app")
_COUNTED = re.compile(rf"({'|'.join(PACKAGES)})/.*\.py|conf/(methods/)?[^/]*\.yaml")
_LIBRARIES = ("torch", "torchvision", "numpy", "flwr", "um-pfssl")


STAND_IN = "terms/stands_in_for.yaml"
"""Below `conf`, where a site's own code does a run that brought other code: that code's hash."""


def stands_in_for() -> str:
    """Return the hash of the code in whose place this one runs at a site; empty: it is its own."""
    try:
        return (CONF / STAND_IN).read_text().strip()
    except FileNotFoundError:
        return ""


@cache
def code_hash() -> tuple[str, str]:
    """Return the folder of the code and 16 hex digits over it, as at the first call.

    They cover the Python files of the three packages that lie beside each other, and the presets.
    """
    root = Path(__file__).resolve().parents[2]
    return str(root), hash_of(root, CONF)


def hash_of(root: Path, conf: Path) -> str:
    """Return 16 hex digits over the packages in `root` and the presets in `conf`."""
    settings = [*conf.glob("*.yaml"), *conf.glob("methods/*.yaml")]
    files = {f"conf/{path.relative_to(conf).as_posix()}": path for path in settings}
    for package in PACKAGES:
        for path in (root / package).rglob("*.py"):
            files[path.relative_to(root).as_posix()] = path
    return _over({name: path.read_bytes() for name, path in files.items()})


def hash_of_files(files: Mapping[str, bytes]) -> str:
    """Return the same of an app's files, by name, as they lie below its folder."""
    return _over({name: content for name, content in files.items() if _COUNTED.fullmatch(name)})


def _over(files: Mapping[str, bytes]) -> str:
    total = hashlib.sha256()
    for name in sorted(files):
        total.update(f"{name}\0{len(files[name])}\0".encode())
        total.update(files[name])
    return total.hexdigest()[:16]


def versions() -> dict[str, str]:
    """Return what a result may depend on; nothing in it names the machine or its owner."""
    # Not platform.platform(): a kernel's release often carries its owner's name.
    system = (platform.system(), platform.machine(), *platform.libc_ver())
    found = {"python": platform.python_version(), "platform": " ".join(filter(None, system))}
    for name in _LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
