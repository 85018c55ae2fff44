"""A site's secrets for one masked sum, its signatures, and key agreement between two sites.

All secrets of a sum are derived (HKDF-SHA256) from 32 bytes that only the site has and from the
sum's context. A site that was restarted therefore has the same secrets again, and no secret is used
for two sums.
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
"""A constant nonce is safe here: each box has a key of its own, derived from both sites' keys and
the members, that encrypts one text."""


def derive(secret: bytes, purpose: bytes, size: int = 32) -> bytes:
    """Derive `size` bytes from a secret for one purpose (HKDF-SHA256, RFC 5869)."""
    return HKDF(hashes.SHA256(), size, salt=None, info=purpose).derive(secret)


@dataclass(frozen=True)
class SumSecrets:
    """A site's secrets in one sum, derived from its 32 bytes for this run (`root`).

    box: opens what other sites seal for this one. own: seed of its own mask. pairs: seed of its
    mask key, from which the masks follow that it has with each other site. The two seeds are the
    secrets of which other sites hold shares.
    """

    root: bytes = field(repr=False)
    context: SumContext
    site: int

    def _derived(self, purpose: str, *parts: object, size: int = 32) -> bytes:
        return derive(self.root, self.context.bind(purpose, self.site, *parts), size)

    @cached_property
    def box(self) -> X25519PrivateKey:
        """Private key for boxes."""
        return X25519PrivateKey.from_private_bytes(self._derived("box"))

    @cached_property
    def mask(self) -> X25519PrivateKey:
        """Private key for the masks that the site has with other sites."""
        return mask_key(self.pairs)

    @cached_property
    def announced(self) -> tuple[str, str, str]:
        """The fields `box`, `mask` and `own` of the site's announcement."""
        return public(self.box), public(self.mask), own_mask_digest(self.own)

    @cached_property
    def _common(self) -> dict[str, bytes]:
        """Cache of key exchanges with other sites' box keys: one serves to seal and to open."""
        return {}

    def box_key(self, other: str, purpose: bytes) -> bytes:
        """Return the key of a box; other: the other site's public key for boxes, in hex."""
        if (common := self._common.get(other)) is None:
            common = self._common[other] = exchange(self.box, other)
        return derive(common, purpose)

    @cached_property
    def own(self) -> bytes:
        """Seed of the site's own mask, an element of the field of `secret_sharing`."""
        return field_element(self._derived("own", size=WIDE_BYTES))

    @cached_property
    def pairs(self) -> bytes:
        """Seed of the site's mask key, an element of the field of `secret_sharing`."""
        return field_element(self._derived("pairs", size=WIDE_BYTES))

    def coefficients(self, purpose: str, cohort: str, count: int) -> Sequence[bytes]:
        """Return the coefficients of a sharing polynomial; each cohort has other coefficients."""
        wide = hashlib.shake_256(self._derived("shares", purpose, cohort)).digest(
            WIDE_BYTES * count
        )
        return [field_element(wide[i : i + WIDE_BYTES]) for i in range(0, len(wide), WIDE_BYTES)]


def mask_key(seed: bytes) -> X25519PrivateKey:
    """Return the private mask key that belongs to a seed."""
    return X25519PrivateKey.from_private_bytes(derive(seed, b"um-pfssl mask key"))


def own_mask_digest(seed: bytes) -> str:
    """Return the digest by which the seed of a site's own mask is announced, in hex."""
    return hashlib.sha256(b"um-pfssl own mask" + seed).hexdigest()


def public(key: X25519PrivateKey) -> str:
    """Return the public key of a private one, in hex."""
    return key.public_key().public_bytes_raw().hex()


def pairwise_key(key: X25519PrivateKey, other: str, purpose: bytes) -> bytes:
    """Return the 32 bytes that two sites derive from their keys for one purpose (X25519, HKDF).

    Raises ValueError for a public key that does not pass `is_usable_key`.
    """
    return derive(exchange(key, other), purpose)


def exchange(key: X25519PrivateKey, other: str) -> bytes:
    """Return the X25519 shared secret of a private key and another site's public one (hex)."""
    return key.exchange(X25519PublicKey.from_public_bytes(bytes.fromhex(other)))


@lru_cache(maxsize=2**14)
def is_usable_key(key: str) -> bool:
    """Return whether a public key (hex) is safe: with one of low order the secret is public."""
    try:
        pairwise_key(X25519PrivateKey.from_private_bytes(bytes(32)), key, b"")
    except ValueError:
        return False
    return True


def seal(key: bytes, text: bytes) -> str:
    """Encrypt a text into a box, in hex (AES-256-GCM). key: 32 bytes, used for this box only."""
    return AESGCM(key).encrypt(_NONCE, text, None).hex()


def unseal(key: bytes, box: str) -> bytes:
    """Decrypt a box. Raises ValueError if it was sealed with another key or changed."""
    try:
        return AESGCM(key).decrypt(_NONCE, bytes.fromhex(box), None)
    except InvalidTag as error:
        raise ValueError("wrong box") from error


PrivateKey = ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey
_PublicKey = ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey


@dataclass(frozen=True)
class Signer:
    """The private key with which a site is registered: that of its SuperNode."""

    key: PrivateKey = field(repr=False)

    @classmethod
    def from_file(cls, text: bytes) -> Self:
        """Read a private key file in OpenSSH format or PEM, without a passphrase.

        Raises ConfigError unless it is an EC key (P-256, P-384) or an Ed25519 key.
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
    """Return the fingerprint of a registered public key: SHA-256 of its DER form, in hex."""
    return hashlib.sha256(public).hexdigest()


def registered_fingerprint(text: bytes) -> str:
    """Return the fingerprint of a public key file in OpenSSH format, with which a site registers.

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
    """Return whether a text was signed with the private key of this public key (DER)."""
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
