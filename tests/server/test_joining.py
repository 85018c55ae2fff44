"""Sites that come late, do not come back at once, or come back with other data."""

from dataclasses import replace

import pytest

from fedapp.core.errors import RunError
from fedapp.methods.averaging.fedavg import FedAvg
from fedapp.methods.averaging.fedper import FedPer
from fedapp.methods.averaging.lg_fedavg import LgFedAvg
from fedapp.methods.averaging.local_only import LocalOnly
from fedapp.methods.um_pfssl.method import UmPfssl
from fedapp.protocol.messages import Incoming, Refusal
from fedapp.server.phases import NOT_CONNECTED
from fedapp.simulation.in_process import Loopback
from tests.flower.results import results, rows
from tests.methods.conformance import Deal, named, toy
from tests.server.driving import drive

DEALS = (Deal(9, 12), Deal(12, 6), Deal(0, 9), Deal(10, 8))
UM = UmPfssl(helper_list_size=3, num_replaced=1, search_rounds=2, update_every=2, mc_samples=2)


class Late(Loopback):
    """`comes` says before which round a site is first here; facts and answers may be changed."""

    def __init__(self, experiment, federation, store, sites_root, comes, first=0):
        super().__init__(experiment, federation, store, sites_root)
        self.comes, self.round = comes, first
        self.seen = []
        self.left_out = []
        self.facts_of = {}
        self.answer = lambda task, incoming: incoming

    def facts(self, number):
        return self.facts_of.get(number, self.sites[number].facts())

    def introduce(self):
        here = (k for k in self.sites if self.comes.get(k, -1) < self.round)
        return [self.facts(k) for k in here]

    def newcomers(self):
        self.round += 1
        again = [k for k in self.left_out if k in self.facts_of]
        self.left_out = []
        came = [k for k, number in self.comes.items() if number == self.round - 1]
        return [self.facts(k) for k in (*came, *again)]

    def leave_out(self, site):
        self.left_out.append(site)

    def exchange(self, outbox, fetch, deadline_s):
        tasks = {out.task.site: out.task for out in outbox}
        for site, incoming in super().exchange(outbox, fetch, deadline_s):
            task = tasks[site]
            self.seen.append((task, incoming))
            yield site, self.answer(task, incoming)

    def models(self, action):
        return {t.site: i.answer.model for t, i in self.seen if t.action == action}


@pytest.fixture
def run(tmp_path, capsys):
    """Run UM over DEALS; `comes`: site -> round; `prepare(transport)` before it begins."""

    def go(name, comes=(), prepare=lambda transport: None, method=UM, first=0, **changes):
        settings = {"rounds__num_rounds": 4, **changes}
        experiment = toy(method, tmp_path, DEALS, name=f"{name}-run", **settings)
        made = []

        def carrier_of(*parts):
            made.append(transport := Late(*parts, dict(comes), first))
            prepare(transport)
            return transport

        capsys.readouterr()  # of a run that was cut before
        summary, folder = drive(experiment, carrier_of)
        [transport] = made
        transport.summary, transport.folder = summary, folder
        transport.said = capsys.readouterr().out
        return transport

    return go


class Stop(Exception):
    """Stands for a power cut."""


def cut(number, action="train"):
    def prepare(transport):
        def answer(task, incoming):
            if (task.round, task.action) == (number, action):
                raise Stop
            return incoming

        transport.answer = answer

    return prepare


@named([UM, LocalOnly()])
def test_a_site_that_comes_late_has_the_warm_up_model_it_would_have_had(run, method):
    early = run("early", method=method)
    late = run("late", {3: 2, 2: 3}, method=method)
    assert late.models("warmup") == early.models("warmup")
    assert len(set(late.models("warmup").values())) == 4  # site 2 has no labels: w_0
    tasks = [task for task, _ in late.seen if task.site == 3]
    assert tasks[0] == next(t for t, _ in early.seen if t.site == 3)
    assert (tasks[0].action, tasks[0].round, tasks[1].round) == ("warmup", 0, 2)


def test_a_site_that_comes_late_is_announced_and_counts_from_then_on(run):
    late = run("late", {3: 2})
    assert "site 3 joins in round 2" in late.said
    every = rows(late.folder.path)
    assert [row["sites_evaluated"] for row in every] == [3, 3, 4, 4, 4]
    assert [row["trained"] for row in every] == [2, 3, 4, 4, 4]
    assert [row.get("joined") for row in every] == [None, None, [3], None, None]
    assert late.summary["sites"] == 4
    joined = {row["site"]: row["joined"] for row in late.folder.per_site()}
    assert joined == {0: None, 1: None, 2: None, 3: 2}
    searched = [t.round for t, _ in late.seen if t.site == 3 and t.models.get("newcomers")]
    assert searched[0] == 2
    traffic = (late.folder.path / "traffic.csv").read_text().splitlines()[1:]
    assert {line.split(",")[0] for line in traffic if line.split(",")[1] == "3"} == {"2", "3", "4"}


