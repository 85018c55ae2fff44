"""Signed run statements, by which a site knows which coordinator started a run.

A statement names the run, its code, its settings and its identity, and until when a site may begin
the run. It is signed with an Ed25519 key, which the server need not have, and travels in Flower's
run config. The identity is drawn when the statement is signed. So whoever uses a statement again
starts the same run again: a site repeats no round that it has completed, and counts what leaves it
in the same privacy account.
"""

import base64
import binascii
import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from pydantic import Field, TypeAdapter, ValidationError

from fedapp.core.errors import ConfigError
from fedapp.core.untrusted_files import first_fault
from fedapp.experiment.preset_files import Scalar
from fedapp.experiment.run_folder import RUN_NAME_PATTERN
from fedapp.protocol.messages import CLOSED

SIGNED = "signed"
"""Key of the signed statement in Flower's run config."""
MAX_TOKEN = 2048
"""Longest signed statement, in characters; an honest one has a third of it."""
_PURPOSE = b"um-pfssl: start this run\n"
"""Prefix of the signed bytes, so that a signature for any other purpose is not valid here. It keeps
the project's earlier name: with another text, all statements signed so far would become invalid."""
_HEX = Field(pattern="^[0-9a-f]{64}$")


@dataclass(frozen=True)
class RunStatement:
    """The statement that a coordinator signs.

    run: the run's name. code: `code_hash.code_digest`. settings: `settings_digest`. identity: that
    of the run. until: the time by which a site must have begun the run, in seconds since 1970, UTC.
    """

    __pydantic_config__ = CLOSED

    run: Annotated[str, Field(pattern=f"^{RUN_NAME_PATTERN.pattern}$")]
    code: Annotated[str, _HEX]
    settings: Annotated[str, _HEX]
    identity: Annotated[str, _HEX]
    until: Annotated[int, Field(ge=0, lt=2**40)]

    def differs(self, run: str, code: str, settings: str, identity: str) -> str:
        """Return in what a run differs from the one that was signed; empty: it is this one."""
        for what, signed, found in (
            ("name", self.run, run),
            ("code", self.code, code),
            ("identity", self.identity, identity),
        ):
            if signed != found:
                return f"its {what} is {found[:16]!r}, {signed[:16]!r} was signed"
        return "" if self.settings == settings else "its settings are not those that were signed"

    @property
    def ends(self) -> str:
        """The time by which the run must have begun, as text for people."""
        return f"{datetime.fromtimestamp(self.until, UTC):%Y-%m-%d %H:%M} UTC"

    @property
    def over(self) -> bool:
        """Whether that time is over by the clock of this machine."""
        return time.time() > self.until


_READER = TypeAdapter(RunStatement)


def settings_digest(settings: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a run's settings without `runtime.resume`.

    settings: as of `config.unchecked_settings`. `runtime.resume` is left out because a resumed run
    is the same run.
    """
    counted = {key: value for key, value in settings.items() if key != "runtime.resume"}
    return hashlib.sha256(json.dumps(counted, sort_keys=True, default=str).encode()).hexdigest()


def sign(statement: RunStatement, key: Ed25519PrivateKey) -> str:
    """Return a statement and its signature as one text, for the run config."""
    text = _READER.dump_json(statement)
    return f"{_packed(text)}.{_packed(key.sign(_PURPOSE + text))}"


def read_statement(token: Scalar) -> RunStatement:
    """Return the statement in a text, whoever signed it. Raises ConfigError: it holds none."""
    return _parsed(_parts(token)[0])


def verify(token: Scalar, keys: Sequence[str]) -> tuple[RunStatement, str]:
    """Return the statement in a text, and the fingerprint of the key that signed it.

    keys: public keys in OpenSSH's format. Raises ConfigError where the text holds no statement, or
    none of the keys signed it.
    """
    text, signature = _parts(token)
    for key in map(public_key, keys):
        try:
            key.verify(signature, _PURPOSE + text)
        except InvalidSignature:
            continue
        return _parsed(text), fingerprint(key)
    raise ConfigError("none of the keys that may start runs here has signed it")


def public_key(text: str) -> Ed25519PublicKey:
    """Return the public key in a line "ssh-ed25519 AAAA...". Raises ConfigError: it is none."""
    try:
        key = serialization.load_ssh_public_key(text.encode())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{text[:40]!r}: is no public key: ssh-ed25519 AAAA...") from error
    if not isinstance(key, Ed25519PublicKey):
        raise ConfigError(f"{text[:40]!r}: must be an Ed25519 key: ssh-keygen -t ed25519")
    return key


def private_key(content: bytes, passphrase: bytes | None) -> Ed25519PrivateKey:
    """Return a private key from a file in OpenSSH's format or in PEM.

    Raises TypeError where the key needs a passphrase and none is given, and ConfigError where the
    file is no Ed25519 key, or the passphrase is wrong.
    """
    load = (
        serialization.load_ssh_private_key
        if b"OPENSSH PRIVATE KEY" in content
        else serialization.load_pem_private_key
    )
    try:
        key = load(content, passphrase)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"is no private key, or the passphrase is wrong: {error}") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError("must be an Ed25519 key: ssh-keygen -t ed25519")
    return key


def fingerprint(key: Ed25519PublicKey) -> str:
    """Return a key's fingerprint, as `ssh-keygen -l` prints it."""
    form = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    blob = base64.b64decode(key.public_bytes(*form).split()[1])
    return f"SHA256:{base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip('=')}"


def _packed(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


def _parts(token: Scalar) -> tuple[bytes, bytes]:
    if not isinstance(token, str) or not token:
        raise ConfigError("nobody has signed it: `fedapp sign` at the coordinator's")
    first, dot, second = token.partition(".")
    try:
        if not dot or len(token) > MAX_TOKEN:
            raise ValueError(f"{len(token)} characters")
        text, signature = (
            base64.b64decode(f"{part}{'=' * (-len(part) % 4)}", b"-_", validate=True)
            for part in (first, second)
        )
    except (ValueError, binascii.Error) as error:
        raise ConfigError(f"{SIGNED}: is no signed word of `fedapp sign` ({error})") from error
    return text, signature


def _parsed(text: bytes) -> RunStatement:
    try:
        return _READER.validate_json(text, strict=True)
    except ValidationError as error:
        raise ConfigError(f"{SIGNED}: {first_fault(error)}: sign it again") from error
