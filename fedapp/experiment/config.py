"""Makes an `Experiment` of a YAML preset and `key=value` overrides, and checks it before a run.

A preset is a file of `conf/`, named without its ending, or the path of any YAML file. A method
preset is a file of `conf/methods/`, or again the path of any YAML file; its settings replace those
of the preset. An override replaces both. It has a dotted key such as `method.num_replaced`, and an
empty text is a value like any other: it is accepted where the setting may be empty and refused
elsewhere. To keep the value of the preset, leave the override out.

All problems are reported together, one line each: where the setting stands, its key, its value, and
the rule that it breaks.
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
from fedapp.methods import (
    image_level_methods,
    masked_methods,
    method_class,
    method_names,
    methods_learning_from,
)
from fedapp.methods.base import Method
from fedapp.methods.incompatibilities import CONDITIONS, Conditions

MACHINE_KEYS = (
    "name", "runtime", "data.root", "data.download", "split.manifest", "model.weights",
)  # fmt: skip
"""Settings that may differ between machines and people: they do not change the experiment.

These are whole groups, or single settings. The file that `split.manifest` names is compared by its
own digest, and that of `model.weights` by `model.weights_sha256`, which belongs to the experiment.
"""

_NAMED: dict[str, tuple[Callable[[], list[str]], Callable[[str], type]]] = {
    "method": (method_names, method_class),
    "model": (network_names, network_class),
}
"""Groups whose settings depend on their `name`: a list of the names, and the class of a name."""
_DEPENDENT: dict[str, type[DataSettings] | type[SplitSettings]] = {
    "data": DataSettings,
    "split": SplitSettings,
}
"""Groups in which some settings have no effect beside certain values of others (`idle`)."""
_DEFAULTS = {"model.name": DEFAULT_NETWORK}

_FILL_IN = "give it a value, or leave it out to keep what the preset says"
"""Remedy for an empty override of a setting that may not be empty. The usual cause is a shell
variable that is not set."""

AS_PRESET = "<preset>"
"""Value of a key of Flower's run config that keeps what the preset says. It differs from an empty
text, which some settings may have as their value."""
NO_SETTINGS = ("preset", "set", "signed")
"""Keys of Flower's run config that are no settings of an experiment."""

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
"""Names of settings in other programs and papers, for the hint at an unknown key."""


@dataclass(frozen=True, config=CLOSED)
class _TopLevel:
    """The settings of an experiment that are in no group."""

    seed: NonNegative = 0


@dataclasses.dataclass(frozen=True)
class _Source:
    """Where values come from: those among the overrides from these, all others from a file."""

    source: str
    overrides: Mapping[str, Scalar]

    def problem(self, key: str, value: object, rule: str, remedy: str = "") -> Problem:
        """Return the problem of a key's value, with the place where the value stands."""
        where = OVERRIDE if key in self.overrides else self.source
        return Problem(where, {key: value}, rule, remedy)


def load_experiment(
    preset: str, overrides: Mapping[str, Scalar] = MappingProxyType({})
) -> Experiment:
    """Return the experiment that a preset and its overrides describe.

    The override `method.preset` puts a method preset over the preset. The key `method.preset` in
    the file of a preset puts the method preset under the file's own values. Where the method
    changes, by `method.preset` or by an override of `method.name`, the `method.*` values of the
    preset are dropped, because they describe the preset's method. The same holds for `model.name`,
    and for settings that have no effect beside a value that replaces another, such as
    `split.label_share` beside `split.labels=all`. The experiment is named after both presets: a
    preset is called by the name of its file, or by its key `name`, which a run's config.yaml has.

    Raises ConfigError on an unknown preset, a damaged file, and on every unknown, wrongly typed,
    out-of-range or contradictory setting.
    """
    values, given, name, source = _preset_and_overrides(preset, overrides)
    built = _build(_laid_over(values, given), name, source, given)
    return dataclasses.replace(built, method=built.method.suited_to(built.model))


def _preset_and_overrides(
    preset: str, overrides: Mapping[str, Scalar]
) -> tuple[dict[str, Any], dict[str, Scalar], str, str]:
    """Return the values of a preset, the overrides to apply, the name, and the source's name."""
    path = preset_path(preset)
    values, source = _flatten(read_yaml(path)), source_of(path)
    name = _name(values, source, path.stem)
    if (under := values.pop("method.preset", "")) != "":  # the file's own values replace its values
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
            named_method = {"method.name": named}
            raise ConfigError(Problem(OVERRIDE, named_method, rule, "keep one of the two"))
        source, name = f"{source} under {source_of(over)}", f"{name}-{over.stem}"
    return values, given, name, source


def own_method_preset(preset: str) -> str:
    """Return the method preset that a preset's file names; empty: none. Raises ConfigError."""
    return str(_flatten(read_yaml(preset_path(preset))).get("method.preset", ""))


