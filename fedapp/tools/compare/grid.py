"""A grid: what `fedapp compare` runs, methods x seeds x settings, from YAML and the command line.

A grid is typed like a preset, and unknown keys are refused. Every problem is one line with the
place, the key, the value and the rule.

    title: text
    preset: fashion_mnist_small            # of the data: its name, or a YAML file
    set: {rounds.num_rounds: 10}           # for all cells
    settings: {"alpha=5": {split.dirichlet_alpha: 5.0}}   # also: `preset`, `paper`, `methods`
    methods: [fixavg, um_pfssl]            # method presets, and `mix`; or label: overrides
    seeds: [0, 1, 2]
    judged: last                           # at the last round, not the one chosen by validation
    paper: {table: "I", dataset: FashionMNIST}            # rows of conf/paper_tables.csv
    tune: {budget: 2, seeds: [9], values: {fixavg: {training.learning_rate: [0.01, 0.1]}}}
    tuned_from: results_cifar10            # instead of `tune`: a grid of conf/sweeps that has one
    reference: um_pfssl                    # the method that a report compares the others with

A file of conf/sweeps may hold several grids by name. `like: NAME` takes everything that a grid does
not say from another grid of the same file; its `set`, `settings` and `methods` are merged with the
other's, name by name. A name that begins with a dot is a base for others and no grid to run.

Only `make results` uses `tuned_from` (bench/study.py). The values that the other grid's tuning
chose for a method go to the method with the same label here, or else to all with the same preset.
They win over `set` and the setting, but not over the method's own values, so that an ablation stays
an ablation.

A method preset is one of conf/methods or a YAML file, whose label is its name without the ending.
Files are searched beside the grid, then in the current folder.

A method with `answer: common` or `answer: tuned` is scored by that answer of its runs, whichever
answer the method uses: `fedavg: {method.preset: fedavg_ft, answer: common}`. If another method of
the grid has the same settings, both share its cells, and nothing is run twice.

The later of these wins: `set`, the setting, the method, the method in that setting. Overrides on
the command line add to `set`; they cannot change what the cells vary.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, ValidationError

from fedapp.core.errors import ConfigError, name_suggestion
from fedapp.core.settings import NonNegative
from fedapp.experiment.experiment import Experiment
from fedapp.experiment.preset_files import (
    Scalar,
    independent_of_folder,
    method_presets,
    preset_path,
    presets,
    read_yaml,
    source_of,
    sweeps,
    yaml_path,
)

ANSWER = "answer"
"""Key of a method in a grid: the answer of its runs that it is scored by, one of `SCORED`."""
SCORED = ("common", "tuned")
"""Answers that a method can be scored by: the common model, and a site's own fine-tuned one."""
MIX = "mix"
"""Label of the paper's Mix, which is no experiment but an ensemble of three final models."""
PARENTS = ("fixavg", "fixprox", "fixbn")
"""Method presets whose models Mix uses."""

_CHOOSERS = ("method.preset", "method.name")
_RESERVED = {
    "seed": "is varied by the cells: give `seeds`, or --seeds",
    "preset": "is no override: name another preset in the grid or a setting",
    **dict.fromkeys(_CHOOSERS, "is varied by the cells: give `methods`, or --methods"),
    "runtime.out": "is the comparison's own: give --out",
    "runtime.run_name": "is the comparison's own: leave it out",
    "runtime.resume": "is the comparison's own: leave it out, cells go on by themselves",
    "runtime.models": "is the comparison's own: run a cell's config.yaml with it to have models",
}


def _one_value(value: object) -> object:
    if isinstance(value, str | int | float):
        return value
    raise ValueError("must be one number, text, true or false; write keys with their group, dotted")


Value = Annotated[Any, PlainValidator(_one_value)]
Values = dict[str, Value]
Judged = Literal["validation", "last"]


class Paper(BaseModel):
    """Which rows of conf/paper_tables.csv hold the paper's numbers for a setting.

    setting: its name in that file; empty: the same as in the grid.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    table: str
    dataset: str
    setting: str = ""
    paper: str = "UM-pFSSL"

    @property
    def described(self) -> dict[str, Any]:
        """The value as it stands in a grid's file."""
        return self.model_dump(exclude_defaults=True)


