"""Finds and reads the YAML files of `conf/`: presets, method presets and sweeps."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from copy import deepcopy
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from fedapp.core.errors import ConfigError, name_suggestion
from fedapp.core.untrusted_files import UntrustedFileError, parse_yaml

_READ: ContextVar[dict[Path, str] | None] = ContextVar("_READ", default=None)
Scalar = str | int | float | bool
"""Types of a setting's value: those that a Flower run config can carry."""

_HERE = Path(__file__).resolve().parents[1]
# A wheel carries conf/ inside the package; a checkout and a Flower app bundle have it beside.
CONF = _HERE / "conf" if (_HERE / "conf").is_dir() else _HERE.parent / "conf"
DEMO = "demo"
"""Preset of `fedapp demo` and `make demo`, and in pyproject.toml that of a plain `flwr run .`."""
IN_MEMORY = CONF / "python" / "in_memory.yaml"
"""Default preset of a run on data in memory, or on a folder of images."""


def presets() -> list[str]:
    """Return the names of the presets in `conf/`, sorted."""
    return sorted(path.stem for path in CONF.glob("*.yaml"))


def method_presets() -> list[str]:
    """Return the names of the method presets in `conf/methods/`, sorted."""
    return sorted(path.stem for path in (CONF / "methods").glob("*.yaml"))


def sweeps() -> dict[str, Path]:
    """Return the file of each grid in `conf/sweeps/`, sorted by the name of the grid.

    A file is either one grid, named like the file, or has several grids by their names. A key that
    begins with a dot is no grid.
    """
    found: dict[str, Path] = {}
    for path in (CONF / "sweeps").glob("*.yaml"):
        keys = re.findall(r"^(\w+):", path.read_text(encoding="utf-8"), re.MULTILINE)
        found |= dict.fromkeys([path.stem] if "methods" in keys else keys, path)
    return dict(sorted(found.items()))


def preset_path(preset: str) -> Path:
    """Return the file of a preset, by name or by path. Raises ConfigError where there is none."""
    path = CONF / f"{preset}.yaml" if preset in presets() else yaml_path(preset)
    if path is not None:
        return path
    if (settings := Path(preset).expanduser() / "config.yaml").is_file():
        raise ConfigError(f"preset '{preset}': a run's folder; name the file in it: {settings}")
    if preset in sweeps():
        raise ConfigError(f"preset '{preset}': is a grid of runs: fedapp compare {preset}")
    hint = name_suggestion(preset, presets())
    raise ConfigError(f"preset '{preset}': no such preset and no such YAML file; {hint}")


def method_path(name: str) -> Path:
    """Return the file of a method preset, by name or by path. Raises ConfigError likewise."""
    path = CONF / "methods" / f"{name}.yaml" if name in method_presets() else yaml_path(name)
    if path is not None:
        return path
    hint = name_suggestion(name, method_presets())
    raise ConfigError(f"method.preset '{name}': no such method preset and no such file; {hint}")


def yaml_path(text: str) -> Path | None:
    """Return the YAML file that a text names by its path; None where it names none."""
    path = Path(text).expanduser()
    return path if path.suffix in {".yaml", ".yml"} and path.is_file() else None


def independent_of_folder(named: str, near: Path = Path()) -> str:
    """Return a reference to a preset that holds in every working directory.

    The name of a preset stays as it is; a path becomes absolute. near: the folder of the file in
    which the reference stands; a path is looked for there first.
    """
    path = yaml_path(str(near / Path(named).expanduser())) or yaml_path(named)
    return named if path is None else str(path.absolute())


def first_comment(path: Path) -> str:
    """Return the text of the comment in the first line of a file."""
    return path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")


def source_of(path: Path) -> str:
    """Return the name of a file in error messages."""
    inside = path.is_relative_to(CONF)
    return f"conf/{path.relative_to(CONF).as_posix()}" if inside else str(path)


@contextmanager
def reading_files_once() -> Iterator[None]:
    """Read every YAML file at most once inside this block.

    So a file that changes after it was checked has no effect. A block inside another one shares its
    files.
    """
    if _READ.get() is not None:
        yield
        return
    token = _READ.set({})
    try:
        yield
    finally:
        _READ.reset(token)


def _text_of(path: Path) -> str:
    read = _READ.get()
    if read is None:
        return path.read_text(encoding="utf-8")
    if path not in read:
        read[path] = path.read_text(encoding="utf-8")
    return read[path]


def read_yaml(path: Path, text: str | None = None) -> dict[str, Any]:
    """Return the mapping in a YAML 1.2 file. Raises ConfigError where the file holds none.

    text: the content of the file, where it was read already.
    """
    try:
        plain = deepcopy(_parsed(_text_of(path) if text is None else text))
    except UntrustedFileError as error:
        line = f", line {error.line}" if error.line else ""
        remedy = "" if error.line else "; correct it"
        raise ConfigError(f"{source_of(path)}{line}: {error}{remedy}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{source_of(path)}: cannot be read ({error}); give a YAML file"
        ) from None
    if not isinstance(plain, dict):
        raise ConfigError(f"{source_of(path)}: must hold groups of keys, such as data: and method:")
    return plain


@lru_cache(maxsize=16)  # a process that simulates many sites reads the same file for each
def _parsed(text: str) -> Any:
    return parse_yaml(text, _Yaml12)


def parse_scalar(text: str) -> Scalar:
    """Return the value of `text` as a YAML scalar: a number, true, false, or else a text."""
    loader = _Yaml12("")
    if text[:1] in {"'", '"'} and text[-1] == text[0] and len(text) > 1:
        return text[1:-1]
    tag = loader.resolve(yaml.ScalarNode, text, (True, False))
    if tag == "tag:yaml.org,2002:null":
        return ""
    try:
        value: Scalar = loader.construct_object(yaml.ScalarNode(tag, text))
    except ValueError:  # more digits than Python converts: stays a text, and is refused as one
        return text
    return value


class _Yaml12(yaml.SafeLoader):  # type: ignore[misc]
    """Safe YAML with YAML 1.2's scalars: 1e-4 is a number, 010 is ten, `on` and 1:30 are texts."""

    # A fresh table: PyYAML's own holds YAML 1.1's rules, keyed by first character.
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """Return the mapping. A repeated key is refused; YAML would keep its last value."""
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(
                    None, None, "a key must be a plain name", key.start_mark
                )
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key '{key.value}' stands twice; keep one", key.start_mark
                )
            seen.add(key.value)
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping


for _tag, _pattern, _first in (
    ("null", r"~|null|", ["~", "n", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+", list("-+0123456789")),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", list("-+.0123456789")),
    ("float", r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", list("-+.")),
):
    _Yaml12.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(f"^({_pattern})$"), _first
    )
# PyYAML's own takes 010 for eight.
_Yaml12.add_constructor("tag:yaml.org,2002:int", lambda _, node: int(node.value))
