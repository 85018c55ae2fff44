"""A site runs what it has approved: real programs, a real run, an app that nobody at the site saw.

The changed app leaves a file at every place where one of its lines runs.
"""

import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest

from fedapp.core.processes import read_proc
from fedapp.site.record import Record
from fedapp.tools.node.app_bundle import read_app
from fedapp.tools.node.approvals import Approvals
from tests.deployment import BIN
from tests.faults.federation import ROOT, SITES, by_fedapp, federation
from tests.faults.programs import MARK
from tests.faults.runs import outcome, until
from tests.flower.results import loopback

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not (BIN / "fedapp").exists(), reason="the command is not installed"),
]


@contextmanager
def held(folder, node_of):
    with (
        tempfile.TemporaryDirectory(prefix="um-", ignore_cleanup_errors=True) as scratch,
        federation(folder, Path(scratch), node_of) as made,
    ):
        yield made


@pytest.fixture
def here(tmp_path):
    with held(tmp_path, by_fedapp) as made:
        yield made


def foreign_app(folder, tell):
    """A copy of the app whose site's side writes a file as soon as one of its lines runs.

    It is named after the program. At the server the app may run: there it was started.
    """
    for name in ("fedapp", "server_app", "client_app", "conf"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / name)
    place = f"{str(tell)!r} + os.path.basename(os.environ.get({MARK!r}, 'elsewhere'))"
    told = f"import os; open({place}, 'w').close()\n"
    for part in ("__init__.py", "app.py"):
        file = folder / "client_app" / part
        text = file.read_text()
        file.write_text(told + text)
    return read_app(folder)


def ran_at(folder):
    """The sites at which a line of the changed app has run."""
    return {path.name.removeprefix("line-") for path in folder.iterdir()} & set(SITES)


def test_only_what_a_site_approved_runs_there(here, tmp_path):
    here.submit("installed", rounds__num_rounds=1).finished()

    app, ran = tmp_path / "foreign", tmp_path / "ran"
    app.mkdir(), ran.mkdir()
    bundle = foreign_app(app, ran / "line-")
    run = here.submit("foreign", app, rounds__num_rounds=1, rounds__join_wait_s=20.0)
    until(lambda: run.submission.poll() is not None, "the refused run's end", 0.1)
    why = f"({bundle.hash[:16]}): this site has not approved it"
    assert why in run.said(), run.said()[-3000:]
    assert not ran_at(ran), "a line of an app that nobody approved ran at a site"
    for number in range(len(SITES)):
        assert why in here.nodes[number].said()
        approvals = Approvals(here.site_folders[number])
        assert list(approvals.waiting()) == [bundle.hash]
        approvals.decide(bundle.hash, bundle.title, "approved")

    here.submit("approved", app, rounds__num_rounds=1).finished()
    assert ran_at(ran) == set(SITES)

    for path in ran.iterdir():
        path.unlink()
    for number in range(len(SITES)):
        Approvals(here.site_folders[number]).decide(bundle.hash, bundle.title, "taken back")
    again = here.submit("again", app, rounds__num_rounds=1, rounds__join_wait_s=20.0)
    until(lambda: again.submission.poll() is not None, "the refused run's end", 0.1)
    assert "this site has taken its approval back" in again.said()
    assert not ran_at(ran)


