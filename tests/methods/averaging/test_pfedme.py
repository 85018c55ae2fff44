"""pFedMe: theta on an elastic band to w, by hand on quadratics and on a small network."""

from types import SimpleNamespace

import pytest
import torch

from fedapp.learn.networks import build_model
from fedapp.methods.averaging.fedavg import FedAvg
from fedapp.methods.averaging.pfedme import PFedMe
from tests.methods.conformance import (
    PIXELS,
    START,
    TASK,
    UNEQUAL,
    assert_close,
    context,
    data_of,
    mean_by_hand,
    play,
    toy,
    trainable,
)

WEIGHTS = trainable(build_model(PIXELS, (1, 8, 8), 3))

# --- the rule of one mini-batch, on F(theta) = theta' A theta / 2 - b' theta ----------------------

A = torch.tensor([[2.0, 0.5], [0.5, 1.0]], dtype=torch.float64)
B = torch.tensor([1.0, -3.0], dtype=torch.float64)
W = torch.tensor([4.0, 2.0], dtype=torch.float64)


def descend(method, rate, theta=None):
    """One mini-batch from w = W; returns theta, w and the loss that is reported."""
    theta = (W if theta is None else theta).clone().requires_grad_()
    w = W.clone()
    site = SimpleNamespace(training=SimpleNamespace(learning_rate=rate), model=theta)
    loss = method.descend(lambda theta: theta @ A @ theta / 2 - B @ theta, [theta], [w], site)
    return theta.detach(), w, loss


@pytest.mark.parametrize("pull", [0.0, 0.5, 15.0])
def test_the_inner_loop_solves_a_quadratic_to_its_closed_form(pull):
    """theta* = (A + lambda I)^-1 (b + lambda w)."""
    theta, _, _ = descend(PFedMe(elastic=pull, inner_steps=2000), rate=0.05)
    exact = torch.linalg.solve(A + pull * torch.eye(2), B + pull * W)
    torch.testing.assert_close(theta, exact, rtol=1e-6, atol=1e-9)


def test_two_inner_steps_by_hand():
    pull, rate = 3.0, 0.1
    theta, _, _ = descend(PFedMe(elastic=pull, inner_steps=2), rate)
    first = W - rate * (A @ W - B)  # at w nothing pulls
    second = first - rate * (A @ first - B + pull * (first - W))
    torch.testing.assert_close(theta, second)


def test_the_outer_step_by_hand():
    """w <- w - eta lambda (w - theta), with the theta that the inner loop left."""
    method = PFedMe(elastic=3.0, inner_steps=2, outer_rate=0.02)
    theta, w, _ = descend(method, rate=0.1)
    torch.testing.assert_close(w, W - 0.02 * 3.0 * (W - theta))
    assert not torch.equal(w, W)


def test_the_band_is_tied_to_w_and_theta_goes_on_from_where_it_is():
    """The official code keeps theta from one mini-batch to the next."""
    begin = torch.tensor([0.0, 1.0], dtype=torch.float64)
    theta, _, _ = descend(PFedMe(elastic=3.0, inner_steps=1), rate=0.1, theta=begin)
    torch.testing.assert_close(theta, begin - 0.1 * (A @ begin - B + 3.0 * (begin - W)))


def test_without_band_w_stays_and_theta_is_plain_descent():
    theta, w, _ = descend(PFedMe(elastic=0.0, inner_steps=3), rate=0.1)
    assert torch.equal(w, W)
    by_hand = W
    for _ in range(3):
        by_hand = by_hand - 0.1 * (A @ by_hand - B)
    torch.testing.assert_close(theta, by_hand)


def test_the_loss_is_that_at_the_mini_batchs_start():
    _, _, loss = descend(PFedMe(inner_steps=4), rate=0.01)
    assert loss.item() == pytest.approx((W @ A @ W / 2 - B @ W).item())


# --- a site's round -------------------------------------------------------------------------------


def site_round(method, labelled=6, task=TASK, **training):
    site = context(data_of(labelled), START, **training)
    return method.site_round(task, site), site


def flat(params):
    return torch.cat([params[name].flatten() for name in WEIGHTS])


