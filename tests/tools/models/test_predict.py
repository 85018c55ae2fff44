"""Answers to files: the model's own to the same images; what is no model, or no image."""

import csv
import io
import json
import math
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from fedapp.cli import app
from fedapp.data.inputs import DataSet
from fedapp.data.published import read_digits
from fedapp.ground.errors import FedAppError
from fedapp.models import predict
from fedapp.models.model import load_model
from fedapp.server.peers import finished_run
from fedapp.site.federation import federation_of
from fedapp.tools.deploy.demo_images import SITES, write_sites
from fedapp.tools.models.export import export
from tests.flower.results import loopback
from tests.own import agreed, experiment, image

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Three sites with digits of their own as PNG files, their run, and their models."""
    root = tmp_path_factory.mktemp("demo")
    pool = read_digits()
    some = slice(0, 300)
    chosen = DataSet(pool.inputs[some], pool.labels[some], pool.classes, pool.mean, pool.std)
    write_sites(root / "images", chosen)
    data = agreed(
        root=str(root / "images"), classes=", ".join(pool.classes), sites=", ".join(SITES)
    )
    folder = loopback(experiment(root, data=data, runtime__out=str(root / "runs")))
    export(finished_run(folder))
    return folder


@pytest.fixture
def model(run):
    return run / "models" / "north"


@pytest.fixture
def images(run):
    return run.parents[1] / "images"


def invoked(*arguments):
    return CliRunner().invoke(app, ["predict", *map(str, arguments)])


def rows(text):
    return list(csv.DictReader(io.StringIO(text)))


def refused(*arguments):
    result = invoked(*arguments)
    assert isinstance(result.exception, FedAppError), result.output
    assert "\n" not in str(result.exception)
    return str(result.exception)


def pixels(files):
    """As Pillow reads them: no resizing here, the digits are of the model's size."""
    return torch.from_numpy(np.stack([np.array(Image.open(file)) for file in files]))[:, None]


def test_a_model_is_named_after_its_site(run):
    assert sorted(path.name for path in (run / "models").iterdir()) == sorted(SITES)


def test_answers_are_the_models_own_to_the_same_images(model, images, tmp_path):
    out = tmp_path / "answers.csv"
    assert invoked(model, images / "west" / "scans", "--out", out).exit_code == 0
    found = rows(out.read_text())
    files = sorted((images / "west/scans").iterdir(), key=lambda path: path.name)
    assert [row["file"] for row in found] == [file.name for file in files] and len(files) > 50
    loaded, description = load_model(model, CPU)
    answers = loaded.probabilities(pixels(files))
    for row, answer in zip(found, answers.double(), strict=True):
        assert row["class"] == description.model.classes[int(answer.argmax())]
        assert float(row["probability"]) == pytest.approx(float(answer.max()), abs=1e-6)
        entropy = -sum(p * math.log(p) for p in answer.tolist() if p)
        assert float(row["entropy"]) == pytest.approx(entropy, abs=1e-6)


def test_files_are_read_as_the_sites_own_data_are(run, model, images):
    """The share of right answers to north's test images is the run's, from the files alone."""
    data = federation_of(finished_run(run).experiment).dealt.site(0)
    found = rows(invoked(model, images / "north").stdout)
    said = {pixels([images / "north" / r["file"]]).numpy().tobytes(): r["class"] for r in found}
    answers = [int(said[one[None].numpy().tobytes()]) for one in data.test]
    right = sum(a == label for a, label in zip(answers, data.test_labels.tolist(), strict=True))
    test = json.loads((model / "model.json").read_text())["results"]["test"]
    assert (right, len(answers)) == (test["right"], test["images"]) and len(answers) > 5


def test_a_table_is_answered_in_its_order(model, images):
    table = images / "west" / "labels.csv"
    found = rows(invoked(model, table).stdout)
    assert [row["file"] for row in found] == [row["path"] for row in rows(table.read_text())]


def test_batches_change_nothing(model, images, monkeypatch):
    whole = rows(invoked(model, images).stdout)
    monkeypatch.setattr(predict, "SCORING_BATCH", 7)
    parts = rows(invoked(model, images).stdout)
    assert len(whole) == 300
    assert [(r["file"], r["class"]) for r in parts] == [(r["file"], r["class"]) for r in whole]


