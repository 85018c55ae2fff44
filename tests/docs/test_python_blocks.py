"""The Python that pages show does what they say."""

import pytest
import torch

import fedapp.methods
from fedapp.experiment.config import load_experiment
from fedapp.models.conformal import calibrate
from fedapp.simulation.loopback import run_loopback
from tests.docs.pages import blocks
from tests.methods.conformance import draw_alike
from tests.models.made import model_of, pictures, written

SMALL = {
    "data.subset": 200,
    "split.num_clients": 3,
    "training.warmup_epochs": 2,
    "training.local_epochs": 1,
    "rounds.num_rounds": 2,
    "runtime.device": "cpu",
}


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write a page's blocks of Python to a module that can be imported."""
    monkeypatch.syspath_prepend(tmp_path)

    def written(page, module):
        texts = [text for language, text in blocks(page) if language == "py"]
        (tmp_path / f"{module}.py").write_text("\n".join(texts))

    return written


@pytest.fixture
def run(tmp_path):
    """Run a small experiment; return the sites' evaluations as they are written."""

    def evaluations(**over):
        settings = {**SMALL, "runtime.out": str(tmp_path / "runs"), **over}
        _, folder = run_loopback(load_experiment("digits_demo", settings))
        return (folder / "evaluations.json").read_text()

    return evaluations


def test_the_method_is_local_only(write, run, tmp_path, monkeypatch):
    """But for the parts of the warm-up, and the names of its draws."""
    draw_alike(monkeypatch)
    write("docs/extend/methods.md", "alone")
    monkeypatch.setattr(fedapp.methods, "__path__", [*fedapp.methods.__path__, str(tmp_path)])
    small = {"model.width": 2, "training.warmup_rounds": 1}
    assert run(**small, **{"method.name": "alone"}) == run(**small, **{"method.name": "local_only"})


def test_the_rule_averages(write, run):
    write("docs/extend/methods.md", "masks")
    over = {"method.name": "fedavg", "model.width": 2}
    assert run(**over, **{"rounds.robust": "masks:MaskedSum"}) != run(**over)


def test_the_arrays_are_learned_from(write, run):
    write("docs/extend/arrays.md", "hospital")
    over = {"data.name": "hospital:blood_counts", "data.image_size": 0, "model.name": "mlp"}
    assert '"confusion"' in run(**over)


def test_the_network_learns(write, run):
    write("docs/extend/networks.md", "nets")
    assert '"confusion"' in run(**{"model.name": "nets:small", "model.units": 8})


def test_a_model_is_asked_as_the_page_says(tmp_path, monkeypatch):
    """The page's `images`, and its folder models/3 in the working folder."""
    monkeypatch.chdir(tmp_path)
    images, labels = pictures(40), torch.arange(40) % 4
    calibration = calibrate(model_of().probabilities(images), labels)
    written(tmp_path / "models/3", calibration)
    [text] = [text for language, text in blocks("docs/USING_A_MODEL.md") if language == "py"]
    names = {"images": images}
    exec(text, names)
    assert names["probabilities"].shape == names["inside"].shape == (40, 4)
    assert names["inside"].any(1).sum() >= 36  # 90 % of the images that it was calibrated on
