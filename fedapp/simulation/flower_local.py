"""Run a preset on Flower's simulation, on a SuperLink of its own that ends with the run.

    python -m fedapp.simulation.flower_local [PRESET [key=value ...]]   run; the demo if no preset
    python -m fedapp.simulation.flower_local --stop                     end what is left behind

This program does not import torch: settings are checked in another process (`memory_probe`).

`flwr run` alone would start a SuperLink that all projects of a user share, that never ends, and
that imports the client code of the project which started it first. Here each run has a SuperLink of
its own, with its own port, its state in memory, and `FLWR_HOME` inside the checkout. It is started
in a folder that holds no code.

Exit code: 0 the run completed, 1 it failed, 2 the settings are wrong, 128 + n signal n ended it.
"""

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.error import URLError

from fedapp.core.errors import ConfigError, FedAppError, RunError
from fedapp.core.formatting import counted, size
from fedapp.core.processes import (
    adopt_orphans,
    alive,
    descendants,
    free_port,
    signals_as_exit,
    terminate,
    terminate_descendants,
    with_environment_variable,
)
from fedapp.experiment.preset_files import DEMO
from fedapp.simulation.resources import Plan, WorkerNeed, free_ram, measured, planned, workers

MARK = "FEDAPP_FLOWER_HOME"
"""Environment variable that marks the processes of such a run; its value is their FLWR_HOME."""

_ROOT = Path(__file__).resolve().parents[2]
_START_S = 60.0


def run(app: Path, preset: str, overrides: Sequence[str]) -> int:
    """Run the Flower app in folder `app` with this preset; return 0 when the run completed.

    overrides: `key=value` texts. Raises ConfigError before Flower is started if the settings are
    wrong, RunError if Flower does not start.
    """
    plan, probe = planned(preset, overrides)  # the probe measures while the SuperLink starts
    home = _home(app)
    home.mkdir(mode=0o700, exist_ok=True)
    env = _environment(home, port := free_port())
    with signals_as_exit(), _ray_folder(env):
        with _superlink(home, port, env):
            federation = _federation(plan, measured(probe))
            options = ["--federation-config", federation, "--run-config", plan.run_config]
            command = [_tool("flwr"), "run", str(app), "--stream", *options]
            print("flwr", shlex.join(command[1:]), flush=True)
            code = subprocess.run(command, env=env, check=False).returncode
            if code:
                return 1
            status, details = _final_status(env)
    if status != "finished:completed":
        reason = details.removeprefix("Simulation failed with exception: ")
        print(f"error: the run ended as {status}: {reason}", file=sys.stderr)
        return 1
    return 0


