"""A site labels its own unlabelled images by what peers have: their models, or their prototypes.

A peer's prototypes are of its labelled images, under the common model. Where a method has none, as
UM-pFSSL, it is the mean of all sites' models, and a site is sent it too. `TOP` peers are asked
together, their answers averaged: drawn ones, or the most related. The relation is UM-pFSSL's, by
mutual information, of what a peer's model answers or of what its prototypes do.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bench.record import Cells
from bench.runs import Run, scale
from fedapp.data.sites import SiteData
from fedapp.ground.rng import numpy_stream
from fedapp.learn.metrics import predict
from fedapp.learn.params import Params, to_bytes, weighted_mean
from fedapp.learn.prototypes import Prototypes, class_means, embedded, log_answers
from fedapp.messages.protocol import SERVER_SITE
from fedapp.methods.prototypes._prototypes import written
from fedapp.methods.um_pfssl.relation import certainty, relation

TOP = 4
SURE = 0.95
"""Least probability of a sure label."""
REFERENCE = f"{TOP} most related peers' models"
"""The way that the others are to be as good as."""


@dataclass(frozen=True, eq=False)
class Peer:
    """What a site can be sent of a peer, and the bytes of both."""

    params: Params
    prototypes: Prototypes
    model_bytes: int
    prototype_bytes: int


@dataclass(frozen=True, eq=False)
class Way:
    """sent: bytes. answers: to the unlabelled images, [n, C]. averaged: the mean of models."""

    sent: int
    answers: Tensor
    averaged: Params | None = None


class Sites:
    """All sites of a finished run, as they are after its last round."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.own = {site: run.model(site) for site in run.sites}
        if run.trained(SERVER_SITE):
            self.common, self.common_bytes = run.model(SERVER_SITE), 0
        else:
            self.common = weighted_mean(((1, one) for one in self.own.values()), self.own[0])
            self.common_bytes = len(run.blob(0))
        self.peers: dict[int, Peer] = {}
        for site, params in self.own.items():
            data = run.data(site)
            if run.trained(site) and len(data.labels):
                embeddings = embedded(run.holding(self.common), data.labelled, scale(data))
                means = class_means(embeddings, data.labels, data.num_classes)
                self.peers[site] = Peer(params, means, len(run.blob(site)), travelling(means))

    def asking(self) -> Iterator[int]:
        """Yield the sites that have unlabelled images."""
        return (site for site in self.run.sites if len(self.run.data(site).unlabelled))


def travelling(prototypes: Prototypes) -> int:
    """Return the bytes of a site's prototypes, [C, d], as they travel."""
    return len(to_bytes(written(prototypes)))


def asked(sites: Sites, site: int, seed: int) -> dict[str, Cells]:
    """Return what the labels of each way are worth at a site."""
    data = sites.run.data(site)
    return {
        name: {"kB": way.sent / 1000, **worth(way.answers, data), **tested(sites, way, data)}
        for name, way in ways(sites, site, seed).items()
    }


def ways(sites: Sites, site: int, seed: int) -> dict[str, Way]:
    """Return what each way answers to a site's unlabelled images."""
    data = sites.run.data(site)
    peers = [peer for number, peer in sites.peers.items() if number != site]
    both = torch.cat([data.labelled, data.unlabelled])
    embeddings = embedded(sites.run.holding(sites.common), both, scale(data))
    by_model = [predict(sites.run.holding(peer.params), both, scale(data)) for peer in peers]
    by_prototypes = [log_answers(embeddings, p.prototypes, "euclidean").exp() for p in peers]
    model, prototypes = peers[0].model_bytes, peers[0].prototype_bytes
    everybody, own, common = len(peers), sites.own[site], sites.common_bytes

    def mean(answers: Sequence[Tensor], chosen: Sequence[int]) -> Tensor:
        return torch.stack([answers[place][len(data.labels) :] for place in chosen]).mean(0)

    def alone(params: Params, sent: int) -> Way:
        answers = predict(sites.run.holding(params), data.unlabelled, scale(data))
        return Way(sent, answers, params)

    def models(sent: int, chosen: Sequence[int]) -> Way:
        members = [own, *(peers[place].params for place in chosen)]
        average = weighted_mean(((1, one) for one in members), own)
        return Way(sent, mean(by_model, chosen), average)

    def means(sent: int, chosen: Sequence[int]) -> Way:
        return Way(sent + common, mean(by_prototypes, chosen))

    drawn = numpy_stream(seed, "prototypes", site).permutation(everybody)[:TOP].tolist()
    related = most_related(by_prototypes, data)
    searched = everybody * prototypes
    return {
        "the site's own model": alone(own, 0),
        "the common model": alone(sites.common, common),
        f"{TOP} drawn peers' models": models(TOP * model, drawn),
        REFERENCE: models(everybody * model, most_related(by_model, data)),
        f"{TOP} peers' models, related by prototypes": models(
            searched + common + TOP * model, related
        ),
        f"{TOP} drawn peers' prototypes": means(TOP * prototypes, drawn),
        f"{TOP} most related peers' prototypes": means(searched, related),
        "all peers' prototypes": means(searched, range(everybody)),
    }


def most_related(answers: Sequence[Tensor], data: SiteData) -> list[int]:
    """Return the places of the `TOP` peers that are related most; answers as of `relations`."""
    found = relations(answers, data)
    return sorted(range(len(found)), key=lambda place: -found[place])[:TOP]


def relations(answers: Sequence[Tensor], data: SiteData) -> list[float]:
    """Return the relation of each peer to a site, in [0, 1].

    answers: each peer's, to the labelled images and then the unlabelled ones, [n_s + n_u, C].
    """
    labelled = len(data.labels)
    found = []
    for one in answers:
        accuracy = sure = None
        if labelled:
            accuracy = (one[:labelled].argmax(1) == data.labels).double().mean().item()
        if len(one) > labelled:
            sure = certainty(one[labelled:], "mutual_information")
        found.append(relation(data.mu, sure, accuracy, "both"))
    return found


def worth(answers: Tensor, data: SiteData) -> Cells:
    """Return what labels from these answers, [n, C], are worth, in %; None where none is sure."""
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


def tested(sites: Sites, way: Way, data: SiteData) -> Cells:
    """Return how right a way's mean of models is on the test images, in %; None of no models."""
    right = None
    if way.averaged is not None and len(data.test_labels):
        answers = predict(sites.run.holding(way.averaged), data.test, scale(data))
        right = 100 * (answers.argmax(1) == data.test_labels).double().mean().item()
    return {"mean model, test, %": right}
