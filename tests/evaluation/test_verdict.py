"""Whether joining paid: by hand, the same model twice, the extremes, and how often it is wrong."""

import numpy as np
import pytest

from fedapp.evaluation.confidence_intervals import MIN_TEST_IMAGES
from fedapp.evaluation.verdict import (
    GAIN_TO_DETECT,
    _outcome,
    images_needed,
    paired_interval,
    verdict,
    verdict_of_counts,
)


def answers(right, labels, classes=2):
    """Return probabilities of a model that is right on these images."""
    said = np.where(right, labels, (labels + 1) % classes)
    return 0.8 * np.eye(classes)[said] + 0.2 / classes


def pair(b, c, both, neither):
    """Return two models' answers: right alone on b and c images, together on some."""
    kinds = np.repeat([0, 1, 2, 3], [b, c, both, neither])
    labels = np.arange(len(kinds)) % 2
    return (
        answers(np.isin(kinds, (0, 2)), labels),
        answers(np.isin(kinds, (1, 2)), labels),
        labels,
    )


def test_numbers_by_hand():
    # p = 21/102, q = 6/102: 0.14706 +- 1.96 sqrt((0.26471 - 0.02163) / 102)
    low, high = paired_interval(20, 5, 100)
    assert (low, high) == pytest.approx((0.05138, 0.24274), abs=1e-5)
    found = verdict(*pair(20, 5, 50, 25))
    assert (found.said, found.gain) == ("paid", pytest.approx(0.15))
    assert (found.low, found.high) == (low, high)
    assert found.line == (
        "Joining paid: +15.0 points of accuracy over training alone (95 % interval +5.1 to +24.3), "
        "on the same 100 test images."
    )
    # (1.95996 + 0.84162)^2 (0.3 - 0.01) / 0.01 = 227.6
    assert images_needed(0.3) == 228
    assert images_needed(0) == images_needed(GAIN_TO_DETECT) == 71


@pytest.mark.parametrize("metric", ["accuracy", "balanced_accuracy", "f1", "kappa"])
def test_the_same_model_twice_changed_little_or_is_not_told(metric):
    joined, _, labels = pair(40, 0, 200, 60)
    found = verdict(joined, joined, labels, metric)
    assert found.gain == 0 and found.said == "same"
    assert found.low <= 0 <= found.high


def test_few_images_never_have_a_number():
    found = verdict(*pair(7, 0, 0, 0))
    assert (found.said, found.gain, found.low) == ("unknown", None, None)
    assert found.line.startswith("Cannot tell whether joining paid with 7 test images: about ")
    assert verdict(*pair(MIN_TEST_IMAGES - 1, 0, 0, 0)).gain is None
    assert verdict(*pair(MIN_TEST_IMAGES, 0, 0, 0)).said == "paid"
    assert verdict(*pair(1, 0, 0, 0)).line.startswith("Cannot tell whether joining paid with 1 t")
    assert verdict_of_counts(7, 0, 7).gain is None


def test_without_a_model_alone_or_test_images_it_says_what_is_lacking():
    joined, alone, labels = pair(10, 0, 20, 0)
    assert "without a model trained alone" in verdict(joined, None, labels).line
    assert "that others had a part in" in verdict(None, alone, labels).line
    nothing = np.empty((0, 2))
    assert "without test images" in verdict(nothing, nothing, np.empty(0, dtype=np.int64)).line


def test_too_little_for_a_verdict_says_how_many_images_would_do():
    found = verdict(*pair(6, 4, 20, 10))
    assert found.said == "unknown" and found.gain == pytest.approx(0.05)
    assert (
        f"about {images_needed(12 / 42)} test images would show a gain of 10 points" in found.line
    )


def test_a_mean_over_classes_is_not_said_where_one_has_few_images():
    labels = np.repeat([0, 1], [40, 3])
    joined, alone = answers(np.ones(43, bool), labels), answers(labels == 0, labels)
    assert verdict(joined, alone, labels).gain is not None
    found = verdict(joined, alone, labels, "balanced_accuracy")
    assert found.gain is None
    assert found.line == (
        "Cannot tell whether joining paid in balanced accuracy: some class has 3 test images."
    )
    labels = np.repeat([0, 1], [40, 12])
    alone = answers(labels == 0, labels)
    joined = answers(np.ones(52, bool), labels)
    found = verdict(joined, alone, labels, "balanced_accuracy")
    assert (found.said, found.gain) == ("paid", 0.5)


