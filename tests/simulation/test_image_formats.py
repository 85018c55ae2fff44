"""Three sites, the same values as DICOM, 16-bit PNG and 8-bit PNG: to the bit the same models."""

import os
from pathlib import Path

import numpy as np
import pytest
from pydicom.uid import JPEG2000Lossless, RLELossless

from fedapp.core.errors import DataError
from fedapp.core.settings import DataSettings
from fedapp.data.datasets import load_dataset
from fedapp.data.own import OwnDataError
from fedapp.experiment.experiment import Experiment
from fedapp.site import federation
from tests.flower.results import loopback, results
from tests.imagefiles import dicom, raster, twelve_bits
from tests.own import CLASSES, NAMES, agreed, experiment, text

ROOT = os.environ.get("FEDAPP_DATA", "")
"""Of this machine; within a test it is another."""
SYNTAXES = ("", RLELossless, JPEG2000Lossless)


def pool(name: str) -> tuple[np.ndarray, list[str]]:
    """Return 240 real images of three classes, uint8 [240, 32, 32], and their classes' names."""
    try:
        data = load_dataset(DataSettings(name=name, root=ROOT, download=False), 0)
    except DataError:
        pytest.skip(f"{name} is not on this machine")
    kept = np.flatnonzero(data.labels.numpy() < len(CLASSES))[:240]
    images = data.inputs[kept, 0].numpy()
    if images.shape[1] == 8:
        images = images.repeat(4, 1).repeat(4, 2)
    margin = (32 - images.shape[1]) // 2
    images = np.pad(images, ((0, 0), (margin, margin), (margin, margin)))
    return images, [CLASSES[label] for label in data.labels[kept].tolist()]


def write(root: Path, kinds: tuple[str, str, str], images: np.ndarray, names: list[str]) -> Path:
    """Deal the images to three sites in turn, each with files of its own kind."""
    lines = {site: ["path,label,split"] for site in NAMES}
    for number, (levels, name) in enumerate(zip(images, names, strict=True)):
        site, step = NAMES[number % 3], number // 3
        kind = kinds[number % 3]
        file = root / site / f"{step:03}.{'dcm' if kind == 'dicom' else 'png'}"
        if kind == "dicom":  # rescaled to the same values, stored in ways that differ
            stored, shift = twelve_bits(levels).astype(np.int16) - 1024, 1024
            syntax, fields = SYNTAXES[step % 3], {"RescaleSlope": 1, "RescaleIntercept": shift}
            dicom(file, stored, 16, syntax, **fields)
        else:
            raster(file, twelve_bits(levels) if kind == "16 bits" else levels)
        part = ("test", "val", "train", "train")[step % 4]
        label = name if part != "train" or step < 40 else ""
        lines[site].append(f"{file.name},{label},{part}")
    for site, rows in lines.items():
        text(root / site, "\n".join(rows) + "\n")
    return root


def run(root: Path, window: str = "0, 4095") -> Experiment:
    federation.forget()
    settings = agreed(root=str(root / "data"), image_size=16, window=window)
    return experiment(root, data=settings, runtime__out=str(root / "runs"))


@pytest.mark.parametrize("name", ["digits", pytest.param("fashion_mnist", marks=pytest.mark.slow)])
def test_where_values_are_equal_models_are(tmp_path, name):
    images, names = pool(name)
    found = []
    for kinds in (("dicom", "16 bits", "8 bits"), ("8 bits", "8 bits", "8 bits")):
        root = tmp_path / kinds[0]
        write(root / "data", kinds, images, names)
        found.append(results(loopback(run(root))))
    assert found[0] == found[1]


def test_without_a_window_the_server_learns_which_rule_is_broken_and_no_name(tmp_path):
    images, names = pool("digits")
    write(tmp_path / "data", ("dicom", "16 bits", "8 bits"), images[:12], names[:12])
    for window, site in (("", 0), ("", 1), ("dicom", 0)):
        wanted = run(tmp_path, window)
        sites = federation.federation_of(wanted).dealt
        with pytest.raises(OwnDataError) as caught:
            sites.site(site)
        assert "data.window does not say how to show them" in caught.value.for_server
        assert "000." not in caught.value.for_server and "000." in str(caught.value)
        assert sites.site(2).labelled.shape[1:] == (1, 16, 16)


def test_the_window_is_among_what_sites_must_share(tmp_path):
    images, names = pool("digits")
    write(tmp_path / "data", ("8 bits",) * 3, images[:12], names[:12])
    digests = [federation.federation_of(run(tmp_path, w)).digest for w in ("", "dicom", "0,9")]
    assert len({*digests}) == 3
    assert federation.federation_of(run(tmp_path, " 0.0 , 9 ")).digest == digests[2]
