"""A SuperLink of one's own: what Flower is handed, and that nothing is left behind."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from flwr.common.config import parse_config_args
from flwr.supercore.utils import simulation_config_from_json

from fedapp.core import processes
from fedapp.experiment.config import load_experiment, load_run_config
from fedapp.simulation import flower_local
from fedapp.simulation.memory_probe import absolute_paths, prepare
from fedapp.simulation.resources import WorkerNeed

ROOT = Path(__file__).parents[2]


def federation(need=None, **overrides):
    texts = [f"{key.replace('__', '.')}={value}" for key, value in overrides.items()]
    text = flower_local._federation(prepare("digits_demo", texts)[1], need)
    return parse_config_args([text])


@pytest.fixture
def machine(monkeypatch):
    """A machine of so many cores and so much free memory."""

    def make(cores, gib=1000):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
        monkeypatch.setattr(flower_local, "free_ram", lambda: gib * 2**30)

    return make


def test_the_federation_has_a_worker_per_core_at_most_and_a_node_for_each(machine):
    machine(cores=4)
    for sites, number in ((10, 4), (3, 3)):
        read = federation(split__num_clients=sites)
        assert (read["num-supernodes"], read["init-args-num-cpus"]) == (number, number)
        assert (read["client-resources-num-cpus"], read["client-resources-num-gpus"]) == (1, 0.0)
        config = simulation_config_from_json({k.replace("-", "_"): v for k, v in read.items()})
        assert config.num_supernodes == number


def test_threads_take_cores_and_memory_limits_workers_unless_a_person_knows_better(machine):
    machine(cores=8, gib=10)
    read = federation(runtime__threads=3)
    assert (read["client-resources-num-cpus"], read["init-args-num-cpus"]) == (3, 6)
    # (10 * 0.9 - 1.5) / 2 = 3.75
    assert federation(WorkerNeed(2 * 2**30))["init-args-num-cpus"] == 3
    assert federation(WorkerNeed(2 * 2**30), runtime__workers=5)["init-args-num-cpus"] == 5
    assert federation(WorkerNeed(90 * 2**30))["init-args-num-cpus"] == 1


@pytest.mark.parametrize(("cores", "gpus"), [(16, 1), (3, 1), (7, 2), (2, 4)])
def test_workers_share_the_gpus_evenly_and_all_fit(machine, cores, gpus):
    machine(cores)
    read = federation(WorkerNeed(2**20, 2**20, (2**34,) * gpus), split__num_clients=50)
    share = read["client-resources-num-gpus"]
    assert read["init-args-num-gpus"] == gpus
    assert int(gpus / share) >= cores > 0.99 * gpus / share * min(1, cores / gpus)


def test_gpu_memory_limits_workers_card_by_card(machine):
    machine(cores=16)
    gib = 2**30
    # 0.9 * 8 / 2 = 3.6 on one card, 0.9 * 5 / 2 = 2.25 on the other
    read = federation(WorkerNeed(gib, 2 * gib, (8 * gib, 5 * gib)), split__num_clients=50)
    assert read["init-args-num-cpus"] == 5


def test_flower_brings_the_same_experiment_to_the_app(tmp_path):
    given = [
        "seed=3", "training.learning_rate=1e-05", "data.download=false", "data.root=/o'hara/x \"y",
        "runtime.run_name=", "model.name=tests.learn.own_network:small", "model.units=7",
        f"runtime.out={tmp_path}",
    ]  # fmt: skip
    experiment, plan = prepare("digits_demo", given)
    assert load_run_config(parse_config_args([plan.run_config])) == experiment
    assert (experiment.model.units, experiment.data.root) == (7, "/o'hara/x \"y")


def test_paths_are_made_absolute_for_processes_in_other_folders(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    experiment = load_experiment("digits_demo", {"data.root": "d", "runtime.out": "~/runs"})
    assert absolute_paths(experiment) == {
        "data.root": str(tmp_path / "d"),
        "runtime.out": str(Path.home() / "runs"),
    }
    monkeypatch.setenv("FEDAPP_DATA", "here")
    assert flower_local._environment(tmp_path, 1)["FEDAPP_DATA"] == str(tmp_path / "here")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["digit_demo"], "error: preset 'digit_demo': no such preset"),
        (["digits_demo", "seed=x"], "error: override: seed = 'x': must be a valid integer"),
        (["digits_demo", "seed"], "error: override 'seed': must be key=value"),
    ],
)
def test_wrong_settings_end_it_before_anything_starts(monkeypatch, capsys, arguments, words):
    monkeypatch.setattr(flower_local, "_superlink", None)
    assert flower_local.main(arguments) == 2
    assert capsys.readouterr().err.startswith(words)


@pytest.mark.parametrize(
    ("active", "below", "said"),
    [(False, True, ". env/bin/activate"), (False, False, ". {}/activate"), (True, True, "")],
)
def test_the_commands_of_an_environment_that_is_not_active(
    tmp_path, monkeypatch, active, below, said
):
    tools = tmp_path / "env/bin"
    tools.mkdir(parents=True)
    for name in ("python", "fedapp", "activate"):
        (tools / name).touch(0o755)
    monkeypatch.setattr(sys, "executable", str(tools / "python"))
    monkeypatch.setenv("PATH", str(tools) if active else os.defpath)
    monkeypatch.chdir(tmp_path if below else ROOT)
    assert flower_local.activation() == said.format(tools)


def test_orphans_in_sessions_of_their_own_are_found_and_ended(monkeypatch, tmp_path):
    """A marked process and a child of it that left its session, as Ray's do; both ignore TERM."""
    deaf = "import signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    child = f"{deaf}print(1, flush=True); time.sleep(60)"
    parent = (
        "import subprocess, sys; subprocess.Popen([sys.executable, '-c', sys.argv[1]], "
        f"start_new_session=True); {deaf}time.sleep(60)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", parent, child],
        env=os.environ | {flower_local.MARK: str(tmp_path / ".flwr")},
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    with process:
        assert process.stdout is not None
        process.stdout.readline()
        tree = {process.pid} | processes.descendants({process.pid})
        assert len(tree) == 2
        # Kill at once: the patience with deaf processes is for people, not for tests.
        monkeypatch.setattr(signal, "SIGTERM", signal.SIGKILL)
        assert flower_local.stop(tmp_path / "another checkout") == 0
        assert flower_local.stop(tmp_path) == 2
        assert not processes.alive(tree)


