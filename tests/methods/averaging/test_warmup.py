"""The warm-up of averaging methods: common rounds within round 0, with the epochs of one."""

import pytest
import torch

from fedapp.core.settings import TrainSettings
from fedapp.learn.networks import initial_params
from fedapp.methods.averaging.base import budget_of
from fedapp.methods.averaging.fedavg import FedAvg
from fedapp.methods.averaging.fedbn import FedBN
from fedapp.methods.averaging.local_only import LocalOnly
from fedapp.methods.um_pfssl.method import UmPfssl
from fedapp.protocol.messages import Incoming, ModelRef, Refusal, Task
from tests.methods.conformance import (
    PIXELS,
    UNEQUAL,
    Deal,
    assert_close,
    context,
    data_of,
    descent_by_hand,
    mean_by_hand,
    play,
    site_data,
    toy,
)

OWN = ModelRef(0, 0, "b" * 64)
LABELLED = [deal.labelled for deal in UNEQUAL]


def task(number=0, phase=0, action="warmup"):
    return Task(0, number, action, OWN, phase=phase)


def phases(played):
    """The exchanges of the warm-up's learning, phase by phase."""
    found = played.of(0, "warmup")
    return [
        [e for e in found if e.task.phase == phase]
        for phase in range(played.experiment.training.warmup_rounds)
    ]


# --- draws ----------------------------------------------------------------------------------------


def test_a_task_draws_by_its_round_and_in_a_later_phase_by_both():
    keys = [(0, 0), (1, 0), (0, 1), (0, 2), (1, 1), (11, 0), (1, 11), (11, 1)]
    found = [task(number, phase).when for number, phase in keys]
    assert found == [0, 1, "0.1", "0.2", "1.1", 11, "1.11", "11.1"]


def test_phases_draw_other_orders_and_other_dropout_and_each_the_same_again():
    site = context(data_of(), initial_params(PIXELS, (1, 8, 8), 3, seed=0))
    orders, noise = set(), set()
    for phase in (0, 1, 2, 3):
        for _ in range(2):
            order = torch.randperm(40, generator=site.stream("shuffle", task(phase=phase)))
            orders.add(tuple(order.tolist()))
            with site.drawing(task(phase=phase)):
                noise.add(tuple(torch.rand(9).tolist()))
    assert len(orders) == len(noise) == 4


def test_the_first_phase_draws_what_a_warm_up_apart_draws(tmp_path):
    """One epoch of UM-pFSSL's is the first of FedAvg's two phases, up to rounding."""
    deals, changes = [Deal(20, 5)], {"model__dropout": 0.5}
    apart = play(toy(UmPfssl(mc_samples=2), tmp_path, deals, name="apart", **changes))
    changes |= {"training__warmup_epochs": 2, "training__warmup_rounds": 2}
    common = play(toy(FedAvg(), tmp_path, deals, name="common", **changes))
    [theirs], [[mine], _] = apart.of(0, "warmup"), phases(common)
    assert_close(mine.upload, theirs.upload, atol=1e-4)


# --- epochs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("epochs", "rounds", "each"), [
    (20, 4, [5, 5, 5, 5]), (5, 4, [2, 1, 1, 1]), (3, 4, [1, 1, 1, 0]), (7, 1, [7]),
    (7, 3, [3, 2, 2]), (0, 2, [0, 0]),
])  # fmt: skip
def test_the_epochs_of_the_warm_up_are_shared_out_exactly(epochs, rounds, each):
    training = TrainSettings(warmup_epochs=epochs, warmup_rounds=rounds, local_epochs=9)
    found = [budget_of(task(phase=phase), training) for phase in range(rounds)]
    assert found == [(n, None) for n in each] and sum(each) == epochs
    assert budget_of(task(1, action="train"), training) == (9, None)


@pytest.mark.parametrize(("epochs", "rounds", "local_epochs", "local_steps", "each"), [
    (20, 4, 5, 25, [25, 25, 25, 25]),
    (15, 4, 5, 10, [8, 8, 8, 6]),
    (15, 4, 5, 7, [6, 5, 6, 4]),  # 5.6, 11.2, 16.8, 21
    (15, 4, 5, 1, [1, 1, 0, 1]),  # 0.8, 1.6, 2.4, 3
    (2, 4, 5, 1, [0, 0, 0, 0]),  # 0.4 of one
    (3, 4, 1, 6, [6, 6, 6, 0]),
])  # fmt: skip
def test_the_mini_batches_of_the_warm_up_are_shared_out_exactly(
    epochs, rounds, local_epochs, local_steps, each
):
    training = TrainSettings(
        warmup_epochs=epochs, warmup_rounds=rounds,
        local_epochs=local_epochs, local_steps=local_steps,
    )  # fmt: skip
    found = [budget_of(task(phase=phase), training)[1] for phase in range(rounds)]
    assert found == each and sum(found) == round(local_steps * epochs / local_epochs)
    assert training.steps(epochs) == sum(found)  # of methods that warm up at once
    assert budget_of(task(1, action="train"), training)[1] == local_steps


