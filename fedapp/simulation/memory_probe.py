"""Measure, in a process that then ends, how much memory a worker of a simulation needs.

The launcher of a simulation does not import torch, so that it takes little memory while the run
lasts. `resources` therefore starts this program:

`python -m fedapp.simulation.memory_probe PRESET [key=value ...]` trains one mini-batch and
evaluates once on the preset's largest site. It prints the memory that this took, as a line of JSON.
With large models, Flower's default (a worker for each core, whatever it needs) ends in an
out-of-memory kill. With `--plan` before the preset, the program first checks the settings. It
prints the plan of the run on a line before the measurement; if the settings are wrong, it prints
the error in place of both.
"""

import json
import os
import resource
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch

from fedapp.core.devices import pick_device, pick_dtype, torch_threads
from fedapp.core.errors import ConfigError, FedAppError
from fedapp.data.sites import Part
from fedapp.experiment.config import flower_run_config, load_experiment, parse_overrides
from fedapp.experiment.experiment import Experiment
from fedapp.experiment.preset_files import independent_of_folder
from fedapp.experiment.resume import check_run
from fedapp.learn.model_caches import MAX_MODEL_BYTES
from fedapp.learn.networks import build_model
from fedapp.learn.params import Params
from fedapp.methods.base import SiteContext
from fedapp.protocol.messages import INITIAL_SITE, ModelRef, Task
from fedapp.simulation.resources import ACTOR_BYTES, CUDA_CONTEXT_BYTES, PLAN, Plan, WorkerNeed
from fedapp.site.federation import federation_of


def prepare(preset: str, texts: Sequence[str]) -> tuple[Experiment, Plan]:
    """Return the experiment and how Flower is to run it, all checked.

    Raises ConfigError and RunError as `load_experiment`, `check_run` and `pick_device` do.
    """
    overrides = parse_overrides(texts)
    preset = independent_of_folder(preset)
    paths = {}
    if method := overrides.get("method.preset"):
        paths["method.preset"] = independent_of_folder(str(method))
    experiment = load_experiment(preset, {**overrides, **paths})
    paths |= absolute_paths(experiment)
    words = [text for text in texts if text.partition("=")[0] not in paths]
    words += [f"{key}={path}" for key, path in paths.items()]
    check_run(experiment)
    pick_device(experiment.runtime.device)  # fails once here, and not once at every site
    runtime, sites = experiment.runtime, experiment.split.num_clients
    run_config = flower_run_config({"preset": preset, "set": shlex.join(words)})
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


def measure(experiment: Experiment) -> WorkerNeed:
    """Do a mini-batch of training and an evaluation at the largest site; return the peak."""
    federation, device = federation_of(experiment), pick_device(experiment.runtime.device)
    sites = map(federation.dealt.site, range(experiment.split.num_clients))
    largest = max(sites, key=lambda data: sum(map(len, data.training)))
    images = torch.cat(largest.training).to(device)
    labels = torch.zeros(len(images), dtype=torch.int64, device=device)
    data = largest.to(device).with_parts(test=Part(images, labels))
    compute = pick_dtype(experiment.runtime.precision, device)
    inputs = tuple(images.shape[1:])
    network = build_model(experiment.model, inputs, len(federation.classes), compute)

    size = experiment.method.images_per_step(experiment.training.batch_size, largest)

    def none_needed(ref: ModelRef) -> Params:
        raise AssertionError(ref)

    context = SiteContext(
        data=data,
        model=network.to(device),
        contents=none_needed,
        kept={},
        training=replace(experiment.training, batch_size=size),
        seed=experiment.seed,
        device=device,
    )
    gpus = range(torch.cuda.device_count() if device.type == "cuda" else 0)
    free = tuple(torch.cuda.mem_get_info(k)[0] for k in gpus)
    batch = images[torch.arange(size, device=device) % len(images)]
    targets = context.one_hot(torch.zeros(size, dtype=torch.int64, device=device))
    task = Task(site=0, round=0, action="train", own=ModelRef(INITIAL_SITE, 0, "0" * 64))
    with torch_threads(experiment.runtime.threads):
        context.evaluate("test")
        context.fit(batch, targets, len(batch), 1, task)
    ram = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 + ACTOR_BYTES
    ram += kept_parsed(experiment, sum(t.nbytes for t in network.state_dict().values()))
    gpu = torch.cuda.max_memory_reserved(device) + CUDA_CONTEXT_BYTES if gpus else 0
    return WorkerNeed(ram, gpu, free)


def kept_parsed(experiment: Experiment, model_bytes: int) -> int:
    """Return the bytes of models that a process keeps parsed in the end (`learn.parsed_models`).

    At most those of every site and of the server after every round.
    """
    models = (experiment.rounds.num_rounds + 1) * (experiment.split.num_clients + 1)
    return min(models * model_bytes, MAX_MODEL_BYTES)


def main(argv: Sequence[str]) -> None:
    """Print what a worker needs; with the option `PLAN`, print the run's plan first."""
    planning = argv[0] == PLAN
    preset, *texts = argv[1:] if planning else argv
    try:
        if planning:
            experiment, plan = prepare(preset, texts)
            print(json.dumps(asdict(plan)), flush=True)
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())  # the run will say it
        else:
            experiment = load_experiment(preset, parse_overrides(texts))
    except FedAppError as error:
        if not planning:
            raise SystemExit(str(error)) from error
        print(json.dumps({"error": str(error), "settings": isinstance(error, ConfigError)}))
        return
    try:
        print(json.dumps(asdict(measure(experiment))))
    except FedAppError as error:
        raise SystemExit(str(error)) from error


if __name__ == "__main__":
    main(sys.argv[1:])
