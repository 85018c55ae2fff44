"""A pytest plugin: which functions of fedapp each test calls, and how long it takes.

`python -m pytest -p tests.mutants.reach` with `FEDAPP_REACH=FILE`: what it found is written there
as JSON, by test: seconds, and the functions as "file:qualified name".
"""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
INSIDE = str(ROOT / "fedapp") + os.sep

found: dict[str, dict[str, Any]] = {}
called: set[CodeType] = set()


def note(frame: FrameType, event: str, argument: object) -> None:
    """Note what is called; lines are not traced."""
    called.add(frame.f_code)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Note what the test and its fixtures call."""
    called.clear()
    sys.settrace(note)
    try:
        return (yield)
    finally:
        sys.settrace(None)
        mine = (code for code in called if code.co_filename.startswith(INSIDE))
        names = {_name(code) for code in mine}
        found.setdefault(item.nodeid, {"seconds": 0.0})["calls"] = sorted(names)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add up the seconds; a test that does not pass is of no use."""
    one = found.setdefault(report.nodeid, {"seconds": 0.0})
    one["seconds"] += report.duration
    one["passed"] = one.get("passed", True) and report.passed


def pytest_sessionfinish() -> None:
    """Write what was found."""
    tests = {name: one for name, one in found.items() if one.get("passed") and one.get("calls")}
    Path(os.environ["FEDAPP_REACH"]).write_text(json.dumps(tests))


def _name(code: CodeType) -> str:
    """Return a function as "file:name", its name as it is written in the file."""
    inside = code.co_qualname.replace(".<locals>", "")
    return f"{Path(code.co_filename).relative_to(ROOT)}:{inside}"
