"""Privacy of single images in whole runs: what leaves a site, what noise it has, who pays."""

import hashlib
import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedapp.core.cache import Cache
from fedapp.core.errors import ConfigError, StoreError, WithheldError
from fedapp.core.settings import DataSettings, PrivacySettings, RoundSettings, TrainSettings
from fedapp.data.sites import Part
from fedapp.experiment.config import load_experiment
from fedapp.learn.networks import build_model
from fedapp.learn.networks.resnet9 import ResNet9Settings
from fedapp.learn.params import digest_of, to_bytes
from fedapp.methods._summed import Layout
from fedapp.methods.averaging.fedavg import FedAvg
from fedapp.methods.closed_form._contents import COUNT, RELEASE, TOTALS
from fedapp.methods.closed_form._protected import SENSITIVITY, Released, clipped_rows, first_row
from fedapp.methods.closed_form._site import ClosedSite
from fedapp.methods.closed_form.one_round import OneRound
from fedapp.models.card import CARD
from fedapp.privacy.accountant import noise_multiplier
from fedapp.privacy.noise import draw_noise_share
from fedapp.protocol.messages import EPSILON, MODEL, ModelRef, Origin, Refusal, Reply, SumStep, Task
from fedapp.protocol.store import ModelStore
from fedapp.reports.site_report import site_page, view_of_model
from fedapp.simulation.loopback import run_loopback
from fedapp.site.federation import federation_of, forget
from fedapp.site.policy import SitePolicy
from fedapp.site.privacy_budget import RELEASED
from fedapp.site.protected_sums import FIXED_POINT_STEP as STEP
from fedapp.site.protected_sums import row_noise
from fedapp.site.rollback_guard import Head
from fedapp.site.site import SiteClient
from fedapp.tools.use.export import export
from tests import arrays
from tests.security.runs import played
from tests.small import small

PRIVATE = PrivacySettings(epsilon=3.0)


def closed(**changes):
    plain = small(method=OneRound(features="plain"), rounds=RoundSettings(num_rounds=1))
    return small(**{
        "method": plain.method, "rounds": plain.rounds, "privacy": PRIVATE, **changes
    })  # fmt: skip


def trained(**changes):
    return small(**{
        "method": FedAvg(),
        "model": ResNet9Settings(width=4, norm="group", dropout=0.0),
        "training": TrainSettings(warmup_epochs=0, local_steps=1, learning_rate=0.5, momentum=0.0),
        "rounds": RoundSettings(num_rounds=2, sample_rate=1.0),
        "privacy": PrivacySettings(epsilon=3.0, sampling=0.2),
        **changes,
    })  # fmt: skip


@pytest.fixture
def site(tmp_path):
    """A site of a run, real or simulated, and a task for it."""

    def made(experiment, real=True, folder="one"):
        federation = federation_of(experiment)
        root = tmp_path / folder
        store = ModelStore(root / "store")
        client: SiteClient = federation.site(0, experiment, store, root)
        w_0 = to_bytes(client._initial())
        store.put(w_0)
        if real:
            client = replace(client, data=replace(client.data, audit=None))
        made.own = ModelRef(0, 0, digest_of(w_0))
        return client

    def task(action, number=0, **models):
        return Task(0, number, action, made.own, models={k: (v,) for k, v in models.items()})

    made.task = task
    return made


def row_of(incoming, role):
    assert isinstance(incoming.answer, Reply), incoming.answer
    blob = incoming.payloads[incoming.answer.contents[role]]
    from safetensors.torch import load

    return load(blob)[role]


def test_a_released_row_has_the_accounts_noise_and_no_other(site):
    client = site(closed())
    noisy = row_of(client.handle(site.task(RELEASE), {}), TOTALS)
    context, _ = client.context(site.task(RELEASE))
    true = ClosedSite.of("plain", site.task(RELEASE), context).released(site.task(RELEASE))
    noise = (noisy - true[TOTALS]).numpy()
    sigma = noise_multiplier(3.0, 1e-5, client.experiment.protection.plan) * SENSITIVITY
    # Standard error of a standard deviation: 5 sigma.
    assert abs(noise.std() / sigma - 1) < 5 / np.sqrt(2 * len(noise))
    assert abs(noise.mean()) < 5 * sigma / np.sqrt(len(noise))


