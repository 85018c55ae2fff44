"""Whole runs in the loopback driver: repeatable, resumable, and unharmed by bad sites."""

import errno
import json
import math
import re
import shutil
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load, save

from fedapp.core.disk import write_atomic, write_error
from fedapp.core.errors import RunError, StoreError
from fedapp.core.progress import Progress
from fedapp.learn.params import digest_of
from fedapp.methods.averaging.fedavg import FedAvg
from fedapp.protocol.messages import (
    Incoming,
    Missing,
    ModelRef,
    Refusal,
    ScoredRef,
    SiteFacts,
)
from fedapp.protocol.store import ModelStore
from fedapp.server.engine import Engine
from fedapp.simulation.in_process import Loopback, carried
from tests.server.driving import drive
from tests.small import small


class Transport(Loopback):
    """Loopback whose answers pass through `tamper(task, incoming)`; None: the site is silent."""

    def __init__(self, experiment, federation, store, sites_root, tamper):
        super().__init__(experiment, federation, store, sites_root)
        self._tamper = tamper

    def exchange(self, outbox, fetch, deadline_s):
        tasks = {out.task.site: out.task for out in outbox}
        for site, incoming in super().exchange(outbox, fetch, deadline_s):
            changed = self._tamper(tasks[site], incoming)
            if changed is not None:
                yield site, changed


def start(root, name="run", tamper=lambda task, incoming: incoming, carrier=Transport, **changes):
    """Run a small federation; return its summary and its folder."""
    experiment = small(**{"runtime__out": str(root), "runtime__run_name": name, **changes})
    return drive(experiment, lambda *parts: carrier(*parts, tamper))


