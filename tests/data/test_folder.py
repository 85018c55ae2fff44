import numpy as np
import pytest
import torch
from PIL import Image

from fedapp.core.errors import ConfigError, DataError
from fedapp.core.settings import DataSettings
from fedapp.data.datasets import load_dataset
from fedapp.data.folder import list_images
from tests.own import image as write


def load(root, subset=0, image_size=0, seed=0):
    settings = DataSettings(name="folder", root=str(root), subset=subset, image_size=image_size)
    return load_dataset(settings, seed)


def test_one_folder_per_class(tmp_path):
    write(tmp_path / "dog" / "b.PNG", 20)
    write(tmp_path / "dog" / "a.png", 10)
    write(tmp_path / "cat" / "z.jpg", 30)
    write(tmp_path / "cat" / "y.jpeg", 40)
    write(tmp_path / "cat" / ".hidden.png", 50)
    write(tmp_path / ".thumbs" / "t.png", 60)
    (tmp_path / "dog" / "notes.txt").write_text("no image")
    (tmp_path / "empty").mkdir()
    images = load(tmp_path)
    assert images.classes == ("cat", "dog")
    assert images.labels.tolist() == [0, 0, 1, 1]
    assert images.inputs.shape == (4, 1, 12, 10)
    assert images.inputs[:, 0, 0, 0].tolist() == [40, 30, 10, 20]  # by class, then by name
    assert images.mean == pytest.approx((25 / 255,))


def test_train_and_test_are_pooled(tmp_path):
    write(tmp_path / "test" / "cat" / "0.png", 1)
    write(tmp_path / "train" / "cat" / "0.png", 2)
    write(tmp_path / "train" / "dog" / "0.png", 3)
    images = load(tmp_path)
    assert images.classes == ("cat", "dog")
    assert sorted(zip(images.inputs[:, 0, 0, 0].tolist(), images.labels.tolist(), strict=True)) == [
        (1, 0),
        (2, 0),
        (3, 1),
    ]


def test_a_class_may_be_called_train(tmp_path):
    write(tmp_path / "train" / "0.png")
    write(tmp_path / "bus" / "0.png")
    assert load(tmp_path).classes == ("bus", "train")


@pytest.mark.parametrize("place", ["a.png", "train/a.png"])
def test_an_image_in_no_class_is_refused(tmp_path, place):
    """It was passed over in silence."""
    write(tmp_path / "train" / "cat" / "0.png")
    write(tmp_path / "test" / "dog" / "0.png")
    (tmp_path / "notes.txt").write_text("no image")
    assert load(tmp_path).classes == ("cat", "dog")
    write(tmp_path / place)
    with pytest.raises(DataError, match=f"{place} lies beside the folders of the classes"):
        load(tmp_path)


@pytest.mark.parametrize(("modes", "channels"), [
    (["L", "L"], 1),
    (["L", "LA"], 1),
    (["1"], 1),
    (["RGB"], 3),
    (["L", "RGB"], 3),
    (["P"], 3),
    (["RGBA"], 3),
])  # fmt: skip
def test_grey_or_colour_comes_from_the_files(tmp_path, modes, channels):
    for index, mode in enumerate(modes):
        write(tmp_path / "a" / f"{index}.png", 255, mode)
    images = load(tmp_path)
    assert images.inputs.shape[1] == channels == len(images.mean)
    assert (images.inputs == 255).all()


def test_a_palette_with_transparency(tmp_path):
    (tmp_path / "a").mkdir()
    image = Image.new("P", (8, 8), 0)
    image.putpalette([9, 8, 7] + [0] * 765)
    image.save(tmp_path / "a" / "0.png", transparency=b"\x00\xff")
    assert load(tmp_path).inputs[0, :, 0, 0].tolist() == [9, 8, 7]


def test_different_sizes_need_image_size(tmp_path):
    write(tmp_path / "a" / "0.png", 5, size=(10, 12))
    odd = write(tmp_path / "a" / "1.png", 5, size=(12, 10))
    with pytest.raises(
        DataError, match=r"1\.png: 10 x 12 pixels.*0\.png.*data\.image_size"
    ) as caught:
        load(tmp_path)
    assert str(odd) in str(caught.value)
    assert load(tmp_path, image_size=16).inputs.shape == (2, 1, 16, 16)


def test_large_images_need_image_size(tmp_path):
    write(tmp_path / "a" / "0.png", 5, size=(600, 200))
    with pytest.raises(DataError, match=r"0\.png: 200 x 600 pixels.*data\.image_size"):
        load(tmp_path)
    assert load(tmp_path, image_size=96).inputs.shape == (1, 1, 96, 96)


def test_large_files_are_decoded_in_order(tmp_path):
    """Noise does not compress: files large enough for several threads."""
    noise = np.random.default_rng(0).integers(0, 256, (200, 96, 96, 3), np.uint8)
    (tmp_path / "a").mkdir()
    for index, image in enumerate(noise):
        Image.fromarray(image).save(tmp_path / "a" / f"{index:03}.png")
    expected = torch.from_numpy(noise).permute(0, 3, 1, 2)
    assert torch.equal(load(tmp_path).inputs, expected)


def test_a_subset_is_drawn_before_anything_is_decoded(tmp_path):
    for index in range(20):
        write(tmp_path / "ab"[index % 2] / f"{index}.png", index)
    chosen = load(tmp_path, subset=7)
    levels = chosen.inputs[:, 0, 0, 0].tolist()
    assert len(set(levels)) == 7
    assert [level % 2 for level in levels] == chosen.labels.tolist()
    assert torch.equal(chosen.inputs, load(tmp_path, subset=7).inputs)
    assert not torch.equal(chosen.inputs, load(tmp_path, subset=7, seed=1).inputs)
    left_out = next(i for i in range(20) if i not in levels)
    (tmp_path / "ab"[left_out % 2] / f"{left_out}.png").write_bytes(b"damaged")
    assert torch.equal(chosen.inputs, load(tmp_path, subset=7).inputs)
    with pytest.raises(ConfigError, match=r"data\.subset = 21: folder has 20 inputs"):
        load(tmp_path, subset=21)


def test_folders_without_images_are_refused(tmp_path):
    with pytest.raises(DataError, match="no images of the form <class>"):
        load(tmp_path)
    write(tmp_path / "0.png")  # not in a class
    with pytest.raises(DataError, match="no images of the form <class>"):
        list_images(tmp_path)
    with pytest.raises(DataError, match=r"absent: cannot be listed.*FEDAPP_DATA"):
        load(tmp_path / "absent")


@pytest.mark.parametrize("where", ["dog/puppies/0.png", "dog/2024/may/0.png", "train/dog/x/0.png"])
def test_images_that_lie_deeper_are_refused(tmp_path, where):
    """A class one folder deeper was left out, and the run went on with one class fewer."""
    for name in ("cat/0.png", "cow/0.png"):
        write(tmp_path / ("train" if where.startswith("train") else "") / name)
    write(tmp_path / where)
    with pytest.raises(
        DataError, match=rf"{where} lies deeper than <class>/image.*move the images"
    ):
        load(tmp_path)


def test_parts_are_named_in_several_ways_and_machines_folders_are_passed_over(
    tmp_path,
):
    for part in ("Train", "valid", "Testing"):
        write(tmp_path / part / "cat" / "0.png")
        write(tmp_path / part / "dog" / "0.png")
        write(tmp_path / part / "cat" / "@eaDir" / "0.png")
    write(tmp_path / "__MACOSX" / "Train" / "cat" / "0.png")
    images = load(tmp_path)
    assert images.classes == ("cat", "dog") and len(images.labels) == 6
