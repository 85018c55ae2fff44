"""FedAvg by hand: what a site learns, what the server averages, what is measured."""

import numpy as np
import pytest
import torch

from fedapp.methods.averaging.fedavg import FedAvg
from fedapp.methods.averaging.local_only import LocalOnly
from fedapp.protocol.messages import Incoming, Refusal
from tests.methods.conformance import (
    UNEQUAL,
    Deal,
    assert_close,
    assert_same,
    correct_by_hand,
    descent_by_hand,
    draw_alike,
    mean_by_hand,
    play,
    site_data,
    toy,
)

LABELLED = [deal.labelled for deal in UNEQUAL]
ALL = [deal.labelled + deal.unlabelled for deal in UNEQUAL]
FIXMATCH = FedAvg(objective="fixmatch")


def assert_rounds_are_means(played, counts_of):
    """After each round every site measures sum_k n_k w_k / sum_k n_k of what came in."""
    for number, counts in enumerate(counts_of):
        learners = played.of(number, "train" if number else "warmup")
        mean = mean_by_hand([e.upload for e in learners], counts)
        for exchange in played.of(number, "evaluate"):
            assert_close(played.server(exchange), mean)


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """A plain run; the learning rate is high enough for accuracies to differ."""
    folder = tmp_path_factory.mktemp("plain")
    return play(toy(FedAvg(), folder, training__learning_rate=0.1))


def test_the_servers_model_is_the_mean_by_numbers_of_images(played):
    assert_rounds_are_means(played, [LABELLED] * 3)


def test_with_fixmatch_unlabelled_images_count_after_the_warm_up(tmp_path):
    """The warm-up is on labelled images for every method."""
    assert_rounds_are_means(play(toy(FIXMATCH, tmp_path)), [LABELLED, ALL, ALL])


def test_the_next_round_starts_from_the_mean(played):
    for number in (1, 2):
        last = played.of(number - 1, "evaluate")[0]
        for exchange in played.of(number, "train"):
            assert_same(played.server(exchange), played.server(last))


def test_a_sites_model_is_sgd_with_momentum_from_the_servers_by_hand(tmp_path):
    """Two epochs of one batch of all labelled images; no dropout, so that no draw matters."""
    changes = {"training__batch_size": 64, "training__local_epochs": 2, "model__dropout": 0.0}
    played = play(toy(FedAvg(), tmp_path, training__warmup_epochs=3, **changes))
    for number, action, steps in ((0, "warmup", 3), (1, "train", 2), (2, "train", 2)):
        for exchange in played.of(number, action):
            data = site_data(played.experiment, exchange.task.site)
            by_hand = descent_by_hand(
                played.experiment, played.server(exchange), data.labelled, data.labels, steps
            )
            assert_close(exchange.upload, by_hand, atol=1e-4)
            assert exchange.upload["stem.norm.num_batches_tracked"] == steps


def test_every_site_measures_the_servers_model_on_its_own_images(played):
    for exchange in played.seen:
        assert bool(exchange.reply.evaluations) == (exchange.task.action == "evaluate")
    for exchange in played.of(2, "evaluate"):
        data = site_data(played.experiment, exchange.task.site)
        evaluations = exchange.reply.evaluations
        for part, images, labels in (
            ("test", data.test, data.test_labels),
            ("val", data.val, data.val_labels),
        ):
            right = correct_by_hand(played.experiment, played.server(exchange), images, labels)
            assert evaluations[part].correct == right
            assert evaluations[part].samples == len(labels)
            said = exchange.incoming.answer  # what two names have travels once
            assert part not in said.evaluations and said.equal[part] == f"{part}_common"
    accuracies = [e.reply.evaluations["test"].accuracy for e in played.of(2, "evaluate")]
    assert played.rows()[2]["mean_test_accuracy"] == pytest.approx(np.mean(accuracies))
    assert played.rows()[2]["trained"] == 3


