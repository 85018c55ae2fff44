"""Which images a person labels first."""

import pytest
from PIL import Image

from tests.models.made import MIXTURE, pictures, written
from tests.own import table, text
from tests.tools.commands import invoked, refused, rows


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
    out = site / "next.csv"
    result = invoked(
        "next-to-label", site / "model", site / "data/unlabelled", "--count", 5, "-o", out
    )
    assert result.exit_code == 0, result.output
    assert "5 of 27 images without a label chosen" in result.stdout
    return out


def test_the_images_whose_first_class_leads_least_come_first(site, chosen, tmp_path):
    invoked(
        "next-to-label",
        site / "model",
        site / "data/unlabelled",
        "--count",
        99,
        "-o",
        tmp_path / "all.csv",
    )
    every, found = rows((tmp_path / "all.csv").read_text()), rows(chosen.read_text())
    leads = [float(row["lead"]) for row in every]
    assert len(every) == 27 and leads == sorted(leads) and leads[0] < leads[-1]
    assert all(0 <= float(row["lead"]) <= float(row["probability"]) for row in every)
    assert found == every[:5]
    assert [row["rank"] for row in found] == list("12345")
    assert len({row["file"] for row in found}) == 5


def test_images_with_a_label_are_passed_over(site, tmp_path):
    table(tmp_path, "a.png,class 1", "b.png,", "c.png,")
    result = invoked(
        "next-to-label", site / "model", tmp_path / "labels.csv", "-o", tmp_path / "out.csv"
    )
    assert "images with a label, ignored: 1" in result.stdout
    assert {row["file"] for row in rows((tmp_path / "out.csv").read_text())} == {"b.png", "c.png"}
    result = invoked("next-to-label", site / "model", site / "data", "-o", tmp_path / "all.csv")
    assert "images with a label, ignored: 3" in result.stdout, "by their folder too"
    text(tmp_path, "path,label\na.png,class 1\n")
    assert "no image without a label" in refused(
        "next-to-label", site / "model", tmp_path / "labels.csv", "-o", tmp_path / "out.csv"
    )
