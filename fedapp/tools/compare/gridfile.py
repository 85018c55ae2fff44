"""A grid's YAML as it stands in the file: its shape, and its faults one line each."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, ValidationError

from fedapp.experiment.experiment import Experiment
from fedapp.ground.errors import ConfigError, nearest
from fedapp.ground.settings import NonNegative


def _one_value(value: object) -> object:
    if isinstance(value, str | int | float):
        return value
    raise ValueError("must be one number, text, true or false; write keys with their group, dotted")


Value = Annotated[Any, PlainValidator(_one_value)]
Values = dict[str, Value]
Judged = Literal["validation", "last"]


class Paper(BaseModel):
    """Where the paper's numbers are: the rows of conf/paper_tables.csv with these values.

    setting: empty where the grid's setting has the same name.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    table: str
    dataset: str
    setting: str = ""
    paper: str = "UM-pFSSL"


class SettingFile(BaseModel):
    """A setting: three keys of its own, all others are overrides.

    methods: label -> overrides that this method has in this setting only.
    """

    model_config = ConfigDict(extra="allow", strict=True)

    preset: str = ""
    paper: Paper | None = None
    methods: dict[str, Values] = {}
    __pydantic_extra__: dict[str, Value]


class Tune(BaseModel):
    """What `fedapp tune` tries: for each method all combinations of its values.

    budget: combinations of every method, no more and no fewer, so that none is tuned harder; a
    method that is to stay as it is has an empty mapping.
    settings: of the grid; empty: all. each_setting: every method is judged in each setting by
    itself, and has values of its own there; otherwise by its mean over all, with the same values
    everywhere. seeds: none of the comparison's own.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    budget: Annotated[int, Field(ge=1)]
    values: dict[str, dict[str, Annotated[list[Value], Field(min_length=1)]]]
    settings: list[str] = []
    each_setting: bool = False
    seeds: Annotated[list[NonNegative], Field(min_length=1)]


class GridFile(BaseModel):
    """A grid. methods: label -> overrides; a plain list of labels is read as one without any.

    judged: at which round every run stands, in tables and for tuning: the one that is best on
    validation images, or the last.

    reference: label of the method that the others are compared with; empty: the report's choice.
    tuned_from: grid whose tuning this one's methods have their values from; empty: none.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    title: str = ""
    preset: str = ""
    common: Values = Field(default={}, alias="set")
    settings: dict[str, SettingFile] = {}
    methods: dict[str, Values]
    seeds: Annotated[list[NonNegative], Field(min_length=1)] = [0, 1, 2]
    judged: Judged = "validation"
    paper: Paper | None = None
    tune: Tune | None = None
    reference: str = ""
    tuned_from: str = ""


def is_preset(plain: Mapping[str, Any]) -> bool:
    """Whether a file describes one experiment: a preset has other keys than a grid."""
    groups = {field.name for field in fields(Experiment)}
    return plain.keys().isdisjoint(_KEYS) and not plain.keys().isdisjoint(groups)


def one_of(several: Mapping[str, Any], name: str, origin: str) -> dict[str, Any]:
    """Return one of a file's grids. Raises ConfigError where it is like one that is not there."""
    own = dict(several[name])
    if (other := own.pop("like", None)) is None:
        return own
    if other not in several:
        hint = nearest(other, several)
        raise ConfigError(f"{origin}: like = {other!r}: no such grid here; {hint}")
    base = one_of(several, other, origin)
    both = [
        key
        for key in _BY_NAME
        if isinstance(base.get(key), Mapping) and isinstance(own.get(key), Mapping)
    ]
    return {**base, **own, **{key: {**base[key], **own[key]} for key in both}}


def parse(plain: Mapping[str, Any], origin: str) -> GridFile:
    """Return the file's content, checked in shape. Raises ConfigError, a line for each problem."""
    values = dict(plain)
    if isinstance(listed := values.get("methods"), list):
        values["methods"] = {str(label): None for label in listed}
        if len(values["methods"]) < len(listed):
            raise ConfigError(f"{origin}: methods = {listed!r}: one stands twice; keep one")
    for group in ("settings", "methods"):  # a label with nothing after the colon
        if isinstance(named := values.get(group), Mapping):
            values[group] = {label: {} if v is None else v for label, v in named.items()}
    try:
        return GridFile.model_validate(values)
    except ValidationError as error:
        raise ConfigError("\n".join(dict.fromkeys(_lines(error, origin)))) from None


def _lines(error: ValidationError, origin: str) -> Iterator[str]:
    """Yield one line for each problem: where, key, value, rule."""
    for found in error.errors():
        *groups, key = (str(part) for part in found["loc"] if part != "[key]")
        where = ": ".join([origin, *groups])
        rule = re.sub(r"^(Input|Value error,)\s+", "", found["msg"]).removeprefix("should ")
        rule = f"must {rule}" if rule.startswith("be ") else rule
        if found["type"] == "missing":
            yield f"{where}: {key}: is missing; give it"
            continue
        if found["type"] == "extra_forbidden":
            valid = Paper.model_fields if groups else _KEYS
            rule = f"unknown key; {nearest(key, valid)}"
        elif found["loc"][-1] == "[key]":
            rule = "a name must be text: put it in quotes"
        rule = _RULES.get((key, found["type"]), rule)
        yield f"{where}: {key} = {found['input']!r}: {rule}"


_RULES = {
    ("methods", "dict_type"): "must be a list of method presets, or a mapping of labels",
    ("seeds", "list_type"): "must be a list, such as [0, 1, 2]",
    ("seeds", "too_short"): "must name at least one",
}
_BY_NAME = ("set", "settings", "methods")
"""What a grid that is like another one adds to that one's, name by name."""
_KEYS = [entry.alias or key for key, entry in GridFile.model_fields.items()]
