"""Worked examples in `lab`: known methods from outside, against ours, by hand and at their ends."""

from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from flwr.supercore.task_identity import TaskIdentity
from safetensors.torch import load

import fedapp
from fedapp.core.errors import ConfigError, RunError
from fedapp.experiment.config import load_experiment
from fedapp.learn.networks import initial_params
from fedapp.methods import method_class
from fedapp.methods.averaging.fedavg import FedAvg
from fedapp.protocol.messages import ModelRef, Task
from tests.flower.grids import MemoryGrid, preset, serve, sites
from tests.flower.results import loopback, results
from tests.methods.conformance import (
    PIXELS,
    Deal,
    assert_close,
    beside_of,
    context,
    data_of,
    descent_by_hand,
    play,
    site_data,
    toy,
)
from tests.methods.test_toys import OVER

HERE = str(Path(__file__).parent)
OWN, SERVER = ModelRef(0, 1, "b" * 64), ModelRef(-2, 1, "a" * 64)
TASK = Task(0, 1, "train", OWN, {"server": (SERVER,)}, private="c" * 64)
START = initial_params(PIXELS, (1, 8, 8), 3, seed=0)
WHOLE = {"model": PIXELS, "training__batch_size": 64}
"""No dropout, and all of a site's images in one mini-batch: the order is of no account."""


@pytest.fixture(autouse=True)
def installed(monkeypatch):
    monkeypatch.syspath_prepend(HERE)


def lab(name):
    return method_class(f"lab.{name}")


def last(played):
    """The server's model at the end, floating tensors."""
    found = played.server(played.of(played.experiment.rounds.num_rounds, "evaluate")[0])
    return {name: tensor for name, tensor in found.items() if tensor.is_floating_point()}


def moved(played):
    """How far it is from where it began, in L2 norm."""
    w_0 = played.w_0()
    return sum(float((t - w_0[n]).square().sum()) for n, t in last(played).items()) ** 0.5


# --- rules of the server --------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "own", "ours"), [
    ("fedavgm:FedAvgM", {"beta": 0.0}, {}),
    ("fedavgm:FedAvgM", {"beta": 0.5}, {"server_optimizer": "fedavgm", "server_momentum": 0.5}),
    ("fedadam:FedAdam", {"rate": 0.02}, {"server_optimizer": "fedadam", "server_rate": 0.02}),
])  # fmt: skip
def test_a_server_optimiser_is_ours_and_without_momentum_fedavg(tmp_path, name, own, ours):
    found = play(toy(lab(name)(**own), tmp_path, name="own"))
    assert_close(last(found), last(play(toy(FedAvg(**ours), tmp_path, name="ours"))))
    assert moved(found) > 0.1


# --- SCAFFOLD -------------------------------------------------------------------------------------

SITES = (Deal(9, 12), Deal(20, 3), Deal(5, 0))
STEPS = {**WHOLE, "training__local_steps": 3, "training__momentum": 0.0}


def scaffold(folder, deals=SITES, **changes):
    return play(toy(lab("scaffold:Scaffold")(), folder, deals, "own", **STEPS, **changes))


def control(played, exchange):
    """c, as a site was sent it."""
    sent = {digest: blob for e in played.seen for digest, blob in e.down.items()}
    return load(sent[exchange.task.models["control"][0].digest])


def test_one_site_has_no_drift(tmp_path):
    """c is c_0: nothing is corrected."""
    found = scaffold(tmp_path, SITES[:1], rounds__num_rounds=3)
    plain = toy(FedAvg(), tmp_path, SITES[:1], "plain", **STEPS, rounds__num_rounds=3)
    assert_close(last(found), last(play(plain)), atol=1e-5)


def test_the_servers_control_is_the_mean_gradient(tmp_path):
    """All sites take K steps of one rate, and c = 0 before: c = (x - x') / (K eta), x' the mean."""
    played = scaffold(tmp_path)
    before, after = (played.server(played.of(number, "train")[0]) for number in (1, 2))
    found, far = control(played, played.of(2, "train")[0]), 3 * 0.05
    assert found.keys() < before.keys()
    assert_close(found, {name: (before[name] - after[name]) / far for name in found}, atol=1e-5)


def test_a_site_learns_by_the_corrected_gradient(tmp_path):
    played = scaffold(tmp_path)
    for first, second in zip(played.of(1, "train"), played.of(2, "train"), strict=True):
        own, c = beside_of(first), control(played, second)
        data = site_data(played.experiment, second.task.site)
        shift = {name: c[name] - own[name] for name in own}
        assert max(float(s.abs().max()) for s in shift.values()) > 0.01
        start = played.server(second)
        wanted = descent_by_hand(
            played.experiment, start, data.labelled, data.labels, 3, lambda *_, by=shift: by
        )
        sent = second.upload
        assert_close(sent, {name: wanted[name] for name in own}, atol=1e-5)
        new = {n: own[n] - c[n] + (start[n] - sent[n]) / (3 * 0.05) for n in own}
        assert_close(beside_of(second), new, atol=1e-4)


def test_scaffold_needs_plain_steps():
    site = context(data_of(), START, momentum=0.9)
    with pytest.raises(RunError, match=r"set training\.momentum=0$"):
        lab("scaffold:Scaffold")().site_round(TASK, site)


