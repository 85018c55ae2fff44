"""Every method on other networks than the paper's: nothing in a method goes by ResNet-9."""

import hashlib
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load, save
from torchvision.models import resnet18

from fedapp.learn.networks import network_settings
from fedapp.learn.networks.fedsiam_cifar import FedSiamCifarSettings
from fedapp.learn.networks.mlp import MLPSettings
from fedapp.learn.networks.resnet9 import ResNet9Settings
from fedapp.learn.networks.resnet18 import ResNet18Settings
from fedapp.methods import method_class, method_names
from fedapp.methods.averaging.fedavg import FedAvg
from fedapp.methods.averaging.fedbn import FedBN
from fedapp.methods.averaging.fedper import FedPer
from fedapp.methods.averaging.lg_fedavg import LgFedAvg
from tests.methods.conformance import (
    UNEQUAL,
    Deal,
    Wire,
    assert_descent_with_private_by_hand,
    assert_measured_by_hand,
    assert_private_never_travels,
    assert_shared_is_mean,
    play,
    play_in_one_store,
    run_on,
    toy,
)

PLAIN = ResNet9Settings(width=2, dropout=0.0)
MLP = MLPSettings(hidden="12, 8", dropout=0.0)
GROUPS = ResNet9Settings(width=2, dropout=0.0, norm="group")
CNN = FedSiamCifarSettings(dropout=0.0, channel_dropout=0.0)
OWN = network_settings("tests.learn.own_network:small", {"units": 6, "rate": 0.0})
SETTINGS = {
    "um_pfssl": {"mc_samples": 2, "helper_list_size": 2, "num_replaced": 1},
    "prior_shift": {"confidence": 0.0},
}
LABELLED = [deal.labelled for deal in UNEQUAL]
BY_HAND = {"training__batch_size": 64, "training__local_epochs": 2}


def network_for(name):
    """A perceptron with dropout; where a method needs batch norm, a network that has some."""
    return FedSiamCifarSettings() if name == "fedbn" else MLPSettings(hidden="12")


@pytest.mark.parametrize("name", method_names())
def test_every_method_runs_on_another_network(tmp_path, name):
    method = method_class(name)(**SETTINGS.get(name, {}))
    played = play_in_one_store(toy(method, tmp_path, model=network_for(name)))
    assert [row["skipped"] for row in played.rows()] == [{}] * 3


@pytest.mark.parametrize(("method", "network"), [
    (FedPer(), PLAIN), (LgFedAvg(), PLAIN), (FedBN(), PLAIN),
    (FedPer(), MLP), (FedPer(), GROUPS), (FedPer(), OWN), (LgFedAvg(), MLP), (FedBN(), CNN),
], ids=lambda value: type(value).__name__)  # fmt: skip
def test_a_part_that_is_kept_at_home_stays_there_and_learns_by_hand(tmp_path, method, network):
    played = play(toy(method, tmp_path, model=network, **BY_HAND))
    assert_private_never_travels(played, played.kept())
    assert_descent_with_private_by_hand(played)
    assert_measured_by_hand(played)
    assert_shared_is_mean(played, LABELLED)


@pytest.mark.parametrize("network", [MLP, GROUPS, OWN], ids=lambda value: type(value).__name__)
def test_fedavg_is_the_mean_of_what_was_learned_by_hand(tmp_path, network):
    played = play(toy(FedAvg(), tmp_path, model=network, **BY_HAND))
    assert_descent_with_private_by_hand(played)
    assert_shared_is_mean(played, LABELLED)


def test_a_site_without_the_file_of_weights_is_sent_w_0(tmp_path):
    """The experiment names the file's SHA-256; where the file lies is each machine's own matter."""
    weights, path = resnet18(weights=None).state_dict(), tmp_path / "w.safetensors"
    path.write_bytes(save(weights))
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    network = ResNet18Settings(weights=str(path), weights_sha256=sha256)
    experiment = toy(
        FedAvg(), tmp_path, (Deal(8, 0), Deal(6, 0)), model=network, rounds__num_rounds=0
    )
    bare = replace(experiment, model=replace(network, weights=""))
    played = run_on(experiment, lambda _, folder, __: Wire(bare, folder.path / "remote"))
    first = [e for e in played.seen if e.down][:2]
    assert [(e.task.site, e.task.round) for e in first] == [(0, 0), (1, 0)]
    for exchange in first:
        sent = load(exchange.down[exchange.task.own.digest])
        layers = [name for name in weights if name.startswith("layer")]
        assert len(layers) > 100 and all(torch.equal(sent[n], weights[n]) for n in layers)
