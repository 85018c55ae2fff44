"""The seams hold what comes next: four toy methods, each one file that touches nothing else.

They run in loopback and through Flower's two halves with equal bits, from sites with disks of their
own or in one store, and survive kill and resume.
"""

import csv
import json
from functools import partial
from pathlib import Path

import pytest
import torch
from flwr.supercore.task_identity import TaskIdentity
from safetensors.torch import load

import fedapp.methods
from fedapp.core.errors import ConfigError, RunError
from fedapp.experiment.config import load_experiment
from fedapp.learn.params import from_bytes
from fedapp.protocol.messages import SERVER_SITE
from fedapp.protocol.store import ModelStore
from tests.flower.grids import MemoryGrid, preset, serve, sites
from tests.flower.results import assert_resumed_to_the_same_bits, loopback, results, rows
from tests.methods.conformance import play

TOYS = Path(__file__).with_name("toys")
NAMES = ("toy_means", "toy_server", "toy_layers", "toy_bags")
OVER = {
    "data.subset": 400,
    "split.num_clients": 3,
    "model.width": 2,
    "training.warmup_epochs": 2,
    "training.warmup_rounds": 1,
    "training.local_epochs": 2,
    "training.batch_size": 16,
    "training.learning_rate": 0.05,
    "rounds.num_rounds": 3,
    "rounds.sample_rate": 0.67,
    "runtime.device": "cpu",
}
"""Over digits_demo."""
OWN = {"toy_server": {"split.server_share": 0.2}, "toy_bags": {"split.bags": 4}}


@pytest.fixture(autouse=True)
def known(monkeypatch):
    """Let the toys be found as files of the package would; be the process of a Flower run."""
    monkeypatch.setattr(fedapp.methods, "__path__", [*fedapp.methods.__path__, str(TOYS)])
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


def toy(name, out, run="run", **over):
    fixed = {"method.name": name, "runtime.out": str(out), "runtime.run_name": run}
    return load_experiment("digits_demo", {**OVER, **OWN.get(name, {}), **fixed, **over})


def test_each_is_one_file_of_at_most_80_lines():
    files = sorted(TOYS.glob("*.py"))
    assert {path.stem for path in files} == set(NAMES)
    assert all(len(path.read_text().splitlines()) <= 80 for path in files)


@pytest.mark.parametrize("name", NAMES)
def test_loopback_and_flower_give_the_same_bits(tmp_path, name):
    here = loopback(toy(name, tmp_path / "loopback"))
    experiment = toy(name, tmp_path / "flower")
    (tmp_path / "flower").mkdir()
    grid = MemoryGrid(sites({"preset": preset(experiment, tmp_path)}, 3))
    _, there = serve(experiment, grid)
    assert results(here) == results(there.path)
    assert all(not row["skipped"] for row in rows(here))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("cut", [2, 5, 8])
def test_a_run_that_is_cut_and_resumed_ends_in_the_same_bits(tmp_path, monkeypatch, name, cut):
    """cut: the exchange in which the power goes, after its first answer."""
    assert_resumed_to_the_same_bits(monkeypatch, partial(toy, name), tmp_path, cut)


def traffic(folder):
    with (folder / "traffic.csv").open() as file:
        return list(csv.DictReader(file))


def test_prototypes_travel_and_no_model_does(tmp_path):
    folder = loopback(toy("toy_means", tmp_path))
    kinds = {row["kind"] for row in traffic(folder)}
    assert kinds == {"message", "means", "evaluation"}
    sent = [row for row in traffic(folder) if row["kind"] == "means" and row["direction"] == "up"]
    assert {int(row["models"]) for row in sent} == {1}
    totals = rows(folder)[-1]
    assert totals["models_up"] == totals["models_sent"] == 0 and totals["bytes_up"] > 0
    pool = results(folder)["pool"]
    assert {key for key in pool if " " in key} == {"0 means", "1 means", "2 means"}
    assert {key: value[0] for key, value in pool.items() if " " not in key} == {
        key: 0 for key in ("-2", "-1", "0", "1", "2")
    }


