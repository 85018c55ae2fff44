"""The key in a pool's folder: a site that can name it is on the server's machine."""

import os
import secrets
from pathlib import Path

from fedapp.core.disk import write_atomic

_KEY = "key"


def make_key(root: Path) -> str:
    """Write a new random key into a pool's folder and return it. Raises StoreError.

    A site that can name the key can read the pool, so that no models need to be sent to it.
    """
    key = secrets.token_hex(16)
    write_atomic(root / _KEY, key.encode(), durable=False)
    return key


def read_key(root: Path) -> str:
    """Return the key of the pool in this folder; empty if it cannot be read or written there."""
    try:
        key = (root / _KEY).read_text()
    except (OSError, UnicodeDecodeError):
        return ""
    return key if os.access(root, os.W_OK) else ""
