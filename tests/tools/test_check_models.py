"""Every site's model, read from its folder alone, answers as the run measured; else it says so."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from typer.testing import CliRunner

from fedapp.cli import app
from fedapp.core.errors import FedAppError, RunError
from fedapp.data.inputs import normalise
from fedapp.evaluation.confidence_intervals import wilson
from fedapp.experiment.config import load_experiment
from fedapp.learn.metrics import evaluation
from fedapp.learn.networks import build_model
from fedapp.models.model import load_model
from fedapp.server.finished_run import finished_run
from fedapp.site.federation import federation_of
from fedapp.tools.site_models import checked_models
from tests.flower.results import loopback
from tests.golden.numbers import SHRUNK

SITES = range(4)
CPU = torch.device("cpu")
EXACT = ("recommended", "one_round", "prior_shift", "fedavg", "fedavg_ft", "fedper", "um_pfssl")
SLOW = ("ditto", "fedbn", "fedrod", "lg_fedavg", "local_only")
PARTS = {
    "recommended": {"common"},
    "one_round": {"tuned"},
    "prior_shift": {"common", "tuned", "alone"},
    "fedavg": {"common"},
    "um_pfssl": {"own"},
}


@pytest.fixture(scope="module")
def run_of(tmp_path_factory):
    """Return a function: preset -> the folder of a run of it, its last models written anew."""
    done = {}

    def run(preset):
        if preset not in done:
            out = tmp_path_factory.mktemp(preset)
            overrides = {
                **SHRUNK, "rounds.num_rounds": 2, "method.preset": preset, "runtime.out": str(out),
            }  # fmt: skip
            done[preset] = loopback(load_experiment("digits_demo", overrides))
            shutil.rmtree(done[preset] / "models")
            checked_models(finished_run(done[preset]))
        return done[preset]

    return run


def described(run, site):
    return json.loads((run / "models" / str(site) / "model.json").read_text())


def sites_data(run, site):
    return federation_of(finished_run(run).experiment).dealt.site(site)


@pytest.mark.parametrize(
    "preset", [*EXACT, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
)
def test_every_sites_model_gives_the_runs_own_numbers(run_of, preset):
    """The confusion matrix, and the sums of the probabilities to the last bit."""
    run = run_of(preset)
    reported = json.loads((run / "evaluations.json").read_text())
    for site in SITES:
        model, description = load_model(run / "models" / str(site), CPU)
        data = sites_data(run, site)
        found = evaluation(model.probabilities(data.test), data.test_labels)
        said = reported[str(site)]["test"]
        assert [list(row) for row in found.confusion] == said["confusion"]
        assert list(found.bin_confidence) == said["bin_confidence"]
        assert description.results.exact is True and description.results.note == ""
        assert {p.name for p in description.model.parts} == PARTS.get(
            preset, {p.name for p in description.model.parts}
        )


def test_the_description_has_the_runs_counts_and_digests(run_of):
    run = run_of("recommended")
    reported = json.loads((run / "evaluations.json").read_text())
    begun = json.loads((run / "run.json").read_text())
    for site in SITES:
        found = described(run, site)
        for part in ("val", "test"):
            confusion = reported[str(site)][part]["confusion"]
            images, right = sum(map(sum, confusion)), sum(confusion[c][c] for c in range(10))
            bins = reported[str(site)][part]
            gaps = zip(bins["bin_correct"], bins["bin_confidence"], strict=True)
            assert found["results"][part] == {
                "images": images,
                "right": right,
                "accuracy": right / images,
                "interval": list(wilson(right, images)),
                "patients": 0,
                "calibration_error": pytest.approx(sum(abs(a - b) for a, b in gaps) / images),
            }
        origin = found["origin"]
        assert (origin["split"], origin["code"]) == (begun["manifest"], begun["code"])
        assert (origin["method"], origin["round"], origin["site"]) == ("recommended", 2, site)
        assert found["model"]["network"]["name"] == "resnet9"


def test_a_mixture_is_what_its_description_says_by_hand(run_of):
    """sum_m a_m p_m pi / |p_m pi|, with torch and the two files alone."""
    run, site = run_of("prior_shift"), 0
    folder, data, recipe = run / "models/0", sites_data(run, site), described(run, site)["model"]
    tensors, answer = load_file(folder / "model.safetensors"), 0.0
    settings = finished_run(run).experiment.model
    inputs = normalise(data.test, tuple(recipe["mean"]), tuple(recipe["std"]))
    for part in recipe["parts"]:
        network = build_model(settings, tuple(recipe["inputs"]), len(recipe["classes"])).eval()
        own = {name: tensors[part["prefix"] + name] for name in network.state_dict()}
        network.load_state_dict(own)
        with torch.no_grad():
            one = nn.functional.softmax(network(inputs), dim=1).double()
        if part["class_mix"]:
            one = one * torch.tensor(part["class_mix"], dtype=torch.float64)
            one /= one.sum(1, keepdim=True)
        answer = answer + part["weight"] * one
    model, _ = load_model(folder, CPU)
    torch.testing.assert_close(model.probabilities(data.test), answer.float())
    assert sum(part["weight"] for part in recipe["parts"]) == pytest.approx(1)


def test_a_network_alone_keeps_the_names_of_its_tensors_and_a_head_kept_at_home_is_in(run_of):
    run = run_of("fedper")
    models = [load_file(run / f"models/{site}/model.safetensors") for site in SITES]
    settings = finished_run(run).experiment.model
    assert models[0].keys() == build_model(settings, (1, 16, 16), 10).state_dict().keys()
    heads = [name for name in models[0] if name.startswith("head.")]
    assert heads and all(not torch.equal(models[0][n], models[1][n]) for n in heads)
    body = models[0].keys() - set(heads)
    assert all(torch.equal(models[0][n], models[1][n]) for n in body)


def test_a_model_that_the_run_did_not_keep_says_so(run_of):
    """pFedMe measures theta; of a run that is over there is w."""
    run = run_of("pfedme")
    result = CliRunner().invoke(app, ["site", str(run), "--check"])
    assert result.exit_code == 0 and result.stdout.count("Note: it does not answer as the run") == 1
    found = [described(run, site)["results"] for site in SITES]
    assert not any(results["exact"] for results in found)
    assert all("did not keep what it measured" in results["note"] for results in found)
    for site, results in zip(SITES, found, strict=True):
        model, data = load_model(run / f"models/{site}", CPU)[0], sites_data(run, site)
        right = (model.probabilities(data.test).argmax(1) == data.test_labels).sum()
        assert results["test"]["right"] == int(right)


def test_the_card_has_its_front_matter_and_leaves_the_use_to_people(run_of):
    text = (run_of("recommended") / "models/0/README.md").read_text()
    assert text.startswith("---\nlibrary_name: fedapp\n")
    assert "pipeline_tag: image-classification" in text and "type: accuracy" in text
    for field in ("Developer, contact", "Release", "Out of scope"):
        assert f"**{field}:** *To be filled in:" in text
    assert "license" not in text


# --- runs without models to write -----------------------------------------------------------------


@pytest.fixture
def copied(run_of, tmp_path):
    """Return a function: preset -> a copy of its run to be damaged."""

    def copy(preset):
        return shutil.copytree(run_of(preset), tmp_path / preset)

    return copy


def refused(run):
    with pytest.raises(FedAppError) as caught:
        checked_models(finished_run(run))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_run_that_is_not_over_is_refused(copied):
    run = copied("fedavg")
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("num_rounds: 2", "num_rounds: 3"))
    assert "round 2 of 3: finish the run with runtime.resume=true" in refused(run)


def test_a_run_whose_models_or_private_parts_are_gone_is_refused(copied):
    run = copied("fedper")
    shutil.rmtree(run / "models")
    shutil.rmtree(run / "sites")
    assert "sites/site-0, what the site kept to itself, is gone" in refused(run)
    shutil.rmtree(run / "pool")
    assert "its models were removed: run it again" in refused(run)


def test_a_run_on_other_images_is_refused(copied):
    run = copied("fedavg")
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("seed: 0", "seed: 1", 1))
    assert "its sites held other images than data.root has now" in refused(run)


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(RunError, match="no run with a finished round"):
        finished_run(tmp_path)
