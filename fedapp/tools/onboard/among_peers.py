"""A new site among the models of all sites (UM-pFSSL): its own model beside each, and all."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from fedapp.ground.devices import torch_threads
from fedapp.learn.params import weighted_mean
from fedapp.methods.um_pfssl.method import UmPfssl
from fedapp.tools.onboard.measure import MODEL, Ended, Gained, accuracy, answers

AVERAGE = "average.safetensors"
"""The plain average of all peers, for a site where that is the better model."""
SHOWN = 4
"""Peers that are named, the most related first."""


@dataclass(frozen=True)
class Peer:
    """A model of the run at the new site.

    relation: Corr, from the site's training images alone; None: it answers NaN there. accuracy: on
    its test images; None where it has none.
    """

    site: int
    name: str
    relation: float | None
    accuracy: float | None


@dataclass(frozen=True)
class AmongPeers:
    """Accuracies on the new site's labelled test images; None where it has none.

    own: its model after onboarding. untrained: the relation-weighted mean of its helpers in the
    last round, before it trained on their answers. labels_alone: after its warm-up; None where it
    has no labels. average: the plain mean of all peers' weights, batch-norm statistics included.
    ensemble: the mean of all peers' answers. peers: at least one, most related first.
    """

    own: float | None
    untrained: float | None
    labels_alone: float | None
    average: float | None
    ensemble: float | None
    peers: tuple[Peer, ...]

    @property
    def first(self) -> float | None:
        """The peer that the relation ranks first."""
        return self.peers[0].accuracy

    @property
    def mean_peer(self) -> float | None:
        """The mean over peers: what a peer chosen at random has on average."""
        known = [peer.accuracy for peer in self.peers if peer.accuracy is not None]
        return fmean(known) if known else None

    @property
    def best_peer(self) -> float | None:
        """The best single peer by these test images themselves: nobody could have known it."""
        return max((p.accuracy for p in self.peers if p.accuracy is not None), default=None)

    def table(self) -> list[tuple[str, float | None]]:
        """Return what a person reads, a line each."""
        return [
            ("own model after onboarding", self.own),
            ("its helpers' mean in the last round, before training", self.untrained),
            ("own labelled images alone, no peers", self.labels_alone),
            ("peer that the relation ranks first", self.first),
            ("mean over all single peers", self.mean_peer),
            ("plain average of all peers' weights", self.average),
            ("ensemble: mean of all peers' answers", self.ensemble),
            ("best single peer, known only from these test images", self.best_peer),
        ]

    def notes(self) -> list[str]:
        """Return the peers that are most related."""
        related = ", ".join(
            f"{peer.name or f'site {peer.site}'} {peer.relation:.3f}"
            for peer in self.peers[:SHOWN]
            if peer.relation is not None
        )
        return [f"most related peers: {related}"]

    def to_plain(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        return {
            **{name: value for name, value in asdict(self).items() if name != "peers"},
            "first": self.first,
            "mean_peer": self.mean_peer,
            "best_peer": self.best_peer,
            "peers": [asdict(peer) for peer in self.peers],
        }


def measured(end: Ended) -> Gained:
    """Measure all models on the site's test images, and rank the peers by its training images.

    The relation is the method's.
    """
    refs = [end.pool.latest(k) for k in end.run.pool.trained()]
    peers = {ref: end.params(ref) for ref in refs}
    own = end.params(end.pool.latest(end.data.site))
    average = weighted_mean(((1.0, params) for params in peers.values()), peers[refs[0]])
    site, labels, method = end.context(), end.data.test_labels.cpu(), end.experiment.method
    assert isinstance(method, UmPfssl)
    with torch_threads(end.experiment.runtime.threads):
        ranking = {scored.model: scored.score for scored in method.rank(refs, site)}
        said = {ref: answers(site, params) for ref, params in peers.items()}
        of_own, of_average = answers(site, own), answers(site, average)
    order = [*ranking, *(ref for ref in refs if ref not in ranking)]
    comparison = AmongPeers(
        own=accuracy(of_own, labels),
        untrained=end.row["before_training_accuracy"],
        labels_alone=end.row["warmup_accuracy"] if len(end.data.labels) else None,
        average=accuracy(of_average, labels),
        ensemble=accuracy(together(list(said.values())), labels),
        peers=tuple(
            Peer(
                ref.site,
                end.run.facts[ref.site].name,
                ranking.get(ref),
                accuracy(said[ref], labels),
            )
            for ref in order
        ),
    )
    return Gained(comparison, {MODEL: own, AVERAGE: average})


def together(answers: Sequence[Tensor]) -> Tensor:
    """Mean of the answers [n, C] of at least one model, without those that answer NaN."""
    usable = [answer for answer in answers if bool(answer.isfinite().all())]
    return torch.stack(usable or list(answers)).mean(0)
