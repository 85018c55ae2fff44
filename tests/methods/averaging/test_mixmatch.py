"""MixMatch's pieces by hand, and what each becomes at its ends."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedapp.data.augment import weak
from fedapp.data.sites import Part
from fedapp.learn.networks import build_model
from fedapp.learn.objectives import LocalTraining, supervised
from fedapp.methods.averaging.mixmatch_avg import (
    guessed,
    mixed,
    mixing,
    mixmatch,
    mixmatch_loss,
)
from tests.methods.conformance import PIXELS, context, data_of, digits_like


def logits(*probabilities):
    return torch.tensor(probabilities).log()


# --- guesses --------------------------------------------------------------------------------------


def test_a_guess_by_hand():
    """The mean of (0.8, 0.2) and (0.4, 0.6) is (0.6, 0.4); squares of it, 36 : 16."""
    views = torch.stack([logits([0.8, 0.2]), logits([0.4, 0.6])])
    assert guessed(views, 0.5)[0].tolist() == pytest.approx([36 / 52, 16 / 52])


def test_at_temperature_1_it_is_the_mean():
    views = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(guessed(views, 1.0), torch.softmax(views, 2).mean(0))


# --- MixUp ----------------------------------------------------------------------------------------


def test_mixing_by_hand():
    values = torch.tensor([[0.0, 4.0], [8.0, 0.0]])
    found = mixed(values, torch.tensor([1, 0]), torch.tensor([0.75, 0.5]))
    assert found.tolist() == [[2.0, 3.0], [4.0, 2.0]]


def test_images_are_mixed_as_their_labels_are():
    values = torch.tensor([1.0, 3.0]).view(2, 1, 1, 1).expand(2, 3, 4, 4)
    found = mixed(values, torch.tensor([1, 1]), torch.tensor([0.5, 0.9]))
    assert found.shape == (2, 3, 4, 4) and found[0].unique().tolist() == [2.0]
    assert torch.equal(found[1], values[1])


def test_shares_and_partners_are_drawn_as_the_paper_says():
    """max(l, 1 - l) has, at alpha = 1, mean 3/4 and variance 1/48; 1 in 10^6 is outside 5 sigma."""
    partners, shares = mixing(20_000, 1.0, np.random.default_rng(1))
    assert torch.equal(partners.sort().values, torch.arange(20_000))
    assert shares.dtype == torch.float32 and 0.5 <= shares.min() and shares.max() <= 1
    assert abs(shares.mean().item() - 0.75) < 5 * (1 / 48 / 20_000) ** 0.5


def test_at_alpha_0_nothing_is_mixed():
    _, shares = mixing(7, 0.0, np.random.default_rng(1))
    assert torch.equal(shares, torch.ones(7))
    partners, shares = mixing(0, 0.75, np.random.default_rng(1))
    assert len(partners) == len(shares) == 0


# --- the loss -------------------------------------------------------------------------------------


def test_the_loss_by_hand():
    """A labelled image with a mixed label, and one without: squares 0.09 each, of two classes."""
    given = logits([0.5, 0.5], [0.8, 0.2])
    targets = torch.tensor([[0.75, 0.25], [0.5, 0.5]])
    wanted = -np.log(0.5) + 10 * 0.09
    assert mixmatch_loss(given, targets, 1, 10.0).item() == pytest.approx(wanted, rel=1e-5)


def test_without_either_part_the_other_is_all_there_is():
    given, targets = logits([0.8, 0.2]), torch.tensor([[0.5, 0.5]])
    assert mixmatch_loss(given, targets, 0, 10.0).item() == pytest.approx(0.9, rel=1e-5)
    alone = mixmatch_loss(given, torch.tensor([[1.0, 0.0]]), 1, 10.0)
    assert alone.item() == pytest.approx(-np.log(0.8), rel=1e-5)


def test_guesses_are_targets_without_a_gradient():
    targets = torch.full((2, 2), 0.5, requires_grad=True)
    given = torch.randn(2, 2, requires_grad=True)
    mixmatch_loss(given, targets, 1, 1.0).backward()
    assert targets.grad is None and given.grad.abs().sum() > 0


# --- steps ----------------------------------------------------------------------------------------


def work(data):
    site = context(data, {})
    return LocalTraining(
        build_model(PIXELS, (1, 8, 8), 3), data, site.normalise, 4, 2,
        torch.Generator().manual_seed(3),
    )  # fmt: skip


def taken(work, of):
    """Gradients of each step, at weights that stay, and the losses."""
    torch.manual_seed(0)
    found = []
    weights = list(work.model.parameters())
    for step in of(work):
        loss = step(work.model)
        found.append([loss.detach(), *torch.autograd.grad(loss, weights)])
    return found


def steps_of(work, weight=1.0, alpha=0.75, views=2, view=lambda images: images):
    mix = partial(mixing, alpha=alpha, draws=np.random.default_rng(0))
    return mixmatch(work, view, views, 0.5, mix, weight)


def test_without_mixing_labelled_images_alone_teach_as_in_supervised_learning():
    """The same batches and views: a soft label of one class is that class."""
    data = data_of(9, 0)
    torch.manual_seed(1)
    one, two = work(data), work(data)
    two.model.load_state_dict(one.model.state_dict())
    mine, plain = taken(one, partial(steps_of, alpha=0.0)), taken(two, supervised)
    assert len(mine) == len(plain) == 6
    for step, other in zip(mine, plain, strict=True):
        for a, b in zip(step, other, strict=True):
            torch.testing.assert_close(a, b)


def test_without_mixing_and_weight_the_unlabelled_images_teach_nothing():
    """The loss of every step is the labelled images' cross entropy in the same pass."""
    once = work(data_of(8, 8))
    torch.manual_seed(0)
    for step in steps_of(once, weight=0.0, alpha=0.0):
        x, y, partners, shares = step.batch
        with torch.random.fork_rng():
            found = step(once.model)
        wanted = F.cross_entropy(once.model(x)[: len(y)], y)
        torch.testing.assert_close(found, wanted)
        assert torch.equal(shares, torch.ones(len(x))) and len(partners) == len(x) == 4 + 2 * 4


