"""Identity of the code that runs: its folder, its hash, and the versions of its libraries."""

import hashlib
import importlib.metadata
import platform
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from fedapp.experiment.preset_files import CONF

PACKAGES = ("fedapp", "server_app", "client_app")
_COUNTED = re.compile(rf"({'|'.join(PACKAGES)})/.*\.py|conf/(methods/)?[^/]*\.yaml")
_ROOT = Path(__file__).resolve().parents[2]
_SHOWN = 16
_LIBRARIES = ("torch", "torchvision", "numpy", "flwr", "fedapp")


STAND_IN = "terms/stands_in_for.yaml"
"""File below `conf` with the hash of other code. It is there where a site runs its own code in the
place of the code that a run brought."""


def stands_in_for() -> str:
    """Return the `code_digest` of the code in whose place this one runs; empty: in none's."""
    try:
        return (CONF / STAND_IN).read_text().strip()
    except FileNotFoundError:
        return ""


@cache
def code_hash() -> tuple[str, str]:
    """Return the folder of the code and the first 16 digits of `code_digest`, for people."""
    return str(_ROOT), code_digest()[:_SHOWN]


@cache
def code_digest() -> str:
    """Return the SHA-256 of this code, 64 hex digits, as it was at the first call.

    It covers the Python files of `PACKAGES` and the presets of `conf/`.
    """
    return digest_of(_ROOT, CONF)


def digest_of(root: Path, conf: Path) -> str:
    """Return the SHA-256 over the packages in `root` and the presets in `conf`."""
    settings = [*conf.glob("*.yaml"), *conf.glob("methods/*.yaml")]
    files = {f"conf/{path.relative_to(conf).as_posix()}": path for path in settings}
    for package in PACKAGES:
        for path in (root / package).rglob("*.py"):
            files[path.relative_to(root).as_posix()] = path
    return _over({name: path.read_bytes() for name, path in files.items()})


def digest_of_files(files: Mapping[str, bytes]) -> str:
    """Return the same digest for the files of a Flower app, by their paths below its folder."""
    return _over({name: content for name, content in files.items() if _COUNTED.fullmatch(name)})


def _over(files: Mapping[str, bytes]) -> str:
    total = hashlib.sha256()
    for name in sorted(files):
        total.update(f"{name}\0{len(files[name])}\0".encode())
        total.update(files[name])
    return total.hexdigest()


def hash_of_files(files: Mapping[str, bytes]) -> str:
    """Return the first 16 digits of `digest_of_files`, for people."""
    return digest_of_files(files)[:_SHOWN]


def versions() -> dict[str, str]:
    """Return the versions of Python, the system and libraries on which results may depend.

    Nothing in it names the machine or its owner.
    """
    # Not platform.platform(): a kernel's release often carries its owner's name.
    system = (platform.system(), platform.machine(), *platform.libc_ver())
    found = {"python": platform.python_version(), "platform": " ".join(filter(None, system))}
    for name in _LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
