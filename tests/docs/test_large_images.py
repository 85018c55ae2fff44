"""The preset for large images of docs/OWN_DATA.md, as written there, on small ones."""

import re

import pytest
import torch
from torchvision.models import get_model

from examples import tutorial_images
from fedapp.data.inputs import DataSet
from fedapp.data.published import read_digits
from fedapp.experiment.config import load_experiment
from fedapp.simulation.loopback import run_loopback
from tests.docs.pages import ROOT, blocks
from tests.encoders import RECORD, written

PAGE, NAME = "docs/OWN_DATA.md", "photographs.yaml"
SIDE = 32


@pytest.fixture
def place(tmp_path, monkeypatch):
    """The page's preset, beside it coloured digits under its classes' names."""
    [preset] = [text for _, text in blocks(PAGE) if text.startswith(f"# {NAME}\n")]
    (tmp_path / NAME).write_text(preset)
    [classes] = re.findall(r"classes: (.*)", preset)
    digits = read_digits()
    inputs = (digits.inputs.expand(-1, 3, -1, -1) // torch.tensor([1, 2, 3]).view(3, 1, 1)).byte()
    names = tuple(classes.split(", "))
    coloured = DataSet(inputs, digits.labels, names, digits.mean * 3, digits.std * 3)
    monkeypatch.setattr(tutorial_images, "load_dataset", lambda *_, **__: coloured)
    monkeypatch.setattr(tutorial_images, "IMAGES", 400)
    monkeypatch.chdir(tmp_path)
    tutorial_images.main(["photographs", "cifar10", str(SIDE)])
    return tmp_path


def run(place, **over):
    torch.manual_seed(3)
    weights = get_model("resnet18", weights=None).state_dict()
    fields = written(place / "resnet18.safetensors", weights, RECORD | {"size": SIDE})
    given = {"data.image_size": SIDE, "model.weights_sha256": fields["weights_sha256"]}
    more = {"runtime.out": str(place), "runtime.run_name": "run", "runtime.device": "cpu"}
    return run_loopback(load_experiment(str(place / NAME), given | more | over))


def test_the_preset_runs_and_is_of_use_after_one_round(place):
    assert len(list((place / "photographs/west").rglob("*.jpg"))) == 150  # 3/8 of 400
    row, _ = run(place)
    assert row["mean_test_accuracy"]["final"] > 0.3  # of 10 classes, by random weights


def test_the_words_for_the_last_block_run_too(place):
    text = " ".join((ROOT / PAGE).read_text().split())
    words = re.search(r"`(model.trained=last [^`]*)`", text)[1]
    over = dict(pair.split("=") for pair in words.split())
    over = {k: float(v) if re.fullmatch(r"[\d.]+", v) else v for k, v in over.items()}
    over |= {"rounds.num_rounds": 1, "training.warmup_epochs": 1, "training.local_epochs": 1}
    row, folder = run(place, **over)
    assert row["mean_test_accuracy"] and list(folder.glob("models/*/encoder.safetensors"))
