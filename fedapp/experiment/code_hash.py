"""Identity of the code that runs: its folder, its hash, and the versions of its libraries.

The hash is the same for a checkout, for the bundle that Flower builds from it and for an installed
package, so that two people can compare it by telephone. Presets do not count: they are settings.
"""

import hashlib
import importlib.metadata
import json
import platform
import re
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from fedapp.core.errors import ConfigError
from fedapp.experiment.preset_files import CONF

PACKAGES = ("fedapp", "server_app", "client_app")
PROJECT = "pyproject.toml"
ROOT = Path(__file__).resolve().parents[2]
_CARRIED = ROOT / "fedapp" / "app"
BESIDE = _CARRIED if _CARRIED.is_dir() else ROOT
"""The folder of what is beside `fedapp` in a checkout. An installed package carries it inside."""
_COUNTED = re.compile(rf"({'|'.join(PACKAGES)})/.*\.py|{re.escape(PROJECT)}")
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
    return str(ROOT), code_digest()[:_SHOWN]


@cache
def code_digest() -> str:
    """Return the SHA-256 of this code, 64 hex digits, as it was at the first call.

    It covers the Python files of `PACKAGES` and pyproject.toml.
    """
    return digest_of(ROOT, BESIDE)


def digest_of(root: Path, beside: Path) -> str:
    """Return `digest_over` the files of `code_files`."""
    files = code_files(root, beside)
    return digest_over({name: path.read_bytes() for name, path in files.items()})


def code_files(root: Path, beside: Path) -> dict[str, Path]:
    """Return the files that are code, by the paths that they have in Flower's bundle.

    root: the folder of `fedapp`. beside: the folder of the other packages and of pyproject.toml.
    """
    files = {PROJECT: path} if (path := beside / PROJECT).is_file() else {}
    for package in PACKAGES:
        home = root if package == "fedapp" else beside
        for path in (home / package).rglob("*.py"):
            if home == beside or beside not in path.parents:
                files[path.relative_to(home).as_posix()] = path
    return files


def digest_of_files(files: Mapping[str, bytes]) -> str:
    """Return the same digest for the files of a Flower app, by their paths below its folder."""
    return digest_over(
        {name: content for name, content in files.items() if _COUNTED.fullmatch(name)}
    )


def digest_over(files: Mapping[str, bytes]) -> str:
    """Return the SHA-256 over names and contents, 64 hex digits.

    Of pyproject.toml the values count, since Flower rewrites that file. Raises ConfigError.
    """
    total = hashlib.sha256()
    for name in sorted(files):
        content = files[name]
        if name == PROJECT:
            content = json.dumps(project_of(content), sort_keys=True, default=str).encode()
        total.update(f"{name}\0{len(content)}\0".encode())
        total.update(content)
    return total.hexdigest()


def project_of(content: bytes) -> dict[str, Any]:
    """Return what a pyproject.toml says, without the addresses of servers.

    Flower removes these before it sends the file. Raises ConfigError where it cannot be read.
    """
    try:
        found = tomllib.loads(content.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"the app's {PROJECT} cannot be read: {error}") from error
    found.get("tool", {}).get("flwr", {}).pop("federations", None)
    return found


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
