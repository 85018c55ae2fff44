"""A frozen encoder in simulations: what it answers is made once and kept for all runs.

Heads over a frozen network cost a thousandth of the network itself. So a comparison of many methods
on the same images needs each answer once: to every image, and to eight random views of it, which
take the place of new views at every step. They form a bank, a folder with one file for each view.

The inputs of sites are then no images but places in the bank, float32 [n, 1]
(`fedapp.data.augment.place`). Methods work with places as with images.
"""

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import field as plain_field
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch
from filelock import FileLock
from pydantic.dataclasses import dataclass as settings
from torch import Tensor

from fedapp.core.disk import write_error
from fedapp.core.errors import ConfigError, DataError
from fedapp.core.progress import slow_work_notice
from fedapp.core.rng import torch_stream
from fedapp.core.settings import CLOSED
from fedapp.data.augment import VIEWS, WEAK_VIEWS, place, strong, weak
from fedapp.data.datasets import data_root
from fedapp.data.inputs import normalise
from fedapp.data.split.groups import equal_inputs
from fedapp.learn.frozen_answers import INPUTS_PER_CALL
from fedapp.learn.networks.base import Draw, Features
from fedapp.learn.networks.encoder import Body, Encoder, EncoderSettings
from fedapp.learn.uncertainty import dropout_sample

VERSION = 1
"""Of how views are drawn and files are written. A bank of another version is made anew."""
CHUNK = 1024
"""Images whose views are drawn from one stream, and that are written at a time."""


