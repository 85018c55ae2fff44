"""Cells: where they lie, how far they are, and whether what lies there is theirs."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from fedapp.core.errors import RunError
from fedapp.data.split.manifest import Manifest
from fedapp.experiment.code_hash import code_hash
from fedapp.experiment.config import to_plain
from fedapp.tools.compare.cells import Cell, check_cells
from tests.tools.compare.tiny import SET, cells, pretend_begun, pretend_done


def begun_with(cell: Cell, **facts) -> None:
    """Make a folder as a run of `cell` would, but for these facts of run.json."""
    pretend_begun(cell, code_hash()[1])
    path = cell.folder / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **facts}))
    (cell.folder / "config.yaml").write_text(yaml.safe_dump(to_plain(cell.experiment)))


# --- names ----------------------------------------------------------------------------------------


def test_a_cell_lies_under_setting_method_and_seed_and_is_an_ordinary_run(tmp_path: Path):
    (cell,) = cells(tmp_path, settings={"alpha=0.5": None}, methods=["fixavg"], seeds=[7])
    assert cell.name == "alpha=0.5 / fixavg / seed 7"
    assert cell.folder == tmp_path / "out" / "cells" / "alpha=0.5" / "fixavg" / "seed-7"
    assert cell.log == cell.folder.with_name("seed-7.log")
    runtime = cell.experiment.runtime
    assert (runtime.out, runtime.run_name) == (str(cell.folder.parent), "seed-7")
    assert (cell.experiment.seed, cell.experiment.method.name) == (7, "fedavg")


def test_names_that_are_no_folder_names_get_safe_ones_of_their_own(tmp_path: Path):
    names = ["a/b", "a b", "a-b", "../c", ".d", "-e", "é", "ü", "日", "x" * 60]
    every = cells(tmp_path, settings=dict.fromkeys(names), methods=["fixavg"])
    folders = [cell.folder.parents[1] for cell in every]
    assert len(set(folders)) == len(names)
    assert folders[2].name == "a-b"
    for folder in folders:
        assert folder.parent == tmp_path / "out" / "cells"
        assert folder.name.isascii() and folder.name[0] not in ".-" and "/" not in folder.name


def test_a_seed_is_compared_wholly_before_the_next_and_mix_after_its_parents(tmp_path: Path):
    every = cells(
        tmp_path,
        methods=["mix", "fixbn", "fixavg", "um_pfssl", "fixprox"],
        settings={"a": None, "b": {"training.batch_size": 8}},
        seeds=[1, 0],
    )
    assert [(c.seed, c.setting) for c in every] == [
        (seed, setting) for seed in (1, 0) for setting in "ab" for _ in range(5)
    ]
    for mix in every[4::5]:
        assert mix.method == "mix"
        assert [parent.method for parent in mix.parents] == ["fixavg", "fixprox", "fixbn"]
        assert {(p.seed, p.setting) for p in mix.parents} == {(mix.seed, mix.setting)}


def test_mix_finds_its_parents_by_their_presets(tmp_path: Path):
    every = cells(
        tmp_path,
        methods={
            "FixAvg, slow": {"method.preset": "fixavg", "training.learning_rate": 0.001},
            "fixprox": None, "fixbn": None, "mix": None,
        },
    )  # fmt: skip
    assert [parent.method for parent in every[-1].parents] == ["FixAvg, slow", "fixprox", "fixbn"]
    other = cells(tmp_path, methods=["fixavg", "fixprox", "fixbn", "mix"])
    assert every[-1].digest != other[-1].digest, "it is of other models"


# --- how far --------------------------------------------------------------------------------------


def test_a_folder_is_new_begun_or_done(tmp_path: Path):
    a, b, c = cells(tmp_path, seeds=[0, 1, 2], methods=["fixavg"])
    a.folder.mkdir(parents=True)  # cut before run.json was written
    pretend_begun(b)
    pretend_done(c)
    assert [cell.state() for cell in (a, b, c)] == ["new", "begun", "done"]


def test_a_damaged_checkpoint_cannot_be_gone_on_from(tmp_path: Path):
    (cell,) = cells(tmp_path, methods=["fixavg"])
    pretend_begun(cell)
    assert cell.make_ready() == "" and cell.state() == "begun"
    (cell.folder / "checkpoint.json").write_text('{"round": ')
    assert cell.make_ready() == f"{cell.name}: its checkpoint is damaged; it starts again"
    assert not cell.folder.exists()


# --- whose ----------------------------------------------------------------------------------------


def test_nothing_to_say_of_what_is_as_the_grid_has_it(tmp_path: Path):
    every = cells(tmp_path)
    assert check_cells(every) == []
    begun_with(every[0])
    assert check_cells(every) == []


def test_changed_settings_are_refused_naming_both_and_the_remedy(tmp_path: Path):
    for cell in cells(tmp_path, methods=["fixavg"]):
        begun_with(cell)
    (changed,) = cells(tmp_path, methods=["fixavg"], set={**SET, "rounds.num_rounds": 9})
    with pytest.raises(RunError) as caught:
        check_cells([changed])
    assert str(caught.value) == (
        f"{changed.folder}: was run with other settings (rounds.num_rounds 3, now 9): give another "
        "--out, or remove that folder to run it again"
    )


def test_many_changed_cells_are_counted(tmp_path: Path):
    for cell in cells(tmp_path, seeds=[0, 1, 2, 3, 4]):
        begun_with(cell, experiment="0" * 64)
    with pytest.raises(RunError) as caught:
        check_cells(cells(tmp_path, seeds=[0, 1, 2, 3, 4]))
    lines = str(caught.value).splitlines()
    assert lines[-1] == "and 7 more cells like these"
    assert "(another version of this software)" in lines[0]


def test_a_mix_of_changed_parents_is_refused(tmp_path: Path):
    methods = ["fixavg", "fixprox", "fixbn", "mix"]
    begun_with(cells(tmp_path, methods=methods)[-1])
    changed = cells(tmp_path, methods=methods, set={**SET, "rounds.num_rounds": 9})
    with pytest.raises(RunError, match="other settings of the methods it asks"):
        check_cells(changed)


def test_where_and_how_a_run_is_done_may_change(tmp_path: Path):
    for cell in cells(tmp_path, methods=["fixavg"]):
        begun_with(cell)
    elsewhere = {**SET, "data.root": "/elsewhere", "runtime.threads": 2}
    assert check_cells(cells(tmp_path, methods=["fixavg"], set=elsewhere)) == []


def test_other_code_is_one_warning_and_the_cells_are_kept(tmp_path: Path):
    every = cells(tmp_path, seeds=[0, 1])
    begun_with(every[0], code="0123456789abcdef")
    begun_with(every[1], code="0123456789abcdef")
    (warning,) = check_cells(every)
    assert warning.startswith(
        "2 of 4 cells were begun with other code than this (0123456789abcdef,"
    )
    assert "they are kept" in warning


def test_a_damaged_record_is_named(tmp_path: Path):
    (cell,) = cells(tmp_path, methods=["fixavg"])
    pretend_begun(cell)
    (cell.folder / "run.json").write_text("{")
    with pytest.raises(RunError, match=r"run\.json: cannot be read .* to run the cell again"):
        check_cells([cell])


def test_mix_of_parents_without_models_is_refused_before_anything_starts(tmp_path: Path):
    every = cells(tmp_path, methods=["fixavg", "fixprox", "fixbn", "mix"])
    begun_with(every[0])
    (every[0].folder / "summary.json").write_text("{}")
    assert check_cells(every) == []
    (every[0].folder / "pool").rmdir()
    with pytest.raises(RunError, match="its models were removed, and mix needs them: remove that"):
        check_cells(every)


def test_another_split_file_is_refused(tmp_path: Path):
    zeros = np.zeros(3, np.int32)
    split = Manifest("digits", 1, 1, 0, zeros, zeros.astype(np.uint8), np.zeros(3, np.bool_))
    split.save(tmp_path / "split")
    own = {**SET, "split.manifest": str(tmp_path / "split")}
    every = cells(tmp_path, methods=["fixavg", "fedavg_sl"], set=own)
    begun_with(every[0], manifest=split.digest())
    begun_with(every[1], manifest=split.revealed().digest())
    assert check_cells(every) == []
    replace(split, seed=1).save(tmp_path / "split")
    with pytest.raises(RunError, match=r"run on another split than split\.manifest holds"):
        check_cells(every)
