"""A coordinator's word on a run: what it binds, and every way in which it is none."""

import base64
import json
import subprocess
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from fedapp.core.errors import ConfigError
from fedapp.experiment.signed_runs import (
    MAX_TOKEN,
    RunStatement,
    fingerprint,
    private_key,
    public_key,
    read_statement,
    settings_digest,
    sign,
    verify,
)

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
OTHER = Ed25519PrivateKey.from_private_bytes(bytes(32))
WORD = RunStatement("study-1", "a" * 64, "b" * 64, "c" * 64, 1_800_000_000)


def line(key):
    """A public key as OpenSSH writes it."""
    form = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    return key.public_key().public_bytes(*form).decode()


def packed(content):
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


def test_a_word_comes_back_with_who_signed_it():
    token = sign(WORD, KEY)
    assert verify(token, [line(OTHER), line(KEY)]) == (WORD, fingerprint(KEY.public_key()))
    assert read_statement(token) == WORD and token.isprintable() and len(token) < MAX_TOKEN
    assert set(token) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.")


@pytest.mark.parametrize("keys", [[], [line(OTHER)]])
def test_another_key_is_no_help(keys):
    with pytest.raises(ConfigError, match="none of the keys"):
        verify(sign(WORD, KEY), keys)


@given(st.data())
def test_no_letter_of_it_can_be_another(data):
    token = sign(WORD, KEY)
    at = data.draw(st.integers(0, len(token) - 1))
    letter = data.draw(st.sampled_from("AZaz09-_.+ =\0"))
    changed = token[:at] + letter + token[at + 1 :]
    try:
        assert verify(changed, [line(KEY)])[0] == WORD  # spare bits of the last digit say nothing
    except ConfigError:
        pass


def test_what_is_signed_for_another_purpose_is_no_word():
    text = json.dumps(WORD.__dict__).encode()
    with pytest.raises(ConfigError, match="none of the keys"):
        verify(f"{packed(text)}.{packed(KEY.sign(text))}", [line(KEY)])


@pytest.mark.parametrize("token", [
    "", 0, True, None, ".", "x", "a.b.c", "ä.ö", "x" * 9999, f"{packed(b'{}')}.{packed(b'')}",
])  # fmt: skip
def test_what_is_no_word_is_refused(token):
    with pytest.raises(ConfigError):
        verify(token, [line(KEY)])
    with pytest.raises(ConfigError):
        read_statement(token)


@pytest.mark.parametrize("change", [
    {"until": -1}, {"until": 2**40}, {"until": "1"}, {"run": "../up"}, {"code": "A" * 64},
    {"code": "a" * 16},
    {"settings": ""}, {"identity": "c" * 63}, {"more": 1},
])  # fmt: skip
def test_a_signed_word_that_says_what_no_word_says_is_refused(change):
    text = json.dumps({**WORD.__dict__, **change}).encode()
    signature = KEY.sign(b"um-pfssl: start this run\n" + text)
    with pytest.raises(ConfigError, match="sign it again"):
        verify(f"{packed(text)}.{packed(signature)}", [line(KEY)])


@pytest.mark.parametrize(("part", "value"), [
    ("name", "study-2"), ("code", "d" * 64), ("settings", "d" * 64), ("identity", "d" * 64),
])  # fmt: skip
def test_each_part_binds(part, value):
    run = {key: getattr(WORD, key) for key in ("run", "code", "settings", "identity")}
    field = "run" if part == "name" else part
    assert WORD.differs(**run) == ""
    assert part in WORD.differs(**{**run, field: value})


def test_when_it_is_over(monkeypatch):
    for now, over in ((WORD.until - 1, False), (WORD.until, False), (WORD.until + 1, True)):
        monkeypatch.setattr("time.time", lambda now=now: now)
        assert WORD.over is over
    assert replace(WORD, until=0).ends == "1970-01-01 00:00 UTC"


def test_settings_by_what_they_say_and_not_by_their_order():
    assert settings_digest({"a": 1, "b": 2}) == settings_digest({"b": 2, "a": 1})
    assert settings_digest({"a": 1}) == settings_digest({"a": 1, "runtime.resume": True})
    others = [{"a": 1.5}, {"a": "1"}, {"a": True}, {"b": 1}, {"a": 1, "b": ""}, {}]
    assert len({settings_digest(one) for one in others}) == len(others)


@pytest.mark.parametrize("passphrase", ["", "a secret"])
def test_keys_of_ssh_keygen(tmp_path, passphrase):
    path = tmp_path / "key"
    made = ["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-C", "me", "-f", str(path)]
    subprocess.run(made, check=True)
    content, text = path.read_bytes(), path.with_suffix(".pub").read_text()
    if passphrase:
        with pytest.raises(TypeError):
            private_key(content, None)
        with pytest.raises(ConfigError):
            private_key(content, b"wrong")
    key = private_key(content, passphrase.encode() or None)
    assert verify(sign(WORD, key), [text])[0] == WORD
    shown = subprocess.run(["ssh-keygen", "-lf", path], capture_output=True, text=True).stdout
    assert fingerprint(public_key(text)) in shown


def test_what_is_no_key_is_refused(tmp_path):
    for content in (b"", b"-----BEGIN OPENSSH PRIVATE KEY-----\n", b"-----BEGIN PRIVATE KEY-----"):
        with pytest.raises(ConfigError, match="no private key"):
            private_key(content, None)
