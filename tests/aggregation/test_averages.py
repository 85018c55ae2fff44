"""Averages against bad models: by hand, where they equal what we had, and at the extremes."""

import math
from functools import reduce

import pytest
import torch

from fedapp.aggregation import filtered, rule_of
from fedapp.aggregation import median as medians
from fedapp.aggregation.base import Member, Memory
from fedapp.aggregation.bounded import bounded_parts, capped
from fedapp.aggregation.changes import length, length_ratios, rough_length
from fedapp.aggregation.filtered import TOO_LONG_AGREEMENT, agreement, scalar_products
from fedapp.aggregation.median import median
from fedapp.learn.params import weighted_mean

RULES = ("bounded", "median")
TRAINED = {"weight"}


def model(weight, variance=1.0, count=0):
    return {
        "weight": torch.tensor([float(weight), 0.0]),
        "running_var": torch.tensor([float(variance)]),
        "count": torch.tensor(count),
    }


def members_of(models, weights=None):
    weights = [1.0] * len(models) if weights is None else weights
    return [
        Member(site, weight, lambda params=params: params)
        for site, (weight, params) in enumerate(zip(weights, models, strict=True))
    ]


def mean_of(name, models, own, weights=None):
    rule, members = rule_of(name), members_of(models, weights)
    total = reduce(rule.accumulate, members, rule.start(own))
    return rule.finish(total, own, TRAINED, Memory()).params


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ([1, 2, 100], [1, 2, 6]),  # 3 times 2
        ([1, 1, 9, 9], [1, 1, 3, 3]),  # of two middle ones the lower
        ([5], [5]),
    ],
)
def test_a_weight_is_at_most_three_times_the_median(weights, expected):
    assert capped(weights) == expected


@pytest.mark.parametrize(
    ("lengths", "before", "expected"),
    [
        ([1, 2, 60], 0, [0.5, 1, 30]),  # the median is 2
        ([1, 2, 60, 80], 0, [0.5, 1, 30, 40]),  # of two middle ones the lower
        ([0, 0, 0, 4], 0, [0, 0, 0, 1]),  # who did not move does not count
        ([1, 100, 100], 2, [0.5, 50, 50]),  # earlier rounds say what is usual
        ([1, 2, 3], 9, [0.5, 1, 1.5]),  # but only where it is less
        ([7, 7, 7], 0, [1, 1, 1]),
        ([1e30], 0, [1]),  # nobody to compare it with
        ([1e30], 1, [1e30]),
        ([math.inf, 1, 1], 0, [math.inf, 1, 1]),
        ([0, 0], 0, [0, 0]),
        ([], 5, []),
    ],
)
def test_how_many_times_as_long_as_usual(lengths, before, expected):
    assert length_ratios(lengths, before) == expected


@pytest.mark.parametrize("factor", [1e-3, 1, 1e6, 1e30, 3e38])
def test_the_rough_length_is_the_length_to_six_digits_however_long(factor):
    stream = torch.Generator().manual_seed(0)
    own = {name: torch.randn(50, 20, generator=stream) for name in "ab"}
    far = {n: t + (0.5 + torch.rand(50, 20, generator=stream)) * factor / 2 for n, t in own.items()}
    exact = length(far, own, "ab")
    assert rough_length(far, own, "ab") == pytest.approx(exact, rel=1e-6)
    assert rough_length(far, own, "") == 0 == rough_length(own, own, "ab")


# --- by hand --------------------------------------------------------------------------------------


def test_bounded_by_hand():
    """Changes of the weights 1, 2, 40: the last is cut to 2. Variances 3, 4, 0 from 1: to 1."""
    found = mean_of("bounded", [model(11, 3), model(8, 4), model(50, 0)], model(10, 1))
    assert found["weight"].tolist() == [pytest.approx((11 + 8 + 12) / 3), 0.0]
    assert found["running_var"].item() == pytest.approx((3 + 3 + 0) / 3)  # changes 2, 3, 1


def test_bounded_weighs_by_capped_weights():
    found = mean_of("bounded", [model(1), model(1), model(-1)], model(0), [1, 1, 100])
    assert found["weight"][0].item() == pytest.approx((1 + 1 - 3) / 5)


def test_the_length_is_over_all_trained_tensors_together():
    own = {"a": torch.zeros(1), "b": torch.zeros(1), "s": torch.zeros(1)}
    params = {"a": torch.tensor([3.0]), "b": torch.tensor([4.0]), "s": torch.tensor([9.0])}
    parts = bounded_parts(own, {"a", "b"})
    assert parts == [["a", "b"], ["s"]]
    assert [length(params, own, names) for names in parts] == [5.0, 9.0]


