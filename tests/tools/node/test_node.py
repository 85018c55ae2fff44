"""`fedapp node`: what it starts, what it refuses before, whether the server answers, its health."""

import json
import os
import socket
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedapp.cli import app
from fedapp.core.errors import ConfigError, StoreError
from fedapp.core.processes import free_port
from fedapp.site.record import Record, RecordError
from fedapp.tools.deploy.certs import make_certs
from fedapp.tools.node.node import SiteNode, node_config
from fedapp.tools.node.status import FRESH_S, Status, health, status_path
from tests.tools.https import serving


@pytest.fixture(scope="module")
def certs(tmp_path_factory):
    out = tmp_path_factory.mktemp("certs")
    make_certs(out, ["localhost"], ["north"])
    return out


def test_it_starts_the_supernode_with_tls_its_key_and_its_name():
    node = SiteNode(
        "here:1", Path("/keys"), 9, node_config("north", Path("/data"), "worker-idle-s=6")
    )
    assert node.options() == [
        "--superlink=here:1",
        "--root-certificates=/keys/ca.crt",
        "--auth-supernode-private-key=/keys/supernode.key",
        "--port=9",
        '--node-config=site-name="north" data-path="/data" worker-idle-s=6 site-folder="/keys" '
        'signing-key="/keys/supernode.key"',
    ]
    without = SiteNode("here:1", Path("/keys"), 9, "", no_terms=True)
    assert without.options()[-1].endswith(" no-terms=true")
    assert node_config("", None, "partition-id=0") == "partition-id=0"
    assert node_config("a", Path("b"), "") == f'site-name="a" data-path="{os.getcwd()}/b"'


@pytest.mark.parametrize("name", ['a" b="c', "a\\"])
def test_a_name_cannot_smuggle_in_another_setting(name):
    with pytest.raises(ConfigError, match="without quotes"):
        node_config(name, None, "")


def test_keys_that_are_not_there_are_named_before_anything_starts(certs, tmp_path):
    keys = certs / "sites/north"
    SiteNode("here:1", keys, 9, "", no_terms=True).check()
    with pytest.raises(ConfigError, match=r"site\.yaml: is not there.*--no-terms"):
        SiteNode("here:1", keys, 9, "").run()
    for gone, remedy in (("ca.crt", "server's CA"), ("supernode.key", "docs/DEPLOY.md, step 2")):
        for file in ("ca.crt", "supernode.key"):
            (tmp_path / file).write_bytes((keys / file).read_bytes())
        (tmp_path / gone).unlink()
        with pytest.raises(ConfigError, match=f"{gone}: No such file.*{remedy}"):
            SiteNode("here:1", tmp_path, 9, "").run()
    for file in ("ca.crt", "supernode.key"):
        (tmp_path / file).write_bytes((keys / file).read_bytes())
    (tmp_path / "record").touch()
    with pytest.raises((ConfigError, StoreError), match="record"):
        SiteNode("here:1", tmp_path, 9, "", no_terms=True).run()
    (tmp_path / "site.yaml").write_text("metods: []")
    with pytest.raises(ConfigError, match="no such term"):
        SiteNode("here:1", tmp_path, 9, "").run()
    (tmp_path / "supernode.key").touch()
    (tmp_path / "ca.crt").write_text("no certificate")
    with pytest.raises(ConfigError, match="is no certificate"):
        SiteNode("here:1", tmp_path, 9, "").run()


def test_a_public_key_and_a_port_in_use_are_said_before_anything_starts(certs, tmp_path):
    keys = certs / "sites/north"
    for name in ("ca.crt", "supernode.key"):
        (tmp_path / name).write_bytes((keys / name).read_bytes())
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=f"--port: {port} is in use"):
            SiteNode("here:1", tmp_path, port, "", no_terms=True).run()
    assert not (tmp_path / "record").exists()
    public = next((certs / "server" / "supernodes").glob("north.pub")).read_bytes()
    (tmp_path / "supernode.key").write_bytes(public)
    with pytest.raises(ConfigError, match=r"supernode\.key: is no private key"):
        SiteNode("here:1", tmp_path, 9, "", no_terms=True).check()


