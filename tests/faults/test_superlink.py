"""The SuperLink killed: the run goes on by itself; with the ServerApp killed, it is taken up."""

from tests.faults.runs import outcome, until
from tests.faults.table import note
from tests.flower.results import loopback


def test_the_superlink_killed_then_the_whole_server(here):
    twin = loopback(here.experiment("superlink-never-cut", rounds__num_rounds=7))
    run = here.submit("superlink", rounds__num_rounds=7)
    run.until(lambda: run.at_work_after(0, 1), "north at work in round 2")
    here.kill_superlink()
    until(lambda: not any(run.at_work(site) for site in run.stores), "the sites done")
    here.start_superlink()
    second = here.resume(run, rounds__num_rounds=7)
    until(lambda: second.submission.poll() is not None, "the end of a second server", 0.1)
    assert "its run is still going on" in second.said()

    def went_on():
        assert here.superexec.pids("flwr-serverapp"), here.superexec.said()[-3000:]
        return run.round() >= 2

    until(went_on, "round 2", 0.1)
    assert run.lost() == []
    starts = [node.starts for node in here.nodes]

    until(lambda: run.at_work_after(1, run.round()), "south at work in another round")
    here.kill_superlink()
    servers = here.superexec.pids("flwr-serverapp")
    here.superexec.kill()
    assert servers
    done = run.round()
    assert run.lost() == []
    run.hang_up()
    here.start_superlink()
    here.superexec.start()
    run = here.resume(run, rounds__num_rounds=7)
    run.finished()
    assert f"resuming after round {done}" in run.said()
    assert [row["skipped"] for row in run.rows()] == [{}] * 8
    assert outcome(run.path) == outcome(twin)
    assert starts == [node.starts for node in here.nodes]
    note(
        6,
        "the SuperLink killed in the middle of a round, started again with its database",
        "the same run went on by itself, every SuperNode came back by itself; the same bits "
        "as without the fault",
    )
    note(
        6.5,
        "the whole server (SuperLink, SuperExec, ServerApp) killed in a round",
        f"taken up after round {done} with `runtime.resume=true`; SuperNodes came back by "
        "themselves; the same bits",
        1,
    )
