"""The question between Flower's message and Flower's app."""

import hashlib
import os
from types import SimpleNamespace

import pytest
from flwr.app import Message, RecordDict
from flwr.cli.install import install_from_fab
from flwr.common.constant import ErrorCode
from flwr.supercore.constant import TaskType
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode import start_client_internal as flower

from fedapp.experiment.code_hash import digest_of_files
from fedapp.protocol.messages import READS, SCHEMA
from fedapp.site.record import Record
from fedapp.tools.flower_compat import PULL_A_MESSAGE
from fedapp.tools.node.app_bundle import installed, read_fab
from fedapp.tools.node.approval_hook import ask_before_running, asking
from fedapp.tools.node.approvals import Approvals
from tests.tools.node.test_app_bundle import fab
from tests.tools.node.test_approvals import APP, FAB

LATER = SCHEMA + 1


def speaks(writes, first, last):
    return f"SCHEMA = {writes}\n# more\nREADS = ({first}, {last})\n".encode()


@pytest.fixture
def node(tmp_path, monkeypatch):
    """A SuperNode with one message waiting, and what it did: .ran, .answers."""
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    made = SimpleNamespace(ran=0, answers=[], known=None, fab=FAB, approvals=Approvals(tmp_path))
    message = Message(RecordDict(), dst_node_id=1, message_type="train")
    message.metadata.__dict__["_run_id"] = 7
    run = SimpleNamespace(fab_hash="h", fab_id="", fab_version="", primary_task_type="")
    made.run, made.fabs = run, {}
    made.state = SimpleNamespace(
        get_run=lambda run_id: made.known,
        get_fab=lambda fab_hash: made.fabs.get(fab_hash, SimpleNamespace(content=made.fab)),
    )

    def pull(state, object_store, receive, get_run, get_fab, **_):
        received = receive()
        if received is None:
            return None
        if state.get_run(7) is None:
            found = get_run(7)
            fab = get_fab("h", 7)
            made.fabs[found.fab_hash] = fab
            made.known = found
        made.ran += 1
        return 7

    asked = asking(pull, made.approvals)

    def keep(msg, state, store):
        made.answers.append(msg)

    monkeypatch.setattr(flower, "_insert_message", keep)
    made.pull = lambda empty=False: asked(
        state=made.state,
        object_store=None,
        receive=lambda: None if empty else (message, None),
        get_run=lambda run_id: made.run,
        get_fab=lambda fab_hash, run_id: SimpleNamespace(content=made.fab),
        trusted_entities=None,
    )
    return made


def test_nothing_to_do_is_nothing_to_ask(node):
    assert node.pull(empty=True) is None and node.answers == []


def test_what_is_not_approved_does_not_run_and_the_server_hears_why(node):
    assert node.pull() == 7 and node.ran == 0
    (answer,) = node.answers
    assert answer.error.code == ErrorCode.INVALID_FAB
    assert f"us app 2 ({APP.hash[:16]}): this site has not approved it" in answer.error.reason
    assert list(node.approvals.waiting()) == [APP.hash]


def test_an_approval_is_asked_for_at_every_message(node):
    node.approvals.decide(APP.hash, APP.title, "approved")
    assert [node.pull(), node.pull()] == [7, 7] and node.ran == 2 and node.answers == []
    node.approvals.decide(APP.hash, APP.title, "taken back")
    assert node.pull() == 7 and node.ran == 2
    assert "taken its approval back" in node.answers[0].error.reason


def test_a_run_that_flower_knew_before_is_asked_about_too(node):
    node.known = SimpleNamespace(fab_hash="h")
    assert node.pull() == 7 and node.ran == 0 and len(node.answers) == 1


@pytest.mark.parametrize("what", [b"", b"no zip"])
def test_what_is_no_app_does_not_run(node, what):
    node.fab = what
    assert node.pull() == 7 and node.ran == 0
    assert "no zip archive" in node.answers[0].error.reason


def test_a_damaged_list_approves_nothing_and_its_path_stays_at_the_site(node, caplog):
    node.approvals.decide(APP.hash, APP.title, "approved")
    (node.approvals.place / "approvals.json").write_text("x")
    assert node.pull() == 7 and node.ran == 0
    reason = node.answers[0].error.reason
    assert "cannot say whether" in reason and str(node.approvals.folder) not in reason


