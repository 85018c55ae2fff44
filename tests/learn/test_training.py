"""The training loop: batches, a step by hand, one image, determinism, recalibration."""

from dataclasses import replace

import pytest
import torch

from fedapp.core.errors import ConfigError
from fedapp.core.rng import seeded, torch_stream
from fedapp.core.settings import TrainSettings
from fedapp.learn.losses import soft_target_loss
from fedapp.learn.networks.resnet9 import ResNet9
from fedapp.learn.optimisers import MAX_GRADIENT_NORM, clipped
from fedapp.learn.steps import Step, batches, paired
from fedapp.learn.training import descend, recalibrate, train
from fedapp.learn.uncertainty import SCORING_BATCH

CPU = torch.device("cpu")
SETTINGS = TrainSettings(batch_size=4, learning_rate=0.05, momentum=0.9)


def scale(images):
    return images.float() / 255


def small(dropout=0.0):
    with seeded(CPU, 0, "test model"):
        return ResNet9(1, 2, width=2, dropout=dropout)


def pictures(count):
    return torch.randint(
        0, 256, (count, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(7)
    )


def targets(count):
    return torch.eye(2)[torch.arange(count) % 2]


def run(model, count, epochs=1, settings=SETTINGS, labelled=0):
    with seeded(CPU, 0, "train"):
        shuffle, wanted = torch_stream(0, "shuffle"), targets(count)
        return train(model, pictures(count), wanted, labelled, scale, settings, epochs, shuffle)


@pytest.mark.parametrize("size", [2, 3, 4, 5, 8])
def test_around_every_multiple_no_image_is_lost_and_no_batch_is_small(size):
    for count in range(1, 4 * size + 2):
        cut = list(batches(torch.arange(count) * 7, size))
        lengths = [len(b) for b in cut]
        assert torch.cat(cut).tolist() == [7 * k for k in range(count)], count  # in their order
        assert max(lengths) - min(lengths) <= 1, count
        assert min(lengths) >= min(count, 2), count
        # At size 2 an odd number would leave one alone: three stay together.
        odd = size == 2 and count % 2 == 1 and count > 1
        assert max(lengths) <= (3 if odd else size), count
        assert len(cut) == -(-count // size) - odd, count


def joint_by_hand(network, order):
    return soft_target_loss(network(scale(pictures(5)[order])), targets(5)[order])


def paired_by_hand(network, order):
    """Eq. 1 of two labelled images and three others: mu = 2 / 5."""
    logits, wanted = network(scale(pictures(5)[order])), targets(5)[order]
    known, others = (soft_target_loss(logits[k], wanted[k]) for k in (slice(2), slice(2, None)))
    return 0.4 * known + 0.6 * others


@pytest.mark.parametrize(("how", "loss_of"), [
    ("joint", joint_by_hand), ("paired", paired_by_hand),
])  # fmt: skip
def test_one_step_is_sgd_by_hand(how, loss_of):
    model, twin = small(), small()
    loss = run(model, 5, settings=replace(SETTINGS, batch_size=5, batches=how), labelled=2)
    shuffle = torch_stream(0, "shuffle")
    if how == "paired":
        [pair] = paired(2, 5, 5, shuffle, CPU)
    order = torch.cat(pair) if how == "paired" else torch.randperm(5, generator=shuffle)
    by_hand = loss_of(twin.train(), order)
    by_hand.backward()
    assert loss == pytest.approx(by_hand.item())
    for trained, parameter in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(trained, parameter - 0.05 * parameter.grad)


PAIRED = replace(SETTINGS, batches="paired")


@pytest.mark.parametrize(
    ("slope", "moved"),
    [((300.0, 400.0), (1.2, 1.6)), ((3.0, 4.0), (0.3, 0.4)), ((0.0, 0.0), (0.0, 0.0))],
)
def test_a_long_gradient_is_shortened_and_an_ordinary_one_is_not(slope, moved):
    point = torch.nn.Linear(2, 1, bias=False)
    before, direction = point.weight.detach().clone(), torch.tensor([slope])
    settings = TrainSettings(learning_rate=0.1, momentum=0.0)
    descend(point, [Step(lambda network: (network.weight * direction).sum(), ())], settings)
    # (300, 400) is 500 long: shortened to (12, 16); a step of 0.1 times that
    torch.testing.assert_close(before - point.weight, torch.tensor([moved]))


def test_an_ordinary_gradient_keeps_its_last_bit_and_a_long_one_its_direction():
    ordinary = [torch.full((3,), 1 / 3), torch.tensor([-MAX_GRADIENT_NORM * 0.9])]
    assert all(map(torch.equal, clipped(ordinary), ordinary))
    one, other = clipped([torch.tensor([3e8]), torch.tensor([-4e8])])
    torch.testing.assert_close(torch.cat([one, other]), torch.tensor([12.0, -16.0]))


@pytest.mark.parametrize("size", [2, 3, 8])
@pytest.mark.parametrize("fewer", [1, 2, 5])
@pytest.mark.parametrize("turned", [False, True])
def test_the_larger_part_is_cut_as_alone_and_seen_once_and_the_smaller_evenly(size, fewer, turned):
    for more in range(fewer, 4 * size + 2):
        labelled, other = (more, fewer) if turned else (fewer, more)
        epoch = list(paired(labelled, labelled + other, size, torch_stream(more, "shuffle"), CPU))
        small, large = zip(*((p if not turned else p[::-1]) for p in epoch), strict=True)
        cut = [len(b) for b in batches(torch.arange(more), size)]
        assert [len(b) for b in large] == cut
        assert [len(b) for b in small] == [min(n, fewer) for n in cut]
        assert len(set(torch.cat(large).tolist())) == more
        seen = torch.bincount(torch.cat(small) - (labelled if turned else 0), minlength=fewer)
        assert seen.max() - seen.min() <= 1


@pytest.mark.parametrize("labelled", [0, 6])
def test_paired_with_one_kind_only_is_joint(labelled):
    one, two = small(), small()
    assert run(one, 6, 2, PAIRED, labelled) == run(two, 6, 2, SETTINGS, labelled)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


def test_no_epochs_and_no_images_change_nothing():
    model = small()
    before = {n: t.clone() for n, t in model.state_dict().items()}
    assert run(model, 4, epochs=0) == 0.0
    assert run(model, 0) == 0.0
    assert all(torch.equal(before[n], t) for n, t in model.state_dict().items())


def test_a_single_image_trains_with_frozen_batch_norm():
    model = small()
    weight, statistics = model.head.weight.clone(), model.stem.norm.running_mean.clone()
    run(model, 1)
    assert not torch.equal(weight, model.head.weight)
    assert torch.equal(statistics, model.stem.norm.running_mean)


def test_same_key_same_bits_and_loss_falls():
    one, two = small(dropout=0.5), small(dropout=0.5)
    first = run(one, 9)
    assert first == run(two, 9)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert run(one, 9, epochs=30) < first


def test_recalibrate_gives_the_statistics_of_the_images():
    model, images = small(), pictures(10)
    tracked = model.stem.norm.num_batches_tracked.clone()
    recalibrate(model, images, scale)
    activations = model.stem.conv(scale(images)).detach()
    norm = model.stem.norm
    torch.testing.assert_close(norm.running_mean, activations.mean((0, 2, 3)))
    torch.testing.assert_close(norm.running_var, activations.transpose(0, 1).flatten(1).var(1))
    assert torch.equal(norm.num_batches_tracked, tracked) and norm.momentum == 0.1
    assert not model.training


def test_recalibrate_leaves_a_model_with_too_few_images_alone():
    model = small()
    before = model.stem.norm.running_mean.clone()
    recalibrate(model, pictures(1), scale)
    assert torch.equal(before, model.stem.norm.running_mean)


def test_recalibrate_sees_no_batch_of_one_image(monkeypatch):
    """501 images, one more than are scored at once."""
    model, seen = small(), []
    monkeypatch.setattr(model, "forward", lambda x: seen.append(len(x)))
    recalibrate(model, pictures(SCORING_BATCH + 1), scale)
    assert seen == [251, 250]


# --- a batch in pieces ----------------------------------------------------------------------------


def least_squares(network, inputs, wanted):
    return (network(inputs) - wanted).square().mean()


def test_pieces_shares_by_hand():
    step = Step(least_squares, (torch.arange(7.0)[:, None], torch.zeros(7, 1)), mean=True)
    assert [(share, len(piece.batch[0])) for share, piece in step.pieces(3)] == [
        (3 / 7, 3), (2 / 7, 2), (2 / 7, 2)
    ]  # fmt: skip
    assert [(share, piece is step) for share, piece in step.pieces(7)] == [(1.0, True)]
    assert [len(piece.batch[0]) for _, piece in step.pieces(1)] == [3, 2, 2]  # batch norm needs two


def linear(settings):
    """One weight, 0 at first, after a step on y = 2 x, x = 0 to 4: the loss, and the weight."""
    model, x = torch.nn.Linear(1, 1, bias=False), torch.arange(5.0)[:, None]
    torch.nn.init.zeros_(model.weight)
    loss = descend(model, [Step(least_squares, (x, 2 * x), mean=True)], settings)
    return loss, model.weight.item()


def test_a_step_in_pieces_is_the_step():
    """By hand: the loss is the mean of (2 x)^2 = 24, its slope -24, shortened to 20."""
    settings = TrainSettings(learning_rate=0.01, momentum=0.0)
    whole = linear(settings)
    assert whole == pytest.approx((24.0, 0.2))
    for most in (1, 2, 3, 4, 5, 99):
        assert linear(replace(settings, at_once=most)) == pytest.approx(whole, rel=1e-6), most


def test_a_penalty_counts_once():
    def after(at_once):
        model, x = torch.nn.Linear(1, 1, bias=False), torch.ones(4, 1)
        torch.nn.init.ones_(model.weight)
        settings = TrainSettings(learning_rate=0.1, momentum=0.0, at_once=at_once)
        step = Step(least_squares, (x, x), mean=True)  # the loss is 0 already
        descend(model, [step], settings, lambda of: sum(p.square().sum() for p in of))
        return model.weight.item()

    assert after(0) == after(2) == pytest.approx(0.8)  # 1 - 0.1 x 2


def test_a_loss_that_is_no_mean_is_refused_in_pieces():
    model, x = torch.nn.Linear(1, 1), torch.ones(4, 1)
    with pytest.raises(ConfigError, match=r"training.at_once = 2: the method's loss is no mean"):
        descend(model, [Step(least_squares, (x, x))], TrainSettings(at_once=2))
