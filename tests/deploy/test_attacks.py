"""Nobody silences the sites: strangers at the gateway, and a site whose answers are too large."""

import os
import select
import signal
import socket
from contextlib import ExitStack

import pytest

from fedapp.core.processes import descendants
from fedapp.tools.deploy.compose_local import APP, federation, has_gateway, read_compose
from tests.deploy.attack import Attack, hold_on
from tests.deploy.machines import until
from tests.flower.results import rows

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not has_gateway(), reason="needs nginx and curl"),
]

SITES = ("north", "south", "west")
ATTACK_S = 45.0
HOSTILE = "/app/tests/deploy/hostile.py"
COMPOSE = APP / "docker/compose.yaml"
GATEWAY = read_compose(COMPOSE)["gateway"].command


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A federation of its own: what is done to it here other tests would feel."""
    with federation(COMPOSE, tmp_path_factory.mktemp("attacked"), gateway=True) as made:
        for name in ("superexec", *SITES):
            made.start(name)
        until(lambda: all(online(made, site) for site in SITES))
        yield made


def online(made, site):
    """Ask the site's health check."""
    return made.run(site, "fedapp", "node", "--status", "--port=9094").returncode == 0


def answers(made):
    """Ask the gateway as somebody who comes anew."""
    curl = ("curl", "-fsS", "-m", "5", "--cacert", "/keys/ca.crt", "https://127.0.0.1:8443/health")
    return made.run("gateway", *curl).returncode == 0


def run(made, name, settings):
    """Run the demo to its end with other settings; return its rows."""
    command = ["sh", "/app/docker/admin.sh", "demo", name, settings]
    assert made.spawn("demo", command, name).wait() == 0, made.log(name)
    return rows(made.volume("runs") / name)


def every_site_answers(made, name):
    """Run a round with whoever is there after a minute at the latest; all must be."""
    found = run(made, name, "rounds.num_rounds=1 rounds.join_wait_s=60.0")
    assert "sites: 0 north, 1 south, 2 west" in made.log(name)
    assert [row["skipped"] for row in found] == [{}, {}]


def test_the_65th_connection_of_an_address_is_closed_before_tls(made):
    port = int(made.addresses["gateway:8443"].split(":")[1])
    here = ("127.0.0.77", 0)
    with ExitStack() as undo:
        callers = [
            undo.enter_context(socket.create_connection(("127.0.0.1", port), 30, here))
            for _ in range(100)
        ]
        until(lambda: len(select.select(callers, [], [], 0)[0]) >= 36)
        closed = select.select(callers, [], [], 1)[0]
        assert len(closed) == 36 and all(one.recv(1) == b"" for one in closed)


def test_a_strangers_attack_is_not_felt(made):
    port = int(made.addresses["gateway:8443"].split(":")[1])
    before = {site: made.log(site).count("fedapp node:") for site in SITES}

    def look(attack):
        assert answers(made), "a newcomer is kept out"
        assert all(online(made, site) for site in SITES)

    with Attack(port, "127.0.0.66") as attack:
        hold_on(attack, ATTACK_S, look)
        assert attack.opened > 600, "the attack was none"
    assert {site: made.log(site).count("fedapp node:") for site in SITES} == before
    every_site_answers(made, "strangers")


def test_sites_behind_the_attackers_address_are_back_within_a_minute(made):
    """They share an address, and the gateway falls in the midst of it: all must come anew."""
    port = int(made.addresses["gateway:8443"].split(":")[1])
    first = made.start("gateway")
    got_in = []

    def fell(attack):
        if first.poll() is None:
            for pid in {first.pid, *descendants({first.pid})}:
                os.kill(pid, signal.SIGKILL)
            first.wait()
            made.spawn("gateway", GATEWAY, "gateway, again")
        else:
            got_in.append(answers(made))

    with Attack(port, "127.0.0.1") as attack:
        hold_on(attack, ATTACK_S, fell)
    assert not all(got_in), "the attack was none: newcomers from its address always get in"
    every_site_answers(made, "neighbours")


def test_an_answer_that_is_none_costs_its_site_the_round_and_nobody_else(made):
    """South is honest until round 1; then its key's holder answers as no site does.

    With 700 MB, with 390, and with a message without its parts, at which Flower's parser raises.
    """
    before = {site: made.log(site).count("has ended") for site in ("north", "west")}
    settings = "rounds.num_rounds=9 rounds.deadline_s=120 rounds.min_reply_share=0.3"
    command = ["sh", "/app/docker/admin.sh", "demo", "large", settings]
    going = made.spawn("demo", command, "large")
    path = made.volume("runs") / "large/metrics.jsonl"
    until(lambda: going.poll() is not None or (path.exists() and len(rows(path.parent)) >= 2))
    honest = made.start("south")
    honest.send_signal(signal.SIGTERM)
    assert honest.wait() == 0
    words = ["python", HOSTILE, "gateway:8443", "/keys/ca.crt", "/keys/supernode.key"]
    for mebibytes, log, said in (
        ("700", "hostile, 700", "refused with 413"),
        ("390", "large", "unreadable answer: message head must hold exactly"),
        ("0", "large", "the answer's pieces make up no message: KeyError"),
    ):
        sender = made.spawn("south", [*words, mebibytes], f"hostile, {mebibytes}")
        until(lambda log=log, said=said: said in made.log(log))
        sender.send_signal(signal.SIGINT)  # it signs off
        sender.wait()
    assert going.wait() == 0, made.log("large")
    assert "taken" not in made.log("hostile, 700")
    assert "taken: 390 MiB" in made.log("hostile, 390")
    found = rows(path.parent)
    assert len(found) == 10 and "1" in found[-1]["skipped"]
    assert all(set(row["skipped"]) <= {"1"} for row in found)
    assert "locked" not in made.log("superlink")
    for name in ("superexec", "superlink"):
        assert made.start(name).poll() is None
    assert {site: made.log(site).count("has ended") for site in ("north", "west")} == before
