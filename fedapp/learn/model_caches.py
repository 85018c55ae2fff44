"""Two caches by the digest of a model: parsed models, and a site's scores of models.

A digest identifies a content, so a model that was validated once need not be validated again. The
cache of parsed models is shared by the whole process: by the server and all sites that run in it.

A score tells how a model fits the data of a site. Corr(k|j) depends only on the content of w_j and
on the data of site k, so a score is valid for as long as this content is. The MC-dropout passes are
keyed by the content, too: if the cache is lost, computing a score again gives the same numbers.
Scores never leave the site.
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
"""Bytes of tensors that are cached."""


class ParsedModels:
    """The models last used, up to `memory` bytes. Threads may share it.

    A tensor that is returned must not be changed in place.
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
        """Return a model. If it is not cached, read it and validate it as `from_bytes` does.

        read: returns the content with a digest, after comparing the two.
        """

        def checked() -> Params:
            return from_bytes(read(digest), schema, owner, transport)

        return dict(self.cache.get_or_make(digest, checked, of=(schema, transport)))

    def put(
        self, digest: str, params: Params, schema: Schema, transport: TransportSettings
    ) -> None:
        """Cache a model that `from_bytes` has parsed from the content with this digest."""
        self.cache.put(digest, dict(params), of=(schema, transport))

    def keep_only(
        self, store: ModelStore, digests: Collection[str], *, reuse: bool = False
    ) -> None:
        """Let a store keep these contents only (`ModelStore.keep_only`), and drop the others here.

        Otherwise models of earlier rounds would fill all of `memory`, and the system must clear new
        memory before it can be used.
        """
        self.cache.drop(store.keep_only(digests, reuse=reuse))


PARSED_MODELS = ParsedModels()
"""The cache of this process."""


MAX_SCORES = 64
"""Scores that a site keeps. A model that was rejected once is often drawn again before it changes.
A score is small: 10 kB for 250 images and 10 classes, where a model has 26 MB.
"""
_FILE_OVERHEAD = 512
"""Upper bound of the bytes of a score's file beyond the probabilities."""


@dataclass(frozen=True)
class ScoreKey:
    """Everything that a score depends on, except the last bits that vary between GPUs."""

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
        """The key in the cache and the file's name. It begins with the model's digest."""
        rest = hashlib.sha256(json.dumps(asdict(self)).encode()).hexdigest()[:16]
        return f"{self.model}-{rest}"


@dataclass(frozen=True)
class Score:
    """The answers of a model to the training images of a site.

    probabilities: MC-dropout P(y|x) for D_u, [n_u, C].
    accuracy: on D_s; None without labels.
    usable: False where the model answered NaN to some image, because even finite weights can
        overflow.
    """

    probabilities: Tensor
    accuracy: float | None
    usable: bool = True

    @property
    def nbytes(self) -> int:
        """Bytes that the score takes in a cache."""
        return self.probabilities.nbytes + _FILE_OVERHEAD


def score_cache(images: int, classes: int, folder: Path | None = None) -> Cache[Score]:
    """Return the cache of a site's scores, with room for the last `MAX_SCORES`.

    images: the number of the site's unlabelled images.
    folder: where scores are kept on disk; None: in memory only.
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
