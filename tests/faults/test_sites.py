"""Faults of a site: the others go on, it is named with a reason and is back in a later round."""

import re
import shutil
import signal

import pytest

from tests.faults.disk import Disk, may_mount
from tests.faults.federation import SITES
from tests.faults.memory import NONE_LEFT, too_little_memory
from tests.faults.runs import until
from tests.faults.table import note

NORTH, SOUTH, WEST = range(len(SITES))


def others_moved_on(run, site, rounds):
    """Whether in these rounds every other site trained."""
    trained = {row["round"]: row["trained"] for row in run.rows()}
    return all(trained[number] == len(SITES) - 1 for number in rounds)


def told(run, site, back):
    """Return what happened to a site, in a line, after checking that the others went on."""
    out = run.skipped(site)
    assert others_moved_on(run, site, out), run.rows()
    [first, *_] = out
    rounds = f"round {first}" if len(out) == 1 else f"rounds {first} to {max(out)}"
    return f'{rounds} without it ("{_short(out[first])}"); took part again in round {back}'


def _short(reason):
    """Without what every reason begins with, folders and digests; short enough for a table."""
    reason = re.sub(r"/\S*/|(?<=[0-9a-f]{8})[0-9a-f]{56}", "", reason)
    reason = reason.removeprefix("the site refused: ")
    return reason if len(reason) <= 100 else reason[:97] + "..."


def test_power_cut_at_one_site_empty_disk_at_another(here):
    """North is killed at work; when it is back, south is stopped and comes back without models."""
    run = here.submit("power", rounds__num_rounds=12, rounds__min_reply_share=0.3)
    north, south = here.nodes[NORTH], here.nodes[SOUTH]
    run.until(lambda: run.at_work_after(NORTH, 1), "north at work in round 2")
    north.kill()
    assert not north.pids()
    north.start()  # the machine is up again, long before Flower has noticed
    first = run.until(lambda: run.skipped(NORTH), "north skipped", 0.1)
    assert run.lost() == []
    back = run.back(NORTH, max(first))
    out = run.skipped(NORTH)
    happened = told(run, NORTH, back)
    refused = north.said().count("[code: 2004]")
    assert refused, "it was let in at once"
    note(
        1,
        "a SuperNode killed while training (`kill -9`, with all its processes)",
        f"{happened}; until Flower had noticed, it was turned away {refused} times (Exit Code "
        "305) and started again by its supervisor",
    )

    done = run.round()
    run.until(lambda: run.at_work_after(SOUTH, done), "south at work")
    south.end()
    shutil.rmtree(here.stores[SOUTH])
    south.start()
    after = min(run.until(lambda: run.skipped(SOUTH), "south skipped", 0.1))
    back = run.back(SOUTH, after)
    assert list((here.stores[SOUTH] / "power").rglob("*.safetensors"))
    happened = told(run, SOUTH, back)
    run.finished()
    note(
        3,
        "a site stopped, its disk lost, started again with an empty folder",
        f"{happened}; the models that it needs were sent again",
    )
    assert len(out) < 4
    assert run.rows()[-1]["trained"] == len(SITES)


def test_a_site_that_hangs(here):
    """Its worker and its message's process stand still past `rounds.deadline_s`, then go on."""
    run = here.submit("hang", rounds__num_rounds=5, rounds__deadline_s=45.0)
    site = here.nodes[SOUTH]
    run.until(lambda: run.at_work_after(SOUTH, 1), "south at work in round 2")
    still = site.signal(signal.SIGSTOP, "client_app.resident.worker")
    still |= site.signal(signal.SIGSTOP, "flwr-clientapp")
    assert len(still) >= 2
    first = min(run.until(lambda: run.skipped(SOUTH), "south skipped", 0.1))
    assert run.lost() == []
    site.signal(signal.SIGCONT)
    back = run.back(SOUTH, first)
    assert re.search("no answer within 45 s|Flower error 3:", run.skipped(SOUTH)[first])
    happened = told(run, SOUTH, back)
    run.finished()
    note(2, "a site hangs past `rounds.deadline_s` (`kill -STOP`), then goes on", happened)


def test_the_clientapp_raises(here):
    run = here.submit("raises", rounds__num_rounds=5)
    site = here.nodes[WEST]
    run.until(lambda: run.at_work_after(NORTH, 0), "north at work in round 1")
    with too_little_memory(site):
        first = min(run.until(lambda: run.skipped(WEST), "west skipped", 0.02))
    back = run.back(WEST, first)
    assert "at the site; the site's own log says more" in run.skipped(WEST)[first]
    assert NONE_LEFT in site.said()
    happened = told(run, WEST, back)
    run.finished()
    note(4, "the ClientApp raises (too little memory for PyTorch)", happened)


def test_the_process_of_a_message_dies(here):
    run = here.submit("dies", rounds__num_rounds=4)
    site = here.nodes[NORTH]
    run.until(lambda: run.at_work_after(NORTH, 0), "north at work in round 1")
    assert site.signal(signal.SIGKILL, "flwr-clientapp")
    first = min(run.until(lambda: run.skipped(NORTH), "north skipped", 0.1))
    back = run.back(NORTH, first)
    happened = told(run, NORTH, back)
    run.finished()
    note(4.5, "the process of a message dies at work (`kill -9` of flwr-clientapp)", happened)


@pytest.mark.skipif(not may_mount(), reason="needs the right to mount a small file system")
def test_disk_full_at_a_site(here):
    site = here.nodes[SOUTH]
    site.end()
    with Disk(here.stores[SOUTH], mib=8) as disk:
        site.start()
        until(lambda: here.online() == len(SITES), "three sites online")
        run = here.submit("disk", rounds__num_rounds=5)
        run.until(lambda: run.at_work_after(SOUTH, 0), "south at work in round 1")
        disk.fill()
        first = min(run.until(lambda: run.skipped(SOUTH), "south skipped", 0.02))
        disk.free()
        back = run.back(SOUTH, first)
        happened = told(run, SOUTH, back)
        assert "No space left on device" in run.skipped(SOUTH)[first]
        run.finished()
        site.end()
    site.start()
    note(8, "disk full at a site", f"{happened}, after space was made")
