"""Each remedy that a message names to a site or a coordinator is followed, and helps.

A trial makes a fault in a place where all is well, reads what the program says, does what that
says, and asks again. Where a message has a command in it, that very command is run.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedapp import cli
from fedapp.core.errors import FedAppError
from fedapp.site.record import Record
from fedapp.site.rollback_guard import HEADS_VARIABLE, heads_root
from fedapp.tools.check import server
from fedapp.tools.check.server import CheckResult, look
from fedapp.tools.deploy.certs import make_certs
from fedapp.tools.node.app_bundle import ABOUT, about, installed
from fedapp.tools.node.node import SiteNode
from fedapp.tools.node.status import Status, health, status_path
from tests.flower.grids import preset
from tests.own import experiment, three_sites
from tests.tools.https import serving

ROOT = Path(__file__).parents[2]


@dataclass
class Place:
    """A site's machine, and beside it the coordinator's. said: what the program said last."""

    root: Path
    preset: str
    certs: Path
    said: str = ""
    node: str = "north"
    named: str = ""

    @property
    def keys(self) -> Path:
        return self.root / "keys"

    @property
    def terms(self) -> Path:
        return self.keys / "site.yaml"

    @property
    def data(self) -> Path:
        return self.root / "data/north"

    def fedapp(self, *words: object) -> bool:
        """Run a command as a person types it; return whether it ended with 0."""
        done = CliRunner().invoke(cli.app, list(map(str, words)))
        self.said = done.output + str(done.exception or "")
        assert done.exception is None or isinstance(done.exception, FedAppError | SystemExit)
        return done.exit_code == 0

    def typed(self, begins: str, **words: str) -> bool:
        """Run the command in what was said that begins so, with some words replaced."""
        [found] = re.findall(rf"{begins}[^;,:)`\n]*", self.said)
        command = [words.get(word, word) for word in shlex.split(found)]
        if command[0] == "fedapp":
            return self.fedapp(*command[1:])
        return subprocess.run(command, check=False, stdin=subprocess.DEVNULL).returncode == 0


# --- what is asked --------------------------------------------------------------------------------


def starts(place: Place) -> bool:
    """`fedapp node`, as far as it checks before it starts anything."""
    try:
        SiteNode("here:1", place.keys, 9, "").check()
    except FedAppError as error:
        place.said = str(error)
        return False
    return True


def fits(place: Place) -> bool:
    options = ("--preset", place.preset, "--site-name", place.node)
    return place.fedapp("check", place.data, *options)


def approves(place: Place) -> bool:
    return place.fedapp("approve", "--site-folder", place.keys)


def decides(place: Place) -> bool:
    return place.fedapp("approve", place.named, "--site-folder", place.keys, "--yes")


def explains(place: Place) -> bool:
    return place.fedapp("terms", "--site-folder", place.named or place.keys)


def signs(place: Place) -> bool:
    words = ("runtime.run_name=first", "--key", place.root / "coordinator.key")
    return place.fedapp("sign", place.preset, *words)


def made(place: Place) -> bool:
    return place.fedapp("certs", place.root / "made", "--host", "localhost", "--sites", place.node)


def online(place: Place) -> bool:
    """`fedapp node --status` beside a node that is online."""
    well, place.said = health(status_path(9094))
    return well


# --- what is wrong, and what is done about it -----------------------------------------------------


def copied(name):
    return lambda place: shutil.copy(place.certs / "sites/north" / name, place.keys)


def own_key(place):
    """The command of DEPLOY's step 2, which the message names."""
    (place.keys / "supernode.key").unlink(missing_ok=True)
    text = (ROOT / "docs/DEPLOY.md").read_text()
    [command] = re.findall(r"^ssh-keygen .*supernode\.key$", text, re.MULTILINE)
    command = command.replace("$HOME/fl/keys", str(place.keys))
    subprocess.run(shlex.split(command), check=True)


def example(place):
    assert "fedapp terms --example" in place.said
    assert place.fedapp("terms", "--example")
    place.terms.write_text(place.said)
    place.terms.chmod(0o600)


