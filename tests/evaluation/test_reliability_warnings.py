"""Each warning light: where it must shine, where it must not."""

import numpy as np
import pytest
import torch

from fedapp.evaluation.model_selection import Candidate
from fedapp.evaluation.reliability_warnings import (
    NOT_TO_DECIDE,
    cautions,
    drift_warnings,
    label_mix_warnings,
    one_answer,
    shift_warnings,
    warnings_about,
)
from fedapp.learn.metrics import evaluation

CLASSES = "cat", "dog", "deer", "frog"


def answered(said, truth, sure=0.9):
    """Return the evaluation of these answers, each as sure."""
    said, truth = torch.tensor(said).long(), torch.tensor(truth).long()
    rest = (1 - sure) / (len(CLASSES) - 1)
    answers = torch.full((len(said), len(CLASSES)), rest)
    answers[torch.arange(len(said)), said] = sure
    return evaluation(answers, truth)


EVEN = [0, 1, 2, 3] * 25


def test_a_model_that_says_cat_to_everything_is_named():
    """A new user's west model: "cat" at 0.98 to everything, 25 of 100 right."""
    [one, missed, sure] = warnings_about(answered([0] * 100, EVEN, 0.98), 50, CLASSES)
    assert one == (
        "It answers 'cat' to 100 of 100 test images; always answering 'cat' would be right as "
        "often (25): do not use it to decide."
    )
    assert missed == (
        "It finds none of these test images: 25 of 'dog', 25 of 'deer', 25 of 'frog'."
    )
    assert sure == (
        "Its probabilities are too high: it says 98.0 % on average, and is right on 25.0 % of 100 "
        "test images."
    )


def test_a_good_model_has_no_light():
    said = [*EVEN[:90], *([0] * 10)]
    assert warnings_about(answered(said, EVEN, 0.92), 50, CLASSES) == []


def test_one_answer_to_nearly_all_by_hand():
    """A hospital where 113 of 123 are cats: 113 answers are "cat", of which 107 are right."""
    truth = [0] * 113 + [1] * 10
    said = [0] * 107 + [1] * 6 + [0] * 6 + [1] * 4  # right: 107 + 4, two less than "cat" to all
    [light] = warnings_about(answered(said, truth, 0.9), 50, CLASSES)
    assert light == (
        "It answers 'cat' to 113 of 123 test images; always answering 'cat' would be right more "
        "often (113, the model 111): do not use it to decide."
    )
    found = cautions(answered(said, truth, 0.9), CLASSES, [1] * 4)
    assert found[0] == light and len(found) == 4
    better = [0] * 113 + [0] * 9 + [1]  # one dog is found and no cat is lost
    assert one_answer(answered(better, truth).confusion) is None
    assert warnings_about(answered(better, truth, 0.92), 50, CLASSES) == []
    other = answered([1] * 100, [0] * 60 + [1] * 40)
    assert "answers 'dog' to 100 of 100 test images; always answering 'cat' would be right more "\
        "often (60, the model 40)" in warnings_about(other, 50, CLASSES)[0]  # fmt: skip


def test_one_answer_where_two_classes_are_equal():
    """Then the answer is named that the model gives, whichever stands first."""
    for top in (0, 1):
        found = answered([top] * 40, [0, 1] * 20)
        assert one_answer(found.confusion) == (top, top)
    swapped = [[0, 20], [20, 0]]
    assert one_answer(swapped) is None, "as bad, but not one answer"


def test_one_answer_at_the_extremes():
    """No answers, too few, one class alone, 85 of 100 exactly, and collapsed yet better."""
    assert one_answer([[0] * 4] * 4) is None and one_answer([[9, 0], [0, 0]]) is None
    [light] = warnings_about(answered([0] * 10, [0] * 10), 50, CLASSES)
    assert "'cat' to 10 of 10" in light and light.endswith(f"as often (10): {NOT_TO_DECIDE}")
    assert one_answer([[84, 1], [0, 15]]) is None and one_answer([[85, 15], [0, 0]]) == (0, 0)
    assert one_answer([[84, 16], [0, 0]]) is None
    said, truth = [0] * 92 + [1] * 8, [0] * 70 + [1] * 30
    [light] = warnings_about(answered(said, truth, 0.78), 50, CLASSES)
    assert light == (
        "The model has collapsed: it answers 'cat' to 92 of 100 test images; 70 of them are."
    )


def test_fewer_images_than_classes():
    [light] = warnings_about(answered([0, 1, 2], [0, 1, 2]), 1, CLASSES)
    assert light == "Fewer images than the 4 classes: 1 labelled training image and 3 test images."
    [light] = warnings_about(answered([], []), 9, CLASSES)
    assert light == "Fewer images than the 4 classes: 0 test images."


def test_three_cautions_by_hand():
    """30 cats, all but one said to be one, and 9 dogs, of whom 3 are found; sure to 80 %."""
    found = answered([1] + [0] * 35 + [1] * 3, [0] * 30 + [1] * 9, 0.8)
    assert cautions(found, CLASSES, [5, 0, 0, 2]) == [
        "Never seen by this site in training: dog, deer. What the model knows of them, if "
        "anything, is from other sites.",
        "Fewer than 10 test images, so it cannot be said how well it is found: dog (9), deer (0), "
        "frog (0).",
        "Its probabilities: it says 80.0 % on average, and is right on 82.1 % of 39 test images; "
        "the difference may be chance.",
    ]
    assert cautions(found, CLASSES, [5, 0, 0, 2], alone=True)[0] == (
        "Never seen by this site in training: dog, deer."
    )


