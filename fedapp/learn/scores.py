"""What a site knows of a model's fit to its data, kept by content.

Corr(k|j) depends only on the content of w_j and on site k's data, so a score is valid until the
content changes. The MC-dropout passes are keyed by the content too: losing the cache and computing
the score again gives the same numbers.
"""

import hashlib
import json
import logging
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

log = logging.getLogger(__name__)


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
        """File name; the model's digest first, for people."""
        rest = hashlib.sha256(json.dumps(asdict(self)).encode()).hexdigest()[:16]
        return f"{self.model}-{rest}.safetensors"


@dataclass(frozen=True)
class Score:
    """What a model says of the site's training images.

    probabilities: MC-dropout P(y|x) of D_u [n_u, C]; accuracy: on D_s, None without labels.
    usable: False where the model gave NaN for some image: finite weights can still overflow.
    """

    probabilities: Tensor
    accuracy: float | None
    usable: bool = True


class ScoreStore:
    """Scores on disk (`root`), or in memory only (`root` None). It never leaves the site."""

    def __init__(self, root: Path | None = None) -> None:
        self._root = root
        self._memory: dict[str, Score] = {}
        self.computed = 0

    def get(self, key: ScoreKey, compute: Callable[[], Score]) -> Score:
        """Return the score of this key, computing and keeping it where it is new."""
        score = self._read(key.name)
        if score is None:
            score = compute()
            self.computed += 1
            self._write(key.name, score)
        return score

    def keep_newest(self, count: int) -> None:
        """Forget all but the scores that were used last, at least one."""
        for name in list(self._memory)[:-count]:
            del self._memory[name]
        if self._root is not None and self._root.is_dir():
            files = sorted(self._root.iterdir(), key=lambda p: p.stat().st_mtime_ns, reverse=True)
            whole = [path for path in files if path.suffix != ".tmp"]
            for path in set(files).difference(whole[:count]):
                path.unlink(missing_ok=True)

    def _read(self, name: str) -> Score | None:
        if name in self._memory:
            self._memory[name] = self._memory.pop(name)  # used last
            return self._memory[name]
        if self._root is None or not (path := self._root / name).exists():
            return None
        try:
            tensors = load(path.read_bytes())
            os.utime(path)  # used last
            accuracy = tensors["accuracy"].item()
            usable = bool(tensors["usable"].item())
            return Score(tensors["probabilities"], None if accuracy < 0 else accuracy, usable)
        except (SafetensorError, KeyError, ValueError, OSError):
            log.warning("score file %s is damaged; scoring the model again", path)
            return None

    def _write(self, name: str, score: Score) -> None:
        if self._root is None:
            self._memory[name] = score
            return
        known = -1.0 if score.accuracy is None else score.accuracy
        accuracy = torch.tensor(known, dtype=torch.float64)
        tensors = {
            "probabilities": score.probabilities.contiguous(),
            "accuracy": accuracy,
            "usable": torch.tensor(score.usable),
        }
        blob = save(tensors)
        path = self._root / name
        half = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            half.write_bytes(blob)
            half.replace(path)
        except OSError as error:  # a cache: a full disk costs time, not the round
            half.unlink(missing_ok=True)
            self._memory[name] = score
            log.warning("score not kept in %s (%s); it will be computed again", path, error)
