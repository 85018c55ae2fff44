"""The pictures of README and docs/results/gallery.md that no comparison makes, in docs/pictures.

`python -m bench.pictures` compares the methods, from docs/results, in seconds. `python -m
bench.pictures RUN` draws figures of a run's page (`fedapp report RUN`) with a headless Chromium;
with `--site 4` it draws that site's own page, and the run's page as a telephone shows it.
"""

import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import mean
from typing import Annotated

import typer
from matplotlib.figure import Figure
from PIL import Image, ImageChops

from bench.command import carry_out
from bench.gain import ALONE, FINAL, FRESH, by_seed
from fedapp.core.errors import RunError
from fedapp.experiment.run_folder import find_run
from fedapp.reports.comparison.figures import WIDTH_MORE, png, styled
from fedapp.reports.layout import Block, blocks_page
from fedapp.reports.report import blocks_of, run_page
from fedapp.reports.run_record import read_run
from fedapp.reports.site_report import site_page, view_of_model

DOCS = Path(__file__).parents[1] / "docs"
OF_A_RUN = {"curves": "Learning curves", "sites": "Before and after, site by site"}
"""Name of a picture's file, and the block that it shows."""
_HIDE = "<style>header, nav, .skip, h2, .note, details { display: none !important; } section { "
_HIDE += "border: 0; display: block !important; } main { padding: 1rem !important; }</style></head>"
_SIZE, _SCREEN, _PHONE = (1240, 2400), (1280, 800), (380, 760)
_PLACES = ("", "s3", "s5")
"""Sections of the page at which the pictures of a telephone begin; empty: its top."""
_MARGIN, _FRAME = 12, 160
"""Margin around a picture, and height of a window that shows no page, in pixels."""
SHOWN = {
    "alone, a network": ("local_only", FINAL, "#777777"),
    "alone, the closed form": ("one_round", ALONE, "#332288"),
    "FedAvg": ("fedavg", FINAL, "#0077bb"),
    "FedAvg, fine-tuned": ("fedavg_ft", FINAL, "#44aa88"),
    "one_round": ("one_round", FINAL, "#004488"),
}
"""Name of each bar; its method, the column of its accuracies, and its colour."""
PANELS = (
    (FRESH, "alpha=0.5", "Fashion-MNIST, half of the labels"),
    (FRESH, "labels=0.05", "5 % of the labels"),
    (FRESH, "shift=1", "images that differ by site"),
    (FRESH, "cifar10, alpha=0.5", "CIFAR-10, half of the labels"),
)


def accuracies(study: str, setting: str) -> dict[str, list[float]]:
    """Return the accuracy of each bar after the last round, in %, seed by seed."""
    return {
        name: [*by_seed(study, setting, method, column).values()]
        for name, (method, column, _) in SHOWN.items()
    }


@styled
def seed_by_seed() -> Figure:
    """Draw a panel for each setting: of each name its seeds as rings, their mean as a bar."""
    figure = Figure(figsize=(WIDTH_MORE, 5.2))
    for axes, (study, setting, title) in zip(
        figure.subplots(2, 2, sharey=True).flat, PANELS, strict=True
    ):
        found = accuracies(study, setting)
        for place, (name, (_, _, colour)) in enumerate(reversed(SHOWN.items())):
            values = found[name]
            axes.barh(place, mean(values), color=colour, alpha=0.35, height=0.7)
            axes.plot(values, [place] * len(values), "o", mfc="none", color=colour, ms=4.5)
            axes.annotate(f"{mean(values):.1f}", (1, place), va="center", weight="bold")
        axes.set(title=title, xlim=(0, 100))
        axes.set_yticks(range(len(SHOWN)), [*reversed(SHOWN)])
    figure.supxlabel("accuracy on the sites' own test images, %: mean (bar) and seeds (rings)")
    return figure


def picture(block: Block, path: Path) -> None:
    """Write a block's figures as PNG."""
    page = blocks_page("", [], [[("", block)]]).replace("</head>", _HIDE)
    trimmed(shot({"page.html": page}, *_SIZE)).quantize(64).save(path, optimize=True)


def telephone(page: str, path: Path) -> None:
    """Write three places of a page, each 380 pixels wide, beside each other."""
    frames = "".join(f'<iframe src="run.html#{place}"></iframe>' for place in _PLACES)
    style = "<style>body { margin: 0; } iframe { border: 1px solid #999; margin: 8px; "
    style += f"width: {_PHONE[0] + 2}px; height: {_PHONE[1]}px; }}</style>"
    wide = len(_PLACES) * (_PHONE[0] + 18) + 12
    files = {"page.html": style + f'<div style="width: {wide}px">{frames}</div>', "run.html": page}
    trimmed(shot(files, wide, _PHONE[1] + 40)).quantize(256).save(path, optimize=True)


def shot(files: Mapping[str, str], wide: int, high: int) -> Image.Image:
    """Return a screenshot of `page.html`, which may refer to the other files.

    Raises RunError where there is no Chromium or it fails.
    """
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        raise RunError("chromium: not installed; pictures need it: apt install chromium")
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            (Path(folder) / name).write_text(text, encoding="utf-8")
        page, seen = Path(folder) / "page.html", Path(folder) / "shot.png"
        command = [
            *(chromium, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
            *("--disable-background-networking", f"--user-data-dir={folder}/profile"),
            *(f"--window-size={wide},{high + _FRAME}", f"--screenshot={seen}", page.as_uri()),
        ]
        done = subprocess.run(command, capture_output=True, timeout=120, check=False)
        if done.returncode or not seen.is_file():
            raise RunError(f"chromium: made no picture (exit {done.returncode}): try it by hand")
        with Image.open(seen) as image:
            return image.convert("RGB").crop((0, 0, wide, high))


def trimmed(image: Image.Image) -> Image.Image:
    """Return the image without its white border, except for a margin."""
    box = ImageChops.difference(image, Image.new("RGB", image.size, "white")).getbbox()
    if box is None:
        raise RunError("the picture is empty: name a run with a finished round")
    left, top, right, bottom = box
    wide, high = image.size
    return image.crop(
        (max(left - _MARGIN, 0), max(top - _MARGIN, 0), min(right + _MARGIN, wide),
         min(bottom + _MARGIN, high))
    )  # fmt: skip


def main(
    run: Annotated[str, typer.Argument(help="its name, or its folder")] = "",
    site: Annotated[str, typer.Option(help="its number, or its name")] = "",
) -> None:
    """Write the pictures; print where."""
    folder = DOCS / "pictures"
    folder.mkdir(exist_ok=True)
    if not run:
        (folder / "methods.png").write_bytes(png(seed_by_seed()))
        print(folder / "methods.png")
        return
    where = find_run(run)
    if site:
        own = shot({"page.html": site_page(view_of_model(where / "models" / site))}, *_SCREEN)
        own.quantize(64).save(folder / "site-page.png", optimize=True)
        telephone(run_page([read_run(where)]), folder / "run-telephone.png")
        print(folder / "site-page.png", folder / "run-telephone.png", sep="\n")
        return
    blocks = {block.title: block for block in blocks_of(read_run(where))}
    for name, title in OF_A_RUN.items():
        picture(blocks[title], folder / f"run-{name}.png")
        print(folder / f"run-{name}.png")


if __name__ == "__main__":
    carry_out(main)
