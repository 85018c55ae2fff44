"""Clipping, noise and epsilon of uploads: by hand, at the limits, and in whole runs."""

import json
import math
import re
import shutil

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp.mod import LocalDpMod, fixedclipping_mod
from flwr.supercore.task_identity import TaskIdentity
from pydantic import ValidationError

from fedapp.drivers.calls import Loopback
from fedapp.experiment.config import experiment_digest
from fedapp.experiment.runfolder import open_run
from fedapp.ground.progress import Progress
from fedapp.ground.settings import PrivacySettings
from fedapp.learn.params import digest_of, to_bytes
from fedapp.messages import wire
from fedapp.messages.ledger import Ledger
from fedapp.messages.protocol import Incoming, ModelRef, Reply, Task
from fedapp.messages.store import ModelStore
from fedapp.methods.averaging.pfedme import PFedMe
from fedapp.server.engine import Engine
from fedapp.site.federation import federation_of
from fedapp.site.privacy import Releases, epsilon, length, normal, upload
from tests.flower.grids import origin_of
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
    out = upload(trained, known, PrivacySettings(clip=1.0), KEY)  # the change is (3, 4): 5 long
    torch.testing.assert_close(out["w"], torch.tensor([1.6, 1.8]))
    assert out["n.num_batches_tracked"] == 7  # how long a site trained is nobody's business
    whole = upload(trained, known, PrivacySettings(clip=5.5), KEY)
    assert torch.equal(whole["w"], trained["w"])
    same = upload(known, known, PrivacySettings(clip=1.0), KEY)
    assert all(torch.equal(same[name], known[name]) for name in known)


def test_all_floating_tensors_are_clipped_together():
    known, trained = model(0.0, variance=1.0), model(3.0, variance=5.0)
    out = upload(trained, known, PrivacySettings(clip=1.0), KEY)
    torch.testing.assert_close(out["w"], torch.tensor([0.6]))
    torch.testing.assert_close(out["n.running_var"], torch.tensor([1.8]))


def test_the_noise_has_the_promised_scale_and_is_keyed():
    size = 100_000
    known = {"w": torch.zeros(size)}
    settings = PrivacySettings(clip=0.5, noise=3.0)
    one = upload(known, known, settings, KEY)["w"]
    # Standard error of a standard deviation: s / sqrt(2 n). 5 sigma: 1 run in 1.7 million.
    assert abs(one.std() - 1.5) < 5 * 1.5 / math.sqrt(2 * size)
    assert abs(one.mean()) < 5 * 1.5 / math.sqrt(size)
    assert torch.equal(one, upload(known, known, settings, KEY)["w"])
    other = upload(known, known, settings, b"j" * 32)["w"]
    assert abs(torch.corrcoef(torch.stack([one, other]))[0, 1]) < 5 / math.sqrt(size)


def test_two_tensors_of_a_model_do_not_share_their_noise():
    known = {"a": torch.zeros(50), "b": torch.zeros(50)}
    out = upload(known, known, PrivacySettings(clip=1.0, noise=1.0), KEY)
    assert not torch.equal(out["a"], out["b"])


def test_the_draws_are_standard_normal():
    from scipy.stats import kstest

    drawn = normal(KEY, 100_001)
    assert len(drawn) == 100_001 and np.isfinite(drawn).all()
    assert kstest(drawn, "norm").pvalue > 1e-6  # fixed key: no false alarms


def test_a_variance_stays_above_zero():
    known = {"n.running_var": torch.full((1000,), 2.0)}
    out = upload(known, known, PrivacySettings(clip=1.0, noise=50.0), KEY)["n.running_var"]
    assert out.min() == pytest.approx(0.2)


def hockey_stick(eps, mu):
    """delta of N(0, 1) against N(mu, 1), by adding up max(p - e^eps q, 0)."""
    x = np.linspace(-40, 40 + mu, 2_000_001)
    p, q = (np.exp(-((x - m) ** 2) / 2) / math.sqrt(2 * math.pi) for m in (mu, 0.0))
    return np.trapezoid(np.maximum(p - math.exp(eps) * q, 0), x)


