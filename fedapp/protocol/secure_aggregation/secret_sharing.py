"""Shamir's secret sharing over the integers modulo 2^255 - 19.

Own code, by measurement (docs/results/benchmarks.md): to share the two secrets of each of 100
sites, and put one of each together from the same holders, takes 40 s with pycryptodome 3.24, 19 s
with shamirs 4, and 0.2 s here. And a site that is asked twice must give the same shares again: the
polynomial's coefficients are derived, where libraries draw them. Tests compare with shamirs.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import prod

PRIME = 2**255 - 19
SHARE_BYTES = 32
"""Bytes of a secret and of a share."""
WIDE_BYTES = SHARE_BYTES + 16
"""Bytes that make an element of the field whose bias is below 2^-128."""


def field_element(wide: bytes) -> bytes:
    """Return an element of the field, as 32 bytes, from `WIDE_BYTES` uniform bytes."""
    return (int.from_bytes(wide) % PRIME).to_bytes(SHARE_BYTES)


def split_secret(
    secret: bytes, coefficients: Sequence[bytes], holders: Sequence[int]
) -> dict[int, bytes]:
    """Return each holder's share of a secret, an element of the field.

    coefficients: threshold - 1 uniform elements; that many shares tell nothing. holders: sites.
    """
    factors = [int.from_bytes(one) for one in (*reversed(coefficients), secret)]
    shares = {}
    for holder in holders:
        value = 0
        for factor in factors:  # not reduced in between: dividing would take most of the time
            value = value * (holder + 1) + factor
        shares[holder] = (value % PRIME).to_bytes(SHARE_BYTES)
    return shares


def combine_shares(shares: Mapping[int, bytes]) -> bytes:
    """Return the secret that `threshold` shares, by holder, belong to (Lagrange, at 0)."""
    weights = _weights(tuple(shares))
    parts = zip(weights, map(int.from_bytes, shares.values()), strict=True)
    return (sum(weight * share for weight, share in parts) % PRIME).to_bytes(SHARE_BYTES)


@lru_cache(maxsize=64)
def _weights(holders: tuple[int, ...]) -> tuple[int, ...]:
    """Return what each holder's share counts for: mostly the same open all secrets."""
    found = []
    for holder in holders:
        others = [other for other in holders if other != holder]
        over = prod(other + 1 for other in others)
        under = prod(other - holder for other in others)
        found.append(over * pow(under, -1, PRIME) % PRIME)
    return tuple(found)
