"""Names of files and classes as computers write them: marks apart, other words, no ending."""

import unicodedata

import numpy as np
import pytest

from fedapp.data.folder import list_images
from fedapp.data.own import list_own
from fedapp.models.listing import list_images as asked
from tests.imagefiles import dicom
from tests.own import agreed, image, table, text

TOGETHER = "drüse"
APART = unicodedata.normalize("NFD", TOGETHER)
"""The same to look at, as a Mac writes it."""


def test_a_class_is_one_however_its_marks_are_written(tmp_path):
    """In folders, a table, what is agreed upon, a folder as a data set, and what is asked about."""
    assert TOGETHER != APART and agreed(classes=f"{APART}, two").class_names == (TOGETHER, "two")
    image(tmp_path / "a" / "labelled" / APART / "1.png")
    image(tmp_path / "a" / "labelled" / TOGETHER / "2.png", 9)
    listing = list_own(tmp_path / "a", (TOGETHER, "two"))
    assert listing.faults == () and {e.label for e in listing.entries} == {TOGETHER}
    assert {one.label for one in asked(tmp_path / "a")} == {TOGETHER}
    assert list_images(tmp_path / "a" / "labelled").classes == (TOGETHER,)
    table(tmp_path / "b", f"1.png,{APART}", f"2.png,{TOGETHER}")
    listing = list_own(tmp_path / "b", (TOGETHER, "two"))
    assert listing.faults == () and {e.label for e in listing.entries} == {TOGETHER}


@pytest.mark.parametrize("on_disk", [TOGETHER, APART])
@pytest.mark.parametrize("written", [TOGETHER, APART])
def test_a_table_finds_its_files_however_their_marks_are_written(tmp_path, on_disk, written):
    image(tmp_path / f"{on_disk}.png")
    text(tmp_path, f"path,label,patient\n{written}.png,one,Jörg\n")
    [entry] = list_own(tmp_path, ("one",)).entries
    assert entry.path.is_file() and entry.name == f"{TOGETHER}.png"


def test_a_patient_is_one_however_the_marks_are_written(tmp_path):
    """Else the same patient's images could be in training and in testing."""
    table(tmp_path, f"1.png,one,{TOGETHER}", f"2.png,one,{APART}", header="path,label,group")
    assert {entry.group for entry in list_own(tmp_path, ("one",)).entries} == {TOGETHER}


@pytest.mark.parametrize(
    ("word", "part"),
    [("Training", "train"), ("valid", "val"), ("VALIDATION", "val"), ("testing", "test"),
     ("train", "train"), ("val", "val"), ("test", "test")],
)  # fmt: skip
def test_words_for_a_split(tmp_path, word, part):
    table(tmp_path, f"1.png,one,{word}", header="path,label,split")
    [entry] = list_own(tmp_path, ("one",)).entries
    assert entry.part == part


@pytest.mark.parametrize("word", ["dev", "held-out", "holdout", "eval", "0", "tset"])
def test_words_that_mean_several_things_are_refused_by_name(tmp_path, word):
    table(tmp_path, f"1.png,one,{word}", header="path,label,split")
    [fault] = list_own(tmp_path, ("one",)).faults
    assert str(fault).startswith(f"labels.csv, line 2: split '{word}': write train, val or test")


@pytest.mark.parametrize("folder", ["@eaDir", "__MACOSX", "#recycle", ".AppleDouble"])
def test_what_a_machine_adds_is_no_image(tmp_path, folder):
    """Thumbnails of a file server, and what a Mac puts into an archive, at whatever depth."""
    image(tmp_path / "labelled" / "one" / "1.png")
    for place in (tmp_path, tmp_path / "labelled", tmp_path / "labelled" / "one"):
        image(place / folder / "1.png")
        image(place / folder / "1.png.d" / "thumb.jpg")
        (place / "Thumbs.db").write_bytes(b"no image")
        (place / ".DS_Store").write_bytes(b"no image")
        image(place / "._1.png")
    listing = list_own(tmp_path, ("one",))
    assert [entry.name for entry in listing.entries] == ["labelled/one/1.png"]
    assert listing.faults == () and [one.name for one in asked(tmp_path)] == ["labelled/one/1.png"]
    found = list_images(tmp_path / "labelled")
    assert found.classes == ("one",) and len(found.files) == 1


def test_dicom_without_an_ending_is_an_image_everywhere(tmp_path):
    values = np.arange(64, dtype=np.uint16).reshape(8, 8)
    for name in ("IM0001", "1.2.840.113619"):
        dicom(tmp_path / "labelled" / "one" / name, values)
    text(tmp_path / "labelled", "path,label\none/IM0001,one\none/1.2.840.113619,one\n")
    assert len(list_own(tmp_path, ("one",)).entries) == 2
    assert len(list_own(tmp_path / "labelled" / "labels.csv", ("one",)).entries) == 2
    assert len(asked(tmp_path)) == 2 and len(list_images(tmp_path / "labelled").files) == 2
