"""The sites of a split data set, as one process sees them: loaded, dealt and kept once."""

from dataclasses import dataclass
from functools import lru_cache

import torch

from fedapp.data.datasets import load_dataset
from fedapp.data.manifest import Manifest
from fedapp.data.partition import partition
from fedapp.data.sites import Dealt
from fedapp.errors import ConfigError
from fedapp.private import PrivateParts
from fedapp.scores import ScoreStore
from fedapp.settings import DataSettings, Experiment, SplitSettings
from fedapp.site import Site, pick_device
from fedapp.store import ModelStore


@dataclass(frozen=True)
class Federation:
    """A data set dealt to its sites."""

    dealt: Dealt
    classes: tuple[str, ...]
    manifest: Manifest

    def site(
        self,
        number: int,
        experiment: Experiment,
        store: ModelStore,
        scores: ScoreStore,
        private: PrivateParts,
        shares_pool: bool = False,
    ) -> Site:
        """Return a site that works on its part of the data."""
        return Site(
            experiment=experiment,
            data=self.dealt.site(number),
            classes=self.classes,
            manifest=self.manifest.digest(),
            store=store,
            scores=scores,
            private=private,
            device=pick_device(experiment.runtime.device),
            shares_pool=shares_pool,
        )


def federation_of(experiment: Experiment) -> Federation:
    """Load and deal the experiment's data, once per process."""
    device = pick_device(experiment.runtime.device)
    return _federation(experiment.data, experiment.split, experiment.seed, str(device))


@lru_cache(maxsize=1)
def _federation(data: DataSettings, split: SplitSettings, seed: int, device: str) -> Federation:
    images = load_dataset(data, seed)
    if split.num_clients > len(images.labels):
        raise ConfigError(
            f"split.num_clients = {split.num_clients}: must be at most the number of images, "
            f"{len(images.labels)}"
        )
    if split.manifest:
        manifest = Manifest.load(split.manifest)
        if manifest.num_clients != split.num_clients:
            raise ConfigError(
                f"split.manifest {split.manifest}: deals to {manifest.num_clients} sites, but "
                f"split.num_clients = {split.num_clients}; use the preset it was made with"
            )
    else:
        manifest = partition(images.labels, split, seed, data.name)
    if split.labels == "all":
        manifest = manifest.revealed()
    return Federation(Dealt(images, manifest, torch.device(device)), images.classes, manifest)
