"""The rules of docs/TUTORIAL_TABLES.md: a patient by hand, gaps, and what is refused by line."""

import numpy as np
import pytest
import torch

from examples.tutorial_tables import CLASSES, main, read
from fedapp.core.settings import DataSettings
from fedapp.data.hospitals import COLUMNS, files, read_heart
from fedapp.data.own.listing import list_agreed

HEADER = ",".join([*COLUMNS, "diagnosis"])
ROW = "63,1,2,145,0,1,2,150,0,2.0,3,?,-9,2"
"""A man of 63: his cholesterol, vessels and thallium scan are missing, each written otherwise."""
OTHER = "50,0,1,120,200,0,0,150,0,1.5,1,0,3,0"


@pytest.fixture
def say(tmp_path, capsys):
    """Return a function from a CSV file's lines to the exit code and what is said."""

    def said(*lines, encoding="utf-8"):
        (tmp_path / "north.csv").write_text("\n".join(lines) + "\n", encoding=encoding)
        code = main([str(tmp_path / "north.csv"), str(tmp_path / "north")])
        return code, "".join(capsys.readouterr()).replace(f"{tmp_path}/", "")

    return said


def test_they_are_the_numbers_that_the_preset_heart_has(tmp_path):
    """In another order: measured columns first."""
    for file in files():
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(f"{ROW}\n{OTHER}\n")
    wanted = read_heart(tmp_path).inputs[:2]
    (tmp_path / "north.csv").write_text(f"{HEADER}\n{ROW}\n\n{OTHER}\n")
    found = read(tmp_path / "north.csv")
    assert found["ids"].tolist() == ["line 2", "line 4"]  # as an editor counts them
    assert found["labels"].tolist() == ["ill", "healthy"]
    assert found["vectors"][0, 0] == 1.0  # (63 - 54) / 9
    assert torch.equal(torch.from_numpy(found["vectors"]).sort(1)[0], wanted.sort(1)[0])


def test_what_it_writes_is_taken(say, tmp_path):
    unlabelled = OTHER[:-1] + "?"
    assert say(HEADER, ROW, OTHER, unlabelled) == (
        0,
        "north/vectors.npz: 3 patients, 31 numbers each\n",
    )
    classes = ", ".join(dict.fromkeys(CLASSES.values()))
    agreed = DataSettings(name="own", classes=classes, vector_size=31)
    listing = list_agreed(tmp_path / "north", agreed)
    assert listing.faults == () and [e.label for e in listing.entries] == ["ill", "healthy", ""]


@pytest.mark.parametrize(("lines", "said"), [
    ([HEADER.replace("thal,", "thall,"), ROW], "north.csv: no column 'thal' in line 1: write"),
    ([HEADER.replace(",", ";"), ROW], "no column 'age' in line 1: write the agreed names there"),
    ([ROW, ROW], "no column 'age' in line 1"),
    ([f"{HEADER},height", f"{ROW},170"], "column 'height' is not agreed upon, or twice: leave it"),
    ([f"{HEADER},age", f"{ROW},63"], "column 'age' is not agreed upon, or twice"),
    ([HEADER, ROW, f"{ROW},1"], "north.csv, line 3: not 14 cells: fix it"),
    ([HEADER, ROW[:-2]], "line 2: not 14 cells"),
    ([HEADER, "forty" + ROW[2:]], "line 2: age is 'forty': write a number, or nothing where it is"),
    ([HEADER, "inf" + ROW[2:]], "line 2: age is 'inf'"),
    ([HEADER, ROW.replace("63,1,", "63,3,")], "line 2: sex is 3: write one of 0, 1, or nothing"),
    ([HEADER, "1e300" + ROW[2:]], "line 2: age is 1e+300, more than 10 standard dev"),
    ([HEADER, ROW[:-1] + "7"], "line 2: diagnosis is 7: write one of 0, 1, 2, 3, 4, or nothing"),
    ([HEADER], "north.csv: no patient in it"),
    ([""], "north.csv: line 1 is empty: write the agreed names there, then the patients"),
])  # fmt: skip
def test_what_the_rules_do_not_know_is_refused_in_a_line(say, tmp_path, lines, said):
    code, told = say(*lines)
    assert code == 1 and said in told and told.count("\n") == 1
    assert not (tmp_path / "north").exists()


def test_an_empty_file_is_called_empty(tmp_path, capsys):
    (tmp_path / "north.csv").touch()
    assert main([str(tmp_path / "north.csv"), str(tmp_path / "north")]) == 1
    assert "north.csv: is empty: write the agreed names there" in capsys.readouterr().err


def with_cholesterol(*measured):
    return [OTHER.replace(",200,", f",{one},") for one in measured]


def test_another_unit_is_refused_by_the_name_of_its_column(say, tmp_path):
    # In mmol/l each is below 10 standard deviations; all of them together are not by chance.
    code, told = say(HEADER, *with_cholesterol(6.2, 4.9, 7.4, "?", 5.5, 8.1))
    assert code == 1 and told == (
        "north.csv: chol has mean 6.42 and standard deviation 1.2 here, agreed are 245 and 55: "
        "write it in the agreed unit\n"
    )
    assert not (tmp_path / "north").exists()


@pytest.mark.parametrize("measured", [
    (6.2, 4.9, 7.4, 5.5),  # four, which may be so by chance
    (460, 450, 470, 390, 520),  # a clinic for high cholesterol: as far away, but not as alike
    (240, 241, 239, 240, 241),  # alike, and near the agreed mean
])  # fmt: skip
def test_few_patients_or_other_patients_are_no_other_unit(say, measured):
    assert say(HEADER, *with_cholesterol(*measured))[0] == 0


def test_a_file_of_another_encoding_and_one_that_is_not_there_are_refused(say, tmp_path, capsys):
    assert "save it as 'CSV UTF-8 (comma delimited)'" in say(HEADER, ROW, encoding="utf-16")[1]
    assert main([str(tmp_path / "none.csv"), "north"]) == 1 and main([]) == 2
    assert "No such file" in capsys.readouterr().err


def test_a_folder_that_is_a_file_is_refused(say, tmp_path):
    (tmp_path / "north").write_text("")
    assert say(HEADER, ROW) == (1, "north: File exists: name a folder to write to\n")


@pytest.mark.parametrize("gap", ["", "?", "-9", "-9.0"])
def test_every_gap_means_the_same(tmp_path, gap):
    (tmp_path / "north.csv").write_text(f"{HEADER}\n{ROW.replace('?', gap)}\n{ROW}\n")
    np.testing.assert_array_equal(*read(tmp_path / "north.csv")["vectors"])
