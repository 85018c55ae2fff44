"""The loss of prior shift: cross entropy of logits that are corrected by the site's class mix."""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedapp.learn.class_imbalance import BALANCED
from fedapp.learn.losses import findings_bce, soft_target_loss
from fedapp.learn.objectives import LocalTraining
from fedapp.learn.steps import Step, batches, paired


def corrected_steps(
    work: LocalTraining, kept: Tensor, soft: Tensor, worth: Tensor, mix: Tensor
) -> Iterator[Step]:
    """CE(D_s) + worth * CE(D_u, soft pseudo-labels), with logits corrected by the class mix.

    kept: int64 [m], the images of D_u that have a pseudo-label. soft: float32 [m, C], rows sum to
    1. worth: the weight of a pseudo-label relative to a label, a scalar. mix: pi [C], > 0; ln pi is
    added to the logits (`learn.class_priors`).

    For findings soft is [m, F], negative where a finding has no pseudo-label, worth is [F], and the
    log odds of mix, [F, 2], are added; the losses are means over the findings that were read.

    Each step has labelled images, whose mean loss has weight 1, and as many pseudo-labelled ones,
    whose mean loss has weight `worth`: so many pseudo-labels do not outweigh few labels. Where
    labelled images are drawn with equal class frequencies (`learn.class_imbalance`), their logits
    are corrected by that mix instead.
    """
    data, device, known = work.data, work.data.labels.device, len(work.data.labels)
    images = torch.cat([data.labelled, data.unlabelled[kept.to(device)]])
    labels = data.labels if data.finds else F.one_hot(data.labels, data.num_classes)
    targets = torch.cat([labels.float(), soft.to(device)])
    own = work.mix if work.uneven == BALANCED else mix
    known_shift = _log(own).to(targets)
    shift, scale = _log(mix).to(targets), worth.to(targets)
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
            yield Step(corrected_loss, batch)

    return work.passes(epoch)


def _log(mix: Tensor) -> Tensor:
    """Return ln pi [C]; for findings, mix [F, 2], the log odds [F]."""
    return mix.log() if mix.ndim == 1 else mix[:, 1].log() - mix[:, 0].log()


def corrected_loss(
    network: nn.Module,
    views: Tensor,
    targets: Tensor,
    pseudo: Tensor,
    shift: Tensor,
    worth: Tensor,
) -> Tensor:
    """Return the loss of normalised views: of D_s with targets [n, C], then of D_u.

    pseudo: pseudo-labels of D_u [m, C]. shift: [C] or [n + m, C], added to the logits. worth: a
    scalar; for findings [F].
    """
    logits, known = network(views) + shift, len(targets)
    if worth.ndim:
        return findings_bce(logits[:known], targets) + findings_bce(logits[known:], pseudo, worth)
    total: Tensor = logits.new_zeros(())
    if known:
        total = total + soft_target_loss(logits[:known], targets)
    if len(pseudo):
        total = total + worth * soft_target_loss(logits[known:], pseudo)
    return total
