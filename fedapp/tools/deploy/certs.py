"""`fedapp certs`: makes a certificate authority, a server certificate and site keys for a trial.

Each machine gets one folder, which is copied there as a whole. TLS certificates are X.509 v3 with
ECDSA keys. SuperNode keys are NIST P-384 in OpenSSH format, which Flower reads; Flower identifies a
site by its public key, without a certificate. The coordinator's key, which signs runs, is Ed25519
in the same format.
"""

import datetime as dt
import ipaddress
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedapp.core.errors import ConfigError, StoreError

DAYS = 365
"""Days for which the certificates are valid. SuperNode keys do not expire."""

LOCAL = ("localhost", "127.0.0.1", "::1")
"""Names in every server certificate, by which the server's own programs connect to it."""

_PRIVATE, _PUBLIC, _FOLDER = 0o600, 0o644, 0o700
_SITE = re.compile(r"(?!-)[a-z0-9-]{1,63}(?<!-)")
_LABEL = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)")


def make_certs(out: Path, hosts: Sequence[str], sites: Sequence[str]) -> list[str]:
    """Write keys and certificates below `out`; return lines that say what to copy where.

    hosts: DNS names and IP addresses at which sites reach the server; `LOCAL` is added to them.
    sites: at least one name; each gets a SuperNode key. Raises ConfigError for a bad name, and
    StoreError if a file exists already or cannot be written. Existing files are never changed.
    """
    _check_sites(sites)
    names = list(dict.fromkeys(_general_name(host) for host in (*hosts, *LOCAL)))
    files = _contents(names, sites)
    for path in (out / file for file in files):
        if os.path.lexists(path):
            raise StoreError(
                f"{path}: is there already, and keys are never overwritten; "
                "name another folder, or remove this one if no site uses its keys"
            )
    _write(out, files)
    return _advice(out, [str(name.value) for name in names], sites)


def _check_sites(sites: Sequence[str]) -> None:
    if not sites:
        raise ConfigError("--sites: names no site; write them with commas, such as north,south")
    for site in sites:
        if not _SITE.fullmatch(site):
            raise ConfigError(
                f"--sites: {site!r}: a site's name has 1 to 63 lower case letters, digits and "
                "inner hyphens; rename it, such as north-clinic"
            )
    if twice := sorted({site for site in sites if sites.count(site) > 1}):
        raise ConfigError(f"--sites: {twice[0]!r} is named twice; give every site its own name")


def _general_name(host: str) -> x509.GeneralName:
    """Return a host in the form of a certificate. Raises ConfigError on a port or a web address."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    labels = host.split(".")
    # A last label of digits alone is a mistyped IP address: no DNS name ends with one.
    if len(host) > 253 or not all(map(_LABEL.fullmatch, labels)) or labels[-1].isdigit():
        raise ConfigError(
            f"--host: {host!r} is neither a DNS name nor an IP address; leave out https://, the "
            "port and the path, such as fl.hospital.example"
        )
    return x509.DNSName(host.lower())


def _contents(
    names: Sequence[x509.GeneralName], sites: Sequence[str]
) -> dict[str, tuple[bytes, int]]:
    """Return (content, file mode) by path for every file, with new keys."""
    authority_key, authority = _authority()
    server_key = ec.generate_private_key(ec.SECP256R1())
    ca = authority.public_bytes(serialization.Encoding.PEM)
    server = _server(names, server_key, authority_key, authority)
    files = {
        "ca/ca.key": (_pem(authority_key), _PRIVATE),
        "ca/ca.crt": (ca, _PUBLIC),
        "server/ca.crt": (ca, _PUBLIC),
        "server/server.crt": (server.public_bytes(serialization.Encoding.PEM), _PUBLIC),
        "server/server.key": (_pem(server_key), _PRIVATE),
    }
    starter = Ed25519PrivateKey.generate()
    files["coordinator/coordinator.key"] = (
        _pem(starter, serialization.PrivateFormat.OpenSSH),
        _PRIVATE,
    )
    files["coordinator/coordinator.pub"] = (_public(starter), _PUBLIC)
    for site in sites:
        key = ec.generate_private_key(ec.SECP384R1())
        files[f"server/supernodes/{site}.pub"] = (_public(key), _PUBLIC)
        files[f"sites/{site}/ca.crt"] = (ca, _PUBLIC)
        files[f"sites/{site}/supernode.key"] = (
            _pem(key, serialization.PrivateFormat.OpenSSH),
            _PRIVATE,
        )
    return files


def _authority() -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    """Return a new certificate authority, which can sign servers but no further authority."""
    key = ec.generate_private_key(ec.SECP384R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fedapp trial CA")])
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    certificate = (
        _certificate(name, name, key.public_key(), key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA384())
    )
    return key, certificate


def _server(
    names: Sequence[x509.GeneralName],
    key: ec.EllipticCurvePrivateKey,
    authority_key: ec.EllipticCurvePrivateKey,
    authority: x509.Certificate,
) -> x509.Certificate:
    """Return a certificate for these names that is valid for a TLS server only."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fedapp server")])
    usage = x509.KeyUsage(True, False, False, False, False, False, False, False, False)
    issuer_key = authority_key.public_key()
    return (
        _certificate(subject, authority.subject, key.public_key(), issuer_key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(authority_key, hashes.SHA384())
    )


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    issuer_key: ec.EllipticCurvePublicKey,
) -> x509.CertificateBuilder:
    """Begin a certificate, with both key identifiers, which Python 3.13 demands."""
    # It begins an hour ago, because the clocks of hospitals differ.
    start = dt.datetime.now(dt.UTC) - dt.timedelta(hours=1)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + dt.timedelta(days=DAYS))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key), critical=False
        )
    )


def _public(key: ec.EllipticCurvePrivateKey | Ed25519PrivateKey) -> bytes:
    form = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    return key.public_key().public_bytes(*form) + b"\n"


def _pem(
    key: ec.EllipticCurvePrivateKey | Ed25519PrivateKey,
    form: serialization.PrivateFormat = serialization.PrivateFormat.PKCS8,
) -> bytes:
    # Without a passphrase, because nobody could type it for programs that start by themselves.
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _write(out: Path, files: Mapping[str, tuple[bytes, int]]) -> None:
    """Write files, none of which may exist. Raises StoreError with the one that fails."""
    path = out
    try:
        out.mkdir(mode=_FOLDER, parents=True, exist_ok=True)
        for name, (data, mode) in files.items():
            path = out / name
            for folder in reversed(Path(name).parents[:-1]):
                (out / folder).mkdir(mode=_FOLDER, exist_ok=True)
            # O_EXCL refuses a file or a link that appeared meanwhile.
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
    except OSError as error:
        raise StoreError(
            f"{path}: cannot be written ({error.strerror}); name a folder that you may write to"
        ) from error


def _advice(out: Path, names: Sequence[str], sites: Sequence[str]) -> list[str]:
    goes = {f"{out}/server": "the server"}
    goes |= {f"{out}/sites/{site}": site for site in sites}
    goes[f"{out}/coordinator"] = "the coordinator, not the server: it signs runs"
    goes[f"{out}/ca/ca.key"] = "nowhere: keep it off the network, it can sign further servers"
    width = max(map(len, goes))
    return [
        f"For a server at {', '.join(names)}; valid for {DAYS} days. What goes where:",
        *(f"  {path:{width}} -> {where}" for path, where in goes.items()),
        "Copy each folder to its own machine and no other, over a channel you trust; then remove "
        "it here.",
    ]
