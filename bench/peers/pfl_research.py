"""FedAvg of pfl-research (github.com/apple/pfl-research), from a checkout.

Its algorithm, simulated backend and PyTorch model run unchanged, combined as in its own benchmarks.
Data and cohorts are set from outside. It uses a site's images in the same order in every epoch, and
does not average the statistics of batch norm.
"""

from collections.abc import Iterable, Iterator
from functools import partial
from importlib import import_module
from itertools import chain, cycle
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.peers.probes import Mark
from bench.peers.problem import Problem
from fedapp.data.split.manifest import TEST, TRAIN
from fedapp.learn.networks import Network

NEVER = 10**9
"""An evaluation frequency, in rounds, that is never reached."""


class Model(nn.Module):
    """Our network with the loss and the metrics that its models must have."""

    def __init__(self, network: Network, weighted: Any) -> None:
        super().__init__()
        self.network, self._weighted = network, weighted

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the mean cross entropy, in training mode."""
        self.network.train()
        return F.cross_entropy(self.network(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        """Return loss and accuracy as sums."""
        self.network.eval()
        logits = self.network(x)
        loss, right = F.cross_entropy(logits, y, reduction="sum"), (logits.argmax(1) == y).sum()
        sums = {"loss": loss.item(), "accuracy": right.item()}
        return {name: self._weighted(value, len(y)) for name, value in sums.items()}


def run(problem: Problem, mark: Mark) -> None:
    """Run the rounds; its evaluation is of the cohort before and after, then of every site."""
    algorithm = import_module("pfl.algorithm.base")
    fedavg: Any = import_module("pfl.algorithm.federated_averaging").FederatedAveraging
    callback: Any = import_module("pfl.callback.base").TrainingProcessCallback
    hyper, metrics = import_module("pfl.hyperparam"), import_module("pfl.metrics")
    setting, network = problem.setting, problem.network()

    class Marker(callback):  # type: ignore[misc]
        """Calls the marks between its iterations."""

        def on_train_begin(self, *, model: Any) -> Any:
            """Mark the beginning."""
            mark(lambda: dict(network.named_parameters()))
            return metrics.Metrics()

        def after_central_iteration(
            self, aggregate_metrics: Any, model: Any, *, central_iteration: int
        ) -> tuple[bool, Any]:
            """Mark the end of a round."""
            mark(lambda: dict(network.named_parameters()))
            return False, metrics.Metrics()

    class Algorithm(fedavg):  # type: ignore[misc]
        """Counts iterations from 1, because it always evaluates in iteration 0."""

        def get_next_central_contexts(self, model: Any, iteration: int, *rest: Any) -> Any:
            """Return the contexts of the next iteration."""
            return super().get_next_central_contexts(model, iteration + 1, *rest)

    wrapped = Model(network, metrics.Weighted)
    batch = {"local_batch_size": setting.batch_size}
    Algorithm().run(
        algorithm_params=algorithm.NNAlgorithmParams(
            central_num_iterations=problem.rounds + 1,
            evaluation_frequency=1 if problem.evaluate else NEVER,
            train_cohort_size=setting.cohort,
            val_cohort_size=setting.sites,
        ),
        backend=import_module("pfl.aggregate.simulate").SimulatedBackend(
            training_data=_federated(problem, TRAIN, chain.from_iterable(problem.cohorts)),
            val_data=_federated(problem, TEST, cycle(range(setting.sites))),
            postprocessors=[import_module("pfl.aggregate.weighting").WeightByDatapoints()],
        ),
        model=import_module("pfl.model.pytorch").PyTorchModel(
            model=wrapped,
            local_optimizer_create=partial(torch.optim.SGD, momentum=setting.momentum),
            central_optimizer=torch.optim.SGD(wrapped.parameters(), lr=1.0),
        ),
        model_train_params=hyper.NNTrainHyperParams(
            local_learning_rate=setting.learning_rate, local_num_epochs=setting.epochs, **batch
        ),
        model_eval_params=hyper.NNEvalHyperParams(**batch),
        callbacks=[Marker()],
    )


def _federated(problem: Problem, split: int, users: Iterable[int]) -> Any:
    """Return the sites' images as its data set, which yields sites in the order of `users`."""
    data = {site: problem.part(site, split) for site in range(problem.setting.sites)}
    order: Iterator[int] = iter(users)
    federated: Any = import_module("pfl.data.federated_dataset").FederatedDataset
    return federated.from_slices(data, lambda: next(order))