def test_what_is_measured_is_theta_and_what_is_sent_is_w():
    """One step: theta = w_t - rate g; w = w_t - eta lambda (w_t - theta)."""
    eta, pull = 0.02, 3.0
    gradient_step, _ = site_round(FedAvg())  # one step of the same rate from w_t
    report, site = site_round(PFedMe(elastic=pull, inner_steps=1, outer_rate=eta))
    theta = site.measured[-1]
    assert_close({n: theta[n] for n in WEIGHTS}, {n: gradient_step.params[n] for n in WEIGHTS})
    expected = flat(START) - eta * pull * (flat(START) - flat(theta))
    torch.testing.assert_close(flat(report.params), expected)
    assert (flat(report.params) - flat(theta)).abs().max() > 1e-3
    assert len(site.measured) == 1 and report.evaluations.keys() == {"val", "test"}
    assert report.metrics["loss"] == pytest.approx(gradient_step.metrics["loss"], rel=1e-6)


def test_every_round_theta_starts_at_the_servers_w():
    """The site keeps nothing: a second round from the same w gives the same answer."""
    first, site = site_round(PFedMe())
    again = PFedMe().site_round(TASK, site)
    assert_close(again.params, {n: first.params[n] for n in WEIGHTS})


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_k_descents_without_momentum(momentum):
    one, _ = site_round(PFedMe(inner_steps=7), momentum=momentum)
    two, _ = site_round(PFedMe(inner_steps=7), momentum=0.0)
    assert torch.equal(flat(one.params), flat(two.params))


def test_with_one_descent_and_eta_lambda_of_one_it_is_fedavg_without_momentum(tmp_path):
    """w <- w - (w - theta) = theta, up to rounding, batch after batch."""
    changes = {"training__momentum": 0.0, "training__local_epochs": 2}
    changes["training__learning_rate"] = 0.02  # at higher ones small batches magnify rounding
    plain = play(toy(FedAvg(), tmp_path, name="fedavg", **changes))
    method = PFedMe(inner_steps=1, elastic=4.0, outer_rate=0.25)
    moreau = play(toy(method, tmp_path, name="pfedme", **changes))
    for number, action in ((0, "warmup"), (1, "train"), (2, "train")):
        pairs = zip(moreau.of(number, action), plain.of(number, action), strict=True)
        for mine, theirs in pairs:
            assert_close(mine.upload, theirs.upload, atol=1e-5)


def test_a_site_with_nothing_to_learn_from_measures_w_and_sends_nothing():
    report, site = site_round(PFedMe(), labelled=0)
    assert report.params is None and "loss" not in report.metrics
    assert torch.equal(flat(site.measured[-1]), flat(START))


# --- the server -----------------------------------------------------------------------------------


@pytest.mark.parametrize("beta", [0.3, 1.0, 2.0])
def test_the_server_steps_by_beta_towards_the_mean_of_w(tmp_path, beta):
    """(1 - beta) w + beta mean; batch-norm statistics, which pFedMe does not know, are the mean."""
    method = PFedMe(objective="fixmatch", beta=beta, elastic=4.0, outer_rate=0.1)
    played = play(toy(method, tmp_path, rounds__num_rounds=3))
    assert all(not row["skipped"] for row in played.rows())
    for number in (1, 2):
        learners = played.of(number, "train")
        before = played.server(learners[0])
        counts = [deal.labelled + deal.unlabelled for deal in UNEQUAL]
        mean = mean_by_hand([e.upload for e in learners], counts)
        expected = {
            n: (1 - beta) * before[n].double() + beta * t if n in WEIGHTS else t
            for n, t in mean.items()
        }
        assert_close(played.server(played.of(number + 1, "train")[0]), expected, atol=1e-4)


def test_nobody_is_asked_to_measure_w(tmp_path):
    """A site's personal model is its theta, which it measured when it had learned it."""
    played = play(toy(PFedMe(), tmp_path, rounds__sample_rate=0.5))
    assert {e.task.action for e in played.seen} == {"warmup", "train"}
    assert all(e.reply.evaluations for e in played.seen)
    assert played.summary["bytes_evaluation"] == 0
    last = {e.task.site: e.reply.evaluations["test"].accuracy for e in played.seen}
    assert played.rows()[-1]["mean_test_accuracy"] == pytest.approx(sum(last.values()) / 3)