def unchecked_settings(preset: str, overrides: Mapping[str, Scalar]) -> dict[str, Any]:
    """Return the settings of a preset and its overrides, by dotted key, without checking them.

    So no code that they name is imported. Raises ConfigError where a preset cannot be read.
    """
    values, given, _, _ = _preset_and_overrides(preset, overrides)
    return _laid_over(values, given)


def load_run_config(run_config: Mapping[str, Scalar]) -> Experiment:
    """Return the experiment that Flower's run config describes; raises as `load_experiment`."""
    return load_experiment(*read_run_config(run_config))


def read_run_config(run_config: Mapping[str, Scalar]) -> tuple[str, dict[str, Scalar]]:
    """Return the preset and the overrides of a Flower run config.

    Flower refuses keys that pyproject.toml does not list. That file lists all `config_keys`, each
    with the value `AS_PRESET`. Settings of a user's own method or network cannot be listed there:
    they are given in `set`, as `key=value` texts, separated and quoted as in a shell. Any other
    setting may be given there too. Raises ConfigError, also if a key has two different values.
    """
    preset, texts = run_config.get("preset", ""), run_config.get("set", "")
    if not isinstance(preset, str) or not preset:
        raise ConfigError(f"run config: preset = {preset!r}: name one of {', '.join(presets())}")
    keys = {
        key: value
        for key, value in run_config.items()
        if key not in NO_SETTINGS and value != AS_PRESET
    }
    try:
        words = parse_overrides(shlex.split(str(texts)))
    except ValueError as error:
        rule = "must be key=value with spaces between"
        raise ConfigError(f"run config: set = {texts!r}: {rule}; {error}") from None
    for key in keys.keys() & words.keys():
        if keys[key] != words[key]:
            raise ConfigError(
                f"run config: {key} = {words[key]!r} in `set`, but {key} = {keys[key]!r} by its "
                "own key: keep one of the two"
            )
    return preset, keys | words


def flower_run_config(run_config: Mapping[str, Scalar]) -> str:
    """Return a run config for `flwr run --run-config`: TOML, every value a text.

    An empty value is written too; otherwise Flower would use the app's own default. Raises
    ConfigError on a text that Flower cannot carry.
    """
    words = []
    for key, text in ((key, str(value)) for key, value in run_config.items()):
        if not text.isprintable():
            raise ConfigError(f"{key} = {text!r}: Flower cannot carry such a text; change it")
        # An escaped quotation mark would end the value in Flower's own parser.
        text = text.replace("\\", r"\\").replace('"', r"\u0022")
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
    """Return the experiment as nested plain values, from which `from_plain` makes it again."""
    plain: dict[str, Any] = {"name": experiment.name, "seed": experiment.seed}
    plain |= {group: dataclasses.asdict(getattr(experiment, group)) for group in GROUPS}
    for group in _NAMED:
        chosen = getattr(experiment, group)
        plain[group] = {"name": chosen.name, **dataclasses.asdict(chosen)}
    return plain


def from_plain(plain: Mapping[str, Any], source: str) -> Experiment:
    """Return the experiment from values of `to_plain`; `source` names them in errors.

    Raises ConfigError as `load_experiment` does.
    """
    rest = dict(plain)
    return _build(rest, _name(rest, source), source, {})


def config_keys() -> dict[str, str]:
    """Return every key that can be overridden, with its type as text.

    `method.*` has the settings of all methods, `model.*` those of all networks of this project.
    """
    keys = _shared_keys() | {"method.preset": "str"}
    for group, (names, class_of) in _NAMED.items():
        for name in names():
            keys |= {f"{group}.{key}": kind for key, kind in _field_types(class_of(name)).items()}
    return keys


def computing_settings(experiment: Experiment) -> str:
    """Return those of the `MACHINE_KEYS` that change what a site answers, as JSON.

    In masked sums they are a part of the question, so that a server cannot give one site others.
    """
    of = experiment.runtime
    return json.dumps([of.device, of.precision, of.threads, of.deterministic, of.models])


def experiment_digest(experiment: Experiment) -> str:
    """Return the SHA-256, in hex, of the settings that decide what is computed.

    These are `shared_settings`, and the settings that were withdrawn, each with the value that had
    no effect. Without the latter the digests of all earlier runs and comparisons would change.
    """
    gone = {key: one.default for key, one in SETTINGS.items() if not _of_a_machine(key)}
    flat = gone | shared_settings(experiment)
    return hashlib.sha256(json.dumps(flat, sort_keys=True).encode()).hexdigest()


def shared_settings(experiment: Experiment) -> dict[str, Scalar]:
    """Return the settings on which server and sites must agree: all but `MACHINE_KEYS`."""
    return {
        key: value
        for key, value in _flatten(to_plain(experiment)).items()
        if not _of_a_machine(key)
    }


