"""Runs the demo federation of docker/compose.yaml without Docker, as processes on loopback.

    python -m fedapp.tools.deploy.compose_local [KEEP]   KEEP: folder that stays, with logs and runs

Without KEEP only the run stays, among the user's runs. Each service runs exactly its command and
its health check. What a container would provide is replaced: a service's name and port by 127.0.0.1
and a free port, each volume and mount by a folder. Without nginx there is no gateway, which is
printed, and sites talk to the SuperLink directly.

Exit code: 0 the demo showed its result; 1 it did not; 128 + n signal n ended it.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import yaml

from fedapp.core.errors import FedAppError, RunError
from fedapp.core.processes import (
    alive,
    descendants,
    free_port,
    signals_as_exit,
    terminate,
    with_environment_variable,
)
from fedapp.experiment.run_folder import runs_root
from fedapp.simulation.flower_local import told_to_activate

APP = Path(__file__).resolve().parents[3]
MARK = "FEDAPP_COMPOSE_FOLDER"
"""Environment variable that marks the processes of a federation; its value is their folder."""

_READY_S = 600.0
_POLL_S = 1.0


@dataclass(frozen=True)
class Service:
    """A service of the compose file. Its paths and addresses are those inside a container."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    ports: tuple[str, ...]
    mounts: Mapping[str, str]
    """Path in the container -> a volume, a ./file beside the compose file, or "" (a new folder)."""
    after: Mapping[str, str]
    """Service that this one waits for -> started, healthy or completed_successfully."""
    health: tuple[str, ...]

    @classmethod
    def read(cls, name: str, plain: Mapping[str, Any]) -> Self:
        """Read a service of a compose file, in the syntax that docker/compose.yaml uses."""
        mounts = {path: "" for path in plain.get("tmpfs", ())}
        for mount in plain.get("volumes", ()):
            source, target = mount.split(":")[:2]
            mounts[target] = source
        after = plain.get("depends_on", {}).items()
        return cls(
            name,
            tuple(plain["command"]),
            plain.get("environment", {}),
            tuple(plain.get("expose", ())),
            mounts,
            {first: rule["condition"].removeprefix("service_") for first, rule in after},
            tuple(plain.get("healthcheck", {}).get("test", ())[1:]),
        )


def read_compose(path: Path) -> dict[str, Service]:
    """Return the services of a compose file by name."""
    plain = yaml.safe_load(path.read_text())["services"]
    return {name: Service.read(name, service) for name, service in plain.items()}


