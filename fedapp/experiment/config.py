"""YAML presets and `key=value` overrides -> `Experiment`, all checked before a run starts.

A preset is a file of `conf/` named without its ending, or the path of any YAML file. A method
preset is one of `conf/methods/`, or any other likewise; what it says takes the place of what the
preset says. An
override is a dotted key such as `method.num_replaced`. An empty text is a value like any other: it
stands where the setting may be empty, and is refused elsewhere. "As the preset says" is said by
leaving the override out.

Every problem found is reported, one line each: where it stands, the key, the value, the rule.
"""

import dataclasses
import difflib
import hashlib
import json
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from inspect import signature
from types import MappingProxyType
from typing import Any, get_args, get_type_hints

from pydantic import ValidationError
from pydantic.dataclasses import dataclass
from pydantic_core import ErrorDetails

from fedapp.aggregation import rule_names
from fedapp.core.errors import (
    OVERRIDE,
    ConfigError,
    Contradiction,
    Incompatibility,
    Problem,
    name_suggestion,
)
from fedapp.core.plugins import is_function_name, name_advice
from fedapp.core.settings import (
    BETWEEN_GROUPS,
    CLOSED,
    GROUPS,
    OWN,
    DataSettings,
    NonNegative,
    PrivacySettings,
    RoundSettings,
    SplitSettings,
    TrainSettings,
    unused_settings,
)
from fedapp.core.withdrawn import SETTINGS, TAKEN_OUT, is_withdrawn_default
from fedapp.data.datasets import NAMES as DATASETS
from fedapp.data.sites import BAGS
from fedapp.experiment.experiment import Experiment
from fedapp.experiment.preset_files import (
    Scalar,
    independent_of_folder,
    method_path,
    parse_scalar,
    preset_path,
    presets,
    read_yaml,
    source_of,
)
from fedapp.learn.networks import DEFAULT_NETWORK, NetworkSettings, network_class, network_names
from fedapp.methods import learning_from, method_class, method_names, protecting
from fedapp.methods.base import Method
from fedapp.methods.incompatibilities import CONDITIONS, Conditions

MACHINE_KEYS = (
    "name", "runtime", "data.root", "data.download", "split.manifest", "model.weights",
)  # fmt: skip
"""Settings that differ between machines or people without changing the experiment.

The split that `split.manifest` names is compared by its own digest; `model.weights_sha256` counts.
"""

_NAMED: dict[str, tuple[Callable[[], list[str]], Callable[[str], type]]] = {
    "method": (method_names, method_class),
    "model": (network_names, network_class),
}
"""Groups whose settings depend on their `name`: the names there are, and the class of one."""
_DEPENDENT: dict[str, type[DataSettings] | type[SplitSettings]] = {
    "data": DataSettings,
    "split": SplitSettings,
}
"""Groups some of whose settings say nothing beside certain values of others."""
_DEFAULTS = {"model.name": DEFAULT_NETWORK}

_FILL_IN = "give it a value, or leave it out to keep what the preset says"
"""What to do about an override that is empty where that means nothing: often a shell variable that
is not set."""

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
class _TopLevel:
    """What an experiment has beside its groups."""

    seed: NonNegative = 0


@dataclasses.dataclass(frozen=True)
class _Source:
    """What said the values: overrides those that are among them, a file all others."""

    source: str
    overrides: Mapping[str, Scalar]

    def problem(self, key: str, value: object, rule: str, remedy: str = "") -> Problem:
        """Return what is wrong with the value of a key."""
        where = OVERRIDE if key in self.overrides else self.source
        return Problem(where, {key: value}, rule, remedy)


def load_experiment(
    preset: str, overrides: Mapping[str, Scalar] = MappingProxyType({})
) -> Experiment:
    """Return the experiment that a preset and its overrides describe.

    `method.preset` lays a method preset over the preset; in the preset itself, under it. It, or an
    override of `method.name`, with another method drops the preset's `method.*` values: they
    described the preset's method. So it is with `model.name`, and with what says nothing beside a
    value that is laid over it, as `split.label_share` beside `split.labels=all`. The experiment is
    named after both presets: after the file, or as its `name` says, which a run's config.yaml has.

    Raises ConfigError on an unknown preset, a damaged file, and on every unknown, wrongly typed,
    out-of-range or contradictory setting.
    """
    values, given, name, source = _preset_and_overrides(preset, overrides)
    return _build(_laid_over(values, given), name, source, given)


