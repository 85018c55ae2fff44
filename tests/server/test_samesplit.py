"""Two runs' splits: equal, of the same images with other labels visible, or not to be mixed."""

from dataclasses import replace

import numpy as np
import pytest

from fedapp.data.manifest import TEST, TRAIN, VAL, Manifest
from fedapp.ground.errors import RunError
from fedapp.server.samesplit import MANIFEST, check_same_split

FIRST = Manifest(
    dataset="digits",
    num_clients=2,
    num_classes=3,
    seed=0,
    site=np.array([0, 0, 0, 1, 1, 1], np.int32),
    split=np.array([TRAIN, VAL, TEST, TRAIN, TRAIN, TEST], np.uint8),
    visible=np.array([True, True, True, False, True, True]),
    labels_sha256="a" * 64,
)
OTHER_PART = np.array([TEST, VAL, TEST, TRAIN, TRAIN, TEST], np.uint8)
OTHER_SITE = np.array([0, 0, 0, 1, 0, 1], np.int32)


def check(folder, ours, theirs=FIRST):
    for name, manifest in (("earlier", theirs), ("new", ours)):
        (folder / name).mkdir()
        manifest.save(folder / name / MANIFEST)
    check_same_split(folder / "earlier", theirs.digest(), ours.digest(), folder / "new")


def test_equal_digests_need_no_file(tmp_path):
    check_same_split(tmp_path / "gone", FIRST.digest(), FIRST.digest(), tmp_path / "too")


@pytest.mark.parametrize("changes", [
    {"visible": FIRST.visible & False | (FIRST.split != TRAIN)},  # a new site's labels hidden
    {"visible": np.ones(6, np.bool_)},  # split.labels=all
    {"num_clients": 3},  # one more site, without images
    {"seed": 7},  # the same split, from another seed
    {"labels_sha256": ""},  # of an older file: unknown
])  # fmt: skip
def test_what_moves_no_image_may_differ(tmp_path, changes):
    check(tmp_path, replace(FIRST, **changes))


@pytest.mark.parametrize(("changes", "says"), [
    ({"split": OTHER_PART}, "1 of 3 test images here were for training there"),
    ({"site": OTHER_SITE}, "1 of 6 images have another site or part"),
    ({"labels_sha256": "b" * 64}, "the two are of other images"),
    ({"dataset": "mnist"}, "the two are of other images"),
])  # fmt: skip
def test_what_moves_images_is_refused_with_both_digests_and_the_remedy(tmp_path, changes, says):
    ours = replace(FIRST, **changes)
    with pytest.raises(RunError) as caught:
        check(tmp_path, ours)
    said = str(caught.value)
    assert f"its split is {FIRST.digest()[:12]}, here {ours.digest()[:12]}, and {says}; " in said
    saved = tmp_path / "earlier" / MANIFEST
    assert said.endswith(f"give that run's data.*, split.* and seed, or split.manifest={saved}")


@pytest.mark.parametrize("missing", ["earlier", "new"])
def test_without_a_manifest_different_digests_are_refused(tmp_path, missing):
    with pytest.raises(RunError, match=f"{missing} holds no {MANIFEST} to compare") as caught:
        check_without(tmp_path, missing)
    assert ("or split.manifest=" in str(caught.value)) == (missing == "new")


def check_without(folder, missing):
    there = {"earlier": "new", "new": "earlier"}[missing]
    (folder / there).mkdir()
    FIRST.save(folder / there / MANIFEST)
    check_same_split(folder / "earlier", "a" * 64, "b" * 64, folder / "new")