class SettingFile(BaseModel):
    """A setting in a grid's file. All keys but the three below are overrides.

    methods: label -> overrides of that method in this setting alone.
    """

    model_config = ConfigDict(extra="allow", strict=True)

    preset: str = ""
    paper: Paper | None = None
    methods: dict[str, Values] = {}
    __pydantic_extra__: dict[str, Value]


class Tune(BaseModel):
    """What `fedapp compare --tune` tries: for each method all combinations of its values.

    budget: the number of combinations of every method, so that none is tuned harder than another. A
    method that is not tuned has an empty mapping. settings: of the grid; empty: all. each_setting:
    whether each setting gets values of its own; else a method has the same values in all settings,
    judged by its mean over them. seeds: of the tuning runs, none of the comparison's.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    budget: Annotated[int, Field(ge=1)]
    values: dict[str, dict[str, Annotated[list[Value], Field(min_length=1)]]]
    settings: list[str] = []
    each_setting: bool = False
    seeds: Annotated[list[NonNegative], Field(min_length=1)]


class GridFile(BaseModel):
    """The content of a grid's file.

    methods: label -> overrides; a plain list of labels means no overrides. judged: the round that
    counts in tables and for tuning: the best on validation images, or the last. reference: label of
    the method that others are compared with; empty: the report chooses. tuned_from: name of the
    grid whose tuning gave this one's values; empty: none.
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


@dataclass(frozen=True)
class Setting:
    """One setting: a data preset, its overrides, and overrides of single methods by label."""

    name: str
    preset: str
    overrides: Mapping[str, Scalar]
    paper: Paper | None = None
    methods: Mapping[str, Mapping[str, Scalar]] = field(default_factory=dict)

    def to_plain(self, papers: bool) -> dict[str, Any]:
        """Return it as it stands in a grid's file. papers: with its `paper`."""
        methods = {label: dict(changes) for label, changes in self.methods.items() if changes}
        return {
            "preset": self.preset,
            **self.overrides,
            **({"paper": self.paper.described} if papers and self.paper else {}),
            **({"methods": methods} if methods else {}),
        }


