"""Learning from bags: FedUL's numbers by hand, where it is cross entropy, and its recovery."""

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedapp.learn.networks import Network
from fedapp.learn.networks.resnet9 import ResNet9Settings
from fedapp.methods.bags._losses import (
    adversarial_loss,
    bag_loss,
    bag_posterior,
    prevailing_classes,
    proportion_loss,
    transition,
)

ETA = torch.tensor([[0.2, 0.5, 0.3]], dtype=torch.float64)
PRIOR = torch.tensor([0.5, 0.25, 0.25])
SHARES = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64)
PI = torch.tensor(
    [[0.6, 0.2, 0.2], [0.2, 0.6, 0.2], [0.2, 0.2, 0.6], [0.4, 0.4, 0.2]], dtype=torch.float64
)
Q = (0.30137, 0.39041, 0.20548, 0.10274)


# --- FedUL: by hand -------------------------------------------------------------------------------


def test_the_posterior_of_four_bags_by_hand():
    """Q~ = .352 .456 .240 .120, of sum 1.168."""
    matrix = transition(PI, SHARES, PRIOR)
    raw = (ETA @ matrix.T).flatten().tolist()
    assert raw == pytest.approx([0.352, 0.456, 0.240, 0.120])
    assert bag_posterior(ETA, matrix).flatten().tolist() == pytest.approx(Q, abs=5e-6)


def test_the_loss_is_the_mean_negative_logarithm_of_the_posterior():
    matrix = transition(PI, SHARES, PRIOR)
    logits = ETA.log().expand(2, 3)
    loss = bag_loss(logits, torch.tensor([1, 3]), matrix)
    assert loss.item() == pytest.approx(-(math.log(Q[1]) + math.log(Q[3])) / 2, abs=2e-5)


def test_the_answer_follows_from_the_posterior():
    """Theorem 4: eta ~ diag(pi) pinv(Pi) (Q / pibar)."""
    q = bag_posterior(ETA, transition(PI, SHARES, PRIOR)).flatten()
    raw = PRIOR * (torch.linalg.pinv(PI) @ (q / SHARES))
    assert (raw / raw.sum()).tolist() == pytest.approx([0.2, 0.5, 0.3], abs=1e-6)


def test_where_the_prior_is_that_of_the_bags_the_columns_sum_to_one():
    prior = SHARES @ PI
    assert prior.tolist() == pytest.approx([0.38, 0.34, 0.28])
    matrix = transition(PI, SHARES, prior)
    assert matrix.sum(0).tolist() == pytest.approx([1, 1, 1])
    # Then the normaliser is 1, and the loss the same with it and without.
    logits, bag = torch.randn(5, 3), torch.tensor([0, 1, 2, 3, 0])
    by_hand = -bag_posterior(torch.softmax(logits, 1), matrix)[range(5), bag].log().mean()
    assert bag_loss(logits, bag, matrix).item() == pytest.approx(by_hand.item(), abs=1e-6)


# --- FedUL: identities and extremes ---------------------------------------------------------------


@pytest.mark.parametrize("classes", [2, 3, 10, 43])
def test_bags_that_are_classes_are_labels_bit_for_bit(classes):
    """FU1: Pi = I, all even: the gradients are cross entropy's, so the training is."""
    even = torch.full((classes,), 1 / classes, dtype=torch.float64)
    matrix = transition(torch.eye(classes), even, even)
    logits, bag = torch.randn(50, classes), torch.randint(classes, (50,))
    one, other = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    loss, wanted = bag_loss(one, bag, matrix), F.cross_entropy(other, bag)
    loss.backward()
    wanted.backward()
    assert loss.item() == pytest.approx(wanted.item(), abs=1e-6)
    assert torch.equal(one.grad, other.grad)


