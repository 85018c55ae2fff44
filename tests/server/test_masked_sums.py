"""Runs whose sums are masked: the plain run's numbers, whoever is lost, cut or hostile."""

import json
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from flwr.supercore.task_identity import TaskIdentity
from safetensors.torch import load

from fedapp.core.errors import DataError, ProtocolError, RunError, StoreError
from fedapp.experiment.config import computing_settings, load_experiment
from fedapp.learn.params import digest_of, to_bytes
from fedapp.methods._summed import Contribution, Layout
from fedapp.methods.averaging.fedavg import FedAvg
from fedapp.methods.base import MethodState
from fedapp.methods.closed_form._contents import OPTIONAL
from fedapp.methods.recommended._stack import FIT, FITTED, NUMBERS
from fedapp.protocol.codec import decode_request, encode
from fedapp.protocol.messages import (
    ALL_SITES,
    COHORT,
    EVALUATE,
    MASKED,
    MODEL,
    Incoming,
    ModelRef,
    Refusal,
    Reply,
    SiteFacts,
    Task,
)
from fedapp.protocol.secure_aggregation.context import question_digest
from fedapp.protocol.secure_aggregation.secret_sharing import SHARE_BYTES
from fedapp.protocol.secure_aggregation.simulated_keys import simulated_agreed
from fedapp.protocol.store import ModelStore
from fedapp.protocol.traffic import Ledger
from fedapp.server.masked_sums import SummedPhases, as_single_site
from fedapp.server.phases import Phases
from fedapp.server.pool import ModelPool
from fedapp.server.run_state import RunState
from fedapp.server.standings import Standing, Standings
from fedapp.simulation.in_process import Loopback
from fedapp.simulation.loopback import run_loopback
from fedapp.site.mask_identity import simulated
from fedapp.site.masked_sums import Summing
from fedapp.site.site import SiteClient
from tests.flower.grids import MemoryGrid, preset, serve, sites
from tests.protocol.secure_aggregation.sums import CONTEXT, Sum, with_share

OVER = {
    "data.subset": 400,
    "split.num_clients": 6,
    "model.name": "mlp",  # without batch norm, which makes much of last bits
    "training.warmup_epochs": 2,
    "training.batch_size": 16,
    "rounds.num_rounds": 2,
    "rounds.sample_rate": 0.8,
    "runtime.device": "cpu",
    "runtime.run_name": "run",
}
ALL = str(ALL_SITES)


def experiment(out, name="fedavg", sums="masked", **over):
    given = {**OVER, "method.preset": name, "privacy.sums": sums, "runtime.out": str(out), **over}
    return load_experiment("digits_demo", given)


def rows(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def pool(folder):
    return json.loads((folder / "checkpoint.json").read_text())["pool"]


def model(folder, role=""):
    digest = pool(folder)[f"-2 {role}".strip()][1]
    [path] = (folder / "pool").rglob(f"{digest}*")
    return load(path.read_bytes())


def tampered(monkeypatch, tamper):
    """Let answers pass through `tamper(task, incoming)`; None: the site is silent."""
    honest = Loopback.exchange

    def exchange(self, outbox, fetch, deadline_s):
        tasks = {out.task.site: out.task for out in outbox}
        for site, incoming in honest(self, outbox, fetch, deadline_s):
            if (changed := tamper(tasks[site], incoming)) is not None:
                yield site, changed

    monkeypatch.setattr(Loopback, "exchange", exchange)


@pytest.mark.parametrize("name", ["fedavg", "ditto", "fedrod", "fixavg", "fedadam", "sage"])
def test_the_average_is_the_plain_one(name, tmp_path):
    """But for fixed point: 6 sites of 2^-31 each, and float32's own rounding."""
    plain, masked = (
        run_loopback(experiment(tmp_path / s, name, s))[1] for s in ("plain", "masked")
    )
    one, other = model(plain), model(masked)
    for tensor in one:
        assert torch.allclose(one[tensor].double(), other[tensor].double(), atol=2e-5), tensor
    for mine, theirs in zip(rows(plain), rows(masked), strict=True):
        for key in ("mean_test_accuracy", "mean_val_accuracy", "std_test_accuracy"):
            assert mine[key] == pytest.approx(theirs[key], abs=0.02), key
        assert mine["trained"] == theirs["trained"]
        assert mine["sites_evaluated"] == theirs["sites_evaluated"]


def test_the_closed_form_is_the_plain_one(tmp_path):
    """The sums are; what the sites' mixes are worth to each other is estimated from sums."""
    over = {"method.guesses": 0, "rounds.num_rounds": 1}
    plain, masked = (
        model(run_loopback(experiment(tmp_path / s, "one_round", s, **over))[1], "solution")
        for s in ("plain", "masked")
    )
    for name in ("counts", "means", "within", "images"):
        assert torch.allclose(plain[name].double(), masked[name].double(), atol=1e-5), name


def test_recommended_runs_to_its_end_and_is_as_good(tmp_path):
    plain, masked = (
        run_loopback(experiment(tmp_path / s, "recommended", s))[0] for s in ("plain", "masked")
    )
    mine, theirs = (found["mean_test_accuracy"]["final"] for found in (plain, masked))
    assert mine == pytest.approx(theirs, abs=0.03)


def test_the_server_is_told_of_no_site_by_itself(tmp_path, monkeypatch):
    """Neither counts nor evaluations nor metrics; the masked words look like chance."""
    seen = []
    tampered(monkeypatch, lambda task, incoming: seen.append((task, incoming)) or incoming)
    introduced = []
    honest = Loopback.introduce
    monkeypatch.setattr(
        Loopback, "introduce", lambda self: introduced.extend(found := honest(self)) or found
    )
    _, folder = run_loopback(experiment(tmp_path, "recommended"))
    assert {(f.labelled, f.unlabelled, f.val, f.test, f.bagged) for f in introduced} == {(0,) * 5}
    added = [incoming for task, incoming in seen if task.sum and task.sum.stage == "add"]
    assert added
    for _, incoming in seen:
        answer = incoming.answer
        assert not (answer.metrics or answer.evaluations or answer.helpers or answer.pseudo)
        assert not answer.learned and answer.contents.keys() <= {MASKED}
    for incoming in added:
        [blob] = incoming.payloads.values()
        words = load(blob)["words"]
        signs = (words < 0).double().mean()
        # Of n signs the share strays by 5 deviations of sqrt(1 / 4n) once in 1.7 million.
        assert abs(float(signs) - 0.5) < 5 * 0.5 / len(words) ** 0.5
    for text in ("sites.jsonl", "per_site.csv", "evaluations.json", "checkpoint.json"):
        assert '"0": {"test"' not in (folder / text).read_text()
    assert list(json.loads((folder / "evaluations.json").read_text())) == [ALL]


@pytest.mark.parametrize("stage", ["add", "open"])
def test_a_third_may_be_lost_and_behind_the_numbers_no_bit_changes(stage, tmp_path, monkeypatch):
    """In any step: `test_of_exactly_a_third_lost_the_numbers_are_missing_and_they_are_named`."""
    over = {"rounds.num_rounds": 1, "rounds.sample_rate": 1.0, "rounds.deadline_s": 0.5}
    whole = run_loopback(experiment(tmp_path / "whole", **over))[1]
    lost = silent(stage, {1, 4})
    tampered(monkeypatch, lambda task, i: lost(task, i) if task.action == "train" else i)
    _, folder = run_loopback(experiment(tmp_path / "lost", **over))
    mine, theirs = model(folder), model(whole)
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs) == (stage == "open")
    trained = [rows(one)[1]["trained"] for one in (folder, whole)]
    assert (trained[0] == trained[1]) == (stage == "open")
    assert rows(folder)[1]["skipped"].keys() == {"1", "4"}