def test_asked_again_a_site_shows_the_same_noise_and_pays_once(site):
    client = site(closed())
    one = row_of(client.handle(site.task(RELEASE, 0), {}), TOTALS)
    assert torch.equal(one, row_of(client.handle(site.task(RELEASE, 1), {}), TOTALS))
    other = site(closed(seed=2), folder="other")  # another site has another key
    assert not torch.equal(one, row_of(other.handle(site.task(RELEASE), {}), TOTALS))


def test_a_model_for_use_answers_as_its_head_over_coordinates_does(site):
    """Heads of a protected run are over coordinates; the network that is kept takes images."""
    client, task = site(closed()), site.task(RELEASE)
    context, _ = client.context(task)
    even = torch.full((10,), 0.1, dtype=torch.float64)

    class Given(ClosedSite):
        def every(self, task):
            draws = torch.Generator().manual_seed(1)
            size = self.map.size
            head = torch.randn(10, size, generator=draws), torch.randn(10, generator=draws)
            return {"common": (head, even)}

    one = Given.of("plain", task, context)
    found = one.predictor("common", task)
    data = context.data
    network = build_model(client.experiment.model, data.inputs, data.num_classes)
    images = context.normalise(data.labelled[:20])
    logits = found.load_into(network).eval()(images)
    weight, bias = one.every(task)["common"][0]
    wanted = one.features("labelled")[:20] @ weight.T + bias
    torch.testing.assert_close(logits, wanted, atol=1e-4, rtol=1e-4)


def test_a_second_look_at_other_images_is_refused(site, caplog):
    client = site(closed())
    client.handle(site.task(RELEASE), {})
    fewer = client.data.with_parts(labelled=client.data.parts["unlabelled"].__class__(
        client.data.labelled[1:], client.data.labels[1:]
    ))  # fmt: skip
    refused = replace(client, data=fewer).handle(site.task(RELEASE, 1), {}).answer
    assert isinstance(refused, Refusal) and refused.reason == WithheldError.for_server
    assert "pays for 1 release" in caplog.text  # for the site alone


@pytest.mark.parametrize("action", [COUNT])
def test_what_has_no_noise_may_not_leave(site, action):
    refused = site(closed()).handle(site.task(action), {}).answer
    assert isinstance(refused, Refusal) and "has no noise and may not leave" in refused.reason


def test_a_real_site_tells_no_evaluation_and_no_number_but_epsilon(site):
    client = site(closed())
    answer = client.handle(site.task(RELEASE), {}).answer
    assert dict(answer.metrics) == {EPSILON: 3.0} and not answer.evaluations
    assert answer.pseudo is None and not answer.helpers


def test_a_list_of_releases_that_is_gone_is_noticed(site, tmp_path):
    """The record of the site remembers what its store forgot: no second look by new noise."""
    client, task = site(closed()), site.task(RELEASE)
    house, origin = SitePolicy(tmp_path / "house", no_terms=True), Origin("run", "c" * 16, "0" * 64)
    house.folder.mkdir()
    house.before(task, client, origin)
    incoming = client.handle(task, {})
    assert isinstance(incoming.answer, Reply)
    house.after(incoming, client, task, origin)
    house.before(task, client, origin)  # the list is there: it may be asked again
    shutil.rmtree(client.folder / "privacy")
    with pytest.raises(StoreError, match="list of this run's noisy releases is gone"):
        house.before(task, client, origin)


def test_an_older_list_of_releases_is_noticed_before_anything_leaves(site, tmp_path):
    """Finding 25 l: with a copy of the list put back, a spent release would be made once more."""
    root = tmp_path / "one" / "privacy"
    head = Head(tmp_path / "house", "releases", root / RELEASED, "begin another run")
    client = replace(site(closed()), released=head)
    assert client.releases.pays("sums", b"first", 2)
    older = (root / RELEASED).read_bytes()
    assert client.releases.pays("sums", b"second", 2) and client.releases.made() == 2
    for copy in (older, b""):
        (root / RELEASED).write_bytes(copy)
        refused = client.handle(site.task(RELEASE), {}).answer
        assert isinstance(refused, Refusal) and "is not as this site left it" in refused.reason
    (root / RELEASED).unlink()
    refused = client.handle(site.task(RELEASE), {}).answer
    assert isinstance(refused, Refusal) and "is gone: put its newest copy back" in refused.reason


def test_a_power_cut_leaves_the_list_of_releases_as_it_was_or_as_it_is_to_be(site, tmp_path):
    """Half a line at its end is neither: the site could not go on with the run for ever."""
    client, root = site(closed()), tmp_path / "one" / "privacy"
    assert client.releases.pays("sums", b"first", 2)
    older = (root / RELEASED).read_bytes()
    (root / "copy").hardlink_to(root / RELEASED)  # the very file that is there now
    assert client.releases.pays("sums", b"second", 2)
    assert (root / "copy").read_bytes() == older
    assert (root / RELEASED).read_bytes().startswith(older) and client.releases.made() == 2


