"""Mutants: what is changed and what is left alone, and that a trial tells who survives."""

import ast
import subprocess
import sys
from math import log
from pathlib import Path

import pytest

from tests.mutants.__main__ import files_of, telling
from tests.mutants.mutators import changed, mutants

ROOT = Path(__file__).parents[2]


def changes(body):
    return [one.change for one in mutants(f"def f(a, b):\n    {body}\n")]


@pytest.mark.parametrize(("body", "wanted"), [
    ("return a < b", ["a < b -> a <= b", "a < b -> a >= b"]),
    ("return a + b * 2", ["a + b * 2 -> a - b * 2", "b * 2 -> b / 2", "2 -> 3"]),
    ("return not a", ["not a -> a"]),
    ("return True and b", ["True and b -> True or b", "True -> False"]),
    ("return g(a, key=b)", ["g(a, key=b) -> a", "without key=b"]),
    ("return a.clamp(0.5)", ["a.clamp(0.5) -> a", "0.5 -> 1.0"]),
    ("return max(a)", ["max(a) -> min(a)", "max(a) -> a"]),
    ("a.zero_()", ["without a.zero_()"]),
    ("a += b", ["without a += b"]),
    ("raise RunError(a + b)", ["without raise RunError(a + b)"]),
    ("if a: return b", ["if a -> if not a"]),
    ("log.warning(a + b)", []),
    ("assert a < b", []),
    ("return f'{a + b}'", []),
    ("c: Annotated[int, 3] = a", []),
])  # fmt: skip
def test_changes_by_hand(body, wanted):
    assert changes(body) == wanted


def test_outside_functions_nothing_is_changed():
    assert mutants("LIMIT = 3 + 4\n\nclass A:\n    share: float = 0.5\n") == []


def test_a_change_has_its_function_and_line_and_is_the_only_one():
    source = "class A:\n  def f(self, a):\n    def g(b):\n      return b + a\n    return g\n"
    [only] = mutants(source)
    assert (only.function, only.line, only.change) == ("A.f.g", 4, "b + a -> b - a")
    assert ast.unparse(changed(source, only.place)) == ast.unparse(
        ast.parse(source.replace("b + a", "b - a"))
    )
    assert ast.unparse(changed(source, -1)) == ast.unparse(ast.parse(source))


def test_a_word_that_few_files_have_tells_more():
    files = {"a": {"spared", "task"}, "b": {"task", "site"}, "c": {"task"}, "d": set()}
    told = telling({"spared", "task", "nowhere"}, files)
    assert told == {"a": log(4) + log(4 / 3), "b": log(4 / 3), "c": log(4 / 3), "d": 0.0}


def test_a_room_may_also_be_a_pattern_of_files():
    assert [path.name for path in files_of("server/masked_sums.py")] == ["masked_sums.py"]
    assert set(files_of("methods/recommended/*.py")) < set(files_of("methods"))
    assert files_of("server/masked_sums.py")[0] in files_of("server")
    assert files_of("nowhere/*.py") == []


TRIALS = """
import sys
from math import log
from pathlib import Path
from tests.mutants.trial import Trial
away = Path({away!r})
for place in (-1, 0, 1, 2):
    trial = Trial(away / "thing.py", place, [str(away / "test_thing.py")], 5, away / str(place))
    trial.process.join()
    print(trial.outcome())
"""


@pytest.mark.slow
def test_a_trial_tells_who_survives_who_is_killed_and_who_hangs(tmp_path):
    """As it is; with <= where both are equal; with >=; and without the step of a loop."""
    thing = "def least(a, b):\n    while a < b:\n        b -= 1\n    return b\n"
    (tmp_path / "thing.py").write_text(thing)
    (tmp_path / "test_thing.py").write_text(
        f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\nfrom thing import least\n\n"
        "def test_it():\n    assert least(3, 5) == 3\n"
    )
    words = [sys.executable, "-c", TRIALS.format(away=str(tmp_path))]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["survived", "killed", "killed", "endless"]
