"""FedRGD: groups and their replicas on what sites sent, the server's part, its ends."""

import csv
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedapp.learn.networks import initial_params
from fedapp.learn.networks.resnet9 import ResNet9Settings
from fedapp.methods.averaging.fedavg import FedAvg
from fedapp.methods.averaging.fedrgd import FedRgd, Groups, random_groups
from fedapp.methods.base import Round
from fedapp.protocol.messages import SERVER_SITE, ModelRef, Reply, Task
from tests.methods.conformance import (
    PIXELS,
    Deal,
    assert_close,
    context,
    data_of,
    mean_by_hand,
    play,
    toy,
)

GROUP_NORM = {"model": ResNet9Settings(width=2, norm="group")}
NO_WARM_UP = {"training__warmup_epochs": 0}
FOUR = (Deal(9, 12), Deal(20, 3), Deal(5, 0), Deal(0, 8))
EQUAL = (Deal(9, 8), Deal(9, 8), Deal(9, 8))


def next_server(played, number):
    return played.server(played.of(number, "evaluate")[0])


def groups_of(played, number):
    """The sites of each group of a round, by number, as the server draws them."""
    sites = sorted(e.task.site for e in played.of(number, "train"))
    rnd = Round(number, played.experiment.seed, (), frozenset(), None)
    return random_groups(sites, played.experiment.method.groups, rnd.stream("groups", SERVER_SITE))


# --- groups ---------------------------------------------------------------------------------------


def test_sites_are_dealt_evenly():
    for count, groups, sizes in ((5, 2, [3, 2]), (4, 2, [2, 2]), (1, 2, [1, 0]), (3, 1, [3])):
        found = random_groups(range(10, 10 + count), groups, np.random.default_rng(0))
        assert [len(members) for members in found] == sizes
        assert sorted(site for members in found for site in members) == list(range(10, 10 + count))


def test_one_group_is_fedavg_on_group_norm(tmp_path):
    """Of sites of one size, whose weights are equal in FedAvg as well; to rounding."""
    mine = play(toy(FedRgd(groups=1), tmp_path, EQUAL, name="mine", **GROUP_NORM))
    plain = play(toy(FedAvg("fixmatch"), tmp_path, EQUAL, name="plain", **GROUP_NORM))
    for number in (0, 1, 2):
        assert_close(next_server(mine, number), next_server(plain, number), atol=1e-5)


def test_replicas_are_means_of_groups_and_the_model_is_theirs(tmp_path):
    """Three sites in groups of two and one: shares 1/4, 1/4 and 1/2."""
    played = play(toy(FedRgd(), tmp_path, **NO_WARM_UP, **GROUP_NORM))
    for number in (1, 2):
        uploads = {e.task.site: e.upload for e in played.of(number, "train")}
        means = [
            mean_by_hand([uploads[site] for site in members], [1] * len(members))
            for members in groups_of(played, number)
        ]
        assert_close(next_server(played, number), mean_by_hand(means, [1, 1]))


def test_a_site_starts_from_its_last_groups_replica(tmp_path):
    played = play(toy(FedRgd(), tmp_path, FOUR, **GROUP_NORM, rounds__num_rounds=4))
    assert len({e.task.models["server"][0].digest for e in played.of(1, "train")}) == 1
    regrouped = set()
    for number in (2, 3, 4):
        before = {e.task.site: e.upload for e in played.of(number - 1, "train")}
        groups = groups_of(played, number - 1)
        for exchange in played.of(number, "train"):
            [members] = [g for g in groups if exchange.task.site in g]
            mean = mean_by_hand([before[site] for site in members], [1] * len(members))
            assert_close(played.server(exchange), mean)
        assert len({e.task.models["server"][0].digest for e in played.of(number, "train")}) == 2
        regrouped.add(tuple(map(tuple, groups)))
    assert len(regrouped) > 1
    state = played.engine.folder.load_checkpoint()["state"]["server"]["of"]
    wanted = {str(site): n for n, group in enumerate(groups_of(played, 4)) for site in group}
    assert state == wanted


def test_a_group_that_nobody_answers_in_is_left_out(tmp_path):
    experiment = toy(FedRgd(), tmp_path, EQUAL[:2], rounds__min_reply_share=0.0, **NO_WARM_UP)

    def tamper(task, incoming):
        return None if (task.round, task.action, task.site) == (1, "train", 1) else incoming

    played = play(experiment, tamper)
    [answered] = [e.upload for e in played.of(1, "train") if e.task.site == 0]
    assert_close(next_server(played, 1), mean_by_hand([answered], [1]))
    starts = {e.task.site: e.task.models["server"][0].role for e in played.of(2, "train")}
    assert starts[1] == "model" and starts[0].startswith("group")


