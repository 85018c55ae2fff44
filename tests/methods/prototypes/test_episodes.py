"""Episodes: which images are drawn, what a step's loss is, and that masks hold in training too."""

from functools import partial

import pytest
import torch

from fedapp.data.sites import Part
from fedapp.learn.networks import build_model
from fedapp.learn.networks.mlp import MLPSettings
from fedapp.learn.objectives import LocalTraining
from fedapp.learn.prototypes import (
    Prototypes,
    class_means,
    completed,
    log_answers,
    mean_of,
    pseudo_label_loss,
    pseudo_labels,
)
from fedapp.methods.prototypes._episodes import Shape, Teaching, draw_episode, episodes, query_loss
from tests.methods.conformance import data_of

SHAPE = Shape(1, 2)
SCALE = partial(torch.div, other=255)


def stream(seed=0):
    return torch.Generator().manual_seed(seed)


def work(labels, unlabelled=0, size=4, **more):
    torch.manual_seed(0)
    data = data_of(len(labels), unlabelled)
    data = data.with_parts(labelled=Part(data.labelled, torch.tensor(labels, dtype=torch.int64)))
    model = build_model(MLPSettings(hidden="7", dropout=0.0), (1, 8, 8), 3)
    return LocalTraining(model, data, SCALE, size, **{"epochs": 1, "shuffle": stream(), **more})


def teaching(work, seed=1, sites=2, **more):
    centres = torch.randn(sites, 3, work.model.features, generator=stream(seed))
    lent = Prototypes(centres, torch.ones(sites, 3, dtype=torch.bool))
    return Teaching(lent, torch.zeros(3), **{"temperature": 0.5, "weight": 0.3, **more})


# --- draws ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "shape", "sizes"), [
    (5, Shape(1, 2), (1, 2)),
    (3, Shape(2, 2), (2, 1)),
    (2, Shape(5, 5), (1, 1)),
    (1, Shape(1, 2), (1, 0)),
    (0, Shape(1, 2), (0, 0)),
])  # fmt: skip
def test_a_class_with_few_images_keeps_one_to_ask_about(count, shape, sizes):
    support, query = draw_episode([torch.arange(10, 10 + count)], shape, stream())
    assert (len(support), len(query)) == sizes
    both = torch.cat([support, query]).tolist()
    assert len(set(both)) == len(both) and set(both) <= set(range(10, 10 + count))


def test_every_image_is_drawn_as_often():
    """300 draws of 1 of 3: chance leaves an image below 60 once in 10^6 runs."""
    draw, places = stream(), torch.arange(3)
    seen = torch.cat([draw_episode([places], SHAPE, draw)[0] for _ in range(300)])
    assert torch.bincount(seen, minlength=3).min() > 60


def test_the_same_key_draws_the_same_episodes():
    members = [torch.arange(4), torch.arange(4, 9)]
    first, again = (draw_episode(members, SHAPE, stream(7)) for _ in range(2))
    assert all(map(torch.equal, first, again))
    other = draw_episode(members, SHAPE, stream(8))
    assert not all(map(torch.equal, first, other))


@pytest.mark.parametrize(("labels", "unlabelled", "taught", "count"), [
    ([0, 1, 2] * 6, 0, False, 2),  # 9 images an episode
    ([0, 1, 2] * 6, 17, False, 2),  # without teaching, labels alone
    ([0, 1, 2] * 6, 17, True, 5),  # 4 unlabelled ones an episode
    ([], 6, True, 2),
    ([0, 1, 2], 6, False, 0),  # nothing to ask about
    ([], 6, False, 0),
    ([], 0, True, 0),
    ([0, 0], 0, True, 1),
])  # fmt: skip
def test_a_pass_is_as_many_episodes_as_show_the_larger_part(labels, unlabelled, taught, count):
    given = work(labels, unlabelled)
    steps = list(episodes(given, SHAPE, "euclidean", teaching(given) if taught else None))
    assert len(steps) == count
    assert all(step(given.model).isfinite() for step in steps)


def test_the_steps_are_as_many_as_are_to_be():
    given = work([0, 1, 2] * 2, 5, steps=7)
    assert len(list(episodes(given, SHAPE, "euclidean", None))) == 7


# --- losses ---------------------------------------------------------------------------------------


def test_the_loss_of_no_images_is_zero():
    assert query_loss(torch.empty(0, 3), torch.empty(0, dtype=torch.int64)) == 0


def test_one_step_by_hand():
    given = work([0, 0, 1, 1], 3)
    by = teaching(given)
    [step] = episodes(given, SHAPE, "squared", by)
    draw, members = stream(), [torch.tensor([0, 1]), torch.tensor([2, 3]), torch.tensor([])]
    support, query = draw_episode([one.long() for one in members], SHAPE, draw)
    other = torch.randperm(3, generator=draw)

    def embedding(images):
        return given.model.embed(given.model.trunk(SCALE(images)))

    data = given.data
    own = class_means(embedding(data.labelled[support]), data.labels[support], 3)
    own = completed(own, mean_of(by.prototypes))
    f_u = embedding(data.unlabelled[other])
    answers = log_answers(f_u, by.prototypes, "squared").exp()
    targets, counts = pseudo_labels(answers, by.thresholds, 0.5)
    wanted = -log_answers(embedding(data.labelled[query]), own, "squared")[
        [0, 1], data.labels[query]
    ].mean() + 0.3 * pseudo_label_loss(log_answers(f_u, own, "squared"), targets.detach(), counts)
    assert torch.allclose(step(given.model), wanted, atol=1e-6)


def test_no_gradient_flows_into_the_targets():
    given = work([], 4)
    by = teaching(given)
    [step] = episodes(given, SHAPE, "euclidean", by)
    step(given.model).backward()
    found = [p.grad.clone() for p in given.model.parameters() if p.grad is not None]
    f = given.model.embed(given.model.trunk(SCALE(given.data.unlabelled)))
    answers = log_answers(f, by.prototypes, "euclidean").exp()
    targets, counts = pseudo_labels(answers, by.thresholds, 0.5)
    given.model.zero_grad()
    own = log_answers(f, mean_of(by.prototypes), "euclidean")
    (0.3 * pseudo_label_loss(own, targets.detach(), counts)).backward()
    stopped = [p.grad for p in given.model.parameters() if p.grad is not None]
    assert len(found) == len(stopped) > 0
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(found, stopped, strict=True))


def test_classes_without_a_label_are_masked_or_filled():
    """Of one class alone the answer is sure, its loss 0; with helpers the others count."""
    given = work([1, 1, 1])
    [step] = episodes(given, SHAPE, "euclidean", None)
    assert step(given.model).item() == 0
    [step] = episodes(given, SHAPE, "euclidean", teaching(given))
    assert step(given.model).item() > 0.1
