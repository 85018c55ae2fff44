"""How many sites a simulation trains at the same time: as many as cores and memory allow.

This module does not import torch, which takes 300 MiB: the launcher of a simulation imports it and
stays in memory until the run has ended.
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedapp.core.errors import ConfigError, RunError
from fedapp.experiment.preset_files import Scalar

MIB = 2**20
ACTOR_BYTES = 512 * MIB
"""Memory of each worker that is not measured: Flower, Ray and the cache of the store."""
SERVER_BYTES = 1536 * MIB
"""Memory of the SuperLink, the ServerApp and Ray's own processes together."""
CUDA_CONTEXT_BYTES = 600 * MIB
"""GPU memory that a process takes for its CUDA context, before it holds a tensor."""
USABLE_SHARE = 0.9
"""Part of the free memory that workers may use; the rest is for other programs."""

MEMINFO, CGROUP = Path("/proc/meminfo"), Path("/sys/fs/cgroup")
"""Where Linux shows the free memory, and the memory limit of a container."""

_CHECKOUT = Path(__file__).resolve().parents[2]
_PROBE = [sys.executable, "-m", "fedapp.simulation.memory_probe"]
PLAN = "--plan"
"""Option of `memory_probe`: check the settings and print the run's plan before measuring."""


@dataclass(frozen=True)
class WorkerNeed:
    """What one worker takes at its peak, and what is free, in bytes.

    ram: main memory. gpu: memory of a GPU. gpus: free memory of each GPU.
    """

    ram: int
    gpu: int = 0
    gpus: tuple[int, ...] = ()


@dataclass(frozen=True)
class Plan:
    """What the launcher must know of a run whose settings were checked.

    run_config: the text for `flwr run --run-config`. workers: `runtime.workers`, the number of
    sites at a time that a person asked for; 0: nobody asked.
    """

    run_config: str
    sites: int
    threads: int
    workers: int


def workers(sites: int, threads: int, cores: int, ram: int, need: WorkerNeed) -> tuple[int, str]:
    """Return the number of workers, at least 1, and the name of what limits it.

    threads: CPU threads of each worker. cores: the cores that this process may use. ram: bytes of
    free main memory.
    """
    limits = {
        "sites": sites,
        "cores": cores // threads,
        "memory": int((ram * USABLE_SHARE - SERVER_BYTES) // need.ram),
    }
    if need.gpus:
        limits["GPU memory"] = sum(int(free * USABLE_SHARE // need.gpu) for free in need.gpus)
    least = min(limits, key=lambda name: limits[name])
    return max(limits[least], 1), least


def free_ram() -> int:
    """Return the bytes of free main memory, within the limit of the container if there is one."""
    facts = dict(line.split(":", 1) for line in MEMINFO.read_text().splitlines())
    free = int(facts["MemAvailable"].split()[0]) * 1024
    try:
        limit, used = ((CGROUP / f"memory.{name}").read_text() for name in ("max", "current"))
        return free if limit.strip() == "max" else min(free, int(limit) - int(used))
    except (OSError, ValueError):  # this machine has no such limit
        return free


def as_texts(overrides: Mapping[str, Scalar]) -> list[str]:
    """Return overrides as the `key=value` texts of a command line.

    A text is put in quotes, so that it is not read as a number or a truth value.
    """
    return [
        f'{key}="{value}"' if isinstance(value, str) else f"{key}={json.dumps(value)}"
        for key, value in overrides.items()
    ]


def start_measuring(preset: str, overrides: Mapping[str, Scalar]) -> subprocess.Popen[str]:
    """Start to measure in another process, whose memory is free again when it ends."""
    command = [*_PROBE, preset, *as_texts(overrides)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=_CHECKOUT
    )


def planned(preset: str, overrides: Sequence[str]) -> tuple[Plan, subprocess.Popen[str]]:
    """Check a run's settings in another process; return the plan and that process.

    The process goes on to measure; `measured` waits for the result. overrides: `key=value` texts.
    Raises ConfigError if the settings are wrong, RunError if the run cannot be started.
    """
    command = [*_PROBE, PLAN, preset, *overrides]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        process.communicate()
        raise RunError(f"the settings could not be checked: exit code {process.returncode}")
    said = json.loads(line)
    if "error" in said:
        process.communicate()
        raise (ConfigError if said["settings"] else RunError)(said["error"])
    return Plan(**said), process


def measured(process: subprocess.Popen[str]) -> WorkerNeed | None:
    """Return what the process measured; None if it failed: the run itself will show the error."""
    said, _ = process.communicate()
    try:
        plain = json.loads(said)
        return WorkerNeed(plain["ram"], plain["gpu"], tuple(plain["gpus"]))
    except (ValueError, KeyError, TypeError):
        return None