def test_median_by_hand():
    models = [model(1, 5), model(7, 2), model(3, 9)]
    found = mean_of("median", models, model(0), [1, 1, 3])  # weights do not count
    assert (found["weight"][0].item(), found["running_var"].item()) == (3, 5)
    even = mean_of("median", [*models, model(-10, 0)], model(0))
    assert (even["weight"][0].item(), even["running_var"].item()) == (2, 3.5)


def test_each_column_has_a_median_of_its_own():
    rows = torch.tensor([[1.0, 30.0], [2.0, 10.0], [3.0, 20.0]])
    assert median(rows).tolist() == [2.0, 20.0]
    assert median(rows[:2]).tolist() == [1.5, 20.0]
    assert median(torch.tensor([[math.nan], [4.0], [2.0]])).tolist() == [3.0]


def agreed(changes, before=None):
    """`agreement` of members whose changes are these rows."""
    rows = torch.tensor(changes, dtype=torch.float64)
    return agreement(rows @ rows.T, [0.0] * len(rows) if before is None else before)


def test_agreement_by_hand():
    """Cosines 0.6 (1, 2), -1 (1, 3), -0.6 (2, 3): at first the medians are -0.2, 0 and -0.8.

    Without the third, which agrees least, the other two agree by 0.6; it is judged by those two.
    """
    assert agreed([[1, 0], [0.6, 0.8], [-1, 0]]) == pytest.approx([0.6, 0.6, -0.8])
    found = agreed([[1, 0], [0.6, 0.8], [-1, 0]], [0.4, 0.2, -0.2])
    assert found == pytest.approx([0.8, 0.7, -0.9])  # half of what was known, and the same


def test_who_was_not_heard_does_not_judge():
    """The last two agree with each other, but each is known to have pointed away."""
    changes = [[1, 0], [1, 0], [-1, 0], [-1, 0], [-1, 0]]
    assert agreed(changes, [0, 0, -0.1, -0.1, -0.1]) == pytest.approx([1, 1, -1.05, -1.05, -1.05])
    assert agreed(changes) == pytest.approx([-1, -1, 1, 1, 1])  # with nothing known


def test_who_points_the_same_way_again_is_heard_again():
    found = [-0.6]
    for _ in range(2):
        found = agreed([[1, 0], [1, 0], [0.6, 0.8]], [1, 1, found[-1]])[2:]
    assert found == pytest.approx([0.75])  # -0.6 / 2 + 0.6 = 0.3, then 0.3 / 2 + 0.6


@pytest.mark.parametrize(
    ("last", "expected"),
    [(4.0, 1.0), (4.1, TOO_LONG_AGREEMENT), (1e38, TOO_LONG_AGREEMENT), (1e-30, 1)],
)
def test_a_change_of_more_than_four_median_lengths_counts_as_away(last, expected):
    assert agreed([[1, 0], [1, 0], [last, 0]]) == pytest.approx([1, 1, expected])


def test_a_short_change_makes_no_other_one_long():
    """Of 0.1 and 1 the longer counts; who is left out later still counts for the lengths."""
    assert agreed([[0.1, 0], [1, 0]]) == pytest.approx([1, 1])
    assert agreed([[0.1, 0], [-0.1, 0], [0.5, 0], [-0.5, 0]], [1, 0, 1, 0]) == pytest.approx(
        [1.5, -1, 1.5, -1]
    )


def test_agreement_at_the_extremes():
    assert agreed([[7, 0]], [0.5]) == [0.25]  # nobody to agree with
    assert agreed([[0, 0], [0, 0]]) == [0, 0]  # nobody has changed anything
    assert agreed([[1, 0], [1, 0]], [-0.4, -0.2]) == [-0.2, -0.1]  # nobody who can judge
    assert agreed([[1, 0], [0, 1]]) == [0, 0]


def directions(good, bad, seed):
    """Changes with a common part and as much again that is each one's own; bad ones are turned."""
    draws = torch.Generator().manual_seed(seed)
    common = torch.randn(200, generator=draws, dtype=torch.float64)
    own = torch.randn(good + bad, 200, generator=draws, dtype=torch.float64)
    signs = torch.tensor([1.0] * good + [-1.0] * bad, dtype=torch.float64)
    return signs[:, None] * (common + own)


@pytest.mark.parametrize("seed", range(5))
def test_a_hostile_minority_is_left_out_and_stays_out_where_it_is_the_majority(seed):
    first = directions(6, 4, seed)
    found = agreement(first @ first.T, [0.0] * 10)
    assert [a >= 0 for a in found] == [True] * 6 + [False] * 4
    later = directions(2, 4, seed + 100)
    found = agreement(later @ later.T, found[4:])
    assert [a >= 0 for a in found] == [True] * 2 + [False] * 4


