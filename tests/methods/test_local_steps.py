"""`training.local_steps` and `training.augment`: the same meaning for every method."""

from collections import Counter, defaultdict
from dataclasses import replace

import pytest
import torch

import fedapp.methods.base as base
from fedapp.data.augment import weak
from fedapp.data.sites import Part
from fedapp.learn.optimisers import Sgd
from fedapp.methods import method_class, method_names
from fedapp.methods.averaging.fedavg import FedAvg
from fedapp.methods.averaging.local_only import LocalOnly
from fedapp.methods.averaging.pfedme import PFedMe
from fedapp.methods.recommended.prior_shift import PriorShift
from fedapp.methods.um_pfssl.method import UmPfssl
from tests.methods.conformance import (
    START,
    TASK,
    Deal,
    assert_same,
    context,
    data_of,
    digits_like,
    named,
    play,
    play_in_one_store,
    toy,
)

SETTINGS = {
    "um_pfssl": {"mc_samples": 2, "helper_list_size": 2, "num_replaced": 1},
    "prior_shift": {"confidence": 0.0, "weigh": False, "alone": False},
    "fixmatch_global": {"confidence": 0.0},
    "fedavg": {"objective": "fixmatch"},
    "fedbn": {"objective": "fixmatch"},
    "pfedme": {"objective": "fixmatch"},
    "rscfed": {"subsets": 1, "subset_share": 1.0},
}
EPISODES = ("flexproto", "protofssl")
"""They learn by episodes, which need two labelled images of a class and have sizes of their own."""
METHODS = [
    method_class(name)(**SETTINGS.get(name, {}))
    for name in method_names()
    if name not in (*EPISODES, "one_round")  # the last trains nothing
]
AT_ONCE = (LocalOnly, UmPfssl)
"""They do not average, and warm up in one phase."""
BESIDE = {"ditto": 2}
"""Optimiser steps in each mini-batch, where there is a second model."""


def of_both_kinds(name):
    """Optimiser steps in each mini-batch of labelled and unlabelled images."""
    return 2 if name == "fedmatch" else BESIDE.get(name, 1)  # sigma's and psi's


DEALS = (Deal(30, 4), Deal(3, 20), Deal(2, 0), Deal(0, 0))
"""Many images, few, two, none; mini-batches have eight."""


@pytest.fixture
def work(monkeypatch):
    """Counts the mini-batches of the task under way."""
    counted = Counter()
    step, descend = Sgd.step, PFedMe.descend

    def counting_step(self):
        counted["steps"] += 1
        return step(self)

    def counting_descend(self, *arguments):
        counted["steps"] += 1
        return descend(self, *arguments)

    monkeypatch.setattr(Sgd, "step", counting_step)
    monkeypatch.setattr(PFedMe, "descend", counting_descend)
    return counted


def taken(method, folder, work, **changes):
    """Mini-batches of every task that trains: {(round, site): [of each phase]}."""
    found = defaultdict(list)

    def note(task, incoming):
        if task.action in ("warmup", "train"):
            found[task.round, task.site].append(work["steps"])
        work.clear()
        return incoming

    changes = {"rounds__num_rounds": 1, "training__warmup_rounds": 4} | changes
    changes = {f"training__{k}" if "__" not in k else k: v for k, v in changes.items()}
    play(toy(method, folder, DEALS, name=method.name, **changes), note)
    return found


@named(METHODS)
def test_every_task_takes_just_so_many_mini_batches(tmp_path, work, method):
    """4 * 7 / 4 = 7 in the warm-up, in four phases or at once, and 4 in a round.

    Sites with few images repeat them; a site with none takes none.
    """
    found = taken(method, tmp_path, work, local_steps=4, warmup_epochs=7, local_epochs=4)
    times, both = BESIDE.get(method.name, 1), of_both_kinds(method.name)
    phases = [7] if isinstance(method, AT_ONCE) else [2, 2, 2, 1]
    for site in (0, 1, 2):
        assert found[0, site] == [n * times for n in phases], site
        assert found[1, site] == [4 * (both if DEALS[site].unlabelled else times)], site
    assert sum(found[0, 3]) == sum(found[1, 3]) == 0


