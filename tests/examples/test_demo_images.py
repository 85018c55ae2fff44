"""The images of the demo: three sites that differ as the demo says, in layouts that are read."""

import pytest
from PIL import Image

from examples import demo_images
from fedapp.data.own import list_own
from fedapp.data.published import read_digits
from fedapp.experiment.config import load_experiment


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    demo_images.main([str(folder)])
    return folder


@pytest.fixture(scope="module")
def entries(folder):
    classes = load_experiment("digits_sites").data.class_names
    listings = {site: list_own(folder / site, classes) for site in demo_images.SITES}
    for listing in listings.values():
        assert not listing.faults and not listing.passed_over
    return {site: listing.entries for site, listing in listings.items()}


def test_every_digit_goes_to_one_site_with_its_own_label(entries):
    numbers = [int(entry.path.stem) for own in entries.values() for entry in own]
    digits = read_digits()
    assert sorted(numbers) == list(range(len(digits.labels)))
    for entry in (e for own in entries.values() for e in own if e.label):
        number = int(entry.path.stem)
        assert entry.label == str(int(digits.labels[number]))
    some = entries["west"][0]
    with Image.open(some.path) as image:
        assert image.tobytes() == digits.inputs[int(some.path.stem)].numpy().tobytes()


def test_the_sites_differ_in_labels_and_in_classes(entries):
    labelled = {site: [e for e in own if e.label] for site, own in entries.items()}
    assert len(labelled["north"]) == len(entries["north"])
    assert len(labelled["south"]) < 0.25 * len(entries["south"])
    assert {e.part for e in labelled["west"]} == {"test"}
    low = {site: sum(e.label < "5" for e in own) / len(own) for site, own in labelled.items()}
    assert low["north"] > 0.6 and low["south"] < 0.4 and 0.45 < low["west"] < 0.55


def test_a_second_start_changes_nothing_and_a_broken_one_is_mended(folder, tmp_path):
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    demo_images.main([str(folder)])
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    (tmp_path / "north/labelled/0").mkdir(parents=True)
    (tmp_path / "north/labelled/0/0.png").write_bytes(b"half an im")
    demo_images.main([str(tmp_path)])
    names = {path.relative_to(tmp_path) for path in tmp_path.rglob("*.png")}
    assert (tmp_path / "north/labelled/0/0.png").read_bytes() == (
        folder / "north/labelled/0/0.png"
    ).read_bytes()
    assert names == {path.relative_to(folder) for path in before if path.suffix == ".png"}