@dataclass(frozen=True)
class Grid:
    """A grid that was read: everything to run, by name and in order. No experiment is built yet.

    origin: where it is from, for errors. common: the overrides of `set`; given: those of the
    command line. methods: label -> overrides, with `method.preset` or `method.name`, and perhaps
    with `ANSWER`; `mix` has none. tune: what `--tune` tries. judged, reference, tuned_from: as in
    `GridFile`.
    """

    name: str
    origin: str
    title: str
    common: Mapping[str, Scalar]
    given: Mapping[str, Scalar]
    settings: tuple[Setting, ...]
    methods: Mapping[str, Mapping[str, Scalar]]
    seeds: tuple[int, ...]
    judged: Judged = "validation"
    tune: Tune | None = None
    reference: str = ""
    tuned_from: str = ""

    def overrides(self, setting: Setting, method: str) -> dict[str, Scalar]:
        """Return all overrides of the setting's preset for this method."""
        own = {key: value for key, value in self.methods[method].items() if key != ANSWER}
        here = setting.methods.get(method, {})
        return {**self.common, **setting.overrides, **own, **here, **self.given}

    def where(self, key: str, setting: Setting, method: str) -> str:
        """Return the place of an override, for errors."""
        if key in self.given:
            return "command line"
        if key in setting.methods.get(method, {}):
            return f"{self.origin}: settings: {setting.name}: methods: {method}"
        if key in self.methods[method]:
            return f"{self.origin}: methods: {method}"
        inside = f"settings: {setting.name}" if key in setting.overrides else "set"
        return f"{self.origin}: {inside}"

    def parents(self) -> tuple[str, ...]:
        """Return the labels of the three methods that Mix uses, in the order of `PARENTS`."""
        return tuple(self._having(preset)[0] for preset in PARENTS)

    def to_plain(self, papers: bool = False) -> dict[str, Any]:
        """Return the resolved grid as plain values. papers: each setting with its `paper`."""
        return {
            "title": self.title,
            "set": {**self.common, **self.given},
            "settings": {s.name: s.to_plain(papers) for s in self.settings},
            "methods": {label: dict(changes) for label, changes in self.methods.items()},
            "seeds": list(self.seeds),
        }

    def to_file(self) -> dict[str, Any]:
        """Return the grid as the content of a YAML file, without what tunes it."""
        judged = {"judged": self.judged} if self.judged != Grid.judged else {}
        reference = {"reference": self.reference} if self.reference else {}
        return {**self.to_plain(papers=True), **judged, **reference}

    def problems(self) -> list[str]:
        """Return the problems that no single value shows, one line each."""
        return [*self._reserved(), *self._of_methods(), *self._of_names(), *self._of_keys()]

    def _reserved(self) -> list[str]:
        layers = {f"{self.origin}: set": self.common}
        layers |= {f"{self.origin}: settings: {s.name}": s.overrides for s in self.settings}
        layers |= {
            f"{self.origin}: methods: {label}": {k: v for k, v in c.items() if k not in _CHOOSERS}
            for label, c in self.methods.items()
        }
        layers |= {
            f"{self.origin}: settings: {s.name}: methods: {label}": changes
            for s in self.settings
            for label, changes in s.methods.items()
        }
        layers["command line"] = self.given
        lines = [
            f"{where}: {key} = {layer[key]!r}: {_RESERVED[key]}"
            for where, layer in layers.items()
            for key in layer
            if key in _RESERVED
        ]
        varied = {key for s in self.settings for key in s.overrides}
        every = [self.methods, *(s.methods for s in self.settings)]
        varied |= {key for methods in every for changes in methods.values() for key in changes}
        rule = "is what the cells vary: change the grid, or leave it out"
        taken = [k for k in self.given if k in varied and k not in _RESERVED]
        return lines + [f"command line: {k} = {self.given[k]!r}: {rule}" for k in taken]

    def _of_methods(self) -> list[str]:
        lines = []
        for label, changes in self.methods.items():
            where = f"{self.origin}: methods: {label}"
            preset = changes.get("method.preset")
            if changes.get(ANSWER, SCORED[0]) not in SCORED:
                rule = f"must be {' or '.join(SCORED)}"
                lines.append(f"{where}: {ANSWER} = {changes[ANSWER]!r}: {rule}")
            if label == MIX:
                rule = "has no settings of its own: leave them out"
                lines += [f"{where}: {key}: {rule}" for key in changes]
                lacking = [name for name in PARENTS if len(self._having(name)) != 1]
                rule = "must be among the methods, once: mix asks its models"
                lines += [f"{where}: {name} {rule}" for name in lacking]
            elif preset is None and "method.name" not in changes:
                hint = name_suggestion(label, [*method_presets(), MIX])
                lines.append(f"{where}: no such method preset, and method.preset is absent; {hint}")
            elif preset is not None and not _is_method(preset):
                hint = name_suggestion(str(preset), method_presets())
                lines.append(f"{where}: method.preset = {preset!r}: no such method preset; {hint}")
        if not self.methods:
            valid = ", ".join([*method_presets(), MIX])
            lines.append(f"{self.origin}: methods: name at least one; valid: {valid}")
        return lines

    def _of_names(self) -> list[str]:
        lines = [
            f"{self.origin}: settings: {s.name}: names no preset, and the grid has none; "
            f"valid: {', '.join(presets())}"
            for s in self.settings
            if not s.preset
        ]
        if len(set(self.seeds)) < len(self.seeds):
            lines.append(f"{self.origin}: seeds = {list(self.seeds)}: one stands twice; keep one")
        return lines + [
            f"{self.origin}: {label!r}: a name must be 1 to 60 printable characters"
            for label in [*(s.name for s in self.settings), *self.methods]
            if not (0 < len(label) <= 60 and label.isprintable() and label == label.strip())
        ]

    def _of_keys(self) -> list[str]:
        lines = []
        if self.reference and self.reference not in self.methods:
            hint = name_suggestion(self.reference, list(self.methods))
            lines.append(f"{self.origin}: reference = {self.reference!r}: no such method; {hint}")
        if self.tuned_from and self.tuned_from not in sweeps():
            hint = name_suggestion(self.tuned_from, sweeps())
            lines.append(f"{self.origin}: tuned_from = {self.tuned_from!r}: no such grid; {hint}")
        if self.tuned_from and self.tune:
            rule = "the grid has a `tune` of its own: keep one"
            lines.append(f"{self.origin}: tuned_from = {self.tuned_from!r}: {rule}")
        return lines

    def _having(self, preset: str) -> list[str]:
        return [label for label, c in self.methods.items() if c.get("method.preset") == preset]


