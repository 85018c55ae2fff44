"""This project's FedAvg in the loopback simulation, as `fedapp run` runs it."""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from tempfile import TemporaryDirectory

from bench.peers.probes import Mark
from bench.peers.problem import SEED, Problem
from fedapp.core.process_tuning import tune_own_process
from fedapp.experiment.config import load_experiment
from fedapp.experiment.experiment import Experiment
from fedapp.experiment.run_folder import out_root
from fedapp.learn.params import Params, from_bytes, schema_of
from fedapp.methods.averaging.base import aggregate_round
from fedapp.methods.averaging.fedavg import FedAvg
from fedapp.methods.base import MethodState, Round
from fedapp.protocol.messages import SERVER_SITE, Reply, Task
from fedapp.protocol.store import ModelStore
from fedapp.simulation.loopback import run_loopback

RUN = "run"


def run(problem: Problem, mark: Mark) -> None:
    """Run the rounds, with the evaluation of every run if asked for (docs/PERFORMANCE.md)."""
    tune_own_process()
    with TemporaryDirectory(prefix="bench-") as out:
        experiment = experiment_of(problem, out)
        schema = schema_of(problem.w_0)

        def model(digest: str) -> Params:
            store = ModelStore(out_root(experiment) / RUN / "pool")
            return from_bytes(store.get(digest), schema, "the server", experiment.transport)

        class Marked(FedAvg):
            """FedAvg that marks the beginning of each round, and evaluates only if asked to."""

            def server_round(
                self, state: MethodState, rnd: Round
            ) -> Generator[Sequence[Task], Sequence[Reply], MethodState]:
                """Mark, average, perhaps evaluate."""
                if rnd.number:
                    newest = rnd.pool.latest(SERVER_SITE)
                    mark(lambda: model(newest.digest))
                    if rnd.cohort != set(problem.cohorts[rnd.number - 1]):
                        raise SystemExit("the cohorts of bench.peers and of the engine differ")
                if problem.evaluate:
                    return (yield from super().server_round(state, rnd))
                yield from aggregate_round(rnd, self.weight)
                return state

        run_loopback(replace(experiment, method=Marked()))


def experiment_of(problem: Problem, out: str) -> Experiment:
    """Return the run's settings. Round 0 trains no site, and sites keep no models."""
    setting = problem.setting
    overrides: Mapping[str, str | int | float | bool] = {
        "seed": SEED,
        "data.name": setting.data,
        "data.subset": setting.images,
        "split.num_clients": setting.sites,
        "split.labels": "all",
        "split.manifest": str(problem.manifest_path),
        **{f"model.{name}": value for name, value in setting.network.items()},
        "training.local_epochs": setting.epochs,
        "training.warmup_epochs": 0,
        "training.warmup_rounds": 1,
        "training.batch_size": setting.batch_size,
        "training.learning_rate": setting.learning_rate,
        "training.momentum": setting.momentum,
        "rounds.num_rounds": problem.rounds + 1,  # the last round's end is the next one's beginning
        "rounds.sample_rate": setting.share,
        "method.preset": "fedavg",
        "runtime.models": False,
        "runtime.device": "cpu",
        "runtime.out": out,
        "runtime.run_name": RUN,
    }
    return load_experiment("fashion_mnist_small", overrides)
