"""What methods share that turn a site's labels into the mix of its classes, or into a choice."""

import torch
from torch import Tensor

from fedapp.ground.rng import numpy_stream
from fedapp.methods.base import SiteContext


def counts(site: SiteContext) -> Tensor:
    """Return the numbers of labelled images of each class, [C]; of findings without, with: [F, 2].

    Where a finding was not read, the image counts in neither.
    """
    if site.data.finds:
        labels = site.data.labels.cpu()
        return torch.stack([(labels == 0).sum(0), (labels == 1).sum(0)], 1)
    return torch.bincount(site.data.labels.cpu(), minlength=site.data.num_classes)


def judged(answers: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return what answers are held against: N samples of C classes [N, C], labels [N], group [N].

    An image is a sample, all of one group. Of findings, answers and labels [n, F], each that was
    read is one, of two classes; its group is the finding.
    """
    if labels.ndim == 1:
        return answers, labels, torch.zeros_like(labels)
    image, of = (labels >= 0).nonzero(as_tuple=True)
    there = answers[image, of]
    return torch.stack([1 - there, there], 1), labels[image, of], of


def deciding(site: SiteContext) -> Tensor:
    """Return the validation images whose labels may decide something, int64 [n].

    On a real site all have labels that the site gave. In simulation all are there for measuring,
    but a site decides by as large a share as it has labels of its training images.
    """
    count = len(site.data.val_labels)
    if site.data.audit is None:
        return torch.arange(count)
    order = numpy_stream(site.seed, "deciding", site.data.site).permutation(count)
    return torch.from_numpy(order[: round(site.data.mu * count)])
