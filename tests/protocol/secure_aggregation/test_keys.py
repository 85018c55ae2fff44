"""Secrets of a sum, signatures, boxes."""

from dataclasses import replace

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fedapp.core.errors import ConfigError
from fedapp.protocol.secure_aggregation.context import SumContext
from fedapp.protocol.secure_aggregation.keys import (
    Signer,
    SumSecrets,
    fingerprint,
    is_signed,
    is_usable_key,
    pairwise_key,
    public,
    registered_fingerprint,
    seal,
    unseal,
)
from fedapp.protocol.secure_aggregation.simulated_keys import (
    simulated_agreed,
    simulated_secret,
    simulated_signer,
)

CONTEXT = SumContext("name", "run", "e", 2, 1)
OPENSSH, PKCS8 = serialization.PrivateFormat.OpenSSH, serialization.PrivateFormat.PKCS8
GOOD = {
    "P-384": ec.generate_private_key(ec.SECP384R1()),
    "P-256": ec.generate_private_key(ec.SECP256R1()),
    "Ed25519": ed25519.Ed25519PrivateKey.generate(),
}


def written(key, form=OPENSSH, word=None) -> bytes:
    lock = serialization.BestAvailableEncryption(word) if word else serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, form, lock)


def registered(key) -> bytes:
    return key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )


# --- the registered key ---------------------------------------------------------------------------


@pytest.mark.parametrize("form", [OPENSSH, PKCS8])
@pytest.mark.parametrize("kind", GOOD)
def test_a_site_signs_with_the_key_that_it_is_registered_by(kind, form):
    signer = Signer.from_file(written(GOOD[kind], form))
    assert fingerprint(signer.public) == registered_fingerprint(registered(GOOD[kind]) + b" a@b\n")
    signature = bytes.fromhex(signer.sign(b"text"))
    assert is_signed(signer.public, signature, b"text")
    assert not is_signed(signer.public, signature, b"texu")
    assert not is_signed(signer.public, signature[:-1] + bytes([signature[-1] ^ 1]), b"text")
    for other in GOOD.keys() - {kind}:
        assert not is_signed(Signer(GOOD[other]).public, signature, b"text")


@pytest.mark.parametrize("text", [
    b"", b"-----BEGIN OPENSSH PRIVATE KEY-----\n", registered(GOOD["P-384"]),
    written(ec.generate_private_key(ec.SECP521R1())),
    written(rsa.generate_private_key(65537, 2048), PKCS8),
    written(GOOD["P-384"], PKCS8, b"word"),
])  # fmt: skip
def test_another_kind_of_key_is_refused_in_one_line(text):
    with pytest.raises(ConfigError, match=r"must be EC .* or Ed25519.*DEPLOY") as error:
        Signer.from_file(text)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", [
    b"", b"ssh-ed25519 AAAA", registered(ec.generate_private_key(ec.SECP521R1())),
    registered(rsa.generate_private_key(65537, 2048)),
])  # fmt: skip
def test_another_kind_of_registered_key_is_refused(text):
    with pytest.raises(ConfigError, match=r"must be EC .* or Ed25519"):
        registered_fingerprint(text)


@pytest.mark.parametrize("key", [b"", b"junk", ec.generate_private_key(ec.SECP521R1())])
def test_a_signature_under_what_is_no_known_key_is_none(key):
    if not isinstance(key, bytes):
        der, form = serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        key = key.public_key().public_bytes(der, form)
    assert not is_signed(key, b"", b"text")


# --- secrets --------------------------------------------------------------------------------------


def all_of(secrets: SumSecrets) -> list[bytes]:
    boxes = secrets.box.private_bytes_raw()
    parts = [secrets.coefficients(of, "c", 2) for of in ("own", "pairs")]
    return [boxes, secrets.own, secrets.pairs, *parts[0], *parts[1]]


def test_a_site_that_starts_again_has_the_same_secrets_and_other_sums_have_others():
    first = SumSecrets(bytes(32), CONTEXT, 3)
    assert all_of(SumSecrets(bytes(32), SumContext("name", "run", "e", 2, 1), 3)) == all_of(first)
    others = [
        SumSecrets(bytes(31) + b"\1", CONTEXT, 3),
        SumSecrets(bytes(32), CONTEXT, 4),
        SumSecrets(bytes(32), replace(CONTEXT, identity="run2"), 3),
        SumSecrets(bytes(32), replace(CONTEXT, experiment="f"), 3),
        SumSecrets(bytes(32), replace(CONTEXT, round=3), 3),
        SumSecrets(bytes(32), replace(CONTEXT, number=2), 3),
        SumSecrets(bytes(32), replace(CONTEXT, run="other"), 3),
        SumSecrets(bytes(32), replace(CONTEXT, attempt=2), 3),
    ]
    every = [one for secrets in (first, *others) for one in all_of(secrets)]
    assert len(set(every)) == len(every)
    assert first.coefficients("own", "c", 2) != first.coefficients("own", "d", 2)
    assert first.coefficients("own", "c", 3)[:2] == first.coefficients("own", "c", 2)


def test_parts_of_a_context_keep_their_borders():
    one, two = SumContext("n", "a", "bc", 1, 1), SumContext("n", "ab", "c", 1, 1)
    assert one.bind("x") != two.bind("x")
    assert one.bind("x", "y", 1) != one.bind("x", "y1")
    assert one.cohort([1, 23], "a") != one.cohort([12, 3], "a") != one.cohort([12, 3], "b")


def test_no_secret_is_shown():
    secret = b"\xab" * 32
    shown = repr(SumSecrets(secret, CONTEXT, 1)) + repr(Signer(GOOD["Ed25519"]))
    assert "ab" * 3 not in shown.replace("\\x", "") and "Private" not in shown


def test_simulated_keys_follow_from_seed_and_site():
    assert simulated_secret(1, 2) == simulated_secret(1, 2) != simulated_secret(1, 3)
    assert simulated_secret(1, 2) != simulated_secret(2, 2) and len(simulated_secret(0, 0)) == 32
    agreed = simulated_agreed(5, 3)
    assert agreed == {k: fingerprint(simulated_signer(5, k).public) for k in range(3)}
    assert len(set(agreed.values()) | set(simulated_agreed(6, 3).values())) == 6


# --- what two have in common ----------------------------------------------------------------------


def test_two_keys_agree_for_each_purpose():
    a, b = X25519PrivateKey.generate(), X25519PrivateKey.generate()
    assert pairwise_key(a, public(b), b"x") == pairwise_key(b, public(a), b"x")
    assert pairwise_key(a, public(b), b"x") != pairwise_key(a, public(b), b"y")


@pytest.mark.parametrize("low", [0, 1, 2**255 - 20])
def test_a_key_whose_secret_everybody_knows_is_refused(low):
    key = low.to_bytes(32, "little").hex()
    assert not is_usable_key(key) and is_usable_key(public(X25519PrivateKey.generate()))
    with pytest.raises(ValueError, match="shared key"):
        pairwise_key(X25519PrivateKey.generate(), key, b"x")


def test_a_box_opens_with_its_key_alone():
    box = seal(b"k" * 32, b"text")
    assert unseal(b"k" * 32, box) == b"text" and b"text".hex() not in box
    for key, changed in (b"l" * 32, box), (b"k" * 32, box[:-2] + "00"), (b"k" * 32, ""):
        with pytest.raises(ValueError, match="wrong box"):
            unseal(key, changed)
