"""A name that was taken out is refused by name, in one line, with what to do instead."""

import subprocess
import sys

import pytest
import typer

from fedapp.cli import app
from fedapp.core.withdrawn import COMMANDS


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_that_is_gone_is_refused_by_name(name):
    assert name not in typer.main.get_command(app).commands
    words = [sys.executable, "-m", "fedapp", name, "--any", "thing"]
    done = subprocess.run(words, capture_output=True, text=True)
    said = f"fedapp: `fedapp {name}` was taken out in 2.0: {COMMANDS[name]}\n"
    assert (done.returncode, done.stderr, done.stdout) == (2, said, "")
