"""How many sites a simulation works on at a time: as many as cores and memory carry.

What a worker needs is measured, in a process of its own, on the preset's largest site: a mini-batch
of training and an evaluation. Flower's default, a worker per core whatever it needs, ends large
models in an out-of-memory kill.

`python -m fedapp.drivers.workers PRESET [key=value ...]` measures and prints JSON.
"""

import json
import resource
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from fedapp.data.parts import Part
from fedapp.experiment.config import load_experiment, parse_overrides
from fedapp.experiment.experiment import Experiment
from fedapp.experiment.presetfiles import Scalar
from fedapp.ground.devices import pick_device, pick_dtype, torch_threads
from fedapp.ground.errors import FedAppError
from fedapp.learn.networks import build_model
from fedapp.learn.ondevice import budget_of
from fedapp.learn.params import Params
from fedapp.learn.scores import ScoreStore
from fedapp.messages.protocol import INITIAL_SITE, ModelRef, Task
from fedapp.methods.base import SiteContext
from fedapp.site.federation import federation_of

MIB = 2**20
ACTOR = 512 * MIB
"""Flower, Ray and the store's cache in each worker, beside what is measured."""
SERVER = 1536 * MIB
"""SuperLink, ServerApp and Ray's own processes together."""
CONTEXT = 600 * MIB
"""GPU memory that a process takes before it holds a tensor."""
SHARE = 0.9
"""Of what is free: the rest is for whoever else is there."""

MEMORY, GROUP = Path("/proc/meminfo"), Path("/sys/fs/cgroup")
"""Where Linux tells what is free, and a container's limit."""

_CODE = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Need:
    """What one worker takes at its peak and what the GPUs have free, in bytes."""

    ram: int
    gpu: int = 0
    gpus: tuple[int, ...] = ()


def workers(sites: int, threads: int, cores: int, ram: int, need: Need) -> tuple[int, str]:
    """Return the number of workers, at least 1, and what sets it.

    cores: those this process may use. ram: bytes of main memory that are free.
    """
    limits = {
        "sites": sites,
        "cores": cores // threads,
        "memory": int((ram * SHARE - SERVER) // need.ram),
    }
    if need.gpus:
        limits["GPU memory"] = sum(int(free * SHARE // need.gpu) for free in need.gpus)
    least = min(limits, key=lambda name: limits[name])
    return max(limits[least], 1), least


def free_ram() -> int:
    """Return the bytes of main memory that are free, the container's limit considered."""
    facts = dict(line.split(":", 1) for line in MEMORY.read_text().splitlines())
    free = int(facts["MemAvailable"].split()[0]) * 1024
    try:
        limit, used = ((GROUP / f"memory.{name}").read_text() for name in ("max", "current"))
        return free if limit.strip() == "max" else min(free, int(limit) - int(used))
    except (OSError, ValueError):  # no such control here
        return free


def start_measuring(preset: str, overrides: Mapping[str, Scalar]) -> subprocess.Popen[str]:
    """Measure in another process, which gives its memory back, while the caller goes on."""
    words = [f"{key}={json.dumps(value)}" for key, value in overrides.items()]
    command = [sys.executable, "-m", "fedapp.drivers.workers", preset, *words]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=_CODE
    )


def measured(process: subprocess.Popen[str]) -> Need | None:
    """Wait for what the process measured; None where it could not: the run will say why."""
    said, _ = process.communicate()
    try:
        plain = json.loads(said)
        return Need(plain["ram"], plain["gpu"], tuple(plain["gpus"]))
    except (ValueError, KeyError, TypeError):
        return None


def measure(experiment: Experiment) -> Need:
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

    size = experiment.method.images_per_step(experiment.training.batch_size)

    def none_needed(ref: ModelRef) -> Params:
        raise AssertionError(ref)

    context = SiteContext(
        data=data,
        model=network.to(device),
        contents=none_needed,
        kept={},
        scores=ScoreStore(),
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
    ram = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 + ACTOR
    return Need(ram, _gpu_need(experiment, device) if gpus else 0, free)


def _gpu_need(experiment: Experiment, device: torch.device) -> int:
    """Return the GPU memory of a process whose peak was just measured, with what it keeps there."""
    peak = torch.cuda.max_memory_reserved(device)
    pools = 2 if experiment.runtime.graphs else 1  # recorded work has memory of its own
    return pools * peak + CONTEXT + budget_of(device)


if __name__ == "__main__":
    try:
        found = measure(load_experiment(sys.argv[1], parse_overrides(sys.argv[2:])))
    except FedAppError as error:
        raise SystemExit(str(error)) from error
    print(json.dumps(asdict(found)))
