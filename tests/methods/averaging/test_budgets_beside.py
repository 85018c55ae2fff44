"""What methods with a model or a head beside the common one, or a second teacher, cost in steps."""

from collections import Counter, defaultdict

import pytest
import torch

from fedapp.learn.networks.resnet9 import ResNet9
from fedapp.learn.optimisers import Sgd
from fedapp.methods.averaging.ditto import Ditto
from fedapp.methods.averaging.fedavg import FedAvg
from fedapp.methods.averaging.fedrod import FedRoD
from fedapp.methods.averaging.fixmatch_global import FixMatchGlobal
from fedapp.methods.averaging.sage import Sage
from tests.methods.conformance import UNEQUAL, play, toy

SIZE = 8


@pytest.fixture
def work(monkeypatch):
    """Images that pass the trunk to be learned from, and optimiser steps, of the task under way."""
    counted = Counter()
    trunk, step = ResNet9.trunk, Sgd.step

    def counting_trunk(self, x):
        if self.training and torch.is_grad_enabled():
            counted["images"] += len(x)
        return trunk(self, x)

    def counting_step(self):
        counted["steps"] += 1
        return step(self)

    monkeypatch.setattr(ResNet9, "trunk", counting_trunk)
    monkeypatch.setattr(Sgd, "step", counting_step)
    return counted


def budgets(method, folder, work):
    """(images, steps) of every site in the warm-up of 2 epochs, and in round 1 of 3 epochs."""
    found = defaultdict(Counter)

    def note(task, incoming):
        if task.action != "evaluate":
            found[task.round, task.site].update(work)
        work.clear()
        return incoming

    changes = {"training__local_epochs": 3, "training__warmup_epochs": 2}
    play(toy(method, folder, rounds__num_rounds=1, name=method.name, **changes), note)
    return [
        {k: (found[n, k]["images"], found[n, k]["steps"]) for k in range(len(UNEQUAL))}
        for n in (0, 1)
    ]


def steps(images):
    return -(-images // SIZE)


def test_fedrod_has_the_budget_of_fedavg_and_ditto_twice_that(tmp_path, work):
    plain = [
        {k: (epochs * deal[0], epochs * steps(deal[0])) for k, deal in enumerate(UNEQUAL)}
        for epochs in (2, 3)
    ]
    for method in (FedAvg(), FedRoD()):
        assert budgets(method, tmp_path, work) == plain, method.name
    twice = [{k: (2 * n, 2 * m) for k, (n, m) in each.items()} for each in plain]
    assert budgets(Ditto(), tmp_path, work) == twice


def test_with_pseudo_labels_the_warm_up_is_the_same_and_an_epoch_passes_the_larger_part(
    tmp_path, work
):
    """FixMatch by the received model takes FixMatch's steps, with one view fewer of each image.

    SAGE's larger part is D_u with D_s, so it takes more steps.
    """
    warm_up, fixmatch = budgets(FedAvg("fixmatch"), tmp_path, work)
    same, fewer = budgets(FixMatchGlobal(), tmp_path, work)
    alike, more = budgets(Sage(), tmp_path, work)
    assert warm_up == same == alike
    assert {k: m for k, (_, m) in fewer.items()} == {k: m for k, (_, m) in fixmatch.items()}
    for k, deal in enumerate(UNEQUAL):
        larger = max(deal.labelled, deal.unlabelled)
        assert fixmatch[k][1] == 3 * steps(larger)
        assert more[k][1] == 3 * steps(deal.labelled + deal.unlabelled)
        assert fewer[k][0] < fixmatch[k][0] or not deal.unlabelled
