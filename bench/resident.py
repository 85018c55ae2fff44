"""What does the resident worker save? Rounds on three real SuperNodes with and without it.

`python -m bench.resident [--rounds N] [--repetitions N] [key=value ...]`: a SuperLink and three
SuperNodes on this machine, without TLS, each with a store of its own as on machines of their own;
handwritten digits and a narrow ResNet-9, so that a round is almost only Flower's and Python's time.
"worker": a resident worker a site; "process a message": `worker-idle-s=0`, all is imported and
loaded for each message. The two take turns, each time with new SuperNodes. Rounds are timed by the
run itself (metrics.jsonl), from a round's end to the next one's; `start_s` is the time before:
who is there, and the warm-up, in which the workers are started.
"""

import json
import tempfile
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Annotated

import typer

from bench.deployment import deployment
from bench.record import Row, save

APP = Path(__file__).parents[1]
SITES = 3
PRESET = "digits_demo"
SETTING = (
    f"split.num_clients={SITES}",
    "data.subset=500",
    "model.width=4",
    "training.local_epochs=1",
    "training.warmup_epochs=1",
    "method.preset=um_pfssl",
    "method.helper_list_size=2",
    "method.num_replaced=1",
    "method.mc_samples=3",
    "method.search_rounds=100",
    "rounds.sample_rate=1.0",
    "rounds.join_wait_s=120.0",
)
IDLE_S = {"worker": 600, "process a message": 0}
"""Cases and their `worker-idle-s`."""


def main(
    overrides: Annotated[list[str] | None, typer.Argument()] = None,
    rounds: int = 6,
    repetitions: int = 3,
    name: str = "resident",
) -> None:
    """Run both cases in turn; save seconds per round and their ratio."""
    setting = [*SETTING, *(overrides or [])]
    taken: dict[str, list[float]] = {case: [] for case in IDLE_S}
    starts: dict[str, list[float]] = {case: [] for case in IDLE_S}
    ratios = []
    for repetition in range(repetitions):
        once = {}
        for case in sorted(IDLE_S, reverse=bool(repetition % 2)):
            start, *once[case] = seconds(case, setting, rounds)
            starts[case].append(start)
            taken[case] += once[case]
            print(f"{case}: {start:.1f}, then {[round(s, 1) for s in once[case]]} s", flush=True)
        ratios.append(median(once["process a message"]) / median(once["worker"]))
    rows: list[Row] = [
        {
            "case": case,
            "rounds": len(values),
            "median_s": round(median(values), 2),
            "min_s": round(min(values), 2),
            "max_s": round(max(values), 2),
            "start_s": round(median(starts[case]), 1),
            "ratio": round(median(ratios), 2) if IDLE_S[case] == 0 else 1.0,
            "ratio_min": round(min(ratios), 2) if IDLE_S[case] == 0 else 1.0,
            "ratio_max": round(max(ratios), 2) if IDLE_S[case] == 0 else 1.0,
        }
        for case, values in taken.items()
    ]
    save(name, rows, {"preset": PRESET, "setting": setting, "sites": SITES})


def seconds(case: str, setting: list[str], rounds: int) -> list[float]:
    """Run once on new SuperNodes; return the seconds before round 1, then those of each round."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, deployment(Path(folder)) as here:
        for number in range(SITES):
            here.node(**{"partition-id": number, "worker-idle-s": IDLE_S[case]})
        own = [f"rounds.num_rounds={rounds}", f"runtime.out={folder}/out", "runtime.run_name=run"]
        said = here.run(APP, PRESET, [*setting, *own])
        path = Path(folder, "out/run/metrics.jsonl")
        if not path.is_file():
            raise SystemExit(said)
        lines = [json.loads(line) for line in path.read_text().splitlines()]
    if skipped := [line["skipped"] for line in lines if line["skipped"]]:
        raise SystemExit(f"{case}: sites did not answer: {skipped}")
    ends = [0.0, *(line["wall_seconds"] for line in lines)]
    return [after - before for before, after in pairwise(ends)]


if __name__ == "__main__":
    typer.run(main)