def accepted(place):
    assert place.typed("fedapp audit", REASON="the disk was changed")


def older_record(place):
    record = Record(place.keys)
    record.add("sent")
    older = record.path.read_bytes()
    record.add("sent")
    record.path.write_bytes(older)


def changed_record(place):
    record = Record(place.keys)
    record.add("sent", bytes=1)
    record.path.write_text(record.path.read_text().replace('"bytes": 1', '"bytes": 2'))
    place.fedapp("audit", "--site-folder", place.keys)


def moved_away(place):
    Record(place.keys).path.rename(place.root / "old.jsonl")
    accepted(place)


def key_that_others_read(place):
    own = place.root / "coordinator.key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", own], check=True)
    own.chmod(0o644)


def without_passphrase(place):
    [found] = re.findall(r"ssh-keygen [^;,)`\n]*", place.said)
    subprocess.run([*shlex.split(found), "-q", "-N", ""], check=True)


def labels(old, new):
    def change(place):
        file = place.data / "labels.csv"
        file.write_text(file.read_text().replace(old, new, 1))

    return change


def named(name):
    return lambda place: setattr(place, "node", name)


def given(word):
    return lambda place: setattr(place, "named", word)


def status_elsewhere(place):
    os.environ["FEDAPP_SITES"] = str(place.root / "elsewhere")


def status_here(place):
    os.environ["FEDAPP_SITES"] = str(place.root / "sites")


def nothing(place):
    """The place is wrong as it is."""


TRIALS = {
    "node: no certificate of the CA": (
        starts, lambda place: (place.keys / "ca.crt").unlink(),
        "copy the certificate of the server's CA there", copied("ca.crt")),
    "node: a damaged certificate": (
        starts, lambda place: (place.keys / "ca.crt").write_text("no"),
        "copy that of the server's CA there", copied("ca.crt")),
    "node: no key": (
        starts, lambda place: (place.keys / "supernode.key").unlink(),
        r"make the site's key there \(docs/DEPLOY.md, step 2\)", own_key),
    "node: no terms": (starts, lambda place: place.terms.unlink(), "write it", example),
    "node: empty terms": (starts, lambda place: place.terms.write_text(""), "write it", example),
    "node: another file name": (
        starts, lambda place: place.terms.rename(place.keys / "Site.yml"),
        "rename it", lambda place: (place.keys / "Site.yml").rename(place.terms)),
    "node: a term's name": (
        starts, lambda place: place.terms.write_text("metods: [fedavg]"),
        "did you mean 'methods'", lambda place: place.terms.write_text("methods: [fedavg]")),
    "node: others may write": (
        starts, lambda place: place.terms.chmod(0o622), "chmod go-w",
        lambda place: place.typed("chmod go-w")),
    "node: a linked file of terms": (
        starts,
        lambda place: (place.terms.rename(place.root / "t"), place.terms.symlink_to("../t")),
        "put the file itself there", lambda place: (place.root / "t").replace(place.terms)),
    "node: an older record": (starts, older_record, "put its newest copy back, or", accepted),
    "node: lost heads": (
        starts,
        lambda place: (Record(place.keys).add("sent"), shutil.rmtree(heads_root())),
        "the heads are lost", accepted),
    "audit: a changed line": (
        lambda place: place.fedapp("audit", "--site-folder", place.keys), changed_record,
        "was changed after it was written: put its newest copy back, or move", moved_away),
    "approve: a damaged list": (
        approves,
        lambda place: ((place.keys / "approvals").mkdir(),
                       (place.keys / "approvals/approvals.json").write_text("{")),
        "remove it and approve again",
        lambda place: (place.keys / "approvals/approvals.json").unlink()),
    "approve: digits of no app": (
        decides, given("12345678"), "name a FAB, a checkout, or 8 or more digits of the hash",
        given(installed().hash[:8])),
    "terms: a folder that is not there": (
        explains, given("/nowhere"), r"name the one that `fedapp node` has", given("")),
    "status: other settings than the node's": (
        online, status_elsewhere, "another --port or FEDAPP_SITES", status_here),
    "check: a label": (
        fits, labels(",nought,", ",Nought,"), "Nought.*", labels(",Nought,", ",nought,")),
    "check: a file that is not there": (
        fits, lambda place: (place.data / "scans/3.png").rename(place.data / "scans/x.png"),
        "scans/3.png", lambda place: (place.data / "scans/x.png").rename(
            place.data / "scans/3.png")),
    "check: a name that the preset lacks": (
        fits, named("nord"), "correct it", named("north")),
    "sign: no key": (
        signs, nothing, "ssh-keygen -t ed25519 -f", without_passphrase),
    "sign: a key that others may read": (
        signs, key_that_others_read, "chmod 600", lambda place: place.typed("chmod 600")),
    "certs: made before": (
        made, lambda place: make_certs(place.root / "made", ["localhost"], ["north"]),
        "name another folder, or remove this one",
        lambda place: shutil.rmtree(place.root / "made")),
    "certs: a name in capitals": (made, named("North"), "lower case", named("north")),
}  # fmt: skip


