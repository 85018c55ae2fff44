"""The ServerApp killed in any phase: taken up, it ends with the bits of a run never cut."""

import os
import signal
from dataclasses import dataclass

from fedapp.core.processes import alive
from tests.faults.runs import outcome
from tests.faults.table import note
from tests.flower.results import loopback

ROUNDS = {"rounds__num_rounds": 6}


@dataclass(frozen=True)
class Cut:
    """What was there when the server had been killed. done: last round of the checkpoint."""

    done: int
    rows: int
    begun: bool
    lost: int


def kill(here, run, when, phase, pause_s):
    """Kill SuperExec and ServerApp in a phase, and start the SuperExec again.

    The ServerApp first, in the moment when the phase is there: some are over in milliseconds.
    """
    servers = run.until(lambda: here.superexec.pids("flwr-serverapp"), "the ServerApp")
    run.until(when, phase, pause_s)
    for server in servers:
        os.kill(server, signal.SIGKILL)
    begun = busy(run)
    here.superexec.kill()
    run.until(lambda: not alive(servers), "the ServerApp's end")
    cut = Cut(run.round(), len(run.rows()), begun, len(run.lost()))
    run.hang_up()
    here.superexec.start()
    return cut


def busy(run):
    return any(run.at_work(site) for site in run.stores)


def asked(run):
    """The sites are asked who they are."""
    return (run.path / "run.json").exists()


def warming_up(run):
    return run.round() == -1 and busy(run)


def in_a_round(run):
    return run.round() >= 0 and busy(run)


def written_but_not_saved(run):
    """A round's row is on the disk, its checkpoint is not."""
    rows = run.rows()
    return bool(rows) and rows[-1]["round"] == run.round() + 1 > 0


def test_the_serverapp_killed_in_every_phase(here):
    twin = loopback(here.experiment("phases-never-cut", **ROUNDS))
    run = here.submit("phases", **ROUNDS)
    cuts = {}

    def cut(phase, when, pause_s=0.005):
        nonlocal run
        cuts[phase] = found = kill(here, run, when, phase, pause_s)
        run = here.resume(run, **ROUNDS)
        if found.done >= 0:
            run.until(lambda: f"resuming after round {found.done}" in run.said(), "resuming", 0.1)
        return found

    assert cut("while it asks the sites who they are", lambda: asked(run)).done == -1
    assert cut("in the warm-up, sites at work", lambda: warming_up(run)).done == -1
    assert cut("in a round, sites at work", lambda: in_a_round(run)).done == 0
    before = run.round()
    assert cut("between two rounds", lambda: run.round() > before, 0.001).done == before + 1
    for _ in range(3):  # it takes some milliseconds: sometimes it is over before the signal
        found = cut("while it writes a round's records", lambda: written_but_not_saved(run), 0)
        if found.rows == found.done + 2:
            break
    run.finished()
    assert [row["skipped"] for row in run.rows()] == [{}] * (1 + ROUNDS["rounds__num_rounds"])
    assert outcome(run.path) == outcome(twin)
    assert found.rows == found.done + 2, "the checkpoint was always there before the kill"
    for number, (phase, found) in enumerate(cuts.items()):
        repeated = int(found.begun or found.rows == found.done + 2)
        again = f"from round {found.done + 1}" if found.done >= 0 else "from its beginning"
        happened = f"taken up {again} with `runtime.resume=true`; the same bits"
        where = f"the ServerApp killed {phase}"
        note(5 + number / 10, where, happened, repeated, found.lost)
