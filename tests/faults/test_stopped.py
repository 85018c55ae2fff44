"""What rightly stops a run: it says why and how to go on, and going on gives the same bits."""

import pytest

from tests.faults.disk import Disk, may_mount
from tests.faults.memory import too_little_memory
from tests.faults.runs import outcome, until
from tests.faults.table import note
from tests.flower.results import loopback

ALL = {"rounds__num_rounds": 3, "rounds__min_reply_share": 1.0}


def stopped(run):
    """Wait until a run has stopped without a result; return what it said."""
    until(lambda: run.submission.poll() is not None, "the end of flwr run", 0.1)
    assert not (run.path / "summary.json").exists()
    return run.said()


def test_too_few_replies_then_going_on(here):
    twin = loopback(here.experiment("few-never", **ALL))
    site = here.nodes[2]
    run = here.submit("few", **ALL)
    run.until(lambda: run.at_work_after(0, 0), "north at work in round 1")
    with too_little_memory(site):
        said = stopped(run)
    done = run.round()
    assert run.lost() == []
    assert "rounds.min_reply_share = 1 asks for more; site 2 said: the site refused: " in said
    assert "continue with runtime.resume=true runtime.run_name=few" in said
    run = here.resume(run, **ALL)
    run.finished()
    assert outcome(run.path) == outcome(twin)
    note(
        9,
        "fewer answers than `rounds.min_reply_share`",
        "the run stopped and named the site, its reason and the settings to go on with; taken "
        f"up after round {done}, the same bits",
        1,
    )


@pytest.mark.skipif(not may_mount(), reason="needs the right to mount a small file system")
def test_disk_full_at_the_server(here):
    twin = loopback(here.experiment("full-never"))
    with Disk(here.folder / "small-disk", mib=16) as disk:
        place = {"runtime__out": str(here.folder / "small-disk")}
        run = here.submit("full", **place)
        run.until(lambda: run.at_work_after(0, 1), "north at work in round 2")
        disk.fill()
        said = stopped(run)
        disk.free()
        done = run.round()
        assert run.lost() == []
        assert "No space left on device" in said
        assert "continue with runtime.resume=true runtime.run_name=full" in said
        run = here.resume(run, **place)
        run.finished()
        assert outcome(run.path) == outcome(twin)
    note(
        8.5,
        "disk full at the server",
        "the run stopped and named the file, the room and the settings to go on with; taken "
        f"up after round {done} once there was space, the same bits",
        1,
    )
