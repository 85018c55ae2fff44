"""Every method learns as much as the others: images, passes and steps, counted."""

from collections import Counter, defaultdict

import pytest
import torch

from fedapp.learn.networks.resnet9 import ResNet9
from fedapp.learn.optimisers import Sgd
from fedapp.methods.averaging.fedavg import FedAvg
from fedapp.methods.averaging.fedbn import FedBN
from fedapp.methods.averaging.fedper import FedPer
from fedapp.methods.averaging.fedprox import FedProx
from fedapp.methods.averaging.lg_fedavg import LgFedAvg
from fedapp.methods.averaging.local_only import LocalOnly
from fedapp.methods.averaging.pfedme import PFedMe
from fedapp.methods.um_pfssl.method import UmPfssl
from tests.methods.conformance import UNEQUAL, play, toy

FIXMATCH = [method(objective="fixmatch") for method in (FedAvg, FedProx, FedBN, FedPer, LgFedAvg)]


@pytest.fixture
def work(monkeypatch):
    """Images that pass forwards in training, and optimiser steps, of the task under way."""
    counted = Counter()
    forward, step = ResNet9.forward, Sgd.step

    def counting_forward(self, x):
        if self.training and torch.is_grad_enabled():
            counted["images"] += len(x)
            counted["passes"] += 1
        return forward(self, x)

    def counting_step(self):
        counted["steps"] += 1
        return step(self)

    monkeypatch.setattr(ResNet9, "forward", counting_forward)
    monkeypatch.setattr(Sgd, "step", counting_step)
    return counted


def budgets(method, folder, work, **changes):
    """(images, passes, optimiser steps) of every site in the warm-up, and in round 1."""
    found = defaultdict(dict)

    def note(task, incoming):
        if task.action != "evaluate":
            found[task.round][task.site] = (work["images"], work["passes"], work["steps"])
        work.clear()
        return incoming

    changes |= {"training__local_epochs": 3, "training__warmup_epochs": 2}
    play(toy(method, folder, rounds__num_rounds=1, name=method.name, **changes), note)
    return found[0], found[1]


def batches(images):
    """Of at most 8 images."""
    return -(-images // 8)


def test_from_labelled_images_every_method_has_the_budget_of_local_only(tmp_path, work):
    by_hand = tuple(
        {
            k: (epochs * deal.labelled, epochs * batches(deal.labelled), epochs * batches(deal[0]))
            for k, deal in enumerate(UNEQUAL)
        }
        for epochs in (2, 3)
    )
    for method in (LocalOnly(), FedAvg(), FedProx(), FedBN(), FedPer(), LgFedAvg()):
        assert budgets(method, tmp_path, work) == by_hand, method.name


def test_the_warm_up_is_the_same_for_um_pfssl_and_with_fixmatch(tmp_path, work):
    """Two epochs of the labelled images."""
    by_hand = {k: 2 * deal.labelled for k, deal in enumerate(UNEQUAL)}
    for method in (UmPfssl(mc_samples=2), *FIXMATCH):
        warm_up, _ = budgets(method, tmp_path, work)
        assert {k: images for k, (images, _, _) in warm_up.items()} == by_hand, method.name


def test_with_fixmatch_an_epoch_is_one_pass_over_the_larger_part(tmp_path, work):
    """Site 0: 9 and 12 images, 2 steps of 6 + 2 * 6; site 1: 20 and 3, steps of 7, 7, 6 + 2 * 3."""
    for method in FIXMATCH:
        _, trained = budgets(method, tmp_path, work)
        assert trained == {
            0: (3 * 2 * 18, 3 * 2, 3 * 2), 1: (3 * (20 + 3 * 6), 3 * 3, 3 * 3), 2: (3 * 5, 3, 3),
        }, method.name  # fmt: skip


def test_um_pfssl_in_pairs_takes_as_many_steps_as_fixmatch(tmp_path, work):
    _, fixmatch = budgets(FedAvg(objective="fixmatch"), tmp_path, work)
    um_pfssl = UmPfssl(mc_samples=2)
    _, paired = budgets(um_pfssl, tmp_path, work, training__batches="paired")
    assert {k: n for k, (_, _, n) in paired.items()} == {k: n for k, (_, _, n) in fixmatch.items()}


def test_pfedme_sees_each_mini_batch_k_times(tmp_path, work):
    """Its inner loop: the same images, K times the work."""
    _, once = budgets(FedAvg(), tmp_path, work)
    _, often = budgets(PFedMe(inner_steps=4), tmp_path, work)
    assert {k: v[:2] for k, v in often.items()} == {
        k: (4 * images, 4 * passes) for k, (images, passes, _) in once.items()
    }
