"""A site's journal of masked sums: what a server that asks twice, or otherwise, is refused."""

import json
from dataclasses import replace

import numpy as np
import pytest

from fedapp.experiment.config import load_experiment
from fedapp.ground.errors import ConfigError, ProtocolError, StoreError
from fedapp.messages.masks.context import SumContext
from fedapp.messages.masks.opening import announcements_for, by_receiver, unmask
from fedapp.messages.masks.words import from_words
from fedapp.messages.protocol import ModelRef, SumStep, Task
from fedapp.site.members import registered, simulated
from fedapp.site.summing import Summing

SITES = 4
RUN = SumContext("", "", 3, 0)


def experiment(**over):
    given = {
        "split.num_clients": SITES,
        "rounds.sample_rate": 1.0,
        "privacy.sums": "masked",
        **over,
    }
    return load_experiment("digits_demo", {"method.preset": "fedavg", **given})


class Server:
    """Asks sites for a sum, honestly or not."""

    def __init__(self, root, secret=None):
        there = experiment()
        self.sites = {
            k: Summing(replace(simulated(there, k), **({"secret": None} if secret else {})),
                       root / str(k))
            for k in range(SITES)
        }  # fmt: skip
        self.members = tuple(range(SITES))
        self.announcements, self.sealed, self.confirmed = {}, [], {}

    def task(self, site, step, round=3):
        return Task(site, round, "train", ModelRef(site, 0, "0" * 64), sum=step)

    def ask(self, site, step, round=3):
        return self.sites[site].step(self.task(site, step, round))

    def announce(self, number=0, round=3):
        for k in self.sites:
            answer = self.ask(k, SumStep(number, "announce"), round)
            self.announcements[k] = answer.announcement

    def linked(self, k, stage, number=0, **more):
        keys = announcements_for(RUN, k, self.members, self.announcements)
        return SumStep(number, stage, self.members, keys, **more)

    def share(self):
        self.sealed = [
            box for k in self.members for box in self.ask(k, self.linked(k, "share")).sealed
        ]

    def add(self, k, numbers):
        return self.sites[k].masked(self.task(k, self.linked(k, "add")), np.array(numbers))

    def confirm(self, k, survivors):
        step = SumStep(0, "confirm", self.members, survivors=survivors)
        self.confirmed[k] = self.ask(k, step).confirmation

    def open(self, k, survivors):
        step = self.linked(
            k, "open", sealed=by_receiver(self.sealed)[k], survivors=survivors,
            confirmations=tuple(self.confirmed[j] for j in sorted(self.confirmed)),
        )  # fmt: skip
        return self.ask(k, step)


@pytest.fixture
def server(tmp_path):
    there = Server(tmp_path)
    there.announce()
    there.share()
    return there


def added(server, survivors=range(SITES)):
    return sum(server.add(k, [k + 0.5, -1.0]) for k in survivors)


def test_a_sum_by_hand(server):
    total = added(server)
    for k in server.members:
        server.confirm(k, server.members)
    opened = {k: server.open(k, server.members) for k in server.members}
    found = unmask(RUN, server.members, server.members, total, server.announcements, opened)
    assert from_words(found.words, SITES).tolist() == [8.0, -4.0]  # .5 + 1.5 + 2.5 + 3.5


def test_other_numbers_under_the_same_keys_are_refused(server):
    first = server.add(0, [1.0, 2.0])
    assert (server.add(0, [1.0, 2.0]) == first).all()  # the same again is the same
    with pytest.raises(ProtocolError, match="other numbers or members than before"):
        server.add(0, [1.0, 2.5])


def test_new_keys_are_others_and_old_shares_open_nothing(server):
    before = server.announcements[0]
    server.announce()
    assert server.announcements[0].mask != before.mask
    assert (server.add(0, [1.0]) != 0).all()


def test_a_second_list_of_survivors_is_refused_the_overlap_attack(server):
    """A server that names one site present to some, and lost to others or later."""
    added(server)
    three = (0, 1, 2)
    for k in three:
        server.confirm(k, three)
    with pytest.raises(ProtocolError, match="confirmed already, with other survivors"):
        server.confirm(0, server.members)
    server.confirm(0, three)  # the same again
    server.open(0, three)
    with pytest.raises(ProtocolError, match="confirmed already, with other survivors"):
        server.open(0, server.members)
    server.open(0, three)  # a server that was killed may ask again


def test_too_few_confirmed_opens_nothing(server):
    added(server)
    for k in (0, 1):
        server.confirm(k, (0, 1, 2))
    with pytest.raises(ProtocolError, match="confirmed the list of them, 3 must"):
        server.open(0, (0, 1, 2))