def test_more_than_a_third_lost_is_no_sum(tmp_path, monkeypatch):
    tampered(monkeypatch, silent("add", {1, 3, 4}))
    with pytest.raises(RunError, match="3 of 6 sites added their numbers; a masked sum needs 4"):
        run_loopback(experiment(tmp_path, **{"rounds.deadline_s": 0.5}))


def test_who_added_before_is_sent_what_others_announced_since():
    """A site of the first attempt that is gone in the second is shown as it announced itself."""
    before, now = Sum(np.zeros((5, 1))), Sum(np.zeros((4, 1)), context=replace(CONTEXT, attempt=3))
    used = tuple(now.announcements.values())
    newest = {**before.announcements, **now.announcements}
    linked = partial(SummedPhases._member_steps, None, now.context)
    for step in linked("add", used, newest.values()).values():
        assert step.announcements == used and step.earlier == (before.announcements[4],)
        assert step.earlier[0].attempt == 2 and step.attempt == 3
    assert not any(step.earlier for step in linked("share", used).values())


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nobody cut: the pool's digests, and the rows without traffic."""
    folder = run_loopback(cut_experiment(tmp_path_factory.mktemp("whole")))[1]
    return pool(folder), learned(folder)


def cut_experiment(out, **over):
    short = {"training.warmup_rounds": 1, "rounds.num_rounds": 1}
    return experiment(out, "fedavg_ft", **short, **over)


def learned(folder):
    work = ("bytes", "wall", "models")
    return [{k: v for k, v in row.items() if not k.startswith(work)} for row in rows(folder)]


@pytest.mark.parametrize("cut", [1, 3, 9, 15])
def test_a_run_cut_in_a_step_goes_on_to_the_same_bits(cut, whole, tmp_path, monkeypatch):
    """Five steps a sum, two sums a round: the server is killed after a step's first answer.

    Every step of one sum: `test_a_server_killed_in_a_step_goes_on`.
    """
    count, honest = [0], Loopback.exchange

    def exchange(self, outbox, fetch, deadline_s):
        count[0] += 1
        for answered in honest(self, outbox, fetch, deadline_s):
            yield answered
            if count[0] == cut:
                raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Loopback, "exchange", exchange)
        with pytest.raises(KeyboardInterrupt):
            run_loopback(cut_experiment(tmp_path))
    folder = run_loopback(cut_experiment(tmp_path, **{"runtime.resume": True}))[1]
    assert (pool(folder), learned(folder)) == whole
    assert not any((folder / "sums").iterdir())


def test_flower_gives_the_same_bits(tmp_path, monkeypatch):
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    plain = run_loopback(experiment(tmp_path / "loop", "fedavg_ft"))[1]
    there = experiment(tmp_path, "fedavg_ft")
    count = there.split.num_clients
    grid = MemoryGrid(sites({"preset": preset(there, tmp_path)}, count, simulated=True))
    folder = serve(there, grid)[1].path
    assert pool(folder) == pool(plain)
    assert rows(folder)[-1]["bytes_up"] == rows(plain)[-1]["bytes_up"]


def test_processes_give_the_same_bits(tmp_path):
    one = run_loopback(experiment(tmp_path / "one", "recommended"))[1]
    two = run_loopback(experiment(tmp_path / "two", "recommended", **{"runtime.workers": 2}))[1]
    assert pool(one) == pool(two)