def read_grid(
    name: str,
    given: Mapping[str, Scalar] = MappingProxyType({}),
    methods: Sequence[str] = (),
    seeds: Sequence[int] = (),
    settings: Sequence[str] = (),
) -> Grid:
    """Return the grid of a YAML file, of a name in `conf/sweeps/`, or of a data preset alone.

    given: overrides for all cells. methods: labels of the grid, or method presets, to run instead
    of all the grid's methods. seeds: instead of the grid's; a data preset alone has 0, 1, 2.
    settings: the names of those to run; empty: all. Raises ConfigError, one line for each problem.
    """
    shipped = sweeps()
    if name in shipped:
        file, (said, origin) = shipped[name], _shipped(name, shipped[name])
        return grid_of(said, name, origin, file.parent, given, methods, seeds, settings)
    path = yaml_path(name)
    plain: Mapping[str, Any] = {} if path is None else read_yaml(path)
    inside = [own for own, its in shipped.items() if path and its == path.absolute()]
    if path is not None and path.stem not in (inside or [path.stem]):
        raise ConfigError(f"{source_of(path)}: holds several grids: name one: {', '.join(inside)}")
    if path is None and name not in presets():
        hint = name_suggestion(name, [*shipped, *presets()])
        raise ConfigError(f"grid '{name}': no such YAML file, sweep or preset; {hint}")
    if path is None or is_preset(plain):
        if not methods:
            valid = ", ".join([*method_presets(), MIX])
            raise ConfigError(
                f"'{name}' is a data preset: say what to compare on it, such as "
                f"--methods um_pfssl,fixavg; valid: {valid}"
            )
        path = preset_path(name)
        origin, plain = (
            f"preset {name}",
            {"preset": independent_of_folder(name), "methods": list(methods)},
        )
    else:
        origin = source_of(path)
    return grid_of(plain, path.stem, origin, path.parent, given, methods, seeds, settings)


def _shipped(name: str, path: Path) -> tuple[Mapping[str, Any], str]:
    """Return the content of a grid of conf/sweeps, and its name in errors."""
    plain, origin = read_yaml(path), source_of(path)
    if "methods" in plain:
        return plain, origin
    origin = f"{origin}: {name}"
    return one_of(plain, name, origin), origin


def grid_of(
    plain: Mapping[str, Any],
    name: str,
    origin: str,
    near: Path = Path(),
    given: Mapping[str, Scalar] = MappingProxyType({}),
    methods: Sequence[str] = (),
    seeds: Sequence[int] = (),
    settings: Sequence[str] = (),
) -> Grid:
    """Return the grid that the content of a file describes.

    origin: its name in errors. near: the folder that is searched first for files that it names.
    given, methods, seeds, settings: as of `read_grid`. Raises ConfigError, one line for each
    problem.
    """
    file = parse(plain, origin)
    listed = _by_label(file.methods, near)
    named = _chosen(listed, methods) if methods else listed
    found = file.settings or {"base": SettingFile()}
    if unknown := [label for label in settings if label not in found]:
        hint = name_suggestion(unknown[0], list(found))
        raise ConfigError(f"--setting: {unknown[0]!r}: no such setting of {origin}; {hint}")
    for label, setting in found.items():
        for own in setting.methods:
            if own not in [*listed, *named]:
                where = f"{origin}: settings: {label}: methods: {own!r}"
                raise ConfigError(
                    f"{where}: no such method here; {name_suggestion(own, list(listed))}"
                )
    tune = file.tune
    if tune and settings:  # those of the command line replace its own
        tune = tune.model_copy(update={"settings": []})
    grid = Grid(
        name=name,
        origin=origin,
        title=file.title or name,
        common=file.common,
        given=given,
        settings=tuple(
            Setting(
                label,
                independent_of_folder(s.preset or file.preset, near),
                s.model_extra or {},
                s.paper or file.paper,
                {own: changes for own, changes in s.methods.items() if own in named},
            )
            for label, s in found.items()
            if label in settings or not settings
        ),
        methods={label: _with_preset(label, changes) for label, changes in named.items()},
        seeds=tuple(seeds or file.seeds),
        judged=file.judged,
        tune=tune,
        # The reference need not be among methods that were chosen on the command line.
        reference=file.reference if not methods or file.reference in named else "",
        tuned_from=file.tuned_from,
    )
    if lines := grid.problems():
        raise ConfigError("\n".join(lines))
    return grid


