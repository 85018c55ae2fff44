"""A class's name that is code, or that no eye sees, enters by no door."""

import json
from dataclasses import replace

import pytest
import torch

import fedapp
from fedapp.core.errors import ConfigError, DataError, ProtocolError, RunError
from fedapp.data.folder import list_images, read_images
from fedapp.experiment.config import load_experiment
from fedapp.models.model import load_model
from fedapp.protocol.codec import decode_answer, encode
from fedapp.protocol.messages import SiteFacts
from tests.models.made import CPU, pictures, written
from tests.own import image

NAMES = ["$__import__('os').system('touch RAN')", "@x", "%x.json", "a\u202eb", "a\x1b[2Jb"]
"""Code to a configuration of MONAI, a name that reads backwards, one that clears a terminal."""
FACTS = SiteFacts(0, (1, 8, 8), ("a", "b"), 1, 1, 1, 1, "0" * 64)
SAID = "a class's name (does not begin|has no control)"


@pytest.fixture(params=NAMES, ids=ascii)
def name(request):
    return request.param


@pytest.mark.parametrize("key", ["data.classes", "data.findings"])
def test_by_a_preset(name, key):
    with pytest.raises(ConfigError, match=SAID) as error:
        load_experiment("own_data", {key: f"normal, {name}"})
    assert str(error.value).isprintable()


def test_by_a_message(name):
    assert decode_answer(encode(FACTS)) == FACTS
    with pytest.raises(ProtocolError, match="classes"):
        decode_answer(encode(replace(FACTS, classes=("a", name))))


def test_by_the_python_api(name):
    data = pictures(40), torch.arange(40) % 2
    with pytest.raises(DataError, match=SAID):
        fedapp.Federation.dealt(data, sites=2, classes=["normal", name])
    with pytest.raises(DataError, match=SAID):
        fedapp.Federation([fedapp.Site(labelled=data)], classes=["normal", name])


def test_by_a_folder_of_classes(name, tmp_path):
    for part in ("normal", name.replace("/", "")):
        (tmp_path / part).mkdir()
        image(tmp_path / part / "a.png", 9, size=(8, 8))
    listing = list_images(tmp_path)
    with pytest.raises(DataError, match=SAID):
        read_images(listing, torch.arange(2).numpy(), 8)


@pytest.mark.parametrize("place", ["classes", "name", "run"])
def test_by_the_folder_of_a_model(name, place, tmp_path):
    """Which somebody sent; no line of it is shown before it is refused."""
    folder = written(tmp_path / "model")
    file = folder / "model.json"
    said = json.loads(file.read_text())
    if place == "classes":
        said["model"]["classes"][1] = name
    else:
        said["origin"][place] = f"{name}\n"
    file.write_text(json.dumps(said))
    with pytest.raises(RunError, match=r"model\.json: damaged") as error:
        load_model(folder, CPU)
    assert str(error.value).isprintable()
