"""The pass of all tests: what passed on the same files is left out, and nothing else."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests import going_on

TESTS = """
import os, pytest

def test_passes():
    pass

def test_fails():
    assert "MENDED" in os.environ

def test_is_skipped():
    pytest.skip("not here")

@pytest.fixture
def breaks_at_the_end():
    yield
    assert "MENDED" in os.environ

def test_whose_end_fails(breaks_at_the_end):
    pass
"""


@pytest.fixture
def passes(tmp_path, monkeypatch):
    """Returns how many tests ran and what was said; `mended`: nothing fails any more."""
    (tmp_path / "test_it.py").write_text(TESTS)

    def run(mended: bool, workers: int = 0) -> str:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.going_on", "--rootdir"]
        command += [str(tmp_path), "-n", str(workers), str(tmp_path)]
        if mended:
            monkeypatch.setenv("MENDED", "1")
        root = Path(__file__).parents[1]
        return subprocess.run(command, cwd=root, capture_output=True, text=True).stdout

    return run


@pytest.mark.parametrize("workers", [0, 2])
def test_what_passed_is_left_out_and_what_failed_or_was_skipped_runs_again(passes, workers):
    first = passes(mended=False, workers=workers)
    assert "1 failed, 2 passed, 1 skipped, 1 error" in first
    assert "on these files 1 tests have passed" in first
    again = passes(mended=True, workers=workers)
    assert "2 passed, 1 skipped" in again
    assert "on these files 3 tests have passed" in again


def test_other_files_begin_anew(tmp_path, monkeypatch):
    def git(*words: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True)

    monkeypatch.setattr(going_on, "ROOT", tmp_path)
    git("init", "-q")
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "-qm", "a")
    found = [going_on.files_digest(), going_on.files_digest()]
    (tmp_path / "a").write_text("2")
    found.append(going_on.files_digest())
    (tmp_path / "b").write_text("")
    found.append(going_on.files_digest())
    assert found[0] == found[1] and len(set(found)) == 3


def test_a_line_cut_in_writing_is_no_test(tmp_path):
    (tmp_path / "notes").write_text('["a::b", 7.0]\n["a::c", 0.1]\n["a::d", 3')
    words = list(going_on.GoingOn(tmp_path / "notes", speaks=True).words())
    assert words == ["on these files 2 tests have passed, in 7 s", "     7.0 s  a::b"]


def test_a_test_is_long_by_all_its_parameters_together():
    took = {"a.py::one[x]": 0.6, "a.py::one[y]": 0.4, "a.py::two": 0.99, "a.py::three": 9.0}
    assert going_on.long_tests(took) == ["a.py::one", "a.py::three"]


def test_every_test_that_is_called_long_is_there():
    names = going_on.LONG.read_text().splitlines()
    assert names == sorted(set(names))
    for name in names:
        file, _, function = name.partition("::")
        assert f"def {function}(" in (going_on.ROOT / file).read_text(), name
