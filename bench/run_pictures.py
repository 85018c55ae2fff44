"""Pictures for the README and the documentation, made of a run: `python -m bench.run_pictures RUN`.

They are the page's own figures (`fedapp report RUN`), drawn by a headless Chromium.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageChops

from fedapp.experiment.runpaths import find_run
from fedapp.ground.errors import FedAppError, RunError
from fedapp.results.run.blocks import Block
from fedapp.results.run.page import blocks_of, render
from fedapp.results.run.record import read_run

PICTURES = {"curves": "Learning curves", "sites": "Before and after, site by site"}
"""Name of a picture's file, and the block that it shows."""
_HIDE = "<style>header, nav, .skip, h2, .note, details { display: none !important; } section { "
_HIDE += "border: 0; } main { padding: 1rem !important; }</style></head>"
_SIZE = (1240, 2400)
_MARGIN = 12


def picture(block: Block, path: Path) -> None:
    """Write a block's figures as PNG. Raises RunError where there is no Chromium or it fails."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        raise RunError("chromium: not installed; pictures need it: apt install chromium")
    with tempfile.TemporaryDirectory() as folder:
        page, shot = Path(folder) / "page.html", Path(folder) / "shot.png"
        page.write_text(render("", [], [], [[("", block)]]).replace("</head>", _HIDE))
        command = [
            *(chromium, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
            *("--disable-background-networking", f"--user-data-dir={folder}/profile"),
            *(f"--window-size={_SIZE[0]},{_SIZE[1]}", f"--screenshot={shot}", page.as_uri()),
        ]
        done = subprocess.run(command, capture_output=True, timeout=120, check=False)
        if done.returncode or not shot.is_file():
            raise RunError(f"chromium: made no picture (exit {done.returncode}): try it by hand")
        with Image.open(shot) as image:
            drawn = trimmed(image.convert("RGB"))
    path.parent.mkdir(parents=True, exist_ok=True)
    drawn.quantize(64).save(path, optimize=True)


def trimmed(image: Image.Image) -> Image.Image:
    """Return the image without its empty border, but for a margin. White stays white."""
    box = ImageChops.difference(image, Image.new("RGB", image.size, "white")).getbbox()
    if box is None:
        raise RunError("the picture is empty: name a run with a finished round")
    left, top, right, bottom = box
    wide, high = image.size
    return image.crop(
        (max(left - _MARGIN, 0), max(top - _MARGIN, 0), min(right + _MARGIN, wide),
         min(bottom + _MARGIN, high))
    )  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the pictures; print where."""
    parser = argparse.ArgumentParser(prog="python -m bench.run_pictures", description=__doc__)
    parser.add_argument("run", help="a run: its name, or its folder")
    parser.add_argument("--out", type=Path, default=Path("docs/pictures"), help="folder for them")
    given = parser.parse_args(arguments)
    try:
        blocks = {block.title: block for block in blocks_of(read_run(find_run(given.run)))}
        for name, title in PICTURES.items():
            path = given.out / f"run-{name}.png"
            picture(blocks[title], path)
            print(path)
    except FedAppError as error:
        print(f"pictures: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
