"""YAML presets and `key=value` overrides -> `Experiment`, all checked before a run starts.

A preset is a file of `conf/` named without its ending, or the path of any YAML file. A method
preset is one of `conf/methods/`, or any other likewise; what it says takes the place of what the
preset says. An
override is a dotted key such as `method.num_replaced`; an empty text means "as the preset says",
because Flower wants every key that a run may override to be present (`[tool.flwr.app.config]`).

Every problem found is reported, one line each: where it stands, the key, the value, the rule.
"""

import dataclasses
import difflib
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, get_args, get_type_hints

from pydantic import ValidationError
from pydantic.dataclasses import dataclass

from fedapp.data.datasets import NAMES as DATASETS
from fedapp.data.parts import BAGS
from fedapp.experiment.experiment import Experiment
from fedapp.experiment.presetfiles import (
    Scalar,
    anywhere,
    method_path,
    preset_path,
    presets,
    read_yaml,
    scalar,
    source_of,
)
from fedapp.ground.errors import ConfigError, nearest
from fedapp.ground.functions import advice, names_function
from fedapp.ground.settings import (
    CLOSED,
    OWN,
    DataSettings,
    NonNegative,
    SplitSettings,
)
from fedapp.learn.averages import rule_names
from fedapp.learn.networks import DEFAULT_NETWORK, network_class, network_names
from fedapp.methods import method_class, method_names
from fedapp.methods.base import Method

MACHINE_KEYS = (
    "name", "runtime", "data.root", "data.download", "split.manifest", "model.weights",
)  # fmt: skip
"""Settings that differ between machines or people without changing the experiment.

The split that `split.manifest` names is compared by its own digest; `model.weights_sha256` counts.
"""

_GROUPS: dict[str, type] = {
    key: hint
    for key, hint in get_type_hints(Experiment).items()
    if isinstance(hint, type) and dataclasses.is_dataclass(hint)
}

_NAMED: dict[str, tuple[Callable[[], list[str]], Callable[[str], type]]] = {
    "method": (method_names, method_class),
    "model": (network_names, network_class),
}
"""Groups whose settings depend on their `name`: the names there are, and the class of one."""
_DEFAULTS = {"model.name": DEFAULT_NETWORK}

_SYNONYMS = {
    word: key
    for key, words in {
        "training.learning_rate": "lr eta rate step_size",
        "training.local_epochs": "epochs num_epochs local_ep",
        "training.local_steps": "steps num_steps steps_per_round iterations",
        "training.warmup_epochs": "warmup",
        "training.batch_size": "batch bs batchsize",
        "rounds.num_rounds": "rounds n_rounds communication_rounds comm_rounds server_rounds",
        "rounds.sample_rate": "fraction_fit fraction participation client_fraction tau",
        "rounds.deadline_s": "timeout deadline",
        "split.num_clients": "clients sites num_sites n_clients hospitals nodes num_supernodes",
        "split.dirichlet_alpha": "alpha dirichlet non_iid",
        "split.label_share": "mu labels_share labelled labeled label_fraction",
        "data.name": "data dataset data_set",
        "data.root": "data_dir datadir data_path",
        "model.name": "model network arch architecture",
        "method.preset": "method",
        "method.name": "algorithm strategy",
        "method.helper_list_size": "helpers num_helpers n_helpers",
        "method.num_replaced": "replaced num_new",
        "method.proximal": "prox proximal_mu",
        "runtime.device": "gpu cuda",
        "runtime.run_name": "run_id run experiment_name",
        "runtime.out": "output output_dir out_dir",
    }.items()
    for word in words.split()
}
"""What other programs and papers call a setting, for the hint at an unknown key."""


@dataclass(frozen=True, config=CLOSED)
class _Frame:
    """What an experiment has beside its groups."""

    seed: NonNegative = 0