def test_a_sum_that_no_sites_can_have_is_refused(tmp_path, monkeypatch):
    """A hostile site can spoil a sum, and nobody can tell which site it was: the run says so."""

    def spoiled(task, incoming):
        if task.sum.stage != "add" or task.site != 2:
            return incoming
        [blob] = incoming.payloads.values()
        other = to_bytes({"words": load(blob)["words"] + 2**29})  # half of 1 in fixed point
        answer = replace(incoming.answer, contents={MASKED: digest_of(other)})
        return Incoming(answer, {digest_of(other): other}, incoming.head_bytes)

    tampered(monkeypatch, spoiled)
    with pytest.raises(RunError, match="a site spoiled it, or was asked something else"):
        run_loopback(experiment(tmp_path))


def asks_one_site_alone(monkeypatch, of=2):
    """Let a server ask all sites but one to evaluate a model that answers the first class always.

    Returns what it has of the sums that it opens.
    """
    honest, read, seen = SummedPhases._task_for, Layout.read, []

    def task_for(self, task, site, step, models):
        asked = honest(self, task, site, step, models)
        if task.action != EVALUATE or step.stage != "add" or site == of:
            return asked
        [true] = models["server"]
        params = load(self.phases.pool.get(true.digest))
        bias = next(name for name, of in params.items() if of.shape == (10,))
        params[bias] = params[bias] + torch.eye(10)[0] * 1e6
        blob = to_bytes(params)
        self.phases.store.put(blob)
        other = replace(true, digest=digest_of(blob))
        return replace(asked, models={**models, "server": (other,)})

    monkeypatch.setattr(SummedPhases, "_task_for", task_for)
    monkeypatch.setattr(Layout, "read", lambda *of: seen.append(read(*of)) or seen[-1])
    return seen


def confusion(found):
    return np.array(found.evaluations["test"].confusion)


def test_what_one_site_alone_is_asked_stays_behind_its_masks(tmp_path, monkeypatch):
    """The sum is of random numbers: a server cannot take off what it knows that others answer."""
    asks_one_site_alone(monkeypatch)
    with pytest.raises(RunError, match="or was asked something else than the others"):
        run_loopback(experiment(tmp_path))


def test_did_masks_not_name_the_question_the_site_asked_alone_would_be_read(tmp_path, monkeypatch):
    """Else the test above showed nothing: of nine classes all answers are those of one site."""
    over = {"rounds.sample_rate": 1.0, "rounds.num_rounds": 1}
    for module in ("fedapp.site.masked_sums", "fedapp.server.masked_sums"):
        monkeypatch.setattr(f"{module}.question_digest", lambda *_: "")
    sums = []
    for of in (2, None):  # None: all sites are asked that, as the server could ask them itself
        with monkeypatch.context() as patch:
            seen = asks_one_site_alone(patch, of)
            run_loopback(experiment(tmp_path / str(of), **over))
            sums.append(confusion(seen[-1]))
    plain = run_loopback(experiment(tmp_path / "plain", "fedavg", "plain", **over))[1]
    own = json.loads((plain / "evaluations.json").read_text())["2"]["test"]["confusion"]
    assert not sums[1][:, 1:].any()
    assert np.abs(sums[0][:, 1:] - np.array(own)[:, 1:]).sum() <= 1  # an image at a border
    assert np.array(own)[:, 1:].sum() > 5


@pytest.mark.parametrize("real", [True, False])
@pytest.mark.parametrize("what", [np.linalg.LinAlgError, RunError, 1e300, np.nan], ids=str)
def test_a_real_site_whose_arithmetic_fails_is_not_told_from_the_others(
    what, real, tmp_path, monkeypatch
):
    """Else a hostile server sends models, and sees at which one a site's image overflows."""
    honest, answers = FedAvg.site_round, []

    def site_round(self, task, site):
        report = honest(self, task, site)
        if task.site != 2 or task.action != "train":
            return report
        if isinstance(what, type):
            raise what("beyond all bounds")
        return replace(report, metrics={"loss": what})

    monkeypatch.setattr(FedAvg, "site_round", site_round)
    monkeypatch.setattr(SiteClient, "real", real)
    tampered(monkeypatch, lambda task, of: answers.append((task, of.answer)) or of)
    if real:
        with pytest.raises(RunError, match="some member of a masked sum could not do its work"):
            run_loopback(experiment(tmp_path))
        seen = {}
        for task, said in answers:  # beside the words, all sites say the same
            assert isinstance(said, Reply)
            if task.sum.stage == "add":  # what it was sent, and not what it needs
                assert set(said.held) == {ref.digest for ref in task.refs()}
            beside = (said.private == task.private, said.held, said.metrics, said.evaluations)
            when = task.action, task.round, task.sum.number, task.sum.stage
            assert seen.setdefault(when, beside) == beside
        assert any(when[0] == "train" and not beside[0] for when, beside in seen.items())
    else:  # who simulates is told which site it was
        _, folder = run_loopback(experiment(tmp_path))
        assert rows(folder)[-1]["skipped"].keys() == {"2"}


@pytest.mark.parametrize("error", [DataError, MemoryError, torch.OutOfMemoryError])
def test_a_site_that_cannot_work_says_so(error, tmp_path, monkeypatch):
    """What no model of the server's brings about is a refusal, so the sum goes on without it."""
    honest = FedAvg.site_round

    def site_round(self, task, site):
        if task.site == 2:
            raise error("not here")
        return honest(self, task, site)

    monkeypatch.setattr(FedAvg, "site_round", site_round)
    monkeypatch.setattr(SiteClient, "real", True)
    _, folder = run_loopback(experiment(tmp_path))
    assert rows(folder)[-1]["skipped"].keys() == {"2"}