def test_images_are_brought_to_the_models_size_and_channels(model, tmp_path):
    image(tmp_path / "a.png", 99, "RGB", (40, 30))
    image(tmp_path / "deep/down/B.JPG", 99, "L", (8, 8))
    image(tmp_path / ".hidden.png")
    (tmp_path / "notes.txt").write_text("no image")
    assert [r["file"] for r in rows(invoked(model, tmp_path).stdout)] == [
        "a.png",
        "deep/down/B.JPG",
    ]


# --- what is no model, or no image ----------------------------------------------------------------


def test_a_folder_without_a_model_is_refused(tmp_path, images):
    assert "no model (model.json: No such file or directory)" in refused(tmp_path, images)


@pytest.mark.parametrize(("name", "damage", "says"), [
    ("model.safetensors", lambda blob: blob[:-1], "model.safetensors: damaged (its SHA-256"),
    ("model.json", lambda text: text[:-9], "model.json: damaged (not JSON)"),
    ("model.json", lambda text: b"[]", "model.json: damaged (format is None, must be 1)"),
    ("model.json", lambda text: text.replace(b'"format": 1', b'"format": 2'), "format is 2"),
    ("model.json", lambda text: text.replace(b'"images": true,', b"", 1), "model.images: Field"),
    ("model.json", lambda text: text.replace(b'"resnet9"', b'"resnet8"'), "no such network"),
    ("model.json", lambda text: text.replace(b'"width": 4', b'"width": 8'), "tensor"),
    ("model.json", lambda text: text.replace(b'"std": [', b'"std": [1.0, '), "one per channel"),
])  # fmt: skip
def test_a_damaged_model_is_refused(model, images, tmp_path, name, damage, says):
    copy = shutil.copytree(model, tmp_path / "copy")
    (copy / name).write_bytes(damage((copy / name).read_bytes()))
    assert says in refused(copy, images)


def test_a_model_without_its_tensors_is_refused(model, images, tmp_path):
    copy = shutil.copytree(model, tmp_path / "copy")
    (copy / "model.safetensors").unlink()
    assert "model.safetensors: damaged (No such file" in refused(copy, images)


def test_a_model_of_numbers_takes_no_images(model, images, tmp_path):
    copy = shutil.copytree(model, tmp_path / "copy")
    text = (copy / "model.json").read_text()
    (copy / "model.json").write_text(text.replace('"images": true,', '"images": false,', 1))
    assert "takes numbers of shape [1, 8, 8], no images" in refused(copy, images)


def test_images_of_another_kind_are_refused_by_name(model, tmp_path):
    Image.fromarray(np.zeros((9, 9), np.uint16)).save(tmp_path / "deep.png")
    assert "deep.png: pixels of type 'I;16': save it as 8-bit" in refused(model, tmp_path)
    (tmp_path / "deep.png").write_bytes(b"no image")
    assert "deep.png: damaged or not an image" in refused(model, tmp_path)


@pytest.mark.parametrize(("name", "content", "says"), [
    ("labels.csv", "file,label\na.png,1\n", "no column 'path' in its first line"),
    ("labels.csv", "path\n", "no images: name a folder of .png"),
    ("labels.csv", "path\ngone.png\n", "labels.csv: gone.png: no such file: correct the path"),
    ("labels.csv", b"path\n\xff\n", "not CSV in UTF-8"),
    ("notes.txt", "none", "no such folder or CSV file"),
])  # fmt: skip
def test_a_table_that_names_no_images_is_refused(model, tmp_path, name, content, says):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert says in refused(model, path)


def test_a_folder_without_images_is_refused(model, tmp_path):
    assert "no images: name a folder of .png" in refused(model, tmp_path)


def test_nothing_is_written_where_an_image_cannot_be_used(model, tmp_path):
    image(tmp_path / "in" / "a.png")
    (tmp_path / "in" / "b.png").write_bytes(b"no image")
    refused(model, tmp_path / "in", "--out", tmp_path / "answers.csv")
    assert not (tmp_path / "answers.csv").exists()
