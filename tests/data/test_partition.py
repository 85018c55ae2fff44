import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedapp.core import rng
from fedapp.core.errors import DataError
from fedapp.core.settings import SplitSettings
from fedapp.data.split.manifest import TEST, TRAIN, VAL
from fedapp.data.split.partition import partition
from fedapp.data.split.shares import apportion, dirichlet

ALPHAS = st.sampled_from([1e-6, 1e-3, 0.1, 0.5, 1.0, 10.0, 1e6, 5e-324, 1e-300, 1e300])


@st.composite
def cases(draw):
    """Labels, settings and seed, with more sites than images, single classes and single images."""
    count = draw(st.integers(1, 120))
    classes = draw(st.integers(1, 8))
    labels = np.random.default_rng(draw(st.integers(0, 99))).integers(0, classes, count)
    split = SplitSettings(
        num_clients=draw(st.sampled_from([1, 2, 3, 10, 150])),
        dirichlet_alpha=draw(ALPHAS),
        label_alpha=draw(ALPHAS),
        label_share=draw(st.sampled_from([1e-9, 0.1, 0.5])),
        train_share=draw(st.sampled_from([0.7, 0.5, 1e-6])),
        val_share=draw(st.sampled_from([0.0, 0.1, 0.2])),
    )
    return labels, split, draw(st.integers(0, 2**40))


@given(cases())
@settings(deadline=None, max_examples=150)
def test_every_sample_is_dealt_once(case):
    labels, split, seed = case
    manifest = partition(labels, split, seed, "x")
    parts = [
        manifest.indices(site, part, visible)
        for site in range(split.num_clients)
        for part in (TRAIN, VAL, TEST)
        for visible in (True, False)
    ]
    dealt = np.concatenate(parts)
    assert sorted(dealt.tolist()) == list(range(len(labels)))  # none lost, none twice
    for site in range(split.num_clients):
        labelled = set(manifest.indices(site, TRAIN, True).tolist())
        unlabelled = set(manifest.indices(site, TRAIN, False).tolist())
        assert not labelled & unlabelled
        assert labelled | unlabelled == set(manifest.indices(site, TRAIN).tolist())
        assert (
            len(manifest.indices(site, VAL, False)) == len(manifest.indices(site, TEST, False)) == 0
        )


@given(cases())
@settings(deadline=None, max_examples=60)
def test_all_three_splits_share_one_p_c(case):
    """No false alarms: apportioning is within 1 of count * share, whatever the draw."""
    labels, split, seed = case
    manifest = partition(labels, split, seed, "x")
    for label in np.unique(labels):
        counts = [
            np.bincount(
                manifest.site[(labels == label) & (manifest.split == part)],
                minlength=split.num_clients,
            )
            for part in (TRAIN, VAL, TEST)
        ]
        for a in counts:
            for b in counts:
                if a.sum() and b.sum():
                    gap = np.abs(a / a.sum() - b / b.sum())
                    assert (gap < 1 / a.sum() + 1 / b.sum() + 1e-9).all()


def test_classes_are_dealt_by_different_shares():
    labels = np.repeat([0, 1], 5000)
    manifest = partition(labels, SplitSettings(num_clients=5, dirichlet_alpha=1.0), 0, "x")
    first, second = (np.bincount(manifest.site[labels == c], minlength=5) / 5000 for c in (0, 1))
    assert np.abs(first - second).max() > 0.05


def test_the_pool_is_cut_70_10_20():
    manifest = partition(np.zeros(1797, int), SplitSettings(), 3, "x")
    assert np.bincount(manifest.split).tolist() == [1258, 180, 359]


def test_classes_are_cut_at_random_not_in_order():
    """Of class 0's n = 10,000 in N = 20,000, training takes a hypergeometric share.

    Bound 6 sigma: false-alarm rate 2e-9 over seeds (the seed is fixed).
    """
    labels = np.repeat([0, 1], 10_000)
    manifest = partition(labels, SplitSettings(num_clients=2), 1, "x")
    taken = int(((labels == 0) & (manifest.split == TRAIN)).sum())
    n, total, part = 10_000, 20_000, 14_000
    sigma = math.sqrt(part * 0.5 * 0.5 * (total - part) / (total - 1))
    assert abs(taken - n * 0.7) < 6 * sigma
    assert taken != n * 0.7  # a stratified cut would hit this exactly (this seed does not)


