"""A SuperLink and SuperNodes as processes of this machine: what a deployment is, without TLS.

Everything lies below one folder: Flower's homes, the nodes' stores, the logs. In the end every
process that was started here has ended, the SuperLink last.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from fedapp.core.processes import free_port
from fedapp.experiment.config import flower_run_config

START_S = 300.0
"""Seconds for a process of Flower to come up on a busy machine."""
END_S = 60.0
BIN = Path(sys.executable).parent


@dataclass
class Deployment:
    """A running SuperLink, and the SuperNodes that were started."""

    folder: Path
    port: int
    nodes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def node(self, **config: str | float) -> subprocess.Popen[bytes]:
        """Start a SuperNode with this node config, beside its own `store-path`."""
        number = len(self.nodes)
        home = self.folder / f"node-{number}"
        home.mkdir()
        whole = {"store-path": str(home / "store"), "no-terms": True, **config}
        settings = " ".join(f"{key}={json.dumps(value)}" for key, value in whole.items())
        address = ["--superlink", f"127.0.0.1:{self.port}", "--port", str(free_port())]
        command = ["flower-supernode", "--insecure", *address, "--node-config", settings]
        self.nodes.append(started(command, home, self.log(number)))
        return self.nodes[-1]

    def log(self, number: int) -> Path:
        """Return the file that a SuperNode's words go to, and those of all it starts."""
        return self.folder / f"node-{number}.log"

    def run(self, app: Path, preset: str, overrides: Sequence[str]) -> str:
        """Run the app in folder `app` with a preset and `key=value` texts; return the run's log.

        Raises SystemExit where `flwr` fails.
        """
        command = [str(BIN / "flwr"), "run", str(app), "here", "--stream"]
        done = subprocess.run(
            [*command, "--run-config", run_config(preset, overrides)],
            env=environment(self.folder),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}\n{done.stdout}\n{done.stderr}")
        return done.stdout

    def end_nodes(self) -> None:
        """End the SuperNodes and wait for them."""
        ended(self.nodes)


@contextmanager
def deployment(folder: Path) -> Iterator[Deployment]:
    """Hold a SuperLink on a free port; in the end it and its SuperNodes have ended."""
    port = free_port()
    (folder / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{port}"\n'
        "insecure = true\n"
    )
    home = folder / "superlink"
    home.mkdir()
    command = ["flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(port)]
    link = started(command, home, folder / "superlink.log")
    whole = Deployment(folder, port)
    try:
        _await(port, link)
        yield whole
    finally:
        whole.end_nodes()
        ended([link])


def started(
    command: Sequence[str], home: Path, log: Path, more: Mapping[str, str] = MappingProxyType({})
) -> subprocess.Popen[bytes]:
    """Start a program of Flower in a folder that is its FLWR_HOME; its words are added to `log`.

    more: environment variables beside the usual ones.
    """
    with log.open("ab") as sink:
        return subprocess.Popen(
            [str(BIN / command[0]), *command[1:]],
            cwd=home,
            env={**environment(home), **more},
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def ended(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Ask processes to end, then insist."""
    for process in processes:
        process.send_signal(signal.SIGTERM)
    for process in processes:
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def environment(home: Path) -> Mapping[str, str]:
    """Return the environment of Flower's processes: own home, no questions asked of the network."""
    kept = {key: text for key, text in os.environ.items() if not key.startswith("FLWR_")}
    return kept | {
        "FLWR_HOME": str(home),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "NO_PROXY": "127.0.0.1,localhost",
        # Flower starts its other programs by name.
        "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
    }


def _await(port: int, link: subprocess.Popen[bytes]) -> None:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    end = time.monotonic() + START_S
    while time.monotonic() < end and link.poll() is None:
        try:
            with direct.open(f"http://127.0.0.1:{port}/health", timeout=1):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise SystemExit(f"the SuperLink on port {port} did not start")


def run_config(preset: str, overrides: Sequence[str]) -> str:
    """Return a preset and `key=value` texts as `flwr run --run-config` takes them."""
    return flower_run_config({"preset": preset, "set": shlex.join(overrides)})
