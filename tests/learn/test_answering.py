"""Few images answered as one batch: the same bits whoever else asks, and the loop's answers."""

import copy
from functools import partial

import pytest
import torch

from fedapp.ground.turns import Turns
from fedapp.learn.answering import FEW, Question
from fedapp.learn.metrics import predict_each
from fedapp.learn.networks import build_model, network_settings

NETWORKS = {
    "resnet9": ({"width": 2}, (1, 8, 8)),
    "fedsiam_mnist": ({}, (1, 16, 16)),
}
COUNTS = [(2, 4), (2, 4), (1, 3), (0, 2), (8, 0), (1,), (3, 5)]


def scale(images):
    return images / 255


@pytest.fixture(params=NETWORKS)
def asked(request):
    """Networks of unlike weights, and two of equal ones; each with its sets of images."""
    settings, inputs = NETWORKS[request.param]
    found = []
    for site, counts in enumerate(COUNTS):
        torch.manual_seed(max(site, 1))  # the first two are equal
        model = build_model(network_settings(request.param, settings), inputs, 3)
        model.grouped = True
        draw = torch.Generator().manual_seed(site)
        every = (
            torch.randint(256, (n, *inputs), dtype=torch.uint8, generator=draw) for n in counts
        )
        found.append((model, list(every)))
    return found


def same(one, other):
    return all(
        len(mine) == len(theirs) and all(map(torch.equal, mine, theirs))
        for mine, theirs in zip(one, other, strict=True)
    )


def test_a_sites_bits_are_the_same_whoever_else_asks(asked):
    alone = [predict_each(*each, scale) for each in asked]
    for seats in (2, 3, 7):
        with Turns(seats) as turns:
            works = [partial(predict_each, *each, scale) for each in asked]
            assert same(list(turns.carry_out(works)), alone), seats
    model, sets = asked[0]
    apart = [predict_each(model, [one], scale)[0] for one in sets]
    assert same([apart], alone[:1])  # a set by itself too


def test_the_answers_are_the_loops_but_for_rounding(asked):
    for model, sets in asked:
        grouped = predict_each(model, sets, scale)
        looped = copy.deepcopy(model)
        looped.grouped = False
        for mine, theirs in zip(grouped, predict_each(looped, sets, scale), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_more_images_are_answered_by_the_loops_kernels(asked):
    model, inputs = asked[0][0], asked[0][1][0].shape[1:]
    images = torch.randint(256, (FEW + 1, *inputs), dtype=torch.uint8)
    looped = copy.deepcopy(model)
    looped.grouped = False
    assert torch.equal(
        predict_each(model, [images], scale)[0], predict_each(looped, [images], scale)[0]
    )


@pytest.mark.parametrize(("counts", "rows"), [((1,), (2,)), ((2, 4), (2, 4)), ((3, 0, 5), (4, 8))])
def test_sets_are_filled_up_to_powers_of_two(asked, counts, rows):
    """By hand; a set of one has two rows, since of one other kernels do the work."""
    inputs = asked[0][1][0].shape[1:]
    sets = [torch.full((n, *inputs), 255, dtype=torch.uint8) for n in counts]
    question = Question(asked[0][0], sets, scale)
    assert question.rows == rows
    assert question.inputs().sum() == sum(counts) * inputs.numel()
