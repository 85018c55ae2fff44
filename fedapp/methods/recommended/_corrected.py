"""What prior shift's sites minimise: cross entropy of logits that their class mix corrects."""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedapp.learn.losses import soft_target_loss
from fedapp.learn.objectives import Work
from fedapp.learn.steps import Step, batches, paired
from fedapp.learn.uneven import BALANCED


def corrected(work: Work, kept: Tensor, soft: Tensor, worth: float, mix: Tensor) -> Iterator[Step]:
    """CE(D_s) + worth * CE(D_u, soft pseudo-labels), the logits corrected by the class mix.

    kept: int64 [m], which of D_u have a pseudo-label. soft: float32 [m, C], rows sum to 1. worth:
    of one, in labels. mix: pi [C], > 0; ln pi is added to the logits (`learn.priors`).

    Each step holds labelled images, whose mean loss counts 1, and as many with pseudo-labels, whose
    mean loss counts what they are worth: many pseudo-labels do not drown few labels. Where labelled
    images are drawn as many of each class (`learn.uneven`), it is that mix that corrects them.
    """
    data, device, known = work.data, work.data.labels.device, len(work.data.labels)
    images = torch.cat([data.labelled, data.unlabelled[kept.to(device)]])
    labels = F.one_hot(data.labels, data.num_classes).float()
    targets = torch.cat([labels, soft.to(device)])
    own = work.mix if work.uneven == BALANCED else mix
    known_shift = own.log().to(targets)
    shift, scale = mix.log().to(targets), torch.tensor(worth).to(targets)
    work.begin(len(images))

    def batched() -> Iterator[tuple[Tensor, Tensor]]:
        if 0 < known < len(images):
            yield from paired(known, len(images), work.size, work.shuffle, device)
            return
        order = torch.randperm(len(images), generator=work.shuffle).to(device)
        for batch in batches(order, work.size):
            yield (batch, batch[:0]) if known else (batch[:0], batch)

    def epoch() -> Iterator[Step]:
        drawn = work.drawn().to(device)
        for places, others in batched():
            some = drawn[places]
            views = work.normalise(work.view(images[torch.cat([some, others])]))
            added = shift
            if own is not mix:
                added = torch.cat(
                    [known_shift.expand(len(some), -1), shift.expand(len(others), -1)]
                )
            batch = views, targets[some], targets[others], added, scale
            yield Step(corrected_loss, batch, recordable=True)

    return work.passes(epoch)


def corrected_loss(
    network: nn.Module,
    views: Tensor,
    targets: Tensor,
    pseudo: Tensor,
    shift: Tensor,
    worth: Tensor,
) -> Tensor:
    """Normalised views: of D_s, with targets [n, C], then of D_u, with pseudo-labels [m, C].

    shift: [C] or [n + m, C], added to the logits. worth: a scalar.
    """
    logits, known = network(views) + shift, len(targets)
    total: Tensor = logits.new_zeros(())
    if known:
        total = total + soft_target_loss(logits[:known], targets)
    if len(pseudo):
        total = total + worth * soft_target_loss(logits[known:], pseudo)
    return total
