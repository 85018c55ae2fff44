"""Calibration by sums: value, gradient and curvature; Newton's steps reach the maximum."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from fedapp.learn.calibration import (
    BIAS_PENALTY,
    FAR,
    MOST_CHANGED,
    MOST_MOVED,
    WEIGHT_PENALTY,
    Fit,
    bounded,
)
from fedapp.learn.discriminant import NEVER

START = torch.tensor([0.5, 0.5], dtype=torch.float64)
NO_BIAS = torch.empty(0, dtype=torch.float64)


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


def value(logits, labels, mix, weights, bias):
    scores = sum(w * z for w, z in zip(weights, logits, strict=True)) + bias + mix.log()
    return torch.log_softmax(scores, 1)[torch.arange(len(labels)), labels].sum()


def penalty(weights, bias, start=START):
    pulled = (((weights - start) / start) ** 2).sum()
    return WEIGHT_PENALTY * pulled / 2 + BIAS_PENALTY * (bias**2).sum() / 2


def climbed(sums, start=START, bias=None, steps=30):
    """Weights and bias after so many of Newton's steps; sums: at weights and bias."""
    weights, bias = start, torch.zeros(4).double() if bias is None else bias
    for _ in range(steps):
        weights, bias = sums(weights, bias).step(weights, bias, start)
    return weights, bias


# --- the sums -------------------------------------------------------------------------------------


def test_one_image_by_hand():
    """Logits (ln 4, 0) and (0, ln 9) at weights 1/2, bias (0, ln 2), mix (3/4, 1/4): the answer is
    as 2 x 3/4 to 3 x 2 x 1/4, a half each. The label is 0."""
    logits = [doubles([np.log(4), 0]), doubles([0, np.log(9)])]
    found = Fit.of(logits, torch.tensor([0]), doubles(0.75, 0.25), START, doubles(0, np.log(2)))
    assert found.images == 1
    for label in (0, 1):  # an uneven mix: class 0
        mix = doubles(0.8, 0.2)
        one = Fit.of(logits, torch.tensor([label]), mix, START, doubles(0, np.log(2)))
        assert one.right == 1 - label
    assert found.loglik == pytest.approx(np.log(0.5))
    # What is right less what was expected: half of ln 4, half of - ln 9; 1 - 1/2, 0 - 1/2.
    wanted = [np.log(4) / 2, -np.log(9) / 2, 0.5, -0.5]
    assert found.gradient.tolist() == pytest.approx(wanted)
    # p (1 - p) = 1/4 times the products of the differences between the classes.
    apart = torch.tensor([np.log(4), -np.log(9), 1, -1])
    torch.testing.assert_close(found.curvature, apart.outer(apart) / 4)


def test_a_class_that_nobody_has_is_far_below_and_does_not_decide():
    logits = doubles([3.0, NEVER, 1.0], [NEVER / 8, NEVER / 8, NEVER / 8])
    found = bounded(logits)
    assert found[0].tolist() == [3.0, 1.0 - FAR, 1.0]
    assert torch.equal(found[1], logits[1])  # nobody has images of any: as it was


@pytest.mark.parametrize("answers", [1, 2, 3])
def test_gradient_and_curvature_are_autograds(answers):
    logits, labels, mix = drawn(answers=answers)
    weights, bias = doubles(0.7, 0.2, 1.3)[:answers], doubles(0.3, -0.2, 0.1, 0.0)

    def loglik(both):
        return value(logits, labels, mix, both[:answers], both[answers:])

    both = torch.cat([weights, bias])
    found = Fit.of(logits, labels, mix, weights, bias)
    assert found.loglik == pytest.approx(float(loglik(both)))
    gradient = torch.autograd.functional.jacobian(loglik, both)
    torch.testing.assert_close(found.gradient, gradient)
    hessian = torch.autograd.functional.hessian(loglik, both)
    torch.testing.assert_close(found.curvature, -hessian)
    assert torch.linalg.eigvalsh(found.curvature).min() > -1e-9


def test_what_all_classes_logits_have_in_common_does_not_matter():
    logits, labels, mix = drawn()
    shifted = [z + 1e6 * torch.arange(60).double()[:, None] for z in logits]
    bias = doubles(0.3, -0.2, 0.1, 0.0)
    one, other = (Fit.of(z, labels, mix, START, bias) for z in (logits, shifted))
    torch.testing.assert_close(one.to_numbers(), other.to_numbers(), rtol=1e-6, atol=1e-5)


def test_the_sums_of_sites_are_those_of_all_images():
    logits, labels, mix = drawn()
    bias = doubles(0.3, -0.2, 0.1, 0.0)
    whole = Fit.of(logits, labels, mix, START, bias)
    parts = [
        Fit.of([z[some] for z in logits], labels[some], mix, START, bias)
        for some in (slice(40, 60), slice(0, 7), slice(7, 7), slice(7, 40))
    ]
    found = sum(parts[1:], parts[0])
    torch.testing.assert_close(found.to_numbers(), whole.to_numbers())
    assert found.images == 60 and found.right == whole.right


