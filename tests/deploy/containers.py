"""The services of a compose file as containers: in their order, each when what it needs is well.

A compose tool makes networks, volumes and containers. The order is kept here, since
podman-compose looks at nobody's health before Podman 4.6, and Podman alone at nobody's where no
systemd runs: there each look at a container's health is also its check.
"""

import json
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedapp.core.errors import ConfigError, RunError
from fedapp.tools.deploy.compose_local import Service, read_compose

TOOLS = (("docker", "compose"), ("podman-compose",), ("podman", "compose"))
"""Compose tools, best known first."""

_READY_S = 600.0
_POLL_S = 2.0


def compose_tool() -> tuple[str, ...]:
    """Return the first compose tool that works here. Raises ConfigError if none does."""
    for tool in TOOLS:
        engine = engine_of(tool)
        works = all(map(shutil.which, (tool[0], engine))) and not any(
            _call(words).returncode for words in ((*tool, "version"), (engine, "info"))
        )
        if works:
            return tool
    raise ConfigError(
        "no compose tool works here; install Docker with Compose, or Podman and podman-compose"
    )


def engine_of(tool: Sequence[str]) -> str:
    """Return the engine that a compose tool drives: docker or podman."""
    return "docker" if tool[0] == "docker" else "podman"


@dataclass(frozen=True)
class Containers:
    """The services of a compose file, under a project's name of their own.

    profile: one whose services are there too (podman-compose must be told it, for `once` as well).
    Raises RunError where the tool or the engine fails, or a service does not get well.
    """

    tool: tuple[str, ...]
    file: Path
    project: str
    profile: str

    @property
    def engine(self) -> str:
        """docker or podman."""
        return engine_of(self.tool)

    @property
    def services(self) -> dict[str, Service]:
        """What the compose file says, by service."""
        return read_compose(self.file)

    def start(self, name: str) -> None:
        """Start a service, and before it what it depends on; return when it is well or done."""
        if self._id(name):
            return
        for first in self.services[name].after:
            self.start(first)
        said(*self._words("up", "-d", "--no-deps", name))
        if self.services[name].health:
            self.wait(name, "healthy")
        elif (code := said(self.engine, "wait", self._id(name)).strip()) != "0":
            raise RunError(f"{name} ended with {code}; its last lines: {self._last(name)}")

    def wait(self, name: str, health: str) -> None:
        """Wait until a service is healthy or unhealthy."""
        deadline = time.monotonic() + _READY_S
        while (now := self.health(name)) != health:
            if time.monotonic() > deadline:
                raise RunError(f"{name} is {now}, not {health}; its last lines: {self._last(name)}")
            time.sleep(_POLL_S)

    def health(self, name: str) -> str:
        """Return what the engine says of a service: starting, healthy or unhealthy."""
        if self.engine == "podman":
            _call((self.engine, "healthcheck", "run", self._id(name)))
        health: str = self.inspect(name)["State"]["Health"]["Status"]
        return health

    def inspect(self, name: str) -> dict[str, Any]:
        """Return what the engine knows of a service's container."""
        found: dict[str, Any] = json.loads(said(self.engine, "inspect", self._id(name)))[0]
        return found

    def do(self, name: str, *words: str) -> None:
        """Have the engine do something to a service's container, such as ("kill",)."""
        said(self.engine, *words, self._id(name))

    def inside(self, name: str, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command in a service's container that runs already."""
        return _call((self.engine, "exec", self._id(name), *command))

    def once(self, name: str, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command in a new container of a service, gone when the command ends."""
        return _call(self._words("run", "--rm", "--no-deps", "-T", name, *command))

    def begin(self, name: str, *command: str) -> subprocess.Popen[str]:
        """As `once`, but return at once; who calls it reads what it says."""
        words = self._words("run", "--rm", "--no-deps", "-T", name, *command)
        return subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def remove(self) -> None:
        """Remove containers, networks and volumes of this project, and no others."""
        # First by label: a tool forgets the containers of a command that was cut off.
        if left := self._ids():
            said(self.engine, "rm", "-f", *left)
        said(*self._words("down", "-v"))

    def _words(self, *words: str) -> tuple[str, ...]:
        where = ("-p", self.project, "-f", str(self.file), "--profile", self.profile)
        return (*self.tool, *where, *words)

    def _id(self, name: str) -> str:
        """Return the id of a service's container; empty if there is none."""
        # The newest is listed first: the oldest is not one of `once`.
        return "".join(self._ids(f"--filter=label=com.docker.compose.service={name}")[-1:])

    def _ids(self, *filters: str) -> list[str]:
        mine = f"--filter=label=com.docker.compose.project={self.project}"
        return said(self.engine, "ps", "-aq", mine, *filters).split()

    def _last(self, name: str) -> str:
        log = _call((self.engine, "logs", self._id(name))).stdout
        return log.strip().rpartition("\n")[2] or "none"


def _call(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def said(*words: str) -> str:
    """Run a command; return what it says. Raises RunError where it fails."""
    done = _call(words)
    if done.returncode:
        raise RunError(f"{' '.join(words)}: ended with {done.returncode}: {done.stdout.strip()}")
    return done.stdout