# --- with Flower itself; whole runs are in `tests/flower/test_simulation.py` ----------------------

SERVER = """
import time
from flwr.serverapp import ServerApp
from fedapp.experiment.config import load_run_config
app = ServerApp()
@app.main()
def main(grid, context):
    load_run_config(context.run_config)
    print("NODES", len(list(grid.get_node_ids())), flush=True)
    time.sleep(600)
"""
CLIENT = "from flwr.clientapp import ClientApp\napp = ClientApp()\n"


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    """A copy of the project with two apps that do nothing."""
    for name in ("fedapp", "conf", "pyproject.toml", "LICENSE"):
        source = ROOT / name
        copy = shutil.copytree if source.is_dir() else shutil.copy
        copy(source, tmp_path / name)
    (tmp_path / "README.md").write_text("toy")
    for package, code in (("server_app", SERVER), ("client_app", CLIENT)):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
        (tmp_path / package / "app.py").write_text(code)
    return tmp_path


@contextmanager
def at_work(toy: Path) -> Iterator[subprocess.Popen[str]]:
    """Hold a run whose ServerApp is at work."""
    command = [sys.executable, "-m", "fedapp.simulation.flower_local", "digits_demo"]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, cwd=toy, stdout=pipe, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        next(line for line in process.stdout if line.startswith("NODES"))
        yield process


def left_behind(toy: Path) -> list[str]:
    """Command lines of processes that name the toy's folder."""
    every = ((pid, processes.read_proc(pid, "cmdline").decode()) for pid in processes.all_pids())
    return [line for pid, line in every if str(toy) in line and pid != os.getpid()]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_interrupted_leaves_nothing(toy, number):
    with at_work(toy) as process:
        process.send_signal(number)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + number, output
    assert not left_behind(toy)


@pytest.mark.slow
def test_stop_ends_what_a_killed_run_left_behind(toy):
    with at_work(toy) as process:
        process.kill()
    assert left_behind(toy)
    assert flower_local.stop(toy) > 2
    for _ in range(50):
        if not left_behind(toy):
            return
        time.sleep(0.1)
    raise AssertionError(left_behind(toy))
