"""docs/TUTORIAL.md and TUTORIAL_TABLES.md as written, each in a folder of its own.

`sh` blocks are run, `text` blocks are what the one before must have printed. A block that begins
with a file's name in a comment is that file. Accuracies are compared within the spread of runs.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fedapp.data import published
from tests.docs.pages import ROOT, blocks

FEW = 60
"""Images of 1,000: how far another processor's rounding may move an accuracy."""
RIGHT = re.compile(r"right (\d+) of 1000 ")
"""What `fedapp predict` says of images whose label is known."""

DATA = Path(os.environ.get("FEDAPP_DATA", "/nonexistent"))
"""Read here: no test sees the developer's own."""


def needs(name):
    """Skip a test without the files of a published data set."""
    here = all((DATA / file).exists() for file, _ in published.source(name).files)
    return pytest.mark.skipif(not here, reason=f"needs {name} in $FEDAPP_DATA")


def followed(page, tmp_path):
    """Do what a page says; return what its plain blocks show, and right answers that were said."""
    bin_folder = Path(sys.executable).parent
    environment = os.environ | {
        "PATH": f"{bin_folder}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "FEDAPP_DATA": str(DATA),
        "FEDAPP_OUT": str(tmp_path / "runs"),
        "COLUMNS": "120",
    }
    said, told, rights = "", "", []
    for language, text in blocks(page):
        if named := re.match(r"# ([\w.]+)\n", text):
            (tmp_path / named[1]).write_text(text)
        elif language == "sh":
            script = f"RUNS={tmp_path}/runs CLONE={ROOT}\n{text}"
            done = subprocess.run(
                ["bash", "-e", "-c", script],
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
            )
            assert done.returncode == 0, f"{text}{done.stdout}{done.stderr}"
            said = done.stdout
            rights += RIGHT.findall(done.stderr)
        elif language == "text":
            assert said == text
        else:
            told += text
    return told, rights


@pytest.mark.slow
@pytest.mark.timeout(1800)
@needs("fashion_mnist")
def test_the_tutorial_does_what_it_says(tmp_path):
    told, rights = followed("docs/TUTORIAL.md", tmp_path)
    on_the_page = RIGHT.findall(told)
    together, alone = map(int, rights)
    assert [together, alone] == pytest.approx(list(map(int, on_the_page)), abs=FEW)
    assert together > alone + FEW


@pytest.mark.slow
@needs("heart")
def test_the_tutorial_of_tables_does_what_it_says(tmp_path):
    followed("docs/TUTORIAL_TABLES.md", tmp_path)
    answers = (tmp_path / "answers.csv").read_text().splitlines()
    assert len(answers) == 1 + 123 and answers[0].startswith("file,class,probability")