def load_experiment(
    preset: str, overrides: Mapping[str, Scalar] = MappingProxyType({})
) -> Experiment:
    """Return the experiment that a preset and its overrides describe.

    `method.preset` lays a method preset over the preset; in the preset itself, under it. It, or an
    override of `method.name`, with another method drops the preset's `method.*` values: they
    described the preset's method. So it is with `model.name`. The experiment is named after both
    presets: after the file, or as its `name` says, which a run's config.yaml has.

    Raises ConfigError on an unknown preset, a damaged file, and on every unknown, wrongly typed,
    out-of-range or contradictory setting.
    """
    path = preset_path(preset)
    values, source = _flatten(read_yaml(path)), source_of(path)
    name = _name(values, source, path.stem)
    if (under := values.pop("method.preset", "")) != "":  # the file's own values go over it
        under = method_path(anywhere(str(under), path.parent))
        values = {**_flatten(read_yaml(under)), **values}
    given = {key: value for key, value in overrides.items() if value != ""}
    if (chosen := given.pop("method.preset", "")) != "":
        over = method_path(str(chosen))
        values = _laid_over(values, _flatten(read_yaml(over)))
        named = given.get("method.name", values["method.name"])
        if named != values["method.name"]:
            raise ConfigError(
                f"override: method.name = {named!r}: method.preset = {chosen!r} is "
                f"{values['method.name']!r}; keep one of the two"
            )
        source, name = f"{source} under {source_of(over)}", f"{name}-{over.stem}"
    values = _laid_over(values, {k: given[k] for g in _NAMED if (k := f"{g}.name") in given})
    experiment = _build(values, name, source, given)
    if lines := _misfits(experiment, given, source):
        raise ConfigError("\n".join(lines))
    return experiment


def load_run_config(run_config: Mapping[str, Scalar]) -> Experiment:
    """Return the experiment that Flower's run config describes: the key `preset` and overrides."""
    overrides = dict(run_config)
    preset = overrides.pop("preset", "")
    if not isinstance(preset, str) or not preset:
        raise ConfigError(f"run config: preset = {preset!r}: name one of {', '.join(presets())}")
    return load_experiment(preset, overrides)


def parse_overrides(texts: Iterable[str]) -> dict[str, Scalar]:
    """Return overrides from `key=value` texts; a value is read as a YAML scalar.

    Raises ConfigError on a text without `=`, and on a key given twice.
    """
    found: dict[str, Scalar] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise ConfigError(f"override '{text}': must be key=value, e.g. method.num_replaced=3")
        if key in found:
            raise ConfigError(f"override '{text}': {key} is given twice; keep one")
        found[key] = scalar(value)
    return found


def to_plain(experiment: Experiment) -> dict[str, Any]:
    """Return the experiment as nested plain values; `from_plain` takes them back unchanged."""
    plain: dict[str, Any] = {"name": experiment.name, "seed": experiment.seed}
    plain |= {group: dataclasses.asdict(getattr(experiment, group)) for group in _GROUPS}
    for group in _NAMED:
        chosen = getattr(experiment, group)
        plain[group] = {"name": chosen.name, **dataclasses.asdict(chosen)}
    return plain


def from_plain(plain: Mapping[str, Any], source: str) -> Experiment:
    """Return the experiment that `to_plain` wrote down; `source` names it in errors.

    Raises ConfigError as `load_experiment` does.
    """
    rest = dict(plain)
    return _build(rest, _name(rest, source), source, {})


def config_keys() -> dict[str, str]:
    """Return every key that can be overridden and its type.

    `method.*` of all methods together, `model.*` of all networks of this project.
    """
    keys = _shared_keys() | {"method.preset": "str"}
    for group, (names, class_of) in _NAMED.items():
        for name in names():
            keys |= {f"{group}.{key}": kind for key, kind in _field_types(class_of(name)).items()}
    return keys


def experiment_digest(experiment: Experiment) -> str:
    """Return the SHA-256, in hex, of what is computed, whoever computes it and wherever.

    `shared_settings` count.
    """
    flat = shared_settings(experiment)
    return hashlib.sha256(json.dumps(flat, sort_keys=True).encode()).hexdigest()


def shared_settings(experiment: Experiment) -> dict[str, Scalar]:
    """Return what the server and its sites must agree upon: all settings but `MACHINE_KEYS`."""
    return {
        key: value
        for key, value in _flatten(to_plain(experiment)).items()
        if key not in MACHINE_KEYS and key.partition(".")[0] not in MACHINE_KEYS
    }


def settings_that_differ(mine: Mapping[str, Scalar], theirs: Mapping[str, Scalar]) -> str:
    """Name the settings that this site and the server do not share, three at most."""
    found = [
        f"{key} is {mine.get(key)!r} here, {theirs.get(key)!r} at the server"
        for key in sorted(mine.keys() | theirs.keys())
        if mine.get(key) != theirs.get(key)
    ]
    return "; ".join(found[:3] + ([f"{len(found) - 3} more"] if len(found) > 3 else []))


