"""Sites with data of their own over Flower's two apps: who is who, who is refused, what is told."""

import io
import json
import logging
import re
from dataclasses import replace

import pytest

from client_app.refusals import show_own_lines
from fedapp.core.errors import ConfigError, RunError
from fedapp.experiment.config import load_experiment, shared_settings
from fedapp.protocol import flower_records
from fedapp.protocol.messages import Hello, Refusal, SiteFacts
from fedapp.site import federation
from tests.flower.grids import MemoryGrid, asked, node, origin_of, preset, serve
from tests.flower.results import loopback, results
from tests.own import NAMES, experiment, image, text, three_sites


@pytest.fixture
def here(tmp_path):
    """An experiment of three sites in this folder, and how to make a node of it."""
    three_sites(tmp_path / "data")
    wanted = experiment(tmp_path / "data", runtime__out=str(tmp_path / "runs"))
    run_config = {"preset": preset(wanted, tmp_path)}

    def make(name, data=None, **more):
        path = str(data or tmp_path / "data" / name)
        return node(run_config, **{"site-name": name, "data-path": path, **more})

    return wanted, make, run_config


def ask(answer, wanted, hello=None):
    records = flower_records.write_request(origin_of(wanted), hello or Hello(), {})
    return asked(answer, records).answer


def test_three_real_sites_are_the_loopback_run_bit_for_bit_whoever_comes_first(here, tmp_path):
    wanted, make, _ = here
    whole = loopback(replace(wanted, runtime=replace(wanted.runtime, run_name="loopback")))
    grid = MemoryGrid({100 + k: make(name) for k, name in enumerate(reversed(NAMES))})
    summary, folder = serve(wanted, grid)
    assert results(folder.path) == results(whole)
    rows = folder.per_site()
    assert [(row["site"], row["name"]) for row in rows] == list(enumerate(NAMES))
    run = json.loads((folder.path / "run.json").read_text())
    assert run["manifest"] == summary["manifest"] is not None
    assert summary["pseudo_label_error"] is None  # nobody knows the hidden labels
    for path in folder.path.rglob("*"):  # nothing at the server names an image
        if path.is_file() and path.suffix in {".json", ".jsonl", ".csv", ".yaml"}:
            assert not re.search(r"patient\d|\.png", path.read_text()), path


def test_a_number_does_for_simulated_sites(here):
    wanted, _, run_config = here
    facts = ask(node(run_config, **{"partition-id": 2, "num-partitions": 3}), wanted)
    assert isinstance(facts, SiteFacts)
    assert (facts.site, facts.name) == (2, "west")


def test_the_second_node_of_a_name_is_refused(here, capsys):
    wanted, make, _ = here
    nodes = {100: make("east"), 101: make("north"), 102: make("north")}
    summary, _ = serve(wanted, MemoryGrid(nodes))
    assert summary["sites"] == 2
    said = capsys.readouterr().out
    assert "site 'north' is here already; give every node its own site-name" in " ".join(
        said.split()
    )


WRONG = {
    "a name that is not listed": (
        {"site-name": "nroth", "data-path": "/x"},
        "site-name 'nroth': not in the preset's data.sites (east, north, west); did you mean "
        "'north'?",
    ),
    "no name": ({"data-path": "/x"}, "needs site-name and data-path and no partition-id"),
    "no data": ({"site-name": "north"}, "needs site-name and data-path and no partition-id"),
    "name and number": (
        {"site-name": "north", "data-path": "/x", "partition-id": 1},
        "needs site-name and data-path and no partition-id",
    ),
    "nothing": ({}, 'node config has no site-name and data-path; start the node with site-name="'),
    "no such site": ({"partition-id": 3}, "partition-id 3: the preset has 3 sites"),
}


@pytest.mark.parametrize(("config", "said"), WRONG.values(), ids=WRONG)
def test_a_node_that_is_no_site(here, config, said):
    wanted, _, run_config = here
    refusal = ask(node(run_config, **config), wanted)
    assert isinstance(refusal, Refusal) and said in refusal.reason


def test_own_data_under_a_preset_that_deals_its_images(tmp_path, here):
    split = load_experiment("digits_demo")
    answer = node({"preset": preset(split, tmp_path)}, **{"site-name": "a", "data-path": "/x"})
    refusal = ask(answer, split)
    assert "site-name and data-path are for data.name = 'own'" in refusal.reason


