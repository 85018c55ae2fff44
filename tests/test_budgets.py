"""No room, no list of commands and no page grows without a decision: tests/budgets.py."""

import pytest

from tests.budgets import ROOMS, ROOT, Budget, budgets, code_lines
from tests.test_rooms import PACKAGES


def test_everything_is_within_its_budget():
    over = [str(budget) for budget in budgets() if budget.used > budget.most]
    assert over == [], "read the head of tests/budgets.py"


def test_every_file_of_python_has_a_budget():
    """`fedapp/app` in the wheel, and the examples, are copies or a few lines each."""
    tops = {
        path.parent.relative_to(ROOT) for top in PACKAGES for path in (ROOT / top).rglob("*.py")
    }
    rooms = [room.removesuffix("/*") for room in ROOMS if room != "fedapp/*"]
    without = [t for t in tops if not any(f"{t}/".startswith(f"{room}/") for room in rooms)]
    assert [str(top) for top in without] == ["fedapp"]  # which `fedapp/*` counts


@pytest.mark.parametrize(("text", "lines"), [
    ("", 0),
    ("# why\n\nx = 1  # one\n", 1),
    ('"""Words."""\n\n\ndef f():\n    """More\n    words."""\n    return 1\n', 2),
    ("x = (\n    1,\n    # why\n    2,\n)\n", 4),
    ('x = """a\nb"""\n', 2),
    ('class A:\n    b = 1\n    """What b is."""\n', 2),
])  # fmt: skip
def test_lines_with_code_count_and_prose_is_free(text: str, lines: int):
    assert code_lines(text) == lines


def test_a_budget_says_what_it_is_of():
    assert str(Budget("docs", "MB", 4, 8)) == "docs: 4 of at most 8 MB"
    assert (
        str(Budget("a", "lines of code", 1000, 2000)) == "a: 1,000 of at most 2,000 lines of code"
    )
