"""`fedapp certs`: what TLS and Flower will read, who may read it, and what it refuses."""

import datetime as dt
import ipaddress
import ssl
import stat

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509 import verification
from flwr.cli.supernode.register import try_load_public_key
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from typer.testing import CliRunner

from fedapp.cli import app
from fedapp.core.errors import ConfigError, StoreError
from fedapp.tools.deploy.certs import make_certs

SITES = ["north", "south-2"]
PATHS = {
    "ca/ca.key", "coordinator/coordinator.key", "coordinator/coordinator.pub", "ca/ca.crt",
    "server/ca.crt", "server/server.crt", "server/server.key",
    "server/supernodes/north.pub", "server/supernodes/south-2.pub",
    "sites/north/ca.crt", "sites/north/supernode.key",
    "sites/south-2/ca.crt", "sites/south-2/supernode.key",
}  # fmt: skip


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    out = tmp_path_factory.mktemp("certs") / "deep/trial"
    make_certs(out, ["fl.hospital.example", "10.0.0.5", "FL.hospital.example"], SITES)
    return out


def certificate(path):
    return x509.load_pem_x509_certificate(path.read_bytes())


def test_each_machine_has_a_folder_and_private_keys_are_its_owners_alone(trial):
    found = {path.relative_to(trial).as_posix(): path for path in trial.rglob("*")}
    assert {name for name, path in found.items() if path.is_file()} == PATHS
    for name, path in [("", trial), *found.items()]:
        mode = stat.S_IMODE(path.stat().st_mode)
        private = name.endswith(".key")
        assert mode == (0o700 if path.is_dir() else 0o600 if private else 0o644), name
        if path.is_file():
            assert (b"PRIVATE KEY" in path.read_bytes()) == private, name


@pytest.mark.parametrize("host", ["fl.hospital.example", "10.0.0.5", "localhost", "::1"])
def test_the_chain_is_good_for_every_name_of_the_server(trial, host):
    ca, server = certificate(trial / "ca/ca.crt"), certificate(trial / "server/server.crt")
    builder = verification.PolicyBuilder().store(verification.Store([ca]))
    try:
        subject = x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        subject = x509.DNSName(host)
    chain = builder.build_server_verifier(subject).verify(server, [])
    assert chain == [server, ca]
    context = ssl.create_default_context(cafile=str(trial / "sites/north/ca.crt"))
    assert context.cert_store_stats()["x509_ca"] == 1


def test_it_is_not_good_for_another_name_or_under_another_ca(trial, tmp_path):
    make_certs(tmp_path / "other", [], SITES)
    server = certificate(trial / "server/server.crt")
    for root, name in [(trial, "elsewhere.example"), (tmp_path / "other", "localhost")]:
        store = verification.Store([certificate(root / "ca/ca.crt")])
        verifier = verification.PolicyBuilder().store(store)
        with pytest.raises(verification.VerificationError):
            verifier.build_server_verifier(x509.DNSName(name)).verify(server, [])


def test_a_name_given_twice_stands_in_the_certificate_once(trial):
    extensions = certificate(trial / "server/server.crt").extensions
    names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(name.value) for name in names] == [
        "fl.hospital.example", "10.0.0.5", "localhost", "127.0.0.1", "::1",
    ]  # fmt: skip


def test_it_holds_a_year_and_each_key_fits_its_certificate(trial):
    for name in ("ca/ca", "server/server"):
        made = certificate(trial / f"{name}.crt")
        assert made.not_valid_after_utc - made.not_valid_before_utc == dt.timedelta(days=365)
        key = serialization.load_pem_private_key((trial / f"{name}.key").read_bytes(), None)
        assert key.public_key() == made.public_key()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(trial / "server/server.crt", trial / "server/server.key")


@pytest.mark.parametrize("site", SITES)
def test_flower_reads_a_sites_keys_and_they_are_a_pair(trial, site):
    text = (trial / f"sites/{site}/supernode.key").read_bytes()
    key = serialization.load_ssh_private_key(text, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey) and key.curve.name == "secp384r1"
    public = try_load_public_key(trial / f"server/supernodes/{site}.pub")
    assert public == public_key_to_bytes(key.public_key())


def test_no_two_sites_share_a_key(trial):
    keys = {(trial / f"sites/{site}/supernode.key").read_bytes() for site in SITES}
    assert len(keys) == len(SITES)


@pytest.mark.parametrize("there", sorted(PATHS))
def test_nothing_is_overwritten_and_then_nothing_is_written(tmp_path, there):
    (tmp_path / there).parent.mkdir(parents=True)
    (tmp_path / there).write_text("mine")
    with pytest.raises(StoreError, match="never overwritten; name another folder") as caught:
        make_certs(tmp_path, [], SITES)
    assert str(caught.value).startswith(f"{tmp_path / there}: ")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [tmp_path / there]
    assert (tmp_path / there).read_text() == "mine"


def test_a_link_that_leads_nowhere_is_not_written_through(tmp_path):
    (tmp_path / "ca").mkdir()
    (tmp_path / "ca/ca.key").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="never overwritten"):
        make_certs(tmp_path, [], SITES)
    assert not (tmp_path / "elsewhere").exists()


def test_a_file_in_place_of_a_folder_is_named(tmp_path):
    (tmp_path / "out").write_text("a file")
    with pytest.raises(StoreError, match=r"out: cannot be written \(File exists\); name a folder"):
        make_certs(tmp_path / "out", [], SITES)


@pytest.mark.parametrize(
    "host",
    ["https://fl.example", "fl.example:8443", "fl.example/x", "a b", "", "-a.example", "a..b",
     "300.1.1.1", "10.0.0", "*.example", "münchen.example", "a" * 64, ".".join(["abc"] * 64)],
)  # fmt: skip
def test_bad_hosts_are_refused(tmp_path, host):
    with pytest.raises(ConfigError, match="neither a DNS name nor an IP address; leave out"):
        make_certs(tmp_path / "out", [host], SITES)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("sites", "reason"),
    [
        ([], "names no site"),
        (["north", "north"], "named twice"),
        *((["north", bad], "lower case letters, digits and inner hyphens") for bad in
          ["North", "a/b", "../up", "", ".", "a b", "-a", "a-", "x" * 64, "süd"]),
    ],
)  # fmt: skip
def test_bad_sites_are_refused(tmp_path, sites, reason):
    with pytest.raises(ConfigError, match=reason):
        make_certs(tmp_path / "out", [], sites)
    assert not (tmp_path / "out").exists()


def test_the_command_says_what_goes_where(tmp_path):
    arguments = ["certs", str(tmp_path / "t"), "--host", "a.example", "--sites", "north, west"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0
    lines = [line.split() for line in result.output.splitlines()]
    assert [f"{tmp_path}/t/server", "->", "the", "server"] in lines
    for site in ("north", "west"):
        assert [f"{tmp_path}/t/sites/{site}", "->", site] in lines
    assert "a.example" in result.output and "PRIVATE" not in result.output