def test_other_settings_are_spelled_out_at_the_first_contact(here):
    wanted, make, _ = here
    data = replace(wanted.data, classes="nought, one", std=0.5)
    server = replace(wanted, data=data)
    refusal = ask(make("north"), server, Hello(shared_settings(server)))
    assert (
        "data.classes is 'nought, one, two' here, 'nought, one' at the server; "
        "data.std is 0.25 here, 0.5 at the server" in refusal.reason
    )


def test_a_strange_label_is_spelled_out_to_the_site_and_counted_out_at_the_server(
    here, tmp_path, caplog, monkeypatch
):
    wanted, make, _ = here
    odd = image(tmp_path / "odd" / "Smith.png").parent
    text(odd, "path,label\nSmith.png,On\n")
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    with caplog.at_level("ERROR", "flwr"):
        refusal = ask(make("north", odd), wanted)
    assert "site 'north' cannot use its data: it has labels that are not in data.classes" in (
        refusal.reason
    )
    assert "Smith" not in refusal.reason and "'On'" not in refusal.reason
    assert any("label 'On' is not in data.classes" in record.message for record in caplog.records)


def test_a_nodes_log_has_progress_and_none_of_flowers_routine(here, monkeypatch):
    wanted, make, _ = here
    said = io.StringIO()
    handler = logging.StreamHandler(said)
    handler.setLevel(logging.WARNING)  # as FLWR_LOG_LEVEL of `fedapp node` has it
    logger = logging.getLogger("flwr")
    monkeypatch.setattr(logger, "handlers", [handler])
    show_own_lines()
    flowers = "Receiving", "Manually terminating ClientAppActor"
    levels = logging.INFO, logging.WARNING, logging.WARNING
    for level, words in zip(levels, (*flowers, "broken"), strict=True):
        logger.handle(logging.LogRecord("flwr", level, "/flwr/x.py", 1, words, (), None))
    serve(wanted, MemoryGrid({100 + k: make(name) for k, name in enumerate(NAMES)}))
    lines = said.getvalue().splitlines()
    rounds = wanted.rounds.num_rounds
    last = [line for line in lines if f", round {rounds} of {rounds}: " in line]
    assert lines[0] == "broken" and not {*flowers} & {*lines}
    assert len(last) == len(NAMES) and any(", before round 1: " in line for line in lines)
    progress = re.compile(r"run \S+, round .* done, .*B sent, \d+ of \d+ validation images right")
    assert all(map(progress.fullmatch, last))


def test_a_run_without_one_good_site_ends_with_the_reason(here, tmp_path):
    wanted, make, _ = here
    with pytest.raises(RunError, match="none of 1 node can take part: site 'north' cannot use"):
        serve(wanted, MemoryGrid({100: make("north", tmp_path / "gone")}))


def test_images_that_come_during_a_run_stop_the_site(here, tmp_path):
    wanted, make, _ = here
    assert isinstance(ask(make("east"), wanted), SiteFacts)
    image(tmp_path / "data" / "east" / "unlabelled" / "new.png")
    federation.forget()  # the next message meets a new process
    refusal = ask(make("east"), wanted)
    assert refusal.reason.startswith("site 'east': its data have changed since this run began")


def test_a_run_goes_on_after_a_restart_with_the_same_numbers(here):
    wanted, make, _ = here
    named = replace(wanted, runtime=replace(wanted.runtime, run_name="again"))
    grid = MemoryGrid({100 + k: make(name) for k, name in enumerate(NAMES)})
    _, folder = serve(named, grid)
    before = (folder.path / "per_site.csv").read_text()
    resumed = replace(named, runtime=replace(named.runtime, resume=True))
    other_ids = MemoryGrid({7 - k: make(name) for k, name in enumerate(NAMES)})
    serve(resumed, other_ids)
    assert (folder.path / "per_site.csv").read_text() == before


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"split.num_clients": 4}, "split.num_clients = 4: data.sites names 3 sites; make the two"),
        ({"split.labels": "all"}, "split.labels = 'all': own data have no hidden labels"),
        ({"split.manifest": "x"}, "split.manifest = 'x': each site keeps its own data"),
        ({"split.server_share": 0.1}, "split.server_share = 0.1: each site keeps its own data"),
        ({"split.label_share": 0.1}, "split.label_share = 0.1: own data come with the labels"),
        ({"split.feature_shift": 0.5}, "split.feature_shift = 0.5: own data are used as they are"),
        ({"data.classes": "a"}, "classes must name two or more"),
    ],
)
def test_presets_that_do_not_fit_own_data(overrides, said):
    with pytest.raises(ConfigError, match=said):
        load_experiment("own_data", overrides)
