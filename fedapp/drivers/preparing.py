"""What a launcher must know before a simulation on Flower starts, in a process that then ends.

`python -m fedapp.drivers.preparing PRESET [key=value ...]` prints two lines of JSON for
`need.planned` and `need.measured`: the plan of a run whose settings were checked, or what is wrong
with them; then what one worker needs. It takes torch, which the launcher then need not hold for as
long as the run lasts.
"""

import json
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from fedapp.drivers.need import Plan
from fedapp.drivers.workers import measure
from fedapp.experiment.config import flower_words, load_experiment, parse_overrides
from fedapp.experiment.experiment import Experiment
from fedapp.experiment.presetfiles import anywhere
from fedapp.experiment.resume import check_run
from fedapp.ground.devices import pick_device
from fedapp.ground.errors import ConfigError, FedAppError


def prepare(preset: str, texts: Sequence[str]) -> tuple[Experiment, Plan]:
    """Return the experiment and how Flower is to run it, all checked.

    Raises ConfigError and RunError as `load_experiment`, `check_run` and `pick_device` do.
    """
    overrides = parse_overrides(texts)
    preset = anywhere(preset)
    paths = {}
    if method := overrides.get("method.preset"):
        paths["method.preset"] = anywhere(str(method))
    experiment = load_experiment(preset, {**overrides, **paths})
    paths |= absolute_paths(experiment)
    words = [text for text in texts if text.partition("=")[0] not in paths]
    words += [f"{key}={path}" for key, path in paths.items()]
    check_run(experiment)
    pick_device(experiment.runtime.device)  # before every simulated site says the same
    runtime, sites = experiment.runtime, experiment.split.num_clients
    run_config = flower_words({"preset": preset, "set": shlex.join(words)})
    plan = Plan(run_config, sites, runtime.threads, runtime.workers)
    return experiment, plan


def absolute_paths(experiment: Experiment) -> dict[str, str]:
    """Return the paths among the settings, absolute: Flower's processes run in other folders."""
    set_paths = (
        ("data.root", experiment.data.root),
        ("split.manifest", experiment.split.manifest),
        ("runtime.out", experiment.runtime.out),
    )
    return {key: str(Path(path).expanduser().absolute()) for key, path in set_paths if path}


def main(preset: str, texts: Sequence[str]) -> None:
    """Print the plan or what is wrong, then what a worker needs."""
    try:
        experiment, plan = prepare(preset, texts)
    except FedAppError as error:
        print(json.dumps({"error": str(error), "settings": isinstance(error, ConfigError)}))
        return
    print(json.dumps(asdict(plan)), flush=True)
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())  # the run will say it again
    print(json.dumps(asdict(measure(experiment))))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
