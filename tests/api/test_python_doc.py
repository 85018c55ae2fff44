"""docs/PYTHON.md and README: every example runs as it stands, in a process of its own."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = [
    example
    for page in ("docs/PYTHON.md", "README.md")
    for example in re.findall(r"^```py\n(.*?)^```", (ROOT / page).read_text(), re.M | re.S)
]


@pytest.mark.parametrize("example", EXAMPLES, ids=range(6))  # there are six
def test_an_example_runs(example, tmp_path):
    program = tmp_path / "example.py"
    program.write_text(example)
    env = os.environ | {"FEDAPP_OUT": str(tmp_path / "runs"), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, program], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout and not done.stderr
