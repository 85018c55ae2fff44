"""Images for the demo of a federation: three sites' own handwritten digits, as PNG files.

    python examples/demo_images.py FOLDER    makes FOLDER/north, south and west

The sites differ as hospitals do: north has labelled all of its images, south every fifth, west has
labels for a test set alone. Most of north's digits are 0 to 4, most of south's 5 to 9; west has as
many of all. North and south are laid out as folders, west as a table (docs/OWN_DATA.md).
"""

import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image

from fedapp.data.inputs import DataSet
from fedapp.data.published import read_digits

SITES = ("north", "south", "west")

_TURNS = {
    False: ("north", "west", "north", "south", "north", "west", "north", "south"),
    True: ("south", "west", "south", "north", "south", "west", "south", "north"),
}
"""Whose the next image of a class is, for the lower and the upper half of the classes."""
_WHOLE = ".whole"
"""Hidden file in a site's folder that is written last; whoever reads images passes over it."""
_LABELLED_EVERY = {"north": 1, "south": 5, "west": 5}


def write_sites(folder: Path, images: DataSet) -> None:
    """Deal grey images to the three sites below `folder`, class by class and in their order."""
    turns, counts = Counter[int](), Counter[tuple[str, int]]()
    table = ["path,label,split"]
    for number, label in enumerate(images.labels.tolist()):
        order = _TURNS[2 * label >= len(images.classes)]
        site = order[turns[label] % len(order)]
        turns[label] += 1
        labelled = counts[site, label] % _LABELLED_EVERY[site] == 0
        counts[site, label] += 1
        name = images.classes[label] if labelled else ""
        if site == "west":
            path = f"scans/{number}.png"
            table.append(f"{path},{name},{'test' if labelled else 'train'}")
        else:
            path = f"{f'labelled/{name}' if labelled else 'unlabelled'}/{number}.png"
        target = folder / site / path
        target.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(images.inputs[number, 0].numpy()).save(target)
    (folder / "west" / "labels.csv").write_text("\n".join(table) + "\n")


def main(arguments: Sequence[str]) -> None:
    """Command line; see the module's docstring. Sites that are there are left as they are.

    A site's folder may be there and empty: a container's volume.
    """
    folder = Path(arguments[0])
    wanted = [site for site in SITES if not (folder / site / _WHOLE).exists()]
    if not wanted:
        return
    with TemporaryDirectory() as made:
        write_sites(Path(made), read_digits())
        for site in wanted:
            shutil.copytree(Path(made, site), folder / site, dirs_exist_ok=True)
            (folder / site / _WHOLE).touch()


if __name__ == "__main__":
    main(sys.argv[1:])