def test_a_bag_that_the_site_lacks_gets_nothing():
    """Padded with zeros: no probability, no gradient, no NaN."""
    padded = torch.cat([PI, torch.zeros(2, 3)]), torch.cat([SHARES, torch.zeros(2)])
    matrix = transition(*padded, PRIOR)
    assert bag_posterior(ETA, matrix)[0, 4:].tolist() == [0, 0]
    bag = torch.tensor([0, 1, 2])
    gradients = []
    for known in (matrix, transition(PI, SHARES, PRIOR)):
        logits = torch.zeros(3, 3).requires_grad_()
        bag_loss(logits, bag, known).backward()
        gradients.append(logits.grad)
    assert gradients[0].isfinite().all()
    torch.testing.assert_close(*gradients)


def test_a_bag_of_one_class_rules_the_others_out():
    """A proportion of 0 is no NaN, for sure answers too."""
    matrix = transition(torch.eye(2), torch.tensor([0.5, 0.5]), torch.tensor([0.5, 0.5]))
    logits = torch.tensor([[100.0, -100.0]]).requires_grad_()
    loss = bag_loss(logits, torch.tensor([1]), matrix)
    loss.backward()
    assert loss.item() == pytest.approx(200)
    assert logits.grad.tolist() == [[1.0, -1.0]]


@pytest.mark.parametrize("double", [False, True])
def test_only_the_proper_loss_learns_probabilities(double):
    """FU5: two Gaussians at (+-1, 0), bags (.8, .2), (.2, .8), (.5, .5), a linear model.

    P(y = 1 | (1, 0)) is 1 / (1 + e^-2) = .881. Six seeds gave .870 to .897 with the proper loss, at
    least .997 with the double softmax, at the same accuracy as labels to .3 points; this is one
    seed, so nothing is by chance.
    """
    generator = torch.Generator().manual_seed(0)
    rows = torch.tensor([[0.8, 0.2], [0.2, 0.8], [0.5, 0.5]], dtype=torch.float64)
    bag = torch.arange(2000) % 3
    label = (torch.rand(2000, generator=generator) < rows[bag, 1]).long()
    x = torch.randn(2000, 2, generator=generator)
    x[:, 0] += 2.0 * label - 1
    exact = torch.stack([F.one_hot(label[bag == m], 2).double().mean(0) for m in range(3)])
    shares = torch.bincount(bag).double() / 2000
    matrix = transition(exact, shares, torch.tensor([0.5, 0.5]))

    def learned(loss: Callable[[Tensor], Tensor]) -> tuple[float, float]:
        torch.manual_seed(0)
        model = nn.Linear(2, 2)
        optimiser = torch.optim.Adam(model.parameters(), 0.1)
        for _ in range(500):
            optimiser.zero_grad()
            loss(model(x)).backward()
            optimiser.step()
        answer = torch.softmax(model(torch.tensor([[1.0, 0.0]])), 1)[0, 1].item()
        return answer, (model(x).argmax(1) == label).double().mean().item()

    answer, right = learned(lambda logits: bag_loss(logits, bag, matrix, double_softmax=double))
    by_labels, most = learned(lambda logits: F.cross_entropy(logits, label))
    assert right > most - 0.006 and 0.87 < by_labels < 0.91
    assert answer > 0.99 if double else 0.876 < answer < 0.926


@pytest.mark.parametrize(("bags", "floor"), [(10, 1.4612), (40, 2.7309)])
def test_the_double_softmax_never_gets_to_zero(bags, floor):
    """Where every image's Q is sure and right it is ln(e + M - 1) - 1."""
    even = torch.full((bags,), 1 / bags)
    matrix = transition(torch.eye(bags), even, even)
    logits = 100 * torch.eye(bags)
    assert bag_loss(logits, torch.arange(bags), matrix, True).item() == pytest.approx(
        floor, abs=1e-4
    )
    assert bag_loss(logits, torch.arange(bags), matrix).item() == 0


def test_an_answer_that_no_bag_allows_is_no_nan():
    """The model is sure of a class of which the site has nothing."""
    rows = torch.tensor([[0.8, 0.2, 0.0], [0.2, 0.8, 0.0]])
    matrix = transition(rows, torch.full((2,), 0.5), torch.full((3,), 1 / 3))
    logits = torch.tensor([[-200.0, -200.0, 200.0]]).requires_grad_()
    loss = bag_loss(logits, torch.tensor([0]), matrix, double_softmax=True)
    loss.backward()
    assert loss.isfinite() and logits.grad.isfinite().all()


