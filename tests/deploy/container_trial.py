"""The federation of docker/compose.yaml tried in containers, faults included.

    python -m tests.deploy.container_trial     needs Docker with Compose, or podman-compose

It makes a federation of its own beside others, says what holds, and removes what it made. Some
minutes; the image is built first if it is not there.

Exit code: 0 all holds, 1 something does not, 128 + n signal n ended it.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedapp.core.errors import FedAppError, RunError
from fedapp.core.processes import signals_as_exit
from fedapp.tools.deploy.compose_local import APP
from tests.deploy.containers import Containers, compose_tool

SITES = ("north", "south", "west")
LASTING = ("superlink", "superexec", "gateway", *SITES)
"""Services that stay up."""
SERVER = ("gateway", "superexec", "superlink")

_ROUNDS = 12
"""Rounds of the run with faults: a site that was killed is let in again after a minute."""
_PATIENCE = f"rounds.num_rounds={_ROUNDS} rounds.min_reply_share=0.3 rounds.deadline_s=120"
"""Two of three may be away; and one back at once is not seen to have lost its task (FAULTS.md)."""
_WAIT_S = 900.0
_USER = "10001"

_WRITABLE = (
    r"find / \( -path /proc -o -path /sys -o -path /dev \) -prune -o -type d "
    """-exec sh -c 'for d; do test -w "$d" && echo "$d"; done; true' sh {} +"""
)
_PROGRAM = "int(open('/proc/1/task/1/children').read().split()[0])"
"""The number of a container's program, which its init started first."""
_CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 5)"
_KEPT = "import pathlib, sys; print(*pathlib.Path('/site').rglob('*.safetensors'))"
_RESULT = """
import json, pathlib, sys
folder = pathlib.Path(sys.argv[1])
metrics = folder / "metrics.jsonl"
lines = metrics.read_text().splitlines(keepends=True) if metrics.exists() else []
rows = [json.loads(line) for line in lines if line.endswith("\\n")]
found = {
    "accuracies": [row["mean_test_accuracy"] for row in rows],
    "skipped": [row["skipped"] for row in rows],
}
if (folder / "summary.json").exists():
    found["sites"] = (folder / "per_site.csv").read_text()
    found["models"] = json.loads((folder / "checkpoint.json").read_text())["pool"]
print(json.dumps(found))
"""
"""Says of a run's folder: accuracy and absent sites by round; at its end sites and models."""


def try_all(made: Containers) -> None:
    """Start the federation and check it, line by line. Raises RunError where one does not hold."""
    with _checked("six services start in their order and are healthy"):
        for name in LASTING:
            made.start(name)
    with _checked("each is user 10001 without capabilities, and writes to its volumes alone"):
        for name in LASTING:
            _confined(made, name)
    with _checked("a site reaches the gateway's Fleet API, and nothing of the server's"):
        _apart(made)
    with _checked("the demo's result is the one without containers and Flower, to the bit"):
        alone = _alone(made)
        _follow(made, "demo")
        _same(alone, _result(made, "demo"))
    with _checked("a site that hangs is unhealthy, and healthy when it goes on"):
        _signal(made, "west", "STOP")
        made.wait("west", "unhealthy")
        _signal(made, "west", "CONT")
        made.wait("west", "healthy")
    with _checked("killed in a run, one site is restarted, one brought back; both take part again"):
        _sites_killed(made)
    with _checked("the server killed in a run: brought back and resumed, the same bits"):
        _server_killed(made, alone)
    with _checked("what a site keeps outlives its container"):
        before = made.inside("north", "python", "-c", _KEPT).stdout
        made.do("north", "rm", "-f")
        made.start("north")
        _must("/site/models/demo/north/model.safetensors" in before, "north kept no named model")
        _must(made.inside("north", "python", "-c", _KEPT).stdout == before, "north lost models")


@contextmanager
def _checked(what: str) -> Iterator[None]:
    start = time.monotonic()
    yield
    print(f"ok {time.monotonic() - start:5.0f} s  {what}", flush=True)


def _must(holds: bool, otherwise: str) -> None:
    if not holds:
        raise RunError(otherwise)


def _confined(made: Containers, name: str) -> None:
    status = made.inside(name, "cat", "/proc/self/status").stdout
    facts = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    _must(facts["Uid"].split() == [_USER] * 4, f"{name}: runs as user {facts['Uid'].strip()}")
    for capabilities in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        _must(int(facts[capabilities], 16) == 0, f"{name}: has capabilities ({capabilities})")
    _must(facts["NoNewPrivs"].strip() == "1", f"{name}: may gain privileges")
    mounts = made.inspect(name)["Mounts"]
    # Podman puts memory at /var/tmp too, in every container that is read-only.
    allowed = {"/tmp", "/var/tmp", *(m["Destination"] for m in mounts if m["RW"])}
    found = set(made.inside(name, "sh", "-c", _WRITABLE).stdout.splitlines())
    found = {f for f in found if not f.startswith("find:")}
    outside = {f for f in found if not any(Path(f).is_relative_to(a) for a in allowed)}
    _must("/tmp" in found and not outside, f"{name}: may write to {sorted(outside)}")


