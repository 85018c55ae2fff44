"""Prototypes, answers by distance, thresholds, pseudo-labels: by hand, degenerate, extremes."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedapp.learn.networks import build_model
from fedapp.learn.networks.mlp import MLPSettings
from fedapp.learn.predictors import Predictor, answer_of, by_prototypes
from fedapp.learn.prototypes import (
    Prototypes,
    class_means,
    completed,
    embedded,
    flexible_thresholds,
    learning_states,
    log_answers,
    mean_of,
    pseudo_label_loss,
    pseudo_labels,
    sharpened,
)

DISTANCES = ("euclidean", "squared", "mean_squared")
F = torch.tensor([[0.5, 0.5, 0.0, 0.0]])
TWO = Prototypes(torch.tensor([[0.0, 0, 0, 0], [2.0, 0, 0, 0]]), torch.tensor([True, True]))
NONE = torch.zeros(4)
"""Thresholds that every answer passes."""


def drawn(seed, sites=3, classes=4, numbers=5):
    stream = torch.Generator().manual_seed(seed)
    centres = torch.randn(sites, classes, numbers, generator=stream)
    known = torch.rand(sites, classes, generator=stream) < 0.7
    return Prototypes(centres * known[..., None], known)


def points(seed, count=6, numbers=5):
    return torch.randn(count, numbers, generator=torch.Generator().manual_seed(1000 + seed))


# --- prototypes -----------------------------------------------------------------------------------


def test_class_means_by_hand():
    embeddings = torch.tensor([[1.0, 2.0], [3.0, 6.0], [5.0, 5.0]])
    means = class_means(embeddings, torch.tensor([0, 0, 2]), 4)
    assert means.centres.tolist() == [[2, 4], [0, 0], [5, 5], [0, 0]]
    assert means.known.tolist() == [True, False, True, False]


def test_the_mean_is_over_those_that_have_the_class_by_hand():
    each = Prototypes(
        torch.tensor([[[1.0], [0.0], [0.0]], [[3.0], [7.0], [0.0]]]),
        torch.tensor([[True, False, False], [True, True, False]]),
    )
    mean = mean_of(each)
    assert mean.centres.tolist() == [[2], [7], [0]]
    assert mean.known.tolist() == [True, True, False]
    filled = completed(each, mean)
    assert filled.centres[..., 0].tolist() == [[1, 7, 0], [3, 7, 0]]
    assert filled.known.tolist() == [[True, True, False]] * 2


# --- answers --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("distance", "first"), [
    ("euclidean", 0.7056),
    ("squared", 0.8808),
    ("mean_squared", 0.6225),
])  # fmt: skip
def test_the_answer_by_hand(distance, first):
    """f = (.5, .5, 0, 0), c_1 = 0, c_2 = (2, 0, 0, 0)."""
    [answer] = log_answers(F, TWO, distance).exp()
    assert answer.tolist() == pytest.approx([first, 1 - first], abs=5e-5)


@pytest.mark.parametrize(("temperature", "first"), [(0.5, 0.8517), (0.1, 0.9998), (1.0, 0.7056)])
def test_sharpening_by_hand(temperature, first):
    [answer] = sharpened(log_answers(F, TWO, "euclidean").exp(), temperature)
    assert float(answer[0]) == pytest.approx(first, abs=5e-5)


def test_sharpening_hundreds_of_classes_at_a_low_temperature_underflows_nowhere():
    even = torch.full((1, 500), 1 / 500)
    assert torch.allclose(sharpened(even, 0.01), even)


@given(st.integers(0, 10**6), st.sampled_from(DISTANCES))
@settings(max_examples=40, deadline=None)
def test_one_vector_added_to_everything_and_the_order_of_sites_change_nothing(seed, distance):
    f, each, shift = points(seed), drawn(seed), points(seed + 1, 1)
    moved = Prototypes(each.centres + shift, each.known)
    order = torch.randperm(3, generator=torch.Generator().manual_seed(seed))
    other = Prototypes(each.centres[order], each.known[order])

    def targets(f, each):
        answers = log_answers(f, completed(each, mean_of(each)), distance).exp()
        return pseudo_labels(answers, torch.full((4,), 0.3), 0.5)[0]

    assert torch.allclose(targets(f, each), targets(f + shift, moved), atol=1e-4)
    assert torch.allclose(targets(f, each), targets(f, other), atol=1e-4)


@pytest.mark.parametrize("distance", DISTANCES)
def test_an_unknown_class_has_probability_zero_and_the_others_share_it(distance):
    three = Prototypes(torch.cat([TWO.centres, F]), torch.tensor([True, True, False]))
    with_, without = (log_answers(F, one, distance).exp() for one in (three, TWO))
    assert torch.equal(with_[:, :2], without) and with_[0, 2] == 0


def test_where_no_class_is_known_all_are_as_probable():
    nothing = Prototypes(torch.zeros(4, 4), torch.zeros(4, dtype=torch.bool))
    assert log_answers(F, nothing, "euclidean").exp().tolist() == [[0.25] * 4]


@pytest.mark.parametrize("distance", DISTANCES)
def test_on_top_of_a_prototype_the_gradient_is_finite(distance):
    f = torch.zeros(1, 4, requires_grad=True)
    log_answers(f, TWO, distance)[0, 1].backward()
    assert f.grad.isfinite().all()


# --- targets and thresholds -----------------------------------------------------------------------


def test_only_answers_that_pass_their_class_are_averaged_by_hand():
    answers = torch.tensor([
        [[0.8, 0.2], [0.3, 0.7]],
        [[0.4, 0.6], [0.45, 0.55]],
    ])  # fmt: skip
    targets, counts = pseudo_labels(answers, torch.tensor([0.75, 0.7]), 1.0)
    assert counts.tolist() == [True, False]  # 0.7 is not above 0.7
    assert targets[0].tolist() == pytest.approx([0.8, 0.2])
    targets, counts = pseudo_labels(answers, torch.tensor([0.75, 0.5]), 1.0)
    assert counts.all()
    assert targets[0].tolist() == pytest.approx([0.6, 0.4])
    assert targets[1].tolist() == pytest.approx([0.375, 0.625])


def test_the_mean_is_sharpened_and_not_the_answers():
    """Squares of (0.6, 0.4): 36 : 16. Sharpened first, (.64, .04) and (.16, .36) make another."""
    answers = torch.tensor([[[0.8, 0.2]], [[0.4, 0.6]]])
    targets, _ = pseudo_labels(answers, torch.tensor([0.5, 0.5]), 0.5)
    assert targets[0].tolist() == pytest.approx([36 / 52, 16 / 52])


def test_the_loss_by_hand_and_what_does_not_count():
    log_own = torch.tensor([[0.5, 0.5], [0.25, 0.75]]).log()
    targets = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    both = pseudo_label_loss(log_own, targets, torch.tensor([True, True]))
    one = pseudo_label_loss(log_own, targets, torch.tensor([True, False]))
    assert float(both) == pytest.approx((0.6931 + 0.2877) / 2, abs=1e-4)
    assert float(one) == pytest.approx(0.6931 / 2, abs=1e-4)
    assert float(pseudo_label_loss(log_own[:0], targets[:0], torch.empty(0, dtype=torch.bool))) == 0


def test_a_class_that_nobody_knows_adds_nothing_to_the_loss_and_its_gradient():
    f = F.clone().requires_grad_()
    three = Prototypes(torch.cat([TWO.centres, F]), torch.tensor([True, True, False]))
    loss = pseudo_label_loss(
        log_answers(f, three, "euclidean"), torch.tensor([[0.7, 0.3, 0.0]]), torch.tensor([True])
    )
    loss.backward()
    assert loss.isfinite() and f.grad.isfinite().all()


@pytest.mark.parametrize(("sigma", "images", "wanted"), [
    ((30, 15, 6, 0), 100, (0.5633, 0.2816, 0.1127, 0)),  # 49 are not sure
    ((30, 15, 6, 0), 51, (0.92, 0.46, 0.184, 0)),  # all are
    ((0, 0, 0, 0), 100, (0, 0, 0, 0)),
    ((0, 0, 0, 0), 0, (0, 0, 0, 0)),
])  # fmt: skip
def test_thresholds_by_hand(sigma, images, wanted):
    found = flexible_thresholds(torch.tensor(sigma), images, 0.92)
    assert found.tolist() == pytest.approx(wanted, abs=5e-5)


def test_sure_answers_are_counted_by_class():
    answers = torch.tensor([[0.95, 0.05], [0.92, 0.08], [0.01, 0.99], [0.4, 0.6]])
    assert learning_states(answers, 0.92).tolist() == [1, 1]
    assert learning_states(answers, 0.0).tolist() == [2, 2]
    assert learning_states(answers[:0], 0.92).tolist() == [0, 0]


# --- answering by prototypes ----------------------------------------------------------------------


def network():
    return build_model(MLPSettings(hidden="6", dropout=0.5), (5,), 4)


def test_a_network_answers_by_prototypes_and_then_by_its_head_again():
    model, images = network(), points(1)
    head, names = model.head, list(model.state_dict())
    prototypes = mean_of(drawn(2, numbers=model.features))
    embeddings = embedded(model, images, lambda x: x)
    with by_prototypes(model, prototypes, "euclidean"):
        assert list(model.state_dict()) == names
        said = Predictor(model.state_dict(), distance="euclidean")
        answers = torch.softmax(model.eval()(images), 1)
    assert model.head is head
    assert torch.allclose(
        answers, log_answers(embeddings, prototypes, "euclidean").exp(), atol=1e-6
    )
    again = said.load_into(network())
    assert torch.equal(answer_of([(again, said)], images, lambda x: x), answers)


def test_after_an_error_the_head_is_back():
    model = network()
    head = model.head
    with pytest.raises(RuntimeError), by_prototypes(model, mean_of(drawn(2, numbers=6)), "squared"):
        raise RuntimeError
    assert model.head is head
