"""A model's folder is whole at any moment: whoever is killed, whoever reads meanwhile."""

import os
from dataclasses import replace

import pytest

from fedapp.core import disk
from fedapp.core.errors import RunError
from fedapp.models import folder as module
from fedapp.models.folder import PENDING_TENSORS, read_consistent, write_model
from tests.models.made import recipe_of, written


class Killed(BaseException):
    """As SIGKILL: nothing after it runs."""


@pytest.fixture
def old_and_new(tmp_path):
    """A folder with a model, and another model to be written over it."""
    folder = written(tmp_path / "model")
    description, old = read_consistent(folder)
    recipe, new = recipe_of(network={"name": "resnet9", "width": 8})
    assert old != new
    return folder, (description, old), (replace(description, model=recipe), new)


def killed_before(monkeypatch, step):
    """Make the writer die before its step of this number: two of writing, one of renaming."""
    steps = iter(range(9))

    def counted(plain):
        def call(*args, **kwargs):
            if next(steps) == step:
                raise Killed
            return plain(*args, **kwargs)

        return call

    monkeypatch.setattr(module, "write_atomic", counted(disk.write_atomic))
    monkeypatch.setattr(module.Path, "replace", counted(module.Path.replace))


@pytest.mark.parametrize("step", range(10))
def test_killed_anywhere_it_holds_the_old_model_or_the_new(old_and_new, monkeypatch, step):
    folder, old, new = old_and_new
    with monkeypatch.context() as dying:
        killed_before(dying, step)
        try:
            write_model(folder, *new)
        except Killed:
            pass
    left = read_consistent(folder)
    assert left in (old, new)
    # And so it stays, whatever is written next.
    write_model(folder, replace(left[0], others=None))
    assert read_consistent(folder) == left
    write_model(folder, *old)
    assert read_consistent(folder) == old and not (folder / PENDING_TENSORS).exists()


def test_what_a_death_left_half_written_goes_with_the_next_model(old_and_new):
    folder, _, new = old_and_new
    half = folder / f".{PENDING_TENSORS}.0123abcd.tmp"
    half.write_bytes(b"half")
    os.utime(half, (0, 0))
    write_model(folder, *new)
    assert not half.exists()


def test_a_second_death_does_not_lose_what_the_first_one_left(old_and_new, monkeypatch):
    """Killed before the renaming, then before the next description: the middle model is whole."""
    folder, old, new = old_and_new
    (folder / PENDING_TENSORS).write_bytes(new[1])
    (folder / "model.json").write_text(new[0].to_json())
    assert read_consistent(folder) == new

    def dies(path, *args, **kwargs):
        if path.name == "model.json":
            raise Killed
        disk.write_atomic(path, *args, **kwargs)

    with monkeypatch.context() as dying, pytest.raises(Killed):
        dying.setattr(module, "write_atomic", dies)
        write_model(folder, *old)
    assert read_consistent(folder) == new


def test_a_reader_sees_a_whole_model_while_it_is_replaced(old_and_new, monkeypatch):
    """Replaced between the reading of the description and of the tensors."""
    folder, _, new = old_and_new
    plain, seen = module.read_description, []

    def slow(path):
        found = plain(path)
        if not seen:
            seen.append(found)
            write_model(folder, *new)
        return found

    monkeypatch.setattr(module, "read_description", slow)
    assert read_consistent(folder) == new


def test_tensors_of_no_description_are_damage(old_and_new):
    folder, *_ = old_and_new
    (folder / "model.safetensors").write_bytes(b"other")
    with pytest.raises(RunError, match="SHA-256 is not the one"):
        read_consistent(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(RunError, match="No such file"):
        read_consistent(folder)
