"""The network between one site and the server, gone for a while."""

import pytest

from tests.faults.federation import SITES
from tests.faults.table import note
from tests.faults.test_sites import told
from tests.flower.results import loopback, results

NORTH, SOUTH, WEST = range(len(SITES))
WHAT = {"cut": "connections reset and refused", "swallow": "packets dropped"}
FAILED = "Connection attempt failed"


@pytest.mark.parametrize("way", ["cut", "swallow"])
def test_a_short_cut_costs_nothing(here, way):
    """While the site works, and until it has something to send; then the network is there again."""
    twin = loopback(here.experiment(f"{way}-never", rounds__num_rounds=3))
    run = here.submit(way, rounds__num_rounds=3)
    run.until(lambda: run.at_work_after(NORTH, 1), "north at work in round 2")
    cable = here.cables[NORTH]
    failures = here.nodes[NORTH].said().count(FAILED)
    getattr(cable, way)()
    run.until(lambda: not run.at_work(NORTH), "north done")
    run.until(lambda: here.nodes[NORTH].said().count(FAILED) > failures, "north noticed", 0.1)
    cable.mend()
    run.finished()
    assert [row["skipped"] for row in run.rows()] == [{}] * 4
    assert results(run.path) == results(twin)
    fault = f"network of a site cut at work for less than a minute ({WHAT[way]})"
    note(
        7 if way == "cut" else 7.1,
        fault,
        "it tried again until its answer was through; the same bits as without the fault",
    )


@pytest.mark.parametrize("way", ["cut", "swallow"])
def test_a_long_cut_costs_the_rounds_it_lasts(here, way):
    run = here.submit(f"long-{way}", rounds__num_rounds=9)
    starts = here.nodes[SOUTH].starts
    run.until(lambda: run.at_work_after(SOUTH, 1), "south at work in round 2")
    getattr(here.cables[SOUTH], way)()
    first = min(run.until(lambda: run.skipped(SOUTH), "south skipped", 0.1))
    here.cables[SOUTH].mend()
    back = run.back(SOUTH, first)
    happened = told(run, SOUTH, back)
    run.finished()
    assert here.nodes[SOUTH].starts == starts
    note(
        7.2 if way == "cut" else 7.3,
        f"network of a site cut until Flower takes it for gone ({WHAT[way]})",
        f"{happened}, without being started again",
    )
