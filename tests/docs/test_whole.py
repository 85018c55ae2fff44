"""No text of a page is lost on the site, and every table has one width."""

import sys

import pytest

from tests.docs.pages import PAGES, ROOT


@pytest.fixture(scope="module")
def lost():
    """The builder's own check, `docs/_ext/whole.py`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "docs/_ext")
        from whole import lost

        yield lost
    sys.modules.pop("whole", None)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_nothing_is_lost(page, lost):
    assert lost(page.read_text(encoding="utf-8")) == []


TABLE = "| a | b |\n|---|---|\n| 1 | 2 |\n"


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("right on 19.1\n%, the plain average\n", [2]),  # as WHICH_METHOD had it
        ("- right on 19.1\n  % of all\n", [2]),
        ("+++\n", [1]),
        ("(word)=\n", [1]),
        ("as FOLDER/<class>/a.png\n", [1]),
        ("| a | b |\n|---|---|---|\n| 1 | 2 |\n", [1, 2, 3]),  # as RESULTS had it
        (TABLE + "| 1 | 2 | 3 |\n", [4]),
        (TABLE + "| 1 |\n", [4]),
        (TABLE + "| `a|b` | 2 |\n", [4]),
        (TABLE + "| `a\\|b` | 2 |\n", []),
        ("19.1 %, as `<class>`\n<!-- for the one who writes -->\n<br>\n", []),
        ("```\n% a comment\n| a |\n```\n", []),
    ],
)
def test_what_is_lost_is_found(text, at, lost):
    assert [int(line.split()[1].rstrip(":")) for line in lost(text)] == at
