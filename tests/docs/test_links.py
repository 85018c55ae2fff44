"""Every link leads somewhere, read on a Git host as on the site, and links lead everywhere."""

import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT, prose

LINK = re.compile(r"(?<!`)\[[^\]]*\]\(([^)\s]+)\)")


@cache
def anchors(page: Path) -> frozenset[str]:
    """The headings of a page, as Git hosts and MyST name them."""
    found = re.findall(r"^#+ +(.+?) *$", prose(page), flags=re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found)
    return frozenset(plain)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target in LINK.findall(re.sub(r"`[^`\n]+`", "code", prose(page))):
        if target.startswith(("https://", "http://", "mailto:")):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.is_file(), f"{page.name}: {target}: no such file"
        assert not anchor or anchor in anchors(file), f"{page.name}: {target}: no such heading"


def linked(page: Path) -> set[Path]:
    """The pages that a page links to."""
    targets = (target.partition("#")[0] for target in LINK.findall(prose(page)))
    files = {(page.parent / target).resolve() for target in targets if target.endswith(".md")}
    return files & set(PAGES)


def test_every_page_is_two_clicks_from_the_readme():
    first = linked(ROOT / "README.md")
    second = {page for one in first for page in linked(one)}
    far = {*PAGES} - first - second - {ROOT / "README.md"}
    assert far <= {ROOT / "CHANGELOG.md"}, far  # docs/reference/changelog.md is the same text


NAMED_TEST = re.compile(r"(?<![\w/.])tests/[\w/]+\.py\b")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_test_that_a_page_names_is_there(page):
    named = set(NAMED_TEST.findall(page.read_text(encoding="utf-8")))
    assert [path for path in sorted(named) if not (ROOT / path).is_file()] == []


def test_every_exception_from_a_rule_of_ruff_is_that_of_a_file():
    ruff = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]
    patterns = ruff["lint"]["per-file-ignores"]
    # As ruff reads them: of a path from the root, or of a file's name anywhere.
    places = ("", "fedapp/**/")
    empty = [p for p in patterns if not any(any(ROOT.glob(f"{at}{p}")) for at in places)]
    assert empty == []


def named_tests(text: str) -> set[str]:
    return set(re.findall(r"`(test_\w+)`", text))


@pytest.mark.parametrize("page", ["SECURITY", "MASKED_SUMS", "SITE_RULES", "results/hostile"])
def test_every_test_that_a_page_on_security_names_is_there(page):
    texts = (path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    known = {name for text in texts for name in re.findall(r"def (test_\w+)", text)}
    assert named_tests((ROOT / f"docs/{page}.md").read_text()) - known == set()


def test_every_cell_of_setting_and_adversary_names_a_test():
    text = (ROOT / "docs/results/hostile.md").read_text().split("## Who learns what: the tests")[1]
    rows = [line for line in text.splitlines() if line.startswith("| ")][:6]
    assert len(rows) == 6 and "adversary" in rows[0]
    for row in rows[1:]:
        who, *cells = (cell.strip() for cell in row.strip("|").split(" | "))
        assert len(cells) == 4 and all(map(named_tests, cells)), who
