"""Reference text made from the code itself, as Markdown: it cannot say what the code does not.

Settings, networks and methods with type, range and default, and the commands.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from inspect import getdoc
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import click
import typer
from annotated_types import Ge, Gt, Le, Lt
from pydantic.fields import FieldInfo
from sphinx.pycode import ModuleAnalyzer

from fedapp.cli import app
from fedapp.experiment.experiment import Experiment
from fedapp.experiment.preset_files import first_comment, method_path, method_presets, read_yaml
from fedapp.learn.networks import network_class, network_names
from fedapp.methods import method_class, method_names

_SIGNS = {Ge: "≥", Gt: ">", Le: "≤", Lt: "<"}
_HEAD = "| setting | type and range | default | |\n|---|---|---|---|"


def settings() -> str:
    """Return every setting by group, but those of methods and networks."""
    groups = {f.name: t for f, t in _typed(Experiment) if isinstance(t, type) and is_dataclass(t)}
    seed = _row("seed", "whole number, ≥ 0", "0", "Every random draw follows from it.")
    text = [f"## seed\n\n{_HEAD}\n{seed}"]
    for group, kind in groups.items():
        doc = (getdoc(kind) or "").partition("\n")[0]
        text.append(f"\n## {group}\n\n{doc}\n\n{_table(kind, group)}")
    return "\n".join(text)


def networks() -> str:
    """Return every network's settings, by its name."""
    return "\n".join(
        f"\n## {name}\n\n{getdoc(kind)}\n\n{_table(kind, 'model')}"
        for name in network_names()
        for kind in [network_class(name)]
    )


def methods() -> str:
    """Return every method: what its module says, its presets, its settings, its class."""
    return "\n".join(_method(name) for name in method_names())


def commands() -> str:
    """Return every command of `fedapp` with its arguments and options."""
    group = typer.main.get_command(app)
    assert isinstance(group, click.Group)
    return "\n".join(_command(name, command) for name, command in sorted(group.commands.items()))


# --- settings -------------------------------------------------------------------------------------


def _typed(kind: type) -> Iterator[tuple[Field[Any], Any]]:
    """Yield a dataclass's fields with their whole types."""
    hints = get_type_hints(kind, include_extras=True)
    return ((field, hints[field.name]) for field in fields(kind))


def _table(kind: type, group: str) -> str:
    """Return a table of the fields of a class of settings; where it has none, say so."""
    docs: dict[str, Sequence[str]] = {}
    for base in reversed([base for base in kind.__mro__ if base.__module__.startswith("fedapp")]):
        found = ModuleAnalyzer.for_module(base.__module__).find_attr_docs()
        docs |= {name: lines for (owner, name), lines in found.items() if owner == base.__name__}
    rows = []
    for field, hint in _typed(kind):
        given = field.default
        if isinstance(given, FieldInfo):
            given = given.default
        default = "" if given is MISSING else json.dumps(given)  # as YAML spells it
        said = " ".join(docs.get(field.name, ())).strip()
        rows.append(_row(f"{group}.{field.name}", _kind(hint), default, said))
    if not rows:
        return "It has no settings of its own."
    return "\n".join([_HEAD, *rows])


def _row(name: str, kind: str, default: str, said: str) -> str:
    shown = f"`{default}`" if default else ""
    return f"| `{name}` | {kind} | {shown} | {_cell(said)} |"


def _kind(hint: Any) -> str:
    """Return a type in words, with its range."""
    if get_origin(hint) is Annotated:
        base, *notes = get_args(hint)
        parts = [note for n in notes for note in (n.metadata if isinstance(n, FieldInfo) else [n])]
        return ", ".join(filter(None, [_kind(base), _range(parts)]))
    if get_origin(hint) is Literal:
        return " or ".join(f"`{choice}`" for choice in get_args(hint))
    words = {int: "whole number", float: "number", str: "text", bool: "true or false"}
    return words.get(hint, f"`{hint}`")


def _range(parts: Sequence[object]) -> str:
    """Return the range of a number: an interval, or the one end that it has."""
    ends = {
        kind: f"{getattr(part, kind.__name__.lower()):,}"
        for part in parts
        for kind in _SIGNS
        if isinstance(part, kind)
    }
    if len(ends) == 2:
        (low, least), (high, most) = sorted(ends.items(), key=lambda end: end[0] in (Le, Lt))
        return f"in {'[' if low is Ge else '('}{least}, {most}{']' if high is Le else ')'}"
    return " ".join(f"{_SIGNS[kind]} {end}" for kind, end in ends.items())


# --- methods --------------------------------------------------------------------------------------


def _method(name: str) -> str:
    kind = method_class(name)
    module = kind.__module__
    presets = [p for p in method_presets() if _method_of(p) == name]
    listed = "\n".join(f"- `method.preset={p}`: {first_comment(method_path(p))}" for p in presets)
    text = getdoc(sys.modules[module])
    where = f"```{{py:class}} {kind.__name__}\n:module: {module}\n\n{getdoc(kind)}\n```"
    return f"\n## {name}\n\n{text}\n\n{listed}\n\n{where}\n\n{_table(kind, 'method')}\n"


def _method_of(preset: str) -> str:
    return str(read_yaml(method_path(preset))["method"]["name"])


# --- commands -------------------------------------------------------------------------------------


def _command(name: str, command: click.Command) -> str:
    context = click.Context(command, info_name=f"fedapp {name}")
    rows = [
        f"| `{_spelt(p)}` | {_cell(getattr(p, 'help', None) or '')} |"
        for p in command.params
        if not getattr(p, "hidden", False)
    ]
    said = (command.help or "").replace("\n\n", "\n").replace("\n", "\n\n")
    table = "\n".join(["| | |\n|---|---|", *rows]) if rows else ""
    return f"\n## fedapp {name}\n\n{said}\n\n```\n{command.get_usage(context)}\n```\n\n{table}\n"


def _spelt(parameter: click.Parameter) -> str:
    """Return an argument's name, or an option as it is typed."""
    if isinstance(parameter, click.Argument):
        return parameter.make_metavar(click.Context(click.Command("fedapp")))
    return ", ".join([*parameter.opts, *parameter.secondary_opts])


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
