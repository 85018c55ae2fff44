"""Discriminant analysis from sums: by hand, beside scikit-learn's, and the same for any split."""

import weakref

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from fedapp.learn.params import schema_of
from fedapp.methods.closed_form._contents import RIDGES, Solution, grid_heads, grid_of, grid_schema
from fedapp.methods.closed_form._discriminant import (
    MIN_RIDGE,
    UNSEEN_CLASS_LOGIT,
    Classes,
    Guesses,
    Sums,
    classes_schema,
    guesses_schema,
    shares_of_all,
    sum_of,
    sums_schema,
)
from fedapp.methods.closed_form._rounded import (
    DIRECTIONS,
    FEW_IMAGES,
    MOST_DIRECTIONS,
    STEPS,
    factor_of,
    factor_schema,
    in_12_bits,
    leading,
    of_12_bits,
    scatter_of,
    schema_in_12_bits,
)

EMPTY = torch.empty(0, 2)


def drawn(count, size=5, classes=3, seed=0):
    """Features no longer than 1 around a mean for each class, and labels; every class occurs."""
    stream = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % classes
    means = torch.randn(classes, size, generator=stream)
    x = means[labels] + torch.randn(count, size, generator=stream)
    return x / x.norm(dim=1, keepdim=True).clamp_min(1), labels


def sums_of(x, labels, known, classes=3):
    """Sums where the class of only the first `known` images is known."""
    return Sums.of(x, labels.where(torch.arange(len(x)) < known, -1), classes)


def logits(head, x):
    weight, bias = head
    return x.double() @ weight.double().T + bias


# --- sums -----------------------------------------------------------------------------------------


def test_sums_by_hand():
    """(1, 2) and (3, -1), of classes 1 and 1 of three; (0, 2), of which the class is not known."""
    x = torch.tensor([[1.0, 2], [3, -1], [0, 2]])
    found = Sums.of(x, torch.tensor([1, 1, -1]), 3)
    assert found.counts.tolist() == [0, 2, 0] and found.images == 3
    assert found.by_class.tolist() == [[0, 0], [4, 1], [0, 0]]
    assert found.total.tolist() == [4, 3]
    assert found.second.tolist() == [[10, -1], [-1, 9]]
    # Less (4, 1) (4, 1)^T / 2 and (0, 2) (0, 2)^T.
    torch.testing.assert_close(found.unexplained, torch.tensor([[2, -3], [-3, 4.5]]).double())
    counts, sums = found.by_group
    assert counts.tolist() == [0, 2, 0, 1] and sums.tolist() == [[0, 0], [4, 1], [0, 0], [0, 2]]


def test_sums_travel_as_vectors_of_their_schema():
    """Matrices may travel as float16, which such sums would not survive."""
    x, labels = drawn(20)
    sums = sums_of(x, labels, 12)
    params = sums.to_params()
    assert schema_of(params) == sums_schema(3, 5)
    assert all(tensor.dim() == 1 for tensor in params.values())
    again = Sums.from_params(params)
    for name in ("counts", "by_class", "total", "second"):
        torch.testing.assert_close(getattr(again, name), getattr(sums, name), rtol=1e-6, atol=1e-6)
    assert again.images == 20 and torch.equal(again.counts, sums.counts)


def test_guesses_by_hand():
    """(1, 2) is of class 0 at a quarter, (3, -1) surely of class 1; nobody is of class 2."""
    found = Guesses.of(
        torch.tensor([[1.0, 2], [3, -1]]), torch.tensor([[0.25, 0.75, 0], [0, 1, 0]])
    )
    assert found.counts.tolist() == [0.25, 1.75, 0]
    assert found.by_class.tolist() == [[0.25, 0.5], [3.75, 0.5], [0, 0]]
    params = found.to_params()
    assert schema_of(params) == guesses_schema(3, 2)
    again = Guesses.from_params(params)
    assert torch.equal(again.counts, found.counts)
    assert torch.equal((again + found).by_class, 2 * found.by_class)


