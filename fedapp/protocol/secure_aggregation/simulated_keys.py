"""Keys of simulated sites. They follow from the seed, so that everybody can compute them."""

import hashlib

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedapp.core.rng import key
from fedapp.protocol.secure_aggregation.keys import Signer, fingerprint


def simulated_secret(seed: int, site: int) -> bytes:
    """Return a site's 32 secret bytes."""
    return _bytes(seed, "masked sum", site)


def simulated_signer(seed: int, site: int) -> Signer:
    """Return the private key with which a site would be registered."""
    return Signer(Ed25519PrivateKey.from_private_bytes(_bytes(seed, "registered key", site)))


def simulated_agreed(seed: int, sites: int) -> dict[int, str]:
    """Return the fingerprints of the registered keys of sites 0, 1, ..."""
    return {site: fingerprint(simulated_signer(seed, site).public) for site in range(sites)}


def _bytes(seed: int, purpose: str, site: int) -> bytes:
    return hashlib.sha256(f"{key(seed, purpose, site)}".encode()).digest()
