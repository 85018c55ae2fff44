"""FedBN: batch norms stay at home, parameters, statistics and counters; the rest is FedAvg."""

import pytest
import torch

from fedapp.core.errors import ConfigError
from fedapp.learn.networks import build_model
from fedapp.learn.networks.resnet9 import ResNet9Settings
from fedapp.methods.averaging.fedavg import FedAvg
from fedapp.methods.averaging.fedbn import FedBN
from tests.methods.conformance import (
    Deal,
    assert_measured_by_hand,
    play,
    toy,
)

NORMS = ("stem.norm", "down1.norm", "down2.norm", "down3.norm",
         "res1.0.norm", "res1.1.norm", "res2.0.norm", "res2.1.norm")  # fmt: skip
OF_A_NORM = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
KEPT = frozenset(f"{norm}.{name}" for norm in NORMS for name in OF_A_NORM)


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """One batch an epoch and no dropout, so that it can be done by hand."""
    changes = {"training__batch_size": 64, "training__local_epochs": 2, "model__dropout": 0.0}
    return play(toy(FedBN(), tmp_path_factory.mktemp("fedbn"), **changes))


def test_every_batch_norm_is_kept_whole():
    assert FedBN().kept_private(build_model(ResNet9Settings(width=2), (1, 8, 8), 10)) == KEPT


def test_batch_norms_differ_between_sites_and_their_counters_go_on(played):
    """A counter counts all a site's batches: nobody sets it back."""
    last = [played.private(e.reply.private) for e in played.of(2, "train")]
    for one, two in ((0, 1), (1, 2), (0, 2)):
        for name in ("stem.norm.running_mean", "stem.norm.weight"):
            assert not torch.equal(last[one][name], last[two][name])
    assert [int(part["stem.norm.num_batches_tracked"]) for part in last] == [1 + 2 + 2] * 3


def test_of_one_site_it_is_fedavg(tmp_path):
    """Its batch norms are the mean of one."""
    deals = (Deal(20, 6),)
    rows = [play(toy(m, tmp_path, deals, name=m.name)).rows() for m in (FedAvg(), FedBN())]
    assert rows[0] == rows[1]


def test_without_batch_norm_it_is_one_line_of_error(tmp_path):
    with pytest.raises(
        ConfigError, match=r"ResNet9 has no batch norm .*model\.norm=batch"
    ) as error:
        play(toy(FedBN(), tmp_path, model__norm="group"))
    assert len(str(error.value).splitlines()) == 1


def test_a_site_that_never_learned_uses_the_batch_norms_of_w_0(tmp_path):
    played = play(toy(FedBN(), tmp_path, (Deal(8, 2), Deal(0, 4))))
    [_, silent] = played.of(2, "evaluate")
    assert silent.task.private == silent.reply.private == ""
    assert_measured_by_hand(played)
