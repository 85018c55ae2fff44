"""Which of a run's models should a site keep? `docs/research/keeping.md` has what came out.

`python -m bench.keeping record OUT [METHOD ...]` runs every method x alpha x seed below, of the
size of the sweep results_fashion_mnist, and writes down what every answer that a site has
after every round says of its validation images, and what it is worth on `TRUTH` images of the
site's own class mix that nobody else has seen. `python -m bench.keeping rules OUT` prints, for each
rule, what the model that it keeps is worth.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from torch import Tensor

from bench.hostile import STUDY
from fedapp.data.datasets import load_dataset
from fedapp.data.manifest import Manifest
from fedapp.drivers.calls import Loopback
from fedapp.experiment.config import load_experiment
from fedapp.experiment.experiment import Experiment
from fedapp.experiment.runfolder import open_run
from fedapp.ground.rng import numpy_stream
from fedapp.learn.choice import USED, candidates
from fedapp.learn.networks import build_model
from fedapp.learn.predictors import Predictor, answer_of
from fedapp.messages.protocol import Task
from fedapp.methods.base import SiteContext, SiteReport
from fedapp.results.endblock import end_block
from fedapp.server.assembly import Assembly, carry_out
from fedapp.site.federation import federation_of
from fedapp.site.keeping import as_measured
from fedapp.site.servers import servers_site

METHODS = ("local_only", "fedavg", "fedavg_ft", "um_pfssl", "fedper", "recommended")
ALPHAS, SEEDS = (0.5, 5.0), (210, 211, 212)
TRUTH = 500
"""Images a site by which its models are judged; the same for all models of a site."""
_ORDER = ("alone", "tuned", "common", USED)


@dataclass(frozen=True)
class Truth:
    """Images that stand for all that a site will ever see, and their labels."""

    images: Tensor
    labels: Tensor


class Recorder:
    """Writes down every answer of one site."""

    def __init__(self, experiment: Experiment, truth: Truth, rows: list[dict[str, Any]]) -> None:
        self._experiment, self._truth, self._rows = experiment, truth, rows

    def take(self, task: Task, report: SiteReport, site: SiteContext) -> None:
        """Ask each answer that was measured."""
        method = self._experiment.method
        task, context = as_measured(task, report, site)
        for one in candidates(task.round, report.evaluations, False):
            name, used = one.answer, one.answer == USED
            found = method.used(task, context) if used else method.single(name, task, context)
            images, labels = site.labelled_part("val")
            val = self._asked(found, images, site)
            truth = self._asked(found, self._truth.images, site)
            self._rows.append({
                "site": task.site, "round": task.round, "answer": name,
                "right": (val.argmax(1) == labels).numpy(),
                "given": val[torch.arange(len(labels)), labels].numpy(),
                "mu": site.data.mu,
                "truth": float((truth.argmax(1) == self._truth.labels).double().mean()),
            })  # fmt: skip

    def _asked(self, found: Mapping[str, Predictor], images: Tensor, site: SiteContext) -> Tensor:
        networks = []
        for one in found.values():
            inputs, classes = site.data.inputs, site.data.num_classes
            network = build_model(self._experiment.model, inputs, classes)
            networks.append((one.load_into(network).eval(), one))
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
    if (out / f"{name}.npz").exists():
        return
    overrides = {
        **STUDY, "method.preset": method, "split.dirichlet_alpha": alpha, "seed": seed,
        "runtime.out": str(out / "runs"), "runtime.run_name": name, "runtime.device": "cpu",
    }  # fmt: skip
    experiment = load_experiment("fashion_mnist_small", overrides)
    federation = federation_of(experiment)
    assert federation.manifest is not None
    truth, rows = truths(experiment, federation.manifest), list[dict[str, Any]]()
    folder = open_run(experiment, federation.manifest)

    class Watched(Loopback):
        def __init__(self, run: Assembly) -> None:
            super().__init__(experiment, federation, run.store, folder.sites_root)
            self.sites = {
                k: replace(site, keeper=Recorder(experiment, truth[k], rows))
                for k, site in self.sites.items()
            }

    carry_out(experiment, folder, Watched, servers_site, end_block)
    write(out / f"{name}.npz", rows)


def write(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write what was recorded of a run."""
    arrays = {f"{key}{at}": row[key] for at, row in enumerate(rows) for key in ("right", "given")}
    facts = [
        {k: v for k, v in row.items() if k not in ("right", "given")} | {"at": at}
        for at, row in enumerate(rows)
    ]
    np.savez_compressed(path, rows=np.array(json.dumps(facts)), **arrays)


@dataclass(frozen=True, eq=False)
class Answer:
    """One answer of a site after a round, and what it is worth.

    right, given: [n], whether each validation image is right, and the probability of its class.
    truth: share of right answers to `TRUTH` images. mu: the site's share of labels.
    """

    round: int
    name: str
    right: NDArray[np.bool_]
    given: NDArray[np.float32]
    truth: float
    mu: float

    @property
    def when(self) -> tuple[int, int]:
        """Sorts answers from the earliest to the latest."""
        return self.round, _ORDER.index(self.name)