def share_labelled(manifest):
    """Return each site's share of labelled training samples, [1000]."""
    train = manifest.split == TRAIN
    owned = np.bincount(manifest.site[train], minlength=1000)
    return np.bincount(manifest.site[train & manifest.visible], minlength=1000) / owned


def test_labelled_share_has_the_variance_of_dir_2():
    """p_s ~ Beta(0.5, 0.5): mean 0.5, variance 0.125.

    1000 sites of about 63 training images each. Bound 6 standard errors: false-alarm rate below
    1e-8 over seeds (the seed is fixed). Rounding adds at most 1 / (4 n^2) to the variance.
    """
    share = share_labelled(shared(0.5))
    # Var of the squared deviation of Beta(.5, .5): E[d^4] - E[d^2]^2 = 3/128 - 1/64 = 1/128.
    assert abs(((share - 0.5) ** 2).mean() - 0.125) < 6 * math.sqrt(1 / 128 / 1000) + 1e-3


def shared(label_share, seed=0, **changes):
    split = SplitSettings(num_clients=1000, dirichlet_alpha=1e6, label_share=label_share, **changes)
    return partition(np.zeros(90_000, int), split, seed, "x")


@pytest.mark.parametrize("wanted", [0.02, 0.1, 0.25, 0.5])
def test_the_mean_labelled_share_is_the_one_asked_for(wanted):
    """Sites' shares are 2 w Beta(0.5, 0.5): mean w, variance w^2 / 2.

    1000 sites of about 63 training images. Rounding adds at most 1 / (4 63^2) to the variance.
    Bound 6 standard errors: false-alarm rate 2e-9 a case over seeds (the seed is fixed).
    """
    share = share_labelled(shared(wanted))
    assert abs(share.mean() - wanted) < 6 * math.sqrt((wanted**2 / 2 + 1e-4) / 1000)


@pytest.mark.parametrize("seed", [0, 1])
def test_labelled_sets_are_nested(seed):
    """What is labelled at a smaller share is labelled at every larger one; who holds what stays."""
    steps = [shared(share, seed) for share in (1e-9, 0.05, 0.1, 0.3, 0.499, 0.5)]
    for less, more in pairwise(steps):
        assert np.array_equal(less.site, more.site) and np.array_equal(less.split, more.split)
        assert not (less.visible & ~more.visible).any()
    seen = [int(m.visible.sum()) for m in steps]
    assert seen == sorted(seen) and len(set(seen)) == len(seen)
    assert int((steps[0].visible & (steps[0].split == TRAIN)).sum()) == 0


def test_a_labelled_share_by_hand():
    """At a huge label_alpha every site's p_s is 1/2: a fifth is labelled at 0.2, within one."""
    manifest = shared(0.2, label_alpha=1e12)
    for site in range(20):
        count = len(manifest.indices(site, TRAIN))
        assert abs(len(manifest.indices(site, TRAIN, True)) - count / 5) < 1


@pytest.mark.parametrize("alpha", [0.1, 0.5, 1.0, 5.0, 100.0])
def test_dirichlet_has_the_right_moments(alpha):
    """Mean 1/K and variance (K - 1) / (K^2 (K alpha + 1)), K = 4, from 40,000 draws.

    Bounds 6 standard errors, the squares' from the sample itself: false-alarm rate about 2e-9.
    """
    draw = np.random.default_rng(7)
    x = np.array([dirichlet(draw, alpha, 4)[0] for _ in range(40_000)])
    variance = 3 / (16 * (4 * alpha + 1))
    assert abs(x.mean() - 0.25) < 6 * math.sqrt(variance / len(x))
    squares = (x - 0.25) ** 2
    assert abs(squares.mean() - variance) < 6 * squares.std() / math.sqrt(len(x))


