"""What one worker needs, and what is free."""

import pytest

from fedapp.experiment.config import parse_overrides
from fedapp.learn import model_caches
from fedapp.simulation import resources as needs
from fedapp.simulation.memory_probe import kept_parsed, measure
from fedapp.simulation.resources import MIB, as_texts, free_ram, measured, start_measuring
from tests.small import small


def test_what_a_worker_needs_is_more_than_the_process_and_the_models_that_it_keeps(monkeypatch):
    enough = 2**40
    monkeypatch.setattr("fedapp.simulation.memory_probe.kept_parsed", lambda _, size: enough + size)
    need = measure(small())
    assert need.ram > enough + needs.ACTOR_BYTES + 100 * MIB
    assert (need.gpu, need.gpus) == (0, ())


def test_models_that_are_kept_parsed_count_up_to_what_they_may_take():
    """4 rounds and the warm-up; 5 sites and the server: 30 models."""
    assert kept_parsed(small(), 1000) == 30_000
    assert kept_parsed(small(), 2**30) == model_caches.MAX_MODEL_BYTES == 512 * MIB


def test_it_is_measured_in_another_process():
    found = measured(start_measuring("digits_demo", {"split.num_clients": 4, "model.width": 2}))
    assert found is not None and 300 * MIB < found.ram < 8000 * MIB
    assert measured(start_measuring("no_such_preset", {})) is None


@pytest.mark.parametrize(("limit", "expected"), [("max", 8), (str(6 * 2**30), 4), ("x", 8)])
def test_free_memory_heeds_the_containers_limit(tmp_path, monkeypatch, limit, expected):
    info = tmp_path / "meminfo"
    info.write_text(f"MemTotal: 1 kB\nMemAvailable: {8 * 2**20} kB\n")
    (tmp_path / "memory.max").write_text(limit + "\n")
    (tmp_path / "memory.current").write_text(f"{2 * 2**30}\n")
    monkeypatch.setattr(needs, "MEMINFO", info)
    monkeypatch.setattr(needs, "CGROUP", tmp_path)
    assert free_ram() == expected * 2**30


def test_overrides_as_texts_are_read_as_they_were():
    given = {
        "data.root": "/data/Bücher\\new \"one\" 'two'", "runtime.run_name": "12", "split.bags": 3,
        "training.learning_rate": 1e-4, "data.download": True, "data.window": "",
    }  # fmt: skip
    assert parse_overrides(as_texts(given)) == given
