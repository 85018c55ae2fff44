"""A site's secrets for one sum, its signature, and what two sites' keys have in common.

All secrets of a sum are derived (HKDF-SHA256) from 32 bytes that only the site has and from the
context: a site that was killed has the same again, and none is used for two sums.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Self

from cryptography.exceptions import InvalidSignature, InvalidTag, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedapp.core.errors import ConfigError
from fedapp.protocol.secure_aggregation.context import SumContext
from fedapp.protocol.secure_aggregation.secret_sharing import WIDE_BYTES, field_element

_NONCE = bytes(12)
"""Each box has a key of its own, and one text: derived from the keys of both and the members."""


def derive(secret: bytes, purpose: bytes, size: int = 32) -> bytes:
    """Return `size` bytes that follow from a secret for one purpose (HKDF-SHA256, RFC 5869)."""
    return HKDF(hashes.SHA256(), size, salt=None, info=purpose).derive(secret)


@dataclass(frozen=True)
class SumSecrets:
    """What a site keeps to itself in one sum.

    root: the site's 32 bytes for this run. box: opens what others seal for it. own: seed of its own
    mask. pairs: seed of the key of the masks that it shares with others. Seeds are what is shared.
    """

    root: bytes = field(repr=False)
    context: SumContext
    site: int

    def _derived(self, purpose: str, *parts: object, size: int = 32) -> bytes:
        return derive(self.root, self.context.bind(purpose, self.site, *parts), size)

    @cached_property
    def box(self) -> X25519PrivateKey:
        """Key for boxes."""
        return X25519PrivateKey.from_private_bytes(self._derived("box"))

    @cached_property
    def mask(self) -> X25519PrivateKey:
        """Key for the masks that it shares with others."""
        return mask_key(self.pairs)

    @cached_property
    def announced(self) -> tuple[str, str, str]:
        """Box, mask and own of its announcement."""
        return public(self.box), public(self.mask), own_mask_digest(self.own)

    @cached_property
    def _common(self) -> dict[str, bytes]:
        """What its key for boxes has in common with others': for sealing and for opening."""
        return {}

    def box_key(self, other: str, purpose: bytes) -> bytes:
        """Return the key of a box; other: the public key for boxes of the other site."""
        if (common := self._common.get(other)) is None:
            common = self._common[other] = exchange(self.box, other)
        return derive(common, purpose)

    @cached_property
    def own(self) -> bytes:
        """Seed of its own mask, an element of the field."""
        return field_element(self._derived("own", size=WIDE_BYTES))

    @cached_property
    def pairs(self) -> bytes:
        """Seed of its key for masks, an element of the field."""
        return field_element(self._derived("pairs", size=WIDE_BYTES))

    def coefficients(self, purpose: str, cohort: str, count: int) -> Sequence[bytes]:
        """Return the coefficients of a polynomial; of other members it has others."""
        wide = hashlib.shake_256(self._derived("shares", purpose, cohort)).digest(
            WIDE_BYTES * count
        )
        return [field_element(wide[i : i + WIDE_BYTES]) for i in range(0, len(wide), WIDE_BYTES)]


def mask_key(seed: bytes) -> X25519PrivateKey:
    """Return the key for masks of this seed."""
    return X25519PrivateKey.from_private_bytes(derive(seed, b"um-pfssl mask key"))


def own_mask_digest(seed: bytes) -> str:
    """Return by what a seed of a site's own mask is known, in hex."""
    return hashlib.sha256(b"um-pfssl own mask" + seed).hexdigest()


def public(key: X25519PrivateKey) -> str:
    """Return the public key, in hex."""
    return key.public_key().public_bytes_raw().hex()


def pairwise_key(key: X25519PrivateKey, other: str, purpose: bytes) -> bytes:
    """Return the 32 bytes that this key and the other's public one have in common for a purpose.

    Raises ValueError on a public key that is not `is_usable_key`.
    """
    return derive(exchange(key, other), purpose)


def exchange(key: X25519PrivateKey, other: str) -> bytes:
    """Return what this key and the other's public one have in common, to derive from."""
    return key.exchange(X25519PublicKey.from_public_bytes(bytes.fromhex(other)))


