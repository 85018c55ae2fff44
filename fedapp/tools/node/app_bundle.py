"""The app (the code) that a run brings: its files, and a hash that a site can compute itself.

Flower sends the app as a zip archive, the FAB. Two archives of the same files may differ, and so
may pyproject.toml, which Flower rewrites. Therefore the app's hash is over its files, sorted by
name. It is the same for a checkout, for the FAB that Flower builds from it and for an installed
package.

Presets do not count, because they are settings, which a run may give on its command line too. They
are read as plain YAML, and a site's terms (`fedapp.site.terms`) judge settings.
"""

import re
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import unified_diff
from functools import cache, cached_property
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import Any

from fedapp.core.errors import ConfigError, one_line
from fedapp.experiment.code_hash import (
    BESIDE,
    PROJECT,
    ROOT,
    STAND_IN,
    code_files,
    digest_of_files,
    digest_over,
    project_of,
)
from fedapp.experiment.preset_files import CONF

ABOUT = "/um-pfssl"
"""URL path at which a server says which app is installed there."""
MAX_FILES = 20_000
MAX_UNPACKED = 200 * 2**20
"""Limit for the bytes of all files: twenty times the size of a FAB that Flower accepts."""
_NUMBERS = re.compile(
    r"fedapp/(core|data|learn|methods)/.*\.py|fedapp/site/(?!policy|terms|record)\w+\.py"
)
"""Files that decide a site's numbers: what it learns, sends and measures."""
_PROTOCOL = "fedapp/protocol/messages.py"
_SPEAKS = re.compile(rb"^SCHEMA = (\d+)$.*?^READS = \((\d+), (\d+)\)$", re.MULTILINE | re.DOTALL)
_UNCOUNTED = re.compile(r"README\.md|LICENSE|\.info/CONTENT|conf/([^/]+/)?[^/]+\.yaml")
"""Files that are not code: presets, and what no program reads."""


@dataclass(frozen=True)
class Bundle:
    """An app. files: content by path relative to the app's folder."""

    files: Mapping[str, bytes]

    @cached_property
    def hash(self) -> str:
        """SHA-256 over names and contents of all files that may be code, as 64 hex digits.

        Of this project's app it is `code_hash.code_digest`, which logs and results show.
        """
        return digest_over({name: self.files[name] for name in filter(counts, self.files)})

    @cached_property
    def title(self) -> str:
        """Publisher, name and version as the app itself claims, which proves nothing."""
        project = self._project.get("project", {})
        flower = self._project.get("tool", {}).get("flwr", {}).get("app", {})
        words = (flower.get("publisher"), project.get("name"), project.get("version"))
        return one_line(" ".join(str(word) for word in words if word), 120) or "an app without name"

    def differences(self, other: "Bundle") -> dict[str, str]:
        """Return "added", "changed" or "removed" for each file that differs from another app's."""
        found = {}
        for name in sorted(filter(counts, self.files.keys() | other.files.keys())):
            if name not in other.files:
                found[name] = "added"
            elif name not in self.files:
                found[name] = "removed"
            elif digest_over({name: self.files[name]}) != digest_over({name: other.files[name]}):
                found[name] = "changed"
        return found

    def lines(self, other: "Bundle", name: str) -> Iterator[str]:
        """Yield the diff of one file against another app's; unprintable characters become `?`."""
        mine, theirs = (
            one.files.get(name, b"").decode(errors="replace").splitlines() for one in (self, other)
        )
        for line in unified_diff(theirs, mine, "before", "after", lineterm="", n=2):
            yield "".join(c if c.isprintable() or c == "\t" else "?" for c in line)

    def unlike(self, other: "Bundle") -> str:
        """Return why another app cannot do a run of this app at a site; empty: it can.

        Both need the same bytes in the files that decide numbers, and must understand each other's
        messages.
        """
        made = [name for name in self.differences(other) if _NUMBERS.fullmatch(name)]
        if made:
            more = f" and {len(made) - 1} more" if made[1:] else ""
            return f"it computes numbers by other files ({made[0]}{more})"
        mine, theirs = self._speaks, other._speaks
        if mine is None or theirs is None:
            return "it does not say which messages it understands"
        if not (theirs[1] <= mine[0] <= theirs[2] and mine[1] <= theirs[0] <= mine[2]):
            said = [f"{one[0]} (understands {one[1]} to {one[2]})" for one in (mine, theirs)]
            return f"it writes messages {said[0]}, the code here {said[1]}"
        return ""

    def in_place_of(self, app: "Bundle") -> dict[str, bytes]:
        """Return the files to do another app's run with: that one's presets and this one's code."""
        others = {n: c for n, c in app.files.items() if not counts(n) and not n.startswith(".")}
        mine = {name: content for name, content in self.files.items() if counts(name)}
        code = {f"conf/{STAND_IN}": digest_of_files(app.files).encode()}
        return {"README.md": b"", "LICENSE": b"", **others, **mine, **code}

    @cached_property
    def numbers(self) -> str:
        """SHA-256 over the files that decide a site's numbers."""
        return Bundle({n: c for n, c in self.files.items() if _NUMBERS.fullmatch(n)}).hash

    @cached_property
    def _speaks(self) -> tuple[int, int, int] | None:
        found = _SPEAKS.search(self.files.get(_PROTOCOL, b""))
        if found is None:
            return None
        schema, first, last = map(int, found.groups())
        return schema, first, last

    @cached_property
    def _project(self) -> dict[str, Any]:
        return project_of(self.files.get(PROJECT, b""))