def stop(app: Path) -> int:
    """End all processes that earlier runs of this checkout left behind; return how many."""
    roots = with_environment_variable(MARK, str(_home(app)))
    found = roots | descendants(roots)
    terminate(lambda: alive(found | descendants(found)))
    return len(found)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; see the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m fedapp.simulation.flower_local")
    what = f"name in conf/, or the path of a YAML file; {DEMO} if not given"
    parser.add_argument("preset", nargs="?", default=DEMO, help=what)
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    parser.add_argument("--stop", action="store_true", help="end what a killed run left behind")
    args = parser.parse_args(argv)
    try:
        if args.stop:
            print(f"{counted(stop(_ROOT), 'processes')} ended")
            return 0
        return run(checkout(), args.preset, args.overrides) or told_to_activate()
    except FedAppError as error:
        for line in str(error).splitlines():
            print(f"error: {line}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1


def activation() -> str:
    """Return what makes this environment's commands known to the user's terminal; "" if they are.

    Such as ". .venv/bin/activate". `make demo` starts a program of an environment that is not
    active, and what it prints next are commands to type.
    """
    here = Path(sys.executable).parent
    found, script = shutil.which("fedapp"), here / "activate"
    if (found and Path(found).parent == here) or not script.is_file():
        return ""
    return f". {script.relative_to(Path.cwd()) if script.is_relative_to(Path.cwd()) else script}"


def told_to_activate() -> int:
    """Say what must come before the commands that a finished run has printed; return 0."""
    if first := activation():
        print(f"Before these commands, once in a terminal: {first}")
    return 0


def checkout() -> Path:
    """Return the folder of this project's Flower app. Raises RunError where there is none."""
    if not (_ROOT / "server_app").is_dir():
        raise RunError(f"{_ROOT}: holds no Flower app; run this from a checkout of the project")
    return _ROOT


def _home(app: Path) -> Path:
    return app / ".flwr"


def _tool(name: str) -> str:
    path = Path(sys.executable).parent / name
    if not path.is_file():
        raise RunError(f"{path}: not found; run `make env` to install Flower beside this Python")
    return str(path)


def _federation(plan: Plan, need: WorkerNeed | None) -> str:
    """Return Flower's federation config: one node for each worker that the machine can carry.

    A node stands for several sites, one after the other (`client_app.identity.stands_for`): with a
    node for each site, Flower would search all messages again for every site. need: what one worker
    needs; None if it could not be measured: then there is a worker for each core.
    """
    sites, threads = plan.sites, plan.threads
    cores = len(os.sched_getaffinity(0))
    need = need or WorkerNeed(1)
    number, limit = workers(sites, threads, cores, free_ram(), need)
    if wanted := plan.workers:
        number, limit = min(wanted, sites), "runtime.workers"
    each = f", each with up to {size(need.ram)}" if need.ram > 1 else ""
    print(f"{counted(number, 'sites')} at a time{each} (set by {limit})", flush=True)
    # Ray counts shares of a GPU in steps of 0.0001: rounded up, the last worker would not fit.
    share = min(1.0, int(1e4 * len(need.gpus) / number) / 1e4)
    parts = {
        "num-supernodes": number,
        "client-resources-num-cpus": threads,
        "client-resources-num-gpus": share,
        "init-args-num-cpus": number * threads,
        "init-args-num-gpus": len(need.gpus),
    }
    return " ".join(f"{key}={value}" for key, value in parts.items())


def _environment(home: Path, port: int) -> dict[str, str]:
    env = dict(os.environ)
    for name in ("FEDAPP_DATA", "FEDAPP_OUT"):
        if env.get(name):
            env[name] = str(Path(env[name]).expanduser().absolute())
    for name in ("NO_PROXY", "no_proxy"):
        env[name] = ",".join(filter(None, [env.get(name), "127.0.0.1,localhost"]))
    return env | {
        MARK: str(home),
        "FLWR_HOME": str(home),
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(port),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "PYTHONUNBUFFERED": "1",  # rounds show at once, also through a pipe
        # Without it Ray prints a warning for every worker that has no share of a GPU.
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        # Flower starts its other programs by name.
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{env.get('PATH', os.defpath)}",
    }


@contextmanager
def _ray_folder(env: dict[str, str]) -> Iterator[None]:
    """Give Ray a folder of its own for its logs and sockets, and remove it afterwards."""
    with TemporaryDirectory(prefix="um-", ignore_cleanup_errors=True) as folder:
        env["RAY_TMPDIR"] = folder
        yield


@contextmanager
def _superlink(home: Path, port: int, env: Mapping[str, str]) -> Iterator[None]:
    """Run a SuperLink for simulations on `port`; at the end, end all of its processes.

    It starts in `home`, which holds no code: Ray's workers import from the folder of the SuperLink
    first, and only then from the app's bundle.
    """
    adopt_orphans()
    log = home / f"superlink-{port}.log"
    options = ["--insecure", "--simulation", "--host", "127.0.0.1", "--port", str(port)]
    try:
        with log.open("wb") as sink:
            link = subprocess.Popen(
                [_tool("flower-superlink"), *options],
                env=env,
                cwd=home,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is handled by this process
                umask=0o077,  # files of it and of all that it starts are for this user alone
            )
        _await_start(link, port, log)
        yield
    finally:
        terminate_descendants()
        log.unlink(missing_ok=True)


def _await_start(link: subprocess.Popen[bytes], port: int, log: Path) -> None:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline and link.poll() is None:
        try:
            with direct.open(f"http://127.0.0.1:{port}/health", timeout=1):
                return
        except (URLError, OSError):
            time.sleep(0.2)
    ended = "ended" if link.poll() is not None else f"is silent after {_START_S:.0f} s"
    last = log.read_text(errors="replace").strip().rpartition("\n")[2]
    raise RunError(f"Flower's SuperLink {ended}; its last lines: {last or 'none'}")


def _final_status(env: Mapping[str, str]) -> tuple[str, str]:
    """Return how the only run of this SuperLink ended, such as "finished:completed", and why."""
    while True:
        listing = subprocess.run(
            [_tool("flwr"), "list", "--format", "json"], env=env, check=False, capture_output=True
        )
        try:
            only = json.loads(listing.stdout)["runs"][0]
            status, details = str(only["status"]), str(only["status-details"])
        except (ValueError, LookupError) as error:
            raise RunError(
                f"Flower does not tell how the run ended: {listing.stdout.decode()!r}"
            ) from error
        if status.startswith("finished"):
            return status, details
        time.sleep(1)  # the log ends a moment before the run does


if __name__ == "__main__":
    sys.exit(main())
