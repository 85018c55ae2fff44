"""A soak: a federation at work for a long time while its programs are killed at random.

    python -m tests.faults.soak [--sites 12] [--rounds 20] [--minutes 30] [--seed 0] [--out FOLDER]

The services of docker/compose.yaml with as many sites as asked for, as processes on loopback: TLS,
a key for each site, the gateway, `fedapp node`. Every 20 to 40 s a service or one of its programs
is killed with all that it started, and started again as a container would be; once a site is
stopped for a minute, and once the disk of the server and of a site is full for half a minute (where
the user may mount one). Runs follow each other until the time is over; one that ends early is taken
up. What each fault was, the seed decides. Then every run is held against one that nothing happened
to. Exit code 1: a run differs before its first fault, a model is lost, or a run did not end.
"""

import argparse
import json
import os
import random
import shutil
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml
from PIL import Image

from fedapp.core.processes import (
    alive,
    descendants,
    read_proc,
    signals_as_exit,
    with_environment_variable,
)
from fedapp.data.published import read_digits
from fedapp.experiment.config import load_experiment
from fedapp.tools.deploy.compose_local import APP, MARK, Services, federation, read_compose
from tests.faults.disk import Disk, may_mount
from tests.faults.runs import Run
from tests.flower.results import loopback, rows

PRESET = "digits_sites"
LEAST_S, MOST_S = 20.0, 40.0
"""Between two faults."""
AGAIN_S = 2.0
"""After which a killed service is started again."""
STOPPED_S = 60.0
FULL_S = 30.0
DISK_MIB = 600
LABELLED_EVERY = (1, 5, 5)
"""Of the first, second and third of every three sites; the third has labels for testing alone."""


def write_images(folder: Path, names: Sequence[str]) -> None:
    """Deal the handwritten digits to the sites, class by class in turn, as tables."""
    digits, turn, seen = read_digits(), 0, Counter[tuple[str, int]]()
    tables: dict[str, list[str]] = {name: ["path,label,split"] for name in names}
    for label in range(10):
        for number in (digits.labels == label).nonzero().flatten().tolist():
            name, turn = names[turn % len(names)], turn + 1
            kind = names.index(name) % 3
            labelled = seen[name, label] % LABELLED_EVERY[kind] == 0
            seen[name, label] += 1
            path = folder / name / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(digits.inputs[number, 0].numpy()).save(path)
            split = ("test" if labelled else "train") if kind == 2 else ""
            tables[name].append(f"{number}.png,{label if labelled else ''},{split}")
    for name, lines in tables.items():
        (folder / name / "labels.csv").write_text("\n".join(lines) + "\n")


def write_compose(folder: Path, names: Sequence[str]) -> Path:
    """Write a compose file that is the demo's, but for the sites; return its path."""
    plain = yaml.safe_load((APP / "docker/compose.yaml").read_text())
    services = plain["services"]
    pattern = json.dumps(services["north"])
    for name in ("north", "south", "west", "images"):
        del services[name]
    sites = {}
    for name in names:
        sites[name] = json.loads(pattern.replace("north", name))
        del sites[name]["depends_on"]["images"]
    keys = [f"{name}-keys:/keys/sites/{name}" for name in names]
    services["certs"]["volumes"] = ["server-keys:/keys/server", *keys]
    first = f"/keys/sites/{names[-1]}/supernode.key"
    hosts = "--host gateway --host superlink"
    made = f"test -e {first} || fedapp certs /keys {hosts} --sites {','.join(names)}"
    services["certs"]["command"] = ["sh", "-c", made]
    demo = services["demo"]["depends_on"]
    services["demo"]["depends_on"] = {"superexec": demo["superexec"]}
    plain["services"] = services | sites
    shutil.copy(APP / "docker/gateway.conf", folder)
    path = folder / "compose.yaml"
    path.write_text(yaml.safe_dump(plain, sort_keys=False))
    return path


@dataclass
class Fault:
    """at: seconds since the first run began. round: the last that the run under way had ended."""

    at: float
    what: str
    run: str
    round: int


