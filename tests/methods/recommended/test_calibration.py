"""Calibration by sums: value, gradient and curvature; Newton's steps reach the maximum."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from fedapp.methods.closed_form._discriminant import (
    UNSEEN_CLASS_GAP,
    UNSEEN_CLASS_LOGIT,
    raise_unseen_logits,
)
from fedapp.methods.recommended._calibration import MAX_RELATIVE_CHANGE, PENALTY, Fit

START = torch.tensor([0.5, 0.5], dtype=torch.float64)


def doubles(*values):
    return torch.tensor(values, dtype=torch.float64)


def drawn(count=60, classes=4, answers=2, scale=2.0, seed=0):
    """Logits of some answers, more or less right, labels, and an uneven mix."""
    stream = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, classes, (count,), generator=stream)
    logits = scale * torch.randn(answers, count, classes, generator=stream).double()
    for answer in logits:
        answer[torch.arange(count), labels] += scale
    mix = torch.rand(classes, generator=stream).double() + 0.1
    return list(logits), labels, mix / mix.sum()


def value(logits, labels, mix, weights):
    scores = sum(w * z for w, z in zip(weights, logits, strict=True)) + mix.log()
    return torch.log_softmax(scores, 1)[torch.arange(len(labels)), labels].sum()


def penalty(weights, start=START):
    return PENALTY * (((weights - start) / start) ** 2).sum() / 2


def climbed(sums, start=START, steps=30):
    """The weights after so many of Newton's steps; sums: at weights."""
    weights = start
    for _ in range(steps):
        weights = sums(weights).step(weights, start)
    return weights


# --- the sums -------------------------------------------------------------------------------------


def test_one_image_by_hand():
    """Logits (ln 4, 0) and (0, ln 9) at weights 1/2, mix (3/5, 2/5): the answer is as 2 x 3/5 to
    3 x 2/5, a half each. The label is 0."""
    logits = [doubles([np.log(4), 0]), doubles([0, np.log(9)])]
    found = Fit.of(logits, torch.tensor([0]), doubles(0.6, 0.4), START)
    assert found.images == 1
    for label in (0, 1):  # a more uneven mix: class 0
        one = Fit.of(logits, torch.tensor([label]), doubles(0.7, 0.3), START)
        assert one.right == 1 - label
    assert found.loglik == pytest.approx(np.log(0.5))
    # What is right less what was expected: half of ln 4, half of - ln 9.
    assert found.gradient.tolist() == pytest.approx([np.log(4) / 2, -np.log(9) / 2])
    # p (1 - p) = 1/4 times the products of the differences between the classes.
    apart = torch.tensor([np.log(4), -np.log(9)])
    torch.testing.assert_close(found.curvature, apart.outer(apart) / 4)


def test_a_class_that_nobody_has_is_far_below_and_does_not_decide():
    logits = doubles(
        [3.0, UNSEEN_CLASS_LOGIT, 1.0],
        [UNSEEN_CLASS_LOGIT / 8, UNSEEN_CLASS_LOGIT / 8, UNSEEN_CLASS_LOGIT / 8],
    )
    found = raise_unseen_logits(logits)
    assert found[0].tolist() == [3.0, 1.0 - UNSEEN_CLASS_GAP, 1.0]
    assert torch.equal(found[1], logits[1])  # nobody has images of any: as it was


@pytest.mark.parametrize("answers", [1, 2, 3])
def test_gradient_and_curvature_are_autograds(answers):
    logits, labels, mix = drawn(answers=answers)
    weights = doubles(0.7, 0.2, 1.3)[:answers]

    def loglik(weights):
        return value(logits, labels, mix, weights)

    found = Fit.of(logits, labels, mix, weights)
    assert found.loglik == pytest.approx(float(loglik(weights)))
    gradient = torch.autograd.functional.jacobian(loglik, weights)
    torch.testing.assert_close(found.gradient, gradient)
    hessian = torch.autograd.functional.hessian(loglik, weights)
    torch.testing.assert_close(found.curvature, -hessian)
    assert torch.linalg.eigvalsh(found.curvature).min() > -1e-9


def test_what_all_classes_logits_have_in_common_does_not_matter():
    logits, labels, mix = drawn()
    shifted = [z + 1e6 * torch.arange(60).double()[:, None] for z in logits]
    one, other = (Fit.of(z, labels, mix, START) for z in (logits, shifted))
    torch.testing.assert_close(one.to_numbers(), other.to_numbers(), rtol=1e-6, atol=1e-5)


def test_the_sums_of_sites_are_those_of_all_images():
    logits, labels, mix = drawn()
    whole = Fit.of(logits, labels, mix, START)
    parts = [
        Fit.of([z[some] for z in logits], labels[some], mix, START)
        for some in (slice(40, 60), slice(0, 7), slice(7, 7), slice(7, 40))
    ]
    found = sum(parts[1:], parts[0])
    torch.testing.assert_close(found.to_numbers(), whole.to_numbers())
    assert found.images == 60 and found.right == whole.right


