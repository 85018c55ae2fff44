"""How high the bar of a comparison is: answers that need no federated training.

`python -m bench.yardstick PRESET key=value ...` prints for one split, as means over the sites' own
test images: each site's commoner class; and one logistic regression from all visible labels in one
place, by itself and times each site's own mix of classes. Its inputs are raw pixels, or, with
model.name=encoder_bank, what a frozen network answers. The penalty is chosen by the validation
images of all sites.
"""

import json
import warnings
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Annotated

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from bench.command import carry_out
from fedapp.data.inputs import normalise
from fedapp.data.sites import SiteData
from fedapp.experiment.config import load_experiment
from fedapp.experiment.preset_files import parse_scalar
from fedapp.learn.class_priors import class_mix
from fedapp.learn.networks import build_model
from fedapp.site.federation import federation_of

PENALTIES = (0.001, 0.01, 0.1)
"""C of scikit-learn that are tried."""
Answers = NDArray[np.float64]


def counts_of(site: SiteData) -> Tensor:
    """Return how many labelled images of each class a site has, int64 [C]."""
    return torch.bincount(site.labels, minlength=site.num_classes)


def commoner(sites: Sequence[SiteData]) -> float:
    """Return the sites' mean accuracy of always answering the commonest class of one's labels."""
    return fmean(
        float((site.test_labels == int(counts_of(site).argmax())).double().mean())
        for site in sites
        if len(site.test_labels)
    )


def own_mix(said: Answers, shares: Answers, site: SiteData, unlabelled: Answers) -> Answers:
    """Return answers [n, C] for a site's own mix of classes in place of the shares they had."""
    even = torch.from_numpy(unlabelled / shares)
    mix = class_mix(counts_of(site), even / even.sum(1, keepdim=True).clamp_min(1e-12))
    return said * (mix.numpy() / shares)


def right(said: Answers, labels: Tensor) -> float:
    """Return the share of right answers."""
    return float((said.argmax(1) == labels.numpy()).mean())


def measured(
    sites: Sequence[SiteData], rows: Callable[[Tensor], NDArray[np.float32]]
) -> dict[str, float]:
    """Return the three figures, means over the sites with test images. rows: inputs -> [n, d]."""
    x = np.concatenate([rows(site.labelled) for site in sites])
    y = torch.cat([site.labels for site in sites])
    held = np.concatenate([rows(site.val) for site in sites])
    known = torch.cat([site.val_labels for site in sites])
    with warnings.catch_warnings():  # the last digits of a bar do not matter
        warnings.simplefilter("ignore", ConvergenceWarning)
        tried = [LogisticRegression(C=c, max_iter=200).fit(x, y.numpy()) for c in PENALTIES]
    model = max(tried, key=lambda one: right(one.predict_proba(held), known))
    shares = np.bincount(y.numpy()) / len(y)
    pooled, mixed = [], []
    for site in sites:
        if not len(site.test_labels):
            continue
        said = model.predict_proba(rows(site.test))
        others = model.predict_proba(rows(site.unlabelled)) if len(site.unlabelled) else said[:0]
        pooled.append(right(said, site.test_labels))
        mixed.append(right(own_mix(said, shares, site, others), site.test_labels))
    return {
        "commoner_class": commoner(sites),
        "pooled_logistic": fmean(pooled),
        "pooled_logistic_times_own_mix": fmean(mixed),
        "penalty": model.C,
    }


def main(
    preset: Annotated[str, typer.Argument(help="preset of the data")],
    overrides: Annotated[list[str] | None, typer.Argument(help="key=value")] = None,
) -> None:
    """Print the figures as one line of JSON."""
    given = dict(text.split("=", 1) for text in overrides or [])
    experiment = load_experiment(preset, {key: parse_scalar(v) for key, v in given.items()})
    federation = federation_of(experiment)
    sites = [federation.dealt.site(k) for k in range(experiment.split.num_clients)]
    network = None
    if experiment.model.simulated:
        network = build_model(experiment.model, sites[0].inputs, sites[0].num_classes)

    def rows(inputs: Tensor) -> NDArray[np.float32]:
        if network is not None:
            found: NDArray[np.float32] = network.trunk(inputs)[0].numpy()
            return found
        return normalise(inputs, sites[0].mean, sites[0].std).flatten(1).numpy()

    print(json.dumps({**given, **measured(sites, rows)}))


if __name__ == "__main__":
    carry_out(main)
