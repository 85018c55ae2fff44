"""A name that was taken out is refused by name, in one line, with what to do instead."""

import sys

import pytest
import typer

from fedapp.cli import app, main
from fedapp.core.withdrawn import COMMANDS


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_that_is_gone_is_refused_by_name(name, capsys, monkeypatch):
    assert name not in typer.main.get_command(app).commands
    monkeypatch.setattr(sys, "argv", ["fedapp", name, "--any", "thing"])
    with pytest.raises(SystemExit) as ended:
        main()
    said = f"fedapp: `fedapp {name}` was taken out in 2.0: {COMMANDS[name]}\n"
    assert (ended.value.code, *capsys.readouterr()) == (2, "", said)