def test_of_a_class_that_occurs_in_no_bag_nothing_is_learned():
    rows = torch.tensor([[0.8, 0.0, 0.2], [0.2, 0.0, 0.8]])
    matrix = transition(rows, torch.full((2,), 0.5), torch.full((3,), 1 / 3))
    logits = torch.randn(4, 3).requires_grad_()
    bag_loss(logits, torch.tensor([0, 1, 0, 1]), matrix).backward()
    assert logits.grad[:, 1].abs().max() < 1e-7


# --- FedPL: the label of a bag --------------------------------------------------------------------


def test_the_prevailing_class_by_hand():
    """The site's mix is .38 .34 .28; of the last bag .4 / .38 is below .4 / .34."""
    assert prevailing_classes(PI, SHARES).tolist() == [0, 1, 2, 1]


def test_at_an_even_mix_the_most_frequent_class_prevails():
    even = torch.stack([PI[0].roll(k) for k in range(3)])
    assert torch.equal(prevailing_classes(even, torch.full((3,), 1 / 3)), even.argmax(1))


def test_a_class_that_no_bag_holds_prevails_nowhere():
    """A rare class prevails where all of it lies, however many others lie there."""
    rows = torch.tensor([[0.99, 0.0, 0.01], [1.0, 0.0, 0.0]])
    assert prevailing_classes(rows, torch.tensor([0.5, 0.5])).tolist() == [2, 0]


# --- label proportions ----------------------------------------------------------------------------


def test_a_bag_of_one_image_is_cross_entropy():
    logits = torch.randn(1, 5)
    wanted = F.cross_entropy(logits, torch.tensor([3])).item()
    assert proportion_loss(logits, F.one_hot(torch.tensor(3), 5)).item() == pytest.approx(wanted)


def test_the_least_loss_is_the_entropy_of_the_proportions():
    pi = torch.tensor([0.5, 0.25, 0.25])
    least = proportion_loss(pi.log().expand(7, 3), pi).item()
    assert least == pytest.approx(1.5 * math.log(2))
    other = proportion_loss(torch.randn(7, 3), pi).item()
    assert other > least


def test_it_is_the_mean_that_counts():
    """Two images sure of either class are as good as two in doubt."""
    sure = torch.tensor([[50.0, -50.0], [-50.0, 50.0]])
    pi = torch.tensor([0.5, 0.5])
    assert proportion_loss(sure, pi).item() == pytest.approx(math.log(2))
    assert math.isfinite(proportion_loss(sure[:1], pi).item())


# --- the worst small change -----------------------------------------------------------------------


def linear() -> tuple[nn.Linear, Tensor]:
    model = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[3.0, 0.0], [0.0, 0.0]]))
    return model, torch.zeros(4, 2)


def test_the_worst_step_goes_where_the_answer_changes_most():
    """The model looks at the first number alone, so the step is (+-r, 0): KL by hand."""
    model, x = linear()
    found = adversarial_loss(model, x, 0.5, torch.ones(4, 2), tiny=1e-2)
    moved = torch.softmax(torch.tensor([3 * 0.5, 0.0]), 0)
    by_hand = [sum(0.5 * math.log(0.5 / p) for p in order) for order in (moved.tolist(),)]
    assert found.item() == pytest.approx(by_hand[0], rel=1e-3)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_worst_step_goes_the_way_that_it_was_begun(sign):
    """At (1, 0) the answer is sure: a step back changes it more than one ahead. KL by hand."""
    model, _ = linear()
    x = torch.tensor([[1.0, 0.0]])
    found = adversarial_loss(model, x, 0.5, torch.tensor([[sign, 1.0]]), tiny=1e-2)
    p, q = (torch.softmax(torch.tensor([3 * at, 0.0]), 0) for at in (1.0, 1.0 + 0.5 * sign))
    assert found.item() == pytest.approx((p * (p / q).log()).sum().item(), rel=1e-3)


