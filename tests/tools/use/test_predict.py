"""Answers to files: the model's own to the same images; what is no model, or no image."""

import json
import math
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from examples.demo_images import SITES
from fedapp.core.errors import FedAppError
from fedapp.evaluation.model_selection import Candidate
from fedapp.evaluation.reliability_warnings import NOT_TO_DECIDE
from fedapp.models import predict
from fedapp.models.conformal import calibrate, prediction_sets
from fedapp.models.evidence import Evidence, write_evidence
from fedapp.models.listing import list_several
from fedapp.models.model import load_model
from fedapp.server.finished_run import finished_run
from fedapp.site.federation import federation_of
from tests.imagefiles import dicom, raster, twelve_bits
from tests.models.made import written
from tests.own import image
from tests.tools import commands
from tests.tools.commands import rows

invoked, refused = partial(commands.invoked, "predict"), partial(commands.refused, "predict")
CPU = torch.device("cpu")


def first(images):
    """The first image of north's folder, as answers name it."""
    found = (images / "north").rglob("*.png")
    return min(path.relative_to(images / "north").as_posix() for path in found)


def pixels(files):
    """As Pillow reads them: no resizing here, the digits are of the model's size."""
    return torch.from_numpy(np.stack([np.array(Image.open(file)) for file in files]))[:, None]


def test_deep_images_are_read_by_the_models_window(model, images, tmp_path):
    """The same values with 12 bits give the same answers, once the model names their window."""
    files = sorted((images / "west" / "scans").iterdir())[:20]
    for file in files:
        deep = twelve_bits(np.array(Image.open(file)))
        dicom(tmp_path / "dicom" / f"{file.stem}.dcm", deep)
        raster(tmp_path / "png" / file.name, deep)
        raster(tmp_path / "levels" / file.name, np.array(Image.open(file)))
    assert "the model learned from images of 8 bits" in refused(model, tmp_path / "png")
    shutil.copytree(model, tmp_path / "model")
    description = json.loads((tmp_path / "model" / "model.json").read_text())
    assert description["model"]["window"] == ""
    description["model"]["window"] = "0, 4095"
    (tmp_path / "model" / "model.json").write_text(json.dumps(description))
    answers = [
        [(row["class"], row["probability"]) for row in rows(found.stdout)]
        for found in (invoked(tmp_path / "model", tmp_path / kind)
                      for kind in ("dicom", "png", "levels"))
    ]  # fmt: skip
    assert answers[0] == answers[1] == answers[2] and len(answers[0]) == 20


def test_what_fits_a_deep_image_is_said_by_the_models_window(model, tmp_path):
    """Nobody who asks a model can set data.window: that was agreed upon before it learned."""
    raster(tmp_path / "in" / "deep.png", np.full((8, 8), 4095, np.uint16))
    says = refused(model, tmp_path / "in")
    assert "values 4095 to 4095, but the model learned from images of 8 bits: save it" in says
    assert "data.window" not in says
    says = refused(written(tmp_path / "own", window="dicom"), tmp_path / "in")
    assert "but it lacks the window of its own that the model reads such images by: save" in says


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
        assert 0 <= float(row["mutual_information"]) <= float(row["entropy"]) <= math.log(10)
    assert any(float(row["mutual_information"]) > 0.01 for row in found)


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


def test_one_image_that_is_gone_keeps_no_other_from_an_answer(model, images, tmp_path):
    (tmp_path / "list.csv").write_bytes(
        b"\xef\xbb\xbf" + f"Path,note\ngone.png,x\n{images}/north/{first(images)},y\n".encode()
    )
    result = invoked(model, tmp_path / "list.csv")
    gone, there = rows(result.stdout)
    assert result.exit_code == 1 and gone["class"] == "" and there["class"]
    assert "images that cannot be used: 1; the first:" in result.stderr
    assert "gone.png: no such file: correct its path" in " ".join(result.stderr.split())


def test_of_several_folders_too_no_name_is_a_formula(tmp_path, monkeypatch):
    for folder in ("=1+1", "b"):
        image(tmp_path / folder / "a.png")
    monkeypatch.chdir(tmp_path)
    names = [one.name for one in list_several([Path("=1+1"), Path("b")])]
    assert names == ["./=1+1/a.png", "b/a.png"]


