"""The key in a pool's folder, by which a site on the server's machine shows that it is there."""

import os
import secrets
from pathlib import Path

from fedapp.core.disk import write_atomic

_KEY = "key"


def make_key(root: Path) -> str:
    """Lay a fresh key into a pool's folder: who can name it can read the pool. Raises StoreError.

    Sites on the server's machine so prove that models need not be sent to them.
    """
    key = secrets.token_hex(16)
    write_atomic(root / _KEY, key.encode(), durable=False)
    return key


def read_key(root: Path) -> str:
    """Return the key of the pool in this folder; empty where there is none to be used."""
    try:
        key = (root / _KEY).read_text()
    except (OSError, UnicodeDecodeError):
        return ""
    return key if os.access(root, os.W_OK) else ""
