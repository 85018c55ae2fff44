"""Training by episodes: some images of each class make its prototype, others are classified by it.

Each step draws a new episode. The prototype of a class without labels comes from other sites.
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
    """Images of a class in an episode: `support` for its prototype, `query` to classify."""

    support: int
    query: int


@dataclass(frozen=True, eq=False)
class Teaching:
    """What unlabelled images are learned from.

    prototypes: of H >= 1 sites, [H, C, d], each completed by the others. thresholds: T(k), [C].
    temperature: for sharpening, > 0. weight: lambda of their loss, > 0.
    """

    prototypes: Prototypes
    thresholds: Tensor
    temperature: float
    weight: float


def episodes(
    work: LocalTraining, shape: Shape, distance: Distance, teaching: Teaching | None
) -> Iterator[Step]:
    """L_s + lambda L_u (FlexProtoFSSL, Eqs. 11 and 12), one episode a step.

    Each has `shape` of the labelled images and B unlabelled ones, or as many as there are. A pass
    has as many episodes as would show the larger part once. teaching: None: learn from labels only.
    There is no step where nothing can be learned: no class has two labelled images, and there is no
    unlabelled image.
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
            support, query = draw_episode(members, shape, work.shuffle)
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
            return query_loss(log_answers(f_q, own, distance), query)
        own = completed(own, mean_of(teaching.prototypes))
        # No gradient flows into a target.
        theirs = log_answers(f_u.detach(), teaching.prototypes, distance).exp()
        targets, counts = pseudo_labels(theirs, teaching.thresholds, teaching.temperature)
        taught = pseudo_label_loss(log_answers(f_u, own, distance), targets, counts)
        return query_loss(log_answers(f_q, own, distance), query) + teaching.weight * taught

    yield from work.passes(epoch)


def query_loss(log_own: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross entropy of labels under ln p [n, C] (Eq. 11); 0 without images."""
    return F.nll_loss(log_own, labels) if len(labels) else log_own.sum()


def draw_episode(
    members: Sequence[Tensor], shape: Shape, draw: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Draw support and query, int64 each: indices of labelled images, class by class.

    members: the indices of each class's images. A class with too few images for both has at least
    one query image; a class with a single image has it as support and no query.
    """
    support, query = [torch.empty(0, dtype=torch.int64)], [torch.empty(0, dtype=torch.int64)]
    for places in members:
        order = places[torch.randperm(len(places), generator=draw)]
        border = min(shape.support, max(len(places) - 1, 1))
        support.append(order[:border])
        query.append(order[border : border + shape.query])
    return torch.cat(support), torch.cat(query)
