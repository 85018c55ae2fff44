"""Latent features of some sites' test images, for the paper's Fig. 9 (t-SNE)."""

import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedapp.experiment.experiment import Experiment
from fedapp.ground.disk import write_atomic
from fedapp.site.federation import federation_of
from fedapp.tools.compare.final import FinalModels

IMAGES = 300
"""The most of one site."""


def write_latent(run: Path, experiment: Experiment, path: Path) -> None:
    """Write what the head of each site's own final model sees of its test images, as .npz.

    Of four sites with test images, those of `four_sites`. Arrays, an entry per image: features
    float32 [n, D], labels int64 [n], sites int32 [n], mu float32 [n] (the site's share of labels).

    Raises RunError where the run's models are gone.
    """
    # The sites are the same for all methods of a setting, those that see all labels included.
    split = replace(experiment.split, labels="some")
    drawn = federation_of(replace(experiment, split=split)).dealt
    data = [drawn.site(k) for k in range(split.num_clients)]
    mu = [site.mu for site in data]
    chosen = four_sites(mu, [len(site.test_labels) for site in data])
    models = FinalModels(run, experiment, federation_of(experiment))
    parts = [models.features(site, IMAGES) for site in chosen]
    numbers = [len(labels) for _, labels in parts]
    width = models.network.features
    features = [part.numpy() for part, _ in parts] or [np.zeros((0, width), np.float32)]
    labels = [part.numpy() for _, part in parts] or [np.zeros(0, np.int64)]
    file = io.BytesIO()
    np.savez_compressed(
        file,
        features=np.concatenate(features),
        labels=np.concatenate(labels),
        sites=np.repeat(np.array(chosen, np.int32), numbers),
        mu=np.repeat(np.array([mu[k] for k in chosen], np.float32), numbers),
    )
    write_atomic(path, file.getvalue(), durable=True)


def four_sites(shares: Sequence[float], tests: Sequence[int]) -> list[int]:
    """Return the sites of lowest mu, two in the middle, and of highest, fewer if there are no four.

    shares: mu of every site; tests: its number of test images; sites without any are left out.
    """
    having = sorted((k for k, n in enumerate(tests) if n), key=lambda k: (shares[k], k))
    if len(having) <= 4:
        return having
    middle = len(having) // 2
    return [having[0], having[middle - 1], having[middle], having[-1]]