def test_counts_alone_have_a_wider_interval_than_the_images_themselves():
    counts, own = verdict_of_counts(70, 55, 100), verdict(*pair(20, 5, 50, 25))
    assert counts.gain == pytest.approx(own.gain)
    assert counts.low < own.low and own.high < counts.high


@pytest.mark.parametrize(("differ", "images"), [(0.1, 20), (0.1, 100), (0.4, 20), (0.4, 100)])
def test_of_equal_models_at_most_one_in_twenty_is_told_apart(differ, images):
    """4,000 sites without a gain: 5 % false verdicts.

    Its standard deviation is 0.35 points: above 6.6 % by chance less than once in 10^5.
    """
    stream = np.random.default_rng(images)
    drawn = stream.multinomial(images, [differ / 2, differ / 2, 1 - differ], size=4000)
    wrong = sum(
        _outcome(*paired_interval(b, c, images)) in {"paid", "harmed"} for b, c, _ in drawn.tolist()
    )
    assert wrong / 4000 < 0.066


def test_ten_copies_of_a_patients_image_say_no_more_than_one():
    """By patient, the interval of ten equal images of each is that of a patient's one."""
    joined, alone, labels = pair(8, 3, 10, 9)
    people = np.arange(30)
    many = [np.repeat(one, 10, axis=0) for one in (joined, alone, labels, people)]
    one, ten = verdict(joined, alone, labels, patients=people), verdict(*many[:3], patients=many[3])
    by_image = verdict(*many[:3])
    assert one.gain == ten.gain == pytest.approx(by_image.gain)
    assert by_image.said == "paid" and ten.said == "unknown"
    assert ten.high - ten.low > 2 * (by_image.high - by_image.low)
    assert (one.low, one.high) == pytest.approx((ten.low, ten.high), abs=0.05)


def test_few_patients_never_have_a_number_however_many_their_images():
    joined, alone, labels = pair(20, 5, 50, 25)
    found = verdict(joined, alone, labels, patients=np.arange(100) % (MIN_TEST_IMAGES - 1))
    assert found.gain is None
    assert f"with 100 test images of {MIN_TEST_IMAGES - 1} patients" in found.line
    assert (
        verdict(joined, alone, labels, patients=np.arange(100) % MIN_TEST_IMAGES).gain is not None
    )


def test_patients_of_one_image_each_are_images():
    for metric in ("accuracy", "balanced_accuracy"):
        three = pair(20, 5, 50, 25)
        plain, each = verdict(*three, metric), verdict(*three, metric, np.arange(100))
        assert (each.gain, each.said) == (plain.gain, plain.said)
        if metric != "accuracy":
            assert each == plain


def test_the_interval_of_counts_by_hand():
    """p = 71/102, q = 56/102: 0.14706 +- 1.95996 sqrt((0.21161 + 0.24760) / 102)."""
    found = verdict_of_counts(70, 55, 100)
    assert (found.gain, found.low, found.high) == pytest.approx((0.15, 0.01556, 0.27856), abs=1e-5)
    small = verdict_of_counts(15, 5, 20)  # n is small beside the two images more in each
    p, q = 16 / 22, 6 / 22
    half = 1.959964 * np.sqrt((p * (1 - p) + q * (1 - q)) / 22)
    assert (small.low, small.high) == pytest.approx((p - q - half, p - q + half), abs=1e-6)


def test_an_interval_reaches_no_further_than_a_difference_of_shares_can_and_turns_with_it():
    for found in (verdict_of_counts(100, 0, 100), verdict(*pair(100, 0, 0, 0))):
        assert found.high == 1.0 and 0.9 < found.low < 1.0
    for found in (verdict_of_counts(0, 100, 100), verdict(*pair(0, 100, 0, 0))):
        assert found.said == "harmed"
        assert found.low == -1.0 and -1.0 < found.high < -0.9


def test_by_patient_an_interval_is_never_narrower_than_by_image():
    """Patients with an image each, and patients whose images cancel: the wider of the two holds."""
    joined, alone, labels = pair(8, 8, 40, 10)
    low, high = paired_interval(8, 8, 66)
    each = verdict(joined, alone, labels, patients=np.arange(66))
    assert each.low <= low and each.high >= high
    # An image that joining gained and one that it lost, of one patient: resampling sees no spread.
    of = np.concatenate([np.arange(8), np.arange(8), np.arange(8, 58)])
    cancelled = verdict(joined, alone, labels, patients=of)
    assert (cancelled.low, cancelled.high) == (low, high)
