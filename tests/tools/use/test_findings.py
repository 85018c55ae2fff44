"""A model of findings in use: a probability for each, no class, no set, no order of images."""

import csv
import json

import pytest
import torch
from PIL import Image

import fedapp
from fedapp.core.errors import ConfigError
from fedapp.models.card import model_card
from fedapp.models.description import read_description
from fedapp.models.model import Answer, load_model
from fedapp.models.predict import PredictionOptions
from fedapp.tools.use.export import export
from fedapp.tools.use.next_to_label import next_to_label
from fedapp.tools.use.predict import UNREAD, predict

SHORT = {"rounds.num_rounds": 1, "training.local_steps": 2, "training.warmup_epochs": 1,
         "model.width": 2}  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The folder of a model of two findings, one with a comma's neighbour in its name."""
    stream = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (24, 1, 8, 8), generator=stream, dtype=torch.uint8)
    y = torch.randint(-1, 2, (24, 2), generator=stream)
    site = fedapp.Site(labelled=(x, y), val=(x, y), test=(x, y))
    data = fedapp.Federation([site, site], classes=["pleural effusion", "mass"])
    settings = {**SHORT, "runtime.out": str(tmp_path_factory.mktemp("runs"))}
    return fedapp.run(data, "fedavg", settings=settings, quiet=True).model(0).folder


@pytest.fixture
def images(tmp_path):
    for k in range(3):
        Image.new("L", (8, 8), 80 * k).save(tmp_path / f"{k}.png")
    return tmp_path


def test_predict_writes_a_column_for_each_finding(model, images, tmp_path):
    (images / "3.png").write_bytes(b"no image")
    out = tmp_path / "answers.csv"
    assert predict(model, [images], out, PredictionOptions()) == UNREAD
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert list(rows[0]) == ["file", "pleural effusion", "mass"]
    pixels = torch.stack([torch.full((1, 8, 8), 80 * k, dtype=torch.uint8) for k in range(3)])
    said = load_model(model, torch.device("cpu"))[0].probabilities(pixels)
    for row, expected in zip(rows, said.tolist(), strict=False):
        numbers = float(row["pleural effusion"]), float(row["mass"])
        assert numbers == pytest.approx(expected, abs=1e-6)
    assert rows[3]["mass"] == "" and len(rows) == 4


def test_the_exported_module_answers_as_the_model(model):
    loaded, _ = load_model(model, torch.device("cpu"))
    pixels = torch.randint(0, 256, (5, 1, 8, 8), dtype=torch.uint8)
    with torch.no_grad():
        said = Answer(loaded)(pixels)
    torch.testing.assert_close(said, loaded.probabilities(pixels), atol=1e-5, rtol=1e-5)
    assert not torch.allclose(said.sum(1), torch.ones(5))


def test_what_is_of_classes_is_refused_in_a_line(model, images, tmp_path):
    with pytest.raises(ConfigError, match="answers findings, and images are chosen by"):
        next_to_label(model, images, 2, tmp_path / "next")
    with pytest.raises(ConfigError, match="--to monai: a bundle names one class"):
        export(model, "monai", tmp_path / "bundle", None)
    export(model, "safetensors", tmp_path / "plain", None)
    config = json.loads((tmp_path / "plain" / "config.json").read_text())
    assert config["problem_type"] == "multi_label_classification"


def test_the_card_speaks_of_findings(model):
    text = model_card(read_description(model))
    assert "A classifier of 2 findings" in text and "| findings | right / of |" in text
    assert "Prediction sets" not in text and "too narrow" in text
