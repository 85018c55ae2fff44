"""A site runs what it has approved: real programs, a real run, an app that nobody at the site saw.

The changed app leaves a file at every place where one of its lines runs.
"""

import shutil
import tempfile
from pathlib import Path

import pytest

from bench.deployment import BIN
from fedapp.tools.node.approvals import Approvals
from fedapp.tools.node.bundle import read_app
from tests.faults.federation import ROOT, SITES, by_fedapp, federation
from tests.faults.programs import MARK
from tests.faults.runs import until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not (BIN / "fedapp").exists(), reason="the command is not installed"),
]


@pytest.fixture
def here(tmp_path):
    with (
        tempfile.TemporaryDirectory(prefix="um-", ignore_cleanup_errors=True) as scratch,
        federation(tmp_path, Path(scratch), by_fedapp) as made,
    ):
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
