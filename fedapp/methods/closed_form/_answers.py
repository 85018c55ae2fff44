"""What methods share that turn a site's labels into the mix of its classes, or into a choice."""

import torch
from torch import Tensor

from fedapp.ground.rng import numpy_stream
from fedapp.methods.base import SiteContext


def counts(site: SiteContext) -> Tensor:
    """Return the numbers of labelled images of each class, [C]."""
    return torch.bincount(site.data.labels.cpu(), minlength=site.data.num_classes)


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