def _preset_and_overrides(
    preset: str, overrides: Mapping[str, Scalar]
) -> tuple[dict[str, Any], dict[str, Scalar], str, str]:
    """Return a preset's values, the overrides to be laid over them, the name, and the source."""
    path = preset_path(preset)
    values, source = _flatten(read_yaml(path)), source_of(path)
    name = _name(values, source, path.stem)
    if (under := values.pop("method.preset", "")) != "":  # the file's own values go over it
        under = method_path(independent_of_folder(str(under), path.parent))
        values = _merged(_flatten(read_yaml(under)), values)
    given = dict(overrides)
    if (chosen := given.pop("method.preset", None)) is not None:
        if chosen == "":
            problem = Problem(OVERRIDE, {"method.preset": ""}, "names no method preset", _FILL_IN)
            raise ConfigError(problem)
        over = method_path(str(chosen))
        values = _laid_over(values, _flatten(read_yaml(over)))
        named = given.get("method.name", values["method.name"])
        if named != values["method.name"]:
            rule = f"method.preset = {chosen!r} is {values['method.name']!r}"
            said = {"method.name": named}
            raise ConfigError(Problem(OVERRIDE, said, rule, "keep one of the two"))
        source, name = f"{source} under {source_of(over)}", f"{name}-{over.stem}"
    return values, given, name, source


def own_method_preset(preset: str) -> str:
    """Return the method preset that a preset's own file names; empty: none. Raises ConfigError."""
    return str(_flatten(read_yaml(preset_path(preset))).get("method.preset", ""))


def unchecked_settings(preset: str, overrides: Mapping[str, Scalar]) -> dict[str, Any]:
    """Return the settings that a preset and its overrides say, by dotted key; none is checked.

    So nothing that they name is imported yet. Raises ConfigError where a preset cannot be read.
    """
    values, given, _, _ = _preset_and_overrides(preset, overrides)
    return _laid_over(values, given)


def load_run_config(run_config: Mapping[str, Scalar]) -> Experiment:
    """Return the experiment that Flower's run config describes; raises as `load_experiment`."""
    return load_experiment(*read_run_config(run_config))


def read_run_config(run_config: Mapping[str, Scalar]) -> tuple[str, dict[str, Scalar]]:
    """Return the preset and the overrides of a Flower run config.

    It has two keys, since Flower refuses all that pyproject.toml does not list: `preset`, and `set`
    with `key=value` texts as a shell reads them. Raises ConfigError.
    """
    preset, said = run_config.get("preset", ""), run_config.get("set", "")
    if not isinstance(preset, str) or not preset:
        raise ConfigError(f"run config: preset = {preset!r}: name one of {', '.join(presets())}")
    try:
        return preset, parse_overrides(shlex.split(str(said)))
    except ValueError as error:
        rule = "must be key=value with spaces between"
        raise ConfigError(f"run config: set = {said!r}: {rule}; {error}") from None


def flower_run_config(run_config: Mapping[str, Scalar]) -> str:
    """Return a run config as `flwr run --run-config` takes it: every value a text in TOML.

    An empty value is said too: left out, the app's own default would stand in its place.
    Raises ConfigError on a text that Flower cannot carry.
    """
    words = []
    for key, text in ((key, str(value)) for key, value in run_config.items()):
        if not text.isprintable():
            raise ConfigError(f"{key} = {text!r}: Flower cannot carry such a text; change it")
        text = text.replace("\\", r"\\").replace('"', r"\u0022")  # Flower ends a value at its mark
        words.append(f'{key}="{text}"')
    return " ".join(words)


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
        found[key] = parse_scalar(value)
    return found


