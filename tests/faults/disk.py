"""A small disk of its own that can be filled up: a tmpfs, which only root may mount."""

import os
import subprocess
import tempfile
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Self


class Disk:
    """A file system of `mib` MiB at a folder, for the length of a block."""

    def __init__(self, folder: Path, mib: int) -> None:
        self._folder, self._mib = folder, mib

    def __enter__(self) -> Self:
        self._folder.mkdir(exist_ok=True)
        options = f"size={self._mib}m"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", self._folder], check=True)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        subprocess.run(["umount", "--lazy", self._folder], check=True)

    def fill(self) -> None:
        """Take all the room that is left."""
        with suppress(OSError), self._ballast.open("ab", buffering=0) as file:
            while True:
                file.write(bytes(4096))

    def free(self) -> None:
        """Give it back."""
        self._ballast.unlink()

    @property
    def _ballast(self) -> Path:
        return self._folder / "ballast"


@lru_cache(maxsize=1)
def may_mount() -> bool:
    """Return whether this user may mount a file system."""
    if os.geteuid():
        return False
    with tempfile.TemporaryDirectory() as folder:
        try:
            with Disk(Path(folder), 1):
                return True
        except (OSError, subprocess.CalledProcessError):
            return False
