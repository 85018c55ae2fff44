"""Differences of which only the large ones are sent, and what they would cost on the way."""

from collections.abc import Collection

import torch

from fedapp.learn.params import Params

INDEX_BYTES, VALUE_BYTES = 4, 4
"""Of one number that is sent by its place, and of one that is sent in its turn."""


def applied(
    new: Params, base: Params, threshold: float, names: Collection[str]
) -> tuple[Params, int]:
    """Return `new` where it is further than `threshold` from `base`, else `base`; count the former.

    Of the tensors of these names; the others are those of `new`, and are not counted. threshold:
    0 or more; at 0 the result is `new`.
    """
    result, count = dict(new), 0
    for name in names:
        large = (new[name] - base[name]).abs() > threshold
        result[name] = torch.where(large, new[name], base[name])
        count += int(large.sum())
    return result, count


def sparse_bytes(numbers: int, of: int) -> int:
    """Return the bytes of so many numbers of a model of `of`: by their places, or all in turn.

    Whichever is less; both counts are 0 or more.
    """
    return min(numbers * (INDEX_BYTES + VALUE_BYTES), of * VALUE_BYTES)
