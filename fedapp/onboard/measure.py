"""How good a new site's model is beside what it could have had without one."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from fedapp.data.augment import flips
from fedapp.data.sites import SiteData
from fedapp.methods.base import SiteContext
from fedapp.metrics import predict
from fedapp.models import build_model
from fedapp.params import Params
from fedapp.protocol import ModelRef
from fedapp.scores import ScoreStore
from fedapp.settings import Experiment
from fedapp.site import pick_device, pick_dtype, torch_threads


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
class Comparison:
    """Accuracies on the new site's labelled test images; None where it has none.

    own: its model after onboarding. untrained: the relation-weighted mean of its helpers in the
    last round, before it trained on their answers. labels_alone: after its warm-up; None where it
    has no labels. average: the plain mean of all peers' weights, batch-norm statistics included.
    ensemble: the mean of all peers' answers. peers: most related first.
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

    def to_plain(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        return {
            **{name: value for name, value in asdict(self).items() if name != "peers"},
            "first": self.first,
            "mean_peer": self.mean_peer,
            "best_peer": self.best_peer,
            "peers": [asdict(peer) for peer in self.peers],
        }


def compare(
    experiment: Experiment,
    data: SiteData,
    peers: Mapping[ModelRef, tuple[str, Params]],
    own: Params,
    average: Params,
    known: tuple[float | None, float | None],
) -> Comparison:
    """Measure all models on a site's test images, and rank the peers by its training images.

    peers: at least one, with its name. The relation is the method's. known: what the run measured,
    `untrained` and `labels_alone`.
    """
    device, classes = pick_device(experiment.runtime.device), data.num_classes
    dtype = pick_dtype(experiment.runtime.precision, device)
    model = build_model(experiment.model, data.labelled.shape[1], classes, dtype).to(device)
    site = SiteContext(
        data=data.to(device),
        model=model,
        contents=lambda ref: peers[ref][1],
        private={},
        scores=ScoreStore(),
        training=experiment.training,
        seed=experiment.seed,
        device=device,
        flip=flips(experiment.data.name),
    )
    refs = sorted(peers, key=lambda ref: ref.site)
    with torch_threads(experiment.runtime.threads):
        ranking = {scored.model: scored.score for scored in experiment.method.rank(refs, site)}
        answers = {ref: _answers(site, peers[ref][1]) for ref in refs}
        of_own, of_average = _answers(site, own), _answers(site, average)
    order = [*ranking, *(ref for ref in refs if ref not in ranking)]
    labels = data.test_labels.cpu()
    return Comparison(
        own=accuracy(of_own, labels),
        untrained=known[0],
        labels_alone=known[1] if len(data.labels) else None,
        average=accuracy(of_average, labels),
        ensemble=accuracy(together(list(answers.values())), labels),
        peers=tuple(
            Peer(ref.site, peers[ref][0], ranking.get(ref), accuracy(answers[ref], labels))
            for ref in order
        ),
    )


def accuracy(probabilities: Tensor, labels: Tensor) -> float | None:
    """Share of right answers: probabilities [n, C], labels int64 [n]; None where n is 0."""
    return (probabilities.argmax(1) == labels).double().mean().item() if len(labels) else None


def together(answers: Sequence[Tensor]) -> Tensor:
    """Mean of the answers [n, C] of at least one model, without those that answer NaN."""
    usable = [answer for answer in answers if bool(answer.isfinite().all())]
    return torch.stack(usable or list(answers)).mean(0)


def _answers(site: SiteContext, params: Params) -> Tensor:
    """Return a model's probabilities [n, C] of the site's test images."""
    site.model.load_state_dict(params)
    return predict(site.model, site.data.test, site.normalise)
