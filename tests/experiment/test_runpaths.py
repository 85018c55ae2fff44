"""Runs are found by name, by path, or as the newest."""

import os
from pathlib import Path

import pytest

from fedapp.experiment.runpaths import find_run, folder_of, make_folder, run_names
from fedapp.ground.errors import RunError, StoreError


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "runs"
    monkeypatch.setenv("FEDAPP_OUT", str(root))
    return root


def begun(root: Path, name: str, age: int, mark: str = "run.json") -> Path:
    """Make a folder as a run has it, begun so many seconds ago."""
    path = root / name / mark
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    os.utime(path, (1e9 - age, 1e9 - age))
    return path.parent


def test_by_name_and_by_path(root: Path, tmp_path: Path) -> None:
    ours = begun(root, "trial", 5)
    other = begun(tmp_path / "elsewhere", "trial", 5)
    assert find_run("trial") == ours, "a name of ours comes first"
    assert find_run(str(other)) == other
    cell = begun(root / "compare-small" / "cells", "fixavg-0", 1)
    assert find_run("compare-small/cells/fixavg-0") == cell


def test_a_relative_folder_and_the_home_folder(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(tmp_path / "here", "mine", 1)
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert find_run("mine") == Path("mine")
    assert find_run("~/here/mine") == tmp_path / "here" / "mine"
    monkeypatch.chdir(tmp_path / "here" / "mine")
    root.mkdir()
    assert find_run(".").samefile(tmp_path / "here" / "mine"), "not the folder of all runs"
    assert find_run("../mine").samefile(tmp_path / "here" / "mine")


def test_without_a_name_it_is_the_newest_run(root: Path) -> None:
    with pytest.raises(RunError, match="no runs yet"):
        find_run("")
    begun(root, "b-old", 9)
    newest = begun(root, "a-new", 2)
    begun(root, "compare-small", 1, "comparison.json")
    assert find_run("") == newest, "a comparison is no run"
    assert run_names(root) == ["b-old", "a-new", "compare-small"]


def test_a_typo_names_the_nearest_and_nothing_near_the_newest(root: Path) -> None:
    with pytest.raises(RunError, match=r"no such run in .*; there are none yet"):
        find_run("hospitals")
    begun(root, "hospitals", 5)
    begun(root, "compare-small", 4, "comparison.json")
    begun(root, "digits", 3)
    for typo, near in (("hospital", "hospitals"), ("compare-smal", "compare-small")):
        with pytest.raises(RunError, match=rf"'{typo}': .*did you mean '{near}'\?"):
            find_run(typo)
    with pytest.raises(RunError, match="the newest is digits") as error:
        find_run("zzz")
    assert "\n" not in str(error.value)


def test_a_file_is_no_run(root: Path) -> None:
    path = begun(root, "trial", 1) / "run.json"
    with pytest.raises(RunError, match="no such folder"):
        find_run(str(path))


def test_where_run_folders_cannot_be_the_settings_are_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"another folder \(FEDAPP_OUT or runtime.out\)$"):
        make_folder(tmp_path / "file", "run", "")
    with pytest.raises(StoreError, match=r"another folder .*, or the node's store-path"):
        folder_of(tmp_path / "file", "run", "")
