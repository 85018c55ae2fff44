"""Evaluation sums against scikit-learn and by hand."""

import pytest
import torch
from sklearn.metrics import confusion_matrix

from fedapp.evaluation.intervals import wilson
from fedapp.learn.metrics import (
    BINS,
    LABEL_GROUPS,
    evaluation,
    label_group,
    predict,
    predict_each,
    worst_decile,
)
from fedapp.learn.networks import build_model
from fedapp.learn.networks.resnet9 import ResNet9Settings


def test_confusion_matrix_is_scikit_learns():
    stream = torch.Generator().manual_seed(0)
    rows = torch.softmax(torch.randn(200, 4, generator=stream), 1)
    labels = torch.randint(0, 4, (200,), generator=stream)
    result = evaluation(rows, labels)
    expected = confusion_matrix(labels, rows.argmax(1), labels=range(4)).tolist()
    assert [list(row) for row in result.confusion] == expected
    assert result.samples == 200
    assert result.accuracy == pytest.approx((rows.argmax(1) == labels).float().mean().item())


@pytest.mark.parametrize("count", [0, 1, 70])
def test_predictions_are_the_softmax_of_one_whole_pass(count):
    """To 1e-5, float32 rounding: a CPU's library may choose another kernel for another size."""
    model = build_model(ResNet9Settings(width=2), (1, 8, 8), 3)
    stream = torch.Generator().manual_seed(0)
    images = torch.randint(256, (count, 1, 8, 8), dtype=torch.uint8, generator=stream)
    rows = predict(model, images, lambda x: x / 255)
    with torch.no_grad():
        whole = torch.softmax(model.eval()(images / 255), 1)
    torch.testing.assert_close(rows, whole, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("counts", [(0, 0), (2, 0, 3), (20, 40), (300, 300)])
def test_sets_predicted_together_are_as_each_alone(counts):
    """A convolution's answer for an image depends on that image alone; to the bit."""
    model = build_model(ResNet9Settings(width=2), (1, 8, 8), 3)
    stream = torch.Generator().manual_seed(0)
    sets = [torch.randint(256, (n, 1, 8, 8), dtype=torch.uint8, generator=stream) for n in counts]
    together = predict_each(model, sets, lambda x: x / 255)
    alone = [predict(model, images, lambda x: x / 255) for images in sets]
    assert all(torch.equal(a, b) for a, b in zip(together, alone, strict=True))


def test_calibration_bins_by_hand():
    # confidences 1.0 (last bin), 0.5 (bin ceil(7.5) - 1 = 7); the first right, the second wrong
    result = evaluation(torch.tensor([[1.0, 0.0], [0.5, 0.5]]), torch.tensor([0, 1]))
    assert result.bin_count[BINS - 1] == result.bin_count[7] == 1
    assert result.bin_correct[BINS - 1] == 1 and result.bin_correct[7] == 0
    assert result.bin_confidence[BINS - 1] == 1.0 and result.bin_confidence[7] == 0.5
    assert sum(result.bin_count) == 2


def test_no_samples():
    result = evaluation(torch.empty(0, 3), torch.empty(0, dtype=torch.long))
    assert result.samples == 0 and result.accuracy is None
    assert sum(result.bin_count) == 0


def test_worst_decile_is_the_mean_of_the_worst_tenth():
    assert worst_decile([0.1 * k for k in range(10)]) == 0.0
    assert worst_decile([0.5, 0.9]) == 0.5
    assert worst_decile([k / 20 for k in range(20)]) == pytest.approx((0 + 0.05) / 2)


def test_the_interval_by_hand():
    """8 of 10, z = 1.96: (0.8 + 0.19208 -+ 1.96 sqrt(0.016 + 0.009604)) / 1.38416."""
    assert wilson(8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-4)


def test_another_width_of_the_interval_by_hand():
    """3 of 4, z = 1: (0.75 + 0.125 -+ sqrt(0.1875 / 4 + 1 / 64)) / 1.25."""
    assert wilson(3, 4, z=1) == pytest.approx((0.5, 0.9))


def test_the_intervals_ends():
    assert wilson(0, 0) == (0.0, 1.0)
    z2 = 1.959963984540054**2
    for total in (1, 10, 1000):  # closed forms: z^2 / (n + z^2) and n / (n + z^2)
        assert wilson(0, total) == (0.0, pytest.approx(z2 / (total + z2)))
        assert wilson(total, total) == (pytest.approx(total / (total + z2)), 1.0)


@pytest.mark.parametrize("total", [1, 7, 20, 165])
def test_the_interval_is_symmetric_and_holds_the_accuracy(total):
    for correct in range(total + 1):
        low, high = wilson(correct, total)
        assert 0 <= low <= correct / total <= high <= 1
        assert wilson(total - correct, total) == pytest.approx((1 - high, 1 - low))


def test_the_interval_narrows_as_one_over_the_square_root():
    low, high = wilson(500_000, 1_000_000)
    assert high - low == pytest.approx(2 * 1.959963984540054 * 0.5 / 1000, rel=1e-4)


@pytest.mark.parametrize(
    ("mu", "group"), [(0.0, 0), (0.0999, 0), (0.1, 1), (0.5, 1), (0.5001, 2), (1.0, 2)]
)
def test_the_ends_of_a_label_group(mu, group):
    assert LABEL_GROUPS == ("mu < 0.1", "0.1 <= mu <= 0.5", "mu > 0.5")
    assert label_group(mu) == group
