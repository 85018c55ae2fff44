"""`method.server_optimizer`: FedAvg with an optimiser at the server, and who refuses it."""

import dataclasses

import pytest

from fedapp.aggregation.server_optimizers import FedAdam, FedAvgM
from fedapp.core.errors import ConfigError
from fedapp.experiment.config import load_experiment
from fedapp.methods import method_class, method_names
from fedapp.methods.averaging.fedavg import FedAvg
from fedapp.methods.averaging.fedper import FedPer
from fedapp.methods.averaging.pfedme import PFedMe
from tests.methods.conformance import WARM_UP, check_method, play, toy

MOMENTUM = {"server_optimizer": "fedavgm", "server_rate": 0.7, "server_momentum": 0.5}
ADAM = {"server_optimizer": "fedadam", "server_rate": 0.01}
KIN = {"fedavg", "fedprox", "fedbn", "fedper", "lg_fedavg"}


def test_a_rate_of_1_without_momentum_is_fedavg_bit_for_bit(tmp_path):
    plain = play(toy(FedAvg(), tmp_path, name="plain", **WARM_UP))
    same = FedAvg(server_optimizer="fedavgm", server_rate=1.0, server_momentum=0.0)
    found = play(toy(same, tmp_path, name="same", **WARM_UP))
    assert found.rows() == plain.rows() and found.records() == plain.records()
    for other in (FedAvg(**MOMENTUM), FedAvg(**ADAM)):
        moved = play(toy(other, tmp_path, name=other.server_optimizer, **WARM_UP))
        assert moved.records()["pool"]["-2"] != plain.records()["pool"]["-2"]


@pytest.mark.parametrize("method", [FedAvg(**MOMENTUM), FedAvg(**ADAM), FedPer(**ADAM)],
                         ids=lambda m: f"{m.name}-{m.server_optimizer}")  # fmt: skip
def test_a_run_that_is_cut_goes_on_with_the_same_momentum(tmp_path, method):
    whole = check_method(lambda name: toy(method, tmp_path, name=name, **WARM_UP))
    version, digest, _ = whole.records()["pool"]["-3 remembered_model"]
    assert version == 3 + 2  # an average of each common round of the warm-up, and of each round
    assert digest in {file.stem for file in whole.folder.pool_root.rglob("*.safetensors")}


def test_settings_make_the_rule():
    rule = object()
    assert FedAvg().averaging(rule) is rule
    assert FedAvg(**MOMENTUM).averaging(rule) == FedAvgM(rule, 0.7, 0.5)
    assert FedAvg(**ADAM).averaging(rule) == FedAdam(rule, 0.01, 0.9, 0.99, 1e-3)
    assert PFedMe(beta=2.0).averaging(rule) == FedAvgM(rule, 2.0, 0.0)


def test_the_methods_that_have_it():
    having = {
        name
        for name in method_names()
        if "server_optimizer" in {f.name for f in dataclasses.fields(method_class(name))}
    }
    assert having == KIN


@pytest.mark.parametrize(("overrides", "line"), [
    ({"method.name": "um_pfssl", "method.server_optimizer": "fedadam"},
     "override: method.server_optimizer = 'fedadam': not a setting of um_pfssl; valid: "),
    ({"method.name": "pfedme", "method.server_rate": 0.5},
     "override: method.server_rate = 0.5: not a setting of pfedme; valid: "),
    ({"method.name": "fedavg", "method.server_optimizer": "adam"},
     "override: method.server_optimizer = 'adam': must be 'none', 'fedavgm' or 'fedadam'"),
    ({"method.name": "fedavg", "method.server_rate": 0.5},
     "method.server_rate = 0.5: server_rate has no use with this server_optimizer; leave it out"),
    ({"method.preset": "fedavgm", "method.server_tau": 0.1},
     "server_tau has no use with this server_optimizer; leave it out"),
    ({"method.preset": "fedavgm", "method.server_momentum": 1.0},
     "override: method.server_momentum = 1.0: must be less than 1"),
    ({"method.preset": "fedadam", "method.server_beta2": -0.1},
     "override: method.server_beta2 = -0.1: must be greater than or equal to 0"),
    ({"method.preset": "fedadam", "method.server_tau": 0.0},
     "override: method.server_tau = 0.0: must be greater than or equal to 0.000001"),
    ({"method.preset": "fedadam", "method.server_rate": 0.0},
     "override: method.server_rate = 0.0: must be greater than 0"),
])  # fmt: skip
def test_what_is_refused(overrides, line):
    with pytest.raises(ConfigError) as error:
        load_experiment("digits_demo", overrides)
    assert line in str(error.value) and len(str(error.value).splitlines()) == 1