def run(root, experiment, name="run"):
    experiment = replace(
        experiment, runtime=replace(experiment.runtime, out=str(root), run_name=name)
    )
    return played(experiment)[1]


@pytest.mark.parametrize("sums", ["plain", "masked"])
def test_a_run_learns_something_and_has_the_same_bits_again(tmp_path, sums):
    private = PrivacySettings(epsilon=100.0, sums=sums)
    experiment = closed(privacy=private, data__subset=1500)
    one, two = (run(tmp_path, experiment, name) for name in ("a", "b"))
    rows = [(of.path / "metrics.jsonl").read_text() for of in (one, two)]
    accuracy = [[json.loads(x).get("test_accuracy") for x in of.splitlines()] for of in rows]
    assert accuracy[0] == accuracy[1]
    sites = [f.path / "checkpoint.json" for f in (one, two)]
    pools = [json.loads(f.read_text())["pool"] for f in sites]
    assert pools[0]["-2 solution"][1] == pools[1]["-2 solution"][1]
    # The server's report says what an image has spent, whether it knows sites or not.
    summary = json.loads((one.path / "summary.json").read_text())
    assert summary[EPSILON] == 100.0


@pytest.fixture
def of_patients(monkeypatch):
    """Sixty patients of twenty images each, in two classes; returns what a run's data are."""
    draws = np.random.default_rng(0)
    inputs = draws.integers(0, 256, (1200, 1, 8, 8), dtype=np.uint8)
    names = [f"p{i // 20}" for i in range(1200)]
    given = {"inputs": inputs, "labels": np.arange(1200) // 20 % 2, "patients": names}
    monkeypatch.setattr(arrays, "images", lambda: given)
    forget()
    yield {"data": DataSettings(name="tests.arrays:images"), "split__num_clients": 3}
    forget()


@pytest.mark.parametrize("kind", [closed, trained])
@pytest.mark.parametrize("sums", ["plain", "masked"])
def test_a_report_says_whether_epsilon_is_of_an_image_or_a_patient(
    tmp_path, capsys, of_patients, kind, sums
):
    private = PrivacySettings(epsilon=3.0, sums=sums)
    whole = json.loads(
        (run(tmp_path, kind(privacy=private), "a").path / "summary.json").read_text()
    )
    folder = run(tmp_path, kind(privacy=private, **of_patients), "b")
    found = json.loads((folder.path / "summary.json").read_text())
    either = "an image, or of a patient at sites that know whose their images are"
    plain = sums == "plain"
    assert whole["epsilon_of"] == ("an image" if plain else either)
    assert found["epsilon_of"] == ("a patient" if plain else either)
    assert f"epsilon of {found['epsilon_of']} at delta" in capsys.readouterr().out


def test_a_patient_with_twenty_images_cannot_be_told_by_more_than_epsilon(site, of_patients):
    """An audit: 500 releases with a canary patient and 500 without, by the whole of both rows.

    Along the change that the patient makes, releases lie mu = 1 / z apart at most, in their
    deviation. By image it would be several times as much. 5 standard errors: 1 in 3.5 million.
    """
    client, task = site(closed(**of_patients)), site.task(RELEASE)
    context, _ = client.context(task)
    data, middle = context.data, torch.zeros(64, dtype=torch.float64)
    whose = data.patients["labelled"]
    canary = int(whose.mode().values)
    assert int((whose == canary).sum()) == 20

    def released(known, patients):
        labelled = Part(data.labelled[known], data.labels[known])
        less = replace(data.with_parts(labelled=labelled), patients=patients)
        its = ClosedSite.of("plain", task, replace(context, data=less, cache=Cache(2**20)))
        rows = [its.features(part) for part in ("labelled", "unlabelled")]
        every = torch.cat([clipped_rows(one) for one in rows])
        g = [clipped_rows(one, middle) for one in rows]
        by = torch.cat([patients[p] for p in ("labelled", "unlabelled")]) if patients else None
        [second] = Released.of(g[0], data.labels[known], 2, g[1], by).to_params().values()
        return torch.cat([first_row(every, by)[TOTALS], second]).numpy()

    def patients_of(known):
        return {"labelled": whose[known], "unlabelled": data.patients["unlabelled"]}

    everybody, others = torch.ones(len(whose), dtype=torch.bool), whose != canary
    there, gone = (released(known, patients_of(known)) for known in (everybody, others))
    change = there - gone
    length = float(np.linalg.norm(change))
    assert 0.5 * SENSITIVITY < length <= SENSITIVITY + 1e-9  # and not because it hardly counts
    z = client.experiment.protection.release_multiplier

    def seen(row, first):
        keys = (hashlib.sha256(b"%d" % n).digest() for n in range(first, first + 500))
        noise = (draw_noise_share(key, len(row), SENSITIVITY, z, STEP) * STEP for key in keys)
        return np.array([(row + one) @ change / length for one in noise])

    inside, outside = seen(there, 0), seen(gone, 500)
    deviation = np.sqrt((inside.var() + outside.var()) / 2)
    mu = (inside.mean() - outside.mean()) / deviation
    assert mu <= 1 / z + 5 * np.sqrt(2 / 500)
    by_image = released(everybody, {}) - released(others, {})
    assert np.linalg.norm(by_image) > 3 * SENSITIVITY


@pytest.mark.parametrize("sums", ["plain", "masked"])
def test_a_trained_run_takes_the_planned_steps(tmp_path, sums):
    experiment = trained(privacy=PrivacySettings(epsilon=3.0, sampling=0.2, sums=sums))
    folder = run(tmp_path, experiment)
    plan = experiment.protection.plan
    assert (plan.releases, plan.steps, plan.trainings, plan.rate) == (0, 2, (1, 1), 0.2)
    lists = [path.read_text().split() for path in folder.sites_root.rglob("releases.txt")]
    models = [[name for name in one if name.startswith(f"{MODEL}-")] for one in lists]
    assert models and all(1 <= len(one) <= 2 for one in models)
    asked = [name for one in lists for name in one if ".asked-" in name]
    assert len(asked) == (sum(map(len, models)) if sums == "masked" else 0)
    assert experiment.protection.epsilon <= 3.0


def test_one_step_in_a_masked_sum_leaves_the_noise_to_the_shares(site):
    """The plain site's step has all of the noise, n w of a masked one has none yet."""
    from fedapp.methods.averaging._noisy_training import noisy_steps

    client = site(trained())
    task = site.task("train", 1, server=site.own)
    context, _ = client.context(task)
    masked = replace(task, sum=SumStep(0, "add", 1, (0, 1, 2, 3)))
    assert noisy_steps(task, context).multiplier == client.experiment.protection.step_multiplier > 0
    assert noisy_steps(masked, context).multiplier == 0
    allowed = client.experiment.method.image_level.sensitivity(masked, context)
    assert allowed[MODEL] == pytest.approx(0.5 * 1.0 / 0.2, rel=0.01)  # eta C / q
    assert client.experiment.method.image_level.sensitivity(task, context) == {}
    several = site(trained(training__local_steps=3), folder="three")
    context, _ = several.context(task)
    assert noisy_steps(masked, context).multiplier > 0  # there is no proof for shares


def test_a_site_without_labels_adds_its_share_of_the_noise(site):
    """It has nothing to say, but the others' shares are made with its own in mind."""
    client = site(trained())
    task = replace(site.task("train", 1, server=site.own), sum=SumStep(0, "add", 1, (0, 1, 2, 3)))
    context, _ = client.context(task)
    method = client.experiment.method
    layout = Layout.of(method, task, client.shared, 10)
    asked = layout, context, method, client.releases
    noise = row_noise(task, b"a cohort", 4, *asked)
    inside = noise[layout.places[MODEL]] * STEP
    # z eta C / q over the root of the sites of four that are left but for one in league: two.
    sigma = client.experiment.protection.step_multiplier * 0.5 / 0.2 / np.sqrt(2)
    assert inside.std() == pytest.approx(sigma, rel=0.02)
    assert np.count_nonzero(noise) <= len(inside)  # counts have none
    assert np.array_equal(noise, row_noise(task, b"a cohort", 4, *asked))
    # Three sites that nobody vouches for: each adds all of the noise.
    alone = row_noise(task, b"a cohort", 3, *asked)[layout.places[MODEL]] * STEP
    assert alone.std() == pytest.approx(sigma * np.sqrt(2), rel=0.02)


def test_a_sum_is_paid_for_once_whatever_its_attempts_and_each_has_other_noise(site):
    """Findings 25 a and j. Two rounds are planned; an attempt with other members costs no more."""
    client = site(trained())

    def asked(number, key, members=4, round=1):
        step = SumStep(number, "add", 1, tuple(range(members)))
        task = replace(site.task("train", round, server=site.own), sum=step)
        context, _ = client.context(task)
        method = client.experiment.method
        layout = Layout.of(method, task, client.shared, 10)
        noise = row_noise(task, key, members, layout, context, method, client.releases)
        return noise[layout.places[MODEL]]

    first = asked(0, b"four members")
    second = asked(0, b"three members", 3)
    # Independent draws: correlation strays by 5 / sqrt(n) once in 1.7 million.
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / np.sqrt(len(first))
    assert client.releases.made() == 1
    asked(1, b"another sum of the same round")
    assert client.releases.made() == 2
    with pytest.raises(ConfigError, match=r"pays for 2 release\(s\)"):
        asked(0, b"", round=2)
    assert len(asked(0, b"a third attempt")) and client.releases.made() == 2


def test_two_sums_of_a_round_draw_their_images_apart(site):
    """Each is paid for as if it drew anew: the same images twice would cost more than that."""
    from fedapp.methods.averaging._noisy_training import noisy_steps

    client = site(trained())
    task = site.task("train", 1, server=site.own)
    context, _ = client.context(task)

    def drawn(number, attempt=1):
        masked = replace(task, sum=SumStep(number, "add", attempt, (0, 1, 2, 3)))
        return noisy_steps(masked, context).secret(b"sampled 0")

    assert drawn(0) == drawn(0, attempt=2) != drawn(1)


def said(*changes, preset="digits_demo", **more):
    return load_experiment(preset, {**dict(one.split("=") for one in changes), **more})


@pytest.mark.parametrize(("changes", "rule"), [
    ({"method.preset": "one_round", "privacy.epsilon": 3.0, "privacy.clip": 1.0},
     "clip bounds whole models"),
    ({"method.preset": "ditto", "privacy.epsilon": 3.0}, "choose fedavg or one_round"),
    ({"method.preset": "recommended", "privacy.epsilon": 3.0}, "choose fedavg or one_round"),
    ({"method.preset": "one_round", "privacy.epsilon": 3.0, "method.features": "patches"},
     "learned from images: take hog"),
    ({"method.preset": "fedavg", "privacy.epsilon": 3.0}, "set it to 'group'"),
    ({"method.preset": "fedavg", "privacy.epsilon": 3.0, "model.norm": "group",
      "training.optimiser": "adam"}, "set it to 'sgd'"),
    ({"method.preset": "fedavg", "privacy.epsilon": 3.0, "model.norm": "group",
      "training.augment": "weak"}, "set it to 'none'"),
    ({"method.preset": "fixavg", "privacy.epsilon": 3.0}, "labels alone may teach"),
    ({"method.preset": "one_round", "privacy.epsilon": 3.0, "data.findings": "a, b",
      "data.name": f"memory:sha256_{'0' * 64}"}, "the sums of each of its findings"),
    ({"method.preset": "fedavg", "privacy.sampling": 0.2}, "has no effect without epsilon"),
    ({"method.preset": "one_round", "privacy.epsilon": 3.0, "privacy.sums": "masked",
      "rounds.sample_rate": 1.0, "privacy.least_members": 6, "privacy.colluding": 2},
     "privacy.colluding.*fewer than a third of privacy.least_members = 6"),
])  # fmt: skip
def test_what_does_not_go_together_is_said_in_a_line(changes, rule):
    with pytest.raises(ConfigError, match=rule):
        load_experiment("digits_demo", changes)


@pytest.mark.parametrize("epsilon", [0.0, 3.0])
def test_a_model_that_a_site_keeps_says_that_it_is_not_under_the_claim(tmp_path, epsilon):
    """The site made it by its own labels without noise: whoever exports it reads that."""
    private = PrivacySettings(epsilon=epsilon)
    experiment = closed(privacy=private, runtime__out=str(tmp_path), runtime__run_name="run")
    folder = run_loopback(experiment)[1] / "models" / "0"
    said = (
        "Not covered by epsilon: epsilon = 3 (delta = 1e-05) of the run covers what left the site"
    )
    told = " ".join(export(folder, "safetensors", tmp_path / "out", None))
    pages = told, (tmp_path / "out" / CARD).read_text(), (folder / CARD).read_text()
    assert [said in page for page in (*pages, site_page(view_of_model(folder)))] == [
        epsilon > 0
    ] * 4