@pytest.fixture
def run(tmp_path):
    return partial(start, tmp_path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Summary and folder of a run that nobody disturbs."""
    return start(tmp_path_factory.mktemp("whole"))


def rows(folder):
    """metrics.jsonl without the clock."""
    lines = (folder.path / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "wall_seconds"} for line in lines]


def said(folder):
    """What the sites said of themselves, without the clock."""
    return [{**row, "seconds": sorted(row["seconds"])} for row in folder.sites()]


RESULTS = ("mean_test_accuracy", "std_test_accuracy", "pseudo_label_error", "mean_val_accuracy")


def results(folder):
    """What a resumed or healed run must repeat: all but the work and traffic of the repair."""
    return [{name: row[name] for name in RESULTS} for row in rows(folder)]


def uploads(folder):
    return json.loads((folder.path / "checkpoint.json").read_text())["pool"]


def test_runs_of_one_seed_are_equal_bit_for_bit_and_of_another_are_not(run, whole):
    _, again = run()
    assert rows(again) == rows(whole[1])
    assert uploads(again) == uploads(whole[1])  # digests of every site's model
    assert len(rows(again)) == 5  # warm-up and four rounds
    assert rows(run("other", seed=2)[1]) != rows(again)


def test_summary_has_what_was_promised(whole):
    summary, folder = whole
    for name in (
        "mean_test_accuracy", "std_test_accuracy", "worst_decile_accuracy", "pseudo_label_error",
        "models_sent", "bytes_up", "bytes_down", "rounds", "sites", "seed", "wall_seconds",
    ):  # fmt: skip
        assert summary[name] is not None, name
    assert {"best", "final"} <= summary["mean_test_accuracy"].keys()
    assert summary["mean_test_accuracy"]["best_round"] >= 1
    assert json.loads((folder.path / "summary.json").read_text()) == summary
    assert summary["models_sent"] > 0
    for name in ("per_site.csv", "traffic.csv", "evaluations.json"):
        assert (folder.path / name).stat().st_size > 0
    run = json.loads((folder.path / "run.json").read_text())
    assert run["manifest"] == summary["manifest"]


class Stop(Exception):
    """Stands for a power cut."""


@pytest.mark.parametrize("cut", [0, 1, 3])
def test_a_run_cut_in_a_round_resumes_to_the_same_bits(run, whole, cut):
    answered = []

    def power_cut(task, incoming):
        answered.append(task)
        if task.round == cut and sum(t.round == cut for t in answered) == 2:
            raise Stop
        return incoming

    with pytest.raises(Stop):
        run("cut", power_cut)
    _, resumed = run("cut", runtime__resume=True)
    assert results(resumed) == results(whole[1])
    assert uploads(resumed) == uploads(whole[1])
    assert said(resumed) == said(whole[1])


def test_what_sites_said_adds_up_to_the_rounds_rows(whole):
    _, folder = whole
    for row, sites in zip(rows(folder), folder.sites(), strict=True):
        assert sites["round"] == row["round"]
        assert sum(site.get("learned", False) for site in sites["sites"].values()) == row["trained"]
        labels = [site["pseudo"] for site in sites["sites"].values() if "pseudo" in site]
        if labels:
            wrong = sum(sum(each["wrong_by_class"]) for each in labels)
            total = sum(sum(each["by_uncertainty"]) for each in labels)
            assert wrong / total == row["pseudo_label_error"]


def tampering(change, site=2, round_number=1):
    """Change one site's answer in one round."""
    return lambda task, incoming: (
        change(task, incoming) if (task.site, task.round) == (site, round_number) else incoming
    )


def reupload(change):
    """Re-encode a changed model under its true digest, so that only the content is wrong."""

    def changed(task, incoming):
        if not incoming.payloads:
            return incoming
        [blob] = incoming.payloads.values()
        params = load(blob)
        change(params)
        blob = save(params)
        return Incoming(replace(incoming.answer, model=digest_of(blob)), {digest_of(blob): blob})

    return changed


def answer(**changes):
    return lambda task, incoming: replace(incoming, answer=replace(incoming.answer, **changes))


STRANGER = ScoredRef(ModelRef(4, 9, "0" * 64), 1.0)

BAD = {
    "refuses": (lambda t, i: Incoming(Refusal(t.site, t.round, "out of paper")), "out of paper"),
    "silent": (lambda t, i: None, "no answer within 60 s"),
    "missing tensor": (reupload(lambda p: p.pop("head.bias")), r"missing tensors \['head.bias'\]"),
    "NaN": (reupload(lambda p: p["head.bias"].fill_(math.nan)), "head.bias holds NaN"),
    "wrong shape": (
        reupload(lambda p: p.update({"head.bias": torch.zeros(3)})),
        "head.bias is torch.float32",
    ),
    "wrong dtype": (
        reupload(lambda p: p.update({"head.bias": p["head.bias"].double()})),
        "head.bias is torch.float64",
    ),
    "huge": (
        lambda t, i: Incoming(
            replace(i.answer, model="0" * 64), {"0" * 64: bytes(50_000_000)}
        ),
        "50000000 bytes, but this model has at most",
    ),
    "lies about content": (
        lambda t, i: Incoming(
            replace(i.answer, model="1" * 64), {"1" * 64: next(iter(i.payloads.values()))}
        ),
        "not the content it names",
    ),
    "no upload": (lambda t, i: Incoming(replace(i.answer, model="2" * 64)), "did not come along"),
    "stranger": (answer(helpers=(STRANGER,)), "was not offered"),
    "another round": (answer(round=7), "answered as site 2, round 7"),
    "inflated": (answer(metrics={"pseudo_total": 1e308}), "pseudo_total = 1e.308"),
    "always missing": (
        lambda t, i: Incoming(Missing(t.site, t.round, (t.own.digest,))),
        "answered with Missing",
    ),
    "missing nonsense": (
        lambda t, i: Incoming(Missing(t.site, t.round, ("3" * 64,))),
        "not part of its task",
    ),
    "negative variance": (
        reupload(lambda p: p["stem.norm.running_var"].fill_(-1.0)),
        "stem.norm.running_var is negative",
    ),
    "facts": (
        lambda t, i: Incoming(SiteFacts(t.site, (1, 8, 8), ("a",), 1, 1, 1, 1, "0" * 64)),
        "introduced itself instead of working",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def with_a_bad_site(tmp_path_factory):
    """A run in which site 2 answers every round in another bad way, and the last one honestly."""

    def tamper(task, incoming):
        if task.site != 2 or not 1 <= task.round <= len(BAD):
            return incoming
        change, _ = list(BAD.values())[task.round - 1]
        return change(task, incoming)

    changes = {"rounds__num_rounds": len(BAD) + 1, "rounds__sample_rate": 1.0}
    return start(tmp_path_factory.mktemp("bad"), tamper=tamper, **changes)


@pytest.mark.parametrize(("number", "name"), list(enumerate(BAD, 1)), ids=list(BAD))
def test_one_bad_site_is_skipped_named_and_counted(with_a_bad_site, number, name):
    skipped = rows(with_a_bad_site[1])[number]["skipped"]
    assert list(skipped) == ["2"]
    assert re.search(BAD[name][1], skipped["2"]), skipped["2"]


def test_a_site_that_was_bad_is_believed_again(with_a_bad_site):
    summary, folder = with_a_bad_site
    assert rows(folder)[-1]["skipped"] == {}
    assert summary["mean_test_accuracy"]["final"] is not None


def test_a_phase_counts_those_who_failed_and_a_drop_of_the_average_is_printed(
    run, monkeypatch, capsys
):
    said = []
    monkeypatch.setattr(Progress, "phase", lambda self, *counts: said.append(counts))
    monkeypatch.setattr("fedapp.server.engine.accuracy_drop_warning", lambda *rows: "it dropped")
    refuses = tampering(next(iter(BAD.values()))[0])
    run(tamper=refuses, rounds__num_rounds=1, rounds__sample_rate=1.0)
    trained = [counts[1:] for counts in said if counts[0] == "train"]
    assert trained == [(number, 5) for number in range(1, 6)]
    assert "it dropped" in capsys.readouterr().out


def test_what_was_never_sent_is_not_counted_as_sent(run):
    """Flower did not take site 2's task; or it did, and the site failed."""
    sent = []
    for name, took in (("refused", True), ("unsent", False)):
        lost = tampering(
            lambda task, incoming, took=took: Incoming(Refusal(2, 1, "gone"), sent=took)
        )
        _, folder = run(name, lost, rounds__num_rounds=1, rounds__sample_rate=1.0)
        assert list(rows(folder)[1]["skipped"]) == ["2"]
        sent.append(rows(folder)[1]["bytes_down"])
    assert sent[0] > sent[1] > 0


def longer(factor):
    """Move every trained tensor of an upload so many times as far from 0."""

    def change(params):
        for name, tensor in params.items():
            if "running_" not in name and tensor.is_floating_point():
                tensor.mul_(factor)

    return reupload(change)


AVERAGED = {"method": FedAvg(), "rounds__num_rounds": 3, "rounds__sample_rate": 1.0}


@pytest.fixture(scope="module")
def without_site_2(tmp_path_factory):
    """The folder of a run of FedAvg in which site 2 is silent in round 1."""
    silent = tampering(lambda task, incoming: None)
    return start(tmp_path_factory.mktemp("silent"), tamper=silent, **AVERAGED)[1]


@pytest.mark.parametrize("factor", [1e3, 1e30])
def test_a_huge_upload_is_left_out_of_the_average_named_and_ends_nothing(
    run, without_site_2, capsys, factor
):
    """The others learn what they would have learned had that site said nothing in the round."""
    _, folder = run(tamper=tampering(longer(factor)), **AVERAGED)
    learned = [
        [row["mean_test_accuracy_common"] for row in rows(one)] for one in (folder, without_site_2)
    ]
    assert learned[0] == learned[1]
    left_out = [row.get("left_out", {}) for row in rows(folder)]
    assert [list(sites) for sites in left_out] == [[], ["2"], [], []]
    assert all(row["skipped"].keys() <= {"2"} for row in rows(folder))  # its own model is spoilt
    said = " ".join(capsys.readouterr().out.split())
    assert "round 1: site 2 left out of the average: its upload changed" in said


def test_where_most_answer_nan_the_newest_uploads_are_named_not_who_answered(run, monkeypatch):
    """As it was when nobody was left out; site 2 itself does its task, and honest sites cannot."""
    for name in ("MAX_WEIGHTS_CHANGE", "MAX_STATISTICS_CHANGE"):
        monkeypatch.setattr(f"fedapp.server.round_pool.{name}", math.inf)

    def mean(task, incoming):
        if task.site == 2 and task.round == 1:
            return longer(1e30)(task, incoming)
        return incoming

    with pytest.raises(RunError) as ended:
        run("spoilt", mean, **AVERAGED)
    assert "answer NaN with the model that they were sent" in str(ended.value)
    assert re.search(r"the newest uploads in it: site 2 \(.* times the usual", str(ended.value))
    assert "lower training.learning_rate" not in str(ended.value)


def test_too_few_answers_end_the_run_with_a_reason_and_a_checkpoint(run, whole):
    def nobody(task, incoming):
        return None if task.round == 2 else incoming

    with pytest.raises(
        RunError, match=r"round 2: 0 of .* answered.*runtime.resume=true runtime.run_name=poor"
    ):
        run("poor", nobody)
    _, folder = run("poor", runtime__resume=True)
    assert results(folder) == results(whole[1])


def test_too_few_answers_in_the_warm_up_leave_nothing_to_resume(run):
    with pytest.raises(RunError, match=r"round 0: 0 of .* Repair the sites and start again$"):
        run("poor", lambda task, incoming: None)


def test_a_full_disk_ends_the_run_with_its_name_and_loses_nothing(run, whole, monkeypatch):
    """The server's disk, not the site, is named; the run resumes once there is room."""
    real = write_atomic

    def full(path, data, *, durable):
        if path.name == "checkpoint.json" and b'"round":2' in data[:20]:
            raise write_error(path, OSError(errno.ENOSPC, "No space left on device"))
        real(path, data, durable=durable)

    monkeypatch.setattr("fedapp.experiment.run_folder.write_atomic", full)
    with pytest.raises(
        StoreError, match=r"checkpoint.json.*No space left.*resume=true runtime.run_name=full"
    ):
        run("full")
    monkeypatch.undo()
    _, folder = run("full", runtime__resume=True)
    assert results(folder) == results(whole[1])


def test_a_damaged_pool_file_skips_those_who_need_it_and_the_run_goes_on(run, tmp_path):
    """The content of site 1's warm-up model is cut in half; its own site still holds it."""
    cut, models = [], {}

    def damage(task, incoming):
        if task.round == 1 and not cut:
            [path] = tmp_path.glob(f"damaged/pool/*/{models[1]}*")
            path.write_bytes(path.read_bytes()[:100])
            cut.append(path)
        if task.round == 0 and incoming.payloads:
            models[task.site] = incoming.answer.model
        return incoming

    summary, _ = run("damaged", damage)
    assert cut
    assert summary["mean_test_accuracy"]["final"] is not None


def test_two_sites_with_the_same_model_are_both_believed(run):
    """A copied upload must not make honest sites, which hold one of the two, look like liars."""
    first = {}

    def copycat(task, incoming):
        if task.round == 0 and incoming.payloads:
            first.setdefault("blob", next(iter(incoming.payloads.values())))
            if task.site == 2:
                digest = digest_of(first["blob"])
                return Incoming(replace(incoming.answer, model=digest), {digest: first["blob"]})
        return incoming

    _, folder = run(tamper=copycat)
    assert all(row["skipped"] == {} for row in rows(folder))


def test_a_repeated_missing_is_sent_and_counted_once(run, whole):
    def greedy(task, incoming):
        if (task.site, task.round) == (2, 1) and not asked:
            asked.append(task)
            return Incoming(Missing(task.site, task.round, (task.own.digest,) * 5000))
        return incoming

    asked = []
    summary, folder = run(tamper=greedy)
    assert summary["models_sent"] == whole[0]["models_sent"] + 1
    assert rows(folder)[1]["skipped"] == {}


def test_a_full_shared_store_is_not_taken_for_unwilling_sites(run, monkeypatch):
    """In loopback the sites write to the server's own store."""
    real = ModelStore.put

    def full(self, blob, **named):
        if full.left == 0:
            raise StoreError("pool: No space left on device")
        full.left -= 1
        return real(self, blob, **named)

    full.left = 9
    monkeypatch.setattr(ModelStore, "put", full)
    with pytest.raises(StoreError, match="No space left"):
        run("full")


def test_a_round_in_which_nobody_could_train_is_no_round(run):
    """Searching sites that answer do not make up for training sites that fail."""

    def sick(task, incoming):
        if task.round == 1 and task.action == "train":
            return Incoming(Refusal(task.site, task.round, "sick"))
        return incoming

    with pytest.raises(RunError, match=r"round 1: 0 of 3 sites answered \(train\).*sick"):
        run(tamper=sick)


def test_a_full_pool_is_the_servers_trouble_not_the_sites(run, monkeypatch):
    def full(self, site, named, blob, round, role):
        raise StoreError("pool: No space left on device")

    monkeypatch.setattr("fedapp.server.pool.ModelPool.upload", full)
    with pytest.raises(StoreError, match="No space left"):
        run("full")


@pytest.mark.parametrize(("rate", "size"), [(0.5, 3), (1.0, 5), (0.2, 1), (1e-12, 1), (0.4, 2)])
def test_the_cohort_is_tau_k_sites_rounded_up(rate, size):
    engine = SimpleNamespace(experiment=small(rounds__sample_rate=rate))
    assert len(Engine._cohort(engine, 0, range(5))) == 5
    cohorts = {Engine._cohort(engine, number, range(5)) for number in range(1, 30)}
    assert {len(cohort) for cohort in cohorts} == {size}
    assert frozenset().union(*cohorts) == set(range(5))


def test_order_of_answers_does_not_matter(run, whole):
    class Backwards(Transport):
        def exchange(self, outbox, fetch, deadline_s):
            return reversed(list(super().exchange(outbox, fetch, deadline_s)))

    _, folder = run("backwards", carrier=Backwards)
    assert rows(folder) == rows(whole[1])


class Remote(Loopback):
    """Every site has its own disk, as real sites have; contents really travel.

    mischief(round, root): is done to the sites' folder before each exchange.
    """

    def __init__(self, experiment, federation, store, sites_root, mischief):
        self.experiment, self.root, self.mischief = experiment, sites_root, mischief
        self.sites = {
            k: federation.site(
                k,
                experiment,
                ModelStore(sites_root / f"{k}/models"),
                sites_root / f"{k}",
                keeps_scores=True,
            )
            for k in range(experiment.split.num_clients)
        }

    def exchange(self, outbox, fetch, deadline_s):
        self.mischief(outbox[0].task.round, self.root)
        for out in outbox:
            self.count(len(out.attach))
            payloads = {digest: fetch(digest) for digest in out.attach}
            yield out.task.site, carried(self.sites[out.task.site].handle(out.task, payloads))

    def count(self, number):
        """Take note of how many models were sent."""


def no_mischief(number, root):
    """Leave the sites as they are."""


def test_sites_with_their_own_disks_give_the_same_run_and_the_ledger_is_what_was_sent(
    run, whole, monkeypatch
):
    sent = []
    monkeypatch.setattr(Remote, "count", lambda self, number: sent.append(number))
    summary, folder = run("remote", no_mischief, Remote)
    assert rows(folder) == rows(whole[1])
    assert summary["models_sent"] == sum(sent) > 0


def test_a_sites_store_never_holds_more_than_its_list_and_what_is_up_for_replacement(
    run, monkeypatch
):
    """At most M + R models, at any moment and for any site."""
    most = {}
    real = ModelStore.put

    def put(self, blob, **named):
        digest = real(self, blob, **named)
        if self.root.name == "models":
            most[self.root] = max(most.get(self.root, 0), len(self.digests()))
        return digest

    monkeypatch.setattr(ModelStore, "put", put)
    changes = {"rounds__num_rounds": 8, "rounds__sample_rate": 0.6}
    run("bounded", no_mischief, Remote, **changes)
    method = small().method
    assert len(most) == 5
    assert 3 <= max(most.values()) <= method.helper_list_size + method.num_replaced
    for root in most:
        assert len(ModelStore(root).digests()) <= method.helper_list_size


def test_sites_that_lose_or_damage_what_they_hold_are_healed_and_nothing_changes(run, whole):
    """Site 1 loses its disk in rounds 2 and 4; in round 3 every file of every site is cut."""
    done = set()

    def lose(number, root):
        if number in done:
            return
        done.add(number)
        if number in (2, 4):
            shutil.rmtree(root / "1" / "models")
            (root / "1" / "models").mkdir()
        if number == 3:
            for path in root.glob("*/*/**/*.safetensors"):
                path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])

    _, folder = run("healed", lose, Remote)
    assert results(folder) == results(whole[1])
    assert all(row["skipped"] == {} for row in rows(folder))


@pytest.mark.parametrize(("sites", "alpha", "subset"), [(1, 1.0, 60), (12, 0.05, 60)])
def test_a_single_site_and_sites_without_images_run_to_the_end(run, sites, alpha, subset):
    summary, folder = run(
        split__num_clients=sites, split__dirichlet_alpha=alpha, data__subset=subset
    )
    assert summary["sites"] == sites
    assert all(row["skipped"] == {} for row in rows(folder))
