"""Training by episodes: some images of each class make its prototype, others are asked about.

Each step draws an episode anew. Without labels of a class its prototype comes from other sites.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedapp.learn.networks.base import Network
from fedapp.learn.objectives import LocalTraining
from fedapp.learn.prototypes import (
    Distance,
    Prototypes,
    class_means,
    completed,
    log_answers,
    mean_of,
    pseudo_label_loss,
    pseudo_labels,
)
from fedapp.learn.steps import Step


@dataclass(frozen=True)
class Shape:
    """Images of an episode. support: per class, >= 1, for its prototype. query: others, >= 1."""

    support: int
    query: int


@dataclass(frozen=True, eq=False)
class Teaching:
    """What unlabelled images are learned by.

    prototypes: of H >= 1 sites, [H, C, d], each completed by the others. thresholds: T(k), [C].
    temperature: of sharpening, > 0. weight: lambda of their loss, > 0.
    """

    prototypes: Prototypes
    thresholds: Tensor
    temperature: float
    weight: float


def episodes(
    work: LocalTraining, shape: Shape, distance: Distance, teaching: Teaching | None
) -> Iterator[Step]:
    """L_s + lambda L_u (FlexProtoFSSL, Eqs. 11 and 12), an episode a step.

    Each has `shape` of the labelled images and B unlabelled ones, or all that there are. A pass is
    as many episodes as would show the larger part once. teaching: None: from labels alone. No step
    where there is nothing to ask: no class with two labelled images, no unlabelled image.
    """
    data, labels = work.data, work.data.labels.cpu()
    members = [(labels == k).nonzero().flatten() for k in range(data.num_classes)]
    others = 0 if teaching is None else len(data.unlabelled)
    if not others and all(len(one) < 2 for one in members):
        return
    size = min(work.size, others)
    seen = sum(min(len(one), shape.support + shape.query) for one in members)
    count = max(-(-len(labels) // max(seen, 1)), -(-others // work.size))
    work.begin(seen + size)

    def epoch() -> Iterator[Step]:
        for _ in range(count):
            support, query = drawn(members, shape, work.shuffle)
            other = torch.randperm(others, generator=work.shuffle)[:size]
            known = torch.cat([support, query]).to(data.labelled.device)
            images = torch.cat([data.labelled[known], data.unlabelled[other.to(known.device)]])
            answers = data.labels[known].split([len(support), len(query)])
            yield Step(loss, (work.normalise(work.view(images)), *answers))

    def loss(network: Network, x: Tensor, support: Tensor, query: Tensor) -> Tensor:
        embeddings = network.embed(network.trunk(x)).float()
        f_s, f_q, f_u = embeddings.split([len(support), len(query), size])
        own = class_means(f_s, support, data.num_classes)
        if teaching is None:
            return asked(log_answers(f_q, own, distance), query)
        own = completed(own, mean_of(teaching.prototypes))
        # No gradient flows into a target.
        theirs = log_answers(f_u.detach(), teaching.prototypes, distance).exp()
        targets, counts = pseudo_labels(theirs, teaching.thresholds, teaching.temperature)
        taught = pseudo_label_loss(log_answers(f_u, own, distance), targets, counts)
        return asked(log_answers(f_q, own, distance), query) + teaching.weight * taught

    yield from work.passes(epoch)


def asked(log_own: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross entropy of the labels under ln p [n, C] (Eq. 11); 0 of no images."""
    return F.nll_loss(log_own, labels) if len(labels) else log_own.sum()


def drawn(members: Sequence[Tensor], shape: Shape, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw support and query, int64 each: places of labelled images, class by class.

    members: the places of each class's images. A class with too few for both has one query image at
    least; one with a single image supports and is not asked about.
    """
    support, query = [torch.empty(0, dtype=torch.int64)], [torch.empty(0, dtype=torch.int64)]
    for places in members:
        order = places[torch.randperm(len(places), generator=draw)]
        border = min(shape.support, max(len(places) - 1, 1))
        support.append(order[:border])
        query.append(order[border : border + shape.query])
    return torch.cat(support), torch.cat(query)