def test_a_step_has_all_views_of_an_unlabelled_image_under_one_label():
    """Each view is another; the network sees n + A m images twice."""
    seen = []
    once = replace(work(data_of(6, 6)), epochs=1)
    once.model.register_forward_pre_hook(lambda _, given: seen.append(given[0].clone()))
    draws = torch.Generator().manual_seed(2)
    for step in steps_of(once, views=3, alpha=0.0, view=lambda x: weak(x, True, draws)):
        step(once.model)
    for before, after in zip(seen[::2], seen[1::2], strict=True):
        assert torch.equal(before, after)  # nothing mixed
        assert len(before) % 4 == 0
        first, second = before[len(before) // 4 :].chunk(3)[:2]
        assert not torch.equal(first, second)


def test_each_view_has_the_guess_of_its_own_image():
    """Without mixing the loss is that of the guesses, those of a view after those of another."""
    once = replace(work(data_of(4, 4)), epochs=1)
    for step in steps_of(once, views=2, alpha=0.0):
        x, y, _, _ = step.batch
        guess = guessed(once.model(x)[4:].unflatten(0, (2, -1)), 0.5)
        targets = torch.cat([F.one_hot(y, 3).float(), guess, guess])
        wanted = mixmatch_loss(once.model(x), targets, 4, 1.0)
        torch.testing.assert_close(step(once.model), wanted)
        assert not torch.allclose(guess[0], guess[1], atol=1e-3)  # else the order shows nothing


def test_without_images_there_is_no_step():
    data = data_of(3).with_parts(
        labelled=Part(digits_like(0, 1), torch.empty(0, dtype=torch.int64))
    )
    assert not list(steps_of(work(data)))
