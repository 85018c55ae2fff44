"""FedPer and LG-FedAvg: a site's own head, or its own body; `test_second_network` has a run."""

import pytest
import torch

from fedapp.learn.networks import build_model
from fedapp.learn.networks.resnet9 import ResNet9Settings
from fedapp.methods.averaging.fedavg import FedAvg
from fedapp.methods.averaging.fedper import FedPer
from fedapp.methods.averaging.lg_fedavg import LgFedAvg
from tests.methods.conformance import (
    Deal,
    play,
    toy,
)

HEAD = frozenset({"head.weight", "head.bias"})


def test_what_fedper_keeps_lg_fedavg_shares():
    network = build_model(ResNet9Settings(width=2), (3, 8, 8), 9)
    kept, other = FedPer().kept_private(network), LgFedAvg().kept_private(network)
    assert kept == HEAD and other == network.state_dict().keys() - HEAD


@pytest.mark.parametrize("method", [FedPer, LgFedAvg])
def test_of_one_site_it_is_fedavg(tmp_path, method):
    deals = (Deal(20, 6),)
    one = play(toy(FedAvg(objective="fixmatch"), tmp_path, deals, name="fedavg"))
    two = play(toy(method(objective="fixmatch"), tmp_path, deals, name="other"))
    assert one.rows() == two.rows()
    for mine, theirs in zip(two.of(2, "train"), one.of(2, "train"), strict=True):
        whole = mine.upload | two.private(mine.reply.private)
        assert all(torch.equal(whole[n], t) for n, t in theirs.upload.items() if t.ndim)
