"""The mean teacher's loss by hand, and its ends."""

import pytest
import torch
import torch.nn.functional as F

from fedapp.learn.networks import build_model
from fedapp.learn.objectives import LocalTraining
from fedapp.methods.two_networks.rscfed import mean_teacher, taught_squares
from tests.methods.conformance import PIXELS, data_of


def logits(*probabilities):
    return torch.tensor(probabilities).log()


def test_the_loss_by_hand():
    """The target is (16, 1) / 17 and (1, 1) / 2: squares of 2 (16/17 - 1/2)^2 and 0."""
    teacher, student = logits([0.8, 0.2], [0.5, 0.5]), logits([0.5, 0.5], [0.5, 0.5])
    wanted = (2 * (16 / 17 - 0.5) ** 2 + 0) / 2
    assert taught_squares(teacher, student, 0.5).item() == pytest.approx(wanted, rel=1e-5)


def test_the_loss_is_0_where_the_student_answers_as_the_teacher_sharpened():
    teacher = logits([0.8, 0.2])
    assert taught_squares(teacher, logits([16 / 17, 1 / 17]), 0.5).item() == pytest.approx(0)
    assert taught_squares(teacher, teacher, 1.0).item() == pytest.approx(0)


def test_no_gradient_flows_into_the_teacher():
    teacher = torch.zeros(2, 3, requires_grad=True)
    student = torch.tensor([[1.0, 0.0, 0.0], [0.0, 2.0, 0.0]], requires_grad=True)
    taught_squares(teacher, student, 0.5).backward()
    assert teacher.grad is None and student.grad.abs().sum() > 0


def test_without_images_it_is_0():
    none = torch.empty(0, 3, requires_grad=True)
    assert taught_squares(none, none, 0.5).item() == 0.0


def test_a_step_by_hand_and_each_network_has_a_view_of_its_own():
    """Cross entropy of the labelled images + 0.3 times the squares; both in training mode."""
    networks, seen = [], []
    for seed in (0, 1):
        torch.manual_seed(seed)
        networks.append(build_model(PIXELS, (1, 8, 8), 3))
    student, teacher = networks
    teacher.eval()
    for network in networks:
        network.register_forward_pre_hook(
            lambda which, given: seen.append((which is teacher, which.training, given[0].clone()))
        )
    views = []

    def weak(images):
        views.append(images)
        return images // len(views)

    data, shuffle = data_of(3, 4), torch.Generator().manual_seed(7)
    work = LocalTraining(student, data, lambda images: images.float() / 255, 8, 1, shuffle)
    after = []
    steps = mean_teacher(work, teacher, weak, 0.5, 0.3, lambda: after.append(1))
    loss = next(steps)(student).item()
    assert not after and not list(steps) and after == [1]
    assert [(which, training) for which, training, _ in seen] == [(False, True), (True, True)]
    known, other, again = views
    assert torch.equal(other, again)
    x = torch.cat([known, other // 2]) / 255
    assert torch.equal(seen[0][2], x) and torch.equal(seen[1][2], (other // 3) / 255)
    logits, wanted = student(x), teacher((other // 3) / 255)
    labels = [next(int(y) for i, y in zip(data.labelled, data.labels, strict=True)
                   if torch.equal(i, image)) for image in known]  # fmt: skip
    by_hand = F.cross_entropy(logits[:3], torch.tensor(labels))
    by_hand = by_hand + 0.3 * taught_squares(wanted, logits[3:], 0.5)
    assert loss == pytest.approx(by_hand.item(), rel=1e-5)
