"""What others wrote, or a person may have changed: JSON, YAML, npz and safetensors, read safely.

Every reader ends in a value or in `ForeignError`, one line that says what is wrong; whoever calls
it adds the file's name and the remedy. Size and nesting are bounded before anything walks through
the value. Nothing is unpickled.
"""

import json
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray
from pydantic_core import ValidationError

from fedapp.core.errors import one_line

DEEPEST = 64
"""Lists and mappings within one another; what this project writes has less than ten."""
MOST_BYTES = 2**30
"""Of a text that is read whole: a checkpoint of 100,000 sites is the largest."""
ALWAYS_UNPACKED, MOST_TIMES = 2**28, 200
"""Bytes that a packed file may unpack to in any case, and times its size beyond. Vectors that an
encoder has made shrink to half, zeros to a thousandth."""
MOST_VALUES = 1_000_000
"""Of YAML, counted as often as they are referred to: ten lines of aliases can mean billions."""


class ForeignError(ValueError):
    """What is wrong with a text or a file, in one line. line: where, from 1; 0: not known."""

    def __init__(self, what: object, line: int = 0) -> None:
        super().__init__(one_line(what, 300) or type(what).__name__)
        self.line = line


def first_fault(error: ValidationError) -> str:
    """Return the first thing that is wrong with the fields of a value: where, and which rule."""
    found = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, found['loc']))}: {found['msg']}"


def json_of(text: str | bytes) -> Any:
    """Return the value that JSON says. Raises ForeignError."""
    _check_size(text)
    try:
        value = json.loads(text)
    except UnicodeDecodeError as error:
        raise ForeignError("not JSON: it is no text in UTF-8") from error
    except json.JSONDecodeError as error:
        raise ForeignError(f"not JSON: {error}", error.lineno) from error
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits; [[[[[...
        raise ForeignError(f"not JSON that can be read: {error}") from error
    _check_depth(value)
    return value


def yaml_of(text: str | bytes, loader: Any = yaml.SafeLoader) -> Any:
    """Return the value that YAML says, by a safe loader. Raises ForeignError."""
    _check_size(text)
    try:
        value = yaml.load(text, Loader=loader)  # noqa: S506 a SafeLoader, or made from it
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise ForeignError(error.problem or error, mark.line + 1 if mark else 0) from error
    except Exception as error:  # dates that are none, numbers of 5,000 digits, depth without end
        raise ForeignError(f"is not YAML ({error or type(error).__name__})") from error
    _check_depth(value, MOST_VALUES)
    return value


def json_file(path: Path) -> Any:
    """Return what a JSON file says. Raises OSError, FileNotFoundError among them, ForeignError."""
    return json_of(_whole(path))


def yaml_file(path: Path) -> Any:
    """Return what a YAML file says. Raises OSError, FileNotFoundError among them, ForeignError."""
    return yaml_of(_whole(path))


def arrays_of(
    file: Path, refuse: Callable[[set[str]], None] = lambda names: None
) -> dict[str, NDArray[Any]]:
    """Return the arrays of an npz file by name. Raises ForeignError.

    refuse: raises what it likes at names that are not wanted, before an array is read.
    """
    name = ""
    try:
        with zipfile.ZipFile(file) as packed:  # else np.load may take it for another format
            names = {inner.removesuffix(".npy") for inner in packed.namelist()}
            check_unpacked(file, sum(inner.file_size for inner in packed.infolist()))
    except Exception as error:
        raise ForeignError(error) from error
    refuse(names)
    found: dict[str, NDArray[Any]] = {}
    try:
        with np.load(file, allow_pickle=False) as stored:
            for name in sorted(names):
                found[name] = stored[name]
                if not isinstance(found[name], np.ndarray):  # of another kind of zip file
                    raise ValueError(f"{name!r} is no array")
    except Exception as error:  # zipfile, zlib and numpy each have their own; MemoryError, too
        if "allow_pickle" in str(error):
            rule = "holds Python objects, which are not unpickled"
            raise PickledError(f"array {name!r} {rule}") from error
        raise ForeignError(error) from error
    return found


def check_unpacked(file: Path, unpacked: int) -> None:
    """Raise ForeignError where a file's content is so much larger that it would fill the memory."""
    if unpacked > max(ALWAYS_UNPACKED, MOST_TIMES * file.stat().st_size):
        raise ForeignError(f"unpacks to {unpacked >> 20} MiB, over {MOST_TIMES} times its size")


class PickledError(ForeignError):
    """An array that could only be unpickled, which would run whatever it says."""


def header_of(file: Path) -> Mapping[str, str]:
    """Return the metadata in a safetensors file's header; empty: none. Raises ForeignError."""
    from safetensors import safe_open

    try:
        with safe_open(file, framework="np") as opened:
            return dict(opened.metadata() or {})
    except Exception as error:  # of the library's own kinds
        raise ForeignError(error) from error


def _whole(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MOST_BYTES + 1)


def _check_size(text: str | bytes) -> None:
    if len(text) > MOST_BYTES:
        raise ForeignError(f"is larger than {MOST_BYTES // 2**20} MiB")


def _check_depth(value: Any, most: int = 0) -> None:
    """Raise ForeignError where a value is too deep, or has more than `most` parts, if that is set.

    Without recursion: it is what is bounded here.
    """
    level, depth, count = [value], 0, 0
    while level:
        if depth > DEEPEST:
            raise ForeignError(f"is nested deeper than {DEEPEST} levels")
        outer = [one for one in level if isinstance(one, dict | list)]
        count += sum(map(len, outer))
        if most and count > most:
            raise ForeignError(f"says more than {most} values")
        level = [one for inner in outer for one in _inside(inner)]
        depth += 1


def _inside(outer: dict[Any, Any] | list[Any]) -> list[Any]:
    return list(outer.values()) if isinstance(outer, dict) else outer