@dataclass
class Soak:
    """The federation, what was done to it, and the runs that went on meanwhile."""

    made: Services
    compose: Path
    folder: Path
    names: Sequence[str]
    settings: dict[str, Any]
    faults: list[Fault] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)
    over: threading.Event = field(default_factory=threading.Event)
    run: str = ""
    restarts: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held by whoever kills or starts a service."""

    def processes(self, name: str, word: str = "") -> set[int]:
        """Return the living processes of a service whose command line holds a word."""
        ours = {
            pid
            for pid in with_environment_variable(MARK, str(self.folder))
            if _cwd(pid) == self.folder / name
        }
        ours.add(self.made.start(name).pid)  # nginx writes its title over its environment
        ours = alive(ours | descendants(ours))
        return {pid for pid in ours if word.encode() in read_proc(pid, "cmdline")}

    def kill(self, name: str, word: str = "") -> int:
        """Kill a service's processes, all at once; return how many there were."""
        killed: set[int] = set()
        while found := self.processes(name, word) - killed:
            for pid in found:
                _signal(pid, signal.SIGKILL)
            killed |= found
        return len(killed)

    def start(self, name: str) -> None:
        """Start a service again, as its container's restart policy does."""
        self.restarts[name] += 1
        self.made.spawn(name, read_compose(self.compose)[name].command, name)

    def note(self, what: str) -> None:
        """Write down a fault that comes now."""
        path = self.made.volume("runs") / self.run / "metrics.jsonl"
        done = path.read_bytes().count(b"\n") - 1 if path.exists() else -1
        self.faults.append(Fault(time.monotonic() - self.began, what, self.run, done))
        print(f"{self.faults[-1].at:6.0f} s  {what}  ({self.run}, round {done + 1})", flush=True)

    def restarted(self, name: str) -> None:
        """Kill a whole service, and start it again after a moment."""
        self.note(f"{_kind(name, self.names)} killed")
        self.kill(name)
        time.sleep(AGAIN_S)
        self.start(name)

    def keep_up(self) -> None:
        """Start again what has ended by itself, as a restart policy does."""
        while not self.over.wait(AGAIN_S):
            for name in ("superlink", "superexec", "gateway", *self.names):
                with self.lock:
                    if not self.processes(name):
                        print(f"        {name} has ended: started again", flush=True)
                        self.start(name)


def chances(soak: Soak, draws: random.Random) -> dict[str, Callable[[], None]]:
    """Return what can happen, each by its name; several entries of a kind make it likelier."""
    site = draws.choice(soak.names)

    def message() -> None:
        """Kill what works on a message, where something does; else the whole site."""
        if not soak.processes(site, "client_app.resident.worker"):
            soak.restarted(site)
            return
        soak.note("a site's worker killed")
        soak.kill(site, "client_app.resident.worker")

    def app() -> None:
        soak.note("the ServerApp killed")
        soak.kill("superexec", "flwr-serverapp")

    return {
        "site": lambda: soak.restarted(site),
        "another site": lambda: soak.restarted(site),
        "worker": message,
        "gateway": lambda: soak.restarted("gateway"),
        "superlink": lambda: soak.restarted("superlink"),
        "superexec": lambda: soak.restarted("superexec"),
        "serverapp": app,
    }


def stop_a_site(soak: Soak, name: str) -> None:
    """Stop a site's processes for a minute, as a machine that is suspended."""
    soak.note("a site stopped for a minute")
    stopped = soak.processes(name)
    for pid in stopped:
        _signal(pid, signal.SIGSTOP)
    soak.over.wait(STOPPED_S)
    for pid in stopped:
        _signal(pid, signal.SIGCONT)


def fill(soak: Soak, disk: Disk, whose: str) -> None:
    """Fill a disk for half a minute."""
    soak.note(f"disk full at {whose}")
    disk.fill()
    soak.over.wait(FULL_S)
    disk.free()


