"""The mean teacher's loss by hand, and its ends."""

import pytest
import torch

from fedapp.learn.teacher import taught_squares


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
