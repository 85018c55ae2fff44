"""No text of a page is lost on the site, lines end in time, no version and no table is old."""

import re
import sys

import pytest

from tests.docs.pages import PAGES, ROOT, prose


@pytest.fixture(scope="module")
def whole():
    """The builder's own checks, `docs/_ext/whole.py`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "docs/_ext")
        import whole

        yield whole
    sys.modules.pop("whole", None)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_nothing_is_lost_long_or_old(page, whole):
    text = page.read_text(encoding="utf-8")
    assert whole.lost(text) == []
    assert page.name == "tables.md" or whole.long_lines(text) == []
    assert whole.old_versions(text) == []


def test_tables_are_those_of_the_results_files(whole, monkeypatch):
    assert whole.old_tables() == []
    monkeypatch.setattr(whole, "filled", lambda text, *_: text.replace("6", "7"))
    assert whole.old_tables() == [page.name for page in whole.DOCUMENTS]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a " * 60 + "a\n", 1),
        ("a " * 59 + "ab\n", 0),
        (f"```\n{'a ' * 99}\n```\n| {'a ' * 99} |\n- `{'a ' * 99}a`\n", 0),
        (f"<!-- bench:x -->\n{'a ' * 99}\n<!-- /bench:x -->\n", 0),
        (f"```\na\n```\n{'a ' * 99}\n```\nb\n```\n", 1),
    ],
)
def test_a_line_is_long_where_it_could_end_before(text, found, whole):
    assert len(whole.long_lines(text)) == found


def test_a_version_is_one_that_there_is(whole):
    text = (
        "version 1.0.0 (commit 2eea95e1), version 0.1.0; "
        "Flower 1.41, Flower 1.40; Python 3.10 or newer"
    )
    assert whole.old_versions(text) == ["version 0.1.0", "Flower 1.40", "Python 3.10 or newer"]


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
        ("<details><summary><b>More</b></summary>\n\na\n\n</details>\n", []),
        ("<details>\na\n</details>\n", [1]),
        ("```\n% a comment\n| a |\n```\n", []),
    ],
)
def test_what_is_lost_is_found(text, at, whole):
    assert [int(line.split()[1].rstrip(":")) for line in whole.lost(text)] == at


def test_no_sentence_of_the_readme_has_more_than_25_words():
    text = re.sub(r"\]\([^)]*\)|<[^>]*>|^\|.*", " ", prose(ROOT / "README.md"), flags=re.MULTILINE)
    parts = re.split(r"\n\s*\n|^- |(?<=[.:?!])\s+(?=[A-Z*`\[])", text, flags=re.MULTILINE)
    words = [[word for word in part.split() if any(map(str.isalnum, word))] for part in parts]
    assert len(words) > 30 and [" ".join(said) for said in words if len(said) > 25] == []
