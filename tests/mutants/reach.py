"""A pytest plugin: which functions of fedapp each test calls, and how much CPU time it takes.

`python -m pytest -p tests.mutants.reach` with `FEDAPP_REACH=FILE`: what it found is written there
as JSON, by test: seconds, and the functions as "file:qualified name".
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
INSIDE = str(ROOT / "fedapp") + os.sep

found: dict[str, dict[str, Any]] = {}
called: set[CodeType] = set()
failed: set[str] = set()


def note(frame: FrameType, event: str, argument: object) -> None:
    """Note what is called; lines are not traced."""
    called.add(frame.f_code)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Note what the test and its fixtures call."""
    called.clear()
    began = time.process_time()
    sys.settrace(note)
    try:
        return (yield)
    finally:
        sys.settrace(None)
        mine = (code for code in called if code.co_filename.startswith(INSIDE))
        names = {_name(code) for code in mine}
        seconds = round(time.process_time() - began, 3)
        if item.nodeid not in failed:
            found[item.nodeid] = {"seconds": seconds, "calls": sorted(names)}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note what does not pass: a test that fails or is skipped is of no use."""
    if not report.passed:
        failed.add(report.nodeid)


def pytest_sessionfinish() -> None:
    """Write what was found."""
    Path(os.environ["FEDAPP_REACH"]).write_text(json.dumps(found))


def _name(code: CodeType) -> str:
    """Return a function as "file:name", its name as it is written in the file."""
    inside = code.co_qualname.replace(".<locals>", "")
    return f"{Path(code.co_filename).relative_to(ROOT)}:{inside}"
