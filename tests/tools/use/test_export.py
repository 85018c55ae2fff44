"""Files for other programs give the model's answers: every network, mixtures, numbers, bundles."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from fedapp.learn.networks import network_class, network_names
from fedapp.models.description import TENSORS
from fedapp.models.model import Answer, load_model
from fedapp.tools.use import onnx_file
from tests.encoders import encoder_fields
from tests.models.made import CPU, MIXTURE, model_of, pictures, written
from tests.own import image
from tests.tools import commands

invoked, refused = partial(commands.invoked, "export"), partial(commands.refused, "export")
INPUTS = {"fedsiam_mnist": (1, 28, 28), "fedul_mnist": (3, 28, 28), "resnet18": (3, 32, 32)}
SETTINGS = {"resnet9": {"width": 4}}


def answers(file, pixels):
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    return session.run(None, {"pixels": pixels.numpy()})[0]


# --- the graph ------------------------------------------------------------------------------------


@pytest.mark.parametrize("choices", [
    {}, {"weights": MIXTURE}, {"inputs": (3, 8, 8)}, {"distance": "mean_squared"},
    {"weights": MIXTURE, "distance": "euclidean"},
    {"network": {"name": "mlp"}, "inputs": (5,), "images": False},
    {"network": {"name": "mlp"}, "inputs": (2, 5), "images": False, "weights": MIXTURE},
])  # fmt: skip
def test_the_graph_gives_the_models_probabilities(choices):
    model = model_of(**choices)
    given = onnx_file.made_up(model, 9)
    with torch.no_grad():
        found = Answer(model)(given)
    torch.testing.assert_close(found, model.probabilities(given), atol=1e-6, rtol=0)


# --- ONNX -----------------------------------------------------------------------------------------


def test_answers_by_prototypes_are_the_same_under_onnxruntime(tmp_path):
    folder = written(tmp_path / "model", distance="euclidean")
    assert invoked(folder, "--to", "onnx", "-o", tmp_path / "out").exit_code == 0
    pixels = pictures(5, seed=4)
    wanted = load_model(folder, CPU)[0].probabilities(pixels).numpy()
    found = answers(tmp_path / "out/model.onnx", pixels)
    assert np.abs(found - wanted).max() < onnx_file.TOLERANCE
    assert (found[:, -1] == 0).all()  # a class without a prototype


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in network_names() if not network_class(n).simulated])
def test_every_network_is_the_same_under_onnxruntime(name, tmp_path):
    inputs = INPUTS.get(name, (1, 16, 16))
    files = encoder_fields() if name == "encoder" else {}
    network = {"name": name, **SETTINGS.get(name, {}), **files}
    folder = written(tmp_path / "model", network=network, inputs=inputs)
    if files:  # a kept model has its weights beside it
        shutil.copy(files["weights"], folder)
    assert invoked(folder, "--to", "onnx", "-o", tmp_path / "out").exit_code == 0
    pixels = pictures(5, inputs, seed=4)
    wanted = load_model(folder, CPU)[0].probabilities(pixels).numpy()
    for count in (1, 5):
        found = answers(tmp_path / "out/model.onnx", pixels[:count])
        assert np.abs(found - wanted[:count]).max() < onnx_file.TOLERANCE


def test_a_site_of_a_run_is_named_as_for_predict(run, images, tmp_path):
    result = invoked(f"{run}/north", "--to", "safetensors", "-o", tmp_path / "out")
    assert result.exit_code == 0, result.output
    folder = run / "models" / "north"
    assert (tmp_path / "out" / TENSORS).read_bytes() == (folder / TENSORS).read_bytes()
    place = images / "south" / "unlabelled"
    result = commands.invoked(
        "next-to-label", f"{run}/north", place, "--count", 2, "-o", tmp_path / "next.csv"
    )
    assert result.exit_code == 0, result.output


def test_a_mixture_is_one_file_with_its_classes(tmp_path):
    folder = written(tmp_path / "model", weights=MIXTURE)
    for level in range(3):
        image(tmp_path / "in" / f"{level}.png", 80 * level)
    result = invoked(folder, "--to", "onnx", "-o", tmp_path / "out", "--images", tmp_path / "in")
    assert result.exit_code == 0, result.output
    assert "10 made-up and 3 real inputs: largest difference" in result.stdout
    found = onnx.load(tmp_path / "out/model.onnx")
    said = {prop.key: prop.value for prop in found.metadata_props}
    assert json.loads(said["classes"]) == [f"class {c}" for c in range(4)]
    assert said["inputs"] == "uint8 [n, 1, 8, 8]"
    pixels = pictures(11, seed=6)
    wanted = load_model(folder, CPU)[0].probabilities(pixels).numpy()
    assert np.abs(answers(tmp_path / "out/model.onnx", pixels) - wanted).max() < 1e-5


def test_a_model_of_numbers_and_of_bfloat16_is_exported_in_float32(tmp_path):
    folder = written(
        tmp_path / "model", network={"name": "mlp"}, inputs=(5,), images=False, dtype="bfloat16"
    )
    assert invoked(folder, "--to", "onnx", "-o", tmp_path / "out").exit_code == 0
    numbers = torch.randn(6, 5)
    wanted = load_model(folder, CPU)[0].probabilities(numbers).numpy()
    found = answers(tmp_path / "out/model.onnx", numbers)
    assert 0 < np.abs(found - wanted).max() < 0.05  # bfloat16 has eight bits
    assert "takes numbers, no images" in refused(folder, "--to", "monai", "-o", tmp_path / "b")


def test_a_file_that_answers_otherwise_is_not_written(tmp_path, monkeypatch):
    folder = written(tmp_path / "model", network={"name": "mlp"}, inputs=(1, 8, 8))
    monkeypatch.setattr(onnx_file, "TOLERANCE", -1.0)
    assert "nothing was written" in refused(folder, "--to", "onnx", "-o", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_without_the_extra_one_line_says_which_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    folder = written(tmp_path / "model")
    says = refused(folder, "--to", "onnx", "-o", tmp_path / "out")
    assert "pip install 'fedapp[onnx]'" in says


def test_a_network_that_onnx_cannot_hold_is_refused_in_one_line(tmp_path, monkeypatch):
    folder = written(tmp_path / "model")
    monkeypatch.setattr(Answer, "forward", lambda self, x: x if x.sum() > 0 else -x)
    says = refused(folder, "--to", "onnx", "-o", tmp_path / "out")
    assert "cannot be written as ONNX" in says and "\n" not in says


def test_adaptive_max_pooling_to_one_place_has_a_stand_in_and_to_more_none():
    """A network of one's own may have it."""
    x = torch.randn(2, 3, 5, 4)
    out, _ = onnx_file._global_max(x, [1, 1])
    assert torch.equal(out, torch.nn.functional.adaptive_max_pool2d(x, 1))
    with pytest.raises(ValueError, match="to \\[2, 2\\] places"):
        onnx_file._global_max(x, [2, 2])


