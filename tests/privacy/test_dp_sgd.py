"""Steps that protect single images: one step by hand, cut and noisy gradients, and secret draws."""

import hashlib
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedapp.core.errors import ConfigError
from fedapp.learn.networks.resnet9 import ResNet9
from fedapp.privacy.dp_sgd import DPSGD

IMAGES = torch.randn(24, 1, 8, 8, generator=torch.Generator().manual_seed(1))
LABELS = torch.arange(24) % 3


def network(norm: str = "group") -> ResNet9:
    torch.manual_seed(0)
    return ResNet9(1, 3, 2, 0.0, norm)


def steps(key: bytes = b"k", **changes) -> DPSGD:
    def secret(what: bytes) -> bytes:
        return hashlib.sha256(key + what).digest()

    given = {
        "count": 1, "rate": 1.0, "clip": 1e6, "multiplier": 0.0, "learning_rate": 0.1,
        "momentum": 0.0, "weight_decay": 0.0, "secret": secret,
    }  # fmt: skip
    return DPSGD(**{**given, **changes})


def moved(model: nn.Module, before: nn.Module) -> torch.Tensor:
    pairs = zip(model.parameters(), before.parameters(), strict=True)
    return torch.cat([(a - b).detach().flatten() for a, b in pairs])


def change(norm: str = "group", images=IMAGES, labels=LABELS, **changes) -> torch.Tensor:
    model = network(norm)
    steps(**changes).train(model, images, labels, lambda x: x)
    return moved(model, network(norm))


def test_without_cut_noise_and_sampling_it_is_a_plain_step_of_all_images():
    plain = network().train()
    F.cross_entropy(plain(IMAGES), LABELS).backward()
    expected = torch.cat([-0.1 * p.grad.flatten() for p in plain.parameters()])
    torch.testing.assert_close(change(), expected, rtol=1e-4, atol=1e-6)


def test_every_images_gradient_is_cut_to_c():
    """One image, C = 0.01: the step is eta C / (q n) = 0.001 long; 24 images at most as long."""
    one = change(images=IMAGES[:1], labels=LABELS[:1], clip=0.01)
    assert float(one.norm()) == pytest.approx(0.1 * 0.01, rel=1e-3)
    assert float(change(clip=0.01).norm()) <= 0.1 * 0.01 * (1 + 1e-3)


def test_an_image_more_changes_the_sum_by_c_at_most():
    """n stays what everybody knows: the sums are eta / (q n) apart."""
    whole = 24 * change(clip=0.05)
    less = 23 * change(images=IMAGES[:23], labels=LABELS[:23], clip=0.05)
    assert float((whole - less).norm()) <= 0.1 * 0.05 * (1 + 1e-3)


def test_an_image_more_does_not_change_what_dropout_does_to_the_others():
    """Everybody knows the seed of dropout: with the first image gone, all others drew otherwise.

    Their cut gradients then changed too, and the sum by up to 2 C for each of them.
    """
    sums = []
    for first in (0, 1):
        torch.manual_seed(0)
        model, before = (ResNet9(1, 3, 2, 0.5, "group") for _ in range(2))
        model.load_state_dict(before.state_dict())
        torch.manual_seed(1)
        images, labels = IMAGES[first:], LABELS[first:]
        steps(clip=0.05).train(model, images, labels, lambda x: x)
        sums.append(len(images) * moved(model, before))
        assert model.train().dropout.training  # elsewhere it acts as before
    assert float((sums[0] - sums[1]).norm()) <= 0.1 * 0.05 * (1 + 1e-3)


def test_the_noise_is_z_c_over_q_n_and_keyed():
    quiet, loud = change(clip=0.5), change(clip=0.5, multiplier=2.0)
    noise = loud - quiet
    sigma = 0.1 * 2.0 * 0.5 / 24
    # Standard error of a standard deviation; 5 sigma.
    assert abs(float(noise.std()) / sigma - 1) < 5 / math.sqrt(2 * len(noise))
    assert torch.equal(loud, change(clip=0.5, multiplier=2.0))
    assert not torch.equal(loud, change(clip=0.5, multiplier=2.0, key=b"j"))


def test_images_are_drawn_by_themselves_with_probability_q():
    """A step of q is as long as its images are many: of 24 some, each time others."""
    counts = []
    for k in range(60):
        model, seen = network(), []
        steps(key=b"%d" % k, rate=0.25).train(
            model, IMAGES, LABELS, lambda x, seen=seen: seen.append(len(x)) or x
        )
        counts.append(sum(seen))
    mean, deviation = 24 * 0.25, math.sqrt(24 * 0.25 * 0.75)
    assert abs(sum(counts) / 60 - mean) < 5 * deviation / math.sqrt(60)  # 5 sigma
    assert len(set(counts)) > 3


def test_a_step_without_any_image_is_noise_alone():
    rare = change(rate=1e-9, multiplier=1.0, clip=1e-9)
    assert 0 < float(rare.abs().max()) < 1.0


def test_every_step_draws_its_noise_anew():
    """No image is drawn: steps are noise alone, each of standard deviation eta z C / (q n) = 0.1.

    Sixteen independent ones are sqrt(16) times as wide as one; the same one again, 16 times.
    """
    noise = {"rate": 1e-9, "multiplier": 1.0, "clip": 24e-9}
    one, many = change(**noise), change(count=16, **noise)
    # Standard error of a standard deviation; 5 sigma: a false alarm in 1.7 million, each.
    close = 5 / math.sqrt(2 * len(one))
    assert abs(float(one.std()) / 0.1 - 1) < close
    assert abs(float(many.std()) / 0.4 - 1) < close
    last = many - change(count=15, **noise)
    alike = float(torch.corrcoef(torch.stack([one, last]))[0, 1])
    assert abs(alike) < 5 / math.sqrt(len(one))