def test_images_and_folders_may_be_named_one_by_one(model, images):
    one = images / "north" / first(images)
    whole = {row["file"]: row["class"] for row in rows(invoked(model, images / "north").stdout)}
    alone = rows(invoked(model, one).stdout)
    several = rows(invoked(model, one, images / "west" / "labels.csv", images / "north").stdout)
    assert [(row["file"], row["class"]) for row in alone] == [(str(one), whole[first(images)])]
    west = rows((images / "west" / "labels.csv").read_text())
    named = [f"{images / 'west' / 'labels.csv'}/{row['path']}" for row in west]
    named = [str(one), *named, *(f"{images / 'north'}/{name}" for name in whole)]
    assert [row["file"] for row in several] == named
    assert "no such file or folder" in refused(model, one, images / "none.png")


def test_a_run_may_be_named_in_a_models_place(run, model, images, tmp_path, monkeypatch):
    one = images / "north" / first(images)
    expected = invoked(model, one).stdout
    monkeypatch.setenv("FEDAPP_OUT", str(run.parent))
    assert invoked(f"{run.name}/north", one).stdout == expected
    assert invoked(f"{run}/north", one).stdout == expected
    says = refused(run.name, one)
    assert f"has models of {len(SITES)} sites (" in says and f"such as {run.name}/" in says
    shutil.copytree(run, tmp_path / "single")
    for folder in (tmp_path / "single" / "models").iterdir():
        if folder.is_dir() and folder.name != "north":
            shutil.rmtree(folder)
    assert invoked(tmp_path / "single", one).stdout == expected
    shutil.rmtree(tmp_path / "single" / "models")
    assert "no site's model is here: each site keeps its own model" in refused(
        tmp_path / "single", one
    )
    assert "no model" in refused("no-such-run", one)


@pytest.mark.parametrize(
    "names",
    [
        ("a|b", "c"),
        ("a", "b", "c"),
        ("a|b",),
        ("a\\", "|b"),
        ("\\|", "||"),
        ("x",),
        ("+ve", "-ve"),
        ("'+ve", "x"),
        ("'", "'x"),
        (),
    ],
)
def test_a_set_says_which_classes_are_in_it(names):
    """A class may be called `a|b`: its set was that of the classes a and b."""
    assert predict.classes_in(predict.set_cell(names)) == names
    if not any(sign in name for name in names for sign in "|\\+"):
        assert predict.set_cell(names) == "|".join(names)  # as it always was


def test_batches_change_nothing(model, images, monkeypatch):
    whole = rows(invoked(model, images).stdout)
    monkeypatch.setattr(predict, "inputs_per_pass", lambda inputs: 7)
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
    ("model.safetensors", lambda blob: None, "model.safetensors: damaged (No such file"),
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
    damaged = damage((copy / name).read_bytes())
    (copy / name).unlink()
    if damaged is not None:
        (copy / name).write_bytes(damaged)
    assert says in refused(copy, images)


def test_a_model_of_numbers_takes_no_images(model, images, tmp_path):
    copy = shutil.copytree(model, tmp_path / "copy")
    text = (copy / "model.json").read_text()
    (copy / "model.json").write_text(text.replace('"images": true,', '"images": false,', 1))
    assert "takes numbers of shape [1, 8, 8], no images" in refused(copy, images)


def test_images_of_another_kind_are_refused_by_name(model, tmp_path):
    Image.fromarray(np.zeros((9, 9), np.uint16)).save(tmp_path / "deep.png")
    assert "deep.png: 16-bit PNG, values 0 to 0, but the model learned" in refused(model, tmp_path)
    (tmp_path / "deep.png").write_bytes(b"no image")
    assert "deep.png: damaged or not an image" in refused(model, tmp_path)


