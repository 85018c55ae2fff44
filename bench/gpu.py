"""What a GPU makes of it: scoring and training rates, then the paper's full Fashion-MNIST run.

`python -m bench.gpu [--minutes N] [key=value ...]` measures images per second and TFLOP/s in
float32 and bfloat16 beside a large bfloat16 product (bench/throughput.py), says how long the run
will compute, runs the preset `fashion_mnist` in the loopback driver (bench/paper_run.py), and then
times other ways to train. With `--minutes` it stops after the last round that fits; the same
command then goes on with the run in `runtime.out`, without measuring again. `--toy`: digits and a
tiny network on the CPU, in seconds; nothing is written to bench/results, its figures mean nothing.
"""

import sys
import time
from collections.abc import Sequence
from tempfile import TemporaryDirectory
from typing import Annotated

import torch
import typer

from bench.paper_run import has_begun, run_rows
from bench.record import Row, save, show
from bench.throughput import Size, throughput, training_ways
from fedapp.experiment.config import load_experiment, parse_overrides
from fedapp.experiment.experiment import Experiment
from fedapp.ground.devices import pick_device, pick_dtype, torch_threads
from fedapp.ground.errors import ConfigError, FedAppError
from fedapp.ground.text import duration
from fedapp.site.federation import Federation, federation_of

PRESET = "fashion_mnist"
TOY = (
    "data.name=digits",
    "data.subset=300",
    "split.num_clients=4",
    "model.width=4",
    "training.local_epochs=1",
    "training.warmup_epochs=1",
    "rounds.num_rounds=3",
    "rounds.sample_rate=0.5",
    "method.mc_samples=2",
    "runtime.device=cpu",
)
CARD = Size(scored=10_000, trained=490, matrix=8192, repetitions=10)
"""490: a site's images, 70,000 times 0.7 over 100 sites."""
TINY = Size(scored=40, trained=40, matrix=64, repetitions=1)


def main(
    overrides: Annotated[list[str] | None, typer.Argument(help="key=value ...")] = None,
    toy: Annotated[bool, typer.Option("--toy", help="tiny, on the CPU, not recorded")] = False,
    minutes: Annotated[float | None, typer.Option(help="end before so many are over")] = None,
) -> None:
    """Measure scoring and training on a GPU, then run the paper's Fashion-MNIST setting."""
    deadline = None if minutes is None else time.monotonic() + 60 * minutes
    given = overrides or []
    try:
        with TemporaryDirectory(prefix="bench-") as away:
            bench(experiment_of(given, toy, away), given, toy, deadline)
    except FedAppError as error:
        print(f"bench.gpu: {error}", file=sys.stderr)
        raise SystemExit(2) from None


def experiment_of(overrides: Sequence[str], toy: bool, away: str) -> Experiment:
    """Return the run's settings; a toy's run folder is in `away` unless `runtime.out` is given.

    Raises ConfigError without a GPU, unless it is a toy.
    """
    if not toy and not torch.cuda.is_available():
        raise ConfigError("no GPU: run this where PyTorch finds one, or try it with --toy")
    ours = (*TOY, f"runtime.out={away}") if toy else ("runtime.device=cuda",)
    settings = {**parse_overrides(ours), "runtime.run_name": f"bench-gpu-{PRESET}"}
    return load_experiment(PRESET, settings | parse_overrides(overrides))


def bench(experiment: Experiment, given: Sequence[str], toy: bool, deadline: float | None) -> None:
    """Measure unless the run has begun, then run until it ends or `deadline` (monotonic) is near.

    given: the overrides, for the record.
    """

    def keep(name: str, rows: Sequence[Row]) -> None:
        if toy:
            show(name, rows)
        else:
            save(name, rows, {"preset": PRESET, "setting": given, "seed": experiment.seed})

    federation = federation_of(experiment)
    if not has_begun(experiment):
        with torch_threads(experiment.runtime.threads):
            rows = throughput(experiment, TINY if toy else CARD)
        keep("gpu", rows)
        expected = duration(projected(experiment, federation, rows))
        print(f"projected: {expected} of scoring and training; the rest comes on top", flush=True)
    done = run_rows(experiment, federation, deadline)
    if done is None:
        print("stopped in time; the same command goes on from here")
        return
    keep("gpu-run", done)
    with torch_threads(experiment.runtime.threads):
        keep("gpu-training", training_ways(experiment, TINY if toy else CARD))


def projected(experiment: Experiment, federation: Federation, rows: Sequence[Row]) -> float:
    """Return the seconds of scoring and training that a run takes at the rates of `throughput`.

    As many models are scored as the paper lets travel (Eq. 28): each is scored where it arrives.
    """
    runtime, rounds, training = experiment.runtime, experiment.rounds, experiment.training
    dtype = pick_dtype(runtime.precision, pick_device(runtime.device))
    rate = {
        row["what"]: per_s
        for row in rows
        if f"torch.{row['precision']}" == str(dtype) and isinstance(per_s := row["per_s"], float)
    }
    clients = experiment.split.num_clients
    sites = [federation.dealt.site(k) for k in range(clients)]
    labelled = sum(len(site.labelled) for site in sites)
    unlabelled = sum(len(site.unlabelled) for site in sites)
    costs = experiment.method.costs(clients, rounds.sample_rate, rounds.num_rounds)
    bound: float = costs.get("cost_bound_models", 0.0)
    passes = rounds.num_rounds * rounds.sample_rate * training.local_epochs
    trained = passes * (labelled + unlabelled) + training.warmup_epochs * labelled
    return trained / rate["training"] + bound * unlabelled / clients / rate["scoring"]


if __name__ == "__main__":
    typer.run(main)
