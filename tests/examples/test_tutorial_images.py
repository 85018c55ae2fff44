"""The tutorial's hospitals: their images, labels and classes; digits in place of clothes."""

from collections import Counter

import pytest

from examples import tutorial_images
from examples.tutorial_images import LABELLED
from fedapp.core.errors import DataError
from fedapp.data.own import list_own
from fedapp.data.published import read_digits


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tutorial_images, "load_dataset", lambda *_, **__: read_digits())
    monkeypatch.setattr(tutorial_images, "IMAGES", 200)
    monkeypatch.setattr(tutorial_images, "NEW_IMAGES", 100)
    tutorial_images.main([str(tmp_path / "hospitals")])
    return tmp_path / "hospitals"


def test_hospitals_differ_and_share_no_image(folder):
    classes = tuple(map(str, range(10)))
    listings = {site: list_own(folder / site, classes) for site in LABELLED}
    files = []
    for site, labelled in LABELLED.items():
        assert not listings[site].faults and not listings[site].passed_over
        own = listings[site].entries
        known = Counter(entry.label for entry in own if entry.label)
        assert len(own) == 200 and known.total() == min(labelled, 200)
        files += [entry.path.name for entry in own]
    west = Counter(entry.label for entry in listings["west"].entries if entry.label)
    assert set(west.values()) == {6}
    north = [entry.label for entry in listings["north"].entries if entry.label]
    assert sum(label < "5" for label in north) / len(north) == pytest.approx(0.8, abs=0.01)
    files += [path.name for path in (folder / "new/images").iterdir()]
    assert len(files) == len(set(files)) == 700


def test_what_is_new_is_known_in_its_table_alone(folder):
    lines = (folder / "new/truth.csv").read_text().splitlines()
    assert lines[0] == "path,label" and len(lines) == 101
    labels = read_digits().labels
    for line in lines[1:]:
        path, label = line.split(",")
        assert (folder / "new" / path).is_file()
        assert int(label) == int(labels[int(path[len("images/") : -len(".png")])])


def test_what_is_there_stays_and_a_broken_start_is_mended(folder, capsys):
    (folder / "mine.txt").touch()
    tutorial_images.main([str(folder)])
    assert "stays as it is" in capsys.readouterr().out and (folder / "mine.txt").exists()
    (folder.parent / "other.unfinished").mkdir()
    tutorial_images.main([str(folder.parent / "other")])
    assert (folder.parent / "other/new").is_dir()


def test_without_the_images_it_says_so_in_a_line(tmp_path, monkeypatch):
    def absent(*_, **__):
        raise DataError("fashion_mnist: not found: put it there")

    monkeypatch.setattr(tutorial_images, "load_dataset", absent)
    with pytest.raises(SystemExit, match=r"^tutorial_images: fashion_mnist: not found: put"):
        tutorial_images.main([str(tmp_path / "hospitals")])
    assert not list(tmp_path.iterdir())
