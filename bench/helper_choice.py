"""Does a relation score pick good helpers?

`python -m bench.helper_choice PRESET [key=value ...]` warms up a preset's sites. Then every site
ranks all trained peers by each score on its own images; printed is the true accuracy (hidden
labels, through the audit) of the four best on its unlabelled images, beside a random peer's and the
four truly best, and the mean rank correlation of score and accuracy.
"""

from statistics import fmean
from typing import Annotated

import typer
from scipy.stats import spearmanr
from torch import Tensor

from bench.command import Overrides, carry_out
from bench.runs import Run, finished, scale
from fedapp.experiment.config import load_experiment, parse_overrides
from fedapp.ground.devices import pick_device
from fedapp.ground.rng import seeded
from fedapp.learn.metrics import predict
from fedapp.learn.params import digest_of
from fedapp.learn.uncertainty import mc_probabilities
from fedapp.methods.um_pfssl.method import UmPfssl
from fedapp.methods.um_pfssl.relation import certainty, relation

TOP = 4
SCORES = (
    "entropy alone",
    "published",
    "mutual information alone",
    "mutual information",
    "accuracy",
)


def scores(rows: Tensor, accuracy: float | None, mu: float) -> dict[str, float]:
    """Return every score of one peer at one site."""
    sure, informed = certainty(rows, "published"), certainty(rows, "mutual_information")
    values = (
        sure,
        relation(mu, sure, accuracy, "both"),
        informed,
        relation(mu, informed, accuracy, "both"),
        relation(mu, sure, accuracy, "accuracy") if accuracy is not None else sure,
    )
    return dict(zip(SCORES, values, strict=True))


def main(
    preset: Annotated[str, typer.Argument(help="such as fashion_mnist_small")],
    overrides: Overrides = None,
) -> None:
    """Warm up, rank, print."""
    given = parse_overrides([*(overrides or []), "rounds.num_rounds=0"])
    with finished(load_experiment(preset, given)) as run:
        measured = [table for k in run.sites if (table := at_site(run, k)) is not None]
    for label, low, high in (("all sites", 0, 1.1), ("mu < 0.1", 0, 0.1)):
        group = [table for table in measured if low <= table["mu"] < high]
        print(f"\n{label}: {len(group)}")
        for name in (*("random peer", f"best {TOP} possible"), *SCORES):
            rho = [t[f"rho {name}"] for t in group if f"rho {name}" in t]
            tail = f"   rank correlation {fmean(rho):5.2f}" if rho else ""
            print(f"  {name:26} {fmean(t[name] for t in group):.3f}{tail}")


def at_site(run: Run, site: int) -> dict[str, float] | None:
    """Return the true accuracy that each way of choosing reaches at a site; None without D_u."""
    experiment, data, scaled = run.experiment, run.data(site), scale(run.data(site))
    if not len(data.unlabelled) or data.audit is None:
        return None
    method, device = experiment.method, pick_device(experiment.runtime.device)
    assert isinstance(method, UmPfssl)
    truth: list[float] = []
    found: dict[str, list[float]] = {name: [] for name in SCORES}
    for peer in run.sites:
        if peer == site or not run.trained(peer):
            continue
        model = run.holding(run.model(peer)).to(device)
        with seeded(device, experiment.seed, "score", site, digest_of(run.blob(peer))):
            rows = mc_probabilities(model, data.unlabelled, method.mc_samples, scaled)
        accuracy = None
        if len(data.labels):
            right = predict(model, data.labelled, scaled).argmax(1) == data.labels.cpu()
            accuracy = right.double().mean().item()
        wrong, total = data.audit.pseudo_label_errors(rows.argmax(1))
        truth.append(1 - wrong / total)
        for name, value in scores(rows, accuracy, data.mu).items():
            found[name].append(value)
    best = sorted(truth, reverse=True)[:TOP]
    table = {"mu": data.mu, "random peer": fmean(truth), f"best {TOP} possible": fmean(best)}
    for name, values in found.items():
        order = sorted(range(len(values)), key=lambda i: -values[i])
        table[name] = fmean(truth[i] for i in order[:TOP])
        if len(set(values)) > 1 and len(set(truth)) > 1:
            table[f"rho {name}"] = float(spearmanr(values, truth).statistic)
    return table


if __name__ == "__main__":
    carry_out(main)