def _name(values: dict[str, Any], source: str, otherwise: str = "") -> str:
    """Take `name` out of a file's values and return it."""
    name = values.pop("name", otherwise)
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{source}: name = {name!r}: must be the preset's name, a text")
    return name


def _build(
    plain: Mapping[str, Any], name: str, source: str, overrides: Mapping[str, Scalar]
) -> Experiment:
    """Merge, check and construct; `source` names the plain values in errors."""
    problems: list[str] = []
    values = _flatten(plain)
    values |= overrides
    origin = {key: "override" if key in overrides else source for key in values}

    valid, classes = set(_shared_keys()), dict(_GROUPS)
    for group, (names, class_of) in _NAMED.items():
        key = f"{group}.name"
        chosen = values.get(key, _DEFAULTS.get(key))
        try:
            if not isinstance(chosen, str):
                raise ConfigError(f"must be one of {', '.join(names())}")
            classes[group] = class_of(chosen)
            valid |= {f"{group}.{field}" for field in _field_types(classes[group])}
        except ConfigError as error:
            problems.append(f"{origin.get(key, source)}: {key} = {chosen!r}: {error}")
            values = {k: v for k, v in values.items() if not k.startswith(f"{group}.")}

    problems += _misplaced(values, valid, origin)
    parts: dict[str, Any] = {}
    for group, cls in classes.items():
        prefix = f"{group}."
        known = {
            key.removeprefix(prefix): value
            for key, value in values.items()
            if key in valid and key.startswith(prefix)
        }
        if group in _NAMED:
            known.pop("name", None)
        try:
            parts[group] = cls(**known)
        except ValidationError as error:
            problems += _explain(error, group, known, origin, source)
    try:
        frame = _Frame(**{key: values[key] for key in ("seed",) if key in values})
    except ValidationError as error:
        problems += _explain(error, "", values, origin, source)
    wanted = values.get("data.name")
    if isinstance(wanted, str) and wanted not in DATASETS and not names_function(wanted):
        rule = f"no such data set; {advice(wanted, DATASETS)}"
        problems.append(f"{origin['data.name']}: data.name = {wanted!r}: {rule}")
    if {"method", "split"} <= parts.keys() and parts["split"].bags:
        problems += _bag_problems(parts["split"], parts["method"], origin, source)
    if {"data", "method", "runtime", "split"} <= parts.keys():
        problems += _server_problems(parts, origin, source)
    if {"method", "privacy", "rounds"} <= parts.keys():
        problems += _average_problems(parts, origin, source)
    if isinstance(wanted, str) and wanted == OWN and {"data", "split"} <= parts.keys():
        problems += _own_problems(parts["data"], parts["split"], origin, source)
    if {"data", "model", "method"} <= parts.keys():
        problems += _size_problems(parts, origin, source)
    if problems:
        raise ConfigError("\n".join(problems))
    return Experiment(name=name, seed=frame.seed, **parts)


def _bag_problems(
    split: SplitSettings, method: Method[Any], origin: Mapping[str, str], source: str
) -> list[str]:
    """Return one line where the method cannot learn from bags."""
    if BAGS in method.learns_from:
        return []
    able = [name for name in method_names() if BAGS in method_class(name).learns_from]
    rule = f"{method.name} cannot learn from bags; leave it out"
    rule += f" or choose {' or '.join(able)}" if able else ""
    where = origin.get("split.bags", source)
    return [f"{where}: split.bags = {split.bags}: {rule}"]


def _server_problems(parts: Mapping[str, Any], origin: Mapping[str, str], source: str) -> list[str]:
    """Return one line where nobody has labels, the method needs them at sites, or no server can."""
    split, given, lines = parts["split"], parts["runtime"].server_data, []
    own = parts["data"].name == OWN
    if given and not own:
        where = origin.get("runtime.server_data", source)
        rule = "goes with data.name=own; a data set that is dealt has split.server_share"
        lines.append(f"{where}: runtime.server_data = {given!r}: {rule}")
    if split.labels == "none":
        where = origin.get("split.labels", source)
        if not (split.server_share or given):
            key = "runtime.server_data" if own else "split.server_share"
            rule = f"the server alone has labels, and it has no images: set {key}"
            lines.append(f"{where}: split.labels = 'none': {rule}")
        if why := parts["method"].needs_labels():
            rule = f"{parts['method'].name} cannot run so: {why}"
            lines.append(f"{where}: split.labels = 'none': {rule}")
    return lines