def test_what_the_server_learns_costs_no_byte_and_changes_its_model(tmp_path):
    folder = loopback(toy("toy_server", tmp_path))
    assert str(SERVER_SITE) not in {row["site"] for row in traffic(folder)}
    version = results(folder)["pool"][str(SERVER_SITE)][0]
    assert version == 4  # a training in each of four rounds
    assert all(row["sites_evaluated"] == 3 for row in rows(folder))


@pytest.mark.parametrize(("method", "unused"), [("toy_server", False), ("toy_means", True)])
def test_images_of_the_server_that_the_method_leaves_unused_are_told(
    method, unused, tmp_path, capsys
):
    loopback(toy(method, tmp_path, **{"split.server_share": 0.2}))
    said = "".join(capsys.readouterr())
    assert (f"split.server_share = 0.2: {method} does not train the server" in said) == unused


def test_a_server_without_images_is_one_line(tmp_path):
    with pytest.raises(RunError, match=r"no labelled images; set split\.server_share above 0"):
        loopback(toy("toy_server", tmp_path, **{"split.server_share": 0.0}))


def test_a_part_travels_and_the_pool_has_the_whole(tmp_path):
    experiment = toy("toy_layers", tmp_path)
    played = play(experiment)
    whole = played.w_0().keys()
    schema = {name: (tuple(t.shape), t.dtype) for name, t in played.w_0().items()}
    parts = [e for e in played.seen if e.incoming.payloads]
    assert parts
    for exchange in parts:
        [blob] = exchange.incoming.payloads.values()
        base = played.server(exchange)
        model = from_bytes(played.engine.store.get(exchange.reply.model), schema, "x") if (
            played.engine.store.has(exchange.reply.model)
        ) else None  # fmt: skip
        sent = load(blob)
        assert 0 < len(sent) == round(len(whole) / 2)
        for name, tensor in (model or {}).items():
            assert torch.equal(tensor, sent.get(name, base[name]))
    assert any(played.engine.store.has(e.reply.model) for e in parts)


def test_what_a_site_remembers_goes_on_and_a_lost_memory_is_told(tmp_path, capsys):
    def steps(played, site):
        private = [e.private for e in played.seen if e.task.site == site and e.private]
        return load(private[-1])["memory.steps"].item()

    over = {"rounds.sample_rate": 1.0}
    played = play(toy("toy_layers", tmp_path, "whole", **over))
    assert steps(played, 1) == 4

    def lose(task, incoming):
        if (task.site, task.round, task.action) == (1, 1, "evaluate"):
            for path in (tmp_path / "lost/remote/site-1/private").rglob("*.safetensors"):
                path.unlink()
        return incoming

    played = play(toy("toy_layers", tmp_path, "lost", **over), lose)
    assert steps(played, 1) == 2 and steps(played, 0) == 4
    assert "site 1 lost its private state and started it again" in capsys.readouterr().out


def test_noise_does_not_cover_parts_and_says_so(tmp_path):
    over = {"privacy.clip": 1.0, "rounds.min_reply_share": 0.0}
    folder = loopback(toy("toy_layers", tmp_path, **over))
    [reason] = {text for row in rows(folder) for text in row["skipped"].values()}
    assert "privacy.clip covers whole models; method toy_layers sends parts of them" in reason


def test_what_the_server_trains_stays_with_it_and_is_not_clipped(tmp_path):
    folder = loopback(toy("toy_server", tmp_path, **{"privacy.clip": 1e-9}))
    pool, store = results(folder)["pool"], ModelStore(folder / "pool")
    trained, w_0 = (load(store.get(pool[site][1])) for site in (str(SERVER_SITE), "-1"))
    assert (trained["head.weight"] - w_0["head.weight"]).norm() > 0.01


def test_no_label_is_needed_where_bags_have_proportions(tmp_path):
    folder = loopback(toy("toy_bags", tmp_path))
    with (folder / "per_site.csv").open() as file:
        assert {row["labelled"] for row in csv.DictReader(file)} == {"0"}
    assert json.loads((folder / "summary.json").read_text())["mean_test_accuracy"]["final"]
    with pytest.raises(ConfigError, match="cannot learn from bags"):
        toy("toy_layers", tmp_path, "other", **{"split.bags": 4})
