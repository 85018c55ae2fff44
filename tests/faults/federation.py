"""A federation as in docs/DEPLOY.md on loopback: TLS, keys, a database, programs that can fail.

SuperLink, SuperExec and three SuperNodes; each SuperNode reaches the SuperLink by a `Cable` of its
own and keeps its models in a folder of its own. Runs are submitted one after the other.
"""

import json
import shutil
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from fedapp.core.processes import free_port
from fedapp.experiment.config import load_experiment
from fedapp.experiment.experiment import Experiment
from fedapp.tools.deploy.certs import make_certs
from tests.deployment import BIN, environment, run_config
from tests.faults.network import Cable
from tests.faults.programs import Program
from tests.faults.runs import Run, until

ROOT = Path(__file__).parents[2]
SITES = ("north", "south", "west")
PRESET = "digits_demo"
TINY = {
    "method.preset": "um_pfssl",
    "split.num_clients": len(SITES),
    "data.subset": 300,
    "model.width": 4,
    "training.warmup_epochs": 1,
    "training.local_epochs": 2,
    "rounds.sample_rate": 1.0,
    "rounds.join_wait_s": 200.0,
    "rounds.num_rounds": 3,
    "method.helper_list_size": 2,
    "method.num_replaced": 1,
    "method.search_rounds": 100,
    "method.mc_samples": 3,
}


