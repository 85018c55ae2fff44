"""A browser shows the pages without a complaint; skipped where there is no Chromium."""

import json
import os
import shutil
from pathlib import Path

import pytest
from PIL import Image

from fedapp.reports.report import write_reports
from fedapp.reports.site_report import site_page, view_of_model
from tests.reports.browser import CHROMIUM, browser
from tests.reports.test_site_answers import evidence, folder_of
from tests.reports.written import write_run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium"),
]
ROOT = Path(__file__).parents[2]
AXE = Path(os.environ.get("AXE_CORE", "node_modules/axe-core/axe.min.js"))
"""The file of axe-core (npm install axe-core), which looks for what keeps people from a page."""
WRONG = """axe.run().then(found => JSON.stringify(found.violations.flatMap(rule => rule.nodes.map(
  node => rule.id + ": " + node.target + ": " + node.failureSummary))))"""
FOCUS = """(() => { const e = document.activeElement, s = getComputedStyle(e),
  r = e.getBoundingClientRect();
  return {at: all.indexOf(e), tag: e.tagName, to: e.getAttribute("href"),
    outline: s.outlineStyle == "solid" && parseFloat(s.outlineWidth) > 1,
    seen: r.right > 0 && r.left < innerWidth && r.bottom > 0 && r.top < innerHeight}; })()"""
REACHED = """var all = [...document.querySelectorAll("body *")].filter(e => e.checkVisibility() && (
  e.matches("a[href], summary, [tabindex]") ||
  (e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).overflowX != "visible")));
  all.length"""


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """A browser, and every kind of page: a run's, a site's of both kinds, a comparison's."""
    tmp_path = tmp_path_factory.mktemp("pages")
    run = write_run(tmp_path / "runs")
    pages = {"run": write_reports([str(run)])[0], "site": write_reports([str(run)], site="0")[0]}
    folder = folder_of(tmp_path, evidence([0, 1, 2, 3] * 30))
    pages["own"] = tmp_path / "own.html"
    pages["own"].write_text(site_page(view_of_model(folder)))
    grid = shutil.copytree(ROOT / "tests/golden/kept/grid", tmp_path / "grid")
    pages["comparison"] = write_reports([str(grid)])[1]
    with browser(tmp_path / "profile") as seen:
        yield seen, {name: page.as_uri() for name, page in pages.items()}


@pytest.mark.skipif(not AXE.is_file(), reason="needs axe-core: npm install axe-core")
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 380])
def test_axe_finds_nothing_wrong_light_and_dark_wide_and_narrow(shown, dark, width):
    seen, pages = shown
    for name, page in pages.items():
        seen.open(page, width, dark)
        seen.value(AXE.read_text() + ";0")
        assert json.loads(seen.value(WRONG)) == [], name


def test_at_380_pixels_no_page_scrolls_sideways(shown):
    seen, pages = shown
    for name, page in pages.items():
        seen.open(page, 380)
        assert seen.value("document.documentElement.scrollWidth") <= 380, name
        seen.value("for (const of of document.querySelectorAll('details')) of.open = true;")
        assert seen.value("document.documentElement.scrollWidth") <= 380, f"{name}, all opened"


@pytest.mark.parametrize("width", [1280, 380])
def test_the_tab_key_comes_to_all_that_opens_or_scrolls_in_order_and_is_seen(shown, width):
    seen, pages = shown
    for name, page in pages.items():
        seen.open(page, width)
        for place in range(seen.value(REACHED)):
            seen.press("Tab", 9)
            found = seen.value(FOCUS)
            assert (found["at"], found["outline"], found["seen"]) == (place, True, True), (
                name,
                found,
            )
        seen.open(page, width)
        seen.press("Tab", 9)
        assert seen.value("document.activeElement.className") == "skip", name
        seen.press("Enter", 13)
        assert seen.value("location.hash") == "#content"
        seen.press("Tab", 9)
        seen.value(REACHED)
        inside = "document.querySelector('main').contains(document.activeElement)"
        assert seen.value(inside) or seen.value("document.activeElement == document.body"), name


def test_the_enter_key_opens_numbers_which_then_are_reached_too(shown):
    seen, pages = shown
    seen.open(pages["run"], 380)
    while seen.value("document.activeElement.tagName") != "SUMMARY":
        seen.press("Tab", 9)
    seen.press("Enter", 13)
    assert seen.value("document.activeElement.parentElement.open")
    seen.press("Tab", 9)
    assert seen.value("document.activeElement.closest('details[open]') != null")


@pytest.mark.parametrize("name", ["run", "comparison"])
@pytest.mark.parametrize("dark", [False, True])
def test_a_browser_shows_the_page_light_and_dark(shown, tmp_path, dark, name):
    seen, pages = shown
    seen.open(pages[name], 380, dark)
    seen.shot(tmp_path / "shot.png")
    assert not seen.said
    with Image.open(tmp_path / "shot.png") as image:
        corner = image.convert("RGB").getpixel((2, 2))
        assert (min(corner) > 200) != dark
        assert len(image.convert("L").getcolors()) > 20