def test_nothing_hangs_on_the_model_that_the_server_calls_a_sites_own(tmp_path, monkeypatch):
    """Else it could name each site another one, and ask each another thing by one question.

    Site 4 has no labels, so it never trains: it has the initial model and no other of its own.
    """
    honest = SummedPhases._task_for
    right = run_loopback(experiment(tmp_path / "right"))[1]

    def task_for(self, task, site, step, models):
        asked = honest(self, task, site, step, models)
        if step.stage == "add" and (known := models.get("server")):
            return replace(asked, own=replace(known[0], site=site, version=site))
        return asked

    monkeypatch.setattr(SummedPhases, "_task_for", task_for)
    lied = run_loopback(experiment(tmp_path / "lied"))[1]
    assert pool(lied) == pool(right)
    assert rows(lied)[-1]["mean_test_accuracy"] == rows(right)[-1]["mean_test_accuracy"]


def test_who_computes_by_other_settings_than_the_others_is_in_no_sum(tmp_path, monkeypatch):
    """Those that a run may differ in, too: a server could give one site others."""
    one = experiment(tmp_path, **{"runtime.models": True})
    for key, value in (("models", False), ("precision", "bfloat16"), ("device", "auto")):
        other = experiment(tmp_path, **{"runtime.models": True, f"runtime.{key}": value})
        assert computing_settings(other) != computing_settings(one)
    said = iter(range(100))
    where = "fedapp.site.mask_identity.computing_settings"
    monkeypatch.setattr(where, lambda experiment: str(next(said) == 2))
    with pytest.raises(RunError, match="or was asked something else than the others"):
        run_loopback(one)


def test_a_number_is_named_as_it_arrives():
    """A server's 0 is a site's 0.0, and a mask that both must know hangs on it."""
    task = Task(0, 1, "learn", ModelRef(0, 0, "0" * 64), numbers={"step": 0})
    arrived = decode_request(encode(task))
    assert arrived.numbers == {"step": 0.0} and isinstance(arrived.numbers["step"], float)
    assert question_digest(arrived, "") == question_digest(task, "") != question_digest(task, "x")
    assert question_digest(replace(task, numbers={"step": 1}), "") != question_digest(task, "")


def test_a_site_answers_no_plain_task_in_a_masked_run(tmp_path, monkeypatch):
    """Nor a masked step in a plain one: the settings that it checked decide."""
    asked = []

    def plainly(self, outbox, fetch, deadline_s):
        task = replace(outbox[0].task, sum=None)
        incoming = self.sites[task.site].handle(task, {})
        asked.append(incoming.answer)
        return iter(())

    monkeypatch.setattr(Loopback, "exchange", plainly)
    with pytest.raises(RunError):
        run_loopback(experiment(tmp_path))
    assert isinstance(asked[0], Refusal) and "privacy.sums = 'masked'" in asked[0].reason


# --- one sum by itself, in milliseconds -----------------------------------------------------------


class Adding:
    """The server's side of masked sums, and sites that do nothing but add numbers.

    Site k trained for k + 1 steps of 2 images each on k labelled ones; its model is k everywhere.
    trained: which sites did so; of the others only the counts are. tamper: as in `tampered`.
    asked, said: all tasks that were sent, and all notes.
    """

    def __init__(self, root, name="fedavg", count=6, least=3, tamper=None, real=False):
        there = experiment(root / "run", name, **{"split.num_clients": count})
        whose = ("a run", "its identity", "e" * 64) if real else ("", "", "")
        self.whose, self.least, self.agreed = whose, least, simulated_agreed(there.seed, count)
        self.root, self.tamper = root / "sums", tamper or (lambda task, incoming: incoming)
        self.asked, self.said, self.trained = [], [], set(range(count))
        self.facts = SiteFacts(0, (1, 8, 8), ("a", "b"), 0, 0, 0, 0, "0" * 64)
        keys = ("run", "identity", "experiment")
        self.sites = {
            k: Summing(replace(simulated(there, k), **dict(zip(keys, whose, strict=True))),
                       root / "sites" / str(k))
            for k in range(count)
        }  # fmt: skip
        self.schemas = {
            MODEL: {"w": ((2,), torch.float32)}, FITTED: {NUMBERS: ((9,), torch.float64)},
        }  # fmt: skip
        pool = ModelPool(store := ModelStore(root / "pool"))
        pool.start(range(count), to_bytes({"w": torch.zeros(2)}))
        standings = {k: Standing(replace(self.facts, site=k, name=f"s{k}")) for k in range(count)}
        state = RunState(1, MethodState(), Standings(standings), {k: [] for k in range(count)})
        progress = SimpleNamespace(note=self.said.append, phase=lambda *given: None)
        self.phases = Phases(
            there, self, None, store, pool, self.schemas, Ledger(), progress, state,
            set(self.sites), lambda: "resume the run",
        )  # fmt: skip
        self.start()

    def start(self):
        """Start the server, or start it again after it was killed."""
        self.phases.state.private.clear()
        self.server = SummedPhases(
            self.phases, *self.whose, self.agreed, self.least, self.facts, self.root,
            cohort=frozenset(self.sites),
        )  # fmt: skip

    def exchange(self, outbox, fetch, deadline_s):
        for task in (out.task for out in outbox):
            self.asked.append(task)
            if (incoming := self.tamper(task, self.answer(task))) is not None:
                yield task.site, incoming

    def answer(self, task):
        k, whole = task.site, Reply(task.site, task.round, task.own.digest, private=task.private)
        kept = f"{k:064x}"
        try:
            if task.sum.stage != "add":
                return Incoming(replace(whole, sum=self.sites[k].step(task)))
            layout = Layout.of(self.phases.experiment.method, task, self.schemas, 2)
            words = self.sites[k].masked(task, layout.row(self.row(k)), left=kept)
        except ProtocolError as error:
            return Incoming(Refusal(k, task.round, str(error)))
        blob = to_bytes({"words": torch.from_numpy(words.view(np.int64))})
        named = digest_of(blob)
        return Incoming(replace(whole, contents={MASKED: named}, private=kept), {named: blob})

    def row(self, k):
        if k not in self.trained:
            return Contribution(counts={"labelled": k})
        model, metrics = torch.full((2,), float(k)), {"steps": k + 1.0, "images": 2.0 * (k + 1)}
        return Contribution(
            {MODEL: {"w": model}}, 1.0, 1.0, metrics=metrics, counts={"labelled": k}
        )

    def sum(self, round=1, site=COHORT, action="train", **models):
        """Ask for a sum, as a method does; return the reply, or None. `skipped` says why."""
        self.phases.state.round, self.skipped = round, {}
        task = Task(site, round, action, self.phases.pool.latest(site), models)
        [*replies] = self.server.run([task], self.skipped)
        return replies[0] if replies else None

    @property
    def mean(self):
        """Of the models, as the newest sum has it."""
        blob = self.phases.pool.get(self.phases.pool.latest(COHORT).digest)
        [first, second] = load(blob)["w"].tolist()
        assert first == second
        return first

    def asked_of(self, stage):
        """The sites that each attempt asked for a step."""
        found = {}
        for task in self.asked:
            if task.sum.stage == stage:
                found.setdefault(task.sum.attempt, []).append(task.site)
        return found


