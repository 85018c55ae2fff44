"""Patients of a split data set: at one site, in one part; each of one input, they are inputs."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedapp.data.arrays import read_arrays
from fedapp.data.datasets import load_dataset
from fedapp.data.split.groups import check_patients, numbered
from fedapp.data.split.manifest import TEST as TESTS
from fedapp.data.split.partition import partition
from fedapp.ground.errors import DataError
from fedapp.ground.settings import DataSettings, SplitSettings
from fedapp.methods.averaging.fedavg import FedAvg
from fedapp.site.federation import federation_of
from tests import arrays
from tests.methods.conformance import toy
from tests.own import image
from tests.small import small


def test_numbers_by_hand():
    assert numbered(["b", "a", "b", "c"], 4).tolist() == [1, 0, 1, 2]
    assert numbered([10, 2, 10], 3).tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["a", "b"], "patients are 2, must be 3"),
        (["a", "", None], "input 1 and 1 more have no patient"),
        ([1.0, float("nan"), 2.0], "input 1 and 0 more have no patient"),
        (["a", "a", "a"], "all 3 inputs are of one patient"),
    ],
)
def test_what_is_refused(given, says):
    with pytest.raises(DataError, match=says):
        numbered(given, 3)


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
