"""Sites with data of their own, small enough for a test: real digits as PNG files."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image

from fedapp.core.settings import DataSettings, SplitSettings
from fedapp.data.own import OwnSites, Place
from fedapp.data.published import read_digits
from fedapp.data.sites import SiteData
from fedapp.experiment.experiment import Experiment
from tests.small import SMALL, small

CLASSES = ("nought", "one", "two")
NAMES = ("east", "north", "west")


def image(path: Path, level: int = 7, mode: str = "L", size: tuple[int, int] = (10, 12)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", size, level).convert(mode).save(path)
    return path


def table(folder: Path, *lines: str, header: str = "path,label") -> Path:
    """Write labels.csv and, for each line, the grey image that it begins with."""
    for number, line in enumerate(lines):
        image(folder / line.split(",")[0], number)
    return text(folder, "\n".join((header, *lines)) + "\n")


def text(folder: Path, content: str | bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "labels.csv"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def agreed(**changes: object) -> DataSettings:
    values: dict[str, object] = {
        "name": "own", "classes": ", ".join(CLASSES), "sites": ", ".join(NAMES),
        "image_size": 8, "channels": 1,
    }  # fmt: skip
    return DataSettings(**{**values, **changes})  # type: ignore[arg-type]


def read_site(
    data: Path,
    settings: DataSettings,
    name: str = "north",
    number: int = 0,
    split: SplitSettings | None = None,
    seed: int = 0,
) -> SiteData:
    """Read one site's own files, as a run does."""
    places, split = {number: Place(name, data)}, split or SplitSettings()
    return OwnSites(places, settings, split, seed, torch.device("cpu")).site(number)


def experiment(root: Path, **changes: object) -> Experiment:
    """SMALL for three sites below `root`, which `three_sites` fills."""
    data, split = agreed(root=str(root)), SplitSettings(num_clients=3)
    rounds = {"rounds__num_rounds": 2, "rounds__sample_rate": 1.0}
    return small(**{"data": data, "split": split, "name": SMALL.name, **rounds, **changes})


def three_sites(root: Path) -> Path:
    """Write digits 0 to 2: east as folders, north as CSV with patients, west with few labels."""
    pool = read_digits()
    kept = np.flatnonzero(pool.labels.numpy() < len(CLASSES))[:360]
    rows: dict[str, list[str]] = {"north": ["path,label,group"], "west": ["path,label,split"]}
    for order, index in enumerate(kept.tolist()):
        site, step = NAMES[order % 3], order // 3
        name = CLASSES[int(pool.labels[index])]
        path = Path("scans", f"{step}.png")
        if site == "east":
            path = (
                Path("labelled", name, f"{step}.png")
                if step % 3
                else Path("unlabelled", f"{step}.png")
            )
        elif site == "north":
            rows[site].append(f"{path},{name if step % 4 else ''},patient{step // 2}")
        else:
            part = "test" if step % 4 == 0 else "val" if step % 8 == 1 else "train"
            label = name if part != "train" or step < 20 else ""
            rows[site].append(f"{path},{label},{part}")
        target = root / site / path
        target.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pool.inputs[index, 0].numpy()).save(target)
    for site, lines in rows.items():
        text(root / site, "\n".join(lines) + "\n")
    return root
