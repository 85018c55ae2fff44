"""How many sites a simulation works on at a time: as many as cores and memory carry.

Light: a launcher that waits for a run's end imports this, and not torch with its 300 MiB.
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
_MEASURING = [sys.executable, "-m", "fedapp.simulation.memory_probe"]
PLAN = "--plan"
"""Option of that program: check the settings, and print the run's plan first."""


@dataclass(frozen=True)
class Need:
    """What one worker takes at its peak and what the GPUs have free, in bytes."""

    ram: int
    gpu: int = 0
    gpus: tuple[int, ...] = ()


@dataclass(frozen=True)
class Plan:
    """A run whose settings were checked, as far as a launcher of Flower must know it.

    run_config: as `flwr run` takes it. workers: sites at a time that a person asked for; 0: nobody.
    """

    run_config: str
    sites: int
    threads: int
    workers: int


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


def as_texts(overrides: Mapping[str, Scalar]) -> list[str]:
    """Return overrides as `key=value` texts, as a command line has them.

    Quotes around a text keep it one; what is inside is read as it stands.
    """
    return [
        f'{key}="{value}"' if isinstance(value, str) else f"{key}={json.dumps(value)}"
        for key, value in overrides.items()
    ]


def start_measuring(preset: str, overrides: Mapping[str, Scalar]) -> subprocess.Popen[str]:
    """Measure in another process, which gives its memory back, while the caller goes on."""
    command = [*_MEASURING, preset, *as_texts(overrides)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=_CODE
    )


def planned(preset: str, overrides: Sequence[str]) -> tuple[Plan, subprocess.Popen[str]]:
    """Check a run's settings in another process; it goes on and measures, for `measured`.

    overrides: `key=value` texts. Raises ConfigError where the settings are wrong, RunError where
    such a run cannot be.
    """
    command = [*_MEASURING, PLAN, preset, *overrides]
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


def measured(process: subprocess.Popen[str]) -> Need | None:
    """Wait for what the process measured; None where it could not: the run will say why."""
    said, _ = process.communicate()
    try:
        plain = json.loads(said)
        return Need(plain["ram"], plain["gpu"], tuple(plain["gpus"]))
    except (ValueError, KeyError, TypeError):
        return None