def to_plain(experiment: Experiment) -> dict[str, Any]:
    """Return the experiment as nested plain values; `from_plain` takes them back unchanged."""
    plain: dict[str, Any] = {"name": experiment.name, "seed": experiment.seed}
    plain |= {group: dataclasses.asdict(getattr(experiment, group)) for group in GROUPS}
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

    `shared_settings` count, and so do those that were taken out, with the value that changed
    nothing: without them every run and every cell of a comparison would be another than it was.
    """
    gone = {key: one.default for key, one in SETTINGS.items() if not _of_a_machine(key)}
    flat = gone | shared_settings(experiment)
    return hashlib.sha256(json.dumps(flat, sort_keys=True).encode()).hexdigest()


def shared_settings(experiment: Experiment) -> dict[str, Scalar]:
    """Return what the server and its sites must agree upon: all settings but `MACHINE_KEYS`."""
    return {
        key: value
        for key, value in _flatten(to_plain(experiment)).items()
        if not _of_a_machine(key)
    }


def _of_a_machine(key: str) -> bool:
    return key in MACHINE_KEYS or key.partition(".")[0] in MACHINE_KEYS


def differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Return in which settings two experiments differ, but for the machine's: key and both values.

    one, other: as `to_plain` has them, or flat, as `shared_settings`.
    """
    first, second = _flatten(one), _flatten(other)
    return [
        (key, first.get(key), second.get(key))
        for key in sorted(first.keys() | second.keys())
        if first.get(key) != second.get(key) and not _of_a_machine(key)
    ]


def first_three(found: Sequence[str]) -> str:
    """Return three of what was found, and how much more there is."""
    return "; ".join([*found[:3], *([f"{len(found) - 3} more"] if len(found) > 3 else [])])


def _name(values: dict[str, Any], source: str, otherwise: str = "") -> str:
    """Take `name` out of a file's values and return it."""
    name = values.pop("name", otherwise)
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{source}: name = {name!r}: must be the preset's name, a text")
    return name


def _build(
    plain: Mapping[str, Any], name: str, source: str, overrides: Mapping[str, Scalar]
) -> Experiment:
    """Merge, check and construct; `source` names the plain values in errors.

    A file may say a setting that was taken out with the value that changed nothing: an earlier
    version wrote all its settings into a run's config.yaml.
    """
    stored = {
        k: value for k, value in _flatten(plain).items() if not is_withdrawn_default(k, value)
    }
    values = {**stored, **overrides}
    origin = _Source(source, overrides)
    named, problems = _named(values, origin)
    for group in _NAMED.keys() - named.keys():  # of what it would have, nothing can be said
        values = {k: v for k, v in values.items() if not k.startswith(f"{group}.")}
    fields = {f"{group}.{key}" for group, cls in named.items() for key in _field_types(cls)}
    valid = _shared_keys().keys() | fields
    problems += _misplaced(values, valid, origin)
    said = {key: value for key, value in values.items() if key in valid}
    parts: dict[str, Any] = {}
    for group, cls in {**GROUPS, **named, "": _TopLevel}.items():
        known = _within(group, said)
        if group in _NAMED:
            known.pop("name", None)
        try:
            parts[group] = cls(**known)
        except ValidationError as error:
            problems += [_explained(found, group, known, origin) for found in error.errors()]
    wanted = values.get("data.name")
    if isinstance(wanted, str) and wanted not in DATASETS and not is_function_name(wanted):
        remedy = name_advice(wanted, DATASETS)
        problems.append(origin.problem("data.name", wanted, "no such data set", remedy))
    for found in _incompatibilities(parts):
        group, _, leaf = found.setting.partition(".")
        value = getattr(parts[group], leaf)
        problems.append(origin.problem(found.setting, value, found.reason, found.remedy))
    if problems:
        raise ConfigError(*problems)
    return Experiment(name=name, seed=parts.pop("").seed, **parts)


def _named(values: Mapping[str, Any], origin: _Source) -> tuple[dict[str, type], list[Problem]]:
    """Return the class of each group that has one by its name, and those whose name has none."""
    found, problems = {}, []
    for group, (names, class_of) in _NAMED.items():
        key = f"{group}.name"
        chosen = values.get(key, _DEFAULTS.get(key))
        try:
            if not isinstance(chosen, str):
                raise ConfigError(f"must be one of {', '.join(names())}")
            found[group] = class_of(chosen)
        except ConfigError as error:
            problems.append(origin.problem(key, chosen, str(error)))
    return found, problems


def _incompatibilities(parts: Mapping[str, Any]) -> Iterator[Incompatibility]:
    """Yield each setting that does not go with others, of groups that are right by themselves."""
    for check in _CHECKS:
        groups = signature(check).parameters
        if groups.keys() <= parts.keys():
            yield from check(*(parts[group] for group in groups))
    if "method" in parts:
        yield from _of_the_method(parts)