Rule = Callable[[Sequence[Answer]], Answer]


def most_right(tolerance: float) -> Rule:
    """Return: the latest within so many standard errors of the most right images."""

    def rule(among: Sequence[Answer]) -> Answer:
        images, best = len(among[0].right), max(int(one.right.sum()) for one in among)
        share = (best + 1) / (images + 2)
        least = best - tolerance * float(np.sqrt(share * (1 - share) * images))
        return max((a for a in among if a.right.sum() >= least), key=lambda a: a.when)

    return rule


def least_loss(tolerance: float) -> Rule:
    """Return: the latest whose log-loss is so many standard errors of the difference from least."""

    def rule(among: Sequence[Answer]) -> Answer:
        losses = [-np.log(one.given.clip(1e-6)) for one in among]
        best = min(losses, key=lambda loss: float(loss.mean()))

        def near(loss: NDArray[np.float32]) -> bool:
            error = (loss - best).std(ddof=1) / np.sqrt(len(best))
            return bool((loss - best).mean() <= tolerance * error)

        within = [a for a, loss in zip(among, losses, strict=True) if near(loss)]
        return max(within, key=lambda a: a.when)

    return rule


def of_used(rule: Rule) -> Rule:
    """Return the rule, looking at what the site used alone."""
    return lambda among: rule([one for one in among if one.name == USED])


def _common(among: Sequence[Answer]) -> bool:
    """Whether the server's model is an answer of its own; where it is what is used, it is not."""
    return any(one.name == "common" for one in among)


RULES: dict[str, Rule] = {
    "the last that was used": of_used(lambda among: among[-1]),
    "most right of what was used": of_used(most_right(0)),
    "most right, ties to the earlier": lambda among: max(
        among, key=lambda a: (a.right.sum(), -a.round, _ORDER.index(a.name))
    ),
    "most right, ties to the later": most_right(0),
    "latest within 0.5 standard errors": most_right(0.5),
    "latest within 1 standard error": most_right(1),
    "latest within 2 standard errors": most_right(2),
    "least log-loss": least_loss(0),
    "latest within 1 standard error of it": least_loss(1),
    "the server's last": lambda among: max(
        among, key=lambda a: (a.name == "common" or (a.name == USED and not _common(among)), a.when)
    ),
    "best, by the images nobody has": lambda among: max(among, key=lambda a: a.truth),
}


def told(out: Path, images: int, most_labels: float) -> str:
    """Return the table of all rules, from `images` validation images of each site.

    most_labels: sites with a larger share of labels are left out.
    """
    rows: dict[str, list[tuple[float, float, bool]]] = {name: [] for name in RULES}
    for path in sorted(out.glob("*.npz")):
        method, rest = path.stem.split("-", 1)
        if method == "local_only":
            continue
        alone, sites = read(out / f"local_only-{rest}.npz", images), read(path, images)
        for site, among in sites.items():
            if among[0].mu > most_labels:
                continue
            best, own = max(a.truth for a in among), alone[site][-1].truth
            for name, rule in RULES.items():
                kept = rule(among).truth
                rows[name].append((kept, best - kept, kept < own - 0.01))
    head = "| rule | test accuracy, % | points below the best | worse than alone, % |"
    lines = [head, "|---|---|---|---|"]
    for name, found in rows.items():
        worth, regret, worse = 100 * np.array(found, float).mean(0)
        lines.append(f"| {name} | {worth:.1f} | {regret:.1f} | {worse:.0f} |")
    return "\n".join(lines)


def read(path: Path, images: int) -> dict[int, list[Answer]]:
    """Return every site's answers, from the earliest to the latest, by its first images."""
    sites: dict[int, list[Answer]] = {}
    with np.load(path) as found:
        for row in json.loads(str(found["rows"])):
            right, given = (found[f"{name}{row['at']}"][:images] for name in ("right", "given"))
            one = Answer(row["round"], row["answer"], right, given, row["truth"], row["mu"])
            sites.setdefault(row["site"], []).append(one)
    return {site: sorted(among, key=lambda a: a.when) for site, among in sites.items()}


app = typer.Typer()


@app.command("record")
def record_all(out: Path, methods: Annotated[list[str] | None, typer.Argument()] = None) -> None:
    """Run every method x alpha x seed that has not been run."""
    for alpha, seed, method in product(ALPHAS, SEEDS, methods or METHODS):
        record(out, method, alpha, seed)


@app.command()
def rules(out: Path) -> None:
    """Print what the rules are worth."""
    for images, most_labels in ((40, 1.0), (20, 1.0), (10, 1.0), (40, 0.1)):
        print(f"\n{images} validation images, sites with mu <= {most_labels:g}\n")
        print(told(out, images, most_labels))


if __name__ == "__main__":
    app()
