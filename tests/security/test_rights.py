"""Who else on a machine can read what a run or a site writes: nobody."""

import os
import stat
import subprocess
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from client_app.answering import answer
from fedapp.core.disk import write_atomic
from fedapp.core.errors import StoreError
from fedapp.experiment.resume import open_run
from fedapp.experiment.run_folder import folder_of
from fedapp.protocol.messages import Hello
from fedapp.simulation import flower_local
from fedapp.site.privacy_budget import Releases
from fedapp.tools.deploy import compose_local
from tests.flower.grids import origin_of, preset
from tests.small import small

DOCKER = Path(__file__).parents[2] / "docker"


@pytest.fixture(autouse=True)
def careless():
    """Be a user whose files everybody can read and change unless a program sees to it."""
    before = os.umask(0)
    yield
    os.umask(before)


def rights(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_a_run_folder_is_its_users_alone(tmp_path):
    folder = open_run(small(runtime__out=str(tmp_path / "runs"), runtime__run_name="a"))
    assert rights(folder.path) == 0o700
    assert rights(open_run(small(runtime__out=str(tmp_path / "runs"))).path) == 0o700


def test_what_a_site_keeps_of_a_run_is_its_users_alone(tmp_path):
    experiment = small(runtime__out=str(tmp_path / "runs"))
    node = {"partition-id": 2, "store-path": str(tmp_path / "store"), "no-terms": True}
    run = {"preset": preset(experiment, tmp_path)}
    answer(run, node, origin_of(experiment, "first"), Hello(), {})
    assert rights(tmp_path / "store" / "first") == 0o700
    assert (tmp_path / "store" / "first" / "sites" / "site-2").is_dir()


def test_a_node_that_makes_its_place_makes_it_its_users_alone(tmp_path):
    folder = folder_of(tmp_path / "place" / "models", "run", "a" * 64)
    assert rights(folder) == rights(folder.parent) == 0o700


@pytest.mark.parametrize("starts", [flower_local, compose_local])
def test_what_this_project_starts_of_flower_writes_for_its_user_alone(
    tmp_path, monkeypatch, starts
):
    """Flower's database has messages in it, with models."""
    seen = []

    def popen(command, umask=-1, **_):
        seen.append(umask)
        raise OSError("not started")

    monkeypatch.setattr(subprocess, "Popen", popen)
    monkeypatch.setattr(
        flower_local, "terminate_descendants", lambda: None
    )  # this process has others below it
    monkeypatch.setattr(flower_local, "adopt_orphans", MagicMock())
    with pytest.raises(OSError, match="not started"):
        if starts is flower_local:
            with flower_local._superlink(tmp_path, 1, {}):
                pass
        else:
            made = compose_local.Services(DOCKER / "compose.yaml", tmp_path, {})
            made.spawn("superlink", ["flower-superlink"], "superlink")
    assert seen == [0o077]


def test_the_key_to_the_noise_is_never_readable_by_others_not_even_while_it_is_made(
    tmp_path, monkeypatch
):
    seen = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: seen.append(os.fstat(descriptor).st_mode))
    Releases(tmp_path).key(b"x")
    files = [stat.S_IMODE(mode) for mode in seen if stat.S_ISREG(mode)]
    assert files == [0o600] and rights(tmp_path / "noise.key") == 0o600


def test_other_files_keep_the_rights_that_the_user_has_set(tmp_path):
    os.umask(0o027)
    write_atomic(tmp_path / "a", b"", durable=False)
    assert rights(tmp_path / "a") == 0o640


@pytest.mark.parametrize("content", [b"", b"x" * 31, b"x" * 33])
def test_a_key_that_somebody_emptied_or_cut_is_refused(tmp_path, content):
    Releases(tmp_path).key(b"x")
    (tmp_path / "noise.key").write_bytes(content)
    with pytest.raises(StoreError, match="must be 32: remove it"):
        Releases(tmp_path).key(b"x")
