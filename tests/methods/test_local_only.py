"""LocalOnly: nothing is sent to peers, and only sites with labels train."""

from fedapp.messages.protocol import ModelRef
from fedapp.methods.base import MethodState, Round
from fedapp.methods.local_only import LocalOnly


class Pool:
    def latest(self, site):
        return ModelRef(site, 1, f"{site:064x}")

    def trained(self):
        return (0, 1, 2)


def tasks(number, cohort):
    rnd = Round(number, 0, (0, 1, 2), frozenset(cohort), Pool())
    return next(LocalOnly().server_round(MethodState(), rnd))


def test_everybody_warms_up_and_then_the_cohort_trains_on_its_own_model():
    assert [(t.site, t.action) for t in tasks(0, (0, 1, 2))] == [(k, "warmup") for k in range(3)]
    assert [(t.site, t.action) for t in tasks(3, (2, 0))] == [(0, "train"), (2, "train")]


def test_a_task_names_no_model_but_the_sites_own():
    assert all(task.refs() == (task.own,) and not task.models for task in tasks(3, (0, 1)))


def test_a_site_that_comes_late_is_warmed_up_as_in_round_zero():
    rnd = Round(5, 0, (0, 1, 2), frozenset((1,)), Pool(), joined={2: 5})
    assert LocalOnly().welcome(rnd) == [tasks(0, (0, 1, 2))[2]]