@lru_cache(maxsize=2**14)
def is_usable_key(key: str) -> bool:
    """Return whether a public key is not of low order, whose secrets everybody knows."""
    try:
        pairwise_key(X25519PrivateKey.from_private_bytes(bytes(32)), key, b"")
    except ValueError:
        return False
    return True


def seal(key: bytes, text: bytes) -> str:
    """Return a box in hex (AES-256-GCM). key: of this box alone."""
    return AESGCM(key).encrypt(_NONCE, text, None).hex()


def unseal(key: bytes, box: str) -> bytes:
    """Return what is in a box. Raises ValueError if it was sealed with another key or changed."""
    try:
        return AESGCM(key).decrypt(_NONCE, bytes.fromhex(box), None)
    except InvalidTag as error:
        raise ValueError("wrong box") from error


PrivateKey = ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey
_PublicKey = ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey


@dataclass(frozen=True)
class Signer:
    """The key that a site is registered with: its SuperNode's."""

    key: PrivateKey = field(repr=False)

    @classmethod
    def from_file(cls, text: bytes) -> Self:
        """Return the signer of a private key file, OpenSSH's or PEM, without a passphrase.

        Raises ConfigError on what is neither EC (P-256, P-384) nor Ed25519.
        """
        ssh = b"OPENSSH PRIVATE KEY" in text
        load = serialization.load_ssh_private_key if ssh else serialization.load_pem_private_key
        try:
            key = load(text, password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            key = None
        if not isinstance(key, PrivateKey) or not _is_supported(key.public_key()):
            raise ConfigError(
                "the site's private key: must be EC (P-256, P-384) or Ed25519, in OpenSSH format "
                "or PEM, without a passphrase; make one as docs/DEPLOY.md says"
            )
        return cls(key)

    @cached_property
    def public(self) -> bytes:
        """The public key (DER, SubjectPublicKeyInfo)."""
        return _der(self.key.public_key())

    def sign(self, text: bytes) -> str:
        """Return the signature in hex: ECDSA with the curve's hash, or Ed25519."""
        if isinstance(self.key, ed25519.Ed25519PrivateKey):
            return self.key.sign(text).hex()
        return self.key.sign(text, _ecdsa(self.key.curve)).hex()


def fingerprint(public: bytes) -> str:
    """Return by what sites agree on a registered key: the SHA-256 of its DER form, in hex."""
    return hashlib.sha256(public).hexdigest()


def registered_fingerprint(text: bytes) -> str:
    """Return the fingerprint of a public key file in OpenSSH format, as sites are registered by.

    Raises ConfigError.
    """
    try:
        key = serialization.load_ssh_public_key(text)
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, _PublicKey) or not _is_supported(key):
        raise ConfigError(
            "a registered public key: must be EC (P-256, P-384) or Ed25519 in OpenSSH format; name "
            "the file SITE.pub that the site sent"
        )
    return fingerprint(_der(key))


def is_signed(public: bytes, signature: bytes, text: bytes) -> bool:
    """Return whether the owner of a public key (DER) signed this text."""
    try:
        key = serialization.load_der_public_key(public)
        if isinstance(key, ed25519.Ed25519PublicKey):
            key.verify(signature, text)
        elif isinstance(key, ec.EllipticCurvePublicKey) and _is_supported(key):
            key.verify(signature, text, _ecdsa(key.curve))
        else:
            return False
    except (InvalidSignature, ValueError, UnsupportedAlgorithm):
        return False
    return True


def _is_supported(key: _PublicKey) -> bool:
    curves = (ec.SECP256R1, ec.SECP384R1)
    return isinstance(key, ed25519.Ed25519PublicKey) or isinstance(key.curve, curves)


def _ecdsa(curve: ec.EllipticCurve) -> ec.ECDSA:
    return ec.ECDSA(hashes.SHA256() if isinstance(curve, ec.SECP256R1) else hashes.SHA384())


def _der(key: _PublicKey) -> bytes:
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_bytes(serialization.Encoding.DER, form)