def test_no_images_say_nothing():
    found = Fit.of([torch.empty(0, 4)] * 2, torch.empty(0).long(), torch.ones(4) / 4, START)
    assert not found.to_numbers().any() and len(found.to_numbers()) == 3 + 2 + 4
    assert torch.equal(found.step(START, START), START)


@pytest.mark.parametrize("answers", [1, 2, 3, 12])
def test_numbers_are_read_back(answers):
    logits, labels, mix = drawn(answers=answers)
    found = Fit.of(logits, labels, mix, torch.ones(answers) / answers)
    again = Fit.from_numbers(found.to_numbers())
    assert (again.images, again.right, again.loglik) == (60, found.right, found.loglik)
    assert torch.equal(again.gradient, found.gradient)
    assert torch.equal(again.curvature, found.curvature)


# --- the steps ------------------------------------------------------------------------------------


def test_newtons_steps_reach_scipys_maximum():
    logits, labels, mix = drawn()

    def loss(weights):
        weights = torch.tensor(weights, dtype=torch.float64, requires_grad=True)
        out = penalty(weights) - value(logits, labels, mix, weights)
        out.backward()
        return float(out.detach()), weights.grad.numpy()

    wanted = minimize(loss, [0.5, 0.5], jac=True, method="BFGS", tol=1e-12).x
    found = climbed(lambda w: Fit.of(logits, labels, mix, w), steps=6)
    np.testing.assert_allclose(found.numpy(), wanted, atol=1e-6)
    few = climbed(lambda w: Fit.of(logits, labels, mix, w), steps=3)  # those of round 0
    np.testing.assert_allclose(few.numpy(), wanted, atol=0.01)


def test_one_answer_is_temperature_scaling():
    """Of many images the penalty counts for little: the one number that BFGS finds."""
    logits, labels, _ = drawn(count=4000, answers=1)
    even, start = torch.full((4,), 0.25, dtype=torch.float64), doubles(1)
    found = climbed(lambda w: Fit.of(logits, labels, even, w), start)
    wanted = minimize(lambda a: -float(value(logits, labels, even, doubles(*a))), [1.0], tol=1e-9).x
    assert float(found) == pytest.approx(float(wanted[0]), rel=1e-3)


def test_answers_that_say_nothing_stay_where_the_penalty_pulls_to():
    labels = torch.tensor([0] * 30 + [1] * 10)
    even = torch.full((2,), 0.5, dtype=torch.float64)
    nothing = [torch.zeros(40, 2)] * 2
    far = Fit.of(nothing, labels, even, doubles(0.9, 0.3))
    torch.testing.assert_close(far.step(doubles(0.9, 0.3), START), START)


@pytest.mark.parametrize("scale", [1.0, 10.0, 50.0, 300.0])
def test_sure_and_wrong_answers_are_climbed_from_too(scale):
    """Answers that are far too sure, and of one class: Newton's own steps leap further each time.
    To ignore them is best here, and no weight falls below 0."""
    logits, labels, mix = drawn(count=1000, scale=scale)
    for z in logits:
        z[:, 0] += 5 * scale
    found = climbed(lambda w: Fit.of(logits, labels, mix, w))
    assert (found > 0).all()
    reached = value(logits, labels, mix, found) - penalty(found)
    nothing = value(logits, labels, mix, doubles(0, 0)) - penalty(doubles(0, 0))
    assert reached > nothing - 1e-3
    assert reached > value(logits, labels, mix, START) + 100


def test_one_sure_and_wrong_answer_does_not_hold_the_other_back():
    """It is ignored, and the good one's weight is what it is by itself."""
    logits, labels, mix = drawn(count=1000)
    logits[1] = -5 * logits[0]
    found = climbed(lambda w: Fit.of(logits, labels, mix, w))
    assert float(found[1]) < 1e-6 and value(logits, labels, mix, found) > value(
        logits[:1], labels, mix, START[:1]
    )


def test_a_step_is_never_longer_than_is_said():
    logits, labels, mix = drawn(count=1000, scale=100.0)
    for z in logits:
        z[:, 0] += 500
    weights = doubles(0.2, 0.9)
    moved = Fit.of(logits, labels, mix, weights).step(weights, START)
    changed = (moved - weights).abs() / weights
    assert float(changed.max()) == pytest.approx(MAX_RELATIVE_CHANGE)


def test_a_step_that_is_cut_moves_the_other_weight_to_where_it_is_best_then():
    """Curvature (1, 1; 1, 1) and penalty 1, slopes 10 and 1.8, from weights 1 and 1.

    Newton's own step is far too long for the first weight, which moves by 0.8. Then the second's
    slope is 1.8 - 1 x 0.8, over 1 + 1: it moves by 1/2.
    """
    ones = torch.ones(2, dtype=torch.float64)
    fit = Fit(1.0, 1.0, 0.0, doubles(10.0, 1.8), torch.ones(2, 2, dtype=torch.float64))
    assert fit.step(ones, ones).tolist() == pytest.approx([1 + MAX_RELATIVE_CHANGE, 1.5])