def test_each_input_has_a_step_of_its_own_of_the_whole_length():
    """At 0 the answer changes fast, at 4 hardly: both go 0.5 ahead. KL by hand, its mean."""
    model, _ = linear()
    x = torch.tensor([[0.0, 0.0], [4.0, 0.0]])
    found = adversarial_loss(model, x, 0.5, torch.ones(2, 2), tiny=1e-2)
    p, q = (torch.softmax(3 * at[:, None] * torch.tensor([1.0, 0.0]), 1) for at in
            (x[:, 0], x[:, 0] + 0.5))  # fmt: skip
    assert found.item() == pytest.approx((p * (p / q).log()).sum(1).mean().item(), rel=1e-3)


def test_of_the_direction_that_it_begins_with_the_length_does_not_count():
    model, x = network(), torch.randn(8, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    start = torch.randn(x.shape, generator=torch.Generator().manual_seed(2))
    losses = [adversarial_loss(model, x, 1.0, length * start).item() for length in (1.0, 1e3)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)


def test_the_first_step_is_tiny_and_the_second_as_long_as_the_radius():
    model, x = linear()
    seen: list[Tensor] = []
    model.register_forward_pre_hook(lambda _, given: seen.append(given[0].detach() - x))
    adversarial_loss(model, x, 0.5, torch.ones(4, 2), tiny=1e-2)
    lengths = [step.norm(dim=1).tolist() for step in seen]
    assert lengths == [[0.0] * 4, pytest.approx([1e-2] * 4), pytest.approx([0.5] * 4)]


@pytest.fixture
def images() -> Tensor:
    return torch.randn(8, 1, 8, 8, generator=torch.Generator().manual_seed(1))


def network(dropout: float = 0.0) -> Network:
    torch.manual_seed(0)
    return ResNet9Settings(width=2, dropout=dropout).network((1, 8, 8), 3).train()


def test_no_step_no_difference(images):
    """With batch norm and dropout too: all passes answer alike."""
    start = torch.ones_like(images)
    assert adversarial_loss(network(dropout=0.5), images, 1e-9, start).item() < 1e-6
    assert adversarial_loss(network(dropout=0.5), images, 1.0, start).item() > 1e-6


def test_it_leaves_the_network_as_it_was(images):
    model = network(dropout=0.5)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    adversarial_loss(model, images, 1.0, torch.ones_like(images)).backward()
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())
    assert all(module.training for module in model.modules())
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    assert norms and all(norm.track_running_stats for norm in norms)


def steps(model: Network, x: Tensor, radius: float = 1.0) -> tuple[Tensor, float]:
    """Each image's step [n, pixels], float64, and the loss."""
    start = torch.randn(x.shape, generator=torch.Generator().manual_seed(2))
    seen: list[Tensor] = []
    model.register_forward_pre_hook(lambda _, given: seen.append(given[0].detach()))
    loss = adversarial_loss(model, x, radius, start.to(x)).item()
    return (seen[-1] - x).flatten(1).double(), loss


def test_the_first_step_is_long_enough_for_float32(images):
    """The direction that is found is that of float64, image by image."""
    found, exact = steps(network(), images)[0], steps(network().double(), images.double())[0]
    assert F.cosine_similarity(found, exact).min() > 0.99


def test_no_gradient_flows_into_the_answers_that_are_kept():
    """KL(p || q) by q's logits is q - p: with x = 0 the bias moves both, and has none by p."""
    model = nn.Linear(2, 2)
    found = adversarial_loss(model, torch.zeros(4, 2), 0.5, torch.ones(4, 2), tiny=1e-2)
    found.backward()
    p = torch.softmax(model.bias, 0)
    seen = []
    model.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    adversarial_loss(model, torch.zeros(4, 2), 0.5, torch.ones(4, 2), tiny=1e-2)
    q = torch.softmax(model(seen[-1]), 1).mean(0)
    torch.testing.assert_close(model.bias.grad, (q - p).detach(), atol=1e-6, rtol=1e-4)
