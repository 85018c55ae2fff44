"""A contact sheet: images in a grid, each with its name, class and uncertainty."""

import io
from collections.abc import Sequence
from typing import Final

from PIL import Image, ImageDraw, ImageFont

from fedapp.models.description import Recipe
from fedapp.models.predict import Prediction, read

COLUMNS: Final = 8
SIDE, GAP, LINE = 132, 12, 16
"""Pixels: of an image, between two, of a line of text."""


def contact_sheet(chosen: Sequence[Prediction], recipe: Recipe) -> bytes:
    """Return a PNG of images in their order, row by row, as the model sees them; at least one."""
    columns = min(COLUMNS, len(chosen))
    rows = -(-len(chosen) // columns)
    width, height = SIDE + GAP, SIDE + 3 * LINE + GAP
    sheet = Image.new("RGB", (GAP + columns * width, GAP + rows * height), "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(12)
    for number, one in enumerate(chosen):
        x, y = GAP + number % columns * width, GAP + number // columns * height
        pixels = read([one.image.path], recipe)[0].expand(3, -1, -1).permute(1, 2, 0)
        sheet.paste(_enlarged(Image.fromarray(pixels.numpy())), (x, y))
        lines = (
            _ending(one.image.name, draw, font),
            _beginning(f"{number + 1}: {one.label}", draw, font),
            f"p {one.probability:.2f}, lead {one.lead:.2f}",
        )
        for line, text in enumerate(lines):
            draw.text((x, y + SIDE + 2 + line * LINE), text, "black", font)
    out = io.BytesIO()
    sheet.save(out, "PNG")
    return out.getvalue()


def _enlarged(picture: Image.Image) -> Image.Image:
    """Return an image with its longer side of `SIDE`: of a small one every pixel is to be seen."""
    scale = SIDE / max(picture.size)
    how = Image.Resampling.NEAREST if scale > 1 else Image.Resampling.BILINEAR
    wide, high = (max(1, round(side * scale)) for side in picture.size)
    return picture.resize((wide, high), how)


Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


def _beginning(text: str, draw: ImageDraw.ImageDraw, font: Font) -> str:
    """Return as much of a text as fits below an image."""
    while draw.textlength(text, font) > SIDE:
        text = f"{text.rstrip('…')[:-1]}…"
    return text


def _ending(text: str, draw: ImageDraw.ImageDraw, font: Font) -> str:
    """Return as much of a file's name as fits, its end: that tells files of a folder apart."""
    while draw.textlength(text, font) > SIDE:
        text = f"…{text.lstrip('…')[1:]}"
    return text