def _apart(made: Containers) -> None:
    for site in SITES:
        _must(_reaches(made, site, "gateway", "8443"), f"{site}: does not reach the gateway")
        for target in ("superlink", *_addresses(made, "superlink")):
            reached = _reaches(made, site, target, "8000")
            _must(not reached, f"{site}: reaches the SuperLink's port 8000 at {target}")
    for target in ("north", *_addresses(made, "north")):
        reached = _reaches(made, "superexec", target, "9094")
        _must(not reached, f"superexec: reaches north's port 9094 at {target}")
    ca = ("--cacert", "/keys/ca.crt", "-s", "-o", "/dev/null", "-w", "%{http_code}")
    for path, due in {"/health": "200", "/v1/control/list-nodes": "404", "/": "404"}.items():
        got = made.inside("gateway", "curl", *ca, f"https://gateway:8443{path}").stdout
        _must(got == due, f"gateway: {path} answers {got}, not {due}")


def _addresses(made: Containers, name: str) -> list[str]:
    networks = made.inspect(name)["NetworkSettings"]["Networks"].values()
    return [network["IPAddress"] for network in networks]


def _reaches(made: Containers, name: str, host: str, port: str) -> bool:
    return made.inside(name, "python", "-c", _CONNECT, host, port).returncode == 0


def _alone(made: Containers) -> dict[str, Any]:
    """Return the demo's result in one container, without network and Flower."""
    run = "fedapp run digits_sites data.root=/images runtime.out=/tmp runtime.run_name=alone"
    script = f'{run} >/tmp/said 2>&1 || {{ cat /tmp/said; exit 1; }}; python -c "$0" /tmp/alone'
    done = made.once("images", "sh", "-c", script, _RESULT)
    _must(done.returncode == 0, f"images: {run} failed: {done.stdout.strip()}")
    return _read(done.stdout)


def _result(made: Containers, run: str) -> dict[str, Any]:
    done = made.inside("superexec", "python", "-c", _RESULT, f"/runs/{run}")
    _must(done.returncode == 0, f"superexec: {run} cannot be read: {done.stdout.strip()}")
    return _read(done.stdout)


def _read(said: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(said.strip().rpartition("\n")[2])
    return found


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    differ = [name for name in one if one[name] != other.get(name)]
    _must(not differ, f"the run's {', '.join(differ)} differ from those without containers")


def _sites_killed(made: Containers) -> None:
    run = _begin(made, "faults", _PATIENCE)
    _signal(made, "south", "KILL")  # by itself: the restart policy's to mend
    made.do("north", "kill")
    time.sleep(5)
    made.do("north", "start")
    _end(run)
    skipped = _result(made, "faults")["skipped"]
    _must(len(skipped) == _ROUNDS + 1, f"the run ended after round {len(skipped) - 1}")
    _must(any(skipped), "no round was without the sites that were killed")
    _must(not skipped[-1], f"still absent in the last round: {skipped[-1]}")
    _must(made.inspect("south")["RestartCount"] > 0, "south: its restart policy did nothing")
    for site in SITES:
        made.wait(site, "healthy")


def _server_killed(made: Containers, alone: Mapping[str, Any]) -> None:
    run = _begin(made, "cut")
    for name in SERVER:
        made.do(name, "kill")
    run.communicate()
    for name in reversed(SERVER):
        made.do(name, "start")
        made.wait(name, "healthy")
    _must(len(_result(made, "cut")["accuracies"]) < len(alone["accuracies"]), "the run had ended")
    _follow(made, "cut", "runtime.resume=true")
    _same(alone, _result(made, "cut"))


def _begin(made: Containers, name: str, *settings: str) -> subprocess.Popen[str]:
    """Start a run; return when its first round is at an end."""
    run = made.begin("demo", "sh", "/app/docker/admin.sh", "demo", name, *settings)
    deadline = time.monotonic() + _WAIT_S
    while len(_result(made, name)["accuracies"]) < 2:
        if run.poll() is not None or time.monotonic() > deadline:
            run.kill()
            raise RunError(f"{name}: no first round: {run.communicate()[0].strip()}")
        time.sleep(1)
    return run


def _end(run: subprocess.Popen[str]) -> None:
    said, _ = run.communicate(timeout=_WAIT_S)
    _must(run.returncode == 0, f"demo: {said.strip()}")


def _follow(made: Containers, *words: str) -> None:
    done = made.once("demo", "sh", "/app/docker/admin.sh", "demo", *words)
    _must(done.returncode == 0, f"demo: {done.stdout.strip()}")


def _signal(made: Containers, name: str, signal: str) -> None:
    """Send a signal to the program of a container, not to its init."""
    code = f"import os, signal; os.kill({_PROGRAM}, signal.SIG{signal})"
    done = made.inside(name, "python", "-c", code)
    # A program that a kill ends may take this one with it.
    _must(done.returncode in {0, 137}, f"{name}: no signal can be sent: {done.stdout.strip()}")


def main() -> int:
    """Command line; see the module's docstring."""
    compose = APP / "docker" / "compose.yaml"
    try:
        with signals_as_exit():
            made = Containers(compose_tool(), compose, "fedapp-trial", "demo")
            print(f"{' '.join(made.tool)}: {compose}, as {made.project}", flush=True)
            try:
                try_all(made)
            finally:
                made.remove()
    except FedAppError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
