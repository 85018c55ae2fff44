"""Expected calibration error of sums over sites: by hand, and its extremes."""

import pytest
import torch

from fedapp.learn.metrics import calibration_error, evaluation
from fedapp.messages.protocol import Evaluation


def sums(count: list[int], correct: list[int], confidence: list[float]) -> Evaluation:
    return Evaluation(
        ((sum(count),),), bin_count=tuple(count), bin_correct=tuple(correct),
        bin_confidence=tuple(confidence),
    )  # fmt: skip


def test_by_hand():
    """(|3 - 2| + |1 - 1.8|) / 6."""
    assert calibration_error([sums([4, 2], [3, 1], [2.0, 1.8])]) == pytest.approx(1.8 / 6)


def test_every_image_counts_the_same_whichever_site_it_lies_at():
    """Bins are added first: what one site is too sure of, another may be too unsure of."""
    sure, unsure = sums([0, 2], [0, 0], [0.0, 2.0]), sums([0, 6], [0, 6], [0.0, 4.0])
    assert calibration_error([sure, unsure]) == pytest.approx(0.0)
    assert calibration_error([sure]) == pytest.approx(1.0)
    assert calibration_error([sure, sums([6, 0], [6, 0], [6.0, 0.0])]) == pytest.approx(2 / 8)


def test_without_images_there_is_no_error():
    assert calibration_error([]) is None
    assert calibration_error([sums([0, 0], [0, 0], [0.0, 0.0])]) is None


def test_sure_and_right_is_0_sure_and_wrong_is_1():
    answers = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    assert calibration_error([evaluation(answers, torch.tensor([0, 1]))]) == 0.0
    assert calibration_error([evaluation(answers, torch.tensor([1, 0]))]) == 1.0