@dataclass(eq=False)
class Bank:
    """Answers of a frozen network to images, view by view; each view is made at its first use.

    images: uint8 [N, C, H, W], all different. flip: whether views may be mirrored. answer: the
        network, float32 [INPUTS_PER_CALL, C, H, W] -> float32 [INPUTS_PER_CALL, width]. folder: of
        this bank alone. A file of it is written by one process at a time; the others wait.
    """

    images: Tensor
    flip: bool
    answer: Callable[[Tensor], Tensor]
    width: int
    folder: Path
    _tables: dict[int, Tensor] = plain_field(default_factory=dict)

    @classmethod
    def of(cls, images: Tensor, flip: bool, body: Body, root: Path) -> Self:
        """Return the bank of these images and this body in a folder below `root`."""
        arithmetic = torch.__version__, torch.backends.cpu.get_cpu_capability()
        on = [VERSION, CHUNK, list(images.shape), flip, body.identity, arithmetic]
        key = hashlib.sha256(json.dumps(on).encode())
        key.update(images.numpy().data)
        return cls(images, flip, body, body.width, root / key.hexdigest())

    @torch.no_grad()
    def __call__(self, places: Tensor) -> Tensor:
        """Return the answers to the views at these places [n, 1], float32 [n, width].

        Raises ConfigError where a number is no place: a mixture of two images has no answer here,
        and the mean of their places is the place of a third image.
        """
        number = places[:, 0].long()
        if not torch.equal(number.float(), places[:, 0]):
            raise ConfigError(
                "model.name = 'encoder_bank': has no answer to a mixture of images, as in MixUp: "
                "set method.mixup=0 or model.name=encoder"
            )
        image, view = number.div(VIEWS, rounding_mode="floor"), (number % VIEWS).tolist()
        if len(set(view)) == 1:
            return self._table(view[0]).index_select(0, image)
        out = np.empty((len(places), self.width), np.float32)
        tables = {each: self._table(each).numpy() for each in set(view)}
        for row, (which, of) in enumerate(zip(view, image.tolist(), strict=True)):
            out[row] = tables[which][of]  # faster than an index for each view
        return torch.from_numpy(out)

    def _table(self, view: int) -> Tensor:
        if view not in self._tables:
            self._tables[view] = self._opened(view)
        return self._tables[view]

    def _opened(self, view: int) -> Tensor:
        """Map the file of a view, float32 [N, width]; make it first where it is not there."""
        path = self.folder / f"view-{view}.npy"
        if not path.is_file():
            self._make(view, path)
        try:
            found = np.load(path, mmap_mode="c", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise DataError(f"{path}: cannot be read ({error}): remove it") from error
        if found.dtype != np.float32 or found.shape != (len(self.images), self.width):
            raise DataError(f"{path}: holds {found.dtype} {list(found.shape)}: remove it")
        return torch.from_numpy(found)

    def _make(self, view: int, path: Path) -> None:
        """Write the file of a view; go on where an earlier process was stopped."""
        part = path.with_suffix(".part")
        shape = (len(self.images), self.width)
        header = {"descr": "<f4", "fortran_order": False, "shape": shape}
        what = f"view {view} of {len(self.images):,} images through the encoder, made once"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with FileLock(part.with_suffix(".lock")), slow_work_notice(what):
                if path.is_file():  # another process made it meanwhile
                    return
                with part.open("ab") as file:
                    if not file.tell():
                        np.lib.format.write_array_header_1_0(file, header)
                        file.flush()
                    with part.open("rb") as begun:
                        np.lib.format.read_magic(begun)
                        np.lib.format.read_array_header_1_0(begun)
                        start = begun.tell()
                    chunk_bytes = CHUNK * self.width * 4
                    whole = (file.tell() - start) // chunk_bytes
                    file.truncate(start + whole * chunk_bytes)
                    for first in range(whole * CHUNK, len(self.images), CHUNK):
                        file.write(self._answers(view, first).numpy().data)
                        file.flush()
                    os.fsync(file.fileno())
                part.replace(path)
        except OSError as error:
            raise write_error(path, error, 4 * shape[0] * shape[1]) from error

    @torch.no_grad()
    def _answers(self, view: int, first: int) -> Tensor:
        """Return the answers to a view of the chunk that begins with image `first`."""
        images = self.images[first : first + CHUNK]
        if view:
            draw = weak if view <= WEAK_VIEWS else strong
            images = draw(images, self.flip, torch_stream(VERSION, "bank of views", view, first))
        channels = images.shape[1]
        x = normalise(images, (0.0,) * channels, (1.0,) * channels)
        found = []
        with torch.autocast("cpu", enabled=False):
            for some in x.split(INPUTS_PER_CALL):
                asked = x.new_zeros(INPUTS_PER_CALL, *x.shape[1:])
                asked[: len(some)] = some
                found.append(self.answer(asked)[: len(some)].float())
        return torch.cat(found)


_BANKS: list[Bank] = []
"""The bank of this process's simulation; it runs one at a time. Empty: there is none yet."""


class BankedEncoder(Encoder):
    """Maps places in the bank, float32 [n, 1], to logits float32 [n, num_classes]."""

    def trunk(self, x: Tensor) -> Features:
        """Look the answers up."""
        if not _BANKS or x.ndim != 2:
            raise ConfigError(
                "model.name = 'encoder_bank': is for simulations without Flower: set "
                "model.name=encoder"
            )
        return (_BANKS[0](x.cpu()).to(x.device),)

    def embed(self, features: Features, dropout: Draw | None = None) -> Tensor:
        """Drop values by `halved` wherever the usual dropout would be drawn with p = 1 / 2."""
        usual = dropout is dropout_sample or (dropout is None and self.training)
        if usual and self.dropout.p == 0.5 and self.features % 8 == 0:
            return halved(features[0])
        return super().embed(features, dropout)


def halved(x: Tensor) -> Tensor:
    """Keep each value with probability 1 / 2, times 2. The size of x is a multiple of 8.

    A random bit for each value: torch's own dropout takes most of the time of a step of a head.
    """
    count = x.numel() // 8
    drawn = torch.randint(-(2**63), 2**63 - 1, (count // 8 + 1,)).view(torch.uint8)[:count]
    bits = torch.from_numpy(np.unpackbits(drawn.numpy(), bitorder="little")).view(x.shape)
    return bits.mul_(2).to(x.device, x.dtype).mul_(x)  # one pass over bytes in place of floats


@settings(frozen=True, config=CLOSED)
class EncoderBankSettings(EncoderSettings):
    """For simulations of many runs on the same images: as `encoder`, with the body frozen.

    Weak and strong views come from a bank of eight for each image, so strong_view=cutout cannot be
    used. Needs 5 kB for each image, and for each view that a method asks for, in
    $FEDAPP_DATA/features.
    """

    name: ClassVar[str] = "encoder_bank"
    simulated: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuse a body that is trained. Raises ValueError."""
        super().__post_init__()
        if self.trained != "head":
            raise ValueError("trained must be head: answers are made once; else model.name=encoder")

    def stand_in(self, images: Tensor, flip: bool) -> Tensor:
        """Return the places of images, float32 [N, 1]; equal images have one place.

        Raises ConfigError where the inputs are no images.
        """
        if images.dtype != torch.uint8:
            raise ConfigError("model.name = 'encoder_bank': takes images: set model.name=mlp")
        groups = equal_inputs(images)
        which = torch.arange(len(images)) if groups is None else torch.from_numpy(groups)
        first = np.unique(which.numpy(), return_index=True)[1]
        body = self.body_for()
        _BANKS[:] = [
            Bank.of(images[torch.from_numpy(first)], flip, body, data_root("") / "features")
        ]
        return place(which)

    def network(self, inputs: tuple[int, ...], num_classes: int) -> BankedEncoder:
        """Build the head; the body is only asked for what the bank lacks."""
        return BankedEncoder(self.body_for(), [], num_classes, self.dropout)

    def misfit(self, inputs: tuple[int, ...]) -> str:
        """Accept places, and images, which places will stand for."""
        return "" if inputs == (1,) else super().misfit(inputs)


NETWORK = EncoderBankSettings
"""A frozen network whose answers are made once, for simulations of many runs."""
