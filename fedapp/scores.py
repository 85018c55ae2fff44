"""What a site knows of a model's fit to its data, kept by content.

Corr(k|j) depends only on the content of w_j and on site k's data, so a score is valid until the
content changes. The MC-dropout passes are keyed by the content too: losing the cache and computing
the score again gives the same numbers.
"""

import hashlib
import json
import logging
import os
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ScoreKey:
    """Everything a score depends on."""

    model: str
    """Digest of the model."""
    data: str
    """Fingerprint of the site's training data."""
    passes: int
    dropout: float
    seed: int

    @property
    def name(self) -> str:
        """File name: the model's digest first, so that pruning needs no parsing of the rest."""
        rest = hashlib.sha256(json.dumps(asdict(self)).encode()).hexdigest()[:16]
        return f"{self.model}-{rest}.safetensors"


@dataclass(frozen=True)
class Score:
    """probabilities: MC-dropout P(y|x) of D_u [n_u, C]; accuracy: on D_s, None without labels."""

    probabilities: Tensor
    accuracy: float | None


class ScoreStore:
    """Scores on disk (`root`), or in memory only (`root` None). It never leaves the site."""

    def __init__(self, root: Path | None = None) -> None:
        self._root = root
        self._memory: dict[str, Score] = {}
        self.computed = 0
        if root is not None:
            root.mkdir(parents=True, exist_ok=True)

    def get(self, key: ScoreKey, compute: Callable[[], Score]) -> Score:
        """Return the score of this key, computing and keeping it where it is new."""
        score = self._read(key.name)
        if score is None:
            score = compute()
            self.computed += 1
            self._write(key.name, score)
        return score

    def keep_only(self, models: Collection[str]) -> None:
        """Forget the scores of every other model."""
        if self._root is None:
            kept = {n: s for n, s in self._memory.items() if n.split("-")[0] in models}
            self._memory = kept
        else:
            for path in self._root.iterdir():
                if path.name.split("-")[0] not in models:
                    path.unlink(missing_ok=True)

    def _read(self, name: str) -> Score | None:
        if self._root is None:
            return self._memory.get(name)
        if not (path := self._root / name).exists():
            return None
        try:
            tensors = load(path.read_bytes())
            accuracy = tensors["accuracy"].item()
            return Score(tensors["probabilities"], None if accuracy < 0 else accuracy)
        except (SafetensorError, KeyError, ValueError, OSError):
            log.warning("score file %s is damaged; scoring the model again", path)
            return None

    def _write(self, name: str, score: Score) -> None:
        if self._root is None:
            self._memory[name] = score
            return
        known = -1.0 if score.accuracy is None else score.accuracy
        accuracy = torch.tensor(known, dtype=torch.float64)
        blob = save({"probabilities": score.probabilities.contiguous(), "accuracy": accuracy})
        path = self._root / name
        half = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        try:
            half.write_bytes(blob)
            half.replace(path)
        except OSError as error:  # a cache: a full disk costs time, not the round
            half.unlink(missing_ok=True)
            log.warning("score not kept in %s (%s); it will be computed again", path, error)
