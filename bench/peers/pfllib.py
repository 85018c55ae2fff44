"""FedAvg of PFLlib (github.com/TsingZ0/PFLlib), from a checkout's folder `system`.

Its server and clients run unchanged. Set from outside are the data (one file for each site), the
cohorts, and the momentum of SGD, for which it has no setting; the momentum survives between rounds
here. It does not average the statistics of batch norm.
"""

import os
from argparse import Namespace
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from bench.peers.probes import Mark
from bench.peers.problem import Problem
from fedapp.data.split.manifest import TEST, TRAIN

DATASET = "bench"


def run(problem: Problem, mark: Mark) -> None:
    """Run the rounds; its `evaluate` runs before each of them if asked for."""
    fedavg: Any = import_module("flcore.servers.serveravg").FedAvg

    class Server(fedavg):  # type: ignore[misc]
        """Its server with our cohorts and marks."""

        def select_clients(self) -> list[Any]:
            """Mark the round's beginning; return the cohort."""
            mark(lambda: dict(self.global_model.named_parameters()))
            self.current_num_join_clients = problem.setting.cohort
            return [self.clients[k] for k in next(cohorts)]

        def evaluate(self) -> None:
            """Evaluate if the problem asks for it."""
            if problem.evaluate:
                super().evaluate()

    cohorts = iter(problem.cohorts)
    with TemporaryDirectory(prefix="bench-") as folder:
        _write_data(problem, Path(folder) / "dataset" / DATASET)
        (Path(folder) / "system").mkdir()
        os.chdir(Path(folder) / "system")  # it reads ../dataset
        server = Server(_arguments(problem), times=0)
        for client in server.clients:
            weights = client.model.parameters()
            setting = problem.setting
            client.optimizer = torch.optim.SGD(weights, setting.learning_rate, setting.momentum)
        server.train()


def _write_data(problem: Problem, folder: Path) -> None:
    for split, name in ((TRAIN, "train"), (TEST, "test")):
        (folder / name).mkdir(parents=True)
        for site in range(problem.setting.sites):
            images, labels = problem.part(site, split)
            data = {"x": images.numpy(), "y": labels.numpy()}
            np.savez_compressed(folder / name / f"{site}.npz", data=np.array(data, dtype=object))


def _arguments(problem: Problem) -> Namespace:
    """Return the arguments of its command line; what FedAvg does not use is off."""
    setting = problem.setting
    return Namespace(
        algorithm="FedAvg",
        dataset=DATASET,
        device="cpu",
        model=problem.network(),
        num_classes=problem.classes,
        num_clients=setting.sites,
        join_ratio=setting.share,
        random_join_ratio=False,
        global_rounds=problem.rounds,
        local_epochs=setting.epochs,
        batch_size=setting.batch_size,
        local_learning_rate=setting.learning_rate,
        learning_rate_decay=False,
        learning_rate_decay_gamma=0.99,
        eval_gap=1,
        few_shot=0,
        client_drop_rate=0.0,
        train_slow_rate=0.0,
        send_slow_rate=0.0,
        time_select=False,
        time_threthold=10000,
        goal="bench",
        save_folder_name="items",
        top_cnt=100,
        auto_break=False,
        dlg_eval=False,
        dlg_gap=100,
        batch_num_per_client=2,
        num_new_clients=0,
        fine_tuning_epoch_new=0,
    )