def _of_a_machine(key: str) -> bool:
    return key in MACHINE_KEYS or key.partition(".")[0] in MACHINE_KEYS


def differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Return the settings in which two experiments differ: key and both values, sorted by key.

    `MACHINE_KEYS` are not compared. one, other: as of `to_plain`, or as of `shared_settings`.
    """
    first, second = _flatten(one), _flatten(other)
    return [
        (key, first.get(key), second.get(key))
        for key in sorted(first.keys() | second.keys())
        if first.get(key) != second.get(key) and not _of_a_machine(key)
    ]


def first_three(found: Sequence[str]) -> str:
    """Return the first three of these texts, and how many more there are, as one text."""
    return "; ".join([*found[:3], *([f"{len(found) - 3} more"] if len(found) > 3 else [])])


def _name(values: dict[str, Any], source: str, otherwise: str = "") -> str:
    """Remove `name` from the values of a file and return it; `otherwise` is its default."""
    name = values.pop("name", otherwise)
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{source}: name = {name!r}: must be the preset's name, a text")
    return name


def _build(
    plain: Mapping[str, Any], name: str, source: str, overrides: Mapping[str, Scalar]
) -> Experiment:
    """Merge the values with the overrides, check them, and construct the experiment.

    source: names the plain values in errors. A file may have a withdrawn setting if its value has
    no effect: earlier versions wrote all their settings into a run's config.yaml.
    """
    stored = {
        k: value for k, value in _flatten(plain).items() if not is_withdrawn_default(k, value)
    }
    values = {**stored, **overrides}
    origin = _Source(source, overrides)
    named, problems = _named(values, origin)
    for group in _NAMED.keys() - named.keys():  # its class is unknown, so nothing can be checked
        values = {k: v for k, v in values.items() if not k.startswith(f"{group}.")}
    fields = {f"{group}.{key}" for group, cls in named.items() for key in _field_types(cls)}
    valid = _shared_keys().keys() | fields
    problems += _misplaced(values, valid, origin)
    accepted = {key: value for key, value in values.items() if key in valid}
    parts: dict[str, Any] = {}
    for group, cls in {**GROUPS, **named, "": _TopLevel}.items():
        known = _within(group, accepted)
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
    """Return the class of each group in `_NAMED`, and the problems of names without a class."""
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
    """Yield each contradiction between settings of groups that are valid by themselves."""
    for check in _CHECKS:
        groups = signature(check).parameters
        if groups.keys() <= parts.keys():
            yield from check(*(parts[group] for group in groups))
    if "method" in parts:
        yield from _of_the_method(parts)


def _of_the_method(parts: Mapping[str, Any]) -> Iterator[Incompatibility]:
    """Yield each setting with which the method cannot run.

    parts: the groups that are valid by themselves; the others are not asked about.
    """
    known = {group: parts[group] for group in parts.keys() & CONDITIONS}
    inputs, model = _sized(parts.get("data", DataSettings())), parts.get("model")
    if model is None or (inputs and model.misfit(inputs)):
        inputs = ()  # `_check_inputs` reports it; one reason is enough
    method = parts["method"]
    for found in method.incompatibilities(Conditions(**known, inputs=inputs)):
        if found.setting == "privacy.epsilon" and method.image_level is None:
            remedy = f"leave it out or choose {' or '.join(image_level_methods())}"
            found = dataclasses.replace(found, remedy=remedy)
        if found.setting == "privacy.sums":
            found = dataclasses.replace(found, remedy=f"choose {', '.join(masked_methods())}")
        # Limits of the method's own settings may depend on the number of sites.
        if "split" in parts or not found.setting.startswith("method."):
            yield found


def _check_bags(
    data: DataSettings, split: SplitSettings, method: Method[Any]
) -> Iterator[Incompatibility]:
    """Yield the contradiction where a method cannot learn from bags, or learns only from bags."""
    bagless = not (split.bags or split.knows or split.labels == "none")
    # Whether a site's own data lie in bags is not known here.
    if bagless and BAGS in method.learns_from and data.name != OWN:
        rule = "learns from bags, and the data have none"
        remedy = "set split.bags, the bags of a site, or choose another method"
        yield Incompatibility("method.name", rule, remedy)
    if split.bags and BAGS not in method.learns_from:
        able = methods_learning_from(BAGS)
        remedy = "leave it out" + (f" or choose {' or '.join(able)}" if able else "")
        yield Incompatibility("split.bags", f"{method.name} cannot learn from bags", remedy)


def _check_images(
    method: Method[Any],
    model: NetworkSettings,
    training: TrainSettings,
    privacy: PrivacySettings,
) -> Iterator[Incompatibility]:
    """Yield the first setting that keeps an image-level epsilon from being guaranteed.

    Only for a method that can protect single images; of others `_of_the_method` says so.
    """
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
    """Yield the setting of the input size where the network does not take this size."""
    conditions = Conditions(data, inputs=_sized(data))
    if conditions.inputs and (rule := model.misfit(conditions.inputs)):
        yield Incompatibility(conditions.size, rule)


def _sized(data: DataSettings) -> tuple[int, ...]:
    """Return the input shape that is set, images with one channel; empty: no size is set."""
    if data.vector_size:
        return data.inputs
    return (1, data.image_size, data.image_size) if data.image_size else ()


def _check_rule(rounds: RoundSettings) -> Iterator[Incompatibility]:
    """Yield the setting `rounds.robust` where it names no averaging rule."""
    if not is_function_name(rounds.robust) and rounds.robust not in rule_names():
        rule = f"no such rule; {name_suggestion(rounds.robust, rule_names())}"
        yield Incompatibility("rounds.robust", rule)


_CHECKS: tuple[Callable[..., Iterator[Incompatibility]], ...] = (
    *BETWEEN_GROUPS,
    _check_rule,
    _check_bags,
    _check_images,
    _check_inputs,
)
"""Rules between settings of several groups. The parameters of a rule are named like the groups that
it looks at; it is asked only if these are valid by themselves."""


def _misplaced(values: Mapping[str, Any], valid: set[str], origin: _Source) -> list[Problem]:
    """Return the problem of each key that is not a setting, or not one of this method."""
    found = []
    for key in sorted(values.keys() - valid):
        group, remedy = key.partition(".")[0], ""
        if key in {*GROUPS, *_NAMED}:
            meant = _SYNONYMS.get(key)
            known = valid | {"method.preset"}  # a key of files and overrides, not of the experiment
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
    """Return the problem that pydantic found with the values of a group."""
    cause, kind, value = found.get("ctx", {}).get("error"), found["type"], found["input"]
    # Pydantic's own messages begin like this: "Input should be a valid integer".
    rule = str(cause) if cause else re.sub("^(Input|String) should", "must", found["msg"])
    if not found["loc"]:
        keys = cause.keys if isinstance(cause, Contradiction) else ()
        return _together(rule, keys, group, known, origin)
    key = ".".join(filter(None, [group, str(found["loc"][0])]))
    if kind == "missing":
        return Problem(f"{origin.source}: {key}", {}, "has no default", "give it a value")
    remedy = ""  # the rule says enough, unless the value has the wrong type
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
    """Return the problem of several values of a group; of all, where no keys are named."""
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
    """Return the remedy for a dotted key that is not in `valid`; its group may be missing."""
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
    """Return the keys that every method and network has, with their types as text."""
    keys = {"seed": "int"}
    for group, cls in GROUPS.items():
        keys |= {f"{group}.{key}": kind for key, kind in _field_types(cls).items()}
    return keys | {f"{group}.name": "str" for group in _NAMED}


def _field_types(cls: type) -> dict[str, str]:
    """Return the settings of a class, with their types as text for people."""
    hints = get_type_hints(cls)
    written: dict[str, str] = {}
    for field in dataclasses.fields(cls):
        hint = hints[field.name]
        choices = " | ".join(map(repr, get_args(hint)))
        written[field.name] = choices or hint.__name__
    return written


def _flatten(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Return dotted keys, one level deep. Deeper values stay whole: the type check refuses them."""
    flat: dict[str, Any] = {}
    for key, value in plain.items():
        if isinstance(value, Mapping) and key in {*GROUPS, *_NAMED}:
            flat |= {f"{key}.{inner}": innermost for inner, innermost in value.items()}
        else:
            flat[str(key)] = value
    return flat


def _laid_over(values: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values with others over them; a change of method or network drops its values."""
    for group in _NAMED:
        key = f"{group}.name"
        before = values.get(key, _DEFAULTS.get(key))
        if over.get(key, before) != before:
            values = {k: v for k, v in values.items() if not k.startswith(f"{group}.")}
    return _merged(values, over)


def _merged(values: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values with others over them, without those that lose their effect by that.

    A value that had no effect before stays, so that it is refused later.
    """
    both = {**values, **over}
    dropped = _idle(both) - _idle(values) - over.keys()
    return {key: value for key, value in both.items() if key not in dropped}


def _idle(values: Mapping[str, Any]) -> set[str]:
    """Return the keys that have no effect beside these values."""
    return {
        f"{group}.{key}"
        for group, cls in _DEPENDENT.items()
        for key in unused_settings(cls, _within(group, values))
    }


def _within(group: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a group by their names in it; "": the values in no group."""
    parted = ((key.rpartition("."), value) for key, value in values.items())
    return {leaf: value for (named, _, leaf), value in parted if named == group}
