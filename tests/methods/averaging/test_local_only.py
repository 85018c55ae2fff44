"""LocalOnly: nothing is sent to peers, and only sites with labels train."""

import pytest
import torch

from fedapp.methods.averaging.local_only import LocalOnly
from fedapp.methods.base import MethodState, Round
from fedapp.methods.recommended.prior_shift import PriorShift
from fedapp.protocol.messages import ModelRef
from fedapp.site.private_state import MEMORY
from tests.methods.conformance import UNEQUAL, Deal, play, toy


class Pool:
    def latest(self, site):
        return ModelRef(site, 1, f"{site:064x}")

    def trained(self):
        return (0, 1, 2)


def tasks(number, cohort):
    rnd = Round(number, 0, (0, 1, 2), frozenset(cohort), Pool())
    return next(LocalOnly().server_round(MethodState(), rnd))


def test_everybody_warms_up_and_then_the_cohort_trains_on_its_own_model():
    assert [(t.site, t.action) for t in tasks(0, (0, 1, 2))] == [(k, "warmup") for k in range(3)]
    assert [(t.site, t.action) for t in tasks(3, (2, 0))] == [(0, "train"), (2, "train")]


def test_a_task_names_no_model_but_the_sites_own():
    assert all(task.refs() == (task.own,) and not task.models for task in tasks(3, (0, 1)))


def test_a_site_that_comes_late_is_warmed_up_as_in_round_zero():
    rnd = Round(5, 0, (0, 1, 2), frozenset((1,)), Pool(), joined={2: 5})
    assert LocalOnly().welcome(rnd) == [tasks(0, (0, 1, 2))[2]]


# --- one word, one model --------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [
    {"warmup_epochs": 7, "local_epochs": 2},
    {"warmup_epochs": 3},  # the last part has no epoch
    {"warmup_epochs": 0},
    {"warmup_epochs": 7, "local_steps": 4, "augment": "weak"},
], ids=["epochs", "empty part", "no warm-up", "steps"])  # fmt: skip
def test_it_is_bit_for_bit_the_model_that_prior_shift_trains_alone(tmp_path, changes):
    """Few images, dropout, momentum; the last site has no labels, and trains neither."""
    changes = {"warmup_rounds": 4, "momentum": 0.9} | changes
    settings = {f"training__{key}": value for key, value in changes.items()}
    settings |= {"model__dropout": 0.3, "rounds__sample_rate": 0.7}
    deals = (*UNEQUAL, Deal(0, 9))
    mine = play(toy(LocalOnly(), tmp_path, deals, name="local_only", **settings))
    beside = play(toy(PriorShift(confidence=0.0), tmp_path, deals, name="beside", **settings))
    compared = 0
    for number, action in ((0, "warmup"), (1, "train"), (2, "train")):
        theirs = {e.task.site: e for e in beside.of(number, action) if e.reply.private}
        for exchange in mine.of(number, action):
            if not exchange.reply.learned:
                continue
            lone = beside.private(theirs[exchange.task.site].reply.private)  # the last part's
            compared += 1
            for name, tensor in exchange.upload.items():
                assert torch.equal(lone[MEMORY + name], tensor), (number, name)
    assert compared >= 4
