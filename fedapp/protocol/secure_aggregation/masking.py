"""The masks that hide a site's words: its own mask, and one with each neighbour (pairwise)."""

from collections.abc import Iterable, Mapping

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from fedapp.protocol.secure_aggregation.fixed_point import Words
from fedapp.protocol.secure_aggregation.keys import derive, pairwise_key

_BLOCK = 2**14
"""Words that get all masks before the next block does, so that they stay in the CPU's cache."""
_ZEROS = bytes(8 * _BLOCK)


def add_own(total: Words, seed: bytes, cohort: str) -> None:
    """Add a site's own mask in the sum of this cohort to words [D], in place."""
    _apply_masks(total, [(_own(seed, cohort), np.add)])


def remove_own(total: Words, seed: bytes, cohort: str) -> None:
    """Undo `add_own`."""
    _apply_masks(total, [(_own(seed, cohort), np.subtract)])


def add_pairs(
    total: Words, site: int, key: X25519PrivateKey, others: Mapping[int, str], named: str
) -> None:
    """Add a site's pairwise masks to words [D], in place.

    Of two sites the one with the lower number adds their common mask and the other subtracts it, so
    that they cancel in the sum. key: the site's private mask key. others: the other sites' public
    mask keys, in hex, by site. named: as of `SumContext.masks`.
    """

    def mask(other: int) -> bytes:
        # The sites' numbers are part of the purpose: otherwise a site that announces another site's
        # key would get the same masks, and could cancel that site's.
        pair = f"pair mask {named} {min(site, other)} {max(site, other)}"
        return pairwise_key(key, others[other], pair.encode())

    _apply_masks(
        total, ((mask(other), np.add if site < other else np.subtract) for other in others)
    )


def _own(seed: bytes, cohort: str) -> bytes:
    return derive(seed, f"own mask {cohort}".encode())


def _apply_masks(total: Words, masks: Iterable[tuple[bytes, np.ufunc]]) -> None:
    """Add masks to words, or subtract them, in place. A mask is AES-256 in counter mode, from 0.

    masks: for each mask a key of 32 bytes that is used for this mask only, and the operation.
    """
    streams = [
        (Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor(), operation)
        for key, operation in masks
    ]
    space = bytearray(8 * min(_BLOCK, total.size))
    for start in range(0, total.size, _BLOCK):
        part = total[start : start + _BLOCK]
        zeros, block = memoryview(_ZEROS)[: part.nbytes], np.frombuffer(space, "<u8", part.size)
        for stream, operation in streams:
            stream.update_into(zeros, space)
            operation(part, block, out=part)