def test_nothing_is_opened_that_was_not_confirmed(server):
    added(server)
    for k in (1, 2, 3):
        server.confirm(k, server.members)
    with pytest.raises(ProtocolError, match="must be confirmed before it is opened"):
        server.open(0, server.members)


def test_what_was_opened_is_over(server):
    added(server)
    for k in server.members:
        server.confirm(k, server.members)
    server.open(0, server.members)
    for round, number in ((3, 0), (2, 5), (0, 0)):
        with pytest.raises(ProtocolError, match="never goes back"):
            server.ask(0, SumStep(number, "announce"), round)
    assert server.ask(0, SumStep(1, "announce")).announcement
    assert server.ask(0, SumStep(0, "announce"), 4).announcement


def test_a_step_of_another_sum_is_refused(server):
    with pytest.raises(ProtocolError, match="announced no keys for it"):
        server.sites[0].step(server.task(0, server.linked(0, "share"), round=4))
    with pytest.raises(ProtocolError, match="announced no keys for it"):
        server.sites[0].masked(server.task(0, server.linked(0, "add", number=1)), np.ones(1))


def test_nothing_is_opened_that_nothing_was_added_to(server):
    with pytest.raises(ProtocolError, match="has added nothing"):
        server.confirm(0, server.members)


def test_members_may_not_change_after_adding(server):
    added(server)
    server.members = (0, 1, 2)
    with pytest.raises(ProtocolError, match="of these members"):
        server.confirm(0, server.members)


def test_a_site_that_starts_again_goes_on(server, tmp_path):
    """All is in its folder: the journal and, of a real site, 32 random bytes."""
    words = server.add(1, [4.0])
    again = Summing(server.sites[1].membership, server.sites[1].root)
    assert (again.masked(server.task(1, server.linked(1, "add")), np.array([4.0])) == words).all()


def test_a_real_sites_secret_is_its_own(tmp_path):
    one, two = (Server(tmp_path / name, secret=True) for name in ("one", "two"))
    for there in (one, two):
        there.announce()
    assert one.announcements[0].mask != two.announcements[0].mask
    key = tmp_path / "one" / "0" / "secret.key"
    assert key.stat().st_mode & 0o777 == 0o600 and len(key.read_bytes()) == 32
    key.write_bytes(b"")
    with pytest.raises(StoreError, match="0 bytes, must be 32"):
        Server(tmp_path / "one", secret=True).announce(number=1)


@pytest.mark.parametrize("text", ["", "{}", '{"attempt": 1}', "[1]", '{"opened": 5, "x": 1}'])
def test_a_damaged_journal_ends_the_sites_part(text, server):
    (server.sites[0].root / "journal.json").write_text(text)
    with pytest.raises(StoreError, match="damaged"):
        server.announce()


def test_the_journal_holds_no_secret_and_no_number(server):
    added(server)
    found = json.loads((server.sites[0].root / "journal.json").read_text())
    assert found.keys() == {
        "attempt", "round", "number", "members", "row", "survivors", "opened",
    }  # fmt: skip


def test_a_registered_key_must_be_the_agreed_one(tmp_path):
    from fedapp.tools.deploy.certs import make_certs
    from fedapp.tools.deploy.members import members_line

    make_certs(tmp_path / "keys", ["localhost"], ["a", "b", "c", "d"])
    line = members_line([tmp_path / "keys" / "server" / "supernodes"])
    agreed = line.split('"')[1]
    for k, name in enumerate("abcd"):
        agreed = agreed.replace(f"{name}=", f"{k}=")
    there = experiment(**{"privacy.members": agreed})
    key = tmp_path / "keys" / "sites" / "b" / "supernode.key"
    found = registered(there, 1, "f" * 64, key)
    assert found.secret is None and found.run == "f" * 64 and len(found.agreed) == SITES
    with pytest.raises(ConfigError, match="site 2 is not agreed on"):
        registered(there, 2, "f" * 64, key)
    with pytest.raises(ConfigError, match="make it readable"):
        registered(there, 1, "f" * 64, tmp_path / "none")


def test_members_are_named_with_their_remedy(tmp_path):
    from fedapp.tools.deploy.members import members_line

    (tmp_path / "odd.pub").write_text("no key")
    with pytest.raises(ConfigError, match=r"odd\.pub: a registered public key"):
        members_line([tmp_path / "odd.pub"])
    (tmp_path / "none").mkdir()
    with pytest.raises(ConfigError, match="holds no public key"):
        members_line([tmp_path / "none"])
