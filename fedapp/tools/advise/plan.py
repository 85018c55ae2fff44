"""What `fedapp advise` runs: the candidates at a small budget, on a person's own data."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedapp.data.folder import list_images
from fedapp.experiment.config import load_experiment
from fedapp.experiment.presetfiles import CONF, Scalar, anywhere, presets, yaml_path
from fedapp.ground.errors import ConfigError, nearest
from fedapp.tools.compare.grid import Grid, grid_of
from fedapp.tools.compare.tuning import RATE

CANDIDATES = ("local_only", "one_round", "fedavg", "fedavg_ft", "recommended")
"""Method presets, the simplest first: `one_round` trains nothing."""
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


def plan(data: str, given: Mapping[str, Scalar], seeds: Sequence[int]) -> tuple[Grid, str]:
    """Return what to run and to tune, and the words of the command line that run it in full.

    data: a preset, by name or file, or a folder of images by class. given: overrides, which go over
    the budget. Those that train are tuned on a seed that the comparison does not use, each by the
    same learning rates (`rates`); a given learning rate is that of all, and nothing is tuned.
    Raises ConfigError where there is no such thing, DataError where a folder has no images.
    """
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
    full = load_experiment(base, {**asked, "method.preset": CANDIDATES[-1]})
    budget: dict[str, Scalar] = {
        "rounds.num_rounds": min(full.rounds.num_rounds, ROUNDS),
        "rounds.sample_rate": max(full.rounds.sample_rate, SAMPLED),
        "training.local_steps": full.training.local_steps or STEPS,
    }
    common = {**budget, **asked}
    plain: dict[str, Any] = {
        "preset": base,
        "set": common,
        "methods": list(CANDIDATES),
        "seeds": list(seeds),
    }
    if RATE not in asked:
        tried = rates(full.training.learning_rate)
        plain["tune"] = {
            "budget": len(tried),
            "values": {name: {} if name == "one_round" else {RATE: tried} for name in CANDIDATES},
            "seeds": [max(seeds) + 1],
        }
    words = [base, *(f"{key}={value}" for key, value in asked.items())]
    return grid_of(plain, name, "advise"), shlex.join(words)


def rates(own: float) -> list[float]:
    """Return the learning rates to try, two digits each: the preset's first, which wins ties."""
    return [float(f"{own * factor:.2g}") for factor in FACTORS]