def _of_the_method(parts: Mapping[str, Any]) -> Iterator[Incompatibility]:
    """Yield with what the method cannot run; a group that is not right by itself says nothing."""
    known = {group: parts[group] for group in parts.keys() & CONDITIONS}
    inputs, model = _sized(parts.get("data", DataSettings())), parts.get("model")
    if model is None or (inputs and model.misfit(inputs)):
        inputs = ()  # what the network cannot take needs no second reason
    method = parts["method"]
    for found in method.incompatibilities(Conditions(**known, inputs=inputs)):
        if found.setting == "privacy.epsilon" and method.image_level is None:
            remedy = f"leave it out or choose {' or '.join(protecting())}"
            found = dataclasses.replace(found, remedy=remedy)
        # The method's own settings may go by how many sites there are.
        if "split" in parts or not found.setting.startswith("method."):
            yield found


def _check_bags(
    data: DataSettings, split: SplitSettings, method: Method[Any]
) -> Iterator[Incompatibility]:
    """Yield what is wrong where there are bags for a method that cannot use them, or none."""
    bagless = not (split.bags or split.knows or split.labels == "none")
    # Of a site's own data nobody here knows whether they lie in bags.
    if bagless and BAGS in method.learns_from and data.name != OWN:
        rule = "learns from bags, and the data have none"
        remedy = "set split.bags, the bags of a site, or choose another method"
        yield Incompatibility("method.name", rule, remedy)
    if split.bags and BAGS not in method.learns_from:
        able = learning_from(BAGS)
        remedy = "leave it out" + (f" or choose {' or '.join(able)}" if able else "")
        yield Incompatibility("split.bags", f"{method.name} cannot learn from bags", remedy)


def _check_sums(privacy: PrivacySettings, method: Method[Any]) -> Iterator[Incompatibility]:
    """Yield that sums cannot be masked of a method whose server needs more than sums."""
    if privacy.masked and not method.sums_suffice:
        able = ", ".join(name for name in method_names() if method_class(name).sums_suffice)
        rule = f"{method.name} needs each site's own answer, and sums are masked (privacy.sums)"
        yield Incompatibility("privacy.sums", rule, f"choose {able}")


def _check_images(
    method: Method[Any],
    model: NetworkSettings,
    training: TrainSettings,
    privacy: PrivacySettings,
) -> Iterator[Incompatibility]:
    """Yield the first reason why single images cannot be protected by a method that can do so."""
    found = method.incompatibilities(Conditions(privacy=privacy))
    if not privacy.epsilon or any(one.setting == "privacy.epsilon" for one in found):
        return
    noisy_training = method.image_level is not None and method.image_level.noisy_training
    if training.uneven != "plain":
        rule = "goes by how many images a class has, which privacy.epsilon hides"
        yield Incompatibility("training.uneven", rule, "set one of the two")
    elif noisy_training and training.optimiser != "sgd":
        rule = "steps that protect single images (privacy.epsilon) are plain ones"
        yield Incompatibility("training.optimiser", rule, "set it to 'sgd'")
    elif noisy_training and training.augment != "none":
        rule = "one image more would change the random views of others, which privacy.epsilon hides"
        yield Incompatibility("training.augment", rule, "set it to 'none'")
    elif noisy_training and getattr(model, "norm", "") == "batch":
        rule = "batch norm mixes images, and privacy.epsilon protects each"
        yield Incompatibility("model.norm", rule, "set it to 'group'")


def _check_inputs(data: DataSettings, model: NetworkSettings) -> Iterator[Incompatibility]:
    """Yield where the network takes no inputs of the size that is set."""
    conditions = Conditions(data, inputs=_sized(data))
    if conditions.inputs and (rule := model.misfit(conditions.inputs)):
        yield Incompatibility(conditions.size, rule)


def _sized(data: DataSettings) -> tuple[int, ...]:
    """Return the shape of inputs of the size that is set, of one channel; empty: none is set."""
    if data.vector_size:
        return data.inputs
    return (1, data.image_size, data.image_size) if data.image_size else ()


def _check_rule(rounds: RoundSettings) -> Iterator[Incompatibility]:
    """Yield that there is no such rule for averages."""
    if not is_function_name(rounds.robust) and rounds.robust not in rule_names():
        rule = f"no such rule; {name_suggestion(rounds.robust, rule_names())}"
        yield Incompatibility("rounds.robust", rule)


_CHECKS: tuple[Callable[..., Iterator[Incompatibility]], ...] = (
    *BETWEEN_GROUPS,
    _check_rule,
    _check_bags,
    _check_sums,
    _check_images,
    _check_inputs,
)
"""Rules between settings; each is asked where the groups that are its arguments, and called as
these are, are right by themselves."""