@dataclass
class Federation:
    """See the module."""

    folder: Path
    port: int
    superlink: Program
    superexec: Program
    nodes: list[Program] = field(default_factory=list)
    cables: list[Cable] = field(default_factory=list)
    stores: dict[int, Path] = field(default_factory=dict)
    site_folders: dict[int, Path] = field(default_factory=dict)

    @property
    def runs(self) -> Path:
        """Folder of run folders."""
        return self.folder / "runs"

    def kill_superlink(self) -> None:
        """Kill the SuperLink; who calls it is refused from then on."""
        self.superlink.kill()
        for cable in self.cables:
            cable.cut()

    def start_superlink(self) -> None:
        """Start the SuperLink and wait until it answers."""
        self.superlink.start()
        for cable in self.cables:
            cable.mend()
        context = ssl.create_default_context(cafile=self.folder / "keys/ca/ca.crt")
        direct = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )

        def answers() -> bool:
            try:
                with direct.open(f"https://127.0.0.1:{self.port}/health", timeout=5):
                    return True
            except (urllib.error.URLError, OSError):
                return False

        until(answers, "the SuperLink's answer", 0.2)

    def experiment(self, name: str, **settings: object) -> Experiment:
        """Return the experiment that `submit` runs, under another run's name."""
        return load_experiment(PRESET, self._settings(name, **settings))

    def submit(self, name: str, app: Path = ROOT, **settings: object) -> Run:
        """Start a run under a name, with settings beside TINY (`rounds__deadline_s=15.0`).

        None takes one of TINY out.

        app: the folder of the app that it brings.
        """
        pairs = [
            f"{key}={_plain(value)}" for key, value in self._settings(name, **settings).items()
        ]
        again = "-resumed" if settings.get("runtime__resume") else ""
        log, count = self.folder / f"run-{name}{again}.log", 1
        while log.exists():
            count += 1
            log = self.folder / f"run-{name}{again}-{count}.log"
        with log.open("wb") as sink:
            process = subprocess.Popen(
                [BIN / "flwr", "run", app, "here", "--stream", "--run-config",
                 run_config(PRESET, pairs)],
                env=environment(self.folder),
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
            )  # fmt: skip
        out = Path(str(settings.get("runtime__out", self.runs)))
        return Run(out / name, process, log, self.stores)

    def resume(self, run: Run, **settings: object) -> Run:
        """Take up a run; its settings must be given again."""
        again = self.submit(
            run.path.name, **{"runtime__out": str(run.path.parent), **settings},
            runtime__resume=True,
        )  # fmt: skip
        again.seen = run.seen
        return again

    def flwr(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run the coordinator's command."""
        return subprocess.run(
            [BIN / "flwr", *words],
            env=environment(self.folder),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    def online(self) -> int:
        """Return how many sites the SuperLink takes for online."""
        listing = self.flwr("supernode", "list", "here", "--format", "json")
        nodes = json.loads(listing.stdout)["nodes"]
        return sum(node["status"] == "online" for node in nodes)

    def _settings(self, name: str, **settings: object) -> dict[str, object]:
        own = {key.replace("__", ".", 1): value for key, value in settings.items()}
        every = {**TINY, "runtime.out": str(self.runs), **own, "runtime.run_name": name}
        return {key: value for key, value in every.items() if value is not None}


@dataclass(frozen=True)
class NodePlace:
    """Where a site's node has its things. port: the cable's. folder: the site's own."""

    port: int
    number: int
    ca: Path
    key: Path
    store: Path
    folder: Path


def by_flower(at: NodePlace) -> list[str]:
    """Return the command of Flower's own SuperNode."""
    return [
        "flower-supernode", "--superlink", f"127.0.0.1:{at.port}", "--root-certificates",
        str(at.ca), "--auth-supernode-private-key", str(at.key), "--port", str(free_port()),
        "--node-config", f'partition-id={at.number} store-path="{at.store}" no-terms=true',
    ]  # fmt: skip


def by_fedapp(at: NodePlace) -> list[str]:
    """Return the command of `fedapp node`, as hospitals run it."""
    config = f'partition-id={at.number} store-path="{at.store}"'
    return [
        "fedapp", "node", "--server", f"127.0.0.1:{at.port}", "--keys", str(at.key.parent),
        "--site-folder", str(at.folder), "--port", str(free_port()), "--node-config", config,
    ]  # fmt: skip


@contextmanager
def federation(
    folder: Path, scratch: Path, node_of: Callable[[NodePlace], list[str]] = by_flower
) -> Iterator[Federation]:
    """Hold a federation whose sites are in; in the end nothing of it is left.

    scratch: a folder with a short path, for sockets. node_of: a site's program.
    """
    keys = folder / "keys"
    make_certs(keys, ["127.0.0.1"], SITES)
    port = free_port()
    trust = ["--root-certificates", str(keys / "ca/ca.crt")]
    (folder / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{port}"\n'
        f'root-certificates = "{keys}/ca/ca.crt"\n'
    )
    server = keys / "server"
    superlink = Program(
        folder / "superlink",
        ["python", "-m", "fedapp.tools.deploy.superlink",
         "--host", "127.0.0.1", "--port", str(port), "--enable-supernode-auth",
         "--ssl-ca-certfile", f"{server}/ca.crt", "--ssl-certfile", f"{server}/server.crt",
         "--ssl-keyfile", f"{server}/server.key", "--database", str(folder / "state.db"),
         "--isolation", "process", "--disable-runtime-dependency-installation"],
    )  # fmt: skip
    superexec = Program(
        folder / "superexec",
        ["flower-superexec", "--runtime-api-address", f"127.0.0.1:{port}", *trust],
        {"FEDAPP_OUT": str(folder / "runs"), "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2"},
    )
    made = Federation(folder, port, superlink, superexec)
    with ExitStack() as undo:
        undo.callback(superlink.end)
        made.start_superlink()
        undo.callback(superexec.end)
        superexec.start()
        for number, site in enumerate(SITES):
            public = str(server / f"supernodes/{site}.pub")
            done = made.flwr("supernode", "register", public, "here", "--name", site)
            assert done.returncode == 0, done.stdout + done.stderr
            cable = undo.enter_context(Cable(free_port(), port))
            made.cables.append(cable)
            store = made.stores[number] = folder / f"store-{site}"
            sockets = scratch / site
            sockets.mkdir()
            own = made.site_folders[number] = folder / f"own-{site}"
            own.mkdir(mode=0o700)
            (own / "site.yaml").write_text("own_modules: false\n")  # as without terms
            (own / "site.yaml").chmod(0o600)
            key = keys / f"sites/{site}/supernode.key"
            place = NodePlace(cable.port, number, keys / "ca/ca.crt", key, store, own)
            node = Program(
                folder / site,
                node_of(place),
                {"TMPDIR": str(sockets), "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2"},
                restart_s=2.0,
            )  # fmt: skip
            made.nodes.append(node)
            undo.callback(node.end)
            node.start()
        until(lambda: made.online() == len(SITES), "three sites online")
        yield made


def empty(folder: Path) -> None:
    """Remove what is in a folder."""
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
