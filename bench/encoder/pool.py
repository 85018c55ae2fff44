"""The images that teach an encoder, and those that it is tried on: some classes of a data set."""

from dataclasses import replace

import torch

from bench.command import several
from fedapp.data.datasets import data_root, load_dataset
from fedapp.data.folder import Listing, list_images, read_images
from fedapp.data.images import resize
from fedapp.data.inputs import DataSet
from fedapp.ground.rng import torch_stream
from fedapp.ground.settings import FOLDER, DataSettings

SIZE = 32
"""Pixels a side."""


def pool_of(data: str, classes: str, images: int, seed: int) -> DataSet:
    """Return images of 32 pixels, drawn with a seed; their classes are numbered anew.

    classes: numbers with commas between; empty: all. images: how many; 0: all.
    """
    found: Listing | DataSet = (
        list_images(data_root("")) if data == FOLDER else load_dataset(DataSettings(name=data), 0)
    )
    labels = torch.as_tensor(found.labels)
    wanted = [int(one) for one in several(classes)] or list(range(len(found.classes)))
    kept = torch.isin(labels, torch.tensor(wanted)).nonzero().flatten()
    if images:
        order = torch.randperm(len(kept), generator=torch_stream(seed, "encoder images"))
        kept = kept[order[:images]].sort().values
    places = torch.full((len(found.classes),), -1)
    places[wanted] = torch.arange(len(wanted))
    numbered = places[labels[kept]]
    names = tuple(found.classes[one] for one in wanted)
    if isinstance(found, DataSet):
        inputs = resize(found.inputs[kept], SIZE)
        return replace(found, inputs=inputs, labels=numbered, classes=names)
    return replace(read_images(found, kept.numpy(), SIZE), labels=numbered, classes=names)
