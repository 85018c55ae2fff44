"""Images by name: what a spreadsheet would compute, and what no file of answers can hold."""

import os

import pytest

from fedapp.core.errors import DataError
from fedapp.models.listing import list_images


@pytest.mark.parametrize("name", ["=cmd().png", "+1.png", "-1.png", "@a.png"])
def test_a_name_like_a_formula_is_written_as_the_path_that_it_is(tmp_path, name):
    for file in (name, "a.png"):
        (tmp_path / file).touch()
    named = {image.name: image.path for image in list_images(tmp_path)}
    assert named == {f"./{name}": tmp_path / name, "a.png": tmp_path / "a.png"}


def test_a_name_that_is_not_utf8_is_refused_before_any_work(tmp_path):
    (tmp_path / os.fsdecode(b"caf\xe9.png")).touch()
    with pytest.raises(DataError, match=r"'caf\\udce9\.png': a name that is not UTF-8: rename it"):
        list_images(tmp_path)
