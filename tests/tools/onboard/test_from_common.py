"""Onboarding with the common model: a new site needs that and its own class mix, and moves it not.

Site 3 has no labels; site 4 has some.
"""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from rich.console import Console
from safetensors.torch import load
from typer.testing import CliRunner

from fedapp.cli import app
from fedapp.experiment.runfolder import RunFolder
from fedapp.ground.errors import ConfigError, RunError
from fedapp.ground.progress import Progress
from fedapp.learn.networks import build_model
from fedapp.learn.params import digest_of, to_bytes
from fedapp.learn.priors import class_mix, weighted
from fedapp.messages.store import ModelStore
from fedapp.methods.averaging.fedavg import FedAvg
from fedapp.methods.recommended.prior_shift import SURE, PriorShift
from fedapp.methods.um_pfssl.method import UmPfssl
from fedapp.server.peers import finished_run
from fedapp.tools.onboard.from_common import FromCommon
from fedapp.tools.onboard.onboard import show
from fedapp.tools.onboard.plan import NewSite, plan_for
from fedapp.tools.onboard.run import onboard
from tests.flower.results import results, rows
from tests.methods.conformance import Deal, correct_by_hand, pixels, site_data, toy
from tests.own import experiment as own_experiment
from tests.own import three_sites
from tests.tools.onboard.federations import federate, records, stopped

DEALS = (Deal(9, 12), Deal(12, 6), Deal(0, 9), Deal(0, 11), Deal(8, 5), Deal(0, 5, 0, 0))
UM = UmPfssl(helper_list_size=3, num_replaced=1, search_rounds=3, update_every=2, mc_samples=2)
LEARNS = PriorShift(confidence=0.1, weigh=False)
"""Every answer is a pseudo-label, so that a site without labels learns from something."""
SERVER = "-2"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    root = tmp_path_factory.mktemp("finished")
    return federate(toy(LEARNS, root, DEALS, name="first")).folder.path


def new_run(finished, tmp_path, method=LEARNS, name="second", **changes):
    return toy(method, tmp_path, DEALS, name=name, runtime__peers=str(finished), **changes)


@pytest.fixture
def least(finished, tmp_path):
    """What a new site needs of a finished run: two files and one model."""
    copy, common = tmp_path / "copy", records(finished)[SERVER][1]
    [model] = (finished / "pool").glob(f"*/{common}.safetensors")
    there = copy / model.relative_to(finished)
    there.parent.mkdir(parents=True)
    shutil.copy(model, there)
    for name in ("config.yaml", "checkpoint.json"):
        shutil.copy(finished / name, copy)
    return copy


def onboarded(finished, tmp_path, number, rounds=2, **overrides):
    run = finished_run(finished)
    overrides = {k.replace("__", "."): value for k, value in overrides.items()}
    plan = plan_for(
        run, NewSite(number=number), rounds, {"runtime.out": str(tmp_path), **overrides}
    )
    with Progress() as progress:
        return plan, onboard(run, plan, progress)


# --- the run --------------------------------------------------------------------------------------


def test_the_common_model_is_all_that_is_needed_and_stays_as_it_was(
    least, finished, tmp_path, capsys
):
    second = federate(new_run(least, tmp_path), only=(3, 4))
    first, now = records(finished), records(second.folder.path)
    assert now[SERVER][:2] == first[SERVER][:2] and first[SERVER][0] > 0
    assert now.keys() == {"-2", "-1", "3", "4"}
    assert all(now[site][0] > 0 for site in ("3", "4"))  # both have learned
    assert {task.site for task in second.tasks} == {3, 4}
    assert {task.models["server"][0].digest for task in second.tasks} == {first[SERVER][1]}
    assert ModelStore(second.folder.pool_root).has(first[SERVER][1])
    assert "common model of an earlier run (sites 0, 1, 2)" in capsys.readouterr().out


def test_how_often_sure_answers_are_right_is_what_the_federation_counted(finished, tmp_path):
    """A site without labels could trust no pseudo-label by what it knows itself."""
    counted = json.loads((finished / "checkpoint.json").read_text())["state"]["server"]
    assert counted["sure_total"] > 0
    sure = {name: counted[name] for name in SURE}
    second = federate(new_run(finished, tmp_path), only=(3,))
    assert [t.numbers for t in second.tasks if t.action != "evaluate"] == [sure] * 3
    now = json.loads((second.folder.path / "checkpoint.json").read_text())["state"]["server"]
    assert now == counted


