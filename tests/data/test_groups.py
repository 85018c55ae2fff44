"""What is dealt together: a patient's inputs, and exact copies, whoever deals."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from sklearn.datasets import load_digits

import fedapp
from fedapp import Federation, Site
from fedapp.api.runs import preset_and_overrides
from fedapp.core.errors import DataError
from fedapp.core.settings import DataSettings, SplitSettings
from fedapp.data.arrays import read_arrays
from fedapp.data.datasets import load_dataset
from fedapp.data.inputs import DataSet
from fedapp.data.split.groups import (
    check_patients,
    describe_copies,
    equal_inputs,
    joined_groups,
    patient_numbers,
)
from fedapp.data.split.manifest import TEST, TRAIN, Manifest
from fedapp.data.split.manifest import TEST as TESTS
from fedapp.data.split.partition import partition
from fedapp.experiment.config import load_experiment
from fedapp.methods.averaging.fedavg import FedAvg
from fedapp.reports.run_end import COPIES
from fedapp.site import federation as sites
from fedapp.site.federation import federation_of, forget
from tests import arrays
from tests.methods.conformance import toy
from tests.own import image
from tests.small import small


def test_numbers_by_hand():
    assert patient_numbers(["b", "a", "b", "c"], 4).tolist() == [1, 0, 1, 2]
    assert patient_numbers([10, 2, 10], 3).tolist() == [0, 1, 0]


@pytest.mark.parametrize(("given", "says"), [
    (["a", "b"], "patients are 2, must be 3"),
    (["a", "", None], "input 1 and 1 more have no patient"),
    ([1.0, float("nan"), 2.0], "input 1 and 0 more have no patient"),
    (["a", "a", "a"], "all 3 inputs are of one patient"),
])  # fmt: skip
def test_what_is_refused(given, says):
    with pytest.raises(DataError, match=says):
        patient_numbers(given, 3)


@given(st.integers(0, 1000), st.sampled_from(("dirichlet", "iid")))
def test_a_patient_is_at_one_site_in_one_part(seed, deal):
    stream = np.random.default_rng(seed)
    patients = np.unique(stream.integers(0, 40, 200), return_inverse=True)[1]
    split = SplitSettings(num_clients=4, deal=deal)
    found = partition(stream.integers(0, 5, 200), split, seed, "x", patients)
    check_patients(patients, found)
    for p in range(patients.max() + 1):
        assert len(set(found.visible[patients == p].tolist())) == 1


def test_patients_of_one_input_each_are_inputs():
    labels = np.arange(120) % 4
    plain = partition(labels, SplitSettings(num_clients=3), 1, "x")
    each = partition(labels, SplitSettings(num_clients=3), 1, "x", np.arange(120))
    assert plain.digest() == each.digest()


def test_a_split_that_parts_a_patient_is_refused():
    labels, patients = np.arange(120) % 4, np.arange(120) // 4
    with pytest.raises(DataError, match="in two sites: make the split again"):
        check_patients(patients, partition(labels, SplitSettings(num_clients=3), 1, "x"))
    for key, value in (("bags", 3), ("test_images", 20)):
        said = {"num_clients": 3, key: value}
        if key == "test_images":
            said["val_share"] = 0.1
        with pytest.raises(DataError, match=rf"split\.{key} deals single inputs"):
            partition(labels, SplitSettings(**said), 1, "x", patients)


def test_sites_know_whose_their_test_images_are(tmp_path, monkeypatch):
    def images():
        stream = np.random.default_rng(0)
        inputs = stream.integers(0, 256, (240, 1, 8, 8), dtype=np.uint8)
        names = [f"p{i // 4}" for i in range(240)]
        return {"inputs": inputs, "labels": np.arange(240) % 2, "patients": names}

    monkeypatch.setattr(arrays, "images", images)
    assert read_arrays("tests.arrays:images").patients.unique().numel() == 60
    one = toy(FedAvg(), tmp_path, data__name="tests.arrays:images", data__subset=0,
              split__manifest="", split__num_clients=3, split__label_share=0.5)  # fmt: skip
    federation = federation_of(one)
    assert (federation.manifest.split == TESTS).sum() % 4 == 0
    for k in range(3):
        data = federation.dealt.site(k)
        of = torch.unique(data.test_groups, return_counts=True)[1].tolist()
        assert of == [4] * (len(data.test) // 4)
        assert data.by_patient
        for part in ("labelled", "unlabelled", "val"):
            whose = data.patients[part]
            assert len(whose) == len(data.parts[part])
            assert set(whose.unique(return_counts=True)[1].tolist()) <= {4}


def test_a_folders_paths_name_patients(tmp_path):
    for p in range(20):
        for i in range(3):
            image(tmp_path / ("a", "b")[p % 2] / f"P{p:02d}_{i}.png", 10 * p + i, size=(8, 8))
    settings = DataSettings(name="folder", root=str(tmp_path), patients=r"/(P\d+)_")
    data = load_dataset(settings, 0)
    assert data.patients.tolist() == [
        int(level) // 10 for level in data.inputs[:, 0, 0, 0].tolist()
    ]  # fmt: skip
    assert len(load_dataset(replace(settings, subset=30), 0).patients) == 30
    assert load_dataset(replace(settings, patients=""), 0).patients is None
    dealt = federation_of(small(data=settings, split=SplitSettings(num_clients=3)))
    check_patients(data.patients.numpy(), dealt.manifest)
    image(tmp_path / "a" / "other.png", size=(8, 8))
    with pytest.raises(DataError, match=r"^a/other.png: its path does not match data.patients = "):
        load_dataset(settings, 0)


SHORT = {"rounds.num_rounds": 0, "training.warmup_epochs": 1, "runtime.models": False}
RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 255, (60, 1, 8, 8), dtype=np.uint8)
CLASSES = np.arange(60) % 3


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDAPP_OUT", str(tmp_path / "runs"))
    forget()


def twice(count=2):
    """Every image `count` times, its copies far apart."""
    return np.concatenate([IMAGES] * count), np.concatenate([CLASSES] * count)


def apart(manifest, groups):
    """How many inputs have a copy that is in another part, or at another site."""
    first = np.unique(groups, return_index=True)[1][groups]
    return int(((manifest.split != manifest.split[first])
                | (manifest.site != manifest.site[first])).sum())  # fmt: skip


def test_what_is_alike_and_what_is_tied():
    assert equal_inputs(torch.tensor([[1.0, 2], [3, 4], [1, 2]])).tolist() == [0, 1, 0]
    assert equal_inputs(torch.tensor([[1.0, 2], [3, 4]])) is None
    assert equal_inputs(torch.zeros(3, 2)).tolist() == [0, 0, 0]
    patients, copies = np.array([0, 0, 1, 2, 3]), np.array([0, 1, 1, 2, 3])
    assert joined_groups(patients, copies).tolist() == [0, 0, 0, 1, 2]  # by way of the third


@pytest.mark.parametrize("deal", ["dirichlet", "iid", "two_classes", "majority"])
def test_copies_are_dealt_together_in_every_way(deal):
    images, labels = twice()
    pool = DataSet(torch.tensor(images), torch.tensor(labels), ("a", "b", "c"), (0.5,), (0.2,))
    split = SplitSettings(num_clients=4, deal=deal)
    groups = sites._together(pool, "folder", split, None)
    assert groups is not None
    assert apart(partition(labels, split, 0, "folder", groups), groups) == 0
    assert apart(partition(labels, split, 0, "folder"), groups) > 0  # what it was


def test_dealt_in_memory_with_patients_and_copies():
    """A patient's other images go along with a copy of one of them."""
    images, labels = twice()
    patients = np.concatenate([np.arange(60) // 2, 100 + np.arange(60)])
    data = Federation.dealt((images, labels), sites=3, patients=patients)
    experiment = load_experiment(*preset_and_overrides(data, None, None, {}, 0))
    federation = federation_of(experiment)
    whose = np.concatenate([np.arange(60) // 2] * 2)
    assert apart(federation.manifest, whose) == 0
    assert federation.copies(3) == (0, "")


def test_without_copies_a_split_is_as_it_was():
    pool = DataSet(torch.tensor(IMAGES), torch.tensor(CLASSES), ("a", "b", "c"), (0.5,), (0.2,))
    assert sites._together(pool, "folder", SplitSettings(), None) is None


def test_all_inputs_equal():
    data = Federation.dealt((np.zeros((9, 1, 8, 8), np.uint8), np.arange(9) % 3), sites=2)
    with pytest.raises(DataError, match="all 9 inputs are copies of one"):
        federation_of(load_experiment(*preset_and_overrides(data, None, None, {}, 0)))


def test_a_test_part_of_what_is_learned_from_is_said_in_the_result(capsys):
    """`Site(labelled=a, test=a)` is right by heart: nobody may take that for accuracy."""
    rows, labels = load_digits(return_X_y=True)
    a, b = (rows[:40], labels[:40]), (rows[40:80], labels[40:80])
    run = fedapp.run(Federation([Site(labelled=a, test=a), Site(labelled=b)]), settings=SHORT)
    assert run.summary[COPIES] == 40
    said = capsys.readouterr().out
    assert "40 of 40 test inputs have the same numbers as one that is learned from" in said
    assert "Too good            40 test inputs equal ones that are learned from" in said


def test_a_test_part_of_what_another_site_learns_from():
    images = Site(labelled=(IMAGES[:30], CLASSES[:30]), test=(IMAGES[30:], CLASSES[30:]))
    other = Site(labelled=(IMAGES[29:31], CLASSES[29:31]))
    data = Federation([images, other], classes=["a", "b", "c"])
    found, said = federation_of(
        load_experiment(*preset_and_overrides(data, None, None, {}, 0))
    ).copies(2)
    assert found == 1 and said.startswith("1 of 30 test images are exact copies of images that")


def test_a_manifest_that_has_copies_apart_is_said(tmp_path):
    images, labels = twice()
    data = Federation.dealt((images, labels), sites=2)
    split = np.where(np.arange(120) < 60, TRAIN, TEST).astype(np.uint8)
    held = Manifest("mine", 2, 3, 0, np.zeros(120, np.int32), split, np.ones(120, bool))
    held.save(tmp_path / "mine.safetensors")
    settings = {"split.manifest": str(tmp_path / "mine.safetensors")}
    experiment = load_experiment(*preset_and_overrides(data, None, None, settings, 0))
    assert federation_of(experiment).copies(2)[0] == 60


def test_rows_of_a_table_may_be_equal():
    """Two patients with the same numbers are not one: nothing is tied, and it is said as such."""
    rows = np.tile(RNG.normal(size=(30, 4)).astype(np.float32), (2, 1))
    pool = DataSet(
        torch.tensor(rows), torch.tensor(CLASSES), ("a", "b", "c"), (0.0,) * 4, (1.0,) * 4
    )
    assert sites._together(pool, "memory:x", SplitSettings(), None) is None
    assert describe_copies(2, 9, images=False).startswith(
        "2 of 9 test inputs have the same numbers"
    )
    assert describe_copies(0, 9, images=True) == ""


def test_one_class_alone_is_refused_on_every_path(tmp_path):
    """The command line had it 100 % right, Python refused it."""
    for number in range(8):
        path = tmp_path / "only" / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(IMAGES[number, 0]).save(path)
    folder = {"data.name": "folder", "data.root": str(tmp_path), "split.num_clients": 2}
    with pytest.raises(DataError, match="folder: 'only' is the only class, so every answer"):
        federation_of(load_experiment("digits_demo", folder))
    with pytest.raises(DataError, match="must be two or more"):
        Federation.dealt((IMAGES, np.zeros(60, np.int64)))


def test_labels_that_leave_a_number_out_make_no_class_of_it():
    for labels, absent in ((CLASSES + 1, 0), (CLASSES * 2, 1)):
        with pytest.raises(DataError, match=f"no input has label {absent}: number the classes"):
            Federation.dealt((IMAGES, labels))
        site = Site(labelled=(IMAGES, labels))
        with pytest.raises(DataError, match=f"no input has label {absent}: number the classes"):
            Federation([site])
    named = Federation.dealt((IMAGES, CLASSES * 2), classes=list("abcde"))
    assert named.classes == tuple("abcde")
    halves = [Site(labelled=(IMAGES, CLASSES % 2)), Site(labelled=(IMAGES, CLASSES))]
    assert Federation(halves).classes == ("0", "1", "2")  # one site may lack a class


def test_a_column_of_labels_is_no_finding_unless_it_is_named():
    column = (CLASSES % 2)[:, None]
    with pytest.raises(DataError, match=r"labels are \[n, 1\]: give classes as \[n\]"):
        Federation([Site(labelled=(IMAGES, column))])
    for labels in (column, CLASSES[:, None]):
        with pytest.raises(DataError, match=r"labels are \[n, 1\], must be \[n\]"):
            Federation.dealt((IMAGES, labels))
    found = Federation([Site(labelled=(IMAGES, column))], classes=["mass"])
    assert found.settings["data.findings"] == "mass"
