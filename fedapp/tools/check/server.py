"""`fedapp check --server`: what may keep a site from the server, before its node is started.

In this order: is the server reachable, does the site trust its certificate, do the clocks agree,
does it run a version that the site can work with, is the site's key registered there? Each answer
that is not as it should be comes with a remedy.
"""

import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from email.message import Message
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_ssh_private_key,
)
from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL
from flwr.proto.fleet_pb2 import ActivateNodeRequest, DeactivateNodeRequest
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor
from rich.console import Console

from fedapp.core.errors import ConfigError, FedAppError
from fedapp.core.untrusted_files import parse_json
from fedapp.protocol.secure_aggregation.keys import fingerprint
from fedapp.site.policy import stands_in
from fedapp.tools.check.machine import address, reach
from fedapp.tools.node.app_bundle import ABOUT, about, installed
from fedapp.tools.node.approvals import Approvals

AHEAD_S, BEHIND_S = 5.0, 300.0
"""Seconds by which a site's clock may be ahead of or behind the server's, by Flower's rule."""
PATIENCE_S = 10.0


@dataclass(frozen=True)
class CheckResult:
    """The answer to one question. remedy: empty if everything is as it should be."""

    what: str
    said: str
    remedy: str = ""


def show(server: str, keys: Path, folder: Path, console: Console) -> int:
    """Print what `look` finds; return 1 if something is in the way, else 0."""
    code = 0
    for one in look(server, keys, folder):
        word, colour = ("fault", "red") if one.remedy else ("ok", "green")
        console.print(f"{word:6}", style=colour, end="")
        console.print(f"{one.what:12} {one.said}", markup=False, highlight=False, soft_wrap=True)
        if one.remedy:
            console.print(f"      {one.remedy}", markup=False, highlight=False, soft_wrap=True)
            code = 1
    return code


def look(server: str, keys: Path, folder: Path) -> Iterator[CheckResult]:
    """Yield the answers in order, up to one after which no further question can be asked.

    server: host:port. keys: folder with `ca.crt` and `supernode.key`. folder: the site's own, with
    its terms and approvals. Raises ConfigError if `server` is not host:port, or a key cannot be
    read.
    """
    server = address(server)
    said, found = reach(server)
    if found:
        yield CheckResult("reachable", said, "; ".join(one.remedy for one in found))
        return
    yield CheckResult("reachable", f"{server} takes connections")
    context = _trust(keys / "ca.crt")
    try:
        headers, _ = _get(f"https://{server}/health", context)
    except urllib.error.URLError as error:
        why = getattr(error.reason, "verify_message", "") or str(error.reason)
        yield CheckResult("certificate", why, _mend_tls(why))
        return
    yield CheckResult("certificate", "is one that this site trusts, for that name")
    yield _clock(headers)
    yield _version(server, context, folder)
    yield _key(server, keys)


def _get(url: str, context: ssl.SSLContext) -> tuple[Message, bytes]:
    """Return headers and body for any HTTP status. Raises URLError if there is no HTTP answer."""
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
    )
    try:
        with opener.open(url, timeout=PATIENCE_S) as answer:
            return answer.headers, answer.read(2**16)
    except urllib.error.HTTPError as error:
        return error.headers, b""


def _trust(ca: Path) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"--keys: {ca}: {error}: copy the CA's certificate there") from error


def _mend_tls(why: str) -> str:
    if "expired" in why:
        return "have the coordinator renew the server's certificate (fedapp certs)"
    if "mismatch" in why or "not valid for" in why:
        return "use the name that the certificate holds, or have one made that names this one"
    return "ask for the ca.crt of this server's CA, and compare it by phone or on paper"


def _clock(headers: Message) -> CheckResult:
    try:
        ahead = (datetime.now(UTC) - parsedate_to_datetime(headers["Date"])).total_seconds()
    except (KeyError, TypeError, ValueError):
        return CheckResult("clock", "the server does not say its time")
    way = f"{abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the server's"
    if -BEHIND_S < ahead < AHEAD_S + 1:  # the server's clock is in whole seconds
        return CheckResult("clock", f"fits: {way}")
    return CheckResult("clock", way, "set this machine's clock by NTP: the server refuses it so")