@pytest.mark.parametrize(("noise", "uploads"), [(2.0, 1), (8.0, 4), (1.0, 1), (20.0, 10)])
def test_epsilon_is_where_the_two_gaussians_are_delta_apart(noise, uploads):
    eps = epsilon(noise, uploads, 1e-5)
    assert hockey_stick(eps, 2 * math.sqrt(uploads) / noise) == pytest.approx(1e-5, rel=1e-3)


def test_epsilon_by_hand_from_a_table_of_the_normal_distribution():
    """z = 1, one upload: mu = 2; at eps = 10: Phi(1 - 5) - e^10 Phi(-1 - 5) = 9.94e-6 < 1e-5."""
    by_hand = 3.1671e-5 - 22026.47 * 9.8659e-10
    assert by_hand == pytest.approx(9.94e-6, rel=1e-3)
    assert epsilon(1.0, 1, by_hand) == pytest.approx(10.0, abs=1e-3)


def test_epsilon_by_simulating_uploads_of_two_sites_that_differ_in_all_their_images():
    """Both push the bound C into opposite directions; each upload adds to what is given away."""
    noise, uploads, clip, delta, count = 4.0, 5, 0.7, 0.01, 1_000_000
    zero = {"w": torch.zeros(count)}
    loss = np.zeros(count)
    for number in range(uploads):
        settings = PrivacySettings(clip=clip, noise=noise)
        drawn = upload(zero, zero, settings, KEY + bytes([number]))["w"].double().numpy()
        seen, scale = clip + drawn, noise * clip
        loss += ((seen + clip) ** 2 - (seen - clip) ** 2) / (2 * scale**2)  # log likelihood ratio
    eps = epsilon(noise, uploads, delta)
    found = np.maximum(0, 1 - np.exp(eps - loss))
    assert abs(found.mean() - delta) < 5 * found.std() / math.sqrt(count)
    assert found.std() / math.sqrt(count) < delta / 50  # precise enough to say something


def test_epsilon_of_the_analytic_gaussian_mechanism_and_its_limits():
    # Balle and Wang 2018: sigma = 3.7306 for sensitivity 1, epsilon 1, delta 1e-5; ours is 2 C.
    assert epsilon(2 * 3.7306, 1, 1e-5) == pytest.approx(1.0, abs=1e-3)
    assert epsilon(3.0, 4, 1e-5) == pytest.approx(epsilon(1.5, 1, 1e-5))  # sqrt(4) = 2
    assert epsilon(1.0, 0, 1e-5) == 0
    assert epsilon(0.0, 1, 1e-5) == math.inf
    assert epsilon(1e6, 1, 1e-5) < 1e-5
    assert math.isfinite(epsilon(0.01, 1000, 1e-5))
    costs = [epsilon(4.0, n, 1e-5) for n in range(1, 6)]
    assert costs == sorted(costs) and costs[0] < costs[-1] < 5 * costs[0]


def test_noise_without_a_bound_is_refused():
    with pytest.raises(ValidationError, match="noise needs a clip"):
        PrivacySettings(noise=1.0)


def test_a_repeated_release_counts_once_and_the_key_is_its_sites_own(tmp_path):
    one, two = Releases(tmp_path / "a"), Releases(tmp_path / "b")
    key = one.key(b"round 1")
    assert key == Releases(tmp_path / "a").key(b"round 1") != one.key(b"round 2")
    assert key != two.key(b"round 1")
    assert [one.count(key), one.count(key), one.count(one.key(b"round 2"))] == [1, 1, 2]
    assert (tmp_path / "a/noise.key").stat().st_mode & 0o077 == 0


