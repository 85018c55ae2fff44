"""Tuning with one budget: the same number of candidates for every method.

Candidates are judged on validation images alone.

The candidates of a grid's `tune` are a grid themselves: `fedapp compare --tune` runs it like any
other, on seeds that the comparison does not use, and writes the comparison's grid with the best
ones in it.
`searched` says what is tried if the grid has no `tune` or the command line replaces it.
"""

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from fedapp.core.disk import write_atomic
from fedapp.core.errors import ConfigError
from fedapp.core.formatting import counted, percent
from fedapp.experiment.preset_files import Scalar, parse_scalar
from fedapp.reports.comparison.summary import aligned
from fedapp.tools.compare.grid import MIX, Grid, Setting, Tune

VALIDATION, TEST = "selected_val_accuracy", "selected_test_accuracy"
RATE = "training.learning_rate"
"""The setting that every method is tuned by, if by nothing else."""

RATES = (0.003, 0.01, 0.03, 0.1, 0.3)
"""The learning rates that docs/RESULTS.md was tuned with. For most methods there the best one is
neither the smallest nor the largest."""


@dataclass(frozen=True)
class Candidate:
    """One combination of values for a method. label: its method label in the tuning grid."""

    label: str
    method: str
    values: Mapping[str, Scalar]

    @property
    def words(self) -> str:
        """The values for a person: "learning_rate 0.01, confidence 0.95"."""
        return ", ".join(f"{key.rpartition('.')[2]} {value}" for key, value in self.values.items())


@dataclass(frozen=True)
class Judged:
    """A candidate and its accuracies, means over settings and seeds in [0, 1].

    test: for the reader only; the choice is made by validation. setting: the one that it was judged
    in; empty: all of them together.
    """

    candidate: Candidate
    validation: float
    test: float
    chosen: bool
    setting: str = ""


def searched(grid: Grid, values: Mapping[str, Sequence[Scalar]]) -> Grid:
    """Return the grid with a `tune`: its own, or else the same candidates for every method.

    values: key -> values to try, in all combinations, instead of the grid's `tune`; empty: the
    grid's `tune`, or else `RATES`. A grid without `tune` is tuned in all its settings and with one
    seed, the first after its own.
    """
    own = grid.tune
    if own is not None and not values:
        return grid
    tried = {key: list(listed) for key, listed in values.items()} or {RATE: list(RATES)}
    plan = Tune(
        budget=math.prod(map(len, tried.values())),
        values={label: tried for label in grid.methods if label != MIX},
        settings=own.settings if own else [],
        each_setting=own.each_setting if own else False,
        seeds=own.seeds if own else [max(grid.seeds) + 1],
    )
    return replace(grid, tune=plan)


def values_of(texts: Sequence[str]) -> dict[str, list[Scalar]]:
    """Parse `--candidates`: "training.learning_rate=0.01,0.1" gives two values of one key.

    Raises ConfigError if a text has another form, or a key or value is given twice.
    """
    found: dict[str, list[Scalar]] = {}
    for text in texts:
        key, _, listed = text.partition("=")
        parts = [part.strip() for part in listed.split(",") if part.strip()]
        where = f"--candidates {text!r}"
        if not key.strip() or not parts:
            raise ConfigError(f"{where}: must be key=value,value, such as {RATE}=0.01,0.1")
        if key.strip() in found or len(set(parts)) < len(parts):
            raise ConfigError(f"{where}: the key or a value stands twice; keep one")
        found[key.strip()] = [parse_scalar(part) for part in parts]
    return found


def budget(grid: Grid, runs: int, rounds: int) -> str:
    """Return the cost of a tuning in words. runs: how many cells; rounds: of all together."""
    tune = grid.tune
    assert tune is not None
    methods = len([label for label in grid.methods if label != MIX and tune.values[label]])
    settings = len(tune.settings or grid.settings)
    return (
        f"{counted(tune.budget, 'candidates')} of each of {counted(methods, 'methods')}, "
        f"{counted(settings, 'settings')}, {counted(len(tune.seeds), 'seeds')}: "
        f"{counted(runs, 'runs')}, {counted(rounds, 'rounds')} in all"
    )


