"""What this project replaces in Flower is there, and used: another Flower fails here, by name."""

import re
from dataclasses import replace

import pytest

from fedapp.core.errors import RunError
from fedapp.tools.flower_compat import PULL_A_MESSAGE, SEAMS


@pytest.mark.parametrize("seam", SEAMS, ids=lambda seam: seam.name)
def test_flower_is_as_this_project_needs_it(seam):
    seam.original()


@pytest.mark.parametrize(("changed", "said"), [
    ({"module": "flwr.no_such_module"}, "No module named 'flwr.no_such_module'"),
    ({"name": "_no_such_name"}, "has no attribute '_no_such_name'"),
    ({"user": f"{PULL_A_MESSAGE.module}:_no_such"}, "has no attribute '_no_such'"),
    ({"user": f"{PULL_A_MESSAGE.module}:_insert_message"}, "_insert_message does not use _pull"),
    ({"arguments": frozenset({"state", "whole_message"})}, "takes no whole_message"),
])  # fmt: skip
def test_another_flower_ends_the_program_and_replaces_nothing(changed, said):
    before = PULL_A_MESSAGE.original()
    with pytest.raises(RunError, match=re.escape(said)) as raised:
        replace(PULL_A_MESSAGE, **changed).replace(print)
    assert "install the release that pyproject.toml names" in str(raised.value)
    assert PULL_A_MESSAGE.original() is before


def test_the_programs_refuse_to_start_on_another_flower(monkeypatch, capsys):
    from fedapp.tools.deploy import superlink

    monkeypatch.setattr(superlink, "SERVER_PAGES", replace(superlink.SERVER_PAGES, name="_gone"))
    monkeypatch.setattr(superlink, "flower_superlink", lambda: pytest.fail("it started"))
    with pytest.raises(SystemExit, match=r"error: Flower .* is not the Flower"):
        superlink.main()
