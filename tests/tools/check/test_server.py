"""`fedapp check --server`: each thing that can be in the way, at a server with real TLS."""

import json
import time
from contextlib import contextmanager
from email.utils import formatdate
from types import SimpleNamespace

import httpx
import pytest

from fedapp.core.errors import ConfigError
from fedapp.protocol.messages import SCHEMA
from fedapp.protocol.secure_aggregation.keys import registered_fingerprint
from fedapp.tools.check import server as check_server
from fedapp.tools.check.server import look
from fedapp.tools.deploy.certs import make_certs
from fedapp.tools.node.app_bundle import ABOUT, about, installed
from fedapp.tools.node.approvals import Approvals
from tests.tools.https import serving


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    out = tmp_path_factory.mktemp("trial") / "keys"
    make_certs(out, ["localhost"], ["north"])
    return out


class Client:
    """Flower's client: what the server says of the site's key."""

    answers = None
    off = 0

    @classmethod
    @contextmanager
    def from_server_address(cls, server, insecure, ca, interceptors):
        yield cls()

    def ActivateNode(self, request):
        if self.answers is not None:
            request = httpx.Request("POST", "https://x")
            raise httpx.HTTPStatusError("", request=request, response=httpx.Response(self.answers))
        return SimpleNamespace(node_id=7)

    def DeactivateNode(self, request):
        assert request.node_id == 7
        type(self).off += 1


@pytest.fixture
def server(trial, tmp_path, monkeypatch):
    """A server; .about and .ahead are what it says; .look() is the site's look at it."""
    made = SimpleNamespace(about=about(installed()), ahead=0.0, folder=tmp_path)
    monkeypatch.setattr(check_server, "FleetHttpClient", Client)
    monkeypatch.setattr(Client, "answers", None)
    monkeypatch.setattr(Client, "off", 0)

    def answer(path):
        found = path == "/health" or (path == ABOUT and made.about is not None)
        body = json.dumps(made.about).encode() if path == ABOUT else b""
        date = formatdate(time.time() - made.ahead, usegmt=True)
        return 200 if found else 404, {"Date": date}, body

    def ask(host="localhost", keys=trial / "sites/north"):
        return {one.what: one for one in look(f"{host}:{made.port}", keys, tmp_path)}

    made.look = ask
    with serving(trial, answer) as made.port:
        yield made


def test_where_all_is_well_each_of_five_says_so_and_the_node_is_offline_again(server):
    found = server.look()
    assert list(found) == ["reachable", "certificate", "clock", "version", "key"]
    assert not any(one.remedy for one in found.values()), found
    assert "the same code on both" in found["version"].said and Client.off == 1


def test_who_is_not_reachable_is_asked_no_more(server, trial):
    (one,) = look("localhost:1", trial / "sites/north", server.folder)
    assert one.remedy == "check the port, and that the server runs"
    with pytest.raises(ConfigError, match="must be host:port"):
        list(look("localhost", trial / "sites/north", server.folder))


def test_another_ca_and_another_name_are_told_apart(server, tmp_path):
    make_certs(tmp_path / "other", ["localhost"], ["north"])
    found = server.look(keys=tmp_path / "other/sites/north")
    assert list(found) == ["reachable", "certificate"] and "ca.crt" in found["certificate"].remedy
    found = server.look(host="127.1")
    assert list(found)[-1] == "certificate" and "name" in found["certificate"].remedy


@pytest.mark.parametrize(("ahead", "well"), [
    (0.0, True), (3.0, True), (60.0, False), (-200.0, True), (-400.0, False),
])  # fmt: skip
def test_the_clock_may_be_as_far_off_as_flower_lets_it(server, ahead, well):
    server.ahead = ahead
    clock = server.look()["clock"]
    assert (clock.remedy == "") is well, clock
    assert well or ("ahead of" if ahead > 0 else "behind") in clock.said


OTHER = "ab" * 32


@pytest.mark.parametrize(("change", "terms", "said", "remedy"), [
    ({"app": OTHER}, "", "both understood, and numbers computed by the same files", "stand_in"),
    ({"app": OTHER}, "stand_in: true\n", "the code installed here does its runs", ""),
    ({"app": OTHER, "numbers": "0" * 64}, "stand_in: true\n", "computed by other files", "install"),
    ({"app": OTHER, "messages": [SCHEMA + 1, SCHEMA + 1, SCHEMA + 2]}, "stand_in: true\n",
     f"messages {SCHEMA + 1} (understands {SCHEMA + 1} to {SCHEMA + 2}) there, {SCHEMA} (",
     "install"),
    ({"app": OTHER, "messages": [SCHEMA + 1, SCHEMA, SCHEMA + 1]}, "", f"messages {SCHEMA + 1}",
     "approve it"),
    ({"app": OTHER}, "stand_inn: true\n", "", "correct this first"),
    (None, "", "the server does not say", "compare by phone"),
    ({"messages": "x"}, "", "the server does not say", "compare by phone"),
    ({"app": None, "title": "x" * 999}, "", "xxx (None)", "approve"),
])  # fmt: skip
def test_versions_that_differ(server, change, terms, said, remedy):
    server.about = None if change is None else {**server.about, **change}
    if terms:
        (server.folder / "site.yaml").write_text(terms)
        (server.folder / "site.yaml").chmod(0o600)
    version = server.look()["version"]
    assert said in version.said and len(version.said) < 500, version
    assert (remedy in version.remedy) if remedy else not version.remedy, version


def test_a_version_that_the_site_has_approved_is_well(server):
    server.about = {**server.about, "app": OTHER}
    Approvals(server.folder).decide(OTHER, "newer", "approved")
    version = server.look()["version"]
    assert "has approved it" in version.said and not version.remedy


@pytest.mark.parametrize(("answers", "said"), [(400, "is not registered"), (401, "signature")])
def test_a_key_that_the_server_does_not_take(server, trial, monkeypatch, answers, said):
    monkeypatch.setattr(Client, "answers", answers)
    key = server.look()["key"]
    assert said in key.said and key.remedy
    registered = registered_fingerprint((trial / "server/supernodes/north.pub").read_bytes())
    assert (f"begins with {registered[:16]} " in key.remedy) == (answers == 400)


def test_what_is_no_key_is_named(server, trial, tmp_path):
    (tmp_path / "ca.crt").write_bytes((trial / "sites/north/ca.crt").read_bytes())
    with pytest.raises(ConfigError, match=r"supernode\.key: No such file"):
        server.look(keys=tmp_path)
    (tmp_path / "supernode.key").write_text("x")
    with pytest.raises(ConfigError, match="ssh-keygen -q -t ecdsa"):
        server.look(keys=tmp_path)
    (tmp_path / "ca.crt").write_text("x")
    with pytest.raises(ConfigError, match=r"ca\.crt"):
        server.look(keys=tmp_path)