def torment(soak: Soak, draws: random.Random, end: float, disks: dict[str, Disk]) -> None:
    """Do something every 20 to 40 s until the time is over."""
    special: list[Callable[[], None]] = [
        lambda: stop_a_site(soak, draws.choice(soak.names)),
        *(
            lambda disk=disk, whose=whose: fill(soak, disk, whose)  # type: ignore[misc]
            for whose, disk in disks.items()
        ),
    ]
    due = sorted(draws.uniform(0.1, 0.8) for _ in special)
    began = time.monotonic()
    while not soak.over.wait(draws.uniform(LEAST_S, MOST_S)) and time.monotonic() < end:
        if due and (time.monotonic() - began) / (end - began) > due[0]:
            due.pop(0)
            special.pop(0)()
            continue
        possible = chances(soak, draws)
        with soak.lock:
            possible[draws.choice(sorted(possible))]()


def finish(soak: Soak, name: str) -> int:
    """Start a run and take it up until it has ended; return how often it was taken up."""
    soak.run, taken_up = name, 0
    words = " ".join(f"{key}={json.dumps(value)}" for key, value in soak.settings.items())
    summary = soak.made.volume("runs") / name / "summary.json"
    while not summary.exists():
        if taken_up > 100:
            raise RuntimeError(f"{name} does not end: {soak.made.log(f'demo-{name}-100')[-2000:]}")
        resume = " runtime.resume=true" if (summary.parent / "checkpoint.json").exists() else ""
        if not resume and summary.parent.exists():
            shutil.rmtree(summary.parent)
        command = ["sh", "/app/docker/admin.sh", "demo", name, words + resume]
        going = soak.made.spawn("demo", command, f"demo-{name}-{taken_up}")
        # `flwr run --stream` ends with the SuperLink; the run does not.
        while not summary.exists() and (at_work(soak) or going.poll() is None):
            time.sleep(1)
            if going.poll() is None and not at_work(soak, 30):
                break
        if going.poll() is None:
            going.terminate()
            going.wait()
        if not summary.exists():
            taken_up += 1
            said = soak.made.log(f"demo-{name}-{taken_up - 1}").strip().splitlines()
            print(f"        {name} taken up: {said[-1] if said else ''}"[:200], flush=True)
            time.sleep(5)
    return taken_up


def at_work(soak: Soak, seconds: float = 10.0) -> bool:
    """Return whether a ServerApp is there, or comes within so many seconds."""
    end = time.monotonic() + seconds
    while not soak.processes("superexec", "flwr-serverapp"):
        if time.monotonic() > end:
            return False
        time.sleep(1)
    return True


def told(soak: Soak, name: str, twin: Path, taken_up: int) -> dict[str, Any]:
    """Hold a run against its twin that nothing happened to."""
    path = soak.made.volume("runs") / name
    found, whole = rows(path), rows(twin)
    stores = {k: Path() for k in range(len(soak.names))}
    run = Run(path, None, path, stores)  # type: ignore[arg-type]
    skips = {row["round"]: row["skipped"] for row in found if row["skipped"]}
    learnt = [_learnt(row) for row in found]
    first = next((i for i, row in enumerate(whole) if learnt[i : i + 1] != [_learnt(row)]), None)
    return {
        "run": name,
        "rounds": len(found) - 1,
        "taken up": taken_up,
        "faults": sum(fault.run == name for fault in soak.faults),
        "first round that differs": first,
        "first round that lacked a site": min(skips, default=None),
        "answers missing": sum(map(len, skips.values())),
        "reasons": Counter(_short(r) for skipped in skips.values() for r in skipped.values()),
        "models lost": run.lost(),
        "accuracy": found[-1]["mean_test_accuracy"],
        "accuracy of the twin": whole[-1]["mean_test_accuracy"],
    }


def _learnt(row: dict[str, Any]) -> dict[str, Any]:
    """What a row says of what was learnt: without its costs."""
    costs = ("models_sent", "models_up", "bytes_up", "bytes_down", "bytes_evaluation")
    return {key: value for key, value in row.items() if key not in costs}


def wrong(one: dict[str, Any], rounds: int) -> list[str]:
    """Return what must not be."""
    found = []
    if one["rounds"] != rounds:
        found.append(f"{one['rounds']} rounds, not {rounds}")
    if one["models lost"]:
        found.append(f"models lost: {one['models lost']}")
    differs, lacked = one["first round that differs"], one["first round that lacked a site"]
    if differs is not None and (lacked is None or differs < lacked):
        found.append(f"round {differs} differs, and no site had been missing")
    return found