def candidates(grid: Grid) -> list[Candidate]:
    """Return all candidates of a grid's `tune`. Raises ConfigError, one line a problem."""
    tune = grid.tune
    assert tune is not None
    if lines := _problems(grid, tune):
        raise ConfigError("\n".join(lines))
    return [
        Candidate(f"{method}.{number}", method, values)
        for method in grid.methods
        if method != MIX and tune.values[method]  # the others are not tuned
        for number, values in enumerate(_combinations(tune.values[method]), 1)
    ]


def tuning_grid(grid: Grid, tried: Sequence[Candidate]) -> Grid:
    """Return the grid of all candidates, with the settings and seeds that `tune` names."""
    tune = grid.tune
    assert tune is not None
    wanted = tune.settings or [setting.name for setting in grid.settings]
    settings = [setting for setting in grid.settings if setting.name in wanted]
    found = replace(
        grid,
        name=f"{grid.name}-tuning",
        title=f"{grid.title}: tuning",
        settings=tuple(replace(s, methods=_own_there(s, tried)) for s in settings),
        methods={c.label: {**grid.methods[c.method], **c.values} for c in tried},
        seeds=tuple(tune.seeds),
        tune=None,
        reference="",  # its labels are those of candidates
    )
    if lines := found.problems():
        raise ConfigError("\n".join(lines))
    return found


def judge(
    tried: Sequence[Candidate], results: Sequence[Mapping[str, Any]], each_setting: bool = False
) -> list[Judged]:
    """Return all candidates with their accuracies; for each method the best one is chosen.

    results: all rows of the tuning grid's results.csv. each_setting: judge and choose in each
    setting separately. Of equally good candidates the first one wins. A cell without a validation
    accuracy, because its model answers NaN, counts as 0.
    """
    if each_setting:
        by_setting: dict[str, list[Mapping[str, Any]]] = {}
        for row in results:
            by_setting.setdefault(row["setting"], []).append(row)
        return [
            replace(one, setting=setting)
            for setting, rows in by_setting.items()
            for one in judge(tried, rows)
        ]
    judged = [
        Judged(c, _mean(results, c, VALIDATION), _mean(results, c, TEST), chosen=False)
        for c in tried
    ]
    best: dict[str, Judged] = {}
    for one in judged:
        leader = best.setdefault(one.candidate.method, one)
        if one.validation > leader.validation:
            best[one.candidate.method] = one
    return [replace(one, chosen=best[one.candidate.method] is one) for one in judged]


def tuned(grid: Grid, judged: Sequence[Judged]) -> dict[str, Any]:
    """Return the grid with the chosen values, as the content of its YAML file."""
    chosen = {(j.setting, j.candidate.method): j.candidate.values for j in judged if j.chosen}
    methods = {label: {**own, **chosen.get(("", label), {})} for label, own in grid.methods.items()}
    settings = tuple(
        replace(s, methods=_laid(s, {m: v for (name, m), v in chosen.items() if name == s.name}))
        for s in grid.settings
    )
    return replace(grid, methods=methods, settings=settings).to_file()


def _laid(setting: Setting, chosen: Mapping[str, Mapping[str, Scalar]]) -> dict[str, Any]:
    """Return a setting's overrides of single methods, with the chosen values."""
    own = setting.methods
    return {m: {**own.get(m, {}), **chosen.get(m, {})} for m in {**own, **chosen}}


def _own_there(setting: Setting, tried: Sequence[Candidate]) -> dict[str, dict[str, Scalar]]:
    """Return a setting's overrides of each candidate's method, without the keys that are tried."""
    own = setting.methods
    return {
        c.label: {key: v for key, v in own[c.method].items() if key not in c.values}
        for c in tried
        if c.method in own
    }