@pytest.mark.parametrize("how", ["older", "changed in the middle", "gone"])
def test_a_node_does_not_start_on_a_record_that_is_not_the_newest(certs, tmp_path, how):
    for file in ("ca.crt", "supernode.key"):
        (tmp_path / file).write_bytes((certs / "sites/north" / file).read_bytes())
    (tmp_path / "site.yaml").write_text("methods: [fedavg]\n")
    (tmp_path / "site.yaml").chmod(0o600)
    record = Record(tmp_path)
    record.add("sent", epsilon=1.0)
    older = record.path.read_text()
    record.add("sent", epsilon=2.0)
    whole = record.path.read_text()
    if how == "gone":
        record.path.unlink()
    else:
        record.path.write_text(older if how == "older" else whole.replace("1.0", "0.0"))
    node = SiteNode("here:1", tmp_path, 9, "")
    with pytest.raises(RecordError, match=r"fedapp audit --site-folder .* --accept REASON"):
        node.run()
    record.path.write_text(whole)
    node.check()


@contextmanager
def healthy(certs, status):
    """Yield the address of a server whose health has this status."""
    asked = {"/health": (status, {}, b"")}
    with serving(certs, lambda path: asked[path]) as port:
        yield f"localhost:{port}"


@pytest.mark.parametrize(
    ("status", "said"),
    [(200, ""), (404, ""), (502, "the server answers 502"), (503, "the server answers 503")],
)
def test_the_server_answers_or_does_not(certs, status, said):
    with healthy(certs, status) as address:
        assert SiteNode(address, certs / "sites/north", 9, "").trouble() == said


def test_who_is_not_the_server_is_told_apart(certs, tmp_path):
    node = SiteNode(f"localhost:{free_port()}", certs / "sites/north", 9, "")
    assert "the server does not answer" in node.trouble() and "refused" in node.trouble()
    make_certs(tmp_path, ["localhost"], ["north"])
    with healthy(tmp_path, 200) as address:
        assert (
            "certificate verify failed" in SiteNode(address, certs / "sites/north", 9, "").trouble()
        )


def test_health_is_what_the_node_wrote_while_it_is_fresh(tmp_path, capsys):
    path = tmp_path / "status.json"
    assert health(path) == (False, health(path)[1]) and "not running" in health(path)[1]
    status = Status(path)
    status.now("offline", "why")
    assert not health(path)[0] and "why" in health(path)[1]
    status.now("online", "so")
    assert health(path)[0]
    assert capsys.readouterr().out.splitlines() == [
        "fedapp node: offline: why",
        "fedapp node: online: so",
    ]
    old = time.time() - FRESH_S - 1
    os.utime(path, (old, old))
    assert not health(path)[0] and "does not respond" in health(path)[1]
    status.now("online", "so")
    assert health(path)[0], "looked at again"
    status.gone()
    assert "not running" in health(path)[1]


def test_the_command_says_how_the_node_on_a_port_is(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDAPP_SITES", str(tmp_path))
    assert CliRunner().invoke(app, ["node", "--status"]).exit_code == 1
    said = {"state": "online", "detail": "so", "since": "now"}
    status_path(9094).write_text(json.dumps(said))
    done = CliRunner().invoke(app, ["node", "--status"])
    assert (done.exit_code, done.output) == (0, "online since now: so\n")
    assert CliRunner().invoke(app, ["node", "--status", "--port=9095"]).exit_code == 1


def test_the_command_asks_for_what_it_lacks():
    done = CliRunner().invoke(app, ["node", "/data", "--site-name", "north"])
    assert isinstance(done.exception, ConfigError)
    assert "--server host:port and --keys FOLDER" in str(done.exception)
