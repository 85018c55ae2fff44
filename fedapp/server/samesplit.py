"""Whether an earlier run's models have learned from images that a new run tests on."""

from pathlib import Path

import numpy as np

from fedapp.data.manifest import TEST, TRAIN, Manifest
from fedapp.ground.errors import RunError

MANIFEST = "manifest.safetensors"
"""A split's file in a run folder."""


def check_same_split(earlier: Path, theirs: str, ours: str, folder: Path) -> None:
    """Check that a data set which the program splits is split alike in two runs.

    earlier, theirs: the earlier run's folder and its manifest's digest. folder, ours: the new
    run's. Equal digests are enough, and then no file is needed. Else both manifests must be there,
    be of the same pool, and give every image the same site and part. Raises RunError.

    Which training labels are visible may differ. A site that is onboarded may have hidden or
    revealed labels since (`split.labels`), which moves no image to another site
    or part. The number of sites may differ too: without an image nobody is moved. The owner must
    be the same, for two reasons: a site of the earlier run may come and go on from its model, and a
    new site must not hold its peers' images.

    Where sites have images of their own, there is nothing to compare here: nobody knows who holds
    which image, and a new site's images were in no other site's hands.
    """
    if theirs == ours:
        return
    if difference := _difference(earlier, folder):
        saved = earlier / MANIFEST
        raise RunError(
            f"runtime.peers {earlier}: its split is {theirs[:12]}, here {ours[:12]}, and "
            f"{difference}; a model must not be tested on images that it learned from: give that "
            f"run's data.*, split.* and seed{f', or split.manifest={saved}' * saved.exists()}"
        )


def _difference(earlier: Path, folder: Path) -> str:
    """Return how the manifests in two run folders differ in what matters; empty: they do not."""
    for path in (earlier, folder):
        if not (path / MANIFEST).exists():
            return f"{path} holds no {MANIFEST} to compare"
    theirs, ours = Manifest.load(earlier / MANIFEST), Manifest.load(folder / MANIFEST)
    digests = {theirs.labels_sha256, ours.labels_sha256} - {""}  # empty: unknown
    if theirs.dataset != ours.dataset or len(theirs.site) != len(ours.site) or len(digests) > 1:
        return "the two are of other images"
    tests = ours.split == TEST
    if learned := np.count_nonzero(tests & (theirs.split == TRAIN)):
        return f"{learned} of {np.count_nonzero(tests)} test images here were for training there"
    moved = np.count_nonzero((theirs.site != ours.site) | (theirs.split != ours.split))
    return f"{moved} of {len(ours.site)} images have another site or part" if moved else ""
