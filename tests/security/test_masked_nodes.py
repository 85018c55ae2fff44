"""Masked sums between real programs: three SuperNodes with registered keys, killed and hostile."""

import tempfile
from pathlib import Path

import pytest

from fedapp.tools.deploy.registered_sites import members_line
from tests.deployment import BIN
from tests.faults.federation import SITES, by_fedapp, federation
from tests.faults.runs import until
from tests.flower.results import loopback
from tests.server.test_masked_sums import model, pool

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


def settings(folder, **over):
    """Those of a run whose members are the three registered sites, by number."""
    files = [folder / f"keys/server/supernodes/{site}.pub" for site in SITES]
    agreed = members_line(files).split('"')[1].replace(" ", "")
    for number, site in enumerate(SITES):
        agreed = agreed.replace(f"{site}=", f"{number}=")
    own = {
        "method__preset": "fedavg_ft", "training__warmup_rounds": 1,
        "method__helper_list_size": None,
        "method__num_replaced": None, "method__search_rounds": None, "method__mc_samples": None,
        "privacy__sums": "masked", "privacy__members": agreed,
    }  # fmt: skip
    return {**own, **over}


def test_masks_between_real_sites(here, tmp_path):
    """The same bits as in loopback, though all keys are others and drawn by chance."""
    for folder in here.site_folders.values():
        (folder / "site.yaml").write_text("masked_only: true\nleast_members: 3\nleaves: [models]\n")
        (folder / "site.yaml").chmod(0o600)
    masked = here.submit("masked", **settings(tmp_path), rounds__num_rounds=1)
    masked.finished()
    there = here.experiment(
        "loop", **settings(tmp_path, privacy__members=""), runtime__out=str(tmp_path / "loop"),
        rounds__num_rounds=1,
    )  # fmt: skip
    assert pool(masked.path) == pool(loopback(there))
    assert model(masked.path)
    for number, folder in here.site_folders.items():
        [secret] = folder.glob(".masked-sums/*/*/secret.key")
        assert secret.stat().st_mode & 0o777 == 0o600, number
        assert not list(here.stores[number].rglob("models/*.pickle"))

    open_ = here.submit("open", **settings(tmp_path, privacy__members=""), rounds__num_rounds=1)
    until(lambda: open_.submission.poll() is not None, "the refused run's end", 0.1)
    assert "this site's terms (masked_only): no privacy.members" in open_.said()

    plain = here.submit("plain", **settings(tmp_path, privacy__sums="plain", privacy__members=""),
                        rounds__num_rounds=1)  # fmt: skip
    until(lambda: plain.submission.poll() is not None, "the refused run's end", 0.1)
    assert "this site's terms (masked_only): privacy.sums = 'plain'" in plain.said()


def test_a_site_killed_in_a_masked_run_goes_on(here, tmp_path):
    """Of three sites none may be lost: the run ends and says so, and is taken up with all three."""
    given = {**settings(tmp_path), "rounds__num_rounds": 2, "rounds__deadline_s": 60.0}
    run = here.submit("killed", **given)
    until(lambda: len(run.rows()) >= 1, "the first round's end", 0.1)
    here.nodes[1].kill()
    here.nodes[1].start()
    until(lambda: run.submission.poll() is not None, "the run's end", 0.1)
    if not (run.path / "summary.json").exists():
        assert "a masked sum needs 3: a third of them may be lost, but 3 must be left" in run.said()
        until(lambda: here.online() == len(SITES), "three sites online")
        run = here.resume(run, **given)
        run.finished()
    assert len(run.rows()) == 3
