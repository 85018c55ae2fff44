"""A browser shows the pages without a complaint; skipped where there is no Chromium."""

import shutil
import subprocess

import pytest
from PIL import Image

from fedapp.results.report import write_reports
from tests.results.run.written import write_run

CHROMIUM = shutil.which("chromium")
COMMAND = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
    "--hide-scrollbars", "--enable-logging=stderr", "--v=0",
)  # fmt: skip


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