# --- safetensors ----------------------------------------------------------------------------------


def test_tensors_and_their_config_are_enough_for_another_program(tmp_path):
    folder = written(tmp_path / "model", weights=MIXTURE)
    assert invoked(folder, "--to", "safetensors", "-o", tmp_path / "out").exit_code == 0
    said = json.loads((tmp_path / "out/config.json").read_text())
    tensors = load_file(tmp_path / "out/model.safetensors")
    assert [part["weight"] for part in said["parts"]] == list(MIXTURE.values())
    assert all(f"{part['prefix']}head.weight" in tensors for part in said["parts"])
    assert said["id2label"]["1"] == "class 1" and said["input_size"] == [1, 8, 8]
    assert {part["distance"] for part in said["parts"]} == {None}


# --- MONAI ----------------------------------------------------------------------------------------

KEYS = {
    "version", "monai_version", "pytorch_version", "numpy_version", "required_packages_version",
    "task", "description", "authors", "copyright", "network_data_format",
}  # fmt: skip
TENSOR_KEYS = {
    "type", "format", "num_channels", "spatial_shape", "dtype", "value_range", "is_patch_data",
    "channel_def",
}  # fmt: skip


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    root = tmp_path_factory.mktemp("bundle")
    written(root / "model", weights=MIXTURE)
    assert invoked(root / "model", "--to", "monai", "-o", root / "out").exit_code == 0
    return root