def test_products_by_hand():
    own = {"a": torch.tensor([1.0, 1.0]), "b": torch.tensor(2.0), "s": torch.tensor(0.0)}
    models = [
        {"a": torch.tensor([2.0, 1.0]), "b": torch.tensor(4.0), "s": torch.tensor(9.0)},
        {"a": torch.tensor([4.0, 0.0]), "b": torch.tensor(1.0), "s": torch.tensor(9.0)},
    ]  # changes (1, 0, 2) and (3, -1, -1)
    found = scalar_products(members_of(models), own, {"a", "b"})
    assert found.tolist() == [[5, 1], [1, 11]]


def test_products_of_huge_changes_are_finite():
    models = [model(3e38), model(-3e38), model(1)]
    found = scalar_products(members_of(models), model(-3e38), TRAINED)
    assert all(map(math.isfinite, agreement(found, [0.0] * 3)))


def test_whole_numbers_are_the_servers():
    for rule in RULES:
        found = mean_of(rule, [model(1, count=5)], model(0, count=3))["count"]
        assert found.dtype == torch.int64 and found.item() == 3


# --- where they are what we had -------------------------------------------------------------------


def random_models(count):
    draws = torch.Generator().manual_seed(3)
    return [
        {
            "weight": torch.randn(5, 4, generator=draws),
            "running_var": torch.rand(4, generator=draws),
        }
        for _ in range(count)
    ]


@pytest.mark.parametrize("rule", RULES)
def test_one_member_and_equal_members_are_their_own_mean_bit_for_bit(rule):
    one, own = random_models(2)
    for models in ([one], [one] * 4):
        found = mean_of(rule, models, own)
        assert all(found[name].equal(one[name]) for name in one)


def test_changes_of_equal_length_are_averaged_as_ever():
    models, own = [model(3, 2), model(-3, 2), model(3, 2)], model(0, 1)
    mean = weighted_mean(((1.0, params) for params in models), own)
    found = mean_of("bounded", models, own)
    assert all(found[name].equal(mean[name]) for name in own)


def test_memory_for_one_tensor_at_a_time_changes_no_bit(monkeypatch):
    *models, own = random_models(6)
    whole = {rule: mean_of(rule, models, own, [1, 2, 3, 4, 5]) for rule in RULES}
    monkeypatch.setattr(medians, "MAX_HELD_BYTES", 1)
    monkeypatch.setattr(medians, "BLOCK_COORDINATES", 3)
    for rule, expected in whole.items():
        found = mean_of(rule, models, own, [1, 2, 3, 4, 5])
        assert all(found[name].equal(expected[name]) for name in own)


def test_memory_for_one_tensor_at_a_time_changes_no_product(monkeypatch):
    *models, own = random_models(6)
    whole = scalar_products(members_of(models), own, own)
    monkeypatch.setattr(medians, "MAX_HELD_BYTES", 1)
    monkeypatch.setattr(filtered, "BLOCK_COORDINATES", 3)
    assert scalar_products(members_of(models), own, own).allclose(whole, rtol=1e-12)


# --- in a run -------------------------------------------------------------------------------------


# --- the extremes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("huge", [1e6, 1e38, -3e38])
def test_a_huge_member_moves_bounded_by_its_share_of_the_median_length(huge):
    """Five members of equal weight, the good ones' changes 1 long: at most 1 / 5 away."""
    good = [model(1), model(1), model(-1), model(1)]
    with_it = mean_of("bounded", [*good, model(huge, abs(huge))], model(0))
    expected = (1 + 1 - 1 + 1 + math.copysign(1, huge)) / 5
    assert with_it["weight"][0].item() == pytest.approx(expected)
    assert with_it["running_var"].item() == 1  # the median change of the variance is none


def test_a_lie_about_its_images_moves_bounded_no_further():
    honest = [model(1)] * 4
    found = mean_of("bounded", [*honest, model(-1e6)], model(0), [1, 1, 1, 1, 2**31])
    assert found["weight"][0].item() == pytest.approx((4 - 3) / 7)


@pytest.mark.parametrize("huge", [1e6, 3e38, -3e38])
def test_an_outlier_leaves_the_median_between_the_good_ones(huge):
    good = [model(1, 2), model(2, 3), model(3, 4), model(4, 5)]
    for place in range(5):
        models = [*good[:place], model(huge, abs(huge)), *good[place:]]
        found = mean_of("median", models, model(0))
        assert 1 <= found["weight"][0].item() <= 4
        assert 2 <= found["running_var"].item() <= 5


def test_the_median_of_huge_numbers_is_finite():
    models = [model(3e38), model(3e38), model(-3e38), model(3e38)]
    assert mean_of("median", models, model(0))["weight"].isfinite().all()


@pytest.mark.parametrize("rule", RULES)
def test_variances_do_not_become_negative(rule):
    models = [model(0, v) for v in (0, 0, 1e-30, 3e38, 0)]
    for own in (model(0, 0), model(0, 3e38)):
        assert mean_of(rule, models, own)["running_var"].item() >= 0