@pytest.mark.parametrize("answer", [
    None, lambda task: Incoming(Refusal(task.site, task.round, "out of paper")),
], ids=["silent", "refuses"])  # fmt: skip
def test_a_site_that_fails_in_a_round_is_left_out_of_the_mean(tmp_path, answer):
    def fail(task, incoming):
        if (task.site, task.round, task.action) == (1, 1, "train"):
            return answer and answer(task)
        return incoming

    played = play(toy(FedAvg(), tmp_path), fail)
    uploads = [e.upload for e in played.of(1, "train") if e.task.site != 1]
    mean = mean_by_hand(uploads, [LABELLED[0], LABELLED[2]])
    for exchange in played.of(1, "evaluate"):
        assert_close(played.server(exchange), mean)
    assert len(played.of(1, "evaluate")) == 3  # it measures like the others
    assert list(played.rows()[1]["skipped"]) == ["1"]
    assert played.rows()[2]["skipped"] == {}


def test_only_the_cohort_learns_and_everybody_measures(tmp_path):
    played = play(toy(FedAvg(), tmp_path, rounds__sample_rate=0.5))
    for number in (1, 2):
        cohort = [e.task.site for e in played.of(number, "train")]
        assert len(cohort) == 2
        uploads = [e.upload for e in played.of(number, "train")]
        mean = mean_by_hand(uploads, [LABELLED[k] for k in cohort])
        measured = played.of(number, "evaluate")
        assert [e.task.site for e in measured] == [0, 1, 2]
        for exchange in measured:
            assert_close(played.server(exchange), mean)


@pytest.mark.parametrize("method", [FedAvg(), FIXMATCH], ids=["supervised", "fixmatch"])
def test_sites_without_labels_do_not_weigh_in_the_warm_up(tmp_path, method):
    deals = (Deal(6, 4), Deal(0, 9), Deal(10, 0))
    played = play(toy(method, tmp_path, deals))
    first = played.of(0, "warmup")
    assert first[1].reply.model == first[1].task.own.digest  # it sends nothing
    mean = mean_by_hand([first[0].upload, first[2].upload], [6, 10])
    assert_close(played.server(played.of(0, "evaluate")[1]), mean)
    sent = [e.task.site for e in played.of(1, "train") if e.incoming.payloads]
    assert sent == ([0, 1, 2] if method is FIXMATCH else [0, 2])


def test_where_nobody_has_labels_w_0_stays(tmp_path):
    played = play(toy(FedAvg(), tmp_path, (Deal(0, 5), Deal(0, 3))))
    pool = played.records()["pool"]
    assert {tuple(record[:2]) for record in pool.values()} == {(0, pool["-1"][1])}
    assert [row["trained"] for row in played.rows()] == [0, 0, 0]


@pytest.mark.parametrize("warmup", [0, 1])
def test_without_epochs_the_servers_model_stays(tmp_path, warmup):
    """A site that did not learn must not bring its model of an earlier round into the mean."""
    changes = {"training__local_epochs": 0, "training__warmup_epochs": warmup}
    played = play(toy(FedAvg(), tmp_path, **changes))
    servers = {e.task.models["server"][0] for e in played.of(0, "evaluate")}
    servers |= {e.task.models["server"][0] for e in played.seen if e.task.round}
    [server] = servers
    assert server.version == warmup


def test_whole_numbers_are_never_averaged(played):
    """A batch norm's counter counts a site's batches of this round, from w_0's zero on."""
    for exchange in played.of(2, "evaluate"):
        counter = played.server(exchange)["stem.norm.num_batches_tracked"]
        assert counter.dtype == torch.int64 and counter == 0
    batches = [-(-n // 8) for n in LABELLED]
    counted = [int(e.upload["stem.norm.num_batches_tracked"]) for e in played.of(2, "train")]
    assert counted == batches


def test_of_one_site_it_is_local_only(tmp_path, monkeypatch):
    """The mean of one model is that model, but for whole numbers, where both draw alike."""
    draw_alike(monkeypatch)
    deals = [Deal(20, 5)]
    one = play(toy(FedAvg(), tmp_path, deals, name="fedavg", model__dropout=0.5))
    two = play(toy(LocalOnly(), tmp_path, deals, name="local_only", model__dropout=0.5))
    for number, action in ((0, "warmup"), (1, "train"), (2, "train")):
        [mine], [theirs] = one.of(number, action), two.of(number, action)
        assert_close(mine.upload, theirs.upload, atol=1e-4)
    assert one.rows()[2]["mean_test_accuracy"] == two.rows()[2]["mean_test_accuracy"]