def silent(stage, lost, attempts=(1, 2, 3)):
    """Sites that do not answer one step, in some attempts."""

    def tamper(task, incoming):
        gone = (task.sum.stage, task.site in lost) == (stage, True) and task.sum.attempt in attempts
        return None if gone else incoming

    return tamper


def test_one_sum_by_hand(tmp_path):
    """Of models 0 to 5, 1 to 6 steps, 2 to 12 images, 0 to 5 labelled ones."""
    run = Adding(tmp_path)
    reply = run.sum()
    assert run.mean == pytest.approx(2.5) and not run.skipped
    assert (reply.site, reply.round, reply.learned) == (COHORT, 1, True)
    assert {name: reply.metrics[name] for name in ("steps", "images", "trained", "added")} == {
        "steps": pytest.approx(3.5), "images": pytest.approx(7.0), "trained": 6, "added": 6
    }  # fmt: skip
    assert run.server.facts[COHORT].labelled == 15
    assert run.phases.pool.having(MASKED) == ()  # nobody's masked numbers are kept


@pytest.mark.parametrize("trained", [(), (4,)])
def test_one_site_that_trained_is_a_sum_and_none_is_the_model_of_before(trained, tmp_path):
    run = Adding(tmp_path)
    run.trained = set(trained)
    reply = run.sum()
    assert reply.learned == bool(trained) and reply.metrics["trained"] == len(trained)
    assert run.mean == pytest.approx(sum(trained))
    assert run.phases.pool.latest(COHORT).version == len(trained)
    assert run.server.facts[COHORT].labelled == 15


def test_a_content_that_is_added_is_the_sum_and_its_method_judges_it(tmp_path):
    """Sums of a fit: each site has 1 image, right, and a log-likelihood of -1/2."""
    run = Adding(tmp_path, "recommended")
    numbers = torch.tensor([1.0, 1.0, -0.5, 0.25, 0.5, 1.0, 0.0, 0.0, 1.0], dtype=torch.float64)
    run.row = lambda k: Contribution({FITTED: {NUMBERS: numbers}}, counts={"val": 1})
    reply = run.sum(action=FIT)
    assert reply.contents.keys() == {FITTED} and not reply.learned
    blob = run.phases.pool.get(run.phases.pool.latest(COHORT, FITTED).digest)
    torch.testing.assert_close(load(blob)[NUMBERS], 6 * numbers)
    numbers[1] = 2.0  # right on two images of one
    assert run.sum(action=FIT) is None
    assert run.skipped[COHORT].startswith("fitted: of 6 images, 12 right")


def test_metrics_of_a_sum_are_judged_by_the_method(tmp_path):
    run = Adding(tmp_path, "prior_shift")
    run.row = lambda k: Contribution(
        metrics={"sure_right": 2.0, "sure_total": 1.0}, counts={"val": 1}
    )
    assert run.sum() is None and "sure_right" in run.skipped[COHORT]