def test_no_images_say_nothing():
    found = Fit.of([torch.empty(0, 4)] * 2, torch.empty(0).long(), torch.ones(4) / 4, START,
                   doubles(1, 0, 0, 0))  # fmt: skip
    assert not found.to_numbers().any() and len(found.to_numbers()) == 3 + 6 + 36
    weights, bias = found.step(START, torch.zeros(4).double(), START)
    assert torch.equal(weights, START) and not bias.any()


@pytest.mark.parametrize("classes", [1, 2, 3, 10, 47, 200])
def test_numbers_are_read_back(classes):
    logits, labels, mix = drawn(classes=classes)
    for bias in (torch.zeros(classes).double(), NO_BIAS):
        found = Fit.of(logits, labels, mix, START, bias)
        again = Fit.from_numbers(found.to_numbers())
        assert (again.images, again.right, again.loglik) == (60, found.right, found.loglik)
        assert torch.equal(again.gradient, found.gradient)
        assert torch.equal(again.curvature, found.curvature)
        assert len(found.gradient) == 2 + len(bias)


# --- the steps ------------------------------------------------------------------------------------


def test_newtons_steps_reach_scipys_maximum():
    logits, labels, mix = drawn()

    def loss(both):
        both = torch.tensor(both, dtype=torch.float64, requires_grad=True)
        out = penalty(both[:2], both[2:]) - value(logits, labels, mix, both[:2], both[2:])
        out.backward()
        return float(out.detach()), both.grad.numpy()

    wanted = minimize(loss, [0.5, 0.5, 0, 0, 0, 0], jac=True, method="BFGS", tol=1e-12).x
    weights, bias = climbed(lambda w, b: Fit.of(logits, labels, mix, w, b), steps=6)
    np.testing.assert_allclose(torch.cat([weights, bias]).numpy(), wanted, atol=1e-6)
    few = climbed(lambda w, b: Fit.of(logits, labels, mix, w, b), steps=3)  # those of round 0
    np.testing.assert_allclose(torch.cat(few).numpy(), wanted, atol=0.01)


def test_one_answer_without_bias_is_temperature_scaling():
    """Of many images the penalty counts for little: the one number that BFGS finds."""
    logits, labels, _ = drawn(count=4000, answers=1)
    even, start = torch.full((4,), 0.25, dtype=torch.float64), doubles(1)
    weights, bias = climbed(lambda w, b: Fit.of(logits, labels, even, w, b), start, NO_BIAS)
    assert not len(bias)
    wanted = minimize(
        lambda a: -float(value(logits, labels, even, doubles(*a), 0.0)), [1.0], tol=1e-9
    ).x
    assert float(weights) == pytest.approx(float(wanted[0]), rel=1e-3)


def test_answers_that_say_nothing_stay_where_the_penalty_pulls_to():
    """Even logits: only biases move, towards the labels' shares over the mix."""
    labels = torch.tensor([0] * 30 + [1] * 10)
    even = torch.full((2,), 0.5, dtype=torch.float64)
    weights, bias = climbed(
        lambda w, b: Fit.of([torch.zeros(40, 2)] * 2, labels, even, w, b),
        bias=torch.zeros(2).double(),
    )
    torch.testing.assert_close(weights, START)
    # 30 - 40 p = 10 b, with p = 1 / (1 + exp(-2 b)).
    b = float(bias[0])
    assert bias.sum() == pytest.approx(0, abs=1e-9)
    assert 30 - 40 / (1 + np.exp(-2 * b)) == pytest.approx(BIAS_PENALTY * b) and b > 0.2


@pytest.mark.parametrize("scale", [1.0, 10.0, 50.0, 300.0])
def test_sure_and_wrong_answers_are_climbed_from_too(scale):
    """An answer that is far too sure, and of one class: Newton's own steps leap further each time.
    The value after 30 steps is no worse than that of ignoring all answers."""
    logits, labels, mix = drawn(count=1000, scale=scale)
    for z in logits:
        z[:, 0] += 5 * scale
    zeros = torch.zeros(4).double()
    weights, bias = climbed(lambda w, b: Fit.of(logits, labels, mix, w, b))
    assert (weights > 0).all()
    reached = value(logits, labels, mix, weights, bias) - penalty(weights, bias)
    still = Fit.of(logits, labels, mix, weights, bias)
    pull = torch.cat([(weights - START) / START**2, BIAS_PENALTY * bias])
    assert (still.gradient - pull).norm() < 1e-3 * (1 + scale)
    nothing = value(logits, labels, mix, doubles(1e-9, 1e-9), zeros) - penalty(doubles(0, 0), zeros)
    assert reached > nothing


def test_a_step_is_never_longer_than_is_said():
    logits, labels, mix = drawn(count=1000, scale=100.0)
    for z in logits:
        z[:, 0] += 500
    weights, bias = doubles(0.2, 0.9), torch.zeros(4).double()
    moved = Fit.of(logits, labels, mix, weights, bias).step(weights, bias, START)
    changed, shifted = (moved[0] - weights).abs() / weights, (moved[1] - bias).abs()
    longest = max(float(changed.max()) / MOST_CHANGED, float(shifted.max()) / MOST_MOVED)
    assert longest == pytest.approx(1)
