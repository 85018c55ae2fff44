"""FedSiam's loss, its ramps and its moving average: by hand, against other methods, at the ends."""

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from fedapp.learn.networks import build_model, initial_params
from fedapp.learn.objectives import LocalTraining, supervised
from fedapp.methods.two_networks._target import (
    decay,
    inconsistency,
    ramp_weight,
    siamese,
    update_target,
)
from tests.methods.conformance import PIXELS, assert_same, data_of

TARGET, ONLINE = torch.tensor([[0.7, 0.2, 0.1]]).log(), torch.tensor([[0.5, 0.3, 0.2]]).log()


@pytest.mark.parametrize(("distance", "value"), [
    ("squared_norm", 0.06), ("mse", 0.02), ("kl", 0.08512),
])  # fmt: skip
def test_how_far_two_answers_are_apart_by_hand(distance, value):
    assert inconsistency(TARGET, ONLINE, distance).item() == pytest.approx(value, abs=5e-6)
    twice = inconsistency(TARGET.repeat(4, 1), ONLINE.repeat(4, 1), distance)
    assert twice.item() == pytest.approx(value, abs=5e-6)


@pytest.mark.parametrize("distance", ["squared_norm", "mse", "kl"])
def test_equal_answers_agree_and_only_the_online_network_is_pulled(distance):
    assert inconsistency(TARGET, TARGET, distance).item() == pytest.approx(0.0, abs=1e-7)
    target, online = TARGET.clone().requires_grad_(), ONLINE.clone().requires_grad_()
    inconsistency(target, online, distance).backward()
    assert target.grad is None and online.grad.abs().sum() > 0
    sure = torch.tensor([[1000.0, 0.0, 0.0]])
    assert math.isfinite(inconsistency(sure, -sure, distance).item())


def test_the_ramps_by_hand():
    beta = [ramp_weight(t, 10) for t in range(1, 11)]
    wanted = [0.0174, 0.0408, 0.0863, 0.1653, 0.2865, 0.4493, 0.6376, 0.8187, 0.9512, 1.0]
    assert beta == pytest.approx(wanted, abs=5e-5)
    assert ramp_weight(250, 10) == ramp_weight(1, 1) == 1.0
    alpha = [decay(t, 0.999) for t in (6, 10, 250, 999, 5000)]
    assert alpha == pytest.approx([0.8571, 0.9091, 0.9960, 0.999, 0.999], abs=5e-5)
    assert decay(0, 0.999) == 0.0 == decay(7, 0.0)


@pytest.fixture
def pair():
    """Two networks of other weights, and their parameters before anything happened."""
    networks = []
    for seed in (0, 1):
        network = build_model(PIXELS, (1, 8, 8), 3)
        network.load_state_dict(initial_params(PIXELS, (1, 8, 8), 3, seed=seed))
        networks.append(network)
    return networks


def weights(network):
    return {n: p.detach().clone() for n, p in network.named_parameters()}


@pytest.mark.parametrize(("alpha", "whose"), [(0.0, 1), (1.0, 0)])
def test_the_target_is_the_online_network_or_never_moves(pair, alpha, whose):
    before = [weights(network) for network in pair]
    norms = {n: b.clone() for n, b in pair[0].named_buffers()}
    for norm in (m for m in pair[1].modules() if hasattr(m, "running_mean")):
        norm.running_mean.add_(1.0)
    update_target(*pair, alpha)
    assert_same(weights(pair[0]), before[whose])
    assert_same(dict(pair[0].named_buffers()), norms)  # statistics are its own


def test_the_moving_average_by_hand(pair):
    before = [weights(network) for network in pair]
    update_target(*pair, 0.75)
    for name, found in weights(pair[0]).items():
        wanted = 0.75 * before[0][name] + 0.25 * before[1][name]
        torch.testing.assert_close(found, wanted)


# --- the mini-batches -----------------------------------------------------------------------------


def work_of(labelled, unlabelled, model, size=4, epochs=1, **changes):
    return LocalTraining(
        model=model,
        data=data_of(labelled, unlabelled),
        normalise=lambda images: images.float() / 255,
        size=size,
        epochs=epochs,
        shuffle=torch.Generator().manual_seed(7),
        **changes,
    )


squares = partial(inconsistency, distance="mse")


