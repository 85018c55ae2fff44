"""A site's list of apps: who may run, who waits, and lists that cannot be trusted."""

import io
import json
import os
import stat
from datetime import UTC, datetime, timedelta

import pytest
from rich.console import Console
from typer.testing import CliRunner

from fedapp.cli import app as command
from fedapp.core.errors import ConfigError
from fedapp.site.record import Record, user_name
from fedapp.tools.node import approvals as rules
from fedapp.tools.node.app_bundle import Bundle, installed, read_fab
from fedapp.tools.node.approvals import Approvals
from fedapp.tools.node.approve import decide, overview
from tests.tools.node.test_app_bundle import PROJECT, fab

FAB = fab([("pyproject.toml", PROJECT), ("a.py", b"pass")])
APP = read_fab(FAB)


@pytest.fixture
def site(tmp_path):
    return Approvals(tmp_path)


def saying(function, *args, **named):
    console = Console(width=300, file=io.StringIO())
    return function(*args, console=console, **named), console.file.getvalue()


def test_the_installed_app_may_run_and_no_other_until_it_is_approved(site):
    assert site.refusal(installed()) == ""
    assert "this site has not approved it" in site.refusal(APP)
    site.decide(APP.hash, APP.title, "approved")
    assert site.refusal(APP) == ""
    site.decide(APP.hash, APP.title, "taken back")
    assert "taken its approval back" in site.refusal(APP)
    site.decide(APP.hash, APP.title, "refused")
    assert "this site has refused it" in site.refusal(APP)
    site.decide(APP.hash, APP.title, "approved")
    assert site.refusal(APP) == "", "the last word counts"
    assert [one.word for one in site.decisions()] == [
        "approved",
        "taken back",
        "refused",
        "approved",
    ]


def test_even_the_installed_app_can_be_refused(site):
    site.decide(installed().hash, installed().title, "refused")
    assert "refused" in site.refusal(installed())


def test_an_app_waits_until_it_is_decided_on_and_is_then_kept_to_compare_with(site):
    site.keep_waiting(APP, FAB)
    assert list(site.waiting()) == [APP.hash] and site.last_approved().hash == installed().hash
    site.decide(APP.hash, APP.title, "approved")
    assert site.waiting() == {} and site.last_approved().hash == APP.hash
    site.decide(APP.hash, APP.title, "refused")
    site.keep_waiting(APP, FAB)
    assert site.waiting() == {}, "a person has decided"


def test_an_approval_of_long_ago_counts_no_more_until_a_person_looks_again(site, monkeypatch):
    site.decide(APP.hash, APP.title, "approved")
    path = site.place / "approvals.json"
    made = site.decisions()[-1].when
    for age, over in ((rules.LASTS_DAYS - 1, False), (rules.LASTS_DAYS + 1, True)):
        when = (datetime.now(UTC) - timedelta(age)).isoformat(timespec="seconds")
        path.write_text(path.read_text().replace(made, when))
        made = when
        assert ("older than 365 days" in site.refusal(APP)) is over
    path.write_text(path.read_text().replace(made, "some day"))
    assert "older than" in site.refusal(APP)
    site.decide(APP.hash, APP.title, "approved")
    assert site.refusal(APP) == ""


def test_a_server_cannot_fill_the_disk_with_apps(site, monkeypatch):
    monkeypatch.setattr(rules, "MAX_WAITING", 2)
    for number in range(4):
        content = fab([("pyproject.toml", PROJECT), ("a.py", str(number).encode())])
        site.keep_waiting(read_fab(content), content)
    assert len(site.waiting()) == 2


def test_only_its_owner_may_read_the_list(site):
    site.decide(APP.hash, APP.title, "approved")
    assert stat.S_IMODE((site.place / "approvals.json").stat().st_mode) == 0o600
    assert stat.S_IMODE(site.place.stat().st_mode) == 0o700


def listed(**changes):
    one = {"app": "a" * 64, "word": "approved", "title": "t", "when": "w", "by": "b", **changes}
    return {"version": 1, "decisions": [one]}


@pytest.mark.parametrize("text", [
    "", "no json", "[]", "{}x",
    json.dumps({**listed(), "version": 2}),
    json.dumps({**listed(), "more": 1}),
    json.dumps(listed(word="allowed")),
    json.dumps(listed(app="a" * 63)),
    json.dumps(listed(app=f"{'a' * 63}Z")),
    json.dumps(listed(more="x")),
    json.dumps(listed(by=3)),
])  # fmt: skip
def test_a_list_that_somebody_edited_badly_lets_nothing_run(site, text):
    site.decide(APP.hash, APP.title, "approved")
    (site.place / "approvals.json").write_text(text)
    with pytest.raises(ConfigError, match=r"approvals\.json: .*fedapp approve"):
        site.refusal(APP)
    with pytest.raises(ConfigError):
        site.refusal(installed())


@pytest.mark.parametrize("what", ["approvals.json", ""])
def test_a_list_that_others_may_write_lets_nothing_run(site, what):
    site.decide(APP.hash, APP.title, "approved")
    for mode in (0o622, 0o620, 0o602):
        (site.place / what).chmod(mode | (0o111 if not what else 0))
        with pytest.raises(ConfigError, match=r"others may write it.*chmod go-w"):
            site.refusal(APP)
        (site.place / what).chmod(0o700)
    assert site.refusal(APP) == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_list_of_another_users_lets_nothing_run(site):
    site.decide(APP.hash, APP.title, "approved")
    os.chown(site.place / "approvals.json", 12345, -1)
    with pytest.raises(ConfigError, match="belongs to user 12345"):
        site.refusal(APP)


