"""Which of a run's models should a site keep? `docs/research/keeping.md` has what came out.

`python -m bench.keeping record OUT [METHOD ...]` runs every method x alpha x seed below, of the
size of conf/sweeps/results_fashion_mnist.yaml, and writes down what every answer that a site has
after every round says of its validation images, and what it is worth on `TRUTH` images of the
site's own class mix that nobody else has seen. `python -m bench.keeping rules OUT` prints, for each
rule, what the model that it keeps is worth.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedapp.data.datasets import load_dataset
from fedapp.data.manifest import Manifest
from fedapp.drivers.loopback import Loopback
from fedapp.experiment.config import load_experiment
from fedapp.experiment.experiment import Experiment
from fedapp.experiment.runfolder import open_run
from fedapp.ground.rng import numpy_stream
from fedapp.learn.networks import build_model
from fedapp.learn.predictors import Predictor, answer_of
from fedapp.messages.protocol import ANSWERS, Task
from fedapp.methods.base import SiteContext, SiteReport
from fedapp.server.assembly import Assembly, carry_out
from fedapp.site.federation import federation_of
from fedapp.site.keeping import as_measured
from fedapp.site.servers import servers_site

METHODS = ("local_only", "fedavg", "fedavg_ft", "um_pfssl", "fedper", "recommended")
ALPHAS, SEEDS = (0.5, 5.0), (210, 211, 212)
SIZE = {
    "data.image_size": 14,
    "data.subset": 4000,
    "split.num_clients": 10,
    "training.warmup_epochs": 20,
    "training.local_steps": 25,
    "training.augment": "weak",
    "rounds.num_rounds": 10,
}
TRUTH = 500
"""Images a site by which its models are judged; the same for all models of a site."""
USED = "used"


@dataclass(frozen=True)
class Truth:
    """Images that stand for all that a site will ever see, and their labels."""

    images: Tensor
    labels: Tensor


class Recorder:
    """Writes down every answer of one site."""

    def __init__(self, experiment: Experiment, truth: Truth, rows: list[dict[str, object]]) -> None:
        self._experiment, self._truth, self._rows = experiment, truth, rows

    def take(self, task: Task, report: SiteReport, site: SiteContext) -> None:
        """Ask each answer that was measured."""
        if "val" not in report.evaluations:
            return
        method = self._experiment.method
        task, context = as_measured(task, report, site)
        found = report.evaluations
        others = [n for n in ANSWERS if f"val_{n}" in found and found[f"val_{n}"] != found["val"]]
        for name in (USED, *others):
            used = name == USED
            found = method.used(task, context) if used else method.single(name, task, context)
            images, labels = site.labelled_part("val")
            val = self._asked(found, images, site)
            truth = self._asked(found, self._truth.images, site)
            self._rows.append({
                "site": task.site, "round": task.round, "answer": name,
                "right": (val.argmax(1) == labels).numpy(),
                "given": val[torch.arange(len(labels)), labels].numpy(),
                "labelled": len(site.data.labels), "mu": site.data.mu,
                "truth": float((truth.argmax(1) == self._truth.labels).double().mean()),
            })  # fmt: skip

    def _asked(self, found: Mapping[str, Predictor], images: Tensor, site: SiteContext) -> Tensor:
        networks = []
        for one in found.values():
            inputs, classes = site.data.inputs, site.data.num_classes
            network = build_model(self._experiment.model, inputs, classes)
            network.load_state_dict(one.params)
            networks.append((network.eval(), one))
        return answer_of(networks, images, site.normalise)


def truths(experiment: Experiment, manifest: Manifest) -> dict[int, Truth]:
    """Draw each site's `TRUTH` images from those that the subset left, by the site's class mix."""
    whole = load_dataset(replace(experiment.data, subset=0), experiment.seed)
    used = load_dataset(experiment.data, experiment.seed)
    seen = {one.numpy().tobytes() for one in used.inputs}
    free = np.array([one.numpy().tobytes() not in seen for one in whole.inputs])
    labels, found = whole.labels.numpy(), {}
    for site in range(manifest.num_clients):
        draws = numpy_stream(experiment.seed, "truth", site)
        own = used.labels.numpy()[manifest.site == site]
        wanted = np.bincount(draws.choice(own, TRUTH), minlength=len(whole.classes))
        chosen = np.concatenate([
            draws.permutation(np.flatnonzero(free & (labels == c)))[:n]
            for c, n in enumerate(wanted)
        ])  # fmt: skip
        found[site] = Truth(whole.inputs[chosen], whole.labels[chosen])
    return found


def record(out: Path, method: str, alpha: float, seed: int) -> None:
    """Run one cell and write what its sites could have kept; what is there already stays."""
    name = f"{method}-{alpha}-{seed}"
    if (out / f"{name}.pt").exists():
        return
    overrides = {
        **SIZE, "method.preset": method, "split.dirichlet_alpha": alpha, "seed": seed,
        "runtime.out": str(out / "runs"), "runtime.run_name": name, "runtime.device": "cpu",
    }  # fmt: skip
    experiment = load_experiment("fashion_mnist_small", overrides)
    federation = federation_of(experiment)
    assert federation.manifest is not None
    truth, rows = truths(experiment, federation.manifest), []
    folder = open_run(experiment, federation.manifest)

    class Watched(Loopback):
        def __init__(self, run: Assembly) -> None:
            super().__init__(experiment, federation, run.store, folder.sites_root)
            self._sites = {
                k: replace(site, keeper=Recorder(experiment, truth[k], rows))
                for k, site in self._sites.items()
            }

    carry_out(experiment, folder, Watched, servers_site)
    torch.save(rows, out / f"{name}.pt")


def main() -> None:
    """Record, or read."""
    out = Path(sys.argv[2])
    for alpha in ALPHAS:
        for seed in SEEDS:
            for method in sys.argv[3:] or METHODS:
                record(out, method, alpha, seed)


if __name__ == "__main__":
    main()
