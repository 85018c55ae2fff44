"""Today's numbers of every method preset and of sites with own images: digests of short runs.

`python -m tests.golden.numbers` rewrites `numbers.json`; CONTRIBUTING.md says when.
"""

import hashlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedapp.experiment.config import load_experiment
from fedapp.experiment.presetfiles import method_presets
from tests.flower.results import loopback, results, rows
from tests.own import experiment, three_sites

FILE = Path(__file__).with_name("numbers.json")
SHRUNK = {
    "data.subset": 400,
    "split.num_clients": 4,
    "model.width": 2,
    "training.warmup_epochs": 2,
    "training.local_epochs": 1,
    "rounds.num_rounds": 3,
    "runtime.device": "cpu",
    "runtime.threads": 1,
}
"""Over digits_demo."""
BAGS = {"fedul": 16, "fedpl": 12, "fedllp": 12, "fedllp_vat": 12}
"""Bags a site in runs of presets that learn from them; 12 do not tell a site's classes apart, which
FedUL refuses."""
EARLIER = {"fedsiam_d": {"method.calm_rounds": 1}, "fedsem": {"method.labelled_rounds": 1}}
"""Presets that begin with rounds of another kind, more than there are here."""


def numbers_of(preset: str, out: Path) -> dict[str, Any]:
    """Run a method preset below `out`; return the digests and, for people, the last accuracy."""
    bags = {"split.bags": BAGS.get(preset, 0)}
    shown = {"method.preset": preset, **bags, "runtime.out": str(out / preset)}
    overrides = {**SHRUNK, **shown, **EARLIER.get(preset, {})}
    return digests(loopback(load_experiment("digits_demo", overrides)))


def numbers_of_own(out: Path) -> dict[str, Any]:
    """Run UM-pFSSL below `out` on three sites whose images are files; return the same."""
    wanted = experiment(three_sites(out / "images"), runtime__out=str(out / "runs"))
    return digests(loopback(wanted))


def digests(folder: Path) -> dict[str, Any]:
    """Return the digests of a run's folder and, for people, its last accuracy.

    Without bytes sent: a message with one more field is no change of what is learned.
    """
    lines = rows(folder)
    learned = [{k: v for k, v in line.items() if not k.startswith("bytes_")} for line in lines]
    return {
        "accuracy": round(lines[-1]["mean_test_accuracy"], 4),
        "metrics": digest(learned),
        "per_site": digest((folder / "per_site.csv").read_text()),
        "pool": digest(results(folder)["pool"]),
    }


def digest(value: Any) -> str:
    """SHA-256 of a value as JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def arithmetic() -> str:
    """Return torch's version and what convolutions give here: another kind of CPU has other bits.

    None of the project's code, so that no change of it can pass for another CPU.
    """
    stream = torch.Generator().manual_seed(0)
    total = hashlib.sha256()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for side, channels, wider in ((16, 1, 2), (16, 2, 4), (8, 4, 8), (4, 8, 16), (2, 16, 16)):
            layers = nn.Sequential(
                nn.Conv2d(channels, wider, 3, padding=1, bias=False), nn.BatchNorm2d(wider),
                nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(wider, 10),
            )  # fmt: skip
            for count in (2, 7, 16):
                x = torch.randn(count, channels, side, side, generator=stream)
                loss = torch.log_softmax(layers(x), 1)[:, 0].mean()
                for gradient in torch.autograd.grad(loss, list(layers.parameters())):
                    total.update(gradient.numpy().tobytes())
    return f"torch {torch.__version__.partition('+')[0]}, {total.hexdigest()[:16]}"


def main() -> int:
    """Rewrite the file; say which presets changed."""
    torch.set_num_threads(1)
    old = json.loads(FILE.read_text())["presets"] if FILE.is_file() else {}
    with tempfile.TemporaryDirectory() as out:
        new = {preset: numbers_of(preset, Path(out)) for preset in method_presets()}
        own = numbers_of_own(Path(out))
    numbers = {"arithmetic": arithmetic(), "own_data": own, "presets": new}
    FILE.write_text(json.dumps(numbers, indent=2) + "\n")
    changed = [name for name in new if new[name] != old.get(name)]
    print(f"{FILE.name}: {len(new)} presets, changed: {', '.join(changed) or 'none'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
