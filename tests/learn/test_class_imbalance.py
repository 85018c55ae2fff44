"""Balanced sampling and logit adjustment: by hand, where they change nothing, and at the ends."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedapp.core.rng import torch_stream
from fedapp.data.sites import Part
from fedapp.learn.class_imbalance import (
    AdjustedCrossEntropy,
    LogitAdjustment,
    balanced_indices,
    class_mix_as_sampled,
)
from fedapp.learn.objectives import fixmatch, supervised
from tests.learn.test_objectives import work as local_training
from tests.methods.conformance import data_of, digits_like

EVEN_HAND = torch.tensor([0, 0, 0, 0, 0, 0, 0, 1])
"""Seven images of class 0, one of class 1."""


def work(labels, uneven="plain", unlabelled=0, repeat=1):
    data = data_of(len(labels), unlabelled)
    data = data.with_parts(labelled=Part(digits_like(len(labels), 1), torch.tensor(labels)))
    return replace(local_training(data=data), uneven=uneven, labelled_repeat=repeat)


def labels_of(steps):
    return torch.cat([step.batch[1] for step in steps])


@given(st.lists(st.integers(0, 4), max_size=30), st.integers(0, 40))
def test_every_class_that_occurs_is_drawn_as_often(labels, count):
    own = torch.tensor(labels, dtype=torch.int64)
    drawn = balanced_indices(own, count, torch_stream(1, "b"))
    assert len(drawn) == (count if labels else 0)
    if labels:
        of = torch.bincount(own[drawn], minlength=5)[own.unique()]
        assert of.sum() == count and of.max() - of.min() <= 1
        times = torch.bincount(drawn, minlength=len(own))
        for c in own.unique():  # none again before all others of its class
            assert times[own == c].max() - times[own == c].min() <= 1


def test_the_shift_by_hand():
    """Three of four images and one, an image spread over both: pi = (3.5, 1.5) / 5."""
    mix = class_mix_as_sampled(torch.tensor([0, 0, 0, 1]), 2, "adjusted")
    assert mix.tolist() == pytest.approx([0.7, 0.3])
    shift = LogitAdjustment(tuple(mix.log().tolist()))
    assert shift(torch.zeros(1, 2))[0].tolist() == pytest.approx([math.log(0.7), math.log(0.3)])
    loss = AdjustedCrossEntropy(shift)(nn.Identity(), torch.zeros(2, 2), torch.tensor([0, 1]))
    assert loss.item() == pytest.approx(-(math.log(0.7) + math.log(0.3)) / 2)


def test_a_mix_as_drawn_is_even_over_the_classes_that_occur():
    mix = class_mix_as_sampled(EVEN_HAND, 3, "balanced")
    assert mix.tolist() == pytest.approx([(4 + 1 / 3) / 9, (4 + 1 / 3) / 9, 1 / 27])
    assert class_mix_as_sampled(EVEN_HAND, 3, "plain")[0].item() == pytest.approx((7 + 1 / 3) / 9)


def test_an_even_mix_adjusts_nothing():
    labels = [0, 1, 2, 0, 1, 2]
    plain, adjusted = (list(supervised(work(labels, how))) for how in ("plain", "adjusted"))
    model = work(labels).model
    for one, other in zip(plain, adjusted, strict=True):
        assert one(model).item() == pytest.approx(other(model).item(), rel=1e-6)


def test_plain_steps_are_those_of_a_permutation():
    one = work([0, 0, 0, 0, 1, 2], repeat=2)
    order = torch.randperm(12, generator=torch_stream(0, "shuffle")) % 6
    assert labels_of(supervised(one)).tolist() == one.data.labels[order].tolist()


@pytest.mark.parametrize("unlabelled", [0, 5, 30])
def test_balanced_steps_hold_as_many_of_each_class(unlabelled):
    one = work([0] * 10 + [1, 2], "balanced", unlabelled)

    def same(images):
        return images

    if not unlabelled:
        assert torch.bincount(labels_of(supervised(one))).tolist() == [4, 4, 4]
    shares = torch.bincount(labels_of(fixmatch(one, same, same, 0.95, 1.0))).double()
    assert (shares / shares.sum() - 1 / 3).abs().max() < 0.1


def test_the_adjusted_loss_reaches_the_labelled_half_of_fixmatch_alone():
    def same(images):
        return images

    plain, adjusted = (work([0] * 9 + [1], how, unlabelled=10) for how in ("plain", "adjusted"))
    one, other = (next(fixmatch(w, same, same, 0.0, 1.0)) for w in (plain, adjusted))
    (views, y), model = other.batch, plain.model
    logits = model(views)
    by_hand = nn.functional.cross_entropy(logits[: len(y)] + adjusted.mix.log(), y)
    before = nn.functional.cross_entropy(logits[: len(y)], y)
    assert (other(model) - one(model)).item() == pytest.approx((by_hand - before).item(), abs=1e-5)


def test_equal_losses_are_equal_and_a_site_without_labels_has_none():
    assert AdjustedCrossEntropy(LogitAdjustment((0.0,))) == AdjustedCrossEntropy(
        LogitAdjustment((0.0,))
    )
    empty = replace(work([0]), data=data_of(0, 3), uneven="adjusted")
    assert not empty.shift.values and not list(supervised(empty))
    assert not len(replace(empty, uneven="balanced").drawn())
