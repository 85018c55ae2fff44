"""No message, page, table, help or preset changes unnoticed: each as its file in `snapshots/`."""

from difflib import unified_diff

import pytest

from tests.golden.snapshots import COMMAND, FOLDER, SNAPSHOTS


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_what_users_see_is_what_the_file_says(tmp_path, name):
    file = FOLDER / f"{name}.txt"
    before, after = file.read_text(encoding="utf-8"), SNAPSHOTS[name](tmp_path)
    if before != after:
        lines = before.splitlines(), after.splitlines()
        moved = unified_diff(*lines, file.name, "now", lineterm="", n=2)
        remedy = f"Is it meant so? `{COMMAND} {name}`, and say why in the commit."
        pytest.fail("\n".join([*moved, remedy]), pytrace=False)


def test_every_file_is_a_snapshot():
    assert {file.name for file in FOLDER.iterdir()} == {f"{name}.txt" for name in SNAPSHOTS}
