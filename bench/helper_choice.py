"""Does a relation score pick good helpers?

`python -m bench.helper_choice PRESET [key=value ...]` warms up a preset's sites. Then every site
ranks all trained peers by each score on its own images; printed is the true accuracy (hidden
labels, through the audit) of the four best on its unlabelled images, beside a random peer's and the
four truly best, and the mean rank correlation of score and accuracy.
"""

import json
import sys
from statistics import fmean

from scipy.stats import spearmanr
from torch import Tensor

from fedapp.data.inputs import normalise
from fedapp.data.sites import SiteData
from fedapp.drivers.loopback import run_loopback
from fedapp.experiment.config import load_experiment, parse_overrides
from fedapp.experiment.experiment import Experiment
from fedapp.ground.devices import pick_device, pick_dtype, torch_threads
from fedapp.ground.rng import seeded
from fedapp.learn.metrics import predict
from fedapp.learn.networks import build_model
from fedapp.learn.params import from_bytes, schema_of
from fedapp.learn.uncertainty import mc_probabilities
from fedapp.messages.store import ModelStore
from fedapp.methods.um_pfssl.method import UmPfssl
from fedapp.methods.um_pfssl.relation import certainty, relation
from fedapp.site.federation import federation_of

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


def main() -> None:
    """Warm up, rank, print."""
    overrides = parse_overrides([*sys.argv[2:], "rounds.num_rounds=0"])
    experiment = load_experiment(sys.argv[1], overrides)
    _, folder = run_loopback(experiment)
    pool = json.loads((folder / "checkpoint.json").read_text())["pool"]
    peers = {int(k): digest for k, (version, digest, _) in pool.items() if version}
    store = ModelStore(folder / "pool")
    with torch_threads(experiment.runtime.threads):
        measured = [
            table
            for k in range(experiment.split.num_clients)
            if (table := at_site(experiment, k, peers, store)) is not None
        ]
    for label, low, high in (("all sites", 0, 1.1), ("mu < 0.1", 0, 0.1)):
        group = [table for table in measured if low <= table["mu"] < high]
        print(f"\n{label}: {len(group)}")
        for name in (*("random peer", f"best {TOP} possible"), *SCORES):
            rho = [t[f"rho {name}"] for t in group if f"rho {name}" in t]
            tail = f"   rank correlation {fmean(rho):5.2f}" if rho else ""
            print(f"  {name:26} {fmean(t[name] for t in group):.3f}{tail}")


def at_site(
    experiment: Experiment, site: int, peers: dict[int, str], store: ModelStore
) -> dict[str, float] | None:
    """Return the true accuracy that each way of choosing reaches at a site; None without D_u."""
    federation = federation_of(experiment)
    device = pick_device(experiment.runtime.device)
    data: SiteData = federation.dealt.site(site)
    if not len(data.unlabelled) or data.audit is None:
        return None
    dtype = pick_dtype(experiment.runtime.precision, device)
    inputs = data.inputs
    model = build_model(experiment.model, inputs, len(federation.classes), dtype)
    schema = schema_of(model.state_dict())
    model.to(device)

    def scale(images: Tensor) -> Tensor:
        return normalise(images, data.mean, data.std)

    method = experiment.method
    assert isinstance(method, UmPfssl)
    truth: list[float] = []
    found: dict[str, list[float]] = {name: [] for name in SCORES}
    for peer, digest in sorted(peers.items()):
        if peer == site:
            continue
        model.load_state_dict(from_bytes(store.get(digest), schema, f"site {peer}"))
        with seeded(device, experiment.seed, "score", site, digest):
            rows = mc_probabilities(model, data.unlabelled, method.mc_samples, scale)
        accuracy = None
        if len(data.labels):
            right = predict(model, data.labelled, scale).argmax(1) == data.labels.cpu()
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
    main()