def test_a_federation_without_peers_still_averages(tmp_path):
    run = federate(toy(LEARNS, tmp_path, DEALS, rounds__num_rounds=1), only=(0, 1))
    assert records(run.folder.path)[SERVER][0] == 2  # the warm-up and a round


def test_the_same_run_has_the_same_numbers_again_and_when_it_is_resumed(finished, least, tmp_path):
    whole = federate(new_run(finished, tmp_path), only=(3, 4)).folder.path
    again = federate(new_run(least, tmp_path, name="again"), only=(3, 4)).folder.path
    assert results(again) == results(whole)
    short = new_run(least, tmp_path, name="cut")
    stopped(short, only=(3, 4))
    shutil.rmtree(least)
    resumed = replace(short, runtime=replace(short.runtime, resume=True, peers=""))
    assert results(federate(resumed, only=(3, 4)).folder.path) == results(whole)


def test_a_site_of_the_finished_run_that_comes_too_begins_anew(finished, tmp_path):
    second = federate(new_run(finished, tmp_path), only=(1, 3))
    begins = next(task for task in second.tasks if task.site == 1)
    assert (begins.action, begins.own.version) == ("warmup", 0)
    assert rows(second.folder.path)[0]["sites_evaluated"] == 2


@pytest.mark.parametrize(("there", "here", "says"), [
    (UM, LEARNS, r"that run's method is um_pfssl, here it is prior_shift: .*use um_pfssl here"),
    (LEARNS, UM, r"that run's method is prior_shift, here it is um_pfssl: .*use prior_shift here"),
    (FedAvg(), LEARNS, r"that run's method is fedavg, here it is prior_shift"),
    (LEARNS, FedAvg(), r"method fedavg has no use for an earlier run's models"),
])  # fmt: skip
def test_runs_of_methods_that_do_not_fit_are_refused(tmp_path, there, here, says):
    first = federate(toy(there, tmp_path, DEALS, name="there", rounds__num_rounds=1)).folder.path
    with pytest.raises(ConfigError, match=says):
        federate(new_run(first, tmp_path, here), only=(3,))


def test_a_run_in_which_nobody_learned_is_refused(tmp_path):
    first = federate(toy(PriorShift(), tmp_path, DEALS, name="nobody"), only=(2,)).folder.path
    with pytest.raises(RunError, match="that run has no trained model; name another"):
        federate(new_run(first, tmp_path), only=(3,))


def test_a_common_model_that_is_not_whole_is_refused(least, tmp_path):
    [model] = (least / "pool").glob("*/*.safetensors")
    model.write_bytes(model.read_bytes()[:50])
    with pytest.raises(RunError, match=r"damaged.*; copy that run's pool/ again, whole"):
        federate(new_run(least, tmp_path), only=(3,))


# --- what it brings -------------------------------------------------------------------------------


def right_by_hand(plan, done, number, mix=True):
    """Accuracy of the common model on the site's test images, times its class mix or not."""
    data = site_data(plan.experiment, number)
    common = load((done.folder / "common.safetensors").read_bytes())
    if not mix:
        return correct_by_hand(plan.experiment, common, data.test, data.test_labels) / 6
    model = build_model(plan.experiment.model, (1, 8, 8), 10)
    model.load_state_dict(common)
    model.eval()
    with torch.no_grad():
        test, unlabelled = (
            torch.stack([model(image[None])[0].softmax(0) for image in images])
            for images in (pixels(plan.experiment, s) for s in (data.test, data.unlabelled))
        )
    pi = class_mix(torch.bincount(data.labels, minlength=10), unlabelled)
    return (weighted(test, pi).argmax(1) == data.test_labels).double().mean().item()


