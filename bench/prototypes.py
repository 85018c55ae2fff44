"""Do class prototypes serve as well as whole models, to choose peers and to make pseudo-labels?

`python -m bench.prototypes PRESET [key=value ...]` lets the recommended method run on a preset.
After its last round every site labels its own unlabelled images in several ways, which differ in
what it must be sent. A peer's prototypes are of its labelled images, under the common model. `TOP`
peers are asked together: drawn, or the most related ones. The relation is UM-pFSSL's, by mutual
information, of what a peer's model answers or of what its prototypes do.

Written to bench/results/prototypes-PRESET-DATA-SEED.json, as means over sites: kB that a site is
sent for it, beside the common model; labels that are right (hidden labels, through the audit), in
%; those that are sure, in %; how many of the sure ones are right, in %.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean

import torch
from torch import Tensor

from bench.record import Cells, save
from fedapp.data.inputs import normalise
from fedapp.data.sites import SiteData
from fedapp.drivers.loopback import run_loopback
from fedapp.experiment.config import load_experiment, parse_overrides
from fedapp.experiment.experiment import Experiment
from fedapp.ground.devices import torch_threads
from fedapp.ground.rng import numpy_stream
from fedapp.learn.metrics import predict
from fedapp.learn.networks import Network, build_model
from fedapp.learn.params import from_bytes, schema_of, to_bytes
from fedapp.learn.prototypes import Prototypes, class_means, embedded, log_answers
from fedapp.messages.protocol import SERVER_SITE
from fedapp.messages.store import ModelStore
from fedapp.methods._prototypes import written
from fedapp.methods.um_pfssl.relation import certainty, relation
from fedapp.site.federation import federation_of

TOP = 4
SURE = 0.95
"""Least probability of a sure label."""
COMMON = "the common model"


@dataclass(frozen=True, eq=False)
class Peer:
    """What a site can be sent of a peer, and the bytes of both."""

    network: Network
    prototypes: Prototypes
    model_bytes: int
    prototype_bytes: int


class Sites:
    """All sites of a finished run, as they are after its last round."""

    def __init__(self, experiment: Experiment) -> None:
        """Run the experiment first."""
        _, folder = run_loopback(experiment)
        self._experiment = experiment
        self.data = federation_of(experiment).dealt
        pool = json.loads((folder / "checkpoint.json").read_text())["pool"]
        store = ModelStore(folder / "pool")
        self.common = self._network(store.get(pool[str(SERVER_SITE)][1]))
        self.peers = {
            site: self._peer(site, store.get(pool[str(site)][1]))
            for site in range(experiment.split.num_clients)
            if pool[str(site)][0] and len(self.data.site(site).labels)
        }

    def _network(self, blob: bytes) -> Network:
        first = self.data.site(0)
        network = build_model(self._experiment.model, first.inputs, first.num_classes)
        network.load_state_dict(from_bytes(blob, schema_of(network.state_dict()), "a model"))
        return network

    def _peer(self, site: int, blob: bytes) -> Peer:
        data = self.data.site(site)
        embeddings = embedded(self.common, data.labelled, scale(data))
        means = class_means(embeddings, data.labels, data.num_classes)
        return Peer(self._network(blob), means, len(blob), len(to_bytes(written(means))))


def scale(data: SiteData) -> Callable[[Tensor], Tensor]:
    """Return what makes a site's images what a network takes."""
    return lambda images: normalise(images, data.mean, data.std)


def answers_of(sites: Sites, site: int, seed: int) -> dict[str, tuple[int, Tensor]]:
    """Return what each way answers to a site's unlabelled images, and the bytes it takes.

    [n, C], rows sum to 1.
    """
    data = sites.data.site(site)
    peers = [peer for number, peer in sites.peers.items() if number != site]
    both = torch.cat([data.labelled, data.unlabelled])
    embeddings = embedded(sites.common, both, scale(data))
    by_model = [predict(peer.network, both, scale(data)) for peer in peers]
    by_prototypes = [log_answers(embeddings, p.prototypes, "euclidean").exp() for p in peers]
    models, prototypes = peers[0].model_bytes, peers[0].prototype_bytes
    labelled = len(data.labels)

    def mean(answers: list[Tensor], chosen: list[int]) -> Tensor:
        return torch.stack([answers[place][labelled:] for place in chosen]).mean(0)

    def related(answers: list[Tensor]) -> list[int]:
        """The places of the most related peers."""
        found = []
        for one in answers:
            right = (one[:labelled].argmax(1) == data.labels).double()
            accuracy = right.mean().item() if labelled else None
            sure = certainty(one[labelled:], "mutual_information")
            found.append(relation(data.mu, sure, accuracy, "both"))
        return sorted(range(len(found)), key=lambda place: -found[place])[:TOP]

    everybody, all_places = len(peers), list(range(len(peers)))
    drawn = numpy_stream(seed, "prototypes", site).permutation(everybody)[:TOP].tolist()
    return {
        COMMON: (0, predict(sites.common, data.unlabelled, scale(data))),
        f"{TOP} drawn peers' models": (TOP * models, mean(by_model, drawn)),
        f"{TOP} most related peers' models": (
            everybody * models,
            mean(by_model, related(by_model)),
        ),
        f"{TOP} peers' models, related by prototypes": (
            everybody * prototypes + TOP * models,
            mean(by_model, related(by_prototypes)),
        ),
        f"{TOP} drawn peers' prototypes": (TOP * prototypes, mean(by_prototypes, drawn)),
        f"{TOP} most related peers' prototypes": (
            everybody * prototypes,
            mean(by_prototypes, related(by_prototypes)),
        ),
        "all peers' prototypes": (everybody * prototypes, mean(by_prototypes, all_places)),
    }


def worth(answers: Tensor, data: SiteData) -> dict[str, float | None]:
    """Return what labels from these answers are worth, in %; None where no answer is sure."""
    assert data.audit is not None
    top, label = answers.max(1)
    places = (top >= SURE).nonzero().flatten()
    wrong, total = data.audit.pseudo_label_errors(label)
    wrong_sure, _ = data.audit.pseudo_label_errors(label[places], places)
    return {
        "right, %": 100 * (1 - wrong / total),
        "sure, %": 100 * len(places) / total,
        "right of the sure, %": 100 * (1 - wrong_sure / len(places)) if len(places) else None,
    }


def main() -> None:
    """Run, ask, write down."""
    given = parse_overrides([
        "method.preset=recommended", "runtime.device=cpu", "runtime.models=false", *sys.argv[2:],
    ])  # fmt: skip
    experiment = load_experiment(sys.argv[1], given)
    found: dict[str, list[Cells]] = {}
    with torch_threads(experiment.runtime.threads):
        sites = Sites(experiment)
        for site in range(experiment.split.num_clients):
            data = sites.data.site(site)
            if not len(data.unlabelled):
                continue
            for name, (size, answers) in answers_of(sites, site, experiment.seed).items():
                found.setdefault(name, []).append({"kB": size / 1000, **worth(answers, data)})
    rows: list[Cells] = [
        {"asked": name, "sites": len(cells), **{key: _mean(cells, key) for key in cells[0]}}
        for name, cells in found.items()
    ]
    name = f"prototypes-{sys.argv[1]}-{experiment.data.name}-{experiment.seed}"
    save(name, rows, {"overrides": sys.argv[2:]})


def _mean(cells: list[Cells], key: str) -> float | None:
    known = [value for cell in cells if isinstance(value := cell[key], int | float)]
    return round(fmean(known), 1) if known else None


if __name__ == "__main__":
    main()
