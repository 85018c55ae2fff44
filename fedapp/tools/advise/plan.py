"""What `fedapp advise` runs: the candidates at a small budget, on a person's own data."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedapp.data.folder import list_images
from fedapp.experiment.config import load_experiment
from fedapp.experiment.experiment import Experiment
from fedapp.experiment.presetfiles import (
    CONF,
    Scalar,
    anywhere,
    method_path,
    presets,
    source_of,
    yaml_path,
)
from fedapp.ground.errors import OVERRIDE, ConfigError, Problem, nearest
from fedapp.tools.advise.words import NAMES
from fedapp.tools.compare.grid import Grid, grid_of
from fedapp.tools.compare.tuning import RATE

CANDIDATES = ("local_only", "one_round", "fedavg", "fedavg_ft", "recommended")
"""Method presets, the simplest first."""
UNTRAINED = "one_round"
"""The candidate that trains nothing: there is nothing to tune, and one round is all it has."""
RECOMMENDED, MODELS_ALONE = "recommended", "prior_shift"
"""The second takes the first's place where that cannot run: its first version sends no sums."""
SETTING = "base"
"""What the one setting is called in the comparison's files."""
ROUNDS, STEPS, SAMPLED = 5, 25, 0.5
"""Budget: at most so many rounds, of so many mini-batches a site, with at least this share of the
sites in each. It does not grow with the data, but for reading and measuring them."""
SEEDS = tuple(range(5))
"""What is compared is runs, so that fewer seeds show next to nothing."""
FACTORS = (1.0, 1 / 3, 3.0)
"""Learning rates that are tried for every candidate alike, in the preset's."""
FOLDERS = CONF / "python" / "in_memory.yaml"
"""The preset of a folder of images; as of data that a program gives."""
SIDE = 32
"""Pixels to which a folder's images are brought, unless told otherwise."""


def plan(
    data: str, given: Mapping[str, Scalar], seeds: Sequence[int]
) -> tuple[Grid, str, dict[str, str]]:
    """Return what to run and to tune, the command line's words for a full run, and what cannot run.

    The last: why each candidate that these settings leave out cannot run with them.
    data: a preset, by name or file, or a folder of images by class. given: overrides, which go over
    the budget. Those that train are tuned on a seed that the comparison does not use, each by the
    same learning rates (`rates`); a given learning rate is that of all, and nothing is tuned.
    Raises ConfigError where there is no such thing, where the settings are wrong for every
    candidate or leave fewer than two, and DataError where a folder has no images.
    """
    if of_method := {key: v for key, v in given.items() if key.partition(".")[0] == "method"}:
        remedy = (
            "give settings of data, split, rounds and training, and take `fedapp compare` for "
            "settings of a method"
        )
        raise ConfigError(Problem(OVERRIDE, of_method, "advise compares methods", remedy))
    if Path(data).is_dir() and data not in presets():
        list_images(Path(data))  # else every run would say that there are none
        base, name = str(FOLDERS), Path(data).absolute().name or "images"
        own: dict[str, Scalar] = {
            "data.name": "folder",
            "data.root": str(Path(data).absolute()),
            "data.image_size": SIDE,
        }
    elif data in presets() or yaml_path(data) is not None:
        base, name, own = anywhere(data), Path(data).stem, {}
    else:
        raise ConfigError(
            f"'{data}': no such preset, YAML file or folder; {nearest(data, presets())}"
        )
    asked = {**own, **given}
    able, left_out = _able(data, base, asked)
    full = next(experiment for name, experiment in able.items() if name != UNTRAINED)
    budget: dict[str, Scalar] = {
        "rounds.num_rounds": min(full.rounds.num_rounds, ROUNDS),
        "rounds.sample_rate": max(full.rounds.sample_rate, SAMPLED),
        "training.local_steps": full.training.local_steps or STEPS,
    }
    common = {**budget, **asked}
    plain: dict[str, Any] = {
        "preset": base,
        "set": common,
        "methods": list(able),
        "seeds": list(seeds),
    }
    if RATE not in asked:
        tried = rates(full.training.learning_rate)
        plain["tune"] = {
            "budget": len(tried),
            "values": {name: {} if name == UNTRAINED else {RATE: tried} for name in able},
            "seeds": [max(seeds) + 1],
        }
    words = [base, *(f"{key}={value}" for key, value in asked.items())]
    return grid_of(plain, name, "advise"), shlex.join(words), left_out


def _able(
    data: str, base: str, asked: Mapping[str, Scalar]
) -> tuple[dict[str, Experiment], dict[str, str]]:
    """Return the candidates that can run with a person's settings, and why the others cannot.

    Raises ConfigError with what is wrong for every candidate, else where fewer than two are left.
    """
    able: dict[str, Experiment] = {}
    wrong: dict[str, tuple[Problem | str, ...]] = {}
    for name in (*CANDIDATES, MODELS_ALONE):
        if name == MODELS_ALONE and RECOMMENDED in able:
            continue
        try:
            able[name] = load_experiment(base, {**asked, "method.preset": name})
        except ConfigError as error:
            wrong[name] = tuple(_of_the_person(problem, name) for problem in error.found)
    if not able:
        everywhere = set.intersection(*({*map(_gist, found)} for found in wrong.values()))
        first = next(iter(wrong.values()))
        if of_all := [problem for problem in first if _gist(problem) in everywhere]:
            raise ConfigError(*of_all)
    if len(able) < 2:
        left = f"only {NAMES[next(iter(able))]}" if able else "none"
        [problem, *_] = next(iter(wrong.values()))
        raise ConfigError(
            f"{data}: advise compares at least two methods, and {left} of its own can run: "
            f"{problem}; `fedapp compare` takes any methods"
        )
    left_out = {n: "; ".join(map(_why, found)) for n, found in wrong.items() if n in CANDIDATES}
    if MODELS_ALONE in able:
        left_out[RECOMMENDED] += f"; {NAMES[MODELS_ALONE]}, its first version, takes its place"
    return able, left_out


def _of_the_person(problem: Problem | str, name: str) -> Problem | str:
    """Return a problem without the method preset in its place: the person did not name one."""
    if isinstance(problem, str):
        return problem
    of_method = f" under {source_of(method_path(name))}"
    return replace(problem, where=problem.where.replace(of_method, ""))


def _gist(problem: Problem | str) -> str:
    """Return what is wrong without its remedy, which names settings of the method at hand."""
    return str(replace(problem, remedy="") if isinstance(problem, Problem) else problem)


def _why(problem: Problem | str) -> str:
    """Return the reason that a method itself gives, else the whole problem."""
    own = "" if isinstance(problem, str) else problem.rule.partition(" cannot run so: ")[2]
    return own or str(problem)


def rates(own: float) -> list[float]:
    """Return the learning rates to try, two digits each: the preset's first, which wins ties."""
    return [float(f"{own * factor:.2g}") for factor in FACTORS]