class Services:
    """The services of a compose file as processes on loopback, with all files in one folder.

    folder: holds volumes/NAME, a folder for each service, and logs/SERVICE.log. instead: for each
    service that is left out, the one that answers in its place. Raises RunError if a service ends
    or does not get ready.
    """

    def __init__(self, compose: Path, folder: Path, instead: Mapping[str, str]) -> None:
        self._services = {k: v for k, v in read_compose(compose).items() if k not in instead}
        self._folder, self._instead = folder, instead
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        ports = {(s.name, port): free_port() for s in self._services.values() for port in s.ports}
        self.addresses = {
            f"{name}:{port}": f"127.0.0.1:{free}" for (name, port), free in ports.items()
        }
        for name, other in instead.items():
            for port in read_compose(compose)[name].ports:
                [place] = (v for k, v in self.addresses.items() if k.startswith(f"{other}:"))
                self.addresses[f"{name}:{port}"] = place
        self._places = {name: self._prepare(service) for name, service in self._services.items()}
        for name, service in self._services.items():
            for target, source in service.mounts.items():
                if source.startswith("./"):
                    content = (compose.parent / source).read_text()
                    self._places[name][target].write_text(self.text(name, content))

    def volume(self, name: str) -> Path:
        """Return the folder of a volume."""
        return self._folder / "volumes" / name

    def place(self, name: str, path: str) -> Path:
        """Return the folder that replaces a mount of a service."""
        return self._places[name][path]

    def log(self, name: str) -> str:
        """Return the log of a service."""
        return (self._folder / "logs" / f"{name}.log").read_text(errors="replace")

    def start(self, name: str) -> subprocess.Popen[bytes]:
        """Start a service after those that it depends on; return its process."""
        if name not in self._processes:
            for first in self._after(name):
                self.start(first)
            for first, condition in self._after(name).items():
                self._await(first, condition)
            self.spawn(name, self._services[name].command, name)
        return self._processes[name]

    def check(self) -> None:
        """Raise RunError if a service has failed: without it, nothing would go on."""
        for name, process in self._processes.items():
            if code := process.poll():
                raise RunError(f"{name} ended with {code}; its last lines: {self._last(name)}")

    def stop(self) -> None:
        """End every process of this federation."""
        started = {process.pid for process in self._processes.values()}

        def remaining() -> set[int]:
            # nginx overwrites its environment; Flower's programs outlive their parents.
            ours = started | with_environment_variable(MARK, str(self._folder))
            return alive(ours | descendants(started))

        terminate(remaining)
        for process in self._processes.values():
            process.wait()

    def spawn(self, name: str, command: Sequence[str], log: str) -> subprocess.Popen[bytes]:
        """Start a command as a service would run it, with its output in logs/LOG.log."""
        path = self._folder / "logs" / f"{log}.log"
        path.parent.mkdir(exist_ok=True)
        with path.open("ab") as sink:
            process = subprocess.Popen(
                self._words(name, command),
                env=self._environment(name),
                cwd=self._folder / name,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is ours to handle
                umask=0o077,  # Flower's database has models in it
            )
        self._processes[log] = process
        return process

    def run(self, name: str, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command as a service would run it; return its exit code and output."""
        return subprocess.run(
            self._words(name, command),
            env=self._environment(name),
            cwd=self._folder / name,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )

    def text(self, name: str, text: str) -> str:
        """Return a text of a service with its addresses and paths replaced by those here."""
        places = self._places[name]
        words = {re.escape(k): v for k, v in self.addresses.items()} | {r"0\.0\.0\.0": "127.0.0.1"}
        own = {k.split(":")[1]: v for k, v in self.addresses.items() if k.startswith(f"{name}:")}
        words |= {rf"(?<!\d){port}(?!\d)": v.split(":")[1] for port, v in own.items()}
        words |= {rf"(?<![\w./-]){re.escape(k)}(?![\w.-])": str(v) for k, v in places.items()}
        # In one pass, so that a replacement is not replaced again.
        pattern = "|".join(f"({word})" for word in words)
        values = list(words.values())
        return re.sub(pattern, lambda match: values[(match.lastindex or 1) - 1], text)

    def _after(self, name: str) -> dict[str, str]:
        after = self._services[name].after
        return {self._instead.get(first, first): condition for first, condition in after.items()}

    def _prepare(self, service: Service) -> dict[str, Path]:
        """Make the folders of a service; return the path here for each path in its container."""
        own = self._folder / service.name
        own.mkdir(parents=True, exist_ok=True)
        places = {"/app": APP}
        for target, source in service.mounts.items():
            if source.startswith("./"):
                places[target] = own / Path(source).name
                continue
            places[target] = self.volume(source) if source else own / "tmpfs" / target.strip("/")
            places[target].mkdir(parents=True, exist_ok=True)
            top = str(Path(*Path(target).parts[:2]))
            if target != top:  # a folder of the image, which shows what is mounted below it
                places[top] = own / top.strip("/")
                link = own / target.strip("/")
                link.parent.mkdir(parents=True, exist_ok=True)
                if not link.is_symlink():
                    link.symlink_to(places[target], target_is_directory=True)
        return places

    def _words(self, name: str, command: Sequence[str]) -> list[str]:
        first, *rest = (self.text(name, word) for word in command)
        return [sys.executable if first == "python" else first, *rest]

    def _environment(self, name: str) -> dict[str, str]:
        own = {k: self.text(name, str(v)) for k, v in self._services[name].environment.items()}
        # Flower and fedapp are started by name.
        programs = (str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath))
        return {
            "PATH": os.pathsep.join(programs),
            "PYTHONPATH": str(APP),
            "NO_PROXY": "127.0.0.1,localhost",
            "LANG": "C.UTF-8",
            MARK: str(self._folder),
            **own,
        }

    def _await(self, name: str, condition: str) -> None:
        """Wait until a started service meets the condition of another one."""
        process, deadline = self._processes[name], time.monotonic() + _READY_S
        while time.monotonic() < deadline:
            code = process.poll()
            if condition == "completed_successfully" and code == 0:
                return
            if code is not None:
                raise RunError(f"{name} ended with {code}; its last lines: {self._last(name)}")
            if condition == "started" or (condition == "healthy" and self._healthy(name)):
                return
            time.sleep(_POLL_S)
        raise RunError(f"{name} is not {condition} after {_READY_S:g} s: {self._last(name)}")

    def _healthy(self, name: str) -> bool:
        return self.run(name, *self._services[name].health).returncode == 0

    def _last(self, name: str) -> str:
        return self.log(name).strip().rpartition("\n")[2] or "none"


@contextmanager
def federation(compose: Path, folder: Path, *, gateway: bool) -> Iterator[Services]:
    """Yield the federation of a compose file, and end all its processes afterwards."""
    instead = {} if gateway else {"gateway": "superlink"}
    made = Services(compose, folder, instead)
    try:
        yield made
    finally:
        made.stop()


def has_gateway() -> bool:
    """Return whether the programs that the gateway needs are installed."""
    return all(map(shutil.which, ("nginx", "curl")))


def shown(text: str, runs: Path, place: Path) -> str:
    """Return what the demo prints, with its run named so that a command here finds it.

    runs: the folder of runs inside the federation. place: that in which the run is found later.
    """
    text = text.replace(str(runs), str(place))
    if place == runs_root():
        return text
    return re.sub(r"(fedapp (?:report|site) )(?=demo-)", rf"\1{place}/", text)


def _demo(folder: Path, place: Path) -> int:
    """Run the demo in `folder`, and put its run into `place`."""
    compose = APP / "docker" / "compose.yaml"
    if not compose.is_file():
        raise RunError(f"{compose}: is not there; run this from a checkout of the project")
    if not (gateway := has_gateway()):
        print("no nginx here: the sites speak to the SuperLink without the gateway", flush=True)
    print(f"starting the services of {compose}; logs in {folder / 'logs'}", flush=True)
    with federation(compose, folder, gateway=gateway) as made:
        runs, process, told = made.volume("runs"), made.start("demo"), 0
        ended = False
        while not ended:
            ended = process.poll() is not None
            whole = made.log("demo") if ended else made.log("demo").rpartition("\n")[0]
            print(shown(whole[told:], runs, place), end="", flush=True)
            told = len(whole)
            if not ended:
                made.check()
            time.sleep(_POLL_S)
        for run in () if place == runs else runs.iterdir():
            shutil.copytree(run, place / run.name)
        return 1 if process.returncode else told_to_activate()


def main(arguments: Sequence[str]) -> int:
    """Command line; see the module's docstring."""
    try:
        with signals_as_exit(), TemporaryDirectory(prefix="um-", ignore_cleanup_errors=True) as t:
            folder = Path(arguments[0]).absolute() if arguments else Path(t)
            folder.mkdir(parents=True, exist_ok=True)
            return _demo(folder, folder / "volumes" / "runs" if arguments else runs_root())
    except FedAppError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
