"""Onboarding: a site that took no part gets a model of its own from a finished run's models."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from rich.console import Console
from safetensors.torch import load
from typer.testing import CliRunner

from fedapp.cli import app
from fedapp.ground.errors import ConfigError, RunError
from fedapp.ground.progress import Progress
from fedapp.learn.params import digest_of, to_bytes
from fedapp.messages.store import ModelStore
from fedapp.methods.averaging.fedavg import FedAvg
from fedapp.methods.averaging.fedper import FedPer
from fedapp.methods.um_pfssl.method import UmPfssl
from fedapp.models.model import load_model
from fedapp.server.peers import finished_run
from fedapp.server.pool import ModelPool
from fedapp.tools.onboard.among_peers import AmongPeers, Peer, together
from fedapp.tools.onboard.measure import accuracy
from fedapp.tools.onboard.onboard import show
from fedapp.tools.onboard.plan import NewSite, plan_for
from fedapp.tools.onboard.run import onboard
from tests.flower.results import rows
from tests.methods.conformance import Deal, correct_by_hand, mean_by_hand, site_data, toy
from tests.own import experiment as own_experiment
from tests.own import three_sites
from tests.tools.onboard.federations import federate, records, stopped

DEALS = (Deal(9, 12), Deal(12, 6), Deal(0, 9), Deal(0, 11), Deal(6, 5, 4, 0))
UM = UmPfssl(helper_list_size=3, num_replaced=1, search_rounds=3, update_every=2, mc_samples=2)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    root = tmp_path_factory.mktemp("finished")
    return federate(toy(UM, root, DEALS, name="first")).folder.path


def new_run(finished, tmp_path, method=UM, name="second", **changes):
    return toy(method, tmp_path, DEALS, name=name, runtime__peers=str(finished), **changes)


# --- peers ----------------------------------------------------------------------------------------


def test_peers_are_candidates_from_the_start_and_never_tasked(finished, tmp_path, capsys):
    second = federate(new_run(finished, tmp_path), only=(3,))
    assert {task.site for task in second.tasks} == {3}
    first, now = records(finished), records(second.folder.path)
    for peer in ("0", "1", "2"):
        assert now[peer][:2] == first[peer][:2]
    train = [t for t in second.tasks if t.action == "train"]
    assert {r.site for r in train[0].models["newcomers"]} <= {0, 1, 2}
    assert len(train[0].models["newcomers"]) == 2  # its list is empty: M - 1 are asked for
    assert second.folder.per_site()[0]["helpers"]
    assert "peers: sites 0, 1, 2 of an earlier run" in capsys.readouterr().out
    assert ModelStore(second.folder.pool_root).has(first["1"][1])


def test_a_run_with_peers_resumes_without_the_earlier_run(finished, tmp_path):
    """Of the earlier run three things are needed, and only when the new one starts."""
    whole = federate(new_run(finished, tmp_path), only=(3,)).folder.path
    copy = tmp_path / "copy"
    shutil.copytree(finished / "pool", copy / "pool")
    for name in ("config.yaml", "checkpoint.json"):
        shutil.copy(finished / name, copy)
    short = new_run(copy, tmp_path, name="cut")

    stopped(short, only=(3,))
    shutil.rmtree(copy)
    again = replace(short, runtime=replace(short.runtime, resume=True, peers=""))
    assert records(federate(again, only=(3,)).folder.path) == records(whole)


def test_a_peer_that_comes_goes_on_from_its_model(finished, tmp_path):
    second = federate(new_run(finished, tmp_path), only=(1, 3))
    first = records(finished)["1"]
    begins, trains, *_ = [t for t in second.tasks if t.site == 1]
    assert (begins.action, begins.own.digest, begins.own.version) == ("warmup", first[1], first[0])
    assert trains.own == begins.own  # what it learned is not warmed up again
    assert rows(second.folder.path)[0]["sites_evaluated"] == 2


def deal(tmp_path, finished, *deals, **changes):
    """A run of UM whose split is another: of site 1 and of those after it, or of visible labels."""
    (tmp_path / "other").mkdir()
    other = toy(UM, tmp_path / "other", deals, name="other", runtime__peers=str(finished))
    return replace(other, **changes)


def test_another_site_with_a_peers_number_is_left_out(finished, tmp_path, capsys):
    """Two labels of site 1 are hidden: no image has another site or part."""
    other = deal(tmp_path, finished, DEALS[0], Deal(10, 8), *DEALS[2:])
    second = federate(other, only=(1, 3))
    assert {task.site for task in second.tasks} == {3}
    assert "site 1 left out: its number is that of another site" in capsys.readouterr().out
    with pytest.raises(RunError, match="no site is here that can take part"):
        federate(replace(other, runtime=replace(other.runtime, run_name="alone")), only=(1,))


DIGESTS = r"its split is [0-9a-f]{12}, here [0-9a-f]{12}, and "


@pytest.mark.parametrize(("deals", "says"), [
    # Five of site 3's training images of then are for testing now.
    ((*DEALS[:3], Deal(0, 6, 0, 15), DEALS[4]), r"5 of 33 test images here were for training"),
    ((Deal(9, 11), Deal(12, 6), *DEALS[2:]), r"the two are of other images"),
    ((Deal(9, 12), Deal(12, 6), Deal(0, 9), Deal(0, 11), Deal(6, 5, 3, 1)), r"1 of 114 images"),
])  # fmt: skip
def test_another_split_of_the_same_images_is_refused(finished, tmp_path, deals, says):
    with pytest.raises(RunError, match=DIGESTS + says):
        federate(deal(tmp_path, finished, *deals), only=(3,))


def test_another_split_is_refused_where_it_cannot_be_compared(finished, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(finished, copy)
    (copy / "manifest.safetensors").unlink()
    other = deal(tmp_path, copy, DEALS[0], Deal(10, 8), *DEALS[2:])
    with pytest.raises(RunError, match=DIGESTS + ".*copy holds no manifest.safetensors to compare"):
        federate(other, only=(3,))


def without_models(run):
    for path in (run / "pool").glob("*/*.safetensors"):
        path.unlink()


def damaged(run):
    for path in (run / "pool").glob("*/*.safetensors"):
        path.write_bytes(path.read_bytes()[:50])


@pytest.mark.parametrize(("spoil", "says"), [
    (without_models, r"runtime.peers .*no such model here.*; copy that run's pool/ again, whole"),
    (damaged, r"runtime.peers .*damaged.*; copy that run's pool/ again, whole"),
    (lambda run: (run / "checkpoint.json").unlink(), r"no run with a finished round"),
    (lambda run: (run / "config.yaml").unlink(), r"config.yaml: cannot be read"),
])  # fmt: skip
def test_a_run_that_is_not_whole_is_refused(finished, tmp_path, spoil, says):
    copy = tmp_path / "copy"
    shutil.copytree(finished, copy)
    spoil(copy)
    with pytest.raises(RunError, match=says):
        federate(new_run(copy, tmp_path), only=(3,))


@pytest.mark.parametrize(("changes", "says"), [
    ({"model__width": 3}, r"its model.width is 2, here 3; make the two equal"),
    ({"transport__precision": "float16"}, r"its transport.precision is 'float32', here 'float16'"),
    ({"data__image_size": 10}, r"its data.image_size is 0, here 10"),
    ({"method": FedAvg()}, r"method fedavg has no use for an earlier run's models; use one_round"),
])  # fmt: skip
def test_runs_that_do_not_fit_together_are_refused(finished, tmp_path, changes, says):
    method = changes.pop("method", UM)
    with pytest.raises(ConfigError, match=says):
        federate(new_run(finished, tmp_path, method, **changes), only=(3,))


def test_a_run_whose_sites_kept_parts_to_themselves_is_refused(tmp_path):
    first = federate(toy(FedPer(), tmp_path, DEALS, name="fedper")).folder.path
    with pytest.raises(ConfigError, match="method fedper keeps parts of every model at its site"):
        federate(new_run(first, tmp_path), only=(3,))


# --- the plan -------------------------------------------------------------------------------------


def test_the_plan_is_the_runs_settings_for_one_site(finished):
    run = finished_run(finished)
    plan = plan_for(run, NewSite(number=3), 7, {"training.local_epochs": 2, "runtime.out": "/x"})
    new = plan.experiment
    assert (plan.site, plan.place, new.rounds.num_rounds) == (3, None, 7)
    assert (new.training.local_epochs, new.runtime.out) == (2, "/x")
    assert new.runtime.peers == str(finished) and not new.runtime.run_name
    assert (new.method, new.model, new.seed) == (UM, run.experiment.model, run.experiment.seed)


@pytest.mark.parametrize(("new", "says"), [
    (NewSite(number=1), r"site 1 took part in first: its model is there already"),
    (NewSite(number=9), r"--site 9: the run's 5 sites count from 0"),
    (NewSite(name="west"), r"is of digits, which the program splits; give --site NUMBER alone"),
    (NewSite(), r"give --site NUMBER alone"),
])  # fmt: skip
def test_a_site_that_cannot_be_onboarded_is_told_why(finished, new, says):
    with pytest.raises(ConfigError, match=says):
        plan_for(finished_run(finished), new, 5, {})


def test_a_wrong_setting_is_named(finished):
    with pytest.raises(ConfigError, match=r"training\.local_epoch .*did you mean"):
        plan_for(finished_run(finished), NewSite(number=3), 5, {"training.local_epoch": 2})


# --- the measurement ------------------------------------------------------------------------------


def test_accuracies_by_hand():
    answers = torch.tensor([[0.9, 0.1], [0.4, 0.6], [0.3, 0.7]])
    assert accuracy(answers, torch.tensor([0, 1, 0])) == pytest.approx(2 / 3)
    assert accuracy(answers[:0], torch.empty(0, dtype=torch.int64)) is None
    other = torch.tensor([[0.0, 1.0], [0.4, 0.6], [1.0, 0.0]])
    assert together([answers, other]).argmax(1).tolist() == [1, 1, 0]
    broken = torch.full((3, 2), torch.nan)
    assert together([answers, broken]).equal(answers) and together([broken]).isnan().all()


def test_the_table_by_hand():
    peers = (Peer(2, "", 0.9, 0.5), Peer(0, "", 0.2, 0.8), Peer(1, "", None, 0.2))
    made = AmongPeers(0.7, 0.3, None, 0.1, 0.6, peers)
    assert [value for _, value in made.table()] == [
        0.7,
        0.3,
        None,
        0.5,
        pytest.approx(0.5),
        0.1,
        0.6,
        0.8,
    ]
    unknown = AmongPeers(None, None, None, None, None, (Peer(0, "", 0.2, None),))
    assert {value for _, value in unknown.table()} == {None}


@pytest.fixture(scope="module")
def onboarded(finished, tmp_path_factory):
    run = finished_run(finished)
    overrides = {"runtime.out": str(tmp_path_factory.mktemp("on")), "runtime.device": "cpu"}
    plan = plan_for(run, NewSite(number=3), 2, overrides)
    with Progress() as progress:
        return run, plan, onboard(run, plan, progress)


def test_a_new_site_has_a_model_and_the_comparison_is_of_the_models_named(onboarded):
    run, plan, done = onboarded
    data = site_data(plan.experiment, 3)
    own = load((done.folder / "model.safetensors").read_bytes())
    assert digest_of(to_bytes(own)) == records(done.folder)["3"][1]

    def right(params):
        return correct_by_hand(plan.experiment, params, data.test, data.test_labels) / 6

    peers = {k: load(run.pool.get(run.pool.latest(k).digest)) for k in run.pool.trained()}
    found = done.comparison
    assert found.own == pytest.approx(right(own)) == pytest.approx(done.rounds[-1])
    assert {p.site: p.accuracy for p in found.peers} == pytest.approx(
        {k: right(params) for k, params in peers.items()}
    )
    mean = mean_by_hand(list(peers.values()), [1.0] * len(peers))
    mean = {n: mean[n].float() if n in mean else t for n, t in peers[0].items()}
    assert found.average == pytest.approx(right(mean))
    saved = load((done.folder / "average.safetensors").read_bytes())
    assert all(torch.allclose(saved[name], mean[name]) for name in mean)
    last = rows(done.folder)[-1]
    assert found.untrained == pytest.approx(last["mean_test_accuracy_before_training"])
    assert found.labels_alone is None  # it has no labels to learn from alone
    relations = [peer.relation for peer in found.peers]
    assert relations == sorted(relations, reverse=True)


def test_the_relation_ranks_as_the_sites_own_search_did(onboarded):
    _, _, done = onboarded
    listed = json.loads((done.folder / "checkpoint.json").read_text())
    searched = {h["model"]["site"]: h["score"] for h in listed["state"]["server"]["helpers"]["3"]}
    ranked = {peer.site: peer.relation for peer in done.comparison.peers}
    assert searched and searched == {k: ranked[k] for k in searched}


def test_the_run_folder_holds_the_comparison(onboarded):
    _, _, done = onboarded
    written = json.loads((done.folder / "onboarding.json").read_text())
    assert written["accuracy"]["own"] == done.comparison.own
    assert (written["run"], written["site"], written["test"]) == ("first", 3, 6)
    assert len(written["accuracy_by_round"]) == 3 and len(written["accuracy"]["peers"]) == 3
    assert (done.folder / "summary.json").exists()


def test_the_best_of_its_rounds_is_kept_for_use_as_of_any_run(onboarded):
    """Without labels there is nothing that it trained alone: joining is not judged."""
    _, plan, done = onboarded
    model, found = load_model(done.folder / "models/3", torch.device("cpu"))
    data, choice = site_data(plan.experiment, 3), found.choice
    right = int((model.probabilities(data.test).argmax(1) == data.test_labels).sum())
    assert right == found.results.test.right == round(6 * done.rounds[found.origin.round])
    assert max(c.val_right for c in choice.candidates) - found.results.val.right < 1
    assert choice.helped is None and not any(c.alone for c in choice.candidates)


def test_without_test_images_it_says_that_nothing_can_be_measured(finished, tmp_path):
    run = finished_run(finished)
    plan = plan_for(run, NewSite(number=4), 1, {"runtime.out": str(tmp_path)})
    console = Console(record=True, width=100)
    with Progress() as progress:
        show(onboard(run, plan, progress), console)
    text = console.export_text()
    assert "has no labelled test images: how good its model is cannot be measured here" in text
    assert "most related peers: site" in text and "%" not in text


def test_a_hospital_with_images_of_its_own_is_onboarded_by_the_command(tmp_path, monkeypatch):
    """West took no part and is not even in the agreed list: its name goes to the list's end."""
    root = three_sites(tmp_path / "data")
    monkeypatch.setenv("FEDAPP_OUT", str(tmp_path / "runs"))
    both = own_experiment(root, data__sites="east, north", split__num_clients=2)
    federate(replace(both, runtime=replace(both.runtime, run_name="hospitals")), only=(0, 1))
    west = ["--data", str(root / "west"), "--site-name", "west", "--rounds", "2"]
    said = CliRunner().invoke(app, ["onboard", "hospitals", *west, "runtime.run_name=west"])
    assert said.exit_code == 0, said.output
    assert "labelled test images of site west" in said.output
    assert "own model after onboarding" in said.output and "most related peers" in said.output
    done = tmp_path / "runs" / "west"
    written = json.loads((done / "onboarding.json").read_text())
    assert (written["site"], written["name"]) == (2, "west")
    assert {peer["name"] for peer in written["accuracy"]["peers"]} == {"east", "north"}
    for wrong in (["--site", "2"], ["--site-name", "west"]):
        refused = CliRunner().invoke(app, ["onboard", "hospitals", *wrong])
        assert "images of their own; give --data FOLDER and --site-name" in str(refused.exception)
    again = ["--data", str(root / "east"), "--site-name", "east"]
    refused = CliRunner().invoke(app, ["onboard", "hospitals", *again])
    assert "site east took part in hospitals" in str(refused.exception)
    third = CliRunner().invoke(  # a run of onboarding is itself a run with peers
        app, ["onboard", "west", "--data", str(root / "west"), "--site-name", "south", "--rounds=1"]
    )
    assert third.exit_code == 0 and len(ModelPool.from_plain(
        ModelStore(done / "pool"), records(done)).trained()) == 3  # fmt: skip