def test_it_takes_the_place_of_flowers_own(monkeypatch, tmp_path):
    before = PULL_A_MESSAGE.original()
    monkeypatch.setattr(flower, PULL_A_MESSAGE.name, before)
    ask_before_running(Approvals(tmp_path))
    assert PULL_A_MESSAGE.original() is not before


HERE = installed().files
CHANGED = {
    "a byte of the site's side": {"client_app/app.py": HERE["client_app/app.py"] + b"\n"},
    "code among the presets": {"conf/__init__.py": b""},
    "what ends as a preset does": {"conf/a/b/c.yaml": b""},
    "a library in front of the site's": {"torch.py": b""},
    "a package of that name": {"numpy/__init__.py": b""},
    "compiled code": {"client_app/__pycache__/app.cpython-311.pyc": b"x"},
    "a shared library": {"fedapp/core/rng.abi3.so": b"x"},
    "what Python runs when it starts": {"sitecustomize.py": b""},
    "paths for Python": {"more.pth": b"import os"},
    "another README in a package": {"fedapp/README.md": b""},
    "another entry point": {
        "pyproject.toml": HERE["pyproject.toml"].replace(b"client_app.app:app", b"client_app.x:app")
    },
    "a file less": {"fedapp/site/terms.py": None},
    "a file of another case": {"Torch.py": b""},
}


@pytest.mark.parametrize("files", CHANGED.values(), ids=CHANGED)
def test_an_app_that_is_nearly_the_installed_one_does_not_run(node, files):
    """The approval of another app, of the same name and version, is no help."""
    merged = {**HERE, **files}
    node.fab = fab([(name, content) for name, content in merged.items() if content is not None])
    node.approvals.decide(installed().hash, installed().title, "approved")
    assert node.pull() == 7 and node.ran == 0
    assert "this site has not approved it" in node.answers[0].error.reason
    (line,) = [one for one in Record(node.approvals.folder).lines() if one["event"] == "refused"]
    assert line["asked"] == "to run an app" and "not approved" in line["why"]


@pytest.mark.parametrize("more", [{}, {"conf/hospitals.yaml": b"name: hospitals\n"}])
def test_the_installed_app_runs_however_it_is_packed_and_whatever_presets_come_along(node, more):
    node.fab = fab({**HERE, **more}.items())
    assert node.pull() == 7 and node.ran == 1 and node.answers == []


def test_a_run_of_agents_is_refused_whatever_app_it_brings(node):
    node.fab, node.run.primary_task_type = fab(HERE.items()), TaskType.AGENT_APP
    assert node.pull() == 7 and node.ran == 0
    assert "no runs of agents" in node.answers[0].error.reason


# --- the installed app in the place of another ----------------------------------------------------

NEIGHBOUR = {
    **HERE,
    "server_app/app.py": HERE["server_app/app.py"] + b"\n# newer\n",
    "pyproject.toml": HERE["pyproject.toml"].replace(b'version = "', b'version = "9.'),
    "conf/hospitals.yaml": b"name: hospitals\n",
    "torch.py": b"raise SystemExit",
}
"""A version whose numbers are made by the same files, with a preset of its own and a trap."""


@pytest.fixture
def standing_in(node):
    """A site whose installed app stands in for others."""
    path = node.approvals.folder / "site.yaml"
    path.write_text("stand_in: true\n")
    path.chmod(0o600)
    node.terms, node.fab = path, fab(NEIGHBOUR.items())
    return node


def test_the_installed_app_does_a_run_of_a_neighbouring_version(standing_in, tmp_path):
    node = standing_in
    assert [node.pull(), node.pull()] == [7, 7] and node.ran == 2 and node.answers == []
    content = node.fabs[node.run.fab_hash].content
    assert node.run.fab_hash == hashlib.sha256(content).hexdigest()
    made = read_fab(content)
    assert made.hash == installed().hash and "torch.py" not in made.files
    assert made.files["server_app/app.py"] == HERE["server_app/app.py"]
    assert made.files["conf/hospitals.yaml"] == b"name: hospitals\n"
    assert made.files["conf/terms/stands_in_for.yaml"].decode() == digest_of_files(NEIGHBOUR)
    assert node.run.fab_version in HERE["pyproject.toml"].decode()
    placed = install_from_fab(content, tmp_path / "apps", skip_prompt=True)  # Flower takes it
    assert not (placed / "torch.py").exists() and (placed / "conf/hospitals.yaml").is_file()
    (line,) = Record(node.approvals.folder).lines()
    assert line["event"] == "stood in" and read_fab(node.fab).hash[:16] in line["why"]