def test_a_site_with_labels_by_hand(finished, tmp_path):
    plan, done = onboarded(finished, tmp_path, 4)
    found, [row] = done.comparison, RunFolder(done.folder).per_site()
    assert found.common == pytest.approx(right_by_hand(plan, done, 4))
    assert found.common_as_is == pytest.approx(right_by_hand(plan, done, 4, mix=False))
    assert found.own == pytest.approx(done.rounds[-1])
    assert (found.tuned, found.labels_alone) == (row["tuned_accuracy"], row["alone_accuracy"])
    assert found.tuned is not None and found.labels_alone is not None
    assert done.files == ("model.safetensors", "common.safetensors")
    now = records(done.folder)
    for name, site in zip(done.files, ("4", SERVER), strict=True):
        saved = load((done.folder / name).read_bytes())
        assert digest_of(to_bytes(saved)) == now[site][1]
    assert now[SERVER][:2] == records(finished)[SERVER][:2]
    written = json.loads((done.folder / "onboarding.json").read_text())
    labels = site_data(plan.experiment, 4).labels.tolist()
    mix = [(labels.count(c) + 0.1) / (len(labels) + 1) for c in range(10)]
    assert written["accuracy"] == {
        "own": found.own, "common": found.common, "common_as_is": found.common_as_is,
        "tuned": found.tuned, "labels_alone": found.labels_alone,
        "class_mix": pytest.approx(mix),
    }  # fmt: skip
    assert (written["run"], written["site"], len(written["accuracy_by_round"])) == ("first", 4, 3)


def test_a_site_without_labels_has_the_common_answer_and_a_tuned_one(finished, tmp_path):
    plan, done = onboarded(finished, tmp_path, 3)
    found = done.comparison
    assert found.common == pytest.approx(right_by_hand(plan, done, 3))
    assert done.rounds[0] == found.common  # nothing is learned in the warm-up
    assert found.tuned is not None and found.labels_alone is None
    assert done.files == ("model.safetensors", "common.safetensors")


def test_without_training_there_is_the_common_answer_alone(finished, tmp_path):
    """No answer is sure enough: the site has learned from nothing."""
    plan, done = onboarded(finished, tmp_path, 3, method__confidence=1.0)
    found = done.comparison
    assert found.own == found.common == pytest.approx(right_by_hand(plan, done, 3))
    assert (found.tuned, found.labels_alone) == (None, None)
    assert (
        done.files == ("common.safetensors",) and not (done.folder / "model.safetensors").exists()
    )


def test_without_test_images_it_says_that_nothing_can_be_measured(finished, tmp_path):
    console = Console(record=True, width=100)
    show(onboarded(finished, tmp_path, 5, rounds=1)[1], console)
    text = console.export_text()
    assert "has no labelled test images: how good its model is cannot be measured here" in text
    assert "common.safetensors" in text and "%" not in text and "peers" not in text


def test_the_table_by_hand():
    made = FromCommon(0.9, 0.8, 0.7, None, 0.5, (0.25, 0.75))
    assert [value for _, value in made.table()] == [0.9, 0.8, 0.7, None, 0.5]
    assert not made.notes()


def test_a_hospital_with_images_of_its_own_is_onboarded_by_the_command(tmp_path, monkeypatch):
    """West is not even in the agreed list; south, whose images are west's, has no labels."""
    root = three_sites(tmp_path / "data")
    (tmp_path / "south" / "unlabelled").mkdir(parents=True)
    for scan in (root / "west" / "scans").iterdir():
        shutil.copy(scan, tmp_path / "south" / "unlabelled")
    runs = tmp_path / "runs"
    monkeypatch.setenv("FEDAPP_OUT", str(runs))
    both = own_experiment(
        root, data__sites="east, north", split__num_clients=2,
        method=PriorShift(), training__warmup_rounds=2,
    )  # fmt: skip
    federate(replace(both, runtime=replace(both.runtime, run_name="hospitals")), only=(0, 1))
    west = ["--data", str(root / "west"), "--site-name", "west", "--rounds", "2"]
    said = CliRunner().invoke(app, ["onboard", "hospitals", *west, "runtime.run_name=west"])
    assert said.exit_code == 0, said.output
    assert "labelled test images of site west" in said.output
    assert "common model times the site's class mix" in said.output
    assert "peers" not in said.output and "average.safetensors" not in said.output
    written = json.loads((runs / "west" / "onboarding.json").read_text())
    assert (written["site"], written["name"]) == (2, "west")
    assert all(value is not None for value in written["accuracy"].values())
    assert len(written["accuracy"]["class_mix"]) == 3
    south = ["--data", str(tmp_path / "south"), "--site-name", "south", "--rounds=1"]
    third = CliRunner().invoke(app, ["onboard", "west", *south, "runtime.run_name=south"])
    assert third.exit_code == 0, third.output
    assert "has no labelled test images" in third.output
    chain = [records(runs / name)[SERVER][:2] for name in ("hospitals", "west", "south")]
    assert chain[0] == chain[1] == chain[2]