def _average_problems(
    parts: Mapping[str, Any], origin: Mapping[str, str], source: str
) -> list[str]:
    """Return a line for each setting that asks for what the method's sums and averages are not."""
    method, robust, clip = parts["method"], parts["rounds"].robust, parts["privacy"].clip
    lines = []
    if not names_function(robust) and robust not in rule_names():
        rule = f"no such rule; {nearest(robust, rule_names())}"
        lines.append(f"{origin.get('rounds.robust', source)}: rounds.robust = {robust!r}: {rule}")
    for key, value, idle, why in (
        ("rounds.robust", robust, "none", method.needs_mean()),
        ("privacy.clip", clip, 0, method.needs_unclipped()),
    ):
        if value != idle and why:
            rule = f"{method.name} cannot run so: {why}; leave it out or choose another method"
            lines.append(f"{origin.get(key, source)}: {key} = {value!r}: {rule}")
    return lines


def _misfits(experiment: Experiment, given: Mapping[str, Scalar], source: str) -> list[str]:
    """Return one line for each setting of the method that so few sites cannot use."""
    if experiment.runtime.peers:  # an earlier run's sites count beside these
        return []
    method = experiment.method
    return [
        f"{'override' if f'method.{key}' in given else source}: "
        f"method.{key} = {getattr(method, key)!r}: {rule}"
        for key, rule in method.misfits(experiment.split.num_clients).items()
    ]


def _own_problems(
    data: DataSettings, split: SplitSettings, origin: Mapping[str, str], source: str
) -> list[str]:
    """Return one line for each setting that does not go with sites' own data."""
    rules: list[tuple[str, Scalar, str]] = []
    if data.sites and len(data.site_names) != split.num_clients:
        rule = f"data.sites names {len(data.site_names)} sites; make the two equal"
        rules.append(("split.num_clients", split.num_clients, rule))
    if split.labels == "all":
        rule = "own data have no hidden labels to reveal; use 'some'"
        rules.append(("split.labels", split.labels, rule))
    if split.manifest:
        rule = "own data are dealt by nobody; leave it out"
        rules.append(("split.manifest", split.manifest, rule))
    if split.label_share != 0.5:
        rule = "own data come with the labels they have; leave it out"
        rules.append(("split.label_share", split.label_share, rule))
    if split.feature_shift:
        rule = "own data are used as they are; leave it out"
        rules.append(("split.feature_shift", split.feature_shift, rule))
    for key in ("bags", "knows", "server_share"):
        if value := getattr(split, key):
            rule = "own data are dealt by nobody; leave it out"
            rules.append((f"split.{key}", value, rule))
    return [f"{origin.get(key, source)}: {key} = {value!r}: {rule}" for key, value, rule in rules]


def _size_problems(parts: Mapping[str, Any], origin: Mapping[str, str], source: str) -> list[str]:
    """Return lines where network or method take no images of the size that is set, or not both."""
    model, method = parts["model"], parts["method"]
    size, key, lines = parts["data"].image_size, "data.image_size", []
    shape = (1, size, size)
    if size and (rule := model.misfit(shape) or method.misfit(shape)):
        lines.append(f"{origin.get(key, source)}: {key} = {size}: {rule}")
    if rule := method.unfit(model):
        lines.append(f"{origin.get('model.name', source)}: model.name = {model.name!r}: {rule}")
    return lines


def _misplaced(values: Mapping[str, Any], valid: set[str], origin: Mapping[str, str]) -> list[str]:
    """Return one line for each key that does not belong where it stands."""
    lines = []
    for key in sorted(values.keys() - valid):
        group = key.partition(".")[0]
        if key in {*_GROUPS, *_NAMED}:
            meant = _SYNONYMS.get(key)
            known = valid | {"method.preset"}  # taken out of the values before these are checked
            hint = f"; did you mean '{meant}'?" if meant in known else ""
            rule = f"must be a group of keys: {_listed(key, valid)}{hint}"
        elif key in config_keys() or (group in _NAMED and ":" in str(values.get(f"{group}.name"))):
            named = values.get(f"{group}.name", _DEFAULTS.get(f"{group}.name"))
            rule = f"not a setting of {named}; valid: {_listed(group, valid)}"
        else:
            rule = f"unknown key; {_nearest_key(key, valid)}"
        lines.append(f"{origin[key]}: {key} = {values[key]!r}: {rule}")
    return lines


