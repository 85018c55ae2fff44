"""Evaluation sums and counts of pseudo-labels: by hand, against scikit-learn, and of nothing."""

import pytest
import torch
from sklearn.metrics import confusion_matrix

from fedapp.data.sites import Audit
from fedapp.learn.metrics import (
    CALIBRATION_BINS,
    UNCERTAINTY_BINS,
    calibration_error,
    count_pseudo_labels,
    evaluation,
    label_group,
    predict,
    predict_each,
    uncertainty_bins,
    worst_decile,
)
from fedapp.learn.networks import build_model
from fedapp.learn.networks.resnet9 import ResNet9Settings
from fedapp.protocol.messages import Evaluation


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
    assert result.bin_count[CALIBRATION_BINS - 1] == result.bin_count[7] == 1
    assert result.bin_correct[CALIBRATION_BINS - 1] == 1 and result.bin_correct[7] == 0
    assert result.bin_confidence[CALIBRATION_BINS - 1] == 1.0 and result.bin_confidence[7] == 0.5
    assert sum(result.bin_count) == 2


def test_no_samples():
    result = evaluation(torch.empty(0, 3), torch.empty(0, dtype=torch.long))
    assert result.samples == 0 and result.accuracy is None
    assert sum(result.bin_count) == 0


def test_worst_decile_is_the_mean_of_the_worst_tenth():
    assert worst_decile([0.1 * k for k in range(10)]) == 0.0
    assert worst_decile([0.5, 0.9]) == 0.5
    assert worst_decile([k / 20 for k in range(20)]) == pytest.approx((0 + 0.05) / 2)


def test_the_ends_of_a_label_group():
    shares = (0.0, 0.0999, 0.1, 0.5, 0.5001, 1.0)
    assert [label_group(mu) for mu in shares] == [0, 0, 1, 1, 2, 2]


def sums(count: list[int], correct: list[int], confidence: list[float]) -> Evaluation:
    return Evaluation(
        ((sum(count),),), bin_count=tuple(count), bin_correct=tuple(correct),
        bin_confidence=tuple(confidence),
    )  # fmt: skip


def test_the_calibration_error_by_hand():
    """(|3 - 2| + |1 - 1.8|) / 6."""
    assert calibration_error([sums([4, 2], [3, 1], [2.0, 1.8])]) == pytest.approx(1.8 / 6)


def test_every_image_counts_the_same_whichever_site_it_lies_at():
    """Bins are added first: what one site is too sure of, another may be too unsure of."""
    sure, unsure = sums([0, 2], [0, 0], [0.0, 2.0]), sums([0, 6], [0, 6], [0.0, 4.0])
    assert calibration_error([sure, unsure]) == pytest.approx(0.0)
    assert calibration_error([sure]) == pytest.approx(1.0)
    assert calibration_error([sure, sums([6, 0], [6, 0], [6.0, 0.0])]) == pytest.approx(2 / 8)


def test_without_images_there_is_no_calibration_error():
    assert calibration_error([]) is None
    assert calibration_error([sums([0, 0], [0, 0], [0.0, 0.0])]) is None


SOFT = torch.tensor([[1.0, 0.0], [0.89, 0.11], [0.4, 0.6], [0.5, 0.5]])
"""H / ln 2 is 0, 0.4999, 0.9710 and 1: bins 0, 4, 9 and 9."""
HIDDEN = torch.tensor([0, 1, 1, 1])


def test_by_hand():
    found = count_pseudo_labels(SOFT, Audit(HIDDEN))
    assert found.by_class == (3, 1)  # a tie goes to the first class
    assert found.by_uncertainty == (1, 0, 0, 0, 1, 0, 0, 0, 0, 2)
    assert found.wrong_by_class == (2, 0)
    assert found.wrong_by_uncertainty == (0, 0, 0, 0, 1, 0, 0, 0, 0, 1)
    assert found.total == 4


def test_a_real_site_does_not_know_what_is_wrong():
    found = count_pseudo_labels(SOFT, None)
    assert (found.wrong_by_class, found.wrong_by_uncertainty) == ((), ())


def test_no_pseudo_labels():
    found = count_pseudo_labels(torch.empty(0, 3), Audit(torch.empty(0, dtype=torch.int64)))
    assert found.by_class == found.wrong_by_class == (0, 0, 0)
    assert found.by_uncertainty == (0,) * UNCERTAINTY_BINS and found.total == 0


def test_of_one_class_nothing_is_uncertain():
    assert uncertainty_bins(torch.ones(3, 1)).tolist() == [0, 0, 0]


def test_the_order_does_not_matter_and_sums_agree():
    stream = torch.Generator().manual_seed(0)
    soft = torch.softmax(3 * torch.randn(200, 5, generator=stream), dim=1)
    hidden = torch.randint(5, (200,), generator=stream)
    order = torch.randperm(200, generator=stream)
    found = count_pseudo_labels(soft, Audit(hidden))
    assert count_pseudo_labels(soft[order], Audit(hidden[order])) == found
    assert count_pseudo_labels(soft[order], Audit(hidden), of=order) == found
    wrong, total = Audit(hidden).pseudo_label_errors(soft.argmax(1))
    assert sum(found.wrong_by_class) == sum(found.wrong_by_uncertainty) == wrong
    assert found.total == sum(found.by_uncertainty) == total