def test_a_person_is_shown_the_app_and_asked(site, monkeypatch):
    site.keep_waiting(APP, FAB)
    monkeypatch.setattr("rich.prompt.Confirm.ask", lambda *_, **__: False)
    done, said = saying(decide, APP.hash[:8], "approved", site, sure=False, lines=False)
    assert not done and "Nothing is decided" in said and site.decisions() == []
    assert "NOT KEPT" in said, "it is no app of this project's"
    assert APP.hash in said and "the installed app" in said and "removed  fedapp/cli/run.py" in said
    done, said = saying(decide, APP.hash[:8], "approved", site, sure=True, lines=True)
    assert done and "+pass" in said and "is approved" in said
    new = Bundle({**APP.files, "a.py": b"other"})
    assert new.differences(site.last_approved()) == {"a.py": "changed"}


def test_an_app_that_keeps_the_sites_terms_is_said_to(site):
    _, said = saying(decide, installed().hash, "refused", site, sure=True, lines=False)
    assert "terms     kept by this code" in said


@pytest.mark.parametrize("what", ["", "abc", "f" * 16, "/no/such/place"])
def test_an_app_that_nobody_knows_is_an_error(site, what):
    with pytest.raises(ConfigError, match="8 or more digits"):
        saying(decide, what, "approved", site, sure=True, lines=False)


def test_what_is_not_at_hand_cannot_be_approved_but_can_be_refused(site):
    site.decide(APP.hash, APP.title, "refused")
    with pytest.raises(ConfigError, match="no longer available"):
        saying(decide, APP.hash, "approved", site, sure=True, lines=False)
    assert saying(decide, APP.hash, "taken back", site, sure=True, lines=False)[0]


def test_the_list_says_what_runs_and_what_waits(site):
    site.keep_waiting(APP, FAB)
    _, said = saying(overview, site)
    assert "may run: it is installed here" in said and "us app 2" in said
    assert "waits for your word" in said


def test_the_commands(tmp_path):
    (tmp_path / "app.fab").write_bytes(FAB)
    run = CliRunner().invoke
    done = run(command, ["approve", str(tmp_path / "app.fab"), "--hash"])
    assert done.output.split() == [APP.hash, "us", "app", "2"]
    folder = ["--site-folder", str(tmp_path)]
    done = run(command, ["approve", str(tmp_path / "app.fab"), *folder, "--yes"])
    assert done.exit_code == 0 and Approvals(tmp_path).refusal(APP) == ""
    assert run(command, ["approve", APP.hash, *folder], input="n\n").exit_code == 1
    assert run(command, ["approve", APP.hash, *folder, "--take-back", "--yes"]).exit_code == 0
    assert Approvals(tmp_path).refusal(APP)
    for words in (["approve"], ["approve", "x", *folder, "--refuse", "--take-back"]):
        assert isinstance(run(command, words).exception, ConfigError)


def test_an_audit_says_whether_there_is_a_record_and_takes_one_by_a_persons_word(tmp_path):
    def audited(*words):
        return CliRunner().invoke(command, ["audit", "--site-folder", str(tmp_path), *words])

    done = audited()
    assert done.exit_code == 1 and "there is no record" in done.output
    record = Record(tmp_path)
    record.add("sent", run="a", epsilon=1.0)
    older = record.path.read_bytes()
    record.add("sent", run="a", epsilon=2.0)
    assert audited().exit_code == 0
    record.path.write_bytes(older)
    done = audited()
    assert done.exit_code == 1 and "BROKEN" in done.output
    done = audited("--accept", "backup of 3 May")
    assert done.exit_code == 0 and "accepted as it was: backup of 3 May" in done.output
    said = f"in {user_name()}'s heads: {os.environ['FEDAPP_HEADS']}"
    assert said in done.output.replace("\n", "")
    assert audited().exit_code == 0
    assert [line["event"] for line in record.lines()] == ["sent", "accepted"]


@pytest.mark.parametrize("begun", [True, False])
def test_another_user_than_the_nodes_takes_no_record(tmp_path, monkeypatch, begun):
    """As by sudo: that user's heads lie elsewhere, and the node would not see the word."""
    own = tmp_path / "own"
    own.mkdir()
    if begun:
        Record(own).add("sent", run="a")
    if os.geteuid() == 0:
        for path in (own, *own.rglob("*")):
            os.chown(path, 12345, 12345)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    before = sorted(own.rglob("*"))
    words = ["audit", "--site-folder", str(own), "--accept", "moved"]
    why = str(CliRunner().invoke(command, words).exception)
    node = user_name(own.stat().st_uid)
    assert why == (
        f"{own}: belongs to {node}, and this program runs as {user_name()}, whose heads the node "
        f"does not read ({os.environ['FEDAPP_HEADS']}): run it as {node}"
    )
    assert sorted(own.rglob("*")) == before


def test_terms_of_an_empty_or_absent_file_say_what_to_do(tmp_path):
    for make in (lambda: None, (tmp_path / "site.yaml").touch):
        make()
        done = CliRunner().invoke(command, ["terms", "--site-folder", str(tmp_path)])
        assert "fedapp terms --example" in str(done.exception)
