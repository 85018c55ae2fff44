"""Every link leads somewhere, read on a Git host as on the site, and links lead everywhere."""

import re
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
    assert far <= {ROOT / "CHANGELOG.md"}, far  # docs/changelog.md is the same text


def test_results_is_a_page_to_be_read():
    assert len((ROOT / "docs/RESULTS.md").read_text().splitlines()) < 200