def test_all_who_are_here_or_the_cohort_are_asked_each_for_its_own(tmp_path):
    """With its own model and what it keeps to itself; other contents come where work is done."""
    run = Adding(tmp_path)
    run.server.cohort = frozenset(range(4))
    sent = run.phases.pool.add_server_content(to_bytes({"w": torch.ones(2)}), 1)
    assert run.sum(server=(sent,)) and run.sum(site=ALL_SITES) and run.sum(round=2)
    numbers = [(task.round, task.sum.number) for task in run.asked]
    assert list(dict.fromkeys(numbers)) == [(1, 0), (1, 1), (2, 0)]
    kept = set()
    for task in run.asked:
        first = (task.round, task.sum.number) == (1, 0)
        assert task.own == run.phases.pool.latest(task.site)
        assert task.models == ({"server": (sent,)} if first and task.sum.stage == "add" else {})
        assert task.private == (f"{task.site:064x}" if task.site in kept else "")
        kept |= {task.site} if task.sum.stage == "open" else set()
    asked = [
        {t.site for t in run.asked if (t.round, t.sum.number) == which}
        for which in dict.fromkeys(numbers)
    ]
    assert asked == [set(range(4)), set(range(6)), set(range(4))]
    assert run.server.facts[ALL_SITES].site == ALL_SITES
    assert (as_single_site(run.server.facts[COHORT]).site, as_single_site(run.facts).name) == (
        0,
        "all-sites",
    )


@pytest.mark.parametrize(("stage", "mean", "asked"), [
    ("announce", 1.5, {1: 4}), ("share", 1.5, {2: 4}), ("add", 1.5, {1: 6}),
    ("confirm", 2.5, {1: 6}), ("open", 2.5, {1: 6}),
])  # fmt: skip
def test_of_exactly_a_third_lost_the_numbers_are_missing_and_they_are_named(
    stage, mean, asked, tmp_path
):
    run = Adding(tmp_path, tamper=silent(stage, {4, 5}))
    reply = run.sum()
    assert run.mean == pytest.approx(mean)
    assert reply.metrics["added"] == (4 if mean == 1.5 else 6)
    assert run.skipped.keys() == {4, 5} and "no answer" in run.skipped[4]
    assert run.asked_of("add") == {k: list(range(count)) for k, count in asked.items()}


@pytest.mark.parametrize(("stage", "what"), [
    ("announce", "announced keys"), ("share", "shared their secrets"),
    ("add", "added their numbers"), ("confirm", "confirmed who is left"),
])  # fmt: skip
def test_one_more_lost_is_no_sum_after_one_repeat_and_it_is_said_who(stage, what, tmp_path):
    run = Adding(tmp_path, tamper=silent(stage, {3, 4, 5}))
    assert run.sum() is None
    assert run.skipped.keys() == {COHORT, 3, 4, 5}
    assert run.skipped[COHORT] == (
        f"3 of 6 sites {what}; a masked sum needs 4: a third of them may be lost, but 3 must be "
        "left (privacy.least_members)"
    )
    everybody = list(range(6))
    repeated = {1: everybody} if stage == "confirm" else {1: everybody, 2: everybody}
    assert run.asked_of("announce") == repeated and not run.asked_of("open")
    assert any("it is tried once more" in said for said in run.said) == (stage != "confirm")
    assert any("no sum of train" in said for said in run.said)


def test_a_sum_of_fewer_than_are_to_be_members_is_never_begun(tmp_path):
    """A cohort of two; and of six five are to be left, where four would do."""
    few = Adding(tmp_path / "few")
    few.server.cohort = frozenset((0, 1))
    assert few.sum() is None and not few.asked
    assert few.skipped[COHORT].startswith("2 of 2 sites are here; a masked sum needs 3")
    strict = Adding(tmp_path / "strict", least=5, tamper=silent("add", {4, 5}))
    assert strict.sum() is None and not strict.asked_of("confirm")
    assert strict.skipped[COHORT].startswith("4 of 6 sites added their numbers; a masked sum needs")


def test_who_fails_in_one_attempt_and_who_in_the_next_are_both_named(tmp_path):
    first, second = silent("share", {5}), silent("add", {4})
    run = Adding(tmp_path, tamper=lambda t, i: i and first(t, i) and second(t, i))
    run.sum()
    assert run.mean == pytest.approx(1.5) and run.skipped.keys() == {4, 5}
    assert run.asked_of("announce") == {1: [0, 1, 2, 3, 4, 5], 2: [0, 1, 2, 3, 4]}


def test_who_comes_back_in_a_later_attempt_is_in_the_sum_and_not_named(tmp_path):
    """The numbers of half the sites came late: under new keys all add theirs once more."""
    run = Adding(tmp_path, tamper=silent("add", {3, 4, 5}, attempts=(1,)))
    run.sum()
    assert run.mean == pytest.approx(2.5) and not run.skipped
    steps = [(task.sum.stage, task.sum.attempt) for task in run.asked]
    assert list(dict.fromkeys(steps)) == [
        *((stage, 1) for stage in ("announce", "share", "add")),
        *((stage, 2) for stage in ("announce", "share", "add", "confirm", "open")),
    ]


def changed(incoming, **answer):
    """An answer of which something is another."""
    return replace(incoming, answer=replace(incoming.answer, **answer))


@pytest.mark.parametrize(("stage", "mean"), [
    ("announce", 2.6), ("share", 2.6), ("add", 2.6), ("confirm", 2.5), ("open", 2.5),
])  # fmt: skip
def test_who_answers_a_step_with_nothing_is_left_out_alone(stage, mean, tmp_path):
    """As who is silent is, and it is said which site it was."""

    def empty(task, incoming):
        if (task.site, task.sum.stage) != (2, stage):
            return incoming
        return Incoming(Reply(2, task.round, task.own.digest))

    run = Adding(tmp_path, tamper=empty)
    assert run.sum()
    assert run.mean == pytest.approx(mean)
    assert run.skipped.keys() == {2}
    assert f"its answer to the step {stage!r} of a masked sum is not what" in run.skipped[2]
    assert any(run.skipped[2] in said and "s2" in said for said in run.said)


