"""A site that joins while the run goes on."""

from tests.faults.federation import SITES
from tests.faults.table import note

WEST = 2


def test_a_site_that_joins_late(here):
    """It was not there at the start; its SuperNode is started in round 1."""
    late = here.nodes[WEST]
    late.end()
    run = here.submit("late", rounds__num_rounds=10, rounds__join_wait_s=1.0)
    run.until(lambda: run.at_work_after(0, 0), "north at work in round 1")
    assert run.rows()[0]["sites_evaluated"] == len(SITES) - 1
    late.start()

    def joined():
        return [row["round"] for row in run.rows() if row["trained"] == len(SITES)]

    first = run.until(joined, "all three sites training", 0.1)[0]
    run.finished()
    [last] = [line for line in (run.path / "per_site.csv").read_text().splitlines()][-1:]
    assert last.startswith(f"{WEST},")
    assert run.rows()[-1]["sites_evaluated"] == len(SITES)
    note(
        3.5,
        "a site that joins while the run goes on",
        f"started in round 1, asked who it is, its warm-up caught up; it trained with the "
        f"others from round {first} on",
    )