def test_a_site_of_an_earlier_version_is_in_one_run_with_todays(here, tmp_path):
    """North's own code does a run that brings other code, which the two others approved."""
    plain = here.submit("plain", rounds__num_rounds=1)
    plain.finished()
    app, ran = tmp_path / "newer", tmp_path / "ran"
    app.mkdir(), ran.mkdir()
    bundle = foreign_app(app, ran / "line-")
    terms = here.site_folders[0] / "site.yaml"
    terms.write_text("stand_in: true\n")
    terms.chmod(0o600)
    for number in (1, 2):
        Approvals(here.site_folders[number]).decide(bundle.hash, bundle.title, "approved")
    mixed = here.submit("mixed", app, rounds__num_rounds=1)
    mixed.finished()
    assert ran_at(ran) == {"south", "west"}
    assert outcome(mixed.path) == outcome(plain.path)
    (line,) = [one for one in Record(here.site_folders[0]).lines() if one["event"] == "stood in"]
    assert bundle.hash[:16] in line["why"]

    learns = app / "fedapp/learn/optimisers.py"
    learns.write_text(learns.read_text() + "\n")
    other = read_app(app)
    for number in (1, 2):
        Approvals(here.site_folders[number]).decide(other.hash, other.title, "approved")
    apart = here.submit("apart", app, rounds__num_rounds=1, rounds__join_wait_s=20.0)
    until(lambda: apart.submission.poll() is not None, "the end without north", 0.1)
    assert "computes numbers by other files (fedapp/learn/optimisers.py)" in here.nodes[0].said()
    assert ran_at(ran) == {"south", "west"}


def commits(*which):
    """The names of commits, the newest first."""
    asked = ["git", "-C", ROOT, "log", "--format=%h", *which]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.split()


def laid_down(commit, folder):
    """The project as it was, for one site to have installed."""
    folder.mkdir()
    packed = subprocess.run(["git", "-C", ROOT, "archive", commit], capture_output=True, check=True)
    subprocess.run(["tar", "-x", "-C", folder], input=packed.stdout, check=True)
    return folder


def north_of(old):
    """North's node is an earlier version's; its site folder is that of its keys, and has terms."""

    def node_of(place):
        words = by_fedapp(place)
        if place.number:
            return words
        terms = place.key.parent / "site.yaml"  # without terms a node does not start
        terms.write_text("stand_in: true\n")
        terms.chmod(0o600)
        at = words.index("--site-folder")  # an older node has none
        return [
            "/usr/bin/env", f"PYTHONPATH={old}", sys.executable, "-P", "-m",
            *words[:at], *words[at + 2 :],
        ]  # fmt: skip

    return node_of


def test_an_earlier_versions_own_code_does_a_run_of_today_or_says_what_to_install(tmp_path):
    """The code of the newest commit that is another app than today's, installed at north."""
    app = read_app(ROOT)
    for commit in commits("-30"):
        old = laid_down(commit, tmp_path / commit)
        if (its := read_app(old)).hash != app.hash:
            break
    else:
        pytest.skip("this clone has no commit whose app is another one")
    with held(tmp_path, north_of(old)) as here:
        own = here.folder / "keys/sites/north"
        said = {"rounds__num_rounds": 1, "rounds__join_wait_s": 30.0}
        mixed = here.submit("mixed", **said)
        if why := app.unlike(its):
            until(lambda: mixed.submission.poll() is not None, "the end without north", 0.1)
            assert why in mixed.said() and "fedapp approve" in mixed.said()
            return
        mixed.finished()
        (line,) = [one for one in Record(own).lines() if one["event"] == "stood in"]
        assert app.hash[:16] in line["why"]
        twin = here.experiment("twin", **said, runtime__out=str(tmp_path / "twins"))
        assert outcome(mixed.path) == outcome(loopback(twin))


def test_a_site_with_the_node_of_the_day_before_is_in_a_run_of_today(tmp_path):
    """Its node, gate, record and resident worker's start are older than the app that it runs."""
    if not (found := commits("-1", "--before=1 day ago")):
        pytest.skip("this clone has no commit that is a day old")
    old = laid_down(*found, tmp_path / "old")
    if not (old / "fedapp/site/rollback_guard.py").exists():
        pytest.skip("a node of that day left no head of its record: it must be updated (CHANGELOG)")
    with held(tmp_path, north_of(old)) as here:
        app = read_app(ROOT)
        Approvals(here.folder / "keys/sites/north").decide(app.hash, app.title, "approved")
        here.submit("whole", rounds__num_rounds=1).finished()
        assert str(old) in "".join(
            read_proc(pid, "environ").decode() for pid in here.nodes[0].pids()
        )