def losses(work, target, weight=lambda epoch: 0.5, before=0, distance="mse", rate=0.0):
    """The loss of each step, and the epochs after which `after` was called."""
    seen, found = [], []
    unlike = partial(inconsistency, distance=distance)
    optimiser = torch.optim.SGD(work.model.parameters(), lr=rate or 1e-9)
    for step in siamese(work, target, lambda x: x, unlike, weight, before, seen.append):
        loss = step(work.model)
        found.append(loss.item())
        if rate:
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return found, seen


def test_the_loss_of_a_whole_batch_by_hand(pair):
    """Cross entropy of 3 labelled of 5 images, by 5, and half the answers' squared distance."""
    target, online = pair
    work = work_of(3, 2, online, size=8)
    [found], seen = losses(work, target)
    images = torch.cat([work.data.labelled, work.data.unlabelled])
    order = torch.randperm(5, generator=torch.Generator().manual_seed(7))
    x = work.normalise(images)[order]
    with torch.no_grad():
        p, logits = torch.softmax(target(x), 1), online(x)
        q = torch.softmax(logits, 1)
    known = order < 3
    entropy = F.cross_entropy(logits[known], work.data.labels[order[known]], reduction="sum") / 5
    wanted = entropy + 0.5 * ((p - q) ** 2).sum(1).mean() / 3
    assert found == pytest.approx(wanted.item(), rel=1e-5) and seen == [1]


def test_local_epochs_are_counted_on_and_told_after_each_step(pair):
    target, online = pair
    asked = []

    def weight(epoch):
        asked.append(epoch)
        return 1.0

    _, seen = losses(work_of(3, 5, online, epochs=2), target, weight, before=5)
    assert seen == [6, 6, 7, 7] and asked == [6, 7]
    _, seen = losses(work_of(3, 5, online, steps=3), target, weight, before=0)
    assert seen == [1, 1, 2]


def test_without_weight_there_is_no_second_pass(pair):
    """A second pass of one network would move its batch norms' statistics twice."""
    for weight, passes in ((0.0, 1), (1.0, 2)):
        _, network = pair
        counts = [int(b) for n, b in network.named_buffers() if n.endswith("tracked")]
        losses(work_of(2, 2, network), network, lambda epoch, w=weight: w)
        after = [int(b) for n, b in network.named_buffers() if n.endswith("tracked")]
        assert {b - a for a, b in zip(counts, after, strict=True)} == {passes}


def test_each_network_has_a_view_of_its_own_and_learns_its_own_statistics(pair):
    """The target is in training mode, whatever it was in: dropout and statistics of the batch."""
    target, online = pair
    target.eval()
    seen = []
    for network in pair:
        network.register_forward_pre_hook(
            lambda which, given: seen.append((which is target, which.training, given[0].clone()))
        )
    work = work_of(3, 2, online, size=8, view=lambda images: 255 - images)
    step = next(siamese(work, target, lambda images: images // 2, squares, lambda t: 1.0, 0, print))
    before = [int(network.state_dict()["stem.norm.num_batches_tracked"]) for network in pair]
    step(online)
    after = [int(network.state_dict()["stem.norm.num_batches_tracked"]) for network in pair]
    assert [b - a for a, b in zip(before, after, strict=True)] == [1, 1]
    order = torch.randperm(5, generator=torch.Generator().manual_seed(7))
    images = torch.cat([work.data.labelled, work.data.unlabelled])[order]
    wanted = {False: work.normalise(255 - images), True: work.normalise(images // 2)}
    assert [(which, training) for which, training, _ in seen] == [(False, True), (True, True)]
    assert all(torch.equal(x, wanted[which]) for which, _, x in seen)


def test_with_labels_alone_and_no_weight_it_is_cross_entropy_but_for_rounding(pair):
    start = {n: t.clone() for n, t in pair[1].state_dict().items()}
    found, _ = losses(work_of(6, 0, pair[1]), pair[0], lambda epoch: 0.0, rate=0.1)
    mine = {n: t.clone() for n, t in pair[1].state_dict().items()}
    pair[1].load_state_dict(start)
    optimiser = torch.optim.SGD(pair[1].parameters(), lr=0.1)
    for step in supervised(work_of(6, 0, pair[1])):
        optimiser.zero_grad()
        step(pair[1]).backward()
        optimiser.step()
    for name, tensor in pair[1].state_dict().items():
        torch.testing.assert_close(mine[name], tensor, rtol=1e-5, atol=1e-6)
    assert len(found) == 2