def is_preset(plain: Mapping[str, Any]) -> bool:
    """Return whether a file is a preset, which has other keys than a grid."""
    groups = {field.name for field in fields(Experiment)}
    return plain.keys().isdisjoint(_KEYS) and not plain.keys().isdisjoint(groups)


def one_of(several: Mapping[str, Any], name: str, origin: str) -> dict[str, Any]:
    """Return one grid of a file, merged with its `like`. Raises ConfigError if that is missing."""
    own = dict(several[name])
    if (other := own.pop("like", None)) is None:
        return own
    if other not in several:
        hint = name_suggestion(other, several)
        raise ConfigError(f"{origin}: like = {other!r}: no such grid here; {hint}")
    base = one_of(several, other, origin)
    both = [
        key
        for key in _BY_NAME
        if isinstance(base.get(key), Mapping) and isinstance(own.get(key), Mapping)
    ]
    return {**base, **own, **{key: {**base[key], **own[key]} for key in both}}


def parse(plain: Mapping[str, Any], origin: str) -> GridFile:
    """Return the checked content of a file. Raises ConfigError, one line for each problem."""
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
    """Yield one line for each problem: place, key, value, rule."""
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
            rule = f"unknown key; {name_suggestion(key, valid)}"
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
"""Keys that `like` merges name by name."""
_KEYS = [entry.alias or key for key, entry in GridFile.model_fields.items()]


def _chosen(named: Mapping[str, Any], labels: Sequence[str]) -> dict[str, Any]:
    """Return the methods with these labels, of the grid or from the method presets."""
    valid = [*dict.fromkeys([*named, *method_presets(), MIX])]
    for label in labels:
        if label not in valid and yaml_path(label) is None:
            raise ConfigError(
                f"--methods: {label!r}: no such method; {name_suggestion(label, valid)}"
            )
    return _by_label({label: named.get(label, {}) for label in labels}, Path())


def _by_label(named: Mapping[str, Any], near: Path) -> dict[str, Any]:
    """Return the methods with absolute paths, and labels for those that are named by a file."""
    found: dict[str, Any] = {}
    for label, changes in named.items():
        path = yaml_path(independent_of_folder(label, near))
        if path is not None and not changes:
            label, changes = path.stem, {"method.preset": str(path)}
        elif "method.preset" in changes:
            changes = {
                **changes,
                "method.preset": independent_of_folder(str(changes["method.preset"]), near),
            }
        if label in found:
            raise ConfigError(f"methods: {label!r} stands twice; give one of them another label")
        found[label] = changes
    return found


def _is_method(preset: Scalar) -> bool:
    return preset in method_presets() or yaml_path(str(preset)) is not None


def _with_preset(label: str, changes: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return a method's overrides with `method.preset`, which may follow from its label."""
    if label in method_presets() and not set(_CHOOSERS) & changes.keys():
        return {"method.preset": label, **changes}
    return dict(changes)


def labels_of(text: str) -> list[str]:
    """Split `--methods`: "um_pfssl, fixavg" gives two labels."""
    return [label.strip() for label in text.split(",") if label.strip()]


def seeds_of(text: str) -> list[int]:
    """Split `--seeds`: "0,1,2" or "0 1 2" gives three seeds. Raises ConfigError."""
    seeds = text.replace(",", " ").split()
    if not all(seed.isdecimal() for seed in seeds):
        raise ConfigError(f"--seeds {text!r}: must be whole numbers from 0, such as 0,1,2")
    return [int(seed) for seed in seeds]
