"""The problem of all contenders: the same images, split, cohorts, network and initial model."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from fedapp.core.rng import numpy_stream
from fedapp.core.settings import DataSettings
from fedapp.data.datasets import load_dataset
from fedapp.data.inputs import DataSet, normalise
from fedapp.data.split.manifest import TEST, TRAIN, VAL, Manifest, labels_digest
from fedapp.learn.networks import (
    Network,
    NetworkSettings,
    build_model,
    initial_params,
    network_settings,
)
from fedapp.learn.params import Params

SEED = 0


@dataclass(frozen=True)
class Setting:
    """A federation of K sites with equally many images each, all of them labelled.

    Attributes:
        name: for readers.
        data: name of the data set.
        network: settings `model.*` by name.
        sites: K.
        train, val, test: number of images of a site.
        batch_size: a divisor of `train`, so that nobody drops images or has a smaller last batch.
        share: tau, the share of sites that train in a round.
        epochs: local epochs of a round.
        learning_rate: of SGD.
        momentum: of SGD.
        warm_up: number of rounds that do not count.
    """

    name: str
    data: str
    network: Mapping[str, str | int | float]
    sites: int
    train: int
    val: int
    test: int
    batch_size: int
    share: float = 0.5
    epochs: int = 1
    learning_rate: float = 0.01
    momentum: float = 0.9
    warm_up: int = 1

    @property
    def images(self) -> int:
        """Images of all sites."""
        return self.sites * (self.train + self.val + self.test)

    @property
    def cohort(self) -> int:
        """Number of sites that train in a round."""
        return math.ceil(self.share * self.sites - 1e-9)


@dataclass(frozen=True)
class Problem:
    """A setting with everything that was drawn for it, in a folder that every contender reads.

    evaluate: whether contenders evaluate in every round. rounds: number of rounds to run.
    """

    folder: Path
    setting: Setting
    evaluate: bool
    rounds: int

    @classmethod
    def load(cls, folder: Path, evaluate: bool, rounds: int) -> Self:
        """Read the files that `write` wrote."""
        setting = Setting(**json.loads((folder / "setting.json").read_text()))
        return cls(folder, setting, evaluate, rounds)

    @property
    def manifest_path(self) -> Path:
        """File with the split."""
        return self.folder / "manifest.safetensors"

    @cached_property
    def manifest(self) -> Manifest:
        """Who holds which image."""
        return Manifest.load(self.manifest_path)

    @cached_property
    def pool(self) -> DataSet:
        """All images."""
        data = _data(self.setting)
        return load_dataset(data, SEED)

    @cached_property
    def cohorts(self) -> tuple[tuple[int, ...], ...]:
        """The sites that train in each round, ascending, drawn as the engine draws them."""
        drawn = []
        for number in range(1, self.rounds + 1):
            order = numpy_stream(SEED, "cohort", number).permutation(self.setting.sites)
            drawn.append(tuple(sorted(order[: self.setting.cohort].tolist())))
        return tuple(drawn)

    def part(self, site: int, split: int) -> tuple[Tensor, Tensor]:
        """Return a site's images of TRAIN, VAL or TEST, normalised float32, and their labels."""
        chosen = torch.from_numpy(self.manifest.indices(site, split))
        images = normalise(self.pool.inputs[chosen], self.pool.mean, self.pool.std)
        return images, self.pool.labels[chosen]

    @property
    def classes(self) -> int:
        """Classes of the data set."""
        return len(self.pool.classes)

    def network(self) -> Network:
        """Return the network with the initial weights w_0. Convolutions are channels-last."""
        network = build_model(_network(self.setting), self._inputs, self.classes)
        network.load_state_dict(self.w_0)
        return network

    @cached_property
    def w_0(self) -> Params:
        """The initial model of all contenders."""
        return initial_params(_network(self.setting), self._inputs, self.classes, SEED)

    @property
    def start(self) -> Params:
        """The trained tensors of w_0, which all contenders average.

        Some contenders do not average the statistics of batch norm.
        """
        return {name: self.w_0[name] for name, _ in self.network().named_parameters()}

    @property
    def _inputs(self) -> tuple[int, ...]:
        return tuple(self.pool.inputs.shape[1:])


def write(setting: Setting, folder: Path) -> None:
    """Split the images at random, and write the setting and the split into the folder."""
    pool = load_dataset(_data(setting), SEED)
    each = setting.train + setting.val + setting.test
    parts = np.repeat([TRAIN, VAL, TEST], [setting.train, setting.val, setting.test])
    order = numpy_stream(SEED, "peers").permutation(setting.images)
    site, split = np.empty(setting.images, np.int32), np.empty(setting.images, np.uint8)
    site[order] = np.arange(setting.images) // each
    split[order] = np.tile(parts, setting.sites)
    manifest = Manifest(
        dataset=setting.data,
        num_clients=setting.sites,
        num_classes=int(pool.labels.max()) + 1,
        seed=SEED,
        site=site,
        split=split,
        visible=np.ones(setting.images, bool),
        labels_sha256=labels_digest(pool.labels.numpy()),
    )
    folder.mkdir(parents=True)
    manifest.save(folder / "manifest.safetensors")
    (folder / "setting.json").write_text(json.dumps(asdict(setting)))


def save_model(model: Mapping[str, Tensor], path: Path) -> None:
    """Write a model's tensors, in torch's standard memory layout."""
    save_file({name: t.detach().contiguous() for name, t in model.items()}, path)


def apart(model: Path, other: Path, start: Mapping[str, Tensor]) -> float:
    """Return |w - v| / |v - w_0|, with L2 norms over the tensors of `start`, which is w_0.

    The result is 0 if w equals v, and 1 if w differs from v as much as training changed v.

    model, other: files of w and v. Raises ZeroDivisionError where v equals w_0.
    """

    def far(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> float:
        return math.hypot(*(float((a[n].double() - b[n].double()).norm()) for n in start))

    right = load_file(other)
    return far(load_file(model), right) / far(right, start)


def _data(setting: Setting) -> DataSettings:
    return DataSettings(name=setting.data, subset=setting.images)


def _network(setting: Setting) -> NetworkSettings:
    fields = dict(setting.network)
    return network_settings(str(fields.pop("name")), fields)
