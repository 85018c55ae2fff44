"""Class prototypes: the answers they give, how missing ones are filled in, and pseudo-labels.

A prototype is the mean embedding of the images of a class. Shapes are written for n embeddings of d
numbers, C classes and H sites. A missing prototype is masked (`known`); it is never moved far away
instead.

Snell et al. 2017 (prototypical networks); ProtoFSSL (Kim et al. 2022); FlexProtoFSSL (Chen, Xie, Qu
2024), whose equation numbers are used here.
"""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedapp.learn.networks.base import Network
from fedapp.learn.uncertainty import Normalise, features_of, scoring_batches

Distance = Literal["euclidean", "squared", "mean_squared"]
"""d(f, c): ||f - c||, its square, or its square / d."""


@dataclass(frozen=True, eq=False)
class Prototypes:
    """centres: float32 [..., C, d], 0 where missing. known: bool [..., C], which ones exist."""

    centres: Tensor
    known: Tensor

    def to(self, device: torch.device) -> "Prototypes":
        """Return the same on `device`."""
        return Prototypes(self.centres.to(device), self.known.to(device))


def class_means(embeddings: Tensor, labels: Tensor, classes: int) -> Prototypes:
    """Return the mean embedding of each class (Eq. 1).

    embeddings: float32 [n, d], n >= 0. labels: int64 [n], in [0, classes).
    """
    member = F.one_hot(labels, classes).to(embeddings)
    count = member.sum(0)
    return Prototypes(member.T @ embeddings / count.clamp_min(1)[:, None], count > 0)


def mean_of(each: Prototypes) -> Prototypes:
    """Average the prototypes of H >= 0 sites, [H, C, d] -> [C, d], over those that have a class."""
    has = each.known[..., None]
    count = has.sum(0)
    return Prototypes((each.centres * has).sum(0) / count.clamp_min(1), count[..., 0] > 0)


def completed(some: Prototypes, others: Prototypes) -> Prototypes:
    """Return `some`, [..., C, d], with its missing prototypes taken from `others`, [C, d]."""
    centres = torch.where(some.known[..., None], some.centres, others.centres)
    return Prototypes(centres, some.known | others.known)


def log_answers(embeddings: Tensor, prototypes: Prototypes, distance: Distance) -> Tensor:
    """Return ln softmax_k(-d(f, c_k)) (Eqs. 2 and 10): [..., n, C], -inf where a class is unknown.

    embeddings: float32 [n, d]. If no class is known, all are equally probable.
    """
    return F.log_softmax(negative_distances(embeddings, prototypes, distance), -1)


def negative_distances(embeddings: Tensor, prototypes: Prototypes, distance: Distance) -> Tensor:
    """Return -d(f, c_k), [..., n, C]; -inf where a class is unknown, unless all are unknown."""
    apart = _euclidean(embeddings, prototypes.centres)
    if distance != "euclidean":
        apart = apart.square() / (embeddings.shape[-1] if distance == "mean_squared" else 1)
    lacking = ~prototypes.known & prototypes.known.any(-1, keepdim=True)
    return (-apart).masked_fill(lacking.unsqueeze(-2), -torch.inf)


def _euclidean(embeddings: Tensor, centres: Tensor) -> Tensor:
    """Return ||f - c||, [..., n, C]. The gradient is 0 where the distance is 0."""
    if torch.compiler.is_exporting():  # ONNX has no cdist
        apart: Tensor = embeddings[:, None] - centres[..., None, :, :]
        return apart.square().sum(-1).sqrt()
    # Not by ||f||^2 - 2 f c + ||c||^2, whose rounding error grows with the norm of f.
    return torch.cdist(embeddings, centres, compute_mode="donot_use_mm_for_euclid_dist")


def sharpened(answers: Tensor, temperature: float) -> Tensor:
    """Return p_k^(1/T) / sum p^(1/T) (Eq. 3): [n, C], rows sum to 1.

    answers: p, [n, C], rows sum to 1. temperature: T > 0.
    """
    return torch.softmax(answers.log() / temperature, 1)


def pseudo_labels(answers: Tensor, thresholds: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Return targets [n, C], and which of them are used, bool [n].

    answers: p_ij by each site's prototypes, [H, n, C], H >= 1, rows sum to 1.
    thresholds: T(k), [C].

    A site's answer passes where its highest probability exceeds the threshold of its class. The
    target is the sharpened mean of the answers that pass. Where none passes, the target is not
    used.
    """
    top, label = answers.max(-1)
    passed = top > thresholds[label]
    counts = passed.any(0)
    voting = (passed | ~counts).to(answers)[..., None]  # without a vote there is no mean
    return sharpened((answers * voting).sum(0) / voting.sum(0), temperature), counts


def pseudo_label_loss(log_own: Tensor, targets: Tensor, counts: Tensor) -> Tensor:
    """Return the summed cross entropy of the targets that are used, over n (Eq. 12); 0 if n is 0.

    log_own: ln p, [n, C]; -inf only where the target is 0.
    """
    terms = (targets * log_own.masked_fill(log_own.isneginf(), 0)).sum(1)
    return -(terms * counts).sum() / max(len(terms), 1)


def learning_states(answers: Tensor, cap: float) -> Tensor:
    """Return sigma(k), how many of n images have a probability above `cap` for class k (Eq. 6).

    answers: [n, C], rows sum to 1.
    Returns int64 [C].
    """
    top, label = answers.max(1)
    return torch.bincount(label[top > cap], minlength=answers.shape[1])


def flexible_thresholds(states: Tensor, images: int, cap: float) -> Tensor:
    """Return T(k) = cap sigma(k) / max(max sigma, m - sum sigma), float32 [C] (Eqs. 8 and 9).

    states: sigma(k), int64 [C].
    images: m, the number of images that were counted.

    While most images are uncertain, all thresholds are low; where no image is certain, they are 0.
    """
    most = torch.maximum(states.max(), images - states.sum()).clamp_min(1)
    return cap * states.float() / most


@torch.no_grad()
def embedded(model: Network, images: Tensor, normalise: Normalise) -> Tensor:
    """Return embeddings without dropout, float32 [n, d], n >= 0.

    The model is left in evaluation mode.
    """
    model.eval()
    return torch.cat([
        model.embed(features_of(model, batch, normalise)).float()
        for batch in scoring_batches(images)
    ])  # fmt: skip


class PrototypeHead(nn.Linear):
    """A head that answers by distance: its logits are -d(f, c_k) in place of a linear layer's.

    weight: the prototypes, [C, d]. bias: [C], 1 where a class has a prototype, else 0. Names and
        shapes are those of the linear head that it replaces, so that it is stored and read in the
        same way.
    """

    def __init__(self, features: int, classes: int, distance: Distance) -> None:
        super().__init__(features, classes)
        self.distance: Distance = distance

    @classmethod
    def of(cls, prototypes: Prototypes, distance: Distance) -> "PrototypeHead":
        """Return a head with these prototypes, [C, d], on their device."""
        classes, features = prototypes.centres.shape
        head = cls(features, classes, distance).to(prototypes.centres.device)
        with torch.no_grad():
            head.weight.copy_(prototypes.centres)
            head.bias.copy_(prototypes.known)
        return head

    def forward(self, embedding: Tensor) -> Tensor:
        """Compute [n, d] -> [n, C] in float32, whatever type the network computes in."""
        with torch.autocast(embedding.device.type, enabled=False):
            prototypes = Prototypes(self.weight, self.bias > 0.5)
            return negative_distances(embedding.float(), prototypes, self.distance)