def test_traffic_names_replicas_that_went_down_and_none_that_came_up(tmp_path):
    played = play(toy(FedRgd(), tmp_path))
    with (played.folder.path / "traffic.csv").open() as file:
        ways = {(row["kind"], row["direction"]) for row in csv.DictReader(file)}
    assert {("group_a", "down"), ("group_b", "down")} <= ways
    assert not {("group_a", "up"), ("group_b", "up")} & ways


# --- labels at the server -------------------------------------------------------------------------


class Pool:
    """Notes what is averaged."""

    def __init__(self):
        self.made = {}

    def latest(self, site, role="model"):
        return ModelRef(site, 1, "a" * 64, role)

    def common(self, role="model"):
        return self.latest(SERVER_SITE, role)

    def average(self, parts, beta=1.0, role="model"):
        total = sum(weight for weight, _ in parts)
        self.made[role] = [(ref.site, ref.role, weight / total) for weight, ref in parts]
        return self.common(role)


def shares(pool):
    """Every site's share in the server's model."""
    found = Counter()
    for _, role, weight in pool.made["model"]:
        for site, _, share in pool.made[role]:
            found[site] += weight * share
    return found


def asked(method, pool, sites, answer=lambda site: True, **changes):
    """Play a round against sites that all answer; return its first tasks, and the state."""
    fixed = {"server_learns": True, "facts": {k: None for k in sites}} | changes
    rnd = Round(1, 0, tuple(sites), frozenset(sites), pool, **fixed)
    phases = method.server_round(Groups(), rnd)
    tasks = next(phases)
    phases.send([Reply(t.site, 1, "b" * 64, learned=answer(t.site)) for t in tasks])
    with pytest.raises(StopIteration) as end:
        phases.send([])
    return tasks, end.value.value


def test_the_server_trains_with_the_sites_and_is_in_every_group():
    """4 users, 2 groups: the server's share of the mean of means is 1/3, each user's 1/6."""
    pool = Pool()
    tasks, state = asked(FedRgd(), pool, range(4))
    assert [task.site for task in tasks] == [0, 1, 2, 3, SERVER_SITE]
    found = shares(pool)
    assert found.pop(SERVER_SITE) == pytest.approx(1 / 3)
    assert list(found.values()) == pytest.approx([1 / 6] * 4) and set(found) == {0, 1, 2, 3}
    assert sorted(state.of.values()) == [0, 0, 1, 1]


def test_a_server_without_labels_has_no_share():
    pool = Pool()
    tasks, _ = asked(FedRgd(), pool, range(4), server_learns=False)
    assert SERVER_SITE not in [task.site for task in tasks]
    assert shares(pool) == {site: pytest.approx(1 / 4) for site in range(4)}


def test_where_no_site_learned_the_server_goes_on_by_itself():
    pool = Pool()
    _, state = asked(FedRgd(), pool, range(4), answer=lambda site: site == SERVER_SITE)
    assert not pool.made and state == Groups()


# --- a site, its network, bad input ---------------------------------------------------------------


def test_a_site_learns_as_by_fixmatch():
    """The same loss, views and draws as FedAvg with FixMatch."""
    w_t = initial_params(PIXELS, (1, 8, 8), 3, seed=0)
    server = {"server": (ModelRef(SERVER_SITE, 1, "a" * 64),)}
    task = Task(0, 1, "train", ModelRef(0, 1, "b" * 64), server)
    one, two = (
        method.site_round(task, context(data_of(6, 9), w_t)).params
        for method in (FedRgd(confidence=0.4), FedAvg("fixmatch", confidence=0.4))
    )
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_a_site_that_sends_one_all_the_same_is_skipped_and_the_run_goes_on(tmp_path):
    def tamper(task, incoming):
        if (task.round, task.action, task.site) != (1, "train", 1):
            return incoming
        reply = incoming.answer
        return replace(incoming, answer=replace(reply, contents={"group_a": reply.model}))

    played = play(toy(FedRgd(), tmp_path), tamper)
    assert played.rows()[1]["skipped"] == {
        "1": "sent group_a: the server makes replicas, sites send models"
    }
