"""Safe readers of files that others wrote or changed: JSON, YAML, npz and safetensors.

Every reader returns a value or raises `UntrustedFileError`, one line that says what is wrong; the
caller adds the name of the file and the remedy. Size and nesting are bounded before anything walks
through the value. Nothing is unpickled.
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

MAX_DEPTH = 64
"""Levels of nested lists and mappings; files that this project writes have fewer than ten."""
MAX_TEXT_BYTES = 2**30
"""Size of a text that is read at once; the largest is a checkpoint of 100,000 sites."""
ALWAYS_ALLOWED_BYTES, MAX_EXPANSION = 2**28, 200
"""A packed file may unpack to so many bytes, or to so many times its size if that is more. Vectors
that an encoder has made shrink to a half, zeros to a thousandth."""
MAX_YAML_VALUES = 1_000_000
"""Values in a YAML text, counted as often as aliases repeat them: ten lines can mean billions."""


class UntrustedFileError(ValueError):
    """What is wrong with a text or a file, in one line. line: its number from 1; 0: not known."""

    def __init__(self, what: object, line: int = 0) -> None:
        super().__init__(one_line(what, 300) or type(what).__name__)
        self.line = line


def first_fault(error: ValidationError) -> str:
    """Return the first problem that pydantic found: the field, and the rule that it breaks."""
    found = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, found['loc']))}: {found['msg']}"


def parse_json(text: str | bytes) -> Any:
    """Parse JSON. Raises UntrustedFileError."""
    _check_size(text)
    try:
        value = json.loads(text)
    except UnicodeDecodeError as error:
        raise UntrustedFileError("not JSON: it is no text in UTF-8") from error
    except json.JSONDecodeError as error:
        raise UntrustedFileError(f"not JSON: {error}", error.lineno) from error
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits; [[[[[...
        raise UntrustedFileError(f"not JSON that can be read: {error}") from error
    _check_depth(value)
    return value


def parse_yaml(text: str | bytes, loader: Any = yaml.SafeLoader) -> Any:
    """Parse YAML with a safe loader. Raises UntrustedFileError."""
    _check_size(text)
    try:
        value = yaml.load(text, Loader=loader)  # noqa: S506 a SafeLoader, or made from it
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise UntrustedFileError(error.problem or error, mark.line + 1 if mark else 0) from error
    except Exception as error:  # impossible dates, numbers of 5,000 digits, endless nesting
        raise UntrustedFileError(f"is not YAML ({error or type(error).__name__})") from error
    _check_depth(value, MAX_YAML_VALUES)
    return value


def read_json(path: Path) -> Any:
    """Return the value in a JSON file. Raises OSError, or UntrustedFileError."""
    return parse_json(_read_bounded(path))


def read_yaml(path: Path) -> Any:
    """Return the value in a YAML file. Raises OSError, or UntrustedFileError."""
    return parse_yaml(_read_bounded(path))


def read_npz_arrays(
    file: Path, refuse: Callable[[set[str]], None] = lambda names: None
) -> dict[str, NDArray[Any]]:
    """Return the arrays of an npz file by name. Raises UntrustedFileError.

    refuse: is called with all names before any array is read, and raises its own error if it does
    not want them.
    """
    name = ""
    try:
        with zipfile.ZipFile(file) as packed:  # np.load would also accept other formats
            names = {inner.removesuffix(".npy") for inner in packed.namelist()}
            check_unpacked(file, sum(inner.file_size for inner in packed.infolist()))
    except Exception as error:
        raise UntrustedFileError(error) from error
    refuse(names)
    found: dict[str, NDArray[Any]] = {}
    try:
        with np.load(file, allow_pickle=False) as stored:
            for name in sorted(names):
                found[name] = stored[name]
                if not isinstance(found[name], np.ndarray):  # another kind of zip file
                    raise ValueError(f"{name!r} is no array")
    except Exception as error:  # zipfile, zlib and numpy each raise their own; also MemoryError
        if "allow_pickle" in str(error):
            rule = "holds Python objects, which are not unpickled"
            raise PickledArrayError(f"array {name!r} {rule}") from error
        raise UntrustedFileError(error) from error
    return found


def check_unpacked(file: Path, unpacked: int) -> None:
    """Raise UntrustedFileError if a packed file would unpack to so much that memory fills up."""
    if unpacked > max(ALWAYS_ALLOWED_BYTES, MAX_EXPANSION * file.stat().st_size):
        raise UntrustedFileError(
            f"unpacks to {unpacked >> 20} MiB, over {MAX_EXPANSION} times its size"
        )


class PickledArrayError(UntrustedFileError):
    """An array that could only be read by unpickling, which can execute arbitrary code."""


def read_safetensors_metadata(file: Path) -> Mapping[str, str]:
    """Return the metadata in a safetensors file's header, or an empty mapping.

    Raises UntrustedFileError.
    """
    from safetensors import safe_open

    try:
        with safe_open(file, framework="np") as opened:
            return dict(opened.metadata() or {})
    except Exception as error:  # safetensors raises exceptions of its own
        raise UntrustedFileError(error) from error


def _read_bounded(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MAX_TEXT_BYTES + 1)


def _check_size(text: str | bytes) -> None:
    if len(text) > MAX_TEXT_BYTES:
        raise UntrustedFileError(f"is larger than {MAX_TEXT_BYTES // 2**20} MiB")


def _check_depth(value: Any, most: int = 0) -> None:
    """Raise UntrustedFileError if a value is nested too deep or, if `most` is set, has more parts.

    It does not recurse, since the depth of recursion is what it bounds.
    """
    level, depth, count = [value], 0, 0
    while level:
        if depth > MAX_DEPTH:
            raise UntrustedFileError(f"is nested deeper than {MAX_DEPTH} levels")
        outer = [one for one in level if isinstance(one, dict | list)]
        count += sum(map(len, outer))
        if most and count > most:
            raise UntrustedFileError(f"says more than {most} values")
        level = [one for inner in outer for one in _inside(inner)]
        depth += 1


def _inside(outer: dict[Any, Any] | list[Any]) -> list[Any]:
    return list(outer.values()) if isinstance(outer, dict) else outer