def run(root, name, keys_of=None, **changes):
    """Two sites, one round; keys_of: a run whose sites' noise keys are copied."""
    experiment = small(
        **{"rounds__num_rounds": 1, "rounds__sample_rate": 1.0, **changes},
        split__num_clients=2, data__subset=100, runtime__out=str(root), runtime__run_name=name,
    )  # fmt: skip
    federation = federation_of(experiment)
    folder = open_run(experiment, federation.manifest)
    for key in keys_of.sites_root.rglob("noise.key") if keys_of else ():
        copy = folder.sites_root / key.relative_to(keys_of.sites_root)
        copy.parent.mkdir(parents=True)
        shutil.copy(key, copy)
    store = ModelStore(folder.pool_root)
    transport = Loopback(experiment, federation, store, folder.sites_root)
    with Progress() as progress:
        Engine(experiment, transport, folder, store, progress, Ledger()).run()
    return folder


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
    with caplog.at_level("INFO", "fedapp.site.privacy"):
        folder = run(tmp_path, "long", privacy__clip=1e6)
    said = [r for r in caplog.records if "change of length" in r.getMessage()]
    assert said and all(record.args[2] > 0 for record in said)
    exact = {repr(record.args[2]) for record in said}
    files = [p.read_text() for p in folder.path.glob("*.*") if p.suffix != ".safetensors"]
    assert not any(number in text for number in exact for text in files)


def test_the_length_is_of_all_that_is_clipped():
    assert length(model(4.0, 5.0, count=99), model(1.0, 1.0)) == 5
    assert length(model(1.0, variance=13.0), model(6.0)) == 13


def test_off_the_step_is_not_taken(tmp_path, monkeypatch):
    def never(*arguments):
        raise AssertionError("the step is off")

    monkeypatch.setattr("fedapp.site.site.privately", never)
    off = run(tmp_path, "off")
    assert not list(off.path.rglob("noise.key")) and not off.metrics()[1]["skipped"]
    assert "epsilon" not in off.per_site()[0]
    assert experiment_digest(small()) != experiment_digest(small(privacy__clip=1.0))


NOISY = {"privacy__clip": 1.0, "privacy__noise": 0.01}


def test_epsilon_of_every_site_is_said_and_recorded_and_only_the_key_decides_the_noise(
    tmp_path, capsys
):
    folder = run(tmp_path, "noisy", **NOISY)
    text = capsys.readouterr().out
    said = re.search(r"epsilon of each site's models at delta = 1e-05: (.*)", text)
    assert said and said[1].count("site ") == 2
    for row in folder.per_site():
        uploads = pool(folder)[str(row["site"])][0]
        assert row["epsilon"] == pytest.approx(epsilon(0.01, uploads, 1e-5))
    assert pool(run(tmp_path, "again", keys_of=folder, **NOISY)) == pool(folder)
    other = pool(run(tmp_path, "other", **NOISY))
    assert all(other[site][1] != pool(folder)[site][1] for site in "01")


@pytest.fixture
def exchange(monkeypatch):
    """A request to a site and its answer, as they go through Flower's mods."""
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    old, new = (to_bytes({"w": torch.full((3,), float(k))}) for k in range(2))
    task = Task(0, 1, "train", ModelRef(0, 1, digest_of(old)))
    context = Context(1, 1, {}, RecordDict(), {})

    def go(mod, payloads, answer_payloads):
        request = Message(wire.write_request(origin_of(small()), task, payloads), 7, "train.task")
        reply = Reply(0, 1, digest_of(new))

        def app(message, context):
            return Message(wire.write_answer(Incoming(reply, answer_payloads)), reply_to=message)

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


def test_bytes_of_a_model_are_no_numbers_to_be_clipped():
    """Even where a mod could read them: noise on bytes gives no model."""
    blob = to_bytes({"w": torch.ones(3)})
    array = Array("uint8", (len(blob),), "safetensors", blob)
    with pytest.raises(TypeError):
        ArrayRecord({"w": array}).to_numpy_ndarrays()