def _short(reason: str) -> str:
    return reason.removeprefix("the site refused: ")[:60]


def _kind(name: str, sites: Sequence[str]) -> str:
    return "a site" if name in sites else f"the {name}"


def _cwd(pid: int) -> Path | None:
    try:
        return Path(os.readlink(f"/proc/{pid}/cwd"))
    except OSError:
        return None


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


@contextmanager
def held(folder: Path, names: Sequence[str]) -> Iterator[tuple[Services, Path, dict[str, Disk]]]:
    """Hold the federation, and the small disks of its server's runs and of its first site."""
    compose = write_compose(folder, names)
    with ExitStack() as undo:
        disks = {}
        if may_mount():
            for whose, volume in (("the server", "runs"), ("a site", names[0])):
                place = folder / "volumes" / volume
                place.mkdir(parents=True)
                disks[whose] = undo.enter_context(Disk(place, DISK_MIB))
        made = undo.enter_context(federation(compose, folder, gateway=True))
        for name in names:
            write_to = made.volume(f"{name}-images")
            shutil.copytree(folder / "images" / name, write_to, dirs_exist_ok=True)
        for name in ("superexec", *names):
            made.start(name)
        yield made, compose, disks


def main() -> int:
    """Command line; see the module's docstring."""
    words = argparse.ArgumentParser(prog="python -m tests.faults.soak", description=__doc__)
    words.add_argument("--sites", type=int, default=12, help="how many [12]")
    words.add_argument("--rounds", type=int, default=20, help="of every run [20]")
    words.add_argument("--minutes", type=float, default=30.0, help="of faults [30]")
    words.add_argument("--seed", type=int, default=0, help="of the faults [0]")
    words.add_argument("--out", type=Path, help="a JSON file for what came of it")
    given = words.parse_args()
    names = [f"site{number:02d}" for number in range(given.sites)]
    settings = {
        "data.sites": ", ".join(names),
        "split.num_clients": len(names),
        "model.width": 4,
        "training.warmup_epochs": 1,
        "training.local_epochs": 1,
        "method.mc_samples": 2,
        "rounds.num_rounds": given.rounds,
        "rounds.sample_rate": 0.5,
        "rounds.join_wait_s": 300.0,
        "rounds.deadline_s": 120.0,
        "rounds.min_reply_share": 0.3,
    }
    with (
        signals_as_exit(),
        TemporaryDirectory(prefix="soak-", ignore_cleanup_errors=True) as scratch,
    ):
        folder = Path(scratch)
        write_images(folder / "images", names)
        own = {"data.root": str(folder / "images"), "runtime.out": str(folder / "twin")}
        twin = loopback(load_experiment(PRESET, settings | own))
        with held(folder, names) as (made, compose, disks):
            soak = Soak(made, compose, folder, names, settings)
            end = time.monotonic() + 60 * given.minutes
            draws = random.Random(given.seed)
            evil = threading.Thread(target=torment, args=(soak, draws, end, disks), daemon=True)
            keeper = threading.Thread(target=soak.keep_up, daemon=True)
            evil.start()
            keeper.start()
            found = []
            try:
                while time.monotonic() < end:
                    name = f"soak-{len(found) + 1}"
                    found.append(told(soak, name, twin, finish(soak, name)))
                    print(json.dumps(found[-1]), flush=True)
            finally:  # else they would go on with what is being ended
                soak.over.set()
                evil.join()
                keeper.join()
    faults = Counter(fault.what for fault in soak.faults)
    report = {"sites": given.sites, "minutes": given.minutes, "seed": given.seed}
    whole = {**report, "faults": faults, "restarts": soak.restarts, "runs": found}
    print(json.dumps(whole, indent=1))
    if given.out:
        given.out.write_text(json.dumps(whole, indent=1) + "\n")
    problems = [f"{one['run']}: {p}" for one in found for p in wrong(one, given.rounds)]
    print("\n".join(problems) or "every run ended, no model was lost, no row differs unexplained")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
