"""Some 600 files of every kind that is read: each gives the right answer, or one line."""

import resource
from collections import Counter

import pytest
from typer.testing import CliRunner

from fedapp.cli import app
from tests.foreign import dicoms, every_case, images_of, outcome
from tests.models.made import written

MEMORY = 2**30
"""Bytes by which no file may let the process grow."""


@pytest.mark.filterwarnings("ignore")  # of damaged files; a person sees the line
def test_every_file_is_read_rightly_or_refused_in_a_line(tmp_path):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = {}
    for case in every_case(tmp_path):
        found[f"{case.path.relative_to(tmp_path)} by {case.read.__qualname__}"] = outcome(case)
    grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    counted = Counter(said.partition(":")[0] for said in found.values())
    print(f"\n{len(found)} files: {dict(counted)}, at most {grown / 2**20:.0f} MiB more")
    odd = {name: said for name, said in found.items() if said not in ("right", "refused")}
    assert not odd, "\n".join(f"{name}: {said}" for name, said in odd.items())
    assert len(found) >= 300 and grown < MEMORY


@pytest.mark.filterwarnings("ignore")
def test_commands_name_each_image_that_cannot_be_read(tmp_path):
    """All images of one folder, by `fedapp check` and `fedapp predict`: a line each, no crash."""
    folder = tmp_path / "unlabelled"
    said = [outcome(case) for case in (*images_of(folder), *dicoms(folder))]
    refused = said.count("refused")
    checked = CliRunner().invoke(app, ["check", str(tmp_path)])
    assert isinstance(checked.exception, SystemExit) and checked.exit_code == 1
    faults = [line for line in checked.output.splitlines() if line.startswith("fault ")]
    assert len(faults) == refused > 200
    model = written(tmp_path / "model", window="0, 4095")
    asked = CliRunner().invoke(app, ["predict", str(model), str(folder)])
    assert asked.exception is None or isinstance(asked.exception, SystemExit), asked.exception
    assert asked.output.count(",,,,,,yes\n") == refused