def _version(server: str, context: ssl.SSLContext, folder: Path) -> CheckResult:
    """Compare the code that is installed at the server and here; can this site do its runs?"""
    here = installed()
    try:
        theirs: dict[str, Any] = parse_json(_get(f"https://{server}{ABOUT}", context)[1])
        app, title = str(theirs["app"]), str(theirs["title"])[:120]
        speaks = tuple(map(int, theirs["messages"]))
        numbers = str(theirs["numbers"])
    except (ValueError, KeyError, TypeError, urllib.error.URLError):
        said = "the server does not say; it is older, or its gateway does not pass it on"
        return CheckResult(
            "version", said, f"compare by phone: fedapp approve --hash says {here.hash[:16]} here"
        )
    if app == here.hash:
        return CheckResult("version", f"the same code on both: {title} ({app[:16]})")
    said = f"{title} ({app[:16]}) there, {here.title} ({here.hash[:16]}) here"
    try:
        words = {one.app: one.word for one in Approvals(folder).decisions()}
        if words.get(app) == "approved":
            return CheckResult("version", f"{said}: this site has approved it")
        allowed = stands_in(folder)
    except FedAppError as error:
        return CheckResult("version", said, f"correct this first: {error}")
    mine = about(here)["messages"]
    understood = mine[1] <= speaks[0] <= mine[2] and speaks[1] <= mine[0] <= speaks[2]
    messages = f"messages {speaks[0]} (understands {speaks[1]} to {speaks[2]}) there, "
    messages += f"{mine[0]} ({mine[1]} to {mine[2]}) here"
    if understood and numbers == about(here)["numbers"]:
        said += f"; {messages}: both understood, and numbers computed by the same files"
        if allowed:
            return CheckResult("version", f"{said}: the code installed here does its runs")
        return CheckResult(
            "version", said, "approve it, or let the code here do it: stand_in in site.yaml"
        )
    other = "numbers are computed by other files" if understood else messages
    return CheckResult(
        "version", f"{said}; {other}", f"install {title}, or approve it: fedapp approve"
    )


def _key_remedy(path: Path) -> str:
    how = f'ssh-keygen -q -t ecdsa -b 384 -N "" -C "" -f {path}'
    return f"copy the key that the coordinator made for this site, or make one: {how}"


def _key(server: str, keys: Path) -> CheckResult:
    """Sign on at the server with the site's key, and off again: is the key registered?"""
    path = keys / "supernode.key"
    try:
        key = load_ssh_private_key(path.read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
    except OSError as error:
        raise ConfigError(f"--keys: {path}: {error.strerror}: {_key_remedy(path)}") from error
    except (ValueError, AssertionError) as error:
        remedy = f"put the private key there, or {_key_remedy(path)}"
        raise ConfigError(f"--keys: {path}: is no private key for Flower: {remedy}") from error
    public = public_key_to_bytes(key.public_key())
    signed = NodeAuthHttpInterceptor(key, key.public_key())
    ca = str(keys / "ca.crt")
    try:
        with FleetHttpClient.from_server_address(
            server, False, ca, interceptors=[signed]
        ) as client:
            request = ActivateNodeRequest(
                public_key=public, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL
            )
            node = client.ActivateNode(request).node_id
            client.DeactivateNode(DeactivateNodeRequest(node_id=node))
    except httpx.HTTPStatusError as error:
        if error.response.status_code == httpx.codes.UNAUTHORIZED:
            return CheckResult(
                "key", "the server does not take its signature", "look at the clock above"
            )
        said = "is not registered, or a node with it is online"
        der = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        remedy = (
            f"have its public half registered; its fingerprint begins with {fingerprint(der)[:16]} "
            "(the coordinator's file: fedapp sites --members SITE.pub), or look at `fedapp node "
            "--status` first"
        )
        return CheckResult("key", said, remedy)
    except httpx.TransportError as error:
        return CheckResult("key", f"could not be tried ({error})", "try again")
    return CheckResult("key", "is registered: the server let it sign on, and off again")
