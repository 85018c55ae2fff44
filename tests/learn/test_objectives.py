"""Objectives with a pencil: supervised steps, FixMatch's two losses, and what an epoch holds."""

import math
from functools import partial

import pytest
import torch
from torch import nn

from fedapp.core.rng import torch_stream
from fedapp.learn.objectives import (
    LocalTraining,
    consistency,
    detached_copies,
    fixmatch,
    labelled_loss,
    proximal_penalty,
    supervised,
)
from fedapp.methods.averaging.fixmatch_global import fixed_label_steps
from tests.methods.conformance import data_of

NEVER, ALWAYS = 1.0, 0.0


def scale(images):
    return images.float() / 255


def linear(seed=0, classes=3):
    """A network without batch norm, in which images do not influence one another."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, classes))
    with torch.no_grad():
        weight = torch.randn(classes, 64, generator=torch.Generator().manual_seed(seed))
        model[1].weight.copy_(weight)
        model[1].bias.zero_()
    return model


def work(labelled=4, unlabelled=0, size=4, epochs=1, model=None, data=None):
    return LocalTraining(
        model=model or linear(),
        data=data or data_of(labelled, unlabelled),
        normalise=scale,
        size=size,
        epochs=epochs,
        shuffle=torch_stream(0, "shuffle"),
    )


class Views:
    """Weak and strong views that note what they were given. strong: the negative, if not told."""

    def __init__(self, weak=lambda images: images, strong=lambda images: 255 - images):
        self.given = {"weak": [], "strong": []}
        self._do = {"weak": weak, "strong": strong}

    def weak(self, images):
        self.given["weak"].append(images)
        return self._do["weak"](images)

    def strong(self, images):
        self.given["strong"].append(images)
        return self._do["strong"](images)


def steps(job, views=None, confidence=ALWAYS, weight=1.0):
    views = views or Views()
    return list(fixmatch(job, views.weak, views.strong, confidence, weight))


def values(objective, job):
    return [step(job.model).item() for step in objective(job)]


def same(images, pool):
    """The index in the pool of each of the images."""
    return [int((pool == image).flatten(1).all(1).nonzero()[0, 0]) for image in images]


# --- supervised -----------------------------------------------------------------------------------


def test_a_supervised_step_is_the_mean_cross_entropy_of_its_batch():
    job = work(labelled=4)
    [step] = supervised(job)
    p = torch.softmax(job.model(scale(job.data.labelled)), dim=1).detach()
    by_hand = -sum(math.log(p[i, y]) for i, y in enumerate(job.data.labels.tolist())) / 4
    assert step(job.model).item() == pytest.approx(by_hand, rel=1e-5)


@pytest.mark.parametrize(
    ("count", "sizes"), [(0, []), (1, [1]), (4, [4]), (5, [3, 2]), (9, [3] * 3)]
)
def test_an_epoch_sees_every_labelled_image_once(count, sizes, monkeypatch):
    job, seen = work(labelled=count, epochs=2), []
    monkeypatch.setattr(job.model, "forward", lambda x: seen.append(x) or x.new_zeros(len(x), 3))
    for step in supervised(job):
        step(job.model)
    assert [len(x) for x in seen] == sizes * 2
    for epoch in (seen[: len(sizes)], seen[len(sizes) :]):
        found = same(torch.cat(epoch), scale(job.data.labelled)) if epoch else []
        assert sorted(found) == list(range(count))


# --- the two losses -------------------------------------------------------------------------------


def logits_of(*rows):
    """Logits whose softmax is each row."""
    return torch.tensor(rows, dtype=torch.float64).log()


def test_consistency_by_hand():
    """Two of four samples are sure; the mean is over all four (Eq. 4: 1 / (mu B))."""
    weak = logits_of((0.96, 0.03, 0.01), (0.94, 0.03, 0.03), (0.01, 0.01, 0.98), (0.4, 0.3, 0.3))
    strong = logits_of((0.5, 0.3, 0.2), (0.1, 0.1, 0.8), (0.2, 0.2, 0.6), (0.1, 0.8, 0.1))
    by_hand = -(math.log(0.5) + math.log(0.6)) / 4
    assert consistency(weak, strong, 0.95).item() == pytest.approx(by_hand)


def test_a_sample_at_the_threshold_counts():
    weak, strong = torch.zeros(1, 2), logits_of((0.25, 0.75))
    assert consistency(weak, strong, 0.5).item() > 0
    assert consistency(weak, strong, 0.5 + 1e-6).item() == 0


def test_no_gradient_flows_into_the_weak_view():
    weak = logits_of((0.9, 0.1), (0.2, 0.8)).requires_grad_()
    strong = logits_of((0.6, 0.4), (0.5, 0.5)).requires_grad_()
    consistency(weak, strong, 0.5).backward()
    assert weak.grad is None
    expected = torch.tensor([(0.6 - 1, 0.4), (0.5, 0.5 - 1)], dtype=torch.float64) / 2
    torch.testing.assert_close(strong.grad, expected)  # (softmax - one-hot) / n


def test_extreme_logits_stay_finite():
    weak = torch.tensor([[1e4, -1e4]])
    strong = torch.tensor([[-1e4, 1e4]], requires_grad=True)
    loss = consistency(weak, strong, 0.95)
    loss.backward()
    assert loss.item() == 2e4 and strong.grad.isfinite().all()


@pytest.mark.parametrize("loss", [
    lambda none: consistency(none, none, 0.5), lambda none: labelled_loss(none, torch.empty(0)),
])  # fmt: skip
def test_without_samples_the_loss_is_zero_and_keeps_its_graph(loss):
    parameter = torch.ones(3, requires_grad=True)
    value = loss(torch.empty(0, 3) * parameter)
    assert value.item() == 0
    value.backward()
    assert parameter.grad.tolist() == [0, 0, 0]


# --- FixMatch over a site's images ----------------------------------------------------------------


def test_a_fixmatch_step_by_hand():
    """Labels meet the weak view; the strong view meets the weak view's own answer."""
    job, views = work(labelled=2, unlabelled=3), Views(weak=lambda images: images // 2)
    [step] = steps(job, views, confidence=0.9, weight=0.5)
    x_s, x_u = job.data.labelled, job.data.unlabelled
    sure = torch.softmax(job.model(scale(x_u // 2)), dim=1)
    top, label = sure.max(1)
    assert 0 < (top >= 0.9).sum() < 3  # else the case shows nothing
    log_strong = torch.log_softmax(job.model(scale(255 - x_u)), dim=1)
    log_weak = torch.log_softmax(job.model(scale(x_s // 2)), dim=1)
    loss_s = -sum(log_weak[i, y] for i, y in enumerate(job.data.labels)) / 2
    loss_u = -sum(log_strong[i, label[i]] for i in range(3) if top[i] >= 0.9) / 3
    assert step(job.model).item() == pytest.approx((loss_s + 0.5 * loss_u).item(), rel=1e-5)


@pytest.mark.parametrize(("labelled", "unlabelled", "each"), [
    (10, 3, [(4, 3), (3, 3), (3, 3)]),     # the larger part is labelled
    (3, 10, [(3, 4), (3, 3), (3, 3)]),     # the larger part is unlabelled
    (2, 9, [(2, 3)] * 3),
    (5, 9, [(3, 3)] * 3),                  # the smaller part gives as many as the larger
    (8, 8, [(4, 4)] * 2),
    (1, 1, [(1, 1)]),
    (1, 9, [(1, 3)] * 3),
    (5, 0, [(3, 0), (2, 0)]),
    (0, 6, [(0, 3), (0, 3)]),
    (1, 0, [(1, 0)]),
    (0, 1, [(0, 1)]),
    (0, 0, []),
])  # fmt: skip
def test_an_epoch_is_one_pass_over_the_larger_part(labelled, unlabelled, each):
    views, job = Views(), work(labelled, unlabelled, size=4, epochs=2)
    assert len(steps(job, views)) == 2 * len(each)
    labelled_views, weak_views = views.given["weak"][::2], views.given["weak"][1::2]
    strong_views = views.given["strong"]
    assert [(len(a), len(b)) for a, b in zip(labelled_views, weak_views, strict=True)] == each * 2
    for weak, strong in zip(weak_views, strong_views, strict=True):
        assert torch.equal(weak, strong)  # both views are of the same images
    for part, given in ((job.data.labelled, labelled_views), (job.data.unlabelled, weak_views)):
        if len(part):
            first_epoch = same(torch.cat(given[: len(each)]), part)
            assert set(first_epoch) == set(range(len(part)))  # no image is missed
            repeats = len(first_epoch) - len(part)
            assert repeats < (4 if len(part) == max(labelled, unlabelled) else math.inf)


def test_with_all_labelled_and_views_that_change_nothing_it_is_supervised_bit_for_bit():
    plain = values(supervised, work(labelled=9, epochs=3))
    fixed = values(partial(steps, confidence=NEVER), work(labelled=9, epochs=3))
    assert fixed == plain and len(plain) == 9


# --- labels made once -----------------------------------------------------------------------------


def test_a_taught_step_by_hand():
    """Two of three pseudo-labels count; the mean is over all three."""
    job, views = work(labelled=2, unlabelled=3), Views(weak=lambda images: images // 2)
    labels, sure = torch.tensor([2, 0, 1]), torch.tensor([True, False, True])
    [step] = fixed_label_steps(job, views.weak, views.strong, labels, sure, weight=0.5)
    x_s, x_u = job.data.labelled, job.data.unlabelled
    log_weak = torch.log_softmax(job.model(scale(x_s // 2)), dim=1)
    log_strong = torch.log_softmax(job.model(scale(255 - x_u)), dim=1)
    loss_s = -sum(log_weak[i, y] for i, y in enumerate(job.data.labels)) / 2
    loss_u = -(log_strong[0, 2] + log_strong[2, 1]) / 3
    assert step(job.model).item() == pytest.approx((loss_s + 0.5 * loss_u).item(), rel=1e-5)
    with torch.no_grad():  # a network that changes does not change the labels
        job.model[1].weight.zero_()
    assert step(job.model).item() == pytest.approx(math.log(3) * (1 + 0.5 * 2 / 3), rel=1e-5)


def test_a_pull_is_half_its_strength_times_the_squared_distance():
    w = torch.tensor([1.0, 2.0], requires_grad=True)
    anchors = detached_copies([w])
    with torch.no_grad():
        w += 3.0
    loss = proximal_penalty([w], anchors, 0.5)
    loss.backward()
    assert loss.item() == 0.5 / 2 * 18 and w.grad.tolist() == [1.5, 1.5]


# --- batch norm -----------------------------------------------------------------------------------


class Norm(nn.Module):
    """A network with a batch norm that notes in which mode it is used."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(64)
        self.head = nn.Linear(64, 3)
        self.modes = []

    def forward(self, x):
        self.modes.append((self.training, self.norm.training))
        return self.head(self.norm(x.flatten(1)))


@pytest.mark.parametrize(("labelled", "unlabelled", "objective", "norm_trains"), [
    (1, 0, "supervised", False), (2, 0, "supervised", True), (1, 5, "supervised", False),
    (1, 0, "fixmatch", False), (0, 1, "fixmatch", True), (1, 1, "fixmatch", True),
])  # fmt: skip
def test_a_single_view_trains_with_frozen_batch_norm(labelled, unlabelled, objective, norm_trains):
    """It has no variance; one unlabelled image makes two views, which have."""
    model = Norm().eval()
    job = work(labelled, unlabelled, model=model)
    for step in supervised(job) if objective == "supervised" else steps(job):
        step(model).backward()
    assert model.modes == [(True, norm_trains)]
