"""The masks that hide a site's words: its own, and one that it shares with each neighbour."""

from collections.abc import Mapping

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from fedapp.messages.masks.keys import agreed_key, derive
from fedapp.messages.masks.words import Words

_BLOCK = 2**15
"""Words that are masked at a time: they stay in the processor's cache."""
_ZEROS = bytes(8 * _BLOCK)


def add_own(total: Words, seed: bytes, cohort: str) -> None:
    """Put a site's own mask, in a sum of these members, onto words [D], in place."""
    _put(total, _own(seed, cohort), np.add)


def remove_own(total: Words, seed: bytes, cohort: str) -> None:
    """Undo `add_own`."""
    _put(total, _own(seed, cohort), np.subtract)


def add_pairs(
    total: Words, site: int, key: X25519PrivateKey, others: Mapping[int, str], cohort: str
) -> None:
    """Put the masks that a site shares with others onto words [D], in place.

    Of two sites the one of the lower number adds their mask, the other subtracts it. key: the
    site's for masks. others: the public ones of the others, by site.
    """
    for other, public in others.items():
        # With the numbers: a site that announces the key of another must not get its masks, which
        # would cancel the other's.
        pair = f"pair mask {cohort} {min(site, other)} {max(site, other)}"
        mask = agreed_key(key, public, pair.encode())
        _put(total, mask, np.add if site < other else np.subtract)


def _own(seed: bytes, cohort: str) -> bytes:
    return derive(seed, f"own mask {cohort}".encode())


def _put(total: Words, key: bytes, operation: np.ufunc) -> None:
    """Add, or subtract, the words of AES-256 in counter mode, from 0.

    key: 32 bytes, for one mask only.
    """
    cipher = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()
    space = bytearray(8 * min(_BLOCK, total.size))
    block = np.frombuffer(space, "<u8")
    for start in range(0, total.size, _BLOCK):
        part = total[start : start + _BLOCK]
        cipher.update_into(memoryview(_ZEROS)[: part.nbytes], space)
        operation(part, block[: part.size], out=part)
