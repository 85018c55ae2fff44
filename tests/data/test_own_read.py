"""From files to a site's data: as agreed by all, whatever the files look like."""

import pytest
import torch
from PIL import Image

from fedapp.core.errors import ConfigError, DataError
from fedapp.core.settings import SplitSettings
from fedapp.data import folder
from fedapp.data.own import OwnDataError, OwnSites, Place, simulated_places
from tests.own import NAMES, agreed, image, read_site, table, three_sites

CPU = torch.device("cpu")


def site(data, name="north", number=1, seed=0, **changes):
    return read_site(data, agreed(**changes), name, number, seed=seed)


def test_a_site_of_three_ways_to_write(tmp_path):
    three_sites(tmp_path)
    for k, name in enumerate(NAMES):
        data = site(tmp_path / name, name, k)
        assert (data.site, data.name, data.num_classes, data.audit) == (k, name, 3, None)
        assert data.labelled.shape[1:] == (1, 8, 8) and data.labelled.dtype == torch.uint8
        for images, labels in (
            (data.labelled, data.labels), (data.val, data.val_labels), (data.test, data.test_labels)
        ):  # fmt: skip
            assert len(images) == len(labels) > 0 and labels.dtype == torch.int64
        assert len(data.unlabelled) > 0


def test_labels_and_images_belong_together(tmp_path):
    table(tmp_path, "c.png,two", "a.png,nought", "b.png,one", "u.png,")  # levels 0, 1, 2, 3
    data = site(tmp_path)
    level = {"nought": 1, "one": 2, "two": 0}
    found = {}
    for images, labels in (
        (data.labelled, data.labels), (data.val, data.val_labels), (data.test, data.test_labels)
    ):  # fmt: skip
        pairs = zip(images[:, 0, 0, 0].tolist(), labels.tolist(), strict=True)
        found |= {("nought", "one", "two")[label]: pixel for pixel, label in pairs}
    assert found == level
    assert data.unlabelled[:, 0, 0, 0].tolist() == [3]


@pytest.mark.parametrize("channels", [1, 3])
def test_grey_and_colour_files_become_what_was_agreed(tmp_path, channels):
    image(tmp_path / "unlabelled" / "a.png", 90, "L", (30, 20))
    image(tmp_path / "unlabelled" / "b.jpg", 90, "RGB", (8, 8))
    data = site(tmp_path, channels=channels, mean=0.25, std=0.5)
    assert data.unlabelled.shape == (2, channels, 8, 8)
    assert (data.unlabelled.float() - 90).abs().max() <= 2  # JPEG
    assert (data.mean, data.std) == ((0.25,) * channels, (0.5,) * channels)
    assert len(data.labels) == len(data.val) == len(data.test) == 0
    assert data.labelled.shape == (0, channels, 8, 8)


def test_the_same_files_are_the_same_data_wherever_they_lie(tmp_path):
    one = site(three_sites(tmp_path / "a") / "north")
    two = site(three_sites(tmp_path / "b" / "c") / "north" / "labels.csv")
    assert one.digest == two.digest and one.fingerprint == two.fingerprint
    assert site(tmp_path / "a" / "north", seed=5).digest != one.digest


def test_the_digest_covers_test_images(tmp_path):
    before = site(three_sites(tmp_path) / "west")
    with (tmp_path / "west" / "labels.csv").open("a") as file:
        file.write("new.png,one,test\n")
    image(tmp_path / "west" / "new.png")
    after = site(tmp_path / "west")
    assert after.fingerprint == before.fingerprint and after.digest != before.digest


def test_equal_pixels_in_other_files_are_in_one_part(tmp_path):
    """The copy is a PNG of the same pixels with other bytes; both labelled, and of two patients."""
    lines = [f"{k}.png,one,p{k}" for k in range(12)]
    copies = [f"copy-{k}.png,one,q{k}" for k in range(12)]
    table(tmp_path, *lines, *copies, header="path,label,group")
    for k in range(12):
        whole, copy = tmp_path / f"{k}.png", tmp_path / f"copy-{k}.png"
        with Image.open(whole) as opened:
            opened.save(copy, compress_level=0)
        assert copy.read_bytes() != whole.read_bytes()
    data = site(tmp_path)
    parts = [set(p[:, 0, 0, 0].tolist()) for p in (data.labelled, data.val, data.test)]
    assert all(parts) and sum(map(len, parts)) == 12
    assert len(data.labelled) + len(data.val) + len(data.test) == 24


def test_no_file_is_decoded_twice(tmp_path, monkeypatch):
    seen, decode = [], folder.decode
    monkeypatch.setattr(folder, "decode", lambda file, *r: seen.append(file) or decode(file, *r))
    site(three_sites(tmp_path) / "north")
    assert len(seen) == len(set(seen)) == 120


def test_a_damaged_image_is_named_to_the_site_and_not_to_the_server(tmp_path):
    table(tmp_path, "Smith.png,one")
    (tmp_path / "Smith.png").write_bytes(b"\x89PNG\r\n")
    with pytest.raises(OwnDataError) as caught:
        site(tmp_path)
    assert str(caught.value).startswith("site north: Smith.png: damaged or not an image: ")
    assert str(caught.value).endswith(": replace it by a whole copy or remove it")
    assert "Smith" not in caught.value.for_server


def test_a_number_that_is_no_site_here(tmp_path):
    with pytest.raises(DataError, match=r"site 3: not one of sites \[1\]"):
        OwnSites({1: Place("a", tmp_path)}, agreed(), SplitSettings(), 0, CPU).site(3)


# --- sites of one machine -------------------------------------------------------------------------


def test_sites_of_one_machine_are_the_folders_by_name_or_those_listed(tmp_path):
    for name in ("b", "a", "c", ".cache"):
        (tmp_path / name).mkdir()
    (tmp_path / "notes.txt").touch()
    by_name = simulated_places(tmp_path, agreed(sites=""), 3)
    assert [by_name[k].name for k in range(3)] == ["a", "b", "c"]
    listed = simulated_places(tmp_path, agreed(sites="c, a"), 2)
    assert listed == {0: Place("c", tmp_path / "c"), 1: Place("a", tmp_path / "a")}


@pytest.mark.parametrize(("sites", "count", "error", "said"), [
    ("a, x", 2, DataError, "no folder 'x', which data.sites names"),
    ("", 2, ConfigError, "holds folders for 3 sites, split.num_clients = 2"),
])  # fmt: skip
def test_other_folders_than_sites(tmp_path, sites, count, error, said):
    for name in "abc":
        (tmp_path / name).mkdir()
    with pytest.raises(error, match=said):
        simulated_places(tmp_path, agreed(sites=sites), count)
    with pytest.raises(DataError, match="cannot be listed"):
        simulated_places(tmp_path / "gone", agreed(), 3)


# --- settings -------------------------------------------------------------------------------------