def test_cautions_at_the_extremes():
    """Nothing known; all well; no labels; too sure, in the words of the warning."""
    assert cautions(None, CLASSES, seen=(1, 0, 0, 0)) == [
        "Never seen among labelled validation and test images: dog, deer, frog.",
        "No test image has a label: how good the model is nobody knows.",
    ]
    well = cautions(answered(EVEN, EVEN, 0.99), CLASSES, [1] * 4)
    assert well[:2] == ["Each class has labelled training images at this site.",
                        "Each class has at least 10 test images."]  # fmt: skip
    whole = cautions(answered(EVEN, EVEN, 0.99), CLASSES, seen=[1] * 4, pooled=True)
    assert [line.startswith("Over all sites together, each class ") for line in whole] == [
        *(True, True, False)
    ]
    few = cautions(answered([0] * 5, [0] * 5), CLASSES, [0] * 4)
    assert few[0].startswith("No training image of this site has a label: all it knows")
    assert few[1:] == [
        "Fewer than 10 test images, so it cannot be said how well it is found: all classes.",
        "5 test images cannot check its probabilities.",
    ]
    wrong = answered([0] * 100, EVEN, 0.98)
    assert {*cautions(wrong, CLASSES, [1] * 4)[::3]} <= {*warnings_about(wrong, 50, CLASSES)}
    many = [str(k) for k in range(100)]
    assert cautions(None, many, seen=[0] * 100)[0].endswith("6, 7 and 92 more.")


def test_calibration_is_not_judged_by_few_images():
    assert warnings_about(answered([0, 1, 2, 3] * 4, [1, 2, 3, 0] * 4, 0.99), 9, CLASSES) == []


def test_a_class_mix_unlike_that_of_the_labels():
    [light] = label_mix_warnings([25, 25, 25, 25], [70, 10, 10, 10], "test images")
    assert "45.0 % of the images would have to change class" in light
    assert label_mix_warnings([25, 25, 25, 25], [26, 24, 25, 25], "test images") == []
    assert label_mix_warnings([2, 2, 0, 0], [0, 2, 2, 0], "test images") == [], (
        "so few may be chance"
    )
    assert label_mix_warnings([0, 0, 0, 0], [1, 2, 3, 4], "test images") == []


def test_alike_mixes_are_called_unlike_once_in_a_thousand():
    """2,000 sites of equal mixes, 60 images each: above 0.6 % by chance less than once in 10^4."""
    stream = np.random.default_rng(3)
    both = stream.multinomial(60, [0.4, 0.3, 0.2, 0.1], size=(2000, 2)).tolist()
    assert sum(bool(label_mix_warnings(a, b, "")) for a, b in both) / 2000 < 0.006


def used(number, right, images=100):
    return Candidate(number, "used", False, right, images, 0, 0)


@pytest.mark.parametrize(("last", "shines"), [(80, False), (72, False), (60, True), (10, True)])
def test_drift_between_rounds(last, shines):
    found = drift_warnings([used(3, 80), used(9, last)])
    assert bool(found) == shines
    if last == 60:
        assert found == [
            "It got worse over the rounds: 80 of 100 validation images right after round 3, 60 "
            "after round 9, the last."
        ]
    assert drift_warnings([used(3, 80)]) == [] == drift_warnings([used(0, 0, 0), used(1, 0, 0)])


def test_answers_of_another_class_mix_than_those_to_the_test_images():
    [light] = shift_warnings([25, 25, 25, 25], [10, 10, 10, 70], CLASSES)
    assert "45.0 % of these images would have to change class; more are 'frog'" in light
    assert "once in 100 times" in light
    assert shift_warnings([25, 25, 25, 25], [26, 24, 25, 25], CLASSES) == []
    assert shift_warnings([100, 0, 0, 0], [300, 0, 0, 0], CLASSES) == [], "one class, as before"
    assert shift_warnings([100, 0, 0, 0], [0, 300, 0, 0], CLASSES)


@pytest.mark.parametrize("few", [[0, 0, 0, 0], [19, 0, 0, 0]])
def test_of_few_images_no_mix_is_called_new(few):
    assert (
        shift_warnings([0, 0, 100, 0], few, CLASSES)
        == []
        == shift_warnings(few, [0, 0, 100, 0], CLASSES)
    )


@pytest.mark.parametrize(("mix", "tested", "asked"), [
    ([0.4, 0.3, 0.2, 0.1], 60, 40), ([0.9, 0.05, 0.03, 0.02], 60, 25), ([0.25] * 4, 100, 1000),
    ([0.97, 0.01, 0.01, 0.01], 300, 300),
])  # fmt: skip
def test_alike_answers_are_called_new_once_in_a_hundred(mix, tested, asked):
    """2,000 times; 1.8 % is four standard errors above 1 %."""
    stream, told = np.random.default_rng(5), 0
    for _ in range(2000):
        said = stream.multinomial(tested, mix), stream.multinomial(asked, mix)
        told += bool(shift_warnings(*said, CLASSES))
    assert told / 2000 < 0.018
