"""Runs whose sums are masked: the plain run's numbers, whoever is lost, cut or hostile."""

import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from flwr.supercore.task_identity import TaskIdentity
from safetensors.torch import load

from fedapp.drivers.calls import Loopback
from fedapp.drivers.loopback import run_loopback
from fedapp.experiment.config import load_experiment
from fedapp.ground.errors import ConfigError, RunError
from fedapp.learn.params import digest_of, to_bytes
from fedapp.messages.protocol import MASKED, Incoming, Refusal
from fedapp.methods import method_class, method_names
from fedapp.server.summing import SummedPhases
from tests.flower.grids import MemoryGrid, preset, serve, sites
from tests.messages.masks.sums import CONTEXT, Sum

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
EVERYBODY = "-4"


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


@pytest.mark.parametrize(
    "name", ["fedavg", "fedavg_ft", "fedprox", "ditto", "fedrod", "fixavg", "fedadam", "sage"]
)
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
    assert list(json.loads((folder / "evaluations.json").read_text())) == [EVERYBODY]


@pytest.mark.parametrize("stage", ["announce", "share", "add", "confirm", "open"])
def test_a_third_may_be_lost_in_any_step(stage, tmp_path, monkeypatch):
    """The sum is then that of those whose numbers came: of all, if they are lost behind that."""
    lost = {1, 4}

    def silent(task, incoming):
        gone = task.round == 1 and task.sum.stage == stage and task.action == "train"
        return None if gone and task.site in lost else incoming

    over = {"rounds.num_rounds": 1, "rounds.sample_rate": 1.0, "rounds.deadline_s": 0.5}
    whole = run_loopback(experiment(tmp_path / "whole", **over))[1]
    tampered(monkeypatch, silent)
    _, folder = run_loopback(experiment(tmp_path / "lost", **over))
    trained = rows(folder)[1]["trained"]
    if stage in ("confirm", "open"):
        assert model(folder).keys() == model(whole).keys()
        assert trained == rows(whole)[1]["trained"]
        assert all(torch.equal(model(folder)[n], model(whole)[n]) for n in model(whole))
    else:
        assert trained < rows(whole)[1]["trained"]
    assert rows(folder)[1]["skipped"].keys() == {str(site) for site in lost}


def test_more_than_a_third_lost_is_no_sum(tmp_path, monkeypatch):
    def silent(task, incoming):
        return None if task.sum.stage == "add" and task.site in (1, 3, 4) else incoming

    tampered(monkeypatch, silent)
    with pytest.raises(RunError, match="3 of 6 sites added their numbers; a masked sum needs 4"):
        run_loopback(experiment(tmp_path, **{"rounds.deadline_s": 0.5}))


def test_a_sum_that_failed_is_repeated_under_new_keys(tmp_path, monkeypatch):
    """The numbers of half the sites came late. All have added theirs, and do so once more: each has
    seen that of six sites four have announced keys again, so that the first attempt is dead."""
    over = {"rounds.num_rounds": 1, "rounds.sample_rate": 1.0, "rounds.deadline_s": 0.5}
    whole = run_loopback(experiment(tmp_path / "whole", **over))[1]
    asked = []

    def late(task, incoming):
        step = task.sum
        asked.append((task.round, step.number, step.stage, step.attempt))
        gone = task.round == 1 and step.number == 0 and (step.stage, step.attempt) == ("add", 1)
        return None if gone and task.site in (1, 3, 4) else incoming

    tampered(monkeypatch, late)
    _, folder = run_loopback(experiment(tmp_path / "late", **over))
    assert all(torch.equal(model(folder)[n], model(whole)[n]) for n in model(whole))
    stages = list(dict.fromkeys(asked))
    assert [(s, a) for r, k, s, a in stages if (r, k) == (1, 0)] == [
        ("announce", 1), ("share", 1), ("add", 1),
        ("announce", 2), ("share", 2), ("add", 2), ("confirm", 2), ("open", 2),
    ]  # fmt: skip
    assert {a for r, k, _, a in stages if (r, k) != (1, 0)} == {1}
    assert not rows(folder)[1]["skipped"]  # they are in the sum


