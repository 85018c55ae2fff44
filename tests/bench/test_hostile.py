"""The benchmark of hostile sites: who they are, what they upload, its table by hand, a toy run."""

import json
from dataclasses import replace

import pytest
import torch
import typer

from bench import hostile, record
from bench.attacks import ATTACKS, NOBODY, Hostile, mislabelled
from bench.hostile import (
    FULL,
    QUICK,
    TUNED,
    Case,
    course,
    experiment_of,
    hostile_sites,
    measured,
    rows_of,
)
from fedapp.experiment.run_folder import RunFolder
from fedapp.learn.params import digest_of, to_bytes
from fedapp.protocol.messages import Incoming, ModelRef, Outgoing, Reply, Task
from fedapp.simulation.loopback import run_loopback
from fedapp.site.federation import federation_of
from tests.small import small


def model(weight, bias):
    return {
        "head.weight": torch.tensor([[float(weight), 2.0, 4.0]]),
        "head.bias": torch.tensor([float(bias), 0.0]),
        "norm.running_var": torch.tensor([0.5]),
        "count": torch.tensor(7),
    }


KNOWN, TRAINED = model(1, 0), model(3, 1)


def task(site=1, number=2):
    own, server = ModelRef(site, 1, "a" * 64), ModelRef(-2, 3, digest_of(to_bytes(KNOWN)))
    return Task(site=site, round=number, action="train", own=own, models={"server": (server,)})


class OneAnswer:
    """Carries nothing: every site answers with the same model; `contents`: what it sends."""

    def __init__(self, contents=lambda digest, blob: {digest: blob}):
        self.contents = contents

    def exchange(self, outbox, fetch, deadline_s):
        blob = to_bytes(TRAINED)
        digest = digest_of(blob)
        for outgoing in outbox:
            site, number = outgoing.task.site, outgoing.task.round
            reply = Reply(site=site, round=number, model=digest, held=(digest,))
            yield site, Incoming(reply, self.contents(digest, blob))


def uploads(attack):
    return Hostile(OneAnswer(), {1}, attack, 0).upload(task(), TRAINED, KNOWN)


def heard(carrier, *sites):
    """What the server gets of these sites, of which site 1 is hostile."""
    outbox = [Outgoing(task(site), b"") for site in sites]
    found = Hostile(carrier, {1}, "sign", 0).exchange(outbox, lambda _: to_bytes(KNOWN), 1.0)
    return [incoming for _, incoming in found]


def test_a_changed_upload_passes_for_the_sites_own_and_what_is_beside_it_stays_true():
    good, bad = heard(OneAnswer(lambda digest, blob: {digest: blob, "sums": b"sums"}), 0, 1)
    assert good.payloads == {good.answer.model: to_bytes(TRAINED), "sums": b"sums"}
    digest = bad.answer.model
    assert bad.payloads == {digest: to_bytes({**KNOWN, **uploads("sign")}), "sums": b"sums"}
    assert digest == digest_of(bad.payloads[digest]) != good.answer.model
    assert bad.answer.held == (digest,)
    [sums] = heard(OneAnswer(lambda *_: {"sums": b"sums"}), 1)
    assert sums.payloads == {"sums": b"sums"} and sums.answer.model == good.answer.model


def test_what_each_attack_uploads():
    assert uploads("sign")["head.weight"].tolist() == [[-1, 2, 4]]  # 1 - (3 - 1)
    assert uploads("scaled")["head.weight"].tolist() == [[21, 2, 4]]  # 1 + 10 (3 - 1)
    assert uploads("x1e3")["head.weight"].tolist() == [[2001, 2, 4]]
    assert uploads("x1e30")["head.weight"][0, 0].item() == pytest.approx(2e30)
    assert uploads("one_class")["head.bias"].tolist() == [21, 0]
    assert uploads("one_class")["head.weight"].equal(TRAINED["head.weight"])
    assert uploads("labels") is TRAINED
    assert sorted(uploads("random")["head.weight"].flatten().tolist()) == [2, 3, 4]
    for attack in ATTACKS:
        assert uploads(attack)["norm.running_var"].item() == 0.5
        assert uploads(attack)["count"].item() == 7


def test_an_old_copy_is_the_first_model_again():
    transport = Hostile(OneAnswer(), {1, 2}, "old", 0)
    first = transport.upload(task(), TRAINED, KNOWN)
    assert transport.upload(task(number=3), KNOWN, KNOWN) is first is TRAINED
    assert transport.upload(task(site=2), KNOWN, KNOWN) is KNOWN


def test_hostile_sites_have_wrong_labels_and_the_others_their_own():
    federation = federation_of(small())
    turned = mislabelled(federation, {1})
    true, false = federation.dealt.site(1), turned.dealt.site(1)
    assert false is turned.dealt.site(1)
    assert (true.labels + false.labels == 9).all() and (
        true.val_labels + false.val_labels == 9
    ).all()
    assert false.test_labels is true.test_labels
    assert turned.dealt.site(0) is federation.dealt.site(0)