def _misplaced(values: Mapping[str, Any], valid: set[str], origin: _Source) -> list[Problem]:
    """Return each key that does not belong where it stands."""
    found = []
    for key in sorted(values.keys() - valid):
        group, remedy = key.partition(".")[0], ""
        if key in {*GROUPS, *_NAMED}:
            meant = _SYNONYMS.get(key)
            known = valid | {"method.preset"}  # taken out of the values before these are checked
            rule = f"must be a group of keys: {_listed(key, valid)}"
            remedy = f"did you mean '{meant}'?" if meant in known else ""
        elif key in config_keys() or (group in _NAMED and ":" in str(values.get(f"{group}.name"))):
            named = values.get(f"{group}.name", _DEFAULTS.get(f"{group}.name"))
            rule, remedy = f"not a setting of {named}", f"valid: {_listed(group, valid)}"
        elif key in SETTINGS:
            rule, remedy = TAKEN_OUT, SETTINGS[key].instead
        else:
            rule, remedy = "unknown key", _nearest_key(key, valid)
        found.append(origin.problem(key, values[key], rule, remedy))
    return found


def _explained(
    found: ErrorDetails, group: str, known: Mapping[str, Any], origin: _Source
) -> Problem:
    """Return what pydantic found wrong with a group's values."""
    cause, kind, value = found.get("ctx", {}).get("error"), found["type"], found["input"]
    # What it says itself begins with what is wrong: "Input should be a valid integer".
    rule = str(cause) if cause else re.sub("^(Input|String) should", "must", found["msg"])
    if not found["loc"]:
        keys = cause.keys if isinstance(cause, Contradiction) else ()
        return _together(rule, keys, group, known, origin)
    key = ".".join(filter(None, [group, str(found["loc"][0])]))
    if kind == "missing":
        return Problem(f"{origin.source}: {key}", {}, "has no default", "give it a value")
    remedy = ""  # beyond the rule only what it takes to write a value of the right type
    if value == "" and key in origin.overrides:
        remedy = _FILL_IN
    elif kind.endswith("_type") and _is_number(value):
        remedy = "the value is text: write it without quotes"
    elif kind == "string_type" and isinstance(value, int | float):
        remedy = "the value is no text: write it in quotes"
    return origin.problem(key, value, rule, remedy)


def _together(
    rule: str, keys: tuple[str, ...], group: str, known: Mapping[str, Any], origin: _Source
) -> Problem:
    """Return what is wrong with several values of a group; with all, where no keys are named."""
    named = [key for key in known if key in keys] or sorted(known)
    if len(named) == 1:
        return origin.problem(f"{group}.{named[0]}", known[named[0]], rule)
    changed = any(f"{group}.{key}" in origin.overrides for key in known)
    where = f"{OVERRIDE} over {origin.source}" if changed else origin.source
    return Problem(where, {f"{group}.{key}": known[key] for key in named}, rule)


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
    return f"valid: {in_group or ', '.join(sorted({*GROUPS, *_NAMED, 'seed'}))}"


def _listed(group: str, valid: Iterable[str]) -> str:
    prefix = f"{group}."
    return ", ".join(sorted(k.removeprefix(prefix) for k in valid if k.startswith(prefix)))


def _shared_keys() -> dict[str, str]:
    """Return the keys that depend neither on the method nor on the network, and their types."""
    keys = {"seed": "int"}
    for group, cls in GROUPS.items():
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
        if isinstance(value, Mapping) and key in {*GROUPS, *_NAMED}:
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
    return _merged(values, over)


def _merged(values: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return values with others over them, without those that say nothing beside the others.

    What said nothing before stays, to be refused.
    """
    both = {**values, **over}
    dropped = _idle(both) - _idle(values) - over.keys()
    return {key: value for key, value in both.items() if key not in dropped}


def _idle(values: Mapping[str, Any]) -> set[str]:
    """Return the keys that say nothing beside these values."""
    return {
        f"{group}.{key}"
        for group, cls in _DEPENDENT.items()
        for key in unused_settings(cls, _within(group, values))
    }


def _within(group: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a group's values by their names in it; of none: those that are in no group."""
    parted = ((key.rpartition("."), value) for key, value in values.items())
    return {leaf: value for (named, _, leaf), value in parted if named == group}