@pytest.fixture(scope="module")
def made_once(tmp_path_factory):
    out = tmp_path_factory.mktemp("once")
    make_certs(out / "certs", ["localhost"], ["north"])
    three_sites(out / "data")
    return out


@pytest.fixture
def place(made_once, tmp_path, monkeypatch):
    """A place where all is well, but that the coordinator has made nothing yet."""
    monkeypatch.setenv("FEDAPP_SITES", str(tmp_path / "sites"))
    monkeypatch.setenv(HEADS_VARIABLE, str(tmp_path / "heads"))
    shutil.copytree(made_once / "certs/sites/north", tmp_path / "keys")
    shutil.copytree(made_once / "data", tmp_path / "data")
    (tmp_path / "sites").mkdir()
    Status(status_path(9094)).now("online", "said")
    found = Place(tmp_path, preset(experiment(tmp_path / "data"), tmp_path), made_once / "certs")
    found.terms.write_text("methods: [fedavg]\n")
    found.terms.chmod(0o600)
    return found


@pytest.mark.parametrize("trial", TRIALS)
def test_a_remedy_that_is_followed_helps(place, trial):
    asked, spoil, remedy, follow = TRIALS[trial]
    spoil(place)
    assert not asked(place), trial
    assert re.search(remedy, place.said, re.DOTALL), place.said
    follow(place)
    assert asked(place), place.said


# --- the way to the server ------------------------------------------------------------------------


def wrong_ca(place, said):
    shutil.copy(place.root / "other/sites/north/ca.crt", place.keys)


def other_code(place, said):
    said.update(app="0" * 64)


WAYS = {
    "certificate": (wrong_ca, "ask for the ca.crt of this server's CA", copied("ca.crt")),
    "version": (
        other_code, "approve it, or let the code here do it: stand_in in site.yaml",
        lambda place: place.terms.write_text("methods: [fedavg]\nstand_in: true\n")),
}  # fmt: skip


@pytest.mark.parametrize("what", WAYS)
def test_what_is_in_the_way_to_the_server_goes_away(place, what, monkeypatch):
    spoil, remedy, follow = WAYS[what]
    make_certs(place.root / "other", ["localhost"], ["north"])
    monkeypatch.setattr(server, "_key", lambda *_: CheckResult("key", "is registered"))
    said = dict(about(installed()))

    def answer(path):
        body = json.dumps(said).encode() if path == ABOUT else b""
        return 200, {"Date": formatdate(usegmt=True)}, body

    with serving(place.certs, answer) as port:

        def wrong():
            found = look(f"localhost:{port}", place.keys, place.keys)
            return {one.what: one.remedy for one in found if one.remedy}

        assert wrong() == {}
        spoil(place, said)
        assert list(found := wrong()) == [what] and remedy in found[what]
        follow(place)
        assert wrong() == {}
