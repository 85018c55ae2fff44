"""What a site knows of a model's fit to its data, kept by content.

Corr(k|j) depends only on the content of w_j and on site k's data, so a score is valid until the
content changes. The MC-dropout passes are keyed by the content too: losing the cache and computing
the score again gives the same numbers. Scores never leave the site.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import load, save
from torch import Tensor

from fedapp.core.cache import Cache, Files

KEPT = 64
"""Scores a site keeps: a model turned down once is often drawn again before it changes. A score is
small: 10 kB for 250 images and 10 classes, where a model has 26 MB."""
_AROUND = 512
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
        return self.probabilities.nbytes + _AROUND


def score_cache(images: int, classes: int, folder: Path | None = None) -> Cache[Score]:
    """Return the cache of a site's scores, with room for the `KEPT` used last.

    images: the site's unlabelled ones. folder: where they are kept on the disk too; None: nowhere.
    """
    files = None if folder is None else Files(folder, "scores", _to_bytes, _from_bytes)
    each = Score(torch.empty(images, classes), None).nbytes
    return Cache(KEPT * each, files)


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
