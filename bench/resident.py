"""What does the resident worker save? Rounds on three real SuperNodes with and without it.

`python -m bench.resident [--rounds N] [--repetitions N] [--quick] [key=value ...]`: a SuperLink and
three SuperNodes on this machine, without TLS, each with a store of its own as on machines of their
own; handwritten digits and a narrow ResNet-9, so that a round is almost only Flower's and Python's
time.
"worker": a resident worker a site; "process a message": `worker-idle-s=0`, all is imported and
loaded for each message. The two take turns, each time with new SuperNodes. Rounds are timed by the
run itself (metrics.jsonl), from a round's end to the next one's; `start_s` is the time before:
who is there, and the warm-up, in which the workers are started.
"""

from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from bench.command import Overrides, Quick, Rounds, Turns, carry_out
from bench.deployment import deployment
from bench.measure import in_turns, laps, rounds_beside
from bench.record import save
from fedapp.experiment.records import Records

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
    overrides: Overrides = None, rounds: Rounds = 6, repetitions: Turns = 3, quick: Quick = False
) -> None:
    """Run both cases in turn; save seconds per round and their ratio."""
    if quick:
        rounds, repetitions = 2, 1
    setting = [*SETTING, *(overrides or [])]
    cases = {case: partial(seconds, case, setting, rounds) for case in IDLE_S}
    runs = in_turns(cases, repetitions)
    rows = rounds_beside({c: [run[1:] for run in runs[c]] for c in runs}, "worker", median)
    for row in rows:
        row["start_s"] = round(median(run[0] for run in runs[row["case"]]), 1)
    notes = {"preset": PRESET, "setting": setting, "sites": SITES}
    save("resident", rows, notes, quick=quick)


def seconds(case: str, setting: list[str], rounds: int) -> list[float]:
    """Run once on new SuperNodes; return the seconds before round 1, then those of each round."""
    with TemporaryDirectory(prefix="bench-") as folder, deployment(Path(folder)) as here:
        for number in range(SITES):
            here.node(**{"partition-id": number, "worker-idle-s": IDLE_S[case]})
        own = [f"rounds.num_rounds={rounds}", f"runtime.out={folder}/out", "runtime.run_name=run"]
        said = here.run(APP, PRESET, [*setting, *own])
        lines = Records(Path(folder, "out/run")).metrics()
    if not lines:
        raise SystemExit(said)
    if skipped := [line["skipped"] for line in lines if line["skipped"]]:
        raise SystemExit(f"{case}: sites did not answer: {skipped}")
    taken = laps([0.0, *(line["wall_seconds"] for line in lines)])
    print(f"{case}: {[round(s, 1) for s in taken]} s, the start first", flush=True)
    return taken


if __name__ == "__main__":
    carry_out(main)
