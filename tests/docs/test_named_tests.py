"""Tests that the pages on security name are there."""

import re
from pathlib import Path

import pytest

PAGES = ("SECURITY.md", "MASKED_SUMS.md", "SITE_RULES.md", "results/hostile.md")
DOCS = Path(__file__).parents[2] / "docs"


def known() -> set[str]:
    files = (DOCS.parent / "tests").rglob("test_*.py")
    return {name for path in files for name in re.findall(r"def (test_\w+)", path.read_text())}


def named(text: str) -> set[str]:
    return set(re.findall(r"`(test_\w+)`", text))


@pytest.mark.parametrize("page", PAGES)
def test_every_test_that_a_page_names_is_there(page):
    missing = named((DOCS / page).read_text()) - known()
    assert not missing, f"{page} names tests that there are not: {sorted(missing)}"


def test_every_cell_of_setting_and_adversary_names_a_test():
    text = (DOCS / "SECURITY.md").read_text().split("### Setting and adversary")[1]
    rows = [line for line in text.splitlines() if line.startswith("| ")][:6]
    assert len(rows) == 6 and "adversary" in rows[0]
    for row in rows[1:]:
        who, *cells = (cell.strip() for cell in row.strip("|").split(" | "))
        assert len(cells) == 4, who
        assert all(named(cell) for cell in cells), who
