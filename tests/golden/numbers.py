"""Today's numbers of every method preset and of sites with own images: digests of short runs.

Another torch or another kind of CPU has other bits. For those stands beside the digests what was
learned in a few numbers (`sketch`), and how far these moved when the same torch used no wide
instructions, as an older CPU has none, or on a CPU of another make where that was more (`moved`).

`python -m tests.golden.numbers` rewrites `numbers.json`; CONTRIBUTING.md says when.
"""

import csv
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from fedapp.core.formatting import csv_text
from fedapp.evaluation.verdict import PAIRS
from fedapp.experiment.config import load_experiment
from fedapp.experiment.preset_files import method_presets
from fedapp.server.standings import LONE_VALIDATION
from tests.flower.results import loopback, results, rows
from tests.golden.sketch import apart, sketch
from tests.own import experiment, three_sites

ROOT = Path(__file__).parents[2]
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


OLDER = {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"}
"""The environment in which torch and its convolutions use no wide instructions."""
OWN = "own_data"
"""The name of the run on sites with own images."""


WILD = {
    "fedavg_plus", "fedavg_sl", "fedbn_sl", "fedfixmatch", "fedllp", "fedllp_vat", "fedmatch",
    "fixprox", "flexproto_prox", "protofssl", "um_pfssl_mi", "um_pfssl_no_aggregation",
    "um_pfssl_no_search", "um_pfssl_ta",
}  # fmt: skip
"""Presets whose run other bits move by a tenth and more: tiny networks learn fast on few images."""
SLOWLY = {"training.learning_rate": 0.001}
"""So that other bits move them by less than a hundredth."""


def near(name: str, out: Path) -> dict[str, list[float]]:
    """Return the sketch of a run that other bits hardly move."""
    return sketch(run_of(name, out, SLOWLY if name in WILD else {}))


def run_of(name: str, out: Path, changes: Mapping[str, float] = MappingProxyType({})) -> Path:
    """Run a method preset below `out`, or the run that is no preset's."""
    if name == OWN:
        wanted = experiment(three_sites(out / "images"), runtime__out=str(out / "runs"))
        return loopback(wanted)
    bags = {"split.bags": BAGS.get(name, 0)}
    shown = {"method.preset": name, **bags, "runtime.out": str(out / name)}
    overrides = {**SHRUNK, **shown, **EARLIER.get(name, {}), **changes}
    return loopback(load_experiment("digits_demo", overrides))


def digests(folder: Path) -> dict[str, Any]:
    """Return the digests of a run's folder and, for people, its last accuracy.

    Without bytes sent, nor what is counted for the verdict alone: a message with one more field is
    no change of what is learned.
    """
    lines = rows(folder)
    learned = [{k: v for k, v in line.items() if not k.startswith("bytes_")} for line in lines]
    return {
        "accuracy": round(lines[-1]["mean_test_accuracy"], 4),
        "metrics": digest(learned),
        "per_site": digest(_learned(folder / "per_site.csv")),
        "pool": digest(results(folder)["pool"]),
    }


def _learned(path: Path) -> str:
    """Return the text of per_site.csv without what is counted for the verdict alone."""
    head, *lines = csv.reader(path.read_text().splitlines())
    of = [k for k, name in enumerate(head) if name not in {*PAIRS, LONE_VALIDATION}]
    return csv_text([[line[k] for k in of] for line in (head, *lines)])


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


def sketches(names: Sequence[str]) -> None:
    """Print the sketch of these runs, a line of JSON each."""
    with tempfile.TemporaryDirectory() as out:
        for name in names:
            with redirect_stdout(sys.stderr):
                found = near(name, Path(out))
            print(json.dumps([name, found]), flush=True)


def elsewhere(names: Sequence[str]) -> dict[str, dict[str, list[float]]]:
    """Return the sketches of these runs with other bits."""
    again = [sys.executable, "-m", "tests.golden.numbers", *names]
    env = {**os.environ, **OLDER}
    older = subprocess.run(again, cwd=ROOT, env=env, stdout=subprocess.PIPE, check=True)
    return dict(map(json.loads, older.stdout.splitlines()))


def main() -> int:
    """Rewrite the file; say which presets changed."""
    torch.set_num_threads(1)
    if sys.argv[1:]:
        sketches(sys.argv[1:])
        return 0
    old = json.loads(FILE.read_text())["runs"] if FILE.is_file() else {}
    new = {}
    with tempfile.TemporaryDirectory() as out:
        for name in (OWN, *method_presets()):
            folder = run_of(name, Path(out))
            found = near(name, Path(out) / "near") if name in WILD else sketch(folder)
            new[name] = {**digests(folder), "sketch": found}
    for name, found in elsewhere(list(new)).items():
        new[name]["moved"] = float(f"{apart(new[name]['sketch'], found):.2g}")
    FILE.write_text(json.dumps({"arithmetic": arithmetic(), "runs": new}, indent=1) + "\n")
    changed = [name for name in new if new[name] != old.get(name)]
    print(f"{FILE.name}: {len(new)} runs, changed: {', '.join(changed) or 'none'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