def write_tuned(out: Path, grid: Grid, judged: Sequence[Judged]) -> list[Path]:
    """Write the tuned grid and the list of all candidates; return both paths."""
    tune = grid.tune
    assert tune is not None
    head = (
        f"# Written by `fedapp compare --tune` from {grid.origin}: of {tune.budget} candidates\n"
        "# of every method the best on validation images; tuning.json beside it has them all.\n"
    )
    tried = [
        {
            **({"setting": j.setting} if j.setting else {}),
            "method": j.candidate.method,
            "values": dict(j.candidate.values),
            "validation_accuracy": j.validation,
            "test_accuracy": j.test,
            "chosen": j.chosen,
        }
        for j in judged
    ]
    facts = {
        "budget": tune.budget,
        "settings": tune.settings or [setting.name for setting in grid.settings],
        "seeds": tune.seeds,
        "candidates": tried,
    }
    paths = [out / f"{grid.name}.yaml", out / "tuning.json"]
    write_grid(paths[0], head, tuned(grid, judged))
    text = json.dumps(facts, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
    write_atomic(paths[1], text.encode(), durable=True)
    return paths


def tuning_overview(judged: Sequence[Judged]) -> str:
    """Return a table of the validation accuracies in %, the chosen candidates marked by a star."""
    lines = [["", "", "validation", ""]]
    for j in judged:
        where = f"{j.setting} / {j.candidate.method}" if j.setting else j.candidate.method
        words = [where, "*" if j.chosen else "", percent(j.validation)]
        lines.append([*words, j.candidate.words])
    return aligned("Accuracy on validation images, %; * is chosen", lines, left={0, 3})


def chosen_values(facts: Mapping[str, Any]) -> dict[str, dict[str, Scalar]]:
    """Return the chosen values by method label. facts: the content of `tuning.json`.

    Raises ConfigError if they were chosen for each setting separately.
    """
    if any("setting" in one for one in facts["candidates"]):
        raise ConfigError(
            "tuned_from: names a grid that is tuned in each setting: give `tune` here"
        )
    return {one["method"]: dict(one["values"]) for one in facts["candidates"] if one["chosen"]}


def laid_over(grid: Grid, source: Grid, chosen: Mapping[str, Mapping[str, Scalar]]) -> Grid:
    """Return the grid with the values that another grid's tuning chose (`tuned_from`).

    A method takes the values of the same label in `source`, or else those of the only method there
    with the same preset. Its own values win. Raises ConfigError, one line for each method that
    finds none and has no learning rate of its own.
    """
    methods, lines = {}, []
    for label, own in grid.methods.items():
        match = _counterpart(label, own, source)
        if match is None and label != MIX and RATE not in own:
            rule = f"is not tuned in {source.name}, or twice: give its {RATE} here"
            lines.append(f"{grid.origin}: methods: {label}: {rule}")
        methods[label] = {**chosen.get(match or "", {}), **own}
    if lines:
        raise ConfigError("\n".join(lines))
    return replace(grid, methods=methods)


def _counterpart(label: str, own: Mapping[str, Scalar], source: Grid) -> str | None:
    if label in source.methods:
        return label
    preset = own.get("method.preset")
    same = [name for name, of in source.methods.items() if of.get("method.preset") == preset]
    return same[0] if preset is not None and len(same) == 1 else None


def write_grid(path: Path, head: str, plain: Mapping[str, Any]) -> None:
    """Write a grid's YAML file. head: a comment of whole lines at its beginning."""
    body = yaml.safe_dump(dict(plain), sort_keys=False, allow_unicode=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, (head + body).encode(), durable=True)


def _mean(results: Sequence[Mapping[str, Any]], candidate: Candidate, column: str) -> float:
    return fmean(row[column] or 0.0 for row in results if row["method"] == candidate.label)


def _combinations(values: Mapping[str, Sequence[Scalar]]) -> list[dict[str, Scalar]]:
    """Return all combinations of values, those of the last key changing fastest."""
    return [
        dict(zip(values, chosen, strict=True)) for chosen in itertools.product(*values.values())
    ]


def _problems(grid: Grid, tune: Tune) -> list[str]:
    where = f"{grid.origin}: tune"
    lines = []
    for method in grid.methods:
        if method == MIX:
            continue
        values = tune.values.get(method)
        if values is None:
            lines.append(f"{where}: values: {method}: is missing: every method has its candidates")
            continue
        number = math.prod(map(len, values.values()))
        if values and number != tune.budget:
            rule = f"must be the budget, {tune.budget}, so that no method is tuned harder"
            lines.append(f"{where}: values: {method}: {number} candidates: {rule}")
    names = [setting.name for setting in grid.settings]
    for name in tune.settings:
        if name not in names:
            lines.append(f"{where}: settings: {name!r}: is none of the grid's {', '.join(names)}")
    for seed in sorted({*tune.seeds} & {*grid.seeds}):
        rule = "is one of the comparison's: tune on seeds that it does not use"
        lines.append(f"{where}: seeds: {seed}: {rule}")
    return lines
