"""Clipping of uploads, and a site's own key: by hand, at the limits, and in whole runs."""

import json

import numpy as np
import pytest
import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp.mod import LocalDpMod, fixedclipping_mod

from fedapp.experiment.config import experiment_digest
from fedapp.learn.params import digest_of, to_bytes
from fedapp.methods.averaging.pfedme import PFedMe
from fedapp.privacy.noise import normal
from fedapp.protocol import flower_records
from fedapp.protocol.messages import Incoming, ModelRef, Reply, Task
from fedapp.site.privacy_budget import Releases, change_norm, clipped_upload
from tests.flower.grids import origin_of
from tests.security.runs import played
from tests.small import small

KEY = b"k" * 32


def model(*numbers, count=7, variance=1.0):
    return {
        "w": torch.tensor(numbers),
        "n.running_var": torch.tensor([variance]),
        "n.num_batches_tracked": torch.tensor(count),
    }


def test_a_change_beyond_the_bound_is_scaled_to_it_and_one_within_is_left_alone():
    known, trained = model(1.0, 1.0), model(4.0, 5.0, count=99)
    out = clipped_upload(trained, known, 1.0)  # the change is (3, 4): 5 long
    torch.testing.assert_close(out["w"], torch.tensor([1.6, 1.8]))
    assert out["n.num_batches_tracked"] == 7  # how long a site trained is nobody's business
    whole = clipped_upload(trained, known, 5.5)
    assert torch.equal(whole["w"], trained["w"])
    same = clipped_upload(known, known, 1.0)
    assert all(torch.equal(same[name], known[name]) for name in known)


def test_all_floating_tensors_are_clipped_together():
    known, trained = model(0.0, variance=1.0), model(3.0, variance=5.0)
    out = clipped_upload(trained, known, 1.0)
    torch.testing.assert_close(out["w"], torch.tensor([0.6]))
    torch.testing.assert_close(out["n.running_var"], torch.tensor([1.8]))


def test_the_draws_are_standard_normal():
    from scipy.stats import kstest

    drawn = normal(KEY, 100_001)
    assert len(drawn) == 100_001 and np.isfinite(drawn).all()
    assert kstest(drawn, "norm").pvalue > 1e-6  # fixed key: no false alarms


def test_a_release_pays_once_and_the_key_is_its_sites_own(tmp_path):
    one, two = Releases(tmp_path / "a"), Releases(tmp_path / "b")
    key = one.key(b"round 1")
    assert key == Releases(tmp_path / "a").key(b"round 1") != one.key(b"round 2")
    assert key != two.key(b"round 1")
    assert [one.pays("row", key, 1), one.pays("row", key, 1)] == [True, True]
    assert not one.pays("row", one.key(b"round 2"), 1) and one.made() == 1
    assert (tmp_path / "a/noise.key").stat().st_mode & 0o077 == 0


def run(root, name, **changes):
    """Two sites, one round."""
    experiment = small(
        **{"rounds__num_rounds": 1, "rounds__sample_rate": 1.0, **changes},
        split__num_clients=2, data__subset=100, runtime__out=str(root), runtime__run_name=name,
    )  # fmt: skip
    return played(experiment)[1]


def pool(folder):
    return json.loads((folder.path / "checkpoint.json").read_text())["pool"]


def evaluations(folder):
    return json.loads((folder.path / "evaluations.json").read_text())


def test_what_is_measured_is_what_is_sent_and_a_personal_model_stays_what_it_was(tmp_path):
    """clip = 1e-9: what is sent is w_0, whatever was trained; pFedMe's theta never leaves.

    In one common round: a second theta would start from what was sent.
    """
    off = {"rounds__num_rounds": 0, "training__warmup_rounds": 1}
    tiny = {**off, "privacy__clip": 1e-9}
    assert evaluations(run(tmp_path, "a", **off)) != evaluations(run(tmp_path, "b", **tiny))
    method = PFedMe(inner_steps=2)
    plain = run(tmp_path, "c", method=method, **off)
    assert evaluations(run(tmp_path, "d", method=method, **tiny)) == evaluations(plain)


def test_a_site_says_in_its_own_log_how_long_a_change_was_and_tells_nobody(tmp_path, caplog):
    with caplog.at_level("INFO", "fedapp.site.privacy_budget"):
        folder = run(tmp_path, "long", privacy__clip=1e6)
    said = [r for r in caplog.records if "change of length" in r.getMessage()]
    assert said and all(record.args[2] > 0 for record in said)
    exact = {repr(record.args[2]) for record in said}
    files = [p.read_text() for p in folder.path.glob("*.*") if p.suffix != ".safetensors"]
    assert not any(number in text for number in exact for text in files)


def test_the_length_is_of_all_that_is_clipped():
    assert change_norm(model(4.0, 5.0, count=99), model(1.0, 1.0)) == 5
    assert change_norm(model(1.0, variance=13.0), model(6.0)) == 13


def test_off_the_step_is_not_taken(tmp_path, monkeypatch):
    def never(*arguments):
        raise AssertionError("the step is off")

    monkeypatch.setattr("fedapp.site.protected_site.clipped", never)
    off = run(tmp_path, "off")
    assert not list(off.path.rglob("noise.key")) and not off.metrics()[1]["skipped"]
    assert "epsilon" not in off.per_site()[0]
    assert experiment_digest(small()) != experiment_digest(small(privacy__clip=1.0))


@pytest.fixture
def exchange():
    """A request to a site and its answer, as they go through Flower's mods."""
    old, new = (to_bytes({"w": torch.full((3,), float(k))}) for k in range(2))
    task = Task(0, 1, "train", ModelRef(0, 1, digest_of(old)))
    context = Context(1, 1, {}, RecordDict(), {})

    def go(mod, payloads, answer_payloads):
        request = Message(
            flower_records.write_request(origin_of(small()), task, payloads), 7, "train.task"
        )
        reply = Reply(0, 1, digest_of(new))

        def app(message, context):
            return Message(
                flower_records.write_answer(Incoming(reply, answer_payloads)), reply_to=message
            )

        return mod(request, context, app)

    go.old, go.new = {digest_of(old): old}, {digest_of(new): new}
    return go


def test_flowers_own_mods_cannot_act_on_our_messages(exchange):
    local = LocalDpMod(clipping_norm=1.0, sensitivity=1.0, epsilon=1.0, delta=1e-5)
    nothing = exchange(local, {}, exchange.new)  # the usual case: the site holds its model
    assert "expects exactly one ArrayRecord, but found 0" in nothing.error.reason
    renamed = exchange(local, exchange.old, exchange.new)  # a model's name is its content's digest
    assert "keys in the ArrayRecord of the reply" in renamed.error.reason
    with pytest.raises(TypeError, match="safetensors"):
        exchange(local, exchange.old, exchange.old)
    fixed = exchange(fixedclipping_mod, exchange.old, exchange.new)
    assert "requires the key" in fixed.error.reason
