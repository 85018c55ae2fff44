"""Pseudo-labels counted: by class and by how uncertain they are."""

import math

import torch
from torch import Tensor

from fedapp.data.sites import Audit
from fedapp.learn.uncertainty import entropy
from fedapp.protocol.messages import PseudoLabels

UNCERTAINTY_BINS = 10
"""Bins of normalised entropy, [i, i + 1) / 10; the last holds 1 too."""


def counted(soft: Tensor, audit: Audit | None, of: Tensor | None = None) -> PseudoLabels:
    """Count pseudo-labels.

    soft: [m, C], m >= 0, C >= 1, rows sum to 1; the label is the arg max. audit: hidden labels, in
    simulation; None: what is wrong is not known. of: int64 [m], which of the hidden labels they are
    for; None: all, in their order.
    """
    soft = soft.cpu()
    classes, label = soft.shape[1], soft.argmax(1)
    bins = uncertainty_bins(soft)
    place = torch.arange(len(soft)) if of is None else of.cpu()

    def wrong(groups: Tensor, number: int) -> tuple[int, ...]:
        if audit is None or not audit.complete:
            return ()
        members = [groups == group for group in range(number)]
        return tuple(audit.pseudo_label_errors(label[m], place[m])[0] for m in members)

    return PseudoLabels(
        by_class=tuple(torch.bincount(label, minlength=classes).tolist()),
        by_uncertainty=tuple(torch.bincount(bins, minlength=UNCERTAINTY_BINS).tolist()),
        wrong_by_class=wrong(label, classes),
        wrong_by_uncertainty=wrong(bins, UNCERTAINTY_BINS),
    )


def uncertainty_bins(soft: Tensor) -> Tensor:
    """Return the bin of each row's normalised entropy H / ln C, int64 [m]; of one class, bin 0."""
    most = math.log(soft.shape[1])
    share = entropy(soft.double()) / most if most else torch.zeros(len(soft))
    return (share * UNCERTAINTY_BINS).long().clamp_(0, UNCERTAINTY_BINS - 1)
