"""Models that were read and checked, by their content: one model is asked for by many sites.

A content has one meaning, so what was checked once need not be checked again. Kept for the whole
process: server and sites share it where they are one process.
"""

import hashlib
import json
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import load, save
from torch import Tensor

from fedapp.core.cache import Cache, CacheFiles
from fedapp.core.settings import TransportSettings
from fedapp.learn.params import Params, Schema, from_bytes
from fedapp.protocol.store import ModelStore

MAX_MODEL_BYTES = 512 * 2**20
"""Most bytes of tensors that are kept."""


class ParsedModels:
    """The models last used, up to `memory` bytes. Threads may share it.

    Nobody may change a tensor that comes from here in place.
    """

    def __init__(self, memory: int = MAX_MODEL_BYTES) -> None:
        self.cache = Cache[Params](memory)

    def get(
        self,
        digest: str,
        read: Callable[[str], bytes],
        schema: Schema,
        owner: str,
        transport: TransportSettings,
    ) -> Params:
        """Return a model; where it is not known, read it and check it as `from_bytes` does.

        read: returns the content of a digest, having compared the two.
        """

        def checked() -> Params:
            return from_bytes(read(digest), schema, owner, transport)

        return dict(self.cache.get_or_make(digest, checked, of=(schema, transport)))

    def put(
        self, digest: str, params: Params, schema: Schema, transport: TransportSettings
    ) -> None:
        """Keep a model that `from_bytes` made of the content of this digest."""
        self.cache.put(digest, dict(params), of=(schema, transport))

    def keep_only(
        self, store: ModelStore, digests: Collection[str], *, reuse: bool = False
    ) -> None:
        """Let a store keep these contents only (`ModelStore.keep_only`), and forget what goes.

        Models of earlier rounds would otherwise fill all of `memory`, each in memory that the
        system must first clear.
        """
        self.cache.drop(store.keep_only(digests, reuse=reuse))


PARSED_MODELS = ParsedModels()
"""This process's."""


MAX_SCORES = 64
"""Scores a site keeps: a model turned down once is often drawn again before it changes. A score is
small: 10 kB for 250 images and 10 classes, where a model has 26 MB."""
_FILE_OVERHEAD = 512
"""Bytes of a score's file at most, beside the probabilities."""


@dataclass(frozen=True)
class ScoreKey:
    """Everything a score depends on, but for the last bits that a GPU changes."""

    model: str
    """Digest of the model."""
    site: int
    data: str
    """Fingerprint of the site's training data."""
    passes: int
    dropout: float
    precision: str
    """Number format of the model's convolutions."""
    seed: int

    @property
    def name(self) -> str:
        """The key in the cache, and the file's name; the model's digest first, for people."""
        rest = hashlib.sha256(json.dumps(asdict(self)).encode()).hexdigest()[:16]
        return f"{self.model}-{rest}"


@dataclass(frozen=True)
class Score:
    """What a model says of the site's training images.

    probabilities: MC-dropout P(y|x) of D_u [n_u, C]; accuracy: on D_s, None without labels.
    usable: False where the model gave NaN for some image: finite weights can still overflow.
    """

    probabilities: Tensor
    accuracy: float | None
    usable: bool = True

    @property
    def nbytes(self) -> int:
        """Bytes that it takes in a cache."""
        return self.probabilities.nbytes + _FILE_OVERHEAD


def score_cache(images: int, classes: int, folder: Path | None = None) -> Cache[Score]:
    """Return the cache of a site's scores, with room for the `MAX_SCORES` used last.

    images: the site's unlabelled ones. folder: where they are kept on the disk too; None: nowhere.
    """
    files = None if folder is None else CacheFiles(folder, "scores", _to_bytes, _from_bytes)
    each = Score(torch.empty(images, classes), None).nbytes
    return Cache(MAX_SCORES * each, files)


def _to_bytes(score: Score) -> bytes:
    known = -1.0 if score.accuracy is None else score.accuracy
    return save(
        {
            "probabilities": score.probabilities.contiguous(),
            "accuracy": torch.tensor(known, dtype=torch.float64),
            "usable": torch.tensor(score.usable),
        }
    )


def _from_bytes(blob: bytes) -> Score:
    tensors = load(blob)
    accuracy = tensors["accuracy"].item()
    known = None if accuracy < 0 else accuracy
    return Score(tensors["probabilities"], known, bool(tensors["usable"].item()))