def test_who_adds_another_number_of_words_is_left_out_alone(tmp_path):
    def short(task, incoming):
        if (task.site, task.sum.stage) != (2, "add"):
            return incoming
        other = to_bytes({"words": torch.zeros(3, dtype=torch.int64)})
        named = {MASKED: digest_of(other)}
        return replace(changed(incoming, contents=named), payloads={digest_of(other): other})

    run = Adding(tmp_path, tamper=short)
    run.sum()
    assert run.mean == pytest.approx(2.6) and run.skipped.keys() == {2}


@pytest.mark.parametrize("bad", ["nothing", "of another", "to nobody", "twice"])
def test_who_shares_other_secrets_than_its_own_with_all_is_left_out_alone(bad, tmp_path):
    """Else no site would open the sum, after all have confirmed it."""

    def wrong(task, incoming):
        if (task.site, task.sum.stage) != (2, "share"):
            return incoming
        boxes = incoming.answer.sum.sealed
        other = {
            "nothing": (),
            "of another": tuple(replace(box, sender=3) for box in boxes),
            "to nobody": (*boxes[:-1], replace(boxes[-1], receiver=9)),
            "twice": (*boxes, boxes[0]),
        }[bad]
        return changed(incoming, sum=replace(incoming.answer.sum, sealed=other))

    run = Adding(tmp_path, tamper=wrong)
    assert run.sum()
    assert run.mean == pytest.approx(2.6) and run.skipped.keys() == {2}


def test_who_seals_junk_can_stop_a_sum_for_good(tmp_path):
    """Nobody but the receivers can look into the boxes, and they do when all have confirmed."""

    def junk(task, incoming):
        if (task.site, task.sum.stage) != (2, "share"):
            return incoming
        boxes = tuple(replace(box, box=box.box[::-1]) for box in incoming.answer.sum.sealed)
        return changed(incoming, sum=replace(incoming.answer.sum, sealed=boxes))

    run = Adding(tmp_path, tamper=junk)
    for _ in range(2):
        assert run.sum() is None
        assert "0 of 4 shares of site 2's secret came" in run.skipped[COHORT]
        run.start()
    assert run.asked_of("announce").keys() == {1}


@pytest.mark.parametrize(("stage", "mean"), [("announce", 2.6), ("confirm", 2.5)])
@pytest.mark.parametrize("says", ["signed as site 1", "is not signed for this sum"])
def test_who_repeats_or_forges_what_is_signed_is_left_out_alone(says, stage, mean, tmp_path):
    """Site 2 says what site 1 did: well signed, and not by site 2; or signs nothing."""
    heard, name = {}, {"announce": "announcement", "confirm": "confirmation"}[stage]

    def wrong(task, incoming):
        if task.sum.stage != stage:
            return incoming
        said = heard[task.site] = incoming.answer.sum
        forged = replace(said, **{name: replace(getattr(said, name), signature="00" * 64)})
        other = heard.get(1) if "site 1" in says else forged
        return changed(incoming, sum=other) if task.site == 2 else incoming

    run = Adding(tmp_path, tamper=wrong)
    run.sum()
    assert run.mean == pytest.approx(mean)
    assert run.skipped.keys() == {2} and says in run.skipped[2]
    assert any("site 2 is left out of a masked sum" in said for said in run.said)


def test_who_opens_wrong_shares_is_named_and_the_sum_is_right(tmp_path):
    def wrong(task, incoming):
        if (task.site, task.sum.stage) != (2, "open"):
            return incoming
        return changed(incoming, sum=with_share(incoming.answer.sum, 0, "00" * SHARE_BYTES))

    run = Adding(tmp_path, tamper=wrong)
    run.sum()
    assert run.mean == pytest.approx(2.5)
    assert run.skipped == {2: "opened wrong shares of a masked sum"}
    assert any("site 2 opened wrong shares" in said for said in run.said)


@pytest.mark.parametrize(("stage", "attempts"), [
    ("announce", [1, 2]), ("share", [1, 2]), ("add", [1, 2]), ("confirm", [1]), ("open", [1]),
])  # fmt: skip
def test_a_server_killed_in_a_step_goes_on_and_one_that_has_the_sum_asks_nobody(
    stage, attempts, tmp_path
):
    """What it asks for is written down before: the attempt, and all that opens what is confirmed.

    A server that forgot an attempt would ask for it again, and its sites refuse; one that forgot
    whom they confirmed could never open that sum.
    """

    def killed(task, incoming):
        if (task.site, task.sum.stage) == (2, stage) and not run.tampered:
            run.tampered = True
            raise KeyboardInterrupt
        return incoming

    run = Adding(tmp_path, tamper=killed)
    run.tampered = False
    with pytest.raises(KeyboardInterrupt):
        run.sum()
    for _ in range(2):
        run.start()
        run.sum()
        assert run.mean == pytest.approx(2.5) and not run.skipped
        assert list(run.asked_of("announce")) == attempts
        assert run.asked_of("open")[attempts[-1]][-6:] == list(range(6))
        # What each keeps to itself is what it said with its numbers.
        assert run.phases.state.private == {k: f"{k:064x}" for k in range(6)}
    assert len(run.asked_of("open")[attempts[-1]]) in (6, 9)


def test_what_belongs_to_rounds_before_is_forgotten(tmp_path):
    run = Adding(tmp_path)
    run.server.forget(1)  # before there is anything
    run.sum(round=1)
    run.sum(round=2)
    run.server.forget(2)
    assert {path.name.split("-")[0] for path in run.root.iterdir()} == {"2"}