def about(app: Bundle) -> dict[str, Any]:
    """Return what a server publishes: the app's hash, title, message versions and `numbers`."""
    speaks = list(app._speaks or ())
    return {"app": app.hash, "title": app.title, "messages": speaks, "numbers": app.numbers}


def counts(name: str) -> bool:
    """Return whether a file of an app counts in its hash."""
    return not _UNCOUNTED.fullmatch(name)


def read_fab(content: bytes) -> Bundle:
    """Return the app in a FAB, without writing or running anything of it.

    Raises ConfigError if it is no valid FAB: damaged, too large, or with a name that occurs twice,
    leads out of the app's folder, or differs from another only in upper and lower case, so that
    some disks would hold one file and others two.
    """
    files: dict[str, bytes] = {}
    left = MAX_UNPACKED
    try:
        with zipfile.ZipFile(BytesIO(content)) as archive:
            entries = archive.infolist()
            if len(entries) > MAX_FILES:
                raise ConfigError(f"the app has {len(entries)} files: at most {MAX_FILES}")
            folded = set()
            for entry in entries:
                name = entry.filename
                parts = PurePosixPath(name).parts
                fits = name == "/".join(parts) and name.isprintable() and "\\" not in name
                if not fits or ".." in parts or name.startswith("/") or entry.is_dir():
                    raise ConfigError(f"the app has a file named {name!r}: no plain name below it")
                if name.casefold() in folded:
                    raise ConfigError(f"the app has two files named {name!r}")
                folded.add(name.casefold())
                with archive.open(entry) as file:
                    files[name] = file.read(left + 1)
                left -= len(files[name])
                if left < 0:
                    raise ConfigError(f"the app is larger than {MAX_UNPACKED // 2**20} MiB")
    except ConfigError:
        raise
    except Exception as error:  # zipfile raises many kinds of errors on damaged input
        raise ConfigError(f"the app is no zip archive that can be read: {error}") from error
    if PROJECT not in files:
        raise ConfigError(f"the app has no {PROJECT}")
    return Bundle(files)


def read_app(path: Path) -> Bundle:
    """Return an app from a FAB file or from the folder of a checkout. Raises ConfigError."""
    if not path.is_dir():
        try:
            return read_fab(path.read_bytes())
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}: name a FAB or a checkout") from error
    if not (path / PROJECT).is_file():
        raise ConfigError(f"{path}: has no {PROJECT}: name a FAB or a checkout")
    return _collected(path, path, path / "conf")


@cache
def installed() -> Bundle:
    """Return the installed app, which this program is a part of."""
    return _collected(ROOT, BESIDE, CONF)


def _collected(root: Path, beside: Path, conf: Path) -> Bundle:
    """Return the files that Flower would send. root, beside: see `code_files`."""
    files = code_files(root, beside)
    for path in conf.rglob("*.yaml"):
        files[f"conf/{path.relative_to(conf).as_posix()}"] = path
    return Bundle({name: path.read_bytes() for name, path in files.items()})
