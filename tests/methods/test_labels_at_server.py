"""Labels at the server: it trains after averaging, by every method's own rule; sites have none."""

import csv
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load

from fedapp.core.errors import ConfigError
from fedapp.experiment.config import load_experiment
from fedapp.experiment.preset_files import method_path, read_yaml
from fedapp.learn.objectives import LocalTraining
from fedapp.protocol.messages import SERVER_SITE
from fedapp.protocol.store import ModelStore
from fedapp.site.federation import federation_of
from fedapp.site.site import SiteClient
from tests.flower.results import loopback, results, rows
from tests.methods.test_incompatibilities import REFUSED

OVER = {
    "data.image_size": 0,
    "data.subset": 400,
    "split.num_clients": 3,
    "split.server_share": 0.2,
    "model.width": 2,
    "training.warmup_epochs": 2,
    "training.warmup_rounds": 2,
    "training.local_epochs": 1,
    "rounds.num_rounds": 2,
    "rounds.sample_rate": 0.67,
    "runtime.device": "cpu",
}
"""Over digits_server."""
OWN = {
    "recommended": {"method.weigh": False, "method.confidence": 0.2},
    "fedsiam_d": {"method.calm_rounds": 1, "method.curve": "rectangle", "method.end_round": 3},
    "um_pfssl": {"method.helper_list_size": 3, "method.num_replaced": 1, "method.mc_samples": 2},
    "rscfed": {"method.subsets": 1, "method.subset_share": 1.0},
}
SERVED = (
    "fedavg", "fixavg", "fixprox", "fixbn", "pfedme", "fixmatch_global", "sage", "recommended",
    "fedmatch", "fedsiam_pi", "fedsiam_mt", "fedsiam_d", "rscfed", "mixmatch_avg", "fedrgd",
    "um_pfssl", "one_round",
)  # fmt: skip
"""Presets of methods whose sites can do without labels."""


def server(method, out, run="run", **over):
    fixed = {"method.preset": method, "runtime.out": str(out), "runtime.run_name": run}
    return load_experiment("digits_server", {**OVER, **OWN.get(method, {}), **fixed, **over})


def test_these_are_all_methods_whose_sites_can_do_without_labels():
    served = {read_yaml(method_path(name))["method"]["name"] for name in SERVED}
    able = {name for name, words in REFUSED.items() if "labels" not in words}
    assert served == able | {"prior_shift"}  # by its own settings


def test_no_site_has_a_label_and_the_server_has_as_many_of_each_class(tmp_path):
    dealt = federation_of(server("fedavg", tmp_path)).dealt
    with_labels = federation_of(server("fedavg", tmp_path, **{"split.labels": "some"})).dealt
    for k in range(3):
        assert not len(dealt.site(k).labels) and len(dealt.site(k).unlabelled)
        images = len(with_labels.site(k).labels) + len(with_labels.site(k).unlabelled)
        assert len(dealt.site(k).unlabelled) == images
        assert torch.equal(dealt.site(k).test, with_labels.site(k).test)
    counts = torch.bincount(dealt.site(SERVER_SITE).labels, minlength=10)
    assert counts.sum() == 56 and counts.max() - counts.min() <= 1


CUT = [
    "fixavg", "fixbn", "recommended", "fedmatch", "fedsiam_pi", "fedsiam_mt", "fedsiam_d", "rscfed",
    "fedrgd", "um_pfssl",
]  # fmt: skip


@pytest.mark.parametrize("method", CUT)
def test_a_run_cut_after_the_servers_training_resumes_to_the_same_bits(
    tmp_path, monkeypatch, method
):
    """The power goes when the server has trained for the second and for the last time."""
    whole = loopback(server(method, tmp_path / "whole"))
    honest, trained = SiteClient.handle, []

    def handle(self, task, payloads):
        answered = honest(self, task, payloads)
        if task.site == SERVER_SITE:
            trained.append(task.round)
            if len(trained) == cut:
                raise KeyboardInterrupt
        return answered

    for cut in (2, 3):
        trained.clear()
        experiment = server(method, tmp_path / str(cut))
        with monkeypatch.context() as patch:
            patch.setattr(SiteClient, "handle", handle)
            with pytest.raises(KeyboardInterrupt):
                loopback(experiment)
        again = replace(experiment, runtime=replace(experiment.runtime, resume=True))
        resumed = loopback(again)
        assert results(resumed)["pool"] == results(whole)["pool"]
        assert rows(resumed) == rows(whole)


@pytest.mark.parametrize("method", ["fixavg", "fedmatch", "fedsiam_d"])
def test_the_server_takes_as_many_steps_as_are_said(tmp_path, monkeypatch, method):
    honest, passes, taken = SiteClient.handle, LocalTraining.passes, []

    def handle(self, task, payloads):
        taken.append([task.site, task.action, 0])
        return honest(self, task, payloads)

    def counted(self, epoch):
        for step in passes(self, epoch):
            taken[-1][2] += 1
            yield step

    monkeypatch.setattr(SiteClient, "handle", handle)
    monkeypatch.setattr(LocalTraining, "passes", counted)
    loopback(server(method, tmp_path, **{"training.local_steps": 7}))
    steps = [n for site, action, n in taken if (site, action) == (SERVER_SITE, "train")]
    assert steps == [7, 7]
    assert {n for _, action, n in taken if action == "train"} == {7}


