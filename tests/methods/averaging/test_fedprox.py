"""FedProx: the proximal term's gradient is mu (w - w_t), and nothing else is added to FedAvg."""

import pytest
import torch

from fedapp.learn.networks import build_model
from fedapp.methods.averaging.fedavg import FedAvg
from fedapp.methods.averaging.fedprox import FedProx
from tests.methods.conformance import (
    PIXELS,
    START,
    TASK,
    assert_close,
    assert_same,
    context,
    data_of,
    descent_by_hand,
    play,
    site_data,
    toy,
    trainable,
)

WEIGHTS = trainable(build_model(PIXELS, (1, 8, 8), 3))


def trained(method, **training):
    site = context(data_of(labelled=6), START, **training)
    report = method.site_round(TASK, site)
    return report.params, report.metrics["loss"]


@pytest.mark.parametrize("mu", [0.01, 1.0, 7.0])
def test_after_two_steps_the_pull_is_the_whole_difference_to_fedavg(mu):
    """The first step starts at w_t and feels no pull; the second feels mu (w_1 - w_t).

    So w_2(FedAvg) - w_2(FedProx) = rate mu (w_1 - w_t), whatever the loss is.
    """
    rate = 0.1
    w_1, _ = trained(FedAvg(), local_epochs=1, learning_rate=rate)
    plain, _ = trained(FedAvg(), local_epochs=2, learning_rate=rate)
    pulled, _ = trained(FedProx(proximal=mu), local_epochs=2, learning_rate=rate)
    for name in WEIGHTS:
        torch.testing.assert_close(
            plain[name] - pulled[name],
            rate * mu * (w_1[name] - START[name]),
            rtol=1e-3,
            atol=1e-6,
        )
    assert any((plain[n] - pulled[n]).abs().max() > 1e-4 * mu for n in WEIGHTS)


def test_statistics_of_batch_norm_are_not_pulled():
    plain, _ = trained(FedAvg(), local_epochs=1)
    pulled, _ = trained(FedProx(proximal=5.0), local_epochs=1)
    assert_same(pulled, plain)  # after one step: not even the weights


def test_many_steps_by_hand(tmp_path):
    """Momentum carries the pull on; the anchor stays the server's model of the round."""
    mu = 2.0
    changes = {"training__batch_size": 64, "training__local_epochs": 4, "model__dropout": 0.0}
    experiment = toy(FedProx(proximal=mu), tmp_path, rounds__num_rounds=1, **changes)
    played = play(experiment)

    def pull(now, start):
        return {name: mu * (now[name].detach() - start[name]) for name in now}

    for number, action, steps in ((0, "warmup", 1), (1, "train", 4)):
        for exchange in played.of(number, action):
            data = site_data(experiment, exchange.task.site)
            by_hand = descent_by_hand(
                experiment, played.server(exchange), data.labelled, data.labels, steps, pull
            )
            assert_close(exchange.upload, by_hand, atol=1e-4)


@pytest.mark.parametrize("objective", ["supervised", "fixmatch"])
def test_without_pull_it_is_fedavg_bit_for_bit(tmp_path, objective):
    plain = play(toy(FedAvg(objective=objective), tmp_path, name="fedavg"))
    zero = play(toy(FedProx(objective=objective, proximal=0.0), tmp_path, name="fedprox"))
    assert zero.records() == plain.records()
    some = play(toy(FedProx(objective=objective, proximal=0.5), tmp_path, name="pulled"))
    assert some.records() != plain.records()


def test_the_loss_that_is_reported_is_without_the_pull():
    """At two steps: the mean of the losses at w_t and at w_1, which mu does not change."""
    _, plain = trained(FedAvg(), local_epochs=2)
    _, pulled = trained(FedProx(proximal=7.0), local_epochs=2)
    assert pulled == plain
