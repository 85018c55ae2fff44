"""FedAvg of FL-bench (github.com/KarhouTam/FL-bench), from a checkout, in its serial mode.

Its server, trainer and client run unchanged, with its default settings except those of the problem.
Data, split and cohorts are set from outside. It normalises single images in its data set, and
averages the statistics of batch norm.
"""

import json
import pickle
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch import Tensor, nn
from torchvision import transforms

from bench.peers.probes import Mark
from bench.peers.problem import Problem
from fedapp.data.split.manifest import TEST, TRAIN, VAL

DATASET = "bench"


def run(problem: Problem, mark: Mark) -> None:
    """Run the rounds; its own evaluation is of the sites that train, before and after training."""
    servers: Any = import_module("src.server.fedavg")
    server: Any = servers.FedAvgServer
    kind: Any = import_module("src.utils.models").DecoupledModel

    class Model(kind):  # type: ignore[misc]
        """Our network as its type of model."""

        def __init__(self) -> None:
            super().__init__()
            self.base, self.classifier = problem.network(), nn.Identity()

    class Server(server):  # type: ignore[misc]
        """Its server with our network, images, cohorts and marks."""

        def init_model(self) -> None:
            """Take our network."""
            super().init_model(Model())

        def get_dataset(self) -> Any:
            """Take our images, scaled to [0, 1] and normalised as it normalises its own."""
            scale = transforms.Compose([transforms.Normalize(problem.pool.mean, problem.pool.std)])
            dataset: Any = import_module("data.utils.datasets").BaseDataset
            return dataset(
                problem.pool.inputs.float(),
                problem.pool.labels,
                list(range(problem.classes)),
                train_data_transform=scale,
                test_data_transform=scale,
            )

        def train(self) -> None:
            """Mark the beginning of the first round."""
            self.client_sample_stream = [list(cohort) for cohort in problem.cohorts]
            mark(self.shared)
            super().train()

        def display_metrics(self) -> None:
            """Mark the end of a round."""
            super().display_metrics()
            mark(self.shared)

        def shared(self) -> Mapping[str, Tensor]:
            """Return the common model under our names."""
            return {n.removeprefix("base."): t for n, t in self.public_model_params.items()}

    with TemporaryDirectory(prefix="bench-") as folder:
        servers.FLBENCH_ROOT = Path(folder)  # where it looks for the split
        _write_split(problem, Path(folder) / "data" / DATASET)
        Server(_arguments(problem, folder)).train()


def _write_split(problem: Problem, folder: Path) -> None:
    sites = list(range(problem.setting.sites))
    parts = {"train": TRAIN, "val": VAL, "test": TEST}
    indices = [
        {name: problem.manifest.indices(k, split).tolist() for name, split in parts.items()}
        for k in sites
    ]
    separation = {"train": sites, "val": sites, "test": sites, "total": len(sites)}
    folder.mkdir(parents=True)
    (folder / "args.json").write_text(json.dumps({"split": "sample"}))
    plain = {"separation": separation, "data_indices": indices}
    (folder / "partition.pkl").write_bytes(pickle.dumps(plain))


def _arguments(problem: Problem, folder: str) -> Any:
    """Return its default settings with the problem's, as its command line would give them."""
    setting, config = problem.setting, import_module("omegaconf").OmegaConf
    hydra = import_module("hydra.core.hydra_config").HydraConfig
    hydra.instance().cfg = config.create({"hydra": {"runtime": {"output_dir": folder}}})
    defaults = config.create(import_module("src.utils.constants").DEFAULTS)
    ours = {
        "dataset": {"name": DATASET},
        "optimizer": {"lr": setting.learning_rate, "momentum": setting.momentum},
        "common": {
            "join_ratio": setting.share,
            "global_epoch": problem.rounds,
            "local_epoch": setting.epochs,
            "batch_size": setting.batch_size,
            "client_side_evaluation": problem.evaluate,
            "use_cuda": False,
            "save_log": False,
        },
    }
    return config.merge(defaults, ours)
