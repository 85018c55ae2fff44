"""Which methods train many sites as one batch (`runtime.grouped`), and why others do not.

`python -m bench.grouping [--quick]`: each preset of a method for two rounds on digits, ResNet-9 of
width 2; how many of its trainings were done in groups, how many by the loop, and what was said.
"""

import logging
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from bench.command import Quick, carry_out
from bench.record import Row, save
from fedapp.drivers.loopback import run_loopback
from fedapp.experiment.config import load_experiment
from fedapp.experiment.presetfiles import Scalar, method_presets
from fedapp.ground.errors import FedAppError
from fedapp.learn import together, training

SETTINGS: dict[str, Scalar] = {
    "data.subset": 400,
    "split.num_clients": 4,
    "model.width": 2,
    "training.warmup_epochs": 1,
    "training.local_epochs": 1,
    "rounds.num_rounds": 2,
    "runtime.device": "cpu",
    "runtime.models": False,
    "runtime.grouped": True,
}
OF_BAGS = ("fedllp", "fedllp_vat", "fedpl", "fedul")
"""Presets that learn from bags alone."""


def main(quick: Quick = False) -> None:
    """Run the presets and save the table."""
    names = method_presets()[:2] if quick else method_presets()
    save("grouping", [row(name) for name in names], quick=quick)


def row(name: str) -> Row:
    """Return how a preset's trainings were done."""
    counts, said = {"grouped": 0, "loop": 0}, list[str]()
    groups, loop = together._trained, training._looped

    def grouped(lot: Sequence[together.Training]) -> Any:
        before = sum(bool(one.losses) for one in lot)
        found = groups(lot)
        counts["grouped"] += len(lot) - before
        return found

    def looped(*given: Any) -> float | None:
        counts["loop"] += 1
        return loop(*given)

    def heard(record: logging.LogRecord) -> bool:
        said.append(record.getMessage().rpartition("one by one: ")[2])
        return False

    together.say_one_by_one.cache_clear()
    together._hindrance.cache_clear()
    together.log.addFilter(heard)
    patches = patch.object(together, "_trained", grouped), patch.object(training, "_looped", looped)
    try:
        with TemporaryDirectory(prefix="bench-") as out, patches[0], patches[1]:
            bags: dict[str, Scalar] = {"split.bags": 16} if name in OF_BAGS else {}
            over = {**SETTINGS, **bags, "method.preset": name}
            experiment = load_experiment("digits_demo", over)
            runtime = replace(experiment.runtime, out=out)
            with redirect_stdout(StringIO()):
                run_loopback(replace(experiment, runtime=runtime), lambda *_: "")
    except FedAppError as error:
        said.append(f"does not run at this size: {str(error)[:200]}")
    finally:
        together.log.removeFilter(heard)
    if not (said or any(counts.values())):
        said.append("no network is trained")
    return {"preset": name, **counts, "why by the loop": "; ".join(dict.fromkeys(said))}


if __name__ == "__main__":
    carry_out(main)
