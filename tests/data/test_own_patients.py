"""Patients of a site's own data: never in two parts; what is refused where they are unknown."""

import numpy as np
import pytest

from fedapp.core.settings import DataSettings, SplitSettings
from fedapp.data.own import list_agreed, list_own
from tests.own import CLASSES, agreed, image, read_site, table

PATTERN = r"/(p\d+)_"


def faults(data, pattern=""):
    return [str(fault) for fault in list_own(data, CLASSES, pattern).faults]


def folders(root, patients=6, images=3):
    """Each of some patients has images of two classes, no two of them alike."""
    for p in range(patients):
        for i in range(images):
            kind = f"labelled/{CLASSES[p % 2]}" if i else "unlabelled"
            image(root / kind / f"p{p}_{i}.png", 20 * p + i)
    return root


@pytest.mark.parametrize("given", ["column", "path"])
def test_a_patients_images_are_in_one_part(given, tmp_path):
    if given == "path":
        data, settings = folders(tmp_path, 12), agreed(patients=PATTERN)
    else:
        lines = [f"{p}-{i}.png,{CLASSES[p % 2]},p{p}" for p in range(12) for i in range(3)]
        table(tmp_path, *lines, header="path,label,patient")
        data, settings = tmp_path, agreed()
    [entries] = [list_own(data, CLASSES, settings.patients).entries]
    assert len({entry.group for entry in entries}) == 12
    split = SplitSettings(train_share=0.5, val_share=0.2)
    site = read_site(data, settings, split=split)
    each = 2 if given == "path" else 3  # labelled images of a patient
    assert len(site.test) and len(site.test) % each == 0 and len(site.val) % each == 0
    assert site.test_groups.bincount().tolist() == [each] * (len(site.test) // each)
    assert site.by_patient
    whose = {name: set(of.tolist()) for name, of in site.patients.items()}
    assert not whose["labelled"] & whose["test"] and whose["unlabelled"] <= whose["labelled"]
    assert len(set.union(*whose.values())) == 12


def test_a_pattern_for_paths_beside_vectors_is_a_fault_with_a_remedy(tmp_path):
    np.savez(tmp_path / "vectors.npz", ids=np.array(["a"]), vectors=np.zeros((1, 2)))
    settings = DataSettings(name="own", classes="one, two", vector_size=2)
    [fault] = list_agreed(tmp_path, settings, PATTERN).faults
    assert str(fault).endswith("take it out there; write the column 'patient' into vectors.npz")
    assert not list_agreed(tmp_path, settings).faults


def test_a_group_column_still_leaves_single_images_alone(tmp_path):
    lines = [f"{i}.png,one,{'p1' if i < 8 else ''}" for i in range(20)]
    table(tmp_path, *lines, header="path,label,group")
    assert faults(tmp_path) == []


def test_lines_without_a_patient_are_named(tmp_path):
    table(tmp_path, "a.png,one,p1", "b.png,two,", "c.png,two,p2", header="path,label,patient")
    assert faults(tmp_path) == [
        "labels.csv, line 3: b.png: the column patient is empty, so nobody knows whose it is: fill "
        "it in each line, or call it group"
    ]


def test_paths_that_do_not_match_are_named(tmp_path):
    image(folders(tmp_path) / "labelled" / "one" / "other.png", 99)
    assert faults(tmp_path, PATTERN) == [
        f"labelled/one/other.png: its path does not match the pattern of patients {PATTERN!r}, so "
        "nobody knows whose it is: rename the file as the others are, or correct the pattern"
    ]
    assert len(faults(tmp_path, r"()")) == 19  # an empty name is none


def test_one_patient_with_all_images_is_refused(tmp_path):
    table(tmp_path, "a.png,one,p1", "b.png,two,p1", "c.png,,p2", header="path,label,patient")
    rule = (
        "patient 'p1': all 2 labelled images are of this one, to learn from and to be tested on: "
        "add images of other patients, or correct the column or the pattern of patients"
    )
    assert faults(tmp_path) == [rule]
    assert faults(folders(tmp_path / "b", patients=1), PATTERN) == [rule.replace("p1", "p0")]


def test_two_ways_at_once_are_refused(tmp_path):
    table(tmp_path, "a.png,one,p1,g", header="path,label,patient,group")
    assert "columns patient and group: keep one" in faults(tmp_path)[0]
    table(tmp_path, "a.png,one,p1", "b.png,one,p2", header="path,label,patient")
    assert "leave one of the two out" in faults(tmp_path, r"(.)")[0]


def test_a_split_of_the_sites_own_that_parts_a_patient_is_refused(tmp_path):
    lines = "p1_a.png,one,train", "p1_b.png,one,test", "p2_a.png,two,train"
    table(tmp_path, *lines, header="path,label,split")
    [fault] = faults(tmp_path, r"^(p\d)_")
    assert "group 'p1': is in train and test" in fault
