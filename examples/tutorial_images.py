"""Images for the tutorial: three hospitals' photographs of clothes, as PNG files.

    python examples/tutorial_images.py FOLDER    makes FOLDER/north, south, west and new
    python examples/tutorial_images.py FOLDER cifar10 224    in colour, 224 pixels a side

Real Fashion-MNIST images play the scans. Each hospital has 800. North has labelled 240 of them,
south 120, west 60. North sees mostly the first five classes, south the last five, west all alike.
All are laid out as folders (docs/OWN_DATA.md). `new` holds 1,000 further images, of west's mix,
which no hospital has, and `new/truth.csv` what they are. Of other data all numbers are 3/8 of
these, and the images are JPEG files.
"""

import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedapp.core.errors import FedAppError
from fedapp.core.rng import numpy_stream
from fedapp.core.settings import DataSettings
from fedapp.data.datasets import load_dataset
from fedapp.data.inputs import DataSet

IMAGES = 800
"""Of a hospital."""
LABELLED = {"north": 240, "south": 120, "west": 60}
"""Images with a label, by hospital."""
LOWER_SHARE = {"north": 0.8, "south": 0.2, "west": 0.5}
"""Share of the images that are of the lower half of the classes, by hospital."""
NEW = "new"
NEW_IMAGES, NEW_LIKE = 1000, "west"
CLOTHES = "fashion_mnist"
LARGE = 3 / 8
"""Share of all these numbers that are made of other data than clothes: 300 images of a hospital."""


def write_hospitals(folder: Path, images: DataSet, side: int = 0, share: float = 1.0) -> None:
    """Write the four folders below `folder`, by fixed draws.

    side: pixels to which images are enlarged, as JPEG; 0: as they are, as PNG. share: of `IMAGES`
    and all other numbers.
    """
    kind = "jpg" if side else "png"
    names = [name.partition("/")[0] for name in images.classes]  # "T-shirt/top"
    pool = [_shuffled(images, label) for label in range(len(names))]
    for site, labelled in LABELLED.items():
        taken = list(_take(pool, int(IMAGES * share), LOWER_SHARE[site]))
        for place, (label, index) in enumerate(taken):
            known = place < int(labelled * share)
            below = f"labelled/{names[label]}" if known else "unlabelled"
            _save(images, index, folder / site / below / f"{index}.{kind}", side)
    table = ["path,label"]
    for label, index in _take(pool, int(NEW_IMAGES * share), LOWER_SHARE[NEW_LIKE]):
        _save(images, index, folder / NEW / "images" / f"{index}.{kind}", side)
        table.append(f"images/{index}.{kind},{names[label]}")
    (folder / NEW / "truth.csv").write_text("\n".join(table) + "\n")


def _shuffled(images: DataSet, label: int) -> Iterator[int]:
    """Yield the places of a class's images, each once."""
    places: NDArray[np.int64] = np.flatnonzero(images.labels.numpy() == label)
    return iter(numpy_stream(0, "tutorial", label).permutation(places).tolist())


def _take(pool: Sequence[Iterator[int]], count: int, lower: float) -> Iterator[tuple[int, int]]:
    """Yield labels and places of `count` images, the classes of each half in turn."""
    half, below = len(pool) // 2, 0
    for number in range(count):
        is_lower = round(lower * (number + 1)) > below
        turn = below if is_lower else number - below
        label = turn % half + (0 if is_lower else half)
        below += is_lower
        yield label, next(pool[label])


def _save(images: DataSet, index: int, path: Path, side: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = images.inputs[index]
    image = Image.fromarray((pixels.permute(1, 2, 0) if len(pixels) == 3 else pixels[0]).numpy())
    (image.resize((side, side)) if side else image).save(path)


def main(arguments: Sequence[str]) -> None:
    """Command line; see the module's docstring. A folder that is there is left as it is."""
    name, *of = arguments
    folder, (data, side) = Path(name), of or (CLOTHES, "0")
    if folder.exists():
        print(f"{folder}: is there already and stays as it is")
        return
    try:
        images = load_dataset(DataSettings(name=data), seed=0)
    except FedAppError as error:
        raise SystemExit(f"tutorial_images: {error}") from error
    made = folder.with_name(f"{folder.name}.unfinished")
    shutil.rmtree(made, ignore_errors=True)
    write_hospitals(made, images, int(side), 1.0 if data == CLOTHES else LARGE)
    made.rename(folder)
    print(f"{folder}: {', '.join([*LABELLED, NEW])}")


if __name__ == "__main__":
    main(sys.argv[1:])