def test_every_step_draws_its_images_anew():
    """Of 24 images with q = 1/2; the same ones twice in 12 steps: 66 2^-24, one in 250,000."""
    drawn: list[frozenset[float]] = []
    model = network()
    numbered = IMAGES.clone()
    numbered[:, 0, 0, 0] = torch.arange(24.0)
    steps(count=12, rate=0.5).train(
        model, numbered, LABELS, lambda x: drawn.append(frozenset(x[:, 0, 0, 0].tolist())) or x
    )
    assert len(drawn) == len(set(drawn)) == 12
    # An image in all or in none of 12 steps is no fault, 24 of them would be.
    assert len(frozenset.union(*drawn)) > 12 > len(frozenset.intersection(*drawn))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e30])
def test_an_image_by_which_numbers_overflow_adds_nothing_that_is_infinite(value):
    """The others' part of the step is as it is; that image's is C at most, and here 0."""
    spoilt = IMAGES.clone()
    spoilt[5] = value
    found = change(images=spoilt, clip=0.05)
    kept = torch.arange(24) != 5
    others = 23 / 24 * change(images=IMAGES[kept], labels=LABELS[kept], clip=0.05)
    assert bool(found.isfinite().all())
    assert float((found - others).norm()) <= 0.1 * 0.05 / 24 * (1 + 1e-3)


def test_a_network_that_mixes_images_is_refused_and_others_are_left_as_they_were():
    with pytest.raises(ConfigError, match=r"model\.norm=group"):
        change("batch")
    model = network()
    names = set(model.state_dict())
    steps().train(model, IMAGES, LABELS, lambda x: x)
    assert set(model.state_dict()) == names
    assert all(not hasattr(p, "grad_sample") for p in model.parameters())
    assert not any(m._forward_hooks or m._backward_hooks for m in model.modules())


# --- patients -------------------------------------------------------------------------------------


WHOSE = torch.arange(24) // 6  # four patients of six images each


def test_patients_of_one_image_each_are_images():
    """The same bits, whatever the patients are called: numbers need not follow each other."""
    ways = {"rate": 0.5, "clip": 0.05, "multiplier": 1.0, "count": 2}
    alone = 5 + 3 * torch.arange(24)
    model, other = network(), network()
    steps(**ways).train(model, IMAGES, LABELS, lambda x: x)
    steps(**ways).train(other, IMAGES, LABELS, lambda x: x, alone)
    assert torch.equal(moved(model, network()), moved(other, network()))


def by_patient(patients, images=IMAGES, labels=LABELS, **changes) -> torch.Tensor:
    model = network()
    steps(**changes).train(model, images, labels, lambda x: x, patients)
    return moved(model, network())


def test_without_a_cut_it_makes_no_difference_whose_images_are():
    torch.testing.assert_close(by_patient(WHOSE), change(), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("images", [20, 150])  # within one block, and in pieces
def test_a_patient_with_many_images_changes_the_sum_by_c_at_most(images):
    """In and out of a patient, beside ten others: eta C / (q n) apart at most, n being known."""
    draws = torch.Generator().manual_seed(images)
    many = torch.randn(images, 1, 8, 8, generator=draws)
    same = many[:1].expand_as(many)  # gradients that all point one way
    for its in (many, same, 1e30 * many):
        every, of = torch.cat([IMAGES, its]), torch.cat([WHOSE, torch.full((images,), 9)])
        labels = torch.cat([LABELS, torch.zeros(images, dtype=torch.int64)])
        there = len(every) * by_patient(of, every, labels, clip=0.05)
        gone = 24 * by_patient(WHOSE, clip=0.05)
        assert float((there - gone).norm()) <= 0.1 * 0.05 * (1 + 1e-3)


def test_a_cut_patient_is_the_cut_sum_of_its_gradients():
    """Alone, all six images: eta C / n long, in the direction of the plain gradient."""
    one = by_patient(WHOSE[:6], IMAGES[:6], LABELS[:6], clip=0.01)
    whole = by_patient(WHOSE[:6], IMAGES[:6], LABELS[:6])
    assert float(one.norm()) == pytest.approx(0.1 * 0.01 / 6, rel=1e-3)
    torch.testing.assert_close(one / one.norm(), whole / whole.norm(), rtol=1e-3, atol=2e-3)


def test_all_images_of_a_patient_take_part_or_none():
    """12 patients by chance 1/4: batches are whole patients; mean within 5 sigma, 1 in 1.7e6."""
    whose, counts = torch.arange(24) % 12, []
    for k in range(60):
        seen: list[torch.Tensor] = []
        steps(key=b"%d" % k, rate=0.25).train(
            network(), IMAGES, LABELS, lambda x, seen=seen: seen.append(x) or x, whose
        )
        taken = [int((x == IMAGES).flatten(1).all(1).nonzero()) for batch in seen for x in batch]
        of = whose[taken].bincount(minlength=12)
        assert set(of.tolist()) <= {0, 2}
        counts.append(int((of > 0).sum()))
    assert abs(sum(counts) / 60 - 3) < 5 * math.sqrt(12 * 0.25 * 0.75 / 60)
