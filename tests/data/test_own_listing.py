"""How a site may write down its data, and what is said of every way that it may not."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedapp.data.own import Kind, OwnDataError, list_own
from tests.own import image, table, text

CLASSES = ("normal", "tumour")


def faults(data):
    return [str(fault) for fault in list_own(data, CLASSES).faults]


def names(data):
    listing = list_own(data, CLASSES)
    assert listing.faults == ()
    return [(entry.name, entry.label) for entry in listing.entries]


# --- folders --------------------------------------------------------------------------------------


def test_folders_by_class_and_unlabelled_images(tmp_path):
    image(tmp_path / "unlabelled" / "u.png")
    image(tmp_path / "labelled" / "tumour" / "b.JPG")
    image(tmp_path / "labelled" / "tumour" / "a.png")
    image(tmp_path / "labelled" / "normal" / "z.jpeg")
    image(tmp_path / "labelled" / "normal" / ".hidden.png")
    (tmp_path / "labelled" / "normal" / "z.nii").touch()
    (tmp_path / "README.txt").touch()
    assert names(tmp_path) == [
        ("labelled/normal/z.jpeg", "normal"),
        ("labelled/tumour/a.png", "tumour"),
        ("labelled/tumour/b.JPG", "tumour"),
        ("unlabelled/u.png", ""),
    ]
    assert list_own(tmp_path, CLASSES).passed_over == ("README.txt", "labelled/normal/z.nii")


def test_without_an_agreed_list_any_class_will_do(tmp_path):
    image(tmp_path / "labelled" / "zebra" / "u.png")
    assert [entry.label for entry in list_own(tmp_path, ()).entries] == ["zebra"]


@pytest.mark.parametrize(("path", "said"), [
    ("labelled/Tumour/a.png",
     "labelled/Tumour: label 'Tumour' is not in data.classes (normal, tumour): did you mean "
     "'tumour'?"),
    ("labelled/zebra/a.png",
     "labelled/zebra: label 'zebra' is not in data.classes (normal, tumour): rename it, or "
     "have the list changed"),
    ("unlabeled/a.png",
     "unlabeled/: only labelled and unlabelled are read here: did you mean 'unlabelled'?"),
    ("train/normal/a.png",
     "train/: only labelled and unlabelled are read here: move it elsewhere"),
    ("north/labelled/normal/a.png",
     "north/: only labelled and unlabelled are read here: it is laid out as a site's own data: "
     "name that folder instead"),
    ("labelled/normal/patient1/a.png",
     "labelled/normal/patient1/: a folder inside, which is not read: move its images up, or "
     "write a labels.csv with a column group"),
])  # fmt: skip
def test_what_folders_may_not_be(tmp_path, path, said):
    image(tmp_path / "labelled" / "normal" / "0.png")
    image(tmp_path / path)
    assert faults(tmp_path) == [said]


def test_links_may_stay_inside_but_not_lead_out(tmp_path):
    kept = image(tmp_path / "data" / "labelled" / "normal" / "a.png")
    (tmp_path / "data" / "unlabelled").mkdir()
    (tmp_path / "data" / "unlabelled" / "inside.png").symlink_to(kept)
    assert len(names(tmp_path / "data")) == 2
    (tmp_path / "entry").symlink_to(tmp_path / "data")  # the data's folder itself may be a link
    assert len(names(tmp_path / "entry")) == 2
    stranger = image(tmp_path / "other" / "b.png")
    (tmp_path / "data" / "unlabelled" / "file.png").symlink_to(stranger)
    (tmp_path / "data" / "labelled" / "tumour").symlink_to(stranger.parent)
    (tmp_path / "data" / "unlabelled" / "loop.png").symlink_to("loop.png")
    said = faults(tmp_path / "data")
    out = ": leads out of the data's folder: copy the images into the folder"
    assert said[:2] == [f"labelled/tumour{out}", f"unlabelled/file.png{out}"]
    assert (
        said[2] == "unlabelled/loop.png: no file: put there an image as PNG, JPEG, TIFF or DICOM "
        "(.png, .jpg, .jpeg, .tif, .tiff, .dcm)"
    )


@pytest.mark.parametrize("made", ["", "x", "x/labelled", "x/notes.txt"])
def test_nothing_there(tmp_path, made):
    if made.endswith(".txt"):
        (tmp_path / "x").mkdir()
        (tmp_path / made).touch()
    elif made:
        (tmp_path / made).mkdir(parents=True)
    [said] = faults(tmp_path / "x")
    assert ("no images, that is no" if made else "no such folder or CSV file") in said


def test_neither_folder_nor_table(tmp_path):
    [said] = faults(image(tmp_path / "a.png"))
    assert "neither a folder nor a CSV file: name one of the two" in said


def test_two_ways_at_once(tmp_path):
    image(tmp_path / "labelled" / "normal" / "0.png")
    file = table(tmp_path, "a.png,normal")
    assert (
        "holds both labels.csv and labelled/: keep one, or name the CSV file" in faults(tmp_path)[0]
    )
    assert names(file) == [("a.png", "normal")]


# --- tables ---------------------------------------------------------------------------------------


def test_a_table_and_its_columns_in_any_order(tmp_path):
    table(tmp_path, "b.png,,p2,", "a.png,tumour,p1,TEST", header="Path, label ,group,split")
    [a, b] = list_own(tmp_path, CLASSES).entries
    assert (a.name, a.label, a.part, a.group) == ("a.png", "tumour", "test", "p1")
    assert (b.name, b.label, b.part, b.group) == ("b.png", "", "train", "p2")
    assert a.path.is_file()


def test_a_class_as_our_own_csv_writes_it(tmp_path):
    """`fedapp predict` writes `'+ve`, so that no spreadsheet computes it."""
    table(tmp_path, "a.png,'+ve", "b.png,+ve", "c.png,'-ve")
    listing = list_own(tmp_path, ("+ve", "-ve"))
    assert listing.faults == ()
    assert [entry.label for entry in listing.entries] == ["+ve", "+ve", "-ve"]


def test_a_table_as_excel_writes_it(tmp_path):
    for name in ("scans/a.png", "b, c.png"):
        image(tmp_path / name)
    text(tmp_path, '\ufeffpath,label\r\nscans/a.png,tumour\r\n\r\n"b, c.png",\r\n')
    assert names(tmp_path) == [("b, c.png", ""), ("scans/a.png", "tumour")]


HEADER = "path,label\n"


@pytest.mark.parametrize(("content", "said"), [
    ("", "labels.csv: empty: begin it with the line path,label"),
    ("\n\n", "labels.csv: empty: begin it with the line path,label"),
    ("a.png,normal\n", "line 1: no header, but an image: put a line path,label before the first"),
    ("path;label\na.png;normal\n", "line 1: fields are separated by ';': save the file with"),
    ("path\tlabel\na.png\tnormal\n", r"line 1: fields are separated by '\t': save the file with"),
    ("path,lable\n", "line 1: no column 'label': name it; columns must be path, label or bag and"),
    ("path,label,gruop\n", "line 1: column 'gruop': did you mean 'group'?"),
    ("path,label,age\n", "line 1: column 'age': remove it; columns must be path, label or bag and"),
    ("path,label,label\n", "line 1: a column stands twice: keep one; columns must be path, label"),
    (HEADER + "a.png\n", "line 2: 1 fields, the header has 2: write one for each column; put a"),
    (HEADER + 'a.png,"nor"mal\n', "line 2: not CSV (',' expected after '\"'): put fields with"),
    ((HEADER + "a.png,normal\n").encode("utf-16"), "not UTF-8 text: save it as 'CSV UTF-8 (comma"),
    ((HEADER + "a.png,höhle\n").encode("cp1252"), "not UTF-8 text: save it as 'CSV UTF-8 (comma"),
    (HEADER + "a.png,\0\n", "labels.csv: not UTF-8 text: save it as 'CSV UTF-8 (comma delimited)'"),
    (HEADER + ",normal\n", "line 2: no path: name the image's file or remove the line"),
    (HEADER + "scans\\a.png,normal\n", "scans\\a.png: a Windows path: write it from data/ on with"),
    (HEADER + "C:/a.png,normal\n", "line 2: C:/a.png: a Windows path: write it from data/ on with"),
    (HEADER + "/etc/passwd.png,normal\n", "/etc/passwd.png: an absolute path: write it relative"),
    (HEADER + "../out.png,normal\n", "../out.png: leads out of the data's folder: copy the images"),
    (HEADER + "link.png,normal\n", "link.png: leads out of the data's folder: copy the images"),
    (HEADER + "gone.png,normal\n", "gone.png: no such file: correct the path or remove the line"),
    (HEADER + "labels.csv,normal\n", "labels.csv: not an image as PNG, JPEG, TIFF or DICOM (.png,"),
    (HEADER + "a.png,normal\n./a.png,tumour\n", "line 3: a.png stands twice: keep one line"),
    (HEADER + "a.png,tumor\nb.png,tumor\n", "line 2: label 'tumor' is not in data.classes"),
    ("path,label,split\na.png,normal,dev\n", "line 2: split 'dev': write train, val or test; "),
    ("path,label,split\na.png,,test\n", "line 2: split 'test' of an image without a label: write "),
    ("path,label,split\na.png,normal,train\nb.png,normal,\n", "b.png: labelled, but without a"),
    ("path,label,split,group\na.png,normal,train,p1\nb.png,normal,test,p1\n",
     "labels.csv: group 'p1': is in train and test: give all its images one split, unlabelled"),
    ("path,label,split,group\na.png,,,p1\nb.png,normal,test,p1\n", "'p1': is in train and test:"),
])  # fmt: skip
def test_what_a_table_may_not_be(tmp_path, content, said):
    data = tmp_path / "data"
    for name in ("a.png", "b.png", "scans/a.png"):
        image(data / name)
    image(tmp_path / "out.png")
    (data / "link.png").symlink_to(tmp_path / "out.png")
    text(data, content)
    [found] = faults(data)
    assert found.startswith("labels.csv") and said in found and "\n" not in found


def test_a_path_that_no_file_system_takes(tmp_path):
    text(tmp_path, HEADER + f"{'x' * 5000}.png,normal\n")
    [said] = faults(tmp_path)
    assert said.endswith("no such file: correct the path or remove the line")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_read(tmp_path):
    folder = image(tmp_path / "labelled" / "normal" / "a.png").parent
    folder.chmod(0)
    try:
        [said] = faults(tmp_path)
    finally:
        folder.chmod(0o700)
    assert "cannot be listed (Permission denied): let the user who runs the node" in said


@given(st.text(max_size=60) | st.binary(max_size=60))
def test_any_text_is_listed_or_refused_in_words(tmp_path_factory, content):
    folder = tmp_path_factory.mktemp("any")
    image(folder / "a.png")
    body = content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass")
    text(folder, HEADER.encode() + body)
    listing = list_own(folder, CLASSES)
    assert all(str(fault).count(": ") >= 2 for fault in listing.faults)
    assert all(entry.path.is_file() for entry in listing.entries)


# --- what the server is told ----------------------------------------------------------------------


def test_the_server_is_told_the_rule_and_no_name_of_a_file(tmp_path):
    text(tmp_path, HEADER + "Smith_John.png,normal\nMiller.png,normal\n")
    error = OwnDataError("north", list_own(tmp_path, CLASSES).faults)
    assert "Smith_John.png: no such file" in str(error)
    assert "(and 1 more; `fedapp check` lists them)" in str(error)
    assert "Smith" not in error.for_server and "Miller" not in error.for_server
    assert Kind.FILE.value in error.for_server and "'north'" in error.for_server
