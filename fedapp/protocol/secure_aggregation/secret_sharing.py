"""Shamir's secret sharing over the integers modulo 2^255 - 19.

It is our own code for two reasons. Speed (docs/results/benchmarks.md): to share the two secrets of
each of 100 sites, and to reconstruct one of each from the same holders, takes 40 s with
pycryptodome 3.24, 19 s with shamirs 4, and 0.2 s here. And a site that is asked twice must give the
same shares again, so that the coefficients of the polynomial are derived, while libraries draw them
at random. Tests compare the results with shamirs.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import prod

PRIME = 2**255 - 19
SHARE_BYTES = 32
"""Size in bytes of a secret and of a share."""
WIDE_BYTES = SHARE_BYTES + 16
"""Uniform bytes from which an element of the field is made, so that its bias is below 2^-128."""


def field_element(wide: bytes) -> bytes:
    """Return an element of the field, as 32 bytes, from `WIDE_BYTES` uniform bytes."""
    return (int.from_bytes(wide) % PRIME).to_bytes(SHARE_BYTES)


def split_secret(
    secret: bytes, coefficients: Sequence[bytes], holders: Sequence[int]
) -> dict[int, bytes]:
    """Return each holder's share of a secret, which is an element of the field.

    coefficients: threshold - 1 uniform elements; that many shares reveal nothing about the secret.
    holders: numbers of the sites that get a share.
    """
    factors = [int.from_bytes(one) for one in (*reversed(coefficients), secret)]
    shares = {}
    for holder in holders:
        value = 0
        for factor in factors:  # reducing modulo PRIME in each step would take most of the time
            value = value * (holder + 1) + factor
        shares[holder] = (value % PRIME).to_bytes(SHARE_BYTES)
    return shares


def combine_shares(shares: Mapping[int, bytes]) -> bytes:
    """Reconstruct a secret from `threshold` shares by holder (Lagrange interpolation at 0)."""
    weights = _weights(tuple(shares))
    parts = zip(weights, map(int.from_bytes, shares.values()), strict=True)
    return (sum(weight * share for weight, share in parts) % PRIME).to_bytes(SHARE_BYTES)


@lru_cache(maxsize=64)
def _weights(holders: tuple[int, ...]) -> tuple[int, ...]:
    """Return the Lagrange weight of each holder; cached, as mostly the same open all secrets."""
    found = []
    for holder in holders:
        others = [other for other in holders if other != holder]
        over = prod(other + 1 for other in others)
        under = prod(other - holder for other in others)
        found.append(over * pow(under, -1, PRIME) % PRIME)
    return tuple(found)