@pytest.mark.parametrize(("files", "said"), [
    ({"fedapp/learn/steps.py": b""}, "computes numbers by other files (fedapp/learn/steps.py)"),
    ({"fedapp/methods/new.py": b"", "fedapp/site/privacy_budget.py": b""}, "new.py and 1"),
    ({"fedapp/core/rng.py": None}, "fedapp/core/rng.py"),
    ({"fedapp/protocol/messages.py": speaks(LATER, LATER, LATER)},
     f"writes messages {LATER} (understands {LATER} to {LATER}), the code here {SCHEMA}"),
    ({"fedapp/protocol/messages.py": speaks(LATER, SCHEMA, LATER)}, f"writes messages {LATER}"),
    ({"fedapp/protocol/messages.py": speaks(SCHEMA, LATER, LATER)}, f"writes messages {SCHEMA}"),
    ({"fedapp/protocol/messages.py": b"SCHEMA = nine\n"}, "does not say which messages"),
])  # fmt: skip
def test_where_numbers_or_messages_are_others_it_does_not_and_says_why(standing_in, files, said):
    node, merged = standing_in, {**NEIGHBOUR, **files}
    node.fab = fab([(name, content) for name, content in merged.items() if content is not None])
    assert node.pull() == 7 and node.ran == 0
    reason = node.answers[0].error.reason
    assert "this site has not approved it" in reason and said in reason


def test_a_version_whose_messages_are_others_but_understood_is_stood_in_for(standing_in):
    standing_in.fab = fab({**NEIGHBOUR, "fedapp/protocol/messages.py": SPEAKS}.items())
    standing_in.pull()
    assert standing_in.ran == 1


SPEAKS = speaks(SCHEMA, SCHEMA - 1, SCHEMA + 2)


@pytest.mark.parametrize("word", ["refused", "taken back"])
def test_a_person_s_word_goes_before_it(standing_in, word):
    app = read_fab(standing_in.fab)
    standing_in.approvals.decide(app.hash, app.title, word)
    assert standing_in.pull() == 7 and standing_in.ran == 0


def test_what_is_approved_runs_itself(standing_in):
    app = read_fab(standing_in.fab)
    standing_in.approvals.decide(app.hash, app.title, "approved")
    standing_in.pull()
    assert standing_in.ran == 1 and standing_in.fabs["h"].content == standing_in.fab


def test_the_installed_app_that_may_not_run_stands_in_for_none(standing_in):
    standing_in.approvals.decide(installed().hash, "x", "taken back")
    assert standing_in.pull() == 7 and standing_in.ran == 0


def test_terms_that_change_end_it(standing_in):
    standing_in.pull()
    standing_in.terms.write_text("stand_in: false\n")
    assert standing_in.pull() == 7 and standing_in.ran == 1
    assert "(stand_in)" in standing_in.answers[0].error.reason


@pytest.mark.parametrize("text", ["{}", "stand_in: false\n", "stand_in: 1\n", "nonsense"])
def test_without_the_term_nobody_stands_in(standing_in, text):
    standing_in.terms.write_text(text)
    assert standing_in.pull() == 7 and standing_in.ran == 0


def test_an_app_cannot_say_of_itself_that_it_stands_in(node):
    """It would have other code's hash believed, which its coordinator signed."""
    node.fab = fab({**HERE, "conf/terms/stands_in_for.yaml": b"0123456789abcdef"}.items())
    assert node.pull() == 7 and node.ran == 0
    assert "stands in for another" in node.answers[0].error.reason


def test_this_code_says_which_messages_it_understands():
    assert installed()._speaks == (SCHEMA, *READS) and READS[0] <= SCHEMA <= READS[1]
    assert not installed().unlike(installed())


def test_presets_that_flower_does_not_take_are_refused(standing_in):
    large = b"# " + os.urandom(11 * 2**20).hex().encode()
    standing_in.fab = fab({**NEIGHBOUR, "conf/large.yaml": large}.items())
    assert standing_in.pull() == 7 and standing_in.ran == 0
    assert "presets cannot be taken" in standing_in.answers[0].error.reason