def test_who_is_hostile_depends_on_the_seed_and_grows_with_the_share():
    few, more, most = (hostile_sites(share, 60, 10) for share in (0.1, 0.3, 0.4))
    assert few < more < most and [len(few), len(more), len(most)] == [1, 3, 4]
    assert len({hostile_sites(0.3, seed, 10) for seed in range(20)}) > 10
    assert not hostile_sites(0.0, 60, 10)


def test_a_method_is_a_preset_and_a_rule():
    ours = experiment_of(FULL, "recommended+median", 61)
    assert (ours.method.name, ours.rounds.robust, ours.seed) == ("prior_shift", "median", 61)
    assert (ours.training.learning_rate, ours.split.num_clients) == (0.03, 10)
    base = experiment_of(FULL, "um_pfssl", 60)
    assert (base.method.name, base.rounds.robust) == ("um_pfssl", "none")
    assert base.training.learning_rate == 0.01


def result(case, used, tuned=()):
    """Half as good in round 1 as in round 2, the last."""
    rounds = [
        {
            part: {str(site): factor * a for site, a in enumerate(values)}
            for part, values in (("test", used), ("test_tuned", tuned))
        }
        for factor in (0.1, 0.5, 1)
    ]
    return {"case": case.name, "rounds": rounds, "ended": "", "code": "c"}


def test_a_measure_stays_until_the_site_measures_again():
    heard = {0: {0: {"test": 0.1}, 1: {"test": 0.2}}, 1: {1: {"test": 0.4, "test_tuned": 0.5}}}
    first, second, never = course(heard, 2)
    assert first == {"test": {"0": 0.1, "1": 0.2}}
    assert second == {"test": {"0": 0.1, "1": 0.4}, "test_tuned": {"1": 0.5}}
    assert never == {}  # the run ended in round 2


def test_the_table_by_hand():
    """Site 0 of two is the hostile one of one seed, site 1 of the other: neither is counted."""
    seeds = [next(s for s in range(99) if hostile_sites(0.5, s, 2) == {site}) for site in (0, 1)]
    results = {}
    for seed, used in zip(seeds, ([0.1, 0.6], [0.4, 0.2]), strict=True):
        before, case = Case("fedavg", NOBODY, 0.0, seed), Case("fedavg", "sign", 0.5, seed)
        assert case.reference == before
        results[before] = result(before, [0.8, 0.8], [0.5, 0.5])
        results[case] = result(case, used, [0.5, 0.5])
    first, second = rows_of(results, ["fedavg"], 2, last=True)
    assert first == {"attack": NOBODY, "share": 0.0, "fedavg": "80.0", TUNED: "50.0"}
    assert second["fedavg"] == "50.0 (-30.0)"  # (60 + 40) / 2
    assert second[TUNED] == "50.0 (+0.0)"
    assert rows_of(results, ["fedavg"], 2, last=False)[1]["fedavg"] == "37.5 (-22.5)"
    # A run that broke counts as nothing.
    before, case = Case("fedprox", NOBODY, 0.0, 0), Case("fedprox", "sign", 0.5, 0)
    results = {before: result(before, [0.8, 0.8]), case: result(case, [])}
    assert rows_of(results, ["fedprox"], 2, last=True)[1]["fedprox"] == "0.0 (-80.0)"


def test_what_is_heard_is_what_the_run_records_and_no_attack_without_hostile_sites(tmp_path):
    """The wrapped transport changes nothing where nobody is hostile, whatever the attack."""
    found = measured(QUICK, Case("fedavg", "scaled", 0.0, 0))["rounds"]
    _, folder = run_loopback(experiment_of(QUICK, "fedavg", 0, tmp_path))
    final = {str(row["site"]): row["final_accuracy"] for row in RunFolder(folder).per_site()}
    assert found[-1]["test"] == final
    assert len(found) == 2 and len(found[1]["test"]) == len(found[1]["test_tuned"]) == 4


def test_a_run_that_too_few_can_answer_in_has_a_reason():
    size = replace(QUICK, overrides={**QUICK.overrides, "training.learning_rate": 1e30})
    found = measured(size, Case("fedavg", NOBODY, 0.0, 0))
    assert "answered" in found["ended"] and found["rounds"] == [{}, {}]


@pytest.mark.slow
def test_a_toy_run_is_recorded_and_goes_on_from_what_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(record, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(hostile, "FULL", QUICK)
    monkeypatch.setenv("FEDAPP_OUT", str(tmp_path))
    for _ in range(2):
        hostile.main(methods="fedavg", attacks="sign")
        written = json.loads((tmp_path / "results" / "hostile.json").read_text())
        assert [row["attack"] for row in written["rows"]] == [NOBODY, "sign"]
        kept = tmp_path / "bench-hostile-digits_demo" / "fedavg-sign-0.25-0.json"
        made = json.loads(kept.read_text())
        kept.write_text(json.dumps({**made, "rounds": [{}, {}]}))
    assert written["rows"][1]["fedavg"].startswith("0.0 (-")  # what the file said


def test_an_unknown_attack_is_refused():
    with pytest.raises(typer.BadParameter, match="no attack nosuch"):
        hostile.main(quick=True, attacks="nosuch")
