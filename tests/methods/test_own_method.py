"""A method of one's own, `method.name=package.module:Class`, is one like any other."""

import pytest
from flwr.supercore.task_identity import TaskIdentity

from fedapp.core.errors import ConfigError
from fedapp.experiment.config import from_plain, load_experiment, to_plain
from fedapp.methods import method_class, register
from fedapp.methods.averaging.fedavg import FedAvg
from tests.flower.grids import MemoryGrid, preset, serve, sites
from tests.flower.results import loopback, results, rows
from tests.methods.own_method import Shy
from tests.methods.test_toys import OVER

HERE = "tests.methods.own_method"
SHY = f"{HERE}:Shy"


def shy(out, name=SHY, **over):
    fixed = {"method.name": name, "runtime.out": str(out), "runtime.run_name": "run"}
    return load_experiment("digits_demo", {**OVER, **fixed, **over})


def test_its_fields_are_settings(tmp_path):
    experiment = shy(tmp_path, **{"method.power": 0.5, "method.answer": "tuned"})
    assert experiment.method == Shy(power=0.5, answer="tuned")
    assert from_plain(to_plain(experiment), "test") == experiment


@pytest.mark.parametrize(("over", "line"), [
    ({"method.power": 2.0}, "override: method.power = 2.0: must be less than or equal to 1"),
    ({"method.force": 1}, f"override: method.force = 1: not a setting of {SHY}; valid: answer, "),
    ({"method.mc_samples": 3}, f"override: method.mc_samples = 3: not a setting of {SHY}; valid"),
    ({"method.name": f"{HERE}:Sly"}, "has no class 'Sly' made from fedapp.methods.base.Method"),
    ({"method.name": "no_such:Shy"}, "method.name = 'no_such:Shy': cannot import 'no_such'"),
    ({"method.name": f"{HERE}:"}, "must be package.module:Class; correct the name"),
    ({"method.name": f"{HERE}:Half"}, "Half of 'tests.methods.own_method' lacks site_round"),
    ({"method.name": f"{HERE}:Plain"}, f'must be a dataclass whose `name` is "{HERE}:Plain"'),
    ({"method.name": f"{HERE}:Misnamed"}, f'must be a dataclass whose `name` is "{HERE}:Misnamed"'),
])  # fmt: skip
def test_what_is_refused_in_a_line(tmp_path, over, line):
    with pytest.raises(ConfigError) as error:
        shy(tmp_path, **over)
    assert line in str(error.value) and len(str(error.value).splitlines()) == 1


def test_it_is_a_class_like_others():
    assert method_class(SHY) is Shy


def test_with_power_1_it_is_fedavg_bit_for_bit_and_else_it_is_not(tmp_path):
    over = {"method.objective": "supervised"}
    base = loopback(shy(tmp_path / "base", "fedavg", **over))
    same = loopback(shy(tmp_path / "same"))
    other = loopback(shy(tmp_path / "other", **{"method.power": 0.0}))
    assert rows(same) == rows(base) and results(same)["pool"] == results(base)["pool"]
    assert results(other)["pool"] != results(base)["pool"]


def test_loopback_and_flower_give_the_same_bits(tmp_path, monkeypatch):
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    here = loopback(shy(tmp_path / "loopback"))
    (tmp_path / "flower").mkdir()
    experiment = shy(tmp_path / "flower")
    _, there = serve(experiment, MemoryGrid(sites({"preset": preset(experiment, tmp_path)}, 3)))
    assert results(here) == results(there.path)


@pytest.mark.parametrize("made", [
    3, dict, type("Named", (), {"name": "named"}), type("Nameless", (FedAvg,), {"name": None}),
])  # fmt: skip
def test_what_is_given_must_be_a_methods_class_with_a_name(made):
    with pytest.raises(ConfigError, match="must be a class made from"):
        register(made)
