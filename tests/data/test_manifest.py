from dataclasses import replace

import numpy as np
import pytest
from safetensors import safe_open

from fedapp.core.errors import DataError
from fedapp.core.settings import SplitSettings
from fedapp.data.split.manifest import TEST, TRAIN, VAL, Manifest
from fedapp.data.split.partition import partition


def example():
    return Manifest(
        dataset="tiny",
        num_clients=2,
        num_classes=3,
        seed=5,
        site=np.array([0, 1, 0, 1, 0], np.int32),
        split=np.array([TRAIN, TRAIN, TRAIN, VAL, TEST], np.uint8),
        visible=np.array([True, False, False, True, True]),
    )


def test_the_digest_is_pinned_and_covers_every_field():
    manifest = example()
    assert manifest.digest() == "1e74cf012a3ada1c11b828b91f67b259daeec46934a4d65ea4378dc918e3b083"
    flipped = [
        replace(manifest, dataset="other"),
        replace(manifest, num_clients=3),
        replace(manifest, num_classes=4),
        replace(manifest, seed=6),
        replace(manifest, site=np.array([1, 1, 0, 1, 0], np.int32)),
        replace(manifest, split=np.array([TRAIN, TRAIN, TRAIN, TEST, TEST], np.uint8)),
        replace(manifest, visible=np.array([True, True, False, True, True])),
        replace(manifest, labels_sha256="ab"),
    ]
    assert len({m.digest() for m in (manifest, *flipped)}) == 9


def test_saved_and_loaded_is_the_same(tmp_path):
    split = SplitSettings(num_clients=20)
    manifest = partition(np.arange(300) % 4, split, 2**62, 'naïve, "quoted"')
    manifest.save(tmp_path / "m.safetensors")
    manifest.save(tmp_path / "m.safetensors")  # over an older one
    again = Manifest.load(tmp_path / "m.safetensors")
    assert again.digest() == manifest.digest()
    assert (again.seed, again.dataset) == (2**62, 'naïve, "quoted"')
    assert np.array_equal(again.site, manifest.site) and again.site.dtype == np.int32
    assert [p.name for p in tmp_path.iterdir()] == ["m.safetensors"]  # no half-written files
    with safe_open(tmp_path / "m.safetensors", framework="np") as file:  # others can read it
        assert set(file.keys()) == {"site", "split", "visible"}


def test_other_files_are_refused(tmp_path):
    with pytest.raises(DataError, match="no such manifest"):
        Manifest.load(tmp_path / "absent")
    with pytest.raises(DataError, match="not a whole manifest"):
        Manifest.load(tmp_path)
    text = tmp_path / "text"
    text.write_text("site,split\n0,1\n")
    with pytest.raises(DataError, match="not a whole manifest"):
        Manifest.load(text)


def test_a_manifest_edited_without_its_digest_is_refused(tmp_path):
    from safetensors.numpy import load_file, save_file

    path = tmp_path / "m.safetensors"
    example().save(path)
    with safe_open(path, framework="np") as file:
        header = file.metadata()
    arrays = load_file(path)
    arrays["visible"][1] = True  # one more label
    save_file(arrays, path, header)
    with pytest.raises(DataError, match="differs from its digest"):
        Manifest.load(path)


@pytest.mark.parametrize(("changes", "says"), [
    ({"site": np.zeros(5, np.int64)}, "site is int64"),
    ({"split": np.zeros(4, np.uint8)}, r"split is uint8 \[4\]"),
    ({"visible": np.ones(5, np.uint8)}, "visible is uint8"),
    ({"site": np.array([0, 1, 0, 2, 0], np.int32)}, r"no site in \[0, 1\]"),
    ({"site": np.array([0, 1, 0, -1, 0], np.int32)}, "no site"),
    ({"split": np.array([0, 0, 0, 1, 3], np.uint8)}, "0, 1 or 2"),
    ({"visible": np.zeros(5, bool)}, "val or test label is hidden"),
    ({"num_clients": 0}, "0 sites"),
    ({"num_classes": 0}, "0 classes"),
    ({"seed": -1}, "seed -1"),
])  # fmt: skip
def test_a_manifest_that_breaks_a_rule_is_refused(changes, says):
    with pytest.raises(DataError, match=says):
        replace(example(), **changes)
