"""The way to a person who labels images, and back: choice, Label Studio's files, the table."""

import csv
import io
import json
from xml.etree import ElementTree

import pytest
from PIL import Image
from typer.testing import CliRunner

from fedapp.cli import app
from fedapp.data.own.listing import list_own
from fedapp.ground.errors import FedAppError
from tests.models.made import MIXTURE, pictures, written
from tests.own import table, text

CLASSES = ["class 0", "class 1", "class 2", "class 3"]


def invoked(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)))


def refused(*arguments):
    result = invoked(*arguments)
    assert isinstance(result.exception, FedAppError), result.output
    assert "\n" not in str(result.exception)
    return str(result.exception)


def rows(path):
    return list(csv.DictReader(io.StringIO(path.read_text())))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A model, and thirty images, of which three have a label."""
    root = tmp_path_factory.mktemp("label")
    written(root / "model", weights=MIXTURE)
    folder = root / "data" / "unlabelled"
    folder.mkdir(parents=True)
    for number, image in enumerate(pictures(27)):
        Image.fromarray(image[0].numpy()).save(folder / f"image {number:02}.png")
    for number in range(3):
        place = root / "data" / "labelled" / "class 1" / f"{number}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8), number).save(place)
    return root


@pytest.fixture(scope="module")
def chosen(site):
    out = site / "out"
    result = invoked(
        "next-to-label", site / "model", site / "data/unlabelled", "--count", 5, "-o", out
    )
    assert result.exit_code == 0, result.output
    assert "5 of 27 images without a label chosen" in result.stdout
    return out


def exported(chosen, labels):
    """What Label Studio exports: each task with the annotations made of it."""
    found = json.loads((chosen / "tasks.json").read_text())
    return [
        {**task, "id": number, "annotations": [
            {"was_cancelled": label is None, "result": [] if label is None else [
                {"from_name": "class", "to_name": "image", "type": "choices",
                 "value": {"choices": [label]}}]}
            for label in each]}
        for number, (task, each) in enumerate(zip(found, labels, strict=True))
    ]  # fmt: skip


# --- there ----------------------------------------------------------------------------------------


def test_the_images_whose_first_class_leads_least_come_first(site, chosen, tmp_path):
    invoked(
        "next-to-label", site / "model", site / "data/unlabelled", "--count", 99, "-o", tmp_path
    )
    every, found = rows(tmp_path / "next.csv"), rows(chosen / "next.csv")
    leads = [float(row["lead"]) for row in every]
    assert len(every) == 27 and leads == sorted(leads) and leads[0] < leads[-1]
    assert all(0 <= float(row["lead"]) <= float(row["probability"]) for row in every)
    assert found == every[:5]
    assert [row["rank"] for row in found] == list("12345")
    assert len({row["file"] for row in found}) == 5


def test_tasks_are_label_studios(site, chosen):
    """Its documented format for pre-annotations, and an interface that their names fit."""
    found = json.loads((chosen / "tasks.json").read_text())
    view = ElementTree.fromstring((chosen / "interface.xml").read_text())
    choices = view.find("Choices")
    assert [one.get("value") for one in choices] == CLASSES
    for task, row in zip(found, rows(chosen / "next.csv"), strict=True):
        name = row["file"].replace(" ", "%20")
        assert task["data"]["image"] == f"/data/local-files/?d={name}"
        [said] = task["predictions"]
        [result] = said["result"]
        assert 0 <= said["score"] <= 1
        assert (result["from_name"], result["to_name"]) == (
            choices.get("name"), view.find("Image").get("name"),
        )  # fmt: skip
        assert result["type"] == "choices" and result["value"] == {"choices": [row["class"]]}


def test_the_contact_sheet_shows_every_image(chosen):
    with Image.open(chosen / "contact_sheet.png") as sheet:
        assert sheet.size == (12 + 5 * 144, 12 + 192)
        assert len(sheet.convert("L").getcolors()) > 50


def test_images_with_a_label_are_passed_over(site, tmp_path):
    table(tmp_path, "a.png,class 1", "b.png,", "c.png,")
    result = invoked(
        "next-to-label", site / "model", tmp_path / "labels.csv", "-o", tmp_path / "out"
    )
    assert "images with a label, passed over: 1" in result.stdout
    assert {row["file"] for row in rows(tmp_path / "out/next.csv")} == {"b.png", "c.png"}
    result = invoked("next-to-label", site / "model", site / "data", "-o", tmp_path / "all")
    assert "images with a label, passed over: 3" in result.stdout, "by their folder too"
    text(tmp_path, "path,label\na.png,class 1\n")
    assert "no image without a label" in refused(
        "next-to-label", site / "model", tmp_path / "labels.csv", "-o", tmp_path / "out"
    )


# --- and back -------------------------------------------------------------------------------------


def test_images_that_label_studio_could_not_serve_are_refused_before_the_work(site, tmp_path):
    far = site / "data/unlabelled/image 00.png"
    (tmp_path / "list.csv").write_text(f"path\n{far}\n")
    (tmp_path / "in").mkdir()
    (tmp_path / "in/list.csv").write_text("path\n../beside.png\n")
    Image.new("L", (8, 8)).save(tmp_path / "beside.png")
    for listed in (tmp_path / "list.csv", tmp_path / "in/list.csv"):
        said = refused("next-to-label", site / "model", listed, "-o", tmp_path / "out")
        assert f"not below {listed.parent}, which Label Studio is to serve" in said
    link = tmp_path / "in" / "link.png"
    link.symlink_to(far)
    (tmp_path / "in/list.csv").write_text("path\nlink.png\n")
    done = invoked(
        "next-to-label", site / "model", tmp_path / "in/list.csv", "-o", tmp_path / "out"
    )
    assert done.exit_code == 0, done.output
    assert "?d=link.png" in (tmp_path / "out/tasks.json").read_text()


def test_labels_come_back_as_the_sites_table(site, chosen, tmp_path):
    """One label, two equal ones, two that differ, none, a cancelled one."""
    labels = [["class 2"], ["class 0"] * 2, ["class 0", "class 1"], [], [None]]
    export, out = tmp_path / "export.json", site / "data" / "new.csv"
    export.write_text(json.dumps(exported(chosen, labels)))
    result = invoked("labels", export, "--data", site / "data", "-o", out)
    assert result.exit_code == 0, result.output
    assert "2 new labels" in result.stdout and result.stdout.count("left out") == 3
    listing = list_own(out, CLASSES)
    assert listing.faults == () and len(listing.entries) == 30
    found = {entry.name: entry.label for entry in listing.entries if entry.label}
    first, second = (f"unlabelled/{r['file']}" for r in rows(chosen / "next.csv")[:2])
    old = {f"labelled/class 1/{number}.png": "class 1" for number in range(3)}
    assert found == {**old, first: "class 2", second: "class 0"}
    assert "is there already" in refused("labels", export, "--data", site / "data", "-o", out)


@pytest.mark.parametrize("column", ["group", "patient"])
def test_groups_and_other_labels_stay(tmp_path, column):
    header = f"path,label,{column}"
    table(tmp_path, "a.png,one,p1", "b.png,,p2", "c.png,two,p3", header=header)
    export = tmp_path / "export.json"
    export.write_text(json.dumps([{
        "data": {"file": str((tmp_path / "b.png").resolve())},
        "annotations": [{"result": [{"from_name": "class", "value": {"choices": ["two"]}}]}],
    }]))  # fmt: skip
    data, out = tmp_path / "labels.csv", tmp_path / "new.csv"
    assert invoked("labels", export, "--data", data, "-o", out).exit_code == 0
    assert out.read_text() == f"{header}\na.png,one,p1\nb.png,two,p2\nc.png,two,p3\n"


@pytest.mark.parametrize(("content", "says"), [
    ("no JSON", "no export of tasks of `fedapp next-to-label`"),
    ('[{"image": "a.png", "choice": "one"}]', "export as JSON, not JSON-MIN"),
    ('[{"data": {"file": "a.png"}, "annotations": ["one"]}]', "AttributeError"),
    ('[{"data": {"file": "/elsewhere/a.png"}, "annotations": [{"result": [{"from_name": "class",'
     ' "value": {"choices": ["one"]}}]}]}]', "/elsewhere/a.png: not one of the images"),
])  # fmt: skip
def test_what_is_no_export_is_refused(tmp_path, content, says):
    table(tmp_path, "a.png,one")
    (tmp_path / "export.json").write_text(content)
    assert says in refused(
        "labels", tmp_path / "export.json", "--data", tmp_path, "-o", tmp_path / "new.csv"
    )


def test_a_table_away_from_its_images_is_refused(tmp_path):
    table(tmp_path / "data", "a.png,one")
    (tmp_path / "export.json").write_text("[]")
    assert "a table lies beside its images" in refused(
        "labels", tmp_path / "export.json", "--data", tmp_path / "data", "-o", tmp_path / "new.csv"
    )
