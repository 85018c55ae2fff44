"""What a launcher must know before a simulation on Flower starts, in a process that then ends.

`python -m fedapp.drivers.preparing PRESET [key=value ...]` prints two lines of JSON for
`need.planned` and `need.measured`: the plan of a run whose settings were checked, or what is wrong
with them; then what one worker needs. It takes torch, which the launcher then need not hold for as
long as the run lasts.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from fedapp.drivers.need import Plan
from fedapp.drivers.workers import measure
from fedapp.experiment.config import load_experiment, parse_overrides
from fedapp.experiment.experiment import Experiment
from fedapp.experiment.presetfiles import Scalar, anywhere
from fedapp.experiment.runfolder import check_run
from fedapp.experiment.runpaths import peers_path
from fedapp.ground.devices import pick_device
from fedapp.ground.errors import ConfigError, FedAppError


def prepare(preset: str, texts: Sequence[str]) -> tuple[Experiment, Plan]:
    """Return the experiment and how Flower is to run it, all checked.

    Raises ConfigError and RunError as `load_experiment`, `check_run` and `pick_device` do.
    """
    overrides = parse_overrides(texts)
    preset = anywhere(preset)
    if method := overrides.get("method.preset"):
        overrides = {**overrides, "method.preset": anywhere(str(method))}
    experiment = load_experiment(preset, overrides)
    values = {"preset": preset, **overrides, **absolute_paths(experiment)}
    check_run(experiment)
    pick_device(experiment.runtime.device)  # before every simulated site says the same
    runtime, sites = experiment.runtime, experiment.split.num_clients
    return experiment, Plan(run_config(values), sites, runtime.threads, runtime.workers)


def absolute_paths(experiment: Experiment) -> dict[str, Scalar]:
    """Return the paths among the settings, absolute: Flower's processes run in other folders."""
    set_paths = (
        ("data.root", experiment.data.root),
        ("split.manifest", experiment.split.manifest),
        ("runtime.out", experiment.runtime.out),
        ("runtime.peers", str(peers_path(experiment)) if experiment.runtime.peers else ""),
    )
    return {key: str(Path(path).expanduser().absolute()) for key, path in set_paths if path}


def run_config(values: Mapping[str, Scalar]) -> str:
    """Return the values as Flower reads them: `key=value` pairs, each value in TOML."""
    pairs = []
    for key, value in values.items():
        if isinstance(value, str):
            mark = '"' if "'" in value else "'"
            if mark in value or not value.isprintable() or (mark == '"' and "\\" in value):
                raise ConfigError(f"override: {key} = {value!r}: Flower cannot carry such a text")
            pairs.append(f"{key}={mark}{value}{mark}")
        else:
            pairs.append(f"{key}={json.dumps(value)}")
    return " ".join(pairs)


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