@pytest.mark.parametrize(("name", "content", "says"), [
    ("labels.csv", "file,label\na.png,1\n", "no column 'path' in its first line"),
    ("labels.csv", "path\n", "no images: name a folder of images"),
    ("labels.csv", "path\ngone.png\n", "gone.png: no such file: correct its path"),
    ("labels.csv", b"path\n\xff\n", "not UTF-8 text: save it as 'CSV UTF-8 (comma delimited)'"),
    ("labels.csv", "path,label\na.png,1\n".encode("utf-16"), "labels.csv: not UTF-8 text: save it"),
    ("labels.csv", "path;label\na.png;1\n", "line 1: fields are separated by ';': save the file"),
    ("labels.csv", "path\tlabel\na.png\t1\n", "fields are separated by '\\t'"),
    ("labels.csv", "path,label\na,b.png,1\n", "line 2: 3 fields, the header has 2: write one for"),
    ("notes.txt", "none",
     "no folder, no CSV file (.csv) and no vectors (.npz, .parquet): name one of these"),
])  # fmt: skip
def test_a_table_that_names_no_images_is_refused(model, tmp_path, name, content, says):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert says in refused(model, path)


def test_a_folder_without_images_is_refused(model, tmp_path):
    assert "no images: name a folder of images" in refused(model, tmp_path)


def test_an_image_that_cannot_be_used_has_an_empty_row_and_the_others_answers(model, tmp_path):
    image(tmp_path / "in" / "a.png")
    (tmp_path / "in" / "b.png").write_bytes(b"no image")
    image(tmp_path / "in" / "c.png", 9)
    result = invoked(model, tmp_path / "in", "--out", tmp_path / "answers.csv")
    assert result.exit_code == 1
    assert (
        "images that cannot be used: 1; the first: " in result.stderr and "b.png" in result.stderr
    )
    found = rows((tmp_path / "answers.csv").read_text())
    assert [bool(row["class"]) for row in found] == [True, False, True]
    assert list(found[1].values()) == ["b.png", "", "", "", "", "", "yes"]
    (tmp_path / "in" / "b.png").unlink()
    alone = rows(invoked(model, tmp_path / "in").stdout)
    assert [r["class"] for r in alone] == [found[0]["class"], found[2]["class"]]


def test_nothing_is_written_where_no_image_can_be_used(model, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "b.png").write_bytes(b"no image")
    says = refused(model, tmp_path / "in", "--out", tmp_path / "answers.csv")
    assert "no image can be used; the first: " in says
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


# --- sets and uncertainty -------------------------------------------------------------------------


@pytest.mark.parametrize("sets", ["lac", "aps"])
def test_sets_are_those_of_the_models_calibration(model, images, sets):
    found = rows(invoked(model, images / "north", "--sets", sets, "--coverage", "0.7").stdout)
    loaded, description = load_model(model, CPU)
    pictures = pixels([images / "north" / row["file"] for row in found])
    inside = prediction_sets(
        loaded.probabilities(pictures), description.calibration, sets, 0.7
    ).tolist()
    for row, one in zip(found, inside, strict=True):
        names = [name for name, held in zip(description.model.classes, one, strict=True) if held]
        assert row["set"] == "|".join(names)
        assert row["abstain"] == ("no" if len(names) == 1 else "yes")


def test_the_models_calibration_is_that_of_its_validation_images(run, model):
    data = federation_of(finished_run(run).experiment).dealt.site(0).parts["val"]
    loaded, description = load_model(model, CPU)
    assert description.calibration == calibrate(loaded.probabilities(data.inputs), data.labels)
    assert description.calibration.images == len(data.labels) > 0
    card = (model / "README.md").read_text()
    assert f"weak: {len(data.labels)} calibration images only" in card


def test_a_model_written_before_there_was_a_calibration_has_sets_of_all_classes(
    model, images, tmp_path
):
    copy = shutil.copytree(model, tmp_path / "copy")
    plain = json.loads((copy / "model.json").read_text())
    del plain["calibration"]
    (copy / "model.json").write_text(json.dumps(plain))
    result = invoked(copy, images / "north")
    assert result.exit_code == 0
    assert "the model has no calibration images: every set holds all classes" in result.stderr
    everything = "|".join(plain["model"]["classes"])
    assert {(r["set"], r["abstain"]) for r in rows(result.stdout)} == {(everything, "yes")}


def test_answers_are_not_written_over_the_list_of_images(model, tmp_path):
    image(tmp_path / "a.png", 7)
    (table := tmp_path / "list.csv").write_text("path,label\na.png,1\n")
    result = invoked(model, table, "--out", tmp_path / "." / "list.csv")
    assert isinstance(result.exception, FedAppError)
    assert "it is the list of images" in str(result.exception)
    assert table.read_text() == "path,label\na.png,1\n"