@given(st.integers(0, 2**31), ALPHAS, st.integers(1, 300))
@settings(deadline=None)
def test_dirichlet_is_a_distribution_at_every_alpha(seed, alpha, size):
    shares = dirichlet(np.random.default_rng(seed), alpha, size)
    assert np.isfinite(shares).all() and (shares >= 0).all()
    assert shares.sum() == pytest.approx(1)


def test_dirichlet_extremes():
    assert dirichlet(np.random.default_rng(0), 1e-6, 5).max() == pytest.approx(1)
    assert dirichlet(np.random.default_rng(0), 1e9, 5) == pytest.approx([0.2] * 5, abs=1e-3)
    winners = {int(dirichlet(np.random.default_rng(s), 1e-6, 5).argmax()) for s in range(100)}
    assert winners == set(range(5))  # misses one with probability 5 * 0.8^100 = 1e-9


@given(st.integers(0, 2**31), st.integers(0, 10_000), st.integers(1, 50), ALPHAS)
@settings(deadline=None)
def test_apportioning_is_whole_and_within_one(seed, count, size, alpha):
    draw = np.random.default_rng(seed)
    shares = dirichlet(draw, alpha, size)
    counts = apportion(draw, count, shares)
    assert counts.shape == (size,) and counts.sum() == count and (counts >= 0).all()
    assert (np.abs(counts - count * shares) < 1 + 1e-6).all()


def test_apportioning_is_unbiased_for_small_shares():
    """10 images to shares of 0.99 and 10 x 0.001: largest remainders would never give any.

    Expectation 0.01 per small site, Bernoulli; 10 sites x 20,000 draws, bound 6 standard errors.
    """
    shares = np.array([0.001] * 10 + [0.99])
    draw = np.random.default_rng(1)
    mean = np.mean([apportion(draw, 10, shares)[:10].sum() for _ in range(20_000)])
    assert abs(mean - 0.1) < 6 * math.sqrt(0.1 * 0.9 / 20_000)


def golden():
    return partition(np.arange(200) % 7, SplitSettings(num_clients=6), 11, "golden")


def test_the_split_is_reproducible():
    """A change here changes every published split: raise the manifest's format number with it."""
    assert golden().digest() == "c3f7380b8f6c386e3761bac83a71f32b6399196462acddba0c85fbaea95aaea0"


def test_every_input_changes_the_split():
    labels = np.arange(200) % 7
    split = SplitSettings(num_clients=6)
    variants = [
        golden(),
        partition(labels, split, 12, "golden"),
        partition(labels, split, 11, "silver"),
        partition(np.roll(labels, 1), split, 11, "golden"),
        partition(labels, SplitSettings(num_clients=6, dirichlet_alpha=5.0), 11, "golden"),
        partition(labels, SplitSettings(num_clients=6, label_alpha=5.0), 11, "golden"),
        partition(labels, SplitSettings(num_clients=6, label_share=0.2), 11, "golden"),
        partition(labels, SplitSettings(num_clients=7), 11, "golden"),
    ]
    assert len({v.digest() for v in variants}) == len(variants)


def test_draws_are_keyed_by_site():
    """The labelled share of site 0 does not depend on how many sites come after it."""
    for clients in (1, 2, 50):
        labels = np.zeros(1000, int)
        manifest = partition(labels, SplitSettings(num_clients=clients), 4, "x")
        train = len(manifest.indices(0, TRAIN))
        expected = dirichlet(rng.numpy_stream(4, "label-share", 0), 0.5, 2)[0]
        assert abs(len(manifest.indices(0, TRAIN, True)) - train * expected) < 1


@pytest.mark.parametrize(
    "labels", [np.zeros(0, int), np.zeros((2, 2), int), np.array([0.5]), np.array([0, -2])]
)
def test_labels_that_are_none_are_refused(labels):
    with pytest.raises(DataError, match="x: label"):
        partition(labels, SplitSettings(), 0, "x")


def test_a_hundred_thousand_sites():
    manifest = partition(np.arange(500) % 10, SplitSettings(num_clients=100_000), 0, "x")
    assert len(manifest.site) == 500