# --- a run ----------------------------------------------------------------------------------------

FIVE_IN_FOUR = {"training__warmup_epochs": 5, "training__warmup_rounds": 4}
ONE_BATCH = {"training__batch_size": 64, "model__dropout": 0.0}


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    folder = tmp_path_factory.mktemp("phases")
    return play(toy(FedAvg(), folder, **FIVE_IN_FOUR, **ONE_BATCH))


def test_each_phase_starts_from_the_mean_of_the_one_before(played):
    every = phases(played)
    assert [[e.task.site for e in phase] for phase in every] == [[0, 1, 2]] * 4
    assert {e.task.models["server"][0].version for e in every[0]} == {0}  # w_0
    for before, phase in zip(every, [*every[1:], played.of(0, "evaluate")], strict=True):
        mean = mean_by_hand([e.upload for e in before], LABELLED)
        for exchange in phase:
            assert_close(played.server(exchange), mean)


def test_each_phase_takes_its_share_of_the_epochs_by_hand(played):
    for phase, epochs in zip(phases(played), (2, 1, 1, 1), strict=True):
        for exchange in phase:
            data = site_data(played.experiment, exchange.task.site)
            by_hand = descent_by_hand(
                played.experiment, played.server(exchange), data.labelled, data.labels, epochs
            )
            assert_close(exchange.upload, by_hand, atol=1e-4)
            assert exchange.upload["stem.norm.num_batches_tracked"] == epochs


def test_the_whole_warm_up_is_one_round(played):
    rows = played.rows()
    assert [row["round"] for row in rows] == [0, 1, 2]
    assert [row["trained"] for row in rows] == [3, 3, 3]
    assert len(played.of(0, "evaluate")) == 3  # measured once, at its end
    assert [row["rounds_trained"] for row in played.folder.per_site()] == [2, 2, 2]
    assert {e.task.phase for e in played.seen if e.task.round} == {0}


def test_a_phase_without_epochs_leaves_the_servers_model(tmp_path):
    changes = {"training__warmup_epochs": 2, "training__warmup_rounds": 3}
    played = play(toy(FedAvg(), tmp_path, rounds__num_rounds=0, **changes))
    _, learned, idle = phases(played)
    assert all(e.incoming.payloads for e in learned)
    assert not any(e.incoming.payloads or e.reply.metrics.get("loss") for e in idle)
    newest = {e.task.models["server"][0] for e in idle}
    assert newest == {e.task.models["server"][0] for e in played.of(0, "evaluate")}
    assert played.rows()[0]["trained"] == 3


def test_a_site_that_fails_in_a_phase_is_left_out_of_that_mean_alone(tmp_path):
    def fail(asked, incoming):
        if (asked.site, asked.round, asked.phase) == (1, 0, 1):
            return Incoming(Refusal(1, 0, "out of paper"))
        return incoming

    changes = {"training__warmup_epochs": 3, "training__warmup_rounds": 3}
    played = play(toy(FedAvg(), tmp_path, rounds__num_rounds=0, **changes), fail)
    _, middle, last = phases(played)
    mean = mean_by_hand([e.upload for e in middle if e.task.site != 1], [LABELLED[0], LABELLED[2]])
    assert {e.task.site for e in last} == {0, 1, 2}
    for exchange in last:
        assert_close(played.server(exchange), mean)
    [row] = played.rows()
    assert row["trained"] == 3 and list(row["skipped"]) == ["1"]


def test_a_private_part_goes_on_from_phase_to_phase(tmp_path):
    """The site's disk keeps two versions, however many phases there are."""
    played = play(toy(FedBN(), tmp_path, rounds__num_rounds=0, **FIVE_IN_FOUR))
    for site in range(3):
        chain = [next(e for e in phase if e.task.site == site) for phase in phases(played)]
        assert [e.task.private for e in chain] == ["", *(e.reply.private for e in chain[:-1])]
        assert len({e.reply.private for e in chain}) == 4
        folder = played.folder.path / "remote" / f"site-{site}" / "private"
        assert len(list(folder.rglob("*.safetensors"))) == 2


def test_training_alone_warms_up_in_one_task_that_has_the_parts_of_all(tmp_path):
    one = play(toy(LocalOnly(), tmp_path, name="one", training__warmup_epochs=2))
    two = play(
        toy(LocalOnly(), tmp_path, name="two", training__warmup_epochs=2, training__warmup_rounds=2)
    )
    assert [e.task.phase for e in two.of(0, "warmup")] == [0, 0, 0]
    assert one.records()["pool"] != two.records()["pool"]


def test_um_pfssl_warms_up_at_once(tmp_path):
    method = UmPfssl(mc_samples=2)
    one = play(toy(method, tmp_path, name="one", training__warmup_epochs=2))
    four = play(
        toy(method, tmp_path, name="four", training__warmup_epochs=2, training__warmup_rounds=4)
    )
    assert [e.task.phase for e in four.of(0, "warmup")] == [0, 0, 0]
    assert one.records() == four.records()