def test_scaffold_goes_on_to_the_same_bits(tmp_path):
    whole = scaffold(tmp_path, rounds__num_rounds=3)
    short = toy(lab("scaffold:Scaffold")(), tmp_path, SITES, "cut", **STEPS)
    play(short)
    longer = replace(short.rounds, num_rounds=3)
    play_on = replace(short, runtime=replace(short.runtime, resume=True), rounds=longer)
    assert play(play_on).records()["pool"] == whole.records()["pool"]


# --- a loss of one's own --------------------------------------------------------------------------


def test_the_loss_of_two_views_by_hand():
    """Equal: 0. Sure of two classes: (1 - 0)^2 + (0 - 1)^2. 0.5 against sure: 0.5^2 + 0.5^2."""
    loss = import_module("lab.agreement").agreement
    first, second, unsure = (
        torch.tensor([[99.0, 0.0]]),
        torch.tensor([[0.0, 99.0]]),
        torch.ones(1, 2),
    )
    assert loss(None, first, first) == 0
    assert loss(None, first, second).item() == pytest.approx(2)
    assert loss(None, unsure, first).item() == pytest.approx(0.5)
    both = torch.cat([first, unsure]), torch.cat([second, first])
    assert loss(None, *both).item() == pytest.approx(1.25)
    assert loss(None, torch.empty(0, 2), torch.empty(0, 2)) == 0


def test_the_weak_view_teaches_and_does_not_learn():
    weak, strong = torch.zeros(1, 2, requires_grad=True), torch.ones(1, 2).cumsum(1)
    strong.requires_grad_()
    import_module("lab.agreement").agreement(None, weak, strong).backward()
    assert weak.grad is None and strong.grad.abs().max() > 0


def test_without_weight_it_is_fedavg_and_with_it_not(tmp_path):
    """As FixMatch without weight: both see labelled images in the same two views."""
    over = {"training__warmup_epochs": 0}
    own = lab("agreement:Agreement")
    plain = FedAvg(objective="fixmatch", unlabelled_weight=0.0)
    wanted = last(play(toy(plain, tmp_path, name="plain", **over)))
    assert_close(last(play(toy(own(unlabelled_weight=0.0), tmp_path, name="off", **over))), wanted)
    taught = last(play(toy(own(), tmp_path, name="on", **over)))
    assert any(not torch.allclose(taught[name], wanted[name], atol=1e-4) for name in wanted)


# --- a loop of one's own --------------------------------------------------------------------------


class Whole(fedapp.OwnLoop):
    """Plain gradient descent on all labelled images at once."""

    name: ClassVar[str] = "tests.outside.test_methods:Whole"

    def fit(self, network, images, labels, unlabelled, epochs):
        optimiser = torch.optim.SGD(network.parameters(), lr=0.05)
        for _ in range(epochs):
            optimiser.zero_grad()
            loss = torch.nn.functional.cross_entropy(network(images), labels)
            loss.backward()
            optimiser.step()


def test_a_loop_that_does_what_fedavg_does_is_fedavg(tmp_path):
    over = {**WHOLE, "training__momentum": 0.0, "training__local_epochs": 2}
    found = play(toy(Whole(), tmp_path, name="own", **over))
    plain = play(toy(FedAvg(answer="tuned"), tmp_path, name="plain", **over))
    assert_close(last(found), last(plain), atol=1e-5)
    assert moved(found) > 0.1
    right = [[e.reply.evaluations["test"].correct for e in one.of(2, "evaluate")]
             for one in (found, plain)]  # fmt: skip
    assert right[0] == right[1]


@pytest.mark.parametrize(("data", "epochs"), [
    (data_of(labelled=0, unlabelled=4), 1),
    (data_of(labelled=4), 0),
])  # fmt: skip
def test_without_labels_or_epochs_nothing_is_learned(data, epochs):
    report = Whole().site_round(TASK, context(data, START, local_epochs=epochs))
    assert report.params is None and not report.learned


def test_a_loop_that_diverges_is_named():
    class Broken(Whole):
        def fit(self, network, *rest):
            network.head.weight.data.fill_(float("nan"))

    with pytest.raises(RunError, match=r"head\.weight is NaN or infinite"):
        Broken().site_round(TASK, context(data_of(), START))


def test_what_the_loop_does_not_see_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="the loop is the user's own"):
        fedapp.run("digits_demo", Whole, settings={"training.uneven": "balanced"})


def test_without_fit_it_is_no_method():
    class Empty(fedapp.OwnLoop):
        name: ClassVar[str] = "tests.outside.test_methods:Empty"

    with pytest.raises(TypeError, match="fit"):
        Empty()


def test_a_loop_gives_the_same_bits_in_loopback_and_over_flower(tmp_path, monkeypatch):
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    over = {**OVER, "method.name": "lab.loop:Loop", "runtime.run_name": "run"}
    here, there = (
        load_experiment("digits_demo", {**over, "runtime.out": str(tmp_path / way)})
        for way in ("loopback", "flower")
    )
    (tmp_path / "flower").mkdir()
    _, served = serve(there, MemoryGrid(sites({"preset": preset(there, tmp_path)}, 3)))
    assert results(loopback(here)) == results(served.path)
