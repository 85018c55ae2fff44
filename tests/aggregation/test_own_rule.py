"""An averaging rule of one's own: taken by its name, and refused in a line where it is none."""

from dataclasses import replace

import pytest
import torch

from fedapp.aggregation import rule_names, rule_of
from fedapp.aggregation.base import Memory
from fedapp.core.errors import ConfigError, RunError
from fedapp.experiment.config import load_experiment
from fedapp.methods.averaging.fedavg import FedAvg
from fedapp.server.pool import RULE_MEMORY_SITE, ModelPool
from tests.methods.conformance import Stop, cut_at, play, toy
from tests.server.test_round_pool import content, left_out_of, model, pool_of

HERE = "tests.aggregation.own_rule"


def test_the_rules_of_the_package():
    assert rule_names() == ["bounded", "filtered", "median", "none"]
    assert rule_of("none") == rule_of("none") != rule_of("median")


@pytest.mark.parametrize(("name", "says"), [
    ("mean", "no such rule; did you mean 'median'"),
    ("no.such.module:Rule", r"cannot import 'no\.such\.module' .* PYTHONPATH"),
    (f"{HERE}:", "must be package.module:Class"),
    (f"{HERE}:Nothing", r"has no class 'Nothing' made from fedapp\.aggregation\.base\.Rule"),
    (f"{HERE}:NoRule", "has no class 'NoRule' made from"),
    (f"{HERE}:Half", "Half of 'tests.aggregation.own_rule' lacks finish; write them"),
])  # fmt: skip
def test_what_is_no_rule_is_refused_in_a_line(name, says):
    with pytest.raises(ConfigError, match=says) as error:
        rule_of(name)
    assert len(str(error.value).splitlines()) == 1


def test_a_rule_that_gives_no_model_of_the_run_is_named(tmp_path):
    rnd = pool_of(tmp_path, [model(1)], robust=f"{HERE}:Wrong")
    with pytest.raises(RunError, match="Wrong: its average of a model must have the names, shapes"):
        rnd.average([(1, rnd.latest(0))])


def test_a_masked_sum_hears_members_however_far_they_seem_to_be(tmp_path):
    """Members 1 and 3 behind masks of 4096 and -4096 lie far from the three others at 7."""
    models = [model(1 + 4096), model(3 - 4096), model(7), model(7), model(7)]
    plain, said = left_out_of(pool_of(tmp_path, models, robust="none"))
    parts = [(1, plain.latest(k)) for k in range(5)]
    assert content(plain, plain.average(parts))["weight"][0, 0] == 7 and len(said) == 2
    masked, said = left_out_of(pool_of(tmp_path / "masked", models, robust=f"{HERE}:MaskedSum"))
    assert content(masked, masked.average(parts))["weight"][0, 0] == 5 and not said


def test_what_a_rule_remembers_is_kept_until_the_next_average(tmp_path):
    rnd = pool_of(tmp_path, [model(1), model(3)], server=model(7), robust=f"{HERE}:Latest")
    assert rnd.pool.rule_memory("model") == {}
    assert content(rnd, rnd.average([(1, rnd.latest(0)), (1, rnd.latest(1))]))["weight"][0, 0] == 3
    rnd.pool.collect_garbage()
    again = ModelPool.from_plain(rnd.pool.store, rnd.pool.to_plain())
    assert torch.equal(again.rule_memory("model")["latest.weight"], model(7)["weight"])
    assert rnd.remembered == {1: 1.0}
    rnd.average([(1, rnd.latest(1))])
    assert (
        rnd.remembered == {1: 2.0}
        and rnd.pool.contents[RULE_MEMORY_SITE, "remembered_model"].version == 2
    )
    assert rnd.pool.rule_memory("model")["latest.weight"][0, 0] == 3
    rnd.pool.store_rule_memory(Memory().tensors, 9, "model")
    assert rnd.pool.rule_memory("model") == {}
    assert (RULE_MEMORY_SITE, "remembered_model") not in rnd.pool.contents


def test_a_run_with_it_resumes_to_the_same_bits(tmp_path):
    def latest(name):
        return toy(FedAvg(), tmp_path, name=name, rounds__robust=f"{HERE}:Latest")

    whole, experiment = play(latest("whole")), latest("cut")
    with pytest.raises(Stop):
        play(experiment, cut_at(2, "train", 2))
    resumed = play(replace(experiment, runtime=replace(experiment.runtime, resume=True)))
    assert resumed.records() == whole.records() and resumed.rows() == whole.rows()
    assert resumed.folder.load_checkpoint()["state"]["averaging"] == {"2": 3.0}


def test_a_run_whose_rule_cannot_be_had_does_not_begin(tmp_path):
    with pytest.raises(ConfigError, match=r"rounds\.robust = 'no_such:Rule': cannot import"):
        play(toy(FedAvg(), tmp_path, rounds__robust="no_such:Rule"))
    own = load_experiment("digits_demo", {"rounds.robust": "no_such:Rule"})  # elsewhere it may be
    assert own.rounds.robust == "no_such:Rule"