def test_a_bundle_has_what_the_specification_asks_for(bundle):
    files = {str(f.relative_to(bundle / "out")) for f in bundle.glob("out/*/*")}
    assert files >= {"configs/metadata.json", "configs/inference.json", "docs/README.md",
                     "models/model.pt", "models/model.onnx"}  # fmt: skip
    said = json.loads((bundle / "out/configs/metadata.json").read_text())
    assert said.keys() >= KEYS
    formats = said["network_data_format"]
    for one in (formats["inputs"]["image"], formats["outputs"]["pred"]):
        assert one.keys() >= TENSOR_KEYS
        assert len(one["channel_def"]) == one["num_channels"]
    state = torch.load(bundle / "out/models/model.pt", weights_only=True)
    model, _ = load_model(bundle / "model", CPU)
    again = Answer(model)
    again.load_state_dict(state)


def configured(content, names):
    """Return a part of a bundle's configuration as MONAI has it: what begins with $ is run."""
    if isinstance(content, list):
        return [configured(item, names) for item in content]
    if isinstance(content, str) and content.startswith("$"):
        return eval(content.removeprefix("$").replace("@", ""), names)
    return content


def test_classes_of_a_bundle_are_data_that_nobody_runs(bundle, tmp_path, monkeypatch):
    """A name that no door let in, were there one that did: of one that runs, a file would tell."""
    from fedapp.tools.use import monai_bundle

    model, description = load_model(bundle / "model", CPU)
    monkeypatch.chdir(tmp_path)
    evil = ("$open('RAN', 'w')", "@mode", "=1+1", "糖尿病")
    object.__setattr__(description.model, "classes", evil)
    monai_bundle.write_bundle(tmp_path / "out", model, description, b"")
    said = json.loads((tmp_path / "out/configs/inference.json").read_text())
    assert "RAN" not in json.dumps(said)
    names = {"json": json, "pathlib": pathlib, "bundle_root": str(tmp_path / "out")}
    # No spreadsheet computes them either, in the CSV file that the bundle writes.
    assert configured(said["classes"], names) == [evil[0], "'@mode", "'=1+1", "糖尿病"]
    assert not (tmp_path / "RAN").exists()


def test_a_bundle_reads_a_turned_image_upright(bundle):
    """By what its configuration says, with the modules that it imports."""
    said = json.loads((bundle / "out/configs/inference.json").read_text())
    names = {"mode": said["mode"], "size": said["size"]}
    for line in said["imports"]:
        if "onnx" not in line:
            exec(line.removeprefix("$"), names)
    read = eval(said["read"].removeprefix("$").replace("@", ""), names)
    upright = np.arange(64, dtype=np.uint8).reshape(8, 8)
    exif = Image.Exif()
    exif[274] = 6  # row 0 of the file is the right side
    Image.fromarray(np.rot90(upright)).save(bundle / "a.png", exif=exif)
    assert (read(bundle / "a.png") == upright).all()


@pytest.mark.parametrize("window", ["0, 4095", "dicom"])
def test_a_model_with_a_window_is_no_bundle(tmp_path, window):
    """A bundle's Pillow would clip what the window spreads out; ONNX is asked for levels."""
    folder = written(tmp_path / "model", window=window)
    says = refused(folder, "--to", "monai", "-o", tmp_path / "out")
    assert f"by a window ({window}), a bundle PNG and JPEG of 8 bits only: use --to onnx" in says
    assert "\n" not in says and not (tmp_path / "out").exists()
    assert invoked(folder, "--to", "safetensors", "-o", tmp_path / "out").exit_code == 0


def test_monai_runs_the_bundle(bundle):
    """Where MONAI is installed: FEDAPP_MONAI is its folder, or empty. Same classes as ours."""
    where = os.environ.get("FEDAPP_MONAI")
    if where is None:
        pytest.skip("FEDAPP_MONAI is not set")
    for level in range(4):
        image(bundle / "in" / f"{level}.png", 60 * level, size=(8, 8))
    command = [
        sys.executable, "-m", "monai.bundle", "run",
        "--config_file", "configs/inference.json", "--dataset_dir", str(bundle / "in"),
    ]  # fmt: skip
    subprocess.run(command, cwd=bundle / "out", check=True, env={**os.environ, "PYTHONPATH": where})
    lines = (bundle / "out/predictions.csv").read_text().splitlines()
    model, _ = load_model(bundle / "model", CPU)
    wanted = model.probabilities(
        torch.stack([torch.full((1, 8, 8), 60 * level, dtype=torch.uint8) for level in range(4)])
    )
    assert len(lines) == 5 and Path(lines[1].split(",")[0]).name == "0.png"
    found = [float(line.rsplit(",", 1)[1]) for line in lines[1:]]
    assert found == pytest.approx(wanted.max(1).values.tolist(), abs=1e-4)