def test_a_table_with_labels_is_measured(model, images):
    table = images / "west" / "labels.csv"
    result = invoked(model, table)
    labels = {row["path"]: row["label"] for row in rows(table.read_text()) if row["label"]}
    found = {row["file"]: row for row in rows(result.stdout) if row["file"] in labels}
    right = sum(found[name]["class"] == label for name, label in labels.items())
    covered = sum(label in found[name]["set"].split("|") for name, label in labels.items())
    said = " ".join(result.stderr.split())
    assert f"right {right} of {len(labels)} (" in said
    assert f"label in the set {covered} of {len(labels)} (" in said and "asked 90.0 %" in said


def test_labels_that_the_model_does_not_know_are_said_to_be_so(model, images, tmp_path):
    image(tmp_path / "a.png")
    (tmp_path / "odd.csv").write_text("path,label\na.png,Handbag\n")
    said = " ".join(invoked(model, tmp_path / "odd.csv").stderr.split())
    assert "right 0 of 1" in said
    assert (
        "1 of them have a label that is no class of the model" in said and "it knows 0, 1" in said
    )


@pytest.mark.parametrize("coverage", ["0", "1", "90", "-0.5"])
def test_a_coverage_that_is_no_share_is_refused(model, images, coverage):
    assert "must lie between 0 and 1" in refused(model, images, "--coverage", coverage)


def test_the_same_images_have_the_same_uncertainty_again(model, images):
    assert invoked(model, images / "north").stdout == invoked(model, images / "north").stdout


def test_the_answers_never_take_the_place_of_an_image_or_a_folder(model, images, tmp_path):
    folder = tmp_path / "scans"
    shutil.copytree(images / "west" / "scans", folder)
    first = min(folder.iterdir())
    before = first.read_bytes()
    assert "it is one of the images: name another file" in refused(model, folder, "--out", first)
    assert first.read_bytes() == before
    said = refused(model, folder, "--out", tmp_path)
    assert said.endswith("it is a folder; name a file in it")
    said = refused(model, folder, "--out", first / "answers.csv")
    assert said.endswith("a file is in the way; choose another folder")


def test_answers_of_a_new_class_mix_are_a_warning_at_the_site_itself(model, images, tmp_path):
    """The same images again are like themselves; a hundred times one image is not."""
    kept = tmp_path / "north"
    shutil.copytree(model, kept)
    loaded, description = load_model(kept, CPU)
    files = sorted((images / "west" / "scans").iterdir())[:60]
    said = loaded.probabilities(pixels(files))
    labels = said.argmax(1)
    found = Evidence(labels, torch.bincount(labels, minlength=said.shape[1]))
    found = found.with_answers("kept", Candidate(1, "used", False, 1, 1, 0, 0), said)
    again = tmp_path / "again"
    again.mkdir()
    for place, file in enumerate(files):
        shutil.copy(file, again / f"{place}.png")
    one = tmp_path / "one"
    one.mkdir()
    for place in range(60):
        shutil.copy(files[0], one / f"{place}.png")
    assert "class mix" not in invoked(kept, one).stderr, "nobody knows the site's own answers"
    write_evidence(kept, found)
    assert "class mix" not in invoked(kept, again).stderr
    warned = " ".join(invoked(kept, one).stderr.split())
    name = description.model.classes[int(labels[0])]
    assert "Warning: The class mix of the answers is not" in warned and f"{name!r}" in warned


def test_a_model_no_better_than_one_answer_says_so_before_its_answers(model, images, tmp_path):
    """The model's folder alone is there. Other warnings stay on the card and the page."""
    kept, light = tmp_path / "north", f"It answers 'a' to 9 of 9 test images: {NOT_TO_DECIDE}"
    shutil.copytree(model, kept)
    assert NOT_TO_DECIDE not in invoked(kept, images / "west").stderr
    text = json.loads((kept / "model.json").read_text())
    text["lights"] = ["Its probabilities are too high.", light]
    (kept / "model.json").write_text(json.dumps(text))
    said = invoked(kept, images / "west").stderr
    assert said.startswith(f"Warning: {light}\n") and said.count("Warning") == 1
