"""Runs on findings, given in memory: the methods that learn them, all that tells of them."""

import json

import pytest
import torch

import fedapp
from fedapp.evaluation.findings import one_vs_rest_by_finding
from fedapp.experiment.config import load_experiment
from fedapp.experiment.preset_files import IN_MEMORY, method_presets
from fedapp.reports.report import run_page
from fedapp.reports.run_record import read_run
from fedapp.reports.site_report import site_page, view_of_model, view_of_run

NAMES = ["effusion", "mass", "nobody's"]
SHORT = {
    "rounds.num_rounds": 2, "training.warmup_epochs": 6, "training.learning_rate": 0.2,
    "model.hidden": "16",
}  # fmt: skip
ABLE = [
    "fedadam", "fedavg", "fedavg_ft", "fedavg_logit_adjusted", "fedavg_plus", "fedavg_sl",
    "fedavg_tenth", "fedavgm", "fedbn", "fedbn_sl", "fedprox", "fedprox_ft", "fedprox_sl",
    "local_only", "one_round", "prior_shift", "recommended",
]  # fmt: skip


@pytest.fixture(autouse=True)
def runs(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDAPP_OUT", str(tmp_path))


def drawn(count, seed):
    """Return rows and what they show: two findings that follow from them, and one of nobody's."""
    stream = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 6, generator=stream)
    y = torch.stack([x[:, 0] > 0.3, x[:, 1] + x[:, 2] > 0, torch.zeros(count) > 1], 1).long()
    y[torch.rand(count, 3, generator=stream) < 0.3] = -1
    return x, y


def site(name, count, seed):
    x, y = drawn(count, seed)
    cut = [slice(0, count // 3), slice(count // 3, count // 2), slice(count // 2, count)]
    labelled, val, test = ((x[part], y[part]) for part in cut)
    return fedapp.Site(labelled=labelled, val=val, test=test, name=name)


@pytest.fixture(scope="module")
def data():
    return fedapp.Federation(
        [site("north", 240, 0), site("south", 160, 1), site("west", 60, 2)], classes=NAMES
    )


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "fedavg_ft", "local_only"])
def test_findings_are_learned_and_told_one_by_one(data, method):
    run = fedapp.run(data, method, network="mlp", settings=SHORT, quiet=True)
    effusion, _, nobody = run.summary["by_class"]
    assert effusion["class"] == "effusion" and effusion["read"] < 230
    assert effusion["sensitivity"] > 0.6 and effusion["specificity"] > 0.6
    assert nobody["images"] == 0 and nobody["sensitivity"] is None
    assert nobody["specificity"] is not None
    x, y = drawn(400, 7)
    said = run.model("north").probabilities(x)
    assert said.shape == (400, 3) and said.min() >= 0 and said.max() <= 1
    found = one_vs_rest_by_finding(said.double().numpy(), y.numpy(), 0.9)
    assert found[0].auroc > 0.8 and found[2].auroc is None
    with pytest.raises(fedapp.FedAppError, match="use `probabilities`"):
        run.model("north").predict(x)


def test_pages_name_findings_and_count_them(data, capsys):
    run = fedapp.run(data, "fedavg", network="mlp", settings=SHORT)
    ended = capsys.readouterr().out
    assert "By finding, at all sites" in ended and "effusion" in ended
    assert "too few images with it, cannot be said: nobody's (0)" in ended
    assert {row["findings"] for row in run.per_site} == {3}
    own = site_page(view_of_model(run.model("north").folder))
    assert "By finding" in own and "nobody&#39;s: 0 images: cannot be said." in own
    assert "AUROC" in own and "no effusion" in own
    record = read_run(run.folder)
    page = run_page([record])
    assert "3 findings" in page and "counts as an image by itself" in page
    assert "north" in site_page(view_of_run(record, "north"))
    of = record.sites[0]
    assert of.after_warm_up.of == of.latest().of > of.standing.facts.test
    card = json.loads((run.model("north").folder / "model.json").read_text())
    assert card["model"]["finds"] and card["calibration"] == {"lac": [], "aps": []}


def test_images_of_which_nothing_was_read_are_unlabelled_and_measure_nothing():
    x, y = torch.randn(6, 3), torch.tensor([[1, 0], [-1, -1], [0, -1]] * 2)
    federation = fedapp.Federation([fedapp.Site(labelled=(x, y), test=(x, y))] * 1)
    [data] = federation._given.sites
    assert data.counts == {"labelled": 4, "unlabelled": 2, "val": 0, "test": 4, "bagged": 0}
    assert torch.equal(data.unlabelled, x[[1, 4]]) and data.finds


def test_the_methods_that_learn_findings_are_these_and_others_say_so_in_a_line():
    given = {"data.findings": "a, b", "data.name": f"memory:sha256_{'0' * 64}"}
    able = []
    for name in method_presets():
        try:
            load_experiment(str(IN_MEMORY), {**given, "method.preset": name})
        except fedapp.FedAppError as error:
            assert any("cannot learn findings: " in line for line in str(error).splitlines()), name
        else:
            able.append(name)
    assert able == ABLE


@pytest.mark.parametrize("method", ["fedbn", "pfedme", "lg_fedavg"])
def test_what_is_like_fedavg_learns_findings_from_labels_alone(method):
    stream = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (24, 1, 8, 8), generator=stream, dtype=torch.uint8)
    y = torch.randint(-1, 2, (24, 2), generator=stream)
    site = fedapp.Site(labelled=(x, y), unlabelled=x, val=(x, y), test=(x, y))
    few = {"training.local_steps": 1, "training.warmup_epochs": 1, "rounds.num_rounds": 1}
    settings = {**few, "model.width": 2, "method.objective": "supervised"}
    run = fedapp.run(fedapp.Federation([site] * 2), method, settings=settings, quiet=True)
    read = 2 * int((y[:, 0] >= 0).sum())
    assert run.summary["by_class"][0]["read"] == read


@pytest.mark.parametrize(("settings", "says"), [
    ({"training.uneven": "balanced"}, "training.uneven"),
    ({"rounds.min_sensitivity": 0.5}, "rounds.min_sensitivity"),
    ({"rounds.chosen_by": "kappa"}, "choose balanced_accuracy or f1"),
    ({"privacy.epsilon": 4.0}, "counts in the sums of each of its findings"),
    ({"method.objective": "fixmatch"}, "its pseudo-labels are of classes"),
])  # fmt: skip
def test_settings_of_classes_are_refused_beside_findings(data, settings, says):
    with pytest.raises(fedapp.FedAppError, match=says):
        fedapp.run(data, "fedavg", network="mlp", settings={**SHORT, **settings}, quiet=True)


def test_methods_are_compared(data, tmp_path):
    found = fedapp.compare(
        data, ["local_only", "fedavg"], network="mlp", settings=SHORT, out=tmp_path, quiet=True
    )
    assert [row["method"] for row in found.rows] == ["local_only", "fedavg"]
    assert all(0.5 < row["accuracy"] <= 1 for row in found.rows)