def test_what_a_server_asks_for_is_written_down_before(tmp_path, monkeypatch):
    """The attempt before keys are asked for; and all that opens it before anybody confirms it.

    A server that forgot an attempt would ask for it again, and its sites refuse; one that forgot
    whom they confirmed could never open that sum, and they never go back.
    """
    honest, seen = Loopback.exchange, []

    def exchange(self, outbox, fetch, deadline_s):
        task = outbox[0].task
        place = tmp_path / "run" / "sums" / f"{task.round}-{task.sum.number}"
        attempts = json.loads(place.with_suffix(".attempts").read_text())
        assert attempts["attempt"] == task.sum.attempt
        announced = {one["site"] for one in attempts["announced"]}
        assert (task.sum.stage == "announce") != (announced == set(range(6)))
        closed = task.sum.stage in ("confirm", "open")
        assert place.with_suffix(".closed").exists() == closed and not place.exists()
        seen.append(task.sum.stage)
        yield from honest(self, outbox, fetch, deadline_s)

    monkeypatch.setattr(Loopback, "exchange", exchange)
    over = {"rounds.num_rounds": 1, "rounds.sample_rate": 1.0, "training.warmup_rounds": 1}
    run_loopback(experiment(tmp_path, **over))
    assert seen[:5] == ["announce", "share", "add", "confirm", "open"]


def test_who_added_before_is_sent_what_others_announced_since():
    """In a ring nobody has all announcements, and of a cohort some may be gone: these prove it."""
    before, now = Sum(np.zeros((5, 1))), Sum(np.zeros((4, 1)), context=replace(CONTEXT, attempt=3))
    used = tuple(now.announcements.values())
    newest = {**before.announcements, **now.announcements}
    linked = partial(SummedPhases._linked, None, now.context)
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


@pytest.mark.parametrize("cut", [1, 2, 3, 4, 5, 9, 14, 15])
def test_a_run_cut_in_any_step_goes_on_to_the_same_bits(cut, whole, tmp_path, monkeypatch):
    """Five steps a sum, two sums a round: the server is killed after a step's first answer."""
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
    with pytest.raises(RunError, match="a site spoiled it; the masks hide which"):
        run_loopback(experiment(tmp_path))


@pytest.mark.parametrize("stage", ["announce", "confirm"])
def test_who_signs_wrongly_is_left_out_alone(stage, tmp_path, monkeypatch):
    def wrong(task, incoming):
        if task.sum.stage != stage or task.site != 2:
            return incoming
        said = incoming.answer.sum
        name = {"announce": "announcement", "confirm": "confirmation"}[stage]
        other = replace(getattr(said, name), signature="00" * 64)
        answer = replace(incoming.answer, sum=replace(said, **{name: other}))
        return replace(incoming, answer=answer)

    tampered(monkeypatch, wrong)
    _, folder = run_loopback(experiment(tmp_path, **{"rounds.num_rounds": 1}))
    assert list(rows(folder)[1]["skipped"]) == ["2"]
    assert "site 2" in rows(folder)[1]["skipped"]["2"]


def test_words_that_are_not_as_many_as_they_must_be_are_left_out(tmp_path, monkeypatch):
    def short(task, incoming):
        if task.sum.stage != "add" or task.site != 2:
            return incoming
        other = to_bytes({"words": torch.zeros(3, dtype=torch.int64)})
        answer = replace(incoming.answer, contents={MASKED: digest_of(other)})
        return Incoming(answer, {digest_of(other): other}, incoming.head_bytes)

    tampered(monkeypatch, short)
    _, folder = run_loopback(experiment(tmp_path, **{"rounds.num_rounds": 1}))
    assert "2" in rows(folder)[1]["skipped"]


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


def test_methods_that_need_each_site_say_which_do_not(tmp_path):
    with pytest.raises(ConfigError, match=r"um_pfssl needs each site's own answer.*prior_shift"):
        experiment(tmp_path, "um_pfssl_mi", **{"model.name": "resnet9"})
    able = [name for name in method_names() if method_class(name).sums_suffice]
    assert {"fedavg", "fedprox", "one_round", "prior_shift"} <= set(able)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rounds.robust", "median"),
        ("split.server_share", 0.1),
        ("rounds.sample_rate", 0.3),
        ("split.num_clients", 2),
        ("privacy.clip", 1.0),
        ("privacy.members", "0=ab"),
        ("privacy.least_members", 2),
    ],
)
def test_settings_that_masks_do_not_go_with(key, value, tmp_path):
    with pytest.raises(ConfigError, match=key.replace(".", r"\.")):
        experiment(tmp_path, **{key: value})