@named([FedAvg(), FedPer(), LgFedAvg()])
def test_methods_without_a_model_of_a_sites_own_take_it_in_without_a_warm_up(run, method):
    late = run("late", {3: 2}, method=method)
    assert {t.round for t, _ in late.seen if t.site == 3} == {2, 3, 4}
    assert rows(late.folder.path)[-1]["sites_evaluated"] == 4


@pytest.mark.parametrize("at", [2, 3])
def test_a_run_with_a_late_site_resumes_to_the_same_bits(run, at):
    """Cut in the round in which it joins, or in the next; it is here when the run goes on."""
    whole = run("whole", {3: 2})
    with pytest.raises(Stop):
        run("cut", {3: 2}, cut(at))
    resumed = run("cut", {3: 2} if at == 3 else {}, first=at, runtime__resume=True)
    assert results(resumed.folder.path) == results(whole.folder.path)
    assert ("site 3 joins in round 2" in resumed.said) == (at == 2)


def test_a_run_goes_on_without_those_that_are_not_back_until_they_are(run):
    with pytest.raises(Stop):
        run("cut", prepare=cut(2))
    resumed = run("cut", {1: 3}, first=2, runtime__resume=True)
    assert "not here yet: site 1; the others go on" in resumed.said
    assert "site 1 is back in round 3" in resumed.said and "joins" not in resumed.said
    every = rows(resumed.folder.path)
    assert [row["skipped"] for row in every[1:]] == [{}, {"1": NOT_CONNECTED}, {}, {}]
    assert [row["trained"] for row in every] == [3, 4, 3, 4, 4]
    whole = run("whole")
    models = {t.site: i.answer.model for t, i in whole.seen if t.round <= 1 and t.action == "train"}
    [task] = [t for t, _ in resumed.seen if (t.site, t.round) == (1, 3)]
    assert task.own.digest == models[1]  # it goes on from the model that it had


def test_too_few_sites_back_end_the_run_and_none_is_an_error(run):
    with pytest.raises(Stop):
        run("cut", prepare=cut(2))
    away = {0: 9, 1: 9, 3: 9}
    with pytest.raises(
        RunError, match=r"round 2: 1 of 4 sites answered .*not sent: the site is no"
    ):
        run("cut", away, first=2, runtime__resume=True)
    with pytest.raises(RunError, match=r"checkpoint of sites \[0, 1, 2, 3\], but sites \[\]"):
        run("cut", {**away, 2: 9}, first=2, runtime__resume=True)


def other(number, **changes):
    def prepare(transport):
        transport.facts_of[number] = replace(transport.sites[number].facts(), **changes)

    return prepare


@pytest.mark.parametrize(("changes", "reason"), [
    ({"split_digest": "f" * 64}, "site 3 left out: its split digest is 'ffff"),
    ({"classes": ("a", "b")}, "site 3 left out: its classes is ('a', 'b'), the run has ("),
    ({"site": 8}, "site 8 left out: the preset's 4 sites count from 0"),
])  # fmt: skip
def test_a_newcomer_that_does_not_fit_is_left_out_and_named_once(run, changes, reason):
    def prepare(transport):
        other(3, **changes)(transport)
        noted = transport.leave_out
        transport.leave_out = lambda site: (asked.append(site), noted(3))

    asked = []
    late = run("late", {3: 1}, prepare)
    assert late.said.count(reason) == 1
    assert asked == [changes.get("site", 3)] * 4  # asked again in every round
    assert late.summary["sites"] == 3
    assert {t.site for t, _ in late.seen} == {0, 1, 2}


def test_a_newcomer_that_fails_its_warm_up_does_not_end_the_run(run):
    def prepare(transport):
        def answer(task, incoming):
            if (task.site, task.action) == (3, "warmup"):
                return Incoming(Refusal(3, 0, "out of paper"))
            return incoming

        transport.answer = answer

    late = run("late", {3: 2}, prepare)
    skipped = [row["skipped"] for row in rows(late.folder.path)]
    assert skipped == [{}, {}, {"3": "the site refused: out of paper"}, {}, {}]
    assert late.folder.per_site()[3]["rounds_trained"] == 3