def test_guesses_that_are_sure_and_right_are_labels():
    x, labels = drawn(60)
    guesses = Guesses.of(x[20:], torch.nn.functional.one_hot(labels[20:]))
    first, known = (Classes.of(Sums.of(x[:n], labels[:n], 3)) for n in (20, 60))
    found = first.with_guesses(guesses)
    for name in ("counts", "means", "noise"):
        torch.testing.assert_close(getattr(found, name), getattr(known, name))
    torch.testing.assert_close(found.within, first.within, rtol=0, atol=0)


@pytest.mark.parametrize(("size", "classes"), [(2, 5), (4, 10), (5, 3)])
def test_where_all_classes_are_known_the_covariance_is_that_within_them(size, classes):
    """Also of more classes than features, whose means cannot tell the shares."""
    x, _ = drawn(90, size)
    sums = Sums.of(x, torch.arange(90) % classes, classes)
    torch.testing.assert_close(Classes.of(sums).within, sums.unexplained / 90)


def test_other_images_that_are_guessed_rightly_are_labelled_ones():
    x, labels = drawn(60)
    others = Sums.of(x[20:], labels[20:] * 0 - 1, 0)
    again = Sums.from_params(others.to_params())
    guesses = Guesses.of(x[20:], torch.nn.functional.one_hot(labels[20:]))
    found = Sums.of(x[:20], labels[:20], 3).with_others(again).with_guesses(guesses)
    for one, other in zip(
        Classes.of(found).head(0.1), Classes.of(Sums.of(x, labels, 3)).head(0.1), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    assert schema_of(others.to_params()) == sums_schema(0, 5)


def test_classes_travel_likewise():
    x, labels = drawn(20)
    found = Classes.of(sums_of(x, labels, 12))
    params = found.to_params()
    assert schema_of(params) == classes_schema(3, 5)
    assert all(tensor.dim() == 1 for tensor in params.values())
    again = Classes.from_params(params)
    torch.testing.assert_close(again.means, found.means, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(again.within, found.within, rtol=1e-6, atol=1e-7)
    assert again.images == found.images and torch.equal(again.counts, found.counts)


def test_true_sums_leave_no_negative_eigenvalue():
    for known in (0, 1, 9, 20):
        x, labels = drawn(20)
        assert torch.linalg.eigvalsh(sums_of(x, labels, known).unexplained).min() > -1e-12


@pytest.mark.parametrize("one", [
    lambda: Sums.of(*drawn(4), 3),
    lambda: Guesses(torch.ones(3), torch.ones(3, 5)),
], ids=["sums", "guesses"])  # fmt: skip
def test_a_sum_of_many_sites_holds_few_of_them_at_a_time(one):
    """The total, the next site's and their sum: a server of 10,000 sites does not hold them all."""
    alive, most = set(), 0

    def come():
        nonlocal most
        for number in range(50):
            made = one()
            alive.add(number)
            weakref.finalize(made, alive.discard, number)
            most = max(most, len(alive))
            yield made

    assert sum_of(come()).counts.sum() == 50 * one().counts.sum()
    assert most <= 3


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_the_federations_sums_are_the_pools(data):
    """Any images to any site, in any order; sites without labels, without images. 1e-12: rounding
    of 40 sums of numbers below 1 in float64; 1e-5 where every site's travel as float32."""
    x, labels = drawn(40)
    sites = data.draw(st.lists(st.integers(0, 4), min_size=40, max_size=40))
    known = data.draw(st.lists(st.booleans(), min_size=40, max_size=40))
    known[0] = True
    order = data.draw(st.permutations(range(5)))
    site, has = torch.tensor(sites), torch.tensor(known)
    labels = labels.where(has, -1)
    pooled = Sums.of(x, labels, 3)
    parts = [Sums.of(x[site == k], labels[site == k], 3) for k in order]
    sent = sum_of(Sums.from_params(part.to_params()) for part in parts)
    for found, atol in ((sum_of(parts), 1e-12), (sent, 1e-5)):
        assert torch.equal(found.counts, pooled.counts) and found.images == pooled.images == 40
        for name in ("by_class", "total", "second"):
            torch.testing.assert_close(
                getattr(found, name), getattr(pooled, name), rtol=0, atol=atol
            )
        mine, theirs = (Classes.of(sums).heads([1.0]) for sums in (found, pooled))
        torch.testing.assert_close(mine[0], theirs[0], rtol=1e3 * atol, atol=1e4 * atol)


# --- classes and heads ----------------------------------------------------------------------------


def test_two_classes_by_hand():
    """Class 0: (1, 0), (3, 0); class 1: (0, 1), (0, 5). Means (2, 0) and (0, 3), covariance within
    diag(2, 8) / 4 = diag(.5, 2). With ridge .5 P = diag(1, .4); m^T P x - m^T P m / 2 is
    2 x - 2 and 1.2 y - 1.8, less x + 0.6 y - 0.95 in both, that of the means' middle (1, 1.5). The
    noise of means of two images adds (1 x .5 + .4 x 2) / (2 x 2) = 0.325 to both."""
    x = torch.tensor([[1.0, 0], [3, 0], [0, 1], [0, 5]])
    found = Classes.of(Sums.of(x, torch.tensor([0, 0, 1, 1]), 2))
    assert found.means.tolist() == [[2, 0], [0, 3]] and found.images == 4
    torch.testing.assert_close(found.within, torch.tensor([[0.5, 0], [0, 2]]).double())
    weight, bias = found.head(0.5)
    torch.testing.assert_close(weight, torch.tensor([[1, -0.6], [-1, 0.6]]).double())
    torch.testing.assert_close(bias, torch.tensor([-0.725, -0.525]).double())
    # lambda times the mean eigenvalue, 1.25.
    [again], [biases] = found.heads([0.4])
    torch.testing.assert_close(again, weight)
    torch.testing.assert_close(biases, bias)


def test_it_is_scikit_learns_with_equal_priors():
    """As many images of each class: scikit-learn weighs covariances by the priors. Its logits
    differ by the same number in all classes."""
    x, labels = drawn(300)
    weight, bias = Classes.of(Sums.of(x, labels, 3)).head(1e-12)
    theirs = LinearDiscriminantAnalysis(solver="lsqr", priors=[1 / 3] * 3)
    theirs.fit(x.double().numpy(), labels.numpy())
    found = logits((weight, bias), x).numpy()
    wanted = x.double().numpy() @ theirs.coef_.T + theirs.intercept_
    centred = [each - each.mean(1, keepdims=True) for each in (found, wanted)]
    np.testing.assert_allclose(*centred, atol=1e-8)
    probabilities = torch.softmax(torch.tensor(found), 1).numpy()
    np.testing.assert_allclose(probabilities, theirs.predict_proba(x.double().numpy()), atol=1e-8)


def test_equal_priors_whatever_the_counts():
    """Gaussians of one shape: with the class means and covariance that it found, by the formula.
    Of the trace only what a mean of 20 and of 2 images differ in is left in the answers."""
    x, labels = drawn(60)
    keep = torch.cat([torch.arange(0, 60, 3), torch.tensor([1, 4, 2])])
    found = Classes.of(Sums.of(x[keep], labels[keep], 3))
    precision = torch.linalg.inv(found.within + 0.1 * torch.eye(5))
    apart = x.double()[:, None] - found.means
    wanted = -torch.einsum("ncd,de,nce->nc", apart, precision, apart) / 2
    wanted = wanted + (precision @ found.within).trace() / found.counts / 2
    mine = logits(found.head(0.1), x)
    torch.testing.assert_close(torch.softmax(mine, 1), torch.softmax(wanted, 1))


@pytest.mark.parametrize("ridge", [0.001, 0.3, 30.0])
def test_many_heads_are_each_the_one(ridge):
    x, labels = drawn(40)
    found = Classes.of(sums_of(x, labels, 25))
    weights, biases = found.heads([7.0, ridge])
    weight, bias = found.head(found.level(ridge))
    torch.testing.assert_close(weights[1], weight, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(biases[1], bias, rtol=1e-9, atol=1e-9)
    again = Classes.from_params(found.to_params()).head(found.level(ridge))
    torch.testing.assert_close(again[0], weight, rtol=1e-3, atol=1e-3)


def test_a_greater_ridge_tends_to_the_nearest_mean():
    """P tends to a multiple of the identity: logits are m^T x - |m|^2 / 2, up to a scale."""
    x, labels = drawn(40)
    found = Classes.of(sums_of(x, labels, 25))
    nearest = torch.cdist(x.double(), found.means).argmin(1)
    assert torch.equal(logits(found.head(1e6), x).argmax(1), nearest)


def test_images_of_classes_not_known_move_the_covariance_and_not_the_means():
    x, labels = drawn(40)
    alone, more = Classes.of(sums_of(x[:10], labels[:10], 10)), Classes.of(sums_of(x, labels, 10))
    torch.testing.assert_close(alone.means, more.means)
    assert not torch.allclose(alone.within, more.within, atol=1e-3)
    assert (alone.images, more.images) == (10, 40)


def test_of_other_mixes_negative_eigenvalues_are_cut():
    """Labelled: classes at (-1, 0) and (1, 0), equally frequent; unlabelled: class 0 alone. The
    variance of all, 0.25 + ..., is less than that between classes, 1."""
    known = torch.tensor([[-1.0, 0], [1, 0]])
    other = torch.tensor([[-1.0, 0.1], [-1, -0.1]] * 10)
    sums = sums_of(torch.cat([known, other]), torch.arange(22) % 2, 2, 2)
    found = Classes.of(sums)
    spread = sums.second / 22 - (sums.total / 22).outer(sums.total / 22)
    assert spread[0, 0] < 1  # what is left has an eigenvalue below 0
    assert torch.linalg.eigvalsh(found.within).min() > -1e-12
    assert found.spectrum[0].min() >= 0
    torch.testing.assert_close(
        found.spectrum[0], torch.tensor([0, 0.01 * 20 / 22], dtype=torch.float64)
    )
    assert all(tensor.isfinite().all() for tensor in found.heads([0.001, 1.0]))


def test_a_class_that_nobody_has_is_never_the_answer():
    x, labels = drawn(40)
    few = Classes.of(Sums.of(x, labels, 3))
    found = Classes.of(Sums.of(x, labels, 5))
    torch.testing.assert_close(found.within, few.within)
    for mine, theirs in ((found.head(0.1), few.head(0.1)), (
        [each[0] for each in found.heads([0.1])], [each[0] for each in few.heads([0.1])]
    )):  # fmt: skip
        assert (
            mine[1][3:].tolist() == [UNSEEN_CLASS_LOGIT, UNSEEN_CLASS_LOGIT]
            and not mine[0][3:].any()
        )
        torch.testing.assert_close(logits(mine, x)[:, :3], logits(theirs, x))
        assert not torch.softmax(logits(mine, x), 1)[:, 3:].any()


def test_not_even_where_all_images_of_a_class_are_alike():
    """Nothing lies between these classes' images: logits are as large as they can be."""
    x = torch.eye(4)[:3] * 0.9
    found = Classes.of(Sums.of(x, torch.arange(3), 4))
    assert found.level(30.0) == pytest.approx(MIN_RIDGE)
    for head in ([each[0] for each in found.heads([0.001])], found.head(found.level(0.001))):
        asked = torch.cat([x, torch.eye(4)[3:], torch.zeros(1, 4), -x])
        answers = logits(head, asked).argmax(1)
        assert answers[:3].tolist() == [0, 1, 2] and answers.max() < 3


def test_one_class_answers_that_class():
    x, _ = drawn(10)
    found = Classes.of(Sums.of(x, torch.ones(10, dtype=torch.int64), 3))
    for head in ([each[0] for each in found.heads([1.0])], found.head(1.0)):
        torch.testing.assert_close(
            torch.softmax(logits(head, x), 1), torch.tensor([[0.0, 1, 0]] * 10).double()
        )


def test_one_image_and_two():
    for count in (1, 2):
        x, labels = drawn(count)
        found = Classes.of(Sums.of(x, labels, 3))
        head = found.head(found.level(1.0))
        assert logits(head, x).argmax(1).tolist() == labels.tolist()


# --- a site's own images count more ---------------------------------------------------------------


@pytest.mark.parametrize("weight", [1, 3, 10])
def test_means_are_those_of_repeated_images(weight):
    x, labels = drawn(40)
    own, its = x[:7], labels[:7]
    found = Classes.of(sums_of(x, labels, 25)).with_own(own, its, float(weight))
    repeated = (
        torch.cat([x[:25], own.repeat(weight, 1)]),
        torch.cat([labels[:25], its.repeat(weight)]),
    )
    wanted = Classes.of(Sums.of(*repeated, 3))
    torch.testing.assert_close(found.means, wanted.means)
    torch.testing.assert_close(found.counts, wanted.counts)
    assert found.images == 40 + 7 * weight


def test_the_covariance_of_own_images_by_hand():
    """All: 2 images, means 0 and 2, within 1. Own: 3 of class 0, weight 2: its mean is
    (1 x 0 + 2 x 3) / 3 = 2, which the own image lies 1 from: (2 x 1 + 2 x 1^2) / 4."""
    one = torch.ones(1, 1, dtype=torch.float64)
    means = torch.tensor([[0.0], [2.0]]).double()
    ones = torch.ones(2, dtype=torch.float64)
    every = Classes(ones, means, one, 2.0, ones)
    found = every.with_own(torch.tensor([[3.0]]), torch.tensor([0]), 2.0)
    assert found.means.tolist() == [[2], [2]] and found.counts.tolist() == [3, 1]
    assert found.within.tolist() == [[1]] and found.images == 4


def test_the_noise_of_means_by_hand():
    """Class 0 has one image of all, and one own that counts twice: (1 + 2^2) / (1 + 2)^2. Class 1
    has four of all; class 2 one own; class 3 none."""
    x = torch.tensor([[1.0], [0], [0], [0], [0]])
    every = Classes.of(Sums.of(x, torch.tensor([0, 1, 1, 1, 1]), 4))
    assert every.noise.tolist() == [1, 0.25, 0, 0]
    found = every.with_own(torch.tensor([[3.0], [2.0]]), torch.tensor([0, 2]), 2.0)
    torch.testing.assert_close(found.noise, torch.tensor([5 / 9, 0.25, 1, 0]).double())


def test_a_class_of_few_labelled_images_is_the_answer_as_often_as_it_occurs():
    """40 numbers, W the identity and known, classes at a distance of 2, of which 4 and 400 images
    have labels; 2,000 draws. The mean of the logits of both, between the true means, is 0 within
    4.5 standard errors (false alarm 1 in 100,000); without the trace it is -10 (1/4 - 1/400)."""
    stream, size = torch.Generator().manual_seed(0), 40
    counts, one = torch.tensor([4.0, 400]).double(), torch.eye(size, dtype=torch.float64)
    apart = torch.zeros(2, size, dtype=torch.float64)
    apart[0, 0], apart[1, 0] = 1, -1
    seen, never = [], []
    for _ in range(2000):
        noise = torch.randn(2, size, generator=stream, dtype=torch.float64)
        means = apart + noise / counts.sqrt()[:, None]
        classes = Classes(counts, means, one, 404.0, 1 / counts, (one.diagonal(), one))
        [[weight], [bias]] = classes.heads([1.0])  # P = 1 / 2
        seen.append(float(bias[0] - bias[1]))
        never.append(float(((means[1] / 2) @ means[1] - (means[0] / 2) @ means[0]) / 2))
    error = torch.tensor(seen).std() / 2000**0.5
    assert abs(torch.tensor(seen).mean()) < 4.5 * error
    assert torch.tensor(never).mean() == pytest.approx(-10 * (1 / 4 - 1 / 400), rel=0.1)
    assert float(weight.norm()) > 0


def test_a_great_weight_tends_to_the_site_alone():
    """Where it has all classes; of one that it lacks it keeps everybody's mean."""
    x, labels = drawn(60)
    own, its = x[:12], labels[:12]
    alone = Classes.none(3, 5).with_own(own, its, 1.0)
    great = Classes.of(sums_of(x, labels, 40)).with_own(own, its, 1e9)
    torch.testing.assert_close(great.means, alone.means, rtol=0, atol=1e-6)
    torch.testing.assert_close(great.within, alone.within, rtol=0, atol=1e-6)
    for mine, theirs in zip(great.head(0.1), alone.head(0.1), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-5)


def test_alone_is_the_analysis_of_ones_own_labelled_images():
    x, labels = drawn(12)
    alone = Classes.none(3, 5).with_own(x, labels, 1.0)
    plain = Classes.of(Sums.of(x, labels, 3))
    torch.testing.assert_close(alone.means, plain.means)
    torch.testing.assert_close(alone.within, plain.within)


# --- the share of each class among all images -----------------------------------------------------


def test_shares_are_those_under_which_the_means_meet_the_mean_of_all():
    """Means 3 above and 1 below the mean of all: a quarter and three quarters."""
    apart, spread = torch.tensor([[3.0], [-1.0]]).double(), torch.ones(1, 1).double()
    assert shares_of_all(apart, spread).tolist() == pytest.approx([0.25, 0.75], abs=1e-6)


def test_a_share_is_never_negative_and_one_class_has_all():
    spread = torch.ones(1, 1).double()
    assert shares_of_all(torch.tensor([[1.0], [2.0]]).double(), spread).tolist() == [1, 0]
    assert shares_of_all(torch.tensor([[5.0]]).double(), spread).tolist() == [1]


def test_another_mix_among_the_labels_leaves_nothing_between_classes_in_the_covariance():
    """Every image lies on its class's point. Of the labels nine in ten are of the first class, of
    all images half: by the labels' shares most of the distance would be taken for spread within."""
    points = torch.tensor([[0.5, 0.0], [0.0, 0.5]])
    labels = torch.tensor([0] * 9 + [1])
    some = torch.cat([points[labels], points[1:].repeat(8, 1)])
    found = Classes.of(sums_of(some, torch.cat([labels, torch.ones(8).long()]), 10, 2))
    assert float(found.within.abs().max()) < 1e-4


# --- what travels rounded -------------------------------------------------------------------------


def test_the_factor_of_correlations_by_hand():
    """A correlation of 0.6: the factor's rows are (1, 0) and (0.6, 0.8)."""
    params = factor_of(torch.tensor([[4.0, 3.6], [3.6, 9]]).double(), 9.0)
    assert params["deviations"].tolist() == [2, 3]
    bits = int.from_bytes(bytes(params["factor"].tolist()), "little")
    steps = [(bits >> 12 * place & 4095) - STEPS for place in range(3)]
    assert [abs(step) for step in steps] == [STEPS, round(0.6 * STEPS), round(0.8 * STEPS)]
    between = 6 * 1228 / np.hypot(1228, 1638)  # of 2047 steps
    assert scatter_of(params).flatten().tolist() == pytest.approx([4, between, between, 9])
    # Eigenvalues 3 and -1: only the first counts, in the direction (1, 1).
    found = scatter_of(factor_of(2.0 - torch.eye(2).double()))
    assert found.flatten().tolist() == pytest.approx([1] * 4)


@pytest.mark.parametrize(("count", "size"), [(1, 1), (1, 5), (3, 5), (2, 4)])
@pytest.mark.parametrize("scale", [0.0, 1e-30, 1.0, 1e30])
def test_numbers_of_12_bits_are_off_by_half_a_step_of_their_row(count, size, scale):
    rows = scale * torch.randn(count, size).double()
    params = in_12_bits("x", rows)
    assert schema_of(params) == schema_in_12_bits("x", count, size)
    off = (of_12_bits("x", params, size) - rows).abs()
    assert bool((off <= 0.501 * rows.abs().amax(1, keepdim=True) / STEPS).all())


def test_the_few_rows_of_correlations_by_hand():
    """Two images on either side of their mean: all correlations are 1 or -1, and one row is left.

    A feature in which they do not differ has no part in it.
    """
    apart = torch.tensor([[0.3, -0.4, 0.0], [-0.3, 0.4, 0.0]]).double()
    params = factor_of(apart.T @ apart, 2.0, few=True)
    assert schema_of(params) == factor_schema(3, few=True)
    rows = of_12_bits("factor", params, 3)
    assert rows[:2].abs().max() < 1e-6 and rows[2].abs().tolist() == pytest.approx([1, 1, 0])
    assert rows[2, 0] == -rows[2, 1]
    torch.testing.assert_close(scatter_of(params), apart.T @ apart)


@pytest.mark.parametrize("count", [1, 2, 10, FEW_IMAGES])
def test_rows_without_images_are_empty_and_the_order_of_images_changes_nothing(count):
    x = drawn(count, 300)[0].double()
    apart = x - x.mean(0)
    other = apart[torch.randperm(count, generator=torch.Generator().manual_seed(1))]
    params, again = (factor_of(rows.T @ rows, count, few=True) for rows in (apart, other))
    assert int((of_12_bits("factor", params, 300).abs().amax(1) > 0).sum()) == count - 1
    off = of_12_bits("factor", params, 300).abs() - of_12_bits("factor", again, 300).abs()
    assert float(off.abs().max()) < 1e-3  # a row's sign is arbitrary


def alike(count, size, kinds):
    """Images of so many kinds; those of a kind are all alike, and of one class."""
    stream = torch.Generator().manual_seed(count)
    x = torch.rand(kinds, size, generator=stream) ** 3
    return (0.99999 * x / x.norm(dim=1, keepdim=True))[torch.arange(count) % kinds]


@pytest.mark.parametrize("few", [False, True])
@pytest.mark.parametrize(("x", "kinds"), [
    (drawn(200, 40)[0], 3), (drawn(20, 300)[0], 3), (drawn(FEW_IMAGES, 300)[0], 3),
    (alike(50, 30, 1), 1), (alike(50, 30, 2), 2), (alike(60, 90, 3), 3),
    (drawn(1)[0], 1), (drawn(2)[0], 2), (torch.eye(4)[[0, 0, 1, 1]], 2), (torch.zeros(3, 4), 1),
    (torch.empty(0, 5), 1), (drawn(9, 1)[0], 3),
    (drawn(40, 30)[0] * torch.logspace(0, -9, 30), 3),
], ids=range(13))  # fmt: skip
def test_rounded_sums_are_nearly_the_same_and_have_no_negative_eigenvalue(x, kinds, few):
    """Of many images, of few, of images that are all alike, of one, of none."""
    sums = sums_of(x, torch.arange(len(x)) % kinds, len(x) * 2 // 3, kinds)
    params = sums.to_params(rounded=True, few=few)
    assert schema_of(params) == sums_schema(kinds, x.shape[1], rounded=True, few=few)
    found, most = Sums.from_params(params), float(sums.second.trace()) / STEPS
    assert torch.equal(found.counts, sums.counts) and found.images == sums.images
    torch.testing.assert_close(found.by_class, sums.by_class, rtol=1e-6, atol=1e-6)
    wanted = sums.second.diagonal()
    torch.testing.assert_close(found.second.diagonal(), wanted, rtol=1e-6, atol=1e-7)
    assert float(torch.linalg.eigvalsh(found.second).min()) > -1e-12 * (1 + sums.images)
    assert float(torch.linalg.eigvalsh(found.unexplained).min()) >= -most / 2 - 1e-6
    off = found.second - sums.second
    assert float(torch.linalg.matrix_norm(off, 2)) <= most + 1e-4


@pytest.mark.parametrize("few", [False, True])
@pytest.mark.parametrize("ridge", [0.01, 1.0])
def test_heads_made_of_rounded_sums_answer_alike(ridge, few):
    """Of three sites, which round each by itself."""
    x, labels = drawn(300, 40)
    sites = [sums_of(*(part[k::3] for part in (x, labels)), 50) for k in range(3)]
    came = [Sums.from_params(site.to_params(rounded=True, few=few)) for site in sites]
    wanted, found = (
        logits(classes.head(classes.level(ridge)), x)
        for classes in (Classes.of(sum_of(sites)), Classes.of(sum_of(came)))
    )
    assert float((found - wanted).abs().max()) < 5e-3 * float(wanted.std())


def solved(classes, ridge=1.0):
    level = classes.level(ridge)
    weight, bias = (part.float() / 2 for part in classes.head(level))
    return Solution(classes, weight, bias, torch.ones(len(bias)) / len(bias), level, 2.0)


def travelled(whole):
    """A solution as it is with a site."""
    made = leading(whole.classes.spectrum)
    turned = of_12_bits(DIRECTIONS, made, whole.weight.shape[1])
    params = whole.along(turned).to_params()
    return Solution.from_params(params, made)


def pooled(size=12, classes=3):
    x, labels = drawn(90, size, seed=3)
    found = Classes.of(sums_of(x, labels.clamp_max(classes - 1), 60))
    return solved(found), drawn(15, size, seed=4)


@pytest.mark.parametrize("size", [1, 12, MOST_DIRECTIONS])
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("weight", [0.0, 3.0, 100.0])
def test_along_as_many_directions_as_features_a_sites_head_is_the_same(size, classes, weight):
    """But for float16, whether or not others have images of the third class."""
    whole, own = pooled(size, classes)
    x = drawn(50, size, seed=5)[0]
    wanted, found = (logits(one.head(*own, weight), x) for one in (whole, travelled(whole)))
    few = wanted.clamp_min(-100)
    torch.testing.assert_close(found.clamp_min(-100), few, rtol=0, atol=1e-2 * float(few.std()))


def test_own_images_move_a_head_along_the_directions_as_these_alone_would():
    """Features that are their coordinates, by hand, and the rest stays that of the common head."""
    whole, (x, labels) = pooled(4 * MOST_DIRECTIONS)
    came, beyond = travelled(whole), drawn(50, 4 * MOST_DIRECTIONS, seed=5)[0].double()
    turned = came.directions
    level, dimensions = whole.ridge, whole.classes.dimensions(whole.ridge)
    assert came.dimensions == pytest.approx(dimensions)
    few = whole.classes.along(turned)
    seen = beyond @ turned.T
    moves = [
        logits(one.head(level, dimensions), seen) / whole.temperature
        for one in (few, few.with_own(x.double() @ turned.T, labels, 10.0))
    ]
    found = logits(came.head(x, labels, 10.0), beyond) - logits(came.common, beyond)
    torch.testing.assert_close(found, moves[1] - moves[0], rtol=1e-2, atol=1e-2)
    across = beyond - seen @ turned  # nearly orthogonal to all directions
    off = (came.head(x, labels, 10.0)[0] - came.common[0]).double() @ across.T
    assert float(off.abs().max()) < 1e-2 * float(found.abs().max())


def test_without_own_images_it_is_the_common_head_to_the_bit():
    whole, (x, labels) = pooled(4 * MOST_DIRECTIONS)
    came = travelled(whole)
    for weight, known in ((0.0, len(x)), (9.0, 0)):
        found = came.head(x[:known], labels[:known], weight)
        assert all(torch.equal(a, b) for a, b in zip(found, came.common, strict=True))
    most = whole.weight.abs().amax(1, keepdim=True) / STEPS
    assert bool(((came.weight - whole.weight).abs() <= most).all())
    assert torch.equal(came.bias, whole.bias)
    tiny = logits(came.head(x, labels, 1e-7), x)
    torch.testing.assert_close(tiny, logits(came.common, x), rtol=0, atol=1e-3)
    for one, other in zip(whole.alone(x, labels), came.alone(x, labels), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_the_heads_of_a_grid_are_each_nearly_the_one():
    """In relation to its own norm, which falls as lambda grows; biases are exact."""
    heads = pooled()[0].classes.heads(RIDGES)
    params = grid_of(*heads, rounded=True)
    assert schema_of(params) == grid_schema(3, 12, rounded=True)
    weights, biases = grid_heads(params)
    off = (weights - heads[0]).flatten(1).norm(dim=1) / heads[0].flatten(1).norm(dim=1)
    assert float(off.max()) < 0.02 and torch.equal(biases, heads[1].float())
    none = grid_heads(grid_of(0 * heads[0], heads[1], rounded=True))[0]
    assert not bool(none.any())