@pytest.mark.parametrize("name", EPISODES)
def test_an_episode_is_a_mini_batch(tmp_path, work, name):
    method = method_class(name)()
    found = taken(method, tmp_path, work, local_steps=4, warmup_epochs=7, local_epochs=4)
    assert found[0, 0] == [2, 2, 2, 1] and found[1, 0] == [4]


def test_a_model_trained_alone_takes_as_many_again(tmp_path, work):
    method = PriorShift(confidence=0.0, weigh=False)
    found = taken(method, tmp_path, work, local_steps=4, warmup_epochs=7, local_epochs=4)
    assert found[0, 1] == [4, 4, 4, 2] and found[1, 1] == [8]


def test_less_than_one_mini_batch_is_none_and_not_a_pass(tmp_path, work):
    """1 * 2 / 5 of one."""
    for method in (FedAvg(), LocalOnly()):
        changes = {"local_steps": 1, "warmup_epochs": 2, "local_epochs": 5}
        found = taken(method, tmp_path, work, **changes)
        assert sum(found[0, 0]) == 0 and found[1, 0] == [1]


# --- views ----------------------------------------------------------------------------------------


def test_weak_views_are_drawn_by_seed_task_and_site_and_none_is_none():
    images = digits_like(40, 1)
    site = context(data_of(), START, augment="weak")

    def drawn(task=TASK, at=site, purpose="view"):
        return at.view(task, purpose)(images)

    first = drawn()
    assert torch.equal(drawn(), first)
    assert torch.equal(first, weak(images, site.flip, site.stream("view", TASK)))
    others = [
        drawn(replace(TASK, round=2)),
        drawn(replace(TASK, phase=1)),
        drawn(at=replace(site, data=replace(site.data, site=1))),
        drawn(at=replace(site, seed=6)),
        drawn(purpose="alone-view"),
    ]
    for number, other in enumerate(others):
        assert not any(torch.equal(other, each) for each in [first, *others[:number]])
    view = site.view(TASK)
    assert not torch.equal(view(images), view(images))  # other ones at every step
    assert drawn(at=context(data_of(), START)) is images


@named(METHODS)
def test_every_training_image_passes_a_weak_view_and_nothing_else_changes(
    tmp_path, monkeypatch, method
):
    """Where the view leaves images as they are, the run is that without the setting, bit for bit;
    but FixMatch and the like have views of their own after the warm-up."""

    def run(name, **changes):
        return play_in_one_store(toy(method, tmp_path, name=name, rounds__num_rounds=1, **changes))

    assert toy(method, tmp_path, training__augment="none") == toy(method, tmp_path)
    plain = run("plain")
    views = run("views", training__augment="weak")
    seen = []
    monkeypatch.setattr(base, "weak", lambda images, flip, draws: seen.append(images) or images)
    still = run("still", training__augment="weak")
    assert plain.records() == still.records() and plain.rows() == still.rows()
    assert views.records()["pool"] != plain.records()["pool"]
    assert sum(map(len, seen)) >= sum((9, 20, 5))  # the warm-up's one pass at least


def test_weak_views_of_a_step_are_of_the_images_that_it_names():
    """One mini-batch of FedAvg: the step on the views is that on images that were so before."""
    data = data_of(labelled=6)
    viewed = context(data, START, augment="weak")
    order = torch.randperm(6, generator=viewed.stream("shuffle", TASK))
    before = viewed.view(TASK)(data.labelled[order])
    there = torch.empty_like(before)
    there[order] = before
    plain = context(data.with_parts(labelled=Part(there, data.labels)), START)
    assert_same(FedAvg().site_round(TASK, viewed).params, FedAvg().site_round(TASK, plain).params)
