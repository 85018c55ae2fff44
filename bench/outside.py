"""What does a searching round of a wide network cost outside the network?

`python -m bench.outside [--rounds N] [--quick] [key=value ...]`: 20 sites with 140 images of
Fashion-MNIST each and models of 26 MB (ResNet-9 of width 64), loopback driver, one process. Half of
the sites train in a round, all look for helpers. CPU time of the process, of which inside: scoring,
evaluation and training; outside: all else, such as models read, checked, hashed, averaged and
written. Every round after the warm-up counts once.
"""

import time
from tempfile import TemporaryDirectory
from unittest.mock import patch

from bench.command import Overrides, Quick, Rounds, carry_out
from bench.measure import Times, laps, watched
from bench.record import Row, save
from fedapp.drivers.loopback import run_loopback
from fedapp.experiment.config import load_experiment, parse_overrides
from fedapp.experiment.presetfiles import Scalar
from fedapp.ground.progress import Progress
from fedapp.methods import base
from fedapp.methods.um_pfssl import method

PRESET = "fashion_mnist_small"
SETTING = (
    "model.width=64",
    "data.subset=2800",
    "training.local_epochs=1",
    "training.warmup_epochs=1",
    "method.search_rounds=100",
    "method.update_every=100",
    "runtime.device=cpu",
    "data.download=false",
)
TOY = ("data.name=digits", "data.image_size=16", "data.subset=400", "model.width=2")
NETWORK = (
    (method, "mc_probabilities"),
    (method, "predict"),
    (base, "predict_each"),
    (base, "train"),
)
"""Functions in which the network works; none calls another one."""


def main(overrides: Overrides = None, rounds: Rounds = 4, quick: Quick = False) -> None:
    """Run once; save CPU seconds of a round, in all, inside and outside."""
    toy = parse_overrides(TOY) if quick else {}
    ends: list[tuple[float, float]] = []
    with TemporaryDirectory(prefix="bench-") as out, watched({"network": NETWORK}) as watches:

        def end(*_: object) -> None:
            ends.append((time.process_time(), watches["network"].inside))

        own: dict[str, Scalar] = {"rounds.num_rounds": 1 if quick else rounds, "runtime.out": out}
        settings = {**parse_overrides(SETTING), **own, **toy, **parse_overrides(overrides or [])}
        with patch.object(Progress, "round_done", end):
            run_loopback(load_experiment(PRESET, settings))
    whole, inside = (laps(each) for each in zip(*ends, strict=True))
    outside = [all_of - part for all_of, part in zip(whole, inside, strict=True)]
    rows = [_row("a round", whole, whole), _row("outside the network", outside, whole)]
    save("outside", rows, {"preset": PRESET, "setting": SETTING}, quick=quick)


def _row(what: str, seconds: list[float], of: list[float]) -> Row:
    times = Times(tuple(seconds))
    share = times.over(Times(tuple(of)))["ratio"]
    return {"what": what, **times.row(), "percent_of_round": round(100 * share, 1)}


if __name__ == "__main__":
    carry_out(main)