@pytest.mark.parametrize("name", ["1-0", "1-0.closed", "1-0.attempts"])
def test_a_damaged_file_of_a_sum_ends_the_run_by_name(name, tmp_path):
    run = Adding(tmp_path)
    run.root.mkdir()
    (run.root / name).write_bytes(b"{}\nnothing")
    with pytest.raises(StoreError, match=rf"{name}: .* damaged: start again"):
        run.sum()
    assert not run.asked


@pytest.mark.parametrize("real", [True, False])
def test_of_a_real_run_all_files_are_on_the_disk_before_the_next_step(real, tmp_path, monkeypatch):
    """A simulation has nothing to lose: its sites can be asked again."""
    synced, seen = set(), {}

    def fsync(file):
        name = Path(f"/proc/self/fd/{file}").resolve().name
        if found := re.fullmatch(r"\.1-0(\.\w+)?\.[0-9a-f]+\.tmp", name):
            synced.add(found[1] or "the sum")

    def note(task, incoming):
        seen.setdefault(task.sum.stage, set(synced))
        return incoming

    monkeypatch.setattr("os.fsync", fsync)
    run = Adding(tmp_path, real=real, tamper=note)
    run.sum()
    before = {".attempts"} if real else set()
    closed = {".attempts", ".closed"} if real else set()
    assert seen == {
        "announce": before, "share": before, "add": before, "confirm": closed, "open": closed
    }  # fmt: skip
    assert synced == closed | ({"the sum"} if real else set())


def test_in_a_ring_who_added_is_sent_what_all_others_announced_since(tmp_path, monkeypatch):
    """Each site has the keys of two neighbours; of the three others it is shown the newest ones."""
    monkeypatch.setattr("fedapp.protocol.secure_aggregation.neighbour_graph.MAX_COMPLETE_GRAPH", 3)
    monkeypatch.setattr(
        "fedapp.protocol.secure_aggregation.neighbour_graph.ring_parameters", lambda members: (1, 1)
    )
    run = Adding(tmp_path, tamper=silent("add", {3, 4, 5}, attempts=(1,)))
    assert run.sum(round=77)  # a number of its own: graphs are remembered
    assert run.mean == pytest.approx(2.5)
    for task in (task for task in run.asked if task.sum.stage == "add"):
        near = {one.site for one in task.sum.announcements}
        shown = {one.site: one.attempt for one in task.sum.earlier}
        others = set(range(6)) - near
        assert len(near) == 3
        assert shown == (dict.fromkeys(others, 2) if task.sum.attempt == 2 else {})


def test_who_announced_in_an_attempt_before_and_not_in_this_one_is_shown_too(tmp_path, monkeypatch):
    """A site that added numbers wants proof of the latest attempt that every other site knows."""
    monkeypatch.setattr("fedapp.protocol.secure_aggregation.neighbour_graph.MAX_COMPLETE_GRAPH", 3)
    monkeypatch.setattr(
        "fedapp.protocol.secure_aggregation.neighbour_graph.ring_parameters", lambda members: (1, 1)
    )
    adds, announces = silent("add", {2, 3, 4}, (1,)), silent("announce", {5}, (2,))

    def tamper(task, incoming):
        return None if adds(task, incoming) is None else announces(task, incoming)

    run = Adding(tmp_path, tamper=tamper)
    assert run.sum(round=78)
    assert run.mean == pytest.approx(2.0)  # of models 0 to 4
    second = [task for task in run.asked if (task.sum.stage, task.sum.attempt) == ("add", 2)]
    assert [task.site for task in second] == [0, 1, 2, 3, 4]
    for task in second:
        shown = {one.site: one.attempt for one in task.sum.earlier}
        near = {one.site for one in task.sum.announcements}
        assert shown == {**dict.fromkeys(set(range(5)) - near, 2), 5: 1}


def test_what_a_server_asks_for_is_written_down_before(tmp_path):
    """The attempt before keys are asked for, and who announced before anybody shares a secret.

    A server that forgot an attempt would ask for it again, and its sites refuse. One that forgot
    who announced could not prove to its sites that an attempt is dead.
    """
    seen = []

    def note(task, incoming):
        written = json.loads((tmp_path / "sums" / "1-0.attempts").read_text())
        assert written["attempt"] == task.sum.attempt
        announced = {one["site"] for one in written["announced"]}
        assert announced == (set() if task.sum.stage == "announce" else set(range(6)))
        assert (tmp_path / "sums" / "1-0.closed").exists() == (
            task.sum.stage in {"confirm", "open"}
        )
        assert not (tmp_path / "sums" / "1-0").exists()
        seen.append(task.sum.stage)
        return incoming

    assert Adding(tmp_path, tamper=note).sum()
    assert seen == [
        step for step in ("announce", "share", "add", "confirm", "open") for _ in range(6)
    ]


def test_a_sum_that_failed_ends_the_run_unless_the_method_does_without(tmp_path):
    run = Adding(tmp_path, "one_round")
    ask = partial(Task, COHORT, 3, own=run.phases.pool.latest(COHORT))
    needed, optional = ask(action="train"), ask(action=min(OPTIONAL))
    check, failed = run.server.check_turnout, {COHORT: "2 of 6 sites added their numbers."}
    check([needed, optional], {COHORT: "a reply"}, {})
    check([optional], {}, failed)
    says = "round 3: 2 of 6 sites added their numbers. Repair the sites and resume the run"
    with pytest.raises(RunError, match=f"^{re.escape(says)}$"):
        check([needed], {}, failed)
