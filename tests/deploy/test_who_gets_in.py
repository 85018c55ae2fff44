"""Without the right CA and a registered key of its own nobody joins; the gateway hides the rest."""

import json
import ssl
import urllib.error
import urllib.request

import pytest

from fedapp.certs import make_certs
from fedapp.compose_local import APP, has_gateway, read_compose
from fedapp.processes import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

COMMAND = read_compose(APP / "docker/compose.yaml")["north"].command


def online(made):
    """Return the numbers of the SuperNodes that are in."""
    listing = made.run("register", "flwr", "supernode", "list", "hospitals", "--format", "json")
    nodes = json.loads(listing.stdout)["nodes"]
    return {node["node-id"] for node in nodes if node["status"] == "online"}


@pytest.fixture(scope="module")
def members(made):
    """Return the numbers of the three sites once they are in."""
    while len(found := online(made)) < 3:
        pass  # each look takes a second; pytest's time limit ends this
    return found


@pytest.fixture(scope="module")
def other(made):
    """Lay keys and certificates of another federation at north, for the same names."""
    out = made.volume("north") / "other"
    make_certs(out, ["gateway", "superlink"], ["north"])
    return out


CASES = {
    "wrong CA": ({"--root-certificates": "/site/other/ca/ca.crt"}, "certificate verify failed"),
    "unknown key": (
        {"--auth-supernode-private-key": "/site/other/sites/north/supernode.key"}, "2004",
    ),
    "no key": ({"--auth-supernode-private-key": None}, "2001"),
    "no TLS": ({"--root-certificates": None, "--insecure": ""}, "authentication requires"),
    "no TLS, no key": (
        {"--root-certificates": None, "--auth-supernode-private-key": None, "--insecure": ""}, "",
    ),
    "a key that is in already": ({}, "2004"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_nobody_else_joins(made, members, other, case):
    changes, reason = CASES[case]
    options = dict(word.partition("=")[::2] for word in COMMAND[1:])
    options |= {"--port": str(free_port()), "--max-retries": "1"} | changes
    command = [COMMAND[0], *(f"{k}={v}" if v else k for k, v in options.items() if v is not None)]
    process = made.spawn("north", command, f"intruder, {case}")
    assert process.wait() != 0
    assert reason in made.log(f"intruder, {case}")
    assert online(made) == members


@pytest.mark.skipif(not has_gateway(), reason="needs nginx and curl")
class TestTheGateway:
    def ask(self, made, path, data=b""):
        url = f"https://{made.addresses['gateway:8443']}{path}"
        context = ssl.create_default_context(cafile=made.volume("keys") / "trial/ca/ca.crt")
        direct = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )
        try:
            return direct.open(urllib.request.Request(url, data=data), timeout=60).status
        except urllib.error.HTTPError as error:
            return error.code

    @pytest.mark.parametrize(
        "path",
        ["/v1/control/register-node", "/v1/control/start-run", "/v1/runtime/acquire-task",
         "/v1/fleet/../control/list-nodes", "/v1/fleet/%2e%2e/control/list-nodes",
         "/v1/fleet/..%2fcontrol/list-nodes", "//v1/control/list-nodes", "/docs", "/"],
    )  # fmt: skip
    def test_the_interfaces_without_a_key_are_not_there(self, made, path):
        assert self.ask(made, path) == 404

    def test_a_site_without_a_key_is_turned_away_by_the_fleet_api(self, made):
        assert self.ask(made, "/v1/fleet/pull-messages") in {400, 401, 415, 422}
        assert self.ask(made, "/health", None) == 200

    def test_nobody_registers_a_key_of_his_own_through_it(self, made, members, other):
        home = other / "home"
        home.mkdir()
        (home / "config.toml").write_text(
            f'[superlink.outside]\naddress = "{made.addresses["gateway:8443"]}"\n'
            f'root-certificates = "{made.volume("keys")}/trial/ca/ca.crt"\n'
        )
        key = "/site/other/server/supernodes/north.pub"
        command = ["flwr", "supernode", "register", key, "outside"]
        done = made.run("north", "env", "FLWR_HOME=/site/other/home", *command)
        assert done.returncode != 0, done.stdout
        assert online(made) == members
