"""Which code this is: where it lies, and a hash that is equal wherever the code is the same."""

import hashlib
from functools import cache
from pathlib import Path

from fedapp.experiment.presetfiles import CONF

PACKAGES = ("fedapp", "server_app", "client_app")


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
    total = hashlib.sha256()
    for name in sorted(files):
        content = files[name].read_bytes()
        total.update(f"{name}\0{len(content)}\0".encode())
        total.update(content)
    return total.hexdigest()[:16]
