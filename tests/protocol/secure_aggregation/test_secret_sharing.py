"""Shamir's sharing: by hand, against a library, the extremes."""

import hashlib
import itertools

import numpy as np
import pytest
import shamirs

from fedapp.protocol.secure_aggregation.secret_sharing import (
    PRIME,
    SHARE_BYTES,
    WIDE_BYTES,
    combine_shares,
    field_element,
    split_secret,
)


def some(count: int, seed: int = 0) -> list[bytes]:
    rng = np.random.default_rng(seed)
    return [field_element(rng.bytes(WIDE_BYTES)) for _ in range(count)]


def number(value: int) -> bytes:
    return (value % PRIME).to_bytes(SHARE_BYTES)


def test_a_line_by_hand():
    """f(x) = 7 + 5 x, at the holders' numbers + 1."""
    shares = split_secret(number(7), [number(5)], [0, 1, 9])
    assert shares == {0: number(12), 1: number(17), 9: number(57)}
    for two in itertools.combinations(shares, 2):
        assert combine_shares({k: shares[k] for k in two}) == number(7)


def test_a_parabola_by_hand_with_negative_parts():
    shares = split_secret(number(-1), [number(2), number(-3)], [0, 1, 2])
    assert shares == {0: number(-2), 1: number(-9), 2: number(-22)}
    assert combine_shares(shares) == number(-1)


def test_a_threshold_of_one_is_the_secret_itself():
    assert split_secret(number(11), [], [4, 5]) == {4: number(11), 5: number(11)}
    assert combine_shares({5: number(11)}) == number(11)


@pytest.mark.parametrize(("threshold", "holders"), [(2, 3), (5, 8), (14, 20)])
def test_a_library_puts_our_shares_together_and_we_put_its(threshold, holders):
    secret, *coefficients = some(threshold)
    ours = split_secret(secret, coefficients, range(holders))
    chosen = list(ours)[-threshold:]
    theirs = [shamirs.share(k + 1, int.from_bytes(ours[k]), PRIME) for k in chosen]
    assert shamirs.interpolate(theirs, threshold=threshold) == int.from_bytes(secret)
    made = shamirs.shares(12345, quantity=holders, modulus=PRIME, threshold=threshold)
    given = {one.index - 1: number(one.value) for one in made[-threshold:]}
    assert combine_shares(given) == number(12345)


def test_every_choice_of_enough_holders_gives_the_secret_and_none_of_fewer():
    secret, *coefficients = some(3, seed=1)
    holders = [0, 3, 4, 1000, 2**31 - 1]
    shares = split_secret(secret, coefficients, holders)
    for count in range(1, 6):
        for chosen in itertools.permutations(holders, count):
            whole = combine_shares({k: shares[k] for k in chosen}) == secret
            assert whole == (count >= 3)


def test_fewer_shares_fit_every_secret():
    """Two shares of three: for any other secret there is a polynomial that gives them too."""
    secret, *coefficients = some(3, seed=2)
    known = split_secret(secret, coefficients, [0, 1])
    other = number(99)
    # Coefficients a, b with other + a x + b x^2 through both points, solved by hand.
    first, second = (int.from_bytes(known[k]) - 99 for k in (0, 1))
    b = (second - 2 * first) * pow(2, -1, PRIME)
    a = first - b
    assert split_secret(other, [number(a), number(b)], [0, 1]) == known


def test_elements_keep_to_the_field():
    assert field_element(bytes(WIDE_BYTES)) == bytes(SHARE_BYTES)
    assert field_element(b"\xff" * WIDE_BYTES) == number(2 ** (8 * WIDE_BYTES) - 1)
    wide = hashlib.shake_256(b"x").digest(WIDE_BYTES)
    assert int.from_bytes(field_element(wide)) == int.from_bytes(wide) % PRIME