def cut_amid_training(monkeypatch, times):
    """Have the power go between two mini-batches of the server's, the so manieth time it trains."""
    honest, passes, trained = SiteClient.handle, LocalTraining.passes, []

    def handle(self, task, payloads):
        trained.append(task.site == SERVER_SITE)
        return honest(self, task, payloads)

    def cut(self, epoch):
        for number, step in enumerate(passes(self, epoch)):
            if number and trained[-1] and sum(trained) == times:
                raise KeyboardInterrupt
            yield step

    monkeypatch.setattr(SiteClient, "handle", handle)
    monkeypatch.setattr(LocalTraining, "passes", cut)


@pytest.mark.parametrize("method", ["fixavg", "fedmatch", "fedsiam_d"])
def test_a_run_cut_amid_the_servers_training_resumes_to_the_same_bits(
    tmp_path, monkeypatch, method
):
    """In a phase of the warm-up, and in the last round."""
    whole = loopback(server(method, tmp_path / "whole"))
    for times in (2, 4):
        experiment = server(method, tmp_path / str(times))
        with monkeypatch.context() as patch:
            cut_amid_training(patch, times)
            with pytest.raises(KeyboardInterrupt):
                loopback(experiment)
        resumed = loopback(replace(experiment, runtime=replace(experiment.runtime, resume=True)))
        assert results(resumed)["pool"] == results(whole)["pool"]
        assert rows(resumed) == rows(whole)


@pytest.mark.parametrize(
    "method", [m for m in SERVED if m not in ("um_pfssl", "fedrgd", "one_round")]
)
def test_the_server_trains_last_in_every_round_and_its_model_is_measured(
    tmp_path, monkeypatch, method
):
    """In two phases of the warm-up, then once a round; sites that cannot begin are not asked.

    FedRGD's trains beside the sites, and is averaged with them; see its own tests. Beside, the
    recommended method counts the server's images for the closed form.
    """
    asked, honest = [], SiteClient.handle

    def handle(self, task, payloads):
        asked.append((task.round, task.site, task.action))
        return honest(self, task, payloads)

    monkeypatch.setattr(SiteClient, "handle", handle)
    folder = loopback(server(method, tmp_path))
    training = ("warmup", "train")
    of_server = [(n, did) for n, site, did in asked if site == SERVER_SITE and did in training]
    assert of_server == [(0, "warmup"), (0, "warmup"), (1, "train"), (2, "train")]
    assert not [a for a in asked if a[1] != SERVER_SITE and a[2] == "warmup"]
    for number in (1, 2):
        order = [site for n, site, action in asked if n == number and action == "train"]
        assert order[-1] == SERVER_SITE and len(order) == 4
    learned = 0 if method == "fedavg" else 3
    assert [row["trained"] for row in rows(folder)] == [0, learned, learned]
    assert str(SERVER_SITE) not in (folder / "traffic.csv").read_text()


def test_fedavg_is_the_server_training_by_itself(tmp_path, monkeypatch):
    """Whatever the sites: they have nothing to learn from, and nothing to send."""
    one = loopback(server("fedavg", tmp_path, "one"))
    two = loopback(server("fedavg", tmp_path, "two", **{"rounds.sample_rate": 0.1}))
    assert results(one)["pool"] == results(two)["pool"]
    assert rows(one)[-1]["models_up"] == 0


def test_the_servers_model_is_a_peer_of_um_pfssl_and_is_counted_where_it_is_sent(tmp_path):
    """In round 1 it is the only one that was trained, so all sites list it and nothing else."""
    folder = loopback(server("um_pfssl", tmp_path, **{"rounds.num_rounds": 1}))
    state = results(folder)["state"]["server"]["helpers"]
    listed = {int(k): [h["model"]["site"] for h in helpers] for k, helpers in state.items()}
    assert listed == {0: [SERVER_SITE], 1: [SERVER_SITE], 2: [SERVER_SITE], SERVER_SITE: []}
    [first, second] = rows(folder)
    assert (first["trained"], second["trained"]) == (0, 3)
    assert second["models_sent"] - first["models_sent"] == 3
    assert results(folder)["pool"][str(SERVER_SITE)][0] == 2  # the warm-up and a round
    with (folder / "per_site.csv").open() as file:
        assert all(row["helpers"].startswith("-2:") for row in csv.DictReader(file))


def test_the_server_may_have_labels_beside_the_sites(tmp_path):
    folder = loopback(server("fixavg", tmp_path, **{"split.labels": "some"}))
    assert results(folder)["pool"][str(SERVER_SITE)][0] == 2 * 4  # averages and trainings
    pool, store = results(folder)["pool"], ModelStore(folder / "pool")
    trained, w_0 = (load(store.get(pool[k][1])) for k in (str(SERVER_SITE), "-1"))
    assert not torch.equal(trained["head.weight"], w_0["head.weight"])


@pytest.mark.parametrize(("over", "says"), [
    ({"split.server_share": 0.0},
     "split.labels = 'none': only the server would have labels, and it has no images: set "
     "split.server_share"),
    ({"method.preset": "recommended"},
     "its sites count which pseudo-labels are right: set method.weigh=false"),
    ({"runtime.server_data": "/srv"}, "runtime.server_data = '/srv': goes with data.name=own"),
    ({"split.label_share": 0.1}, "label_share has no effect where labels is 'none'"),
])  # fmt: skip
def test_what_cannot_be_is_one_line(over, says):
    with pytest.raises(ConfigError) as caught:
        load_experiment("digits_server", over)
    assert says in str(caught.value) and "\n" not in str(caught.value)