def _explain(
    error: ValidationError,
    group: str,
    known: Mapping[str, Any],
    origin: Mapping[str, str],
    source: str,
) -> list[str]:
    """Return one line for each problem: where, key, value, rule."""
    lines = []
    for found in error.errors():
        parts = [group, *map(str, found["loc"][:1])]
        key = ".".join(part for part in parts if part)
        rule = re.sub(r"^(Input|String|Value error,)\s+", "", found["msg"]).removeprefix("should ")
        if found["type"] == "missing":
            lines.append(f"{source}: {key}: has no default; give it a value")
            continue
        if found["loc"]:
            # Only what pydantic says of the input's type needs a remedy beyond the rule.
            quoted = found["type"].endswith("_type") and _is_number(found["input"])
            rule = f"must {rule}" if rule.startswith(("be ", "match ")) else rule
            rule += "; the value is text: write it without quotes" if quoted else ""
            bare = found["type"] == "string_type" and isinstance(found["input"], int | float)
            rule += "; the value is no text: write it in quotes" if bare else ""
            lines.append(f"{origin.get(key, source)}: {key} = {found['input']!r}: {rule}")
            continue
        changed = [k for k in known if origin.get(f"{group}.{k}") == "override"]
        where = f"override over {source}" if changed else source
        named = [k for k in known if re.search(rf"\b{k}\b", rule)] or sorted(known)
        shown = ", ".join(f"{group}.{k} = {known[k]!r}" for k in named)
        lines.append(f"{where}: {shown}: {rule}")
    return lines


def _is_number(value: object) -> bool:
    try:
        return isinstance(value, str) and float(value) is not None
    except ValueError:
        return False


def _nearest_key(key: str, valid: Iterable[str]) -> str:
    """Return the advice for a dotted key that is not in `valid`; a key may lack its group."""
    meant = _SYNONYMS.get(key.rpartition(".")[2].lower().replace("-", "_"))
    if meant is not None and meant in valid:
        return f"did you mean '{meant}'?"
    by_leaf = {name.rpartition(".")[2]: name for name in valid}
    whole = difflib.get_close_matches(key, valid, n=1, cutoff=0.7)
    leaf = difflib.get_close_matches(key.rpartition(".")[2], by_leaf, n=1)
    if whole or leaf:
        return f"did you mean '{whole[0] if whole else by_leaf[leaf[0]]}'?"
    in_group = _listed(key.partition(".")[0], valid)
    return f"valid: {in_group or ', '.join(sorted({*_GROUPS, *_NAMED, 'seed'}))}"


def _listed(group: str, valid: Iterable[str]) -> str:
    prefix = f"{group}."
    return ", ".join(sorted(k.removeprefix(prefix) for k in valid if k.startswith(prefix)))


def _shared_keys() -> dict[str, str]:
    """Return the keys that depend neither on the method nor on the network, and their types."""
    keys = {"seed": "int"}
    for group, cls in _GROUPS.items():
        keys |= {f"{group}.{key}": kind for key, kind in _field_types(cls).items()}
    return keys | {f"{group}.name": "str" for group in _NAMED}


def _field_types(cls: type) -> dict[str, str]:
    """Return the settings of a class and their types, as a person would write them."""
    hints = get_type_hints(cls)
    written: dict[str, str] = {}
    for field in dataclasses.fields(cls):
        hint = hints[field.name]
        choices = " | ".join(map(repr, get_args(hint)))
        written[field.name] = choices or hint.__name__
    return written


def _flatten(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Return dotted keys one group deep; deeper values stay whole, for the type check to refuse."""
    flat: dict[str, Any] = {}
    for key, value in plain.items():
        if isinstance(value, Mapping) and key in {*_GROUPS, *_NAMED}:
            flat |= {f"{key}.{inner}": innermost for inner, innermost in value.items()}
        else:
            flat[str(key)] = value
    return flat


def _laid_over(values: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return values with others over them; another method or network drops the first one's."""
    for group in _NAMED:
        key = f"{group}.name"
        before = values.get(key, _DEFAULTS.get(key))
        if over.get(key, before) != before:
            values = {k: v for k, v in values.items() if not k.startswith(f"{group}.")}
    return {**values, **over}
