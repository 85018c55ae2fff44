"""A browser shows the pages without a complaint; skipped where there is no Chromium."""

import html
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from PIL import Image

from fedapp.results.own import own_page
from fedapp.results.report import write_reports
from tests.results.run.written import write_run
from tests.results.test_own import evidence, folder_of

CHROMIUM = shutil.which("chromium")
COMMAND = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
    "--hide-scrollbars", "--enable-logging=stderr", "--v=0",
)  # fmt: skip


AXE = Path(os.environ.get("AXE_CORE", "node_modules/axe-core/axe.min.js"))
"""The file of axe-core (npm install axe-core), which looks for what keeps people from a page."""
RUN = """<script>window.onload = () => axe.run().then(found => {
  const wrong = found.violations.flatMap(rule => rule.nodes.map(
    node => rule.id + ": " + node.target + ": " + node.failureSummary));
  document.body.textContent = "AXE" + JSON.stringify(wrong) + "DONE";
});</script>"""


def seen_by_axe(page, folder, *more):
    """Return what axe finds wrong with a page, as a browser shows it."""
    looked = folder / "looked.html"
    text = page.read_text().replace("</head>", f"<script>{AXE.read_text()}</script>{RUN}</head>")
    looked.write_text(text)
    done = subprocess.run(
        [str(CHROMIUM), *COMMAND, f"--user-data-dir={folder / 'profile'}", *more, "--dump-dom",
         "--virtual-time-budget=60000", looked.as_uri()],
        capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    body = done.stdout[done.stdout.rindex("<body") :]
    return json.loads(html.unescape(body[body.index("AXE[") + 3 : body.rindex("]DONE") + 1]))


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
@pytest.mark.skipif(not AXE.is_file(), reason="needs axe-core: npm install axe-core")
@pytest.mark.parametrize("scheme", [1, 0])
@pytest.mark.parametrize("width", [1280, 500])
def test_axe_finds_nothing_wrong_light_and_dark_wide_and_narrow(tmp_path, scheme, width):
    run = write_run(tmp_path / "runs")
    [whole] = write_reports([str(run)])
    [of_site] = write_reports([str(run)], site="0")
    own = tmp_path / "own.html"
    own.write_text(own_page(folder_of(tmp_path, evidence([0, 1, 2, 3] * 30))))
    look = f"--blink-settings=preferredColorScheme={scheme}", f"--window-size={width},900"
    for page in (whole, of_site, own):
        assert seen_by_axe(page, tmp_path, *look) == [], page.name


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
@pytest.mark.parametrize(("scheme", "bright"), [(1, True), (0, False)])
def test_a_browser_shows_the_page_light_and_dark(tmp_path, scheme, bright):
    [page] = write_reports([str(write_run(tmp_path))])
    shot = tmp_path / "shot.png"
    done = subprocess.run(
        [str(CHROMIUM), *COMMAND, f"--user-data-dir={tmp_path / 'profile'}",
         f"--blink-settings=preferredColorScheme={scheme}", "--window-size=400,900",
         f"--screenshot={shot}", page.as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert "CONSOLE" not in done.stderr
    with Image.open(shot) as image:
        corner = image.convert("RGB").getpixel((2, 2))
        assert (min(corner) > 200) == bright
        assert len(image.convert("L").getcolors()) > 20
