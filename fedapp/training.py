"""Local training and batch-norm recalibration."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial

import torch
from torch import Tensor, nn

from fedapp.losses import soft_target_loss
from fedapp.models.resnet9 import ResNet9
from fedapp.settings import TrainSettings
from fedapp.uncertainty import SCORING_BATCH, Normalise

Step = Callable[[], Tensor]
"""Returns the loss of one mini-batch under the model as it is, a scalar with its graph."""


def batches(order: Tensor, size: int) -> Iterator[Tensor]:
    """Split indices [n] into batches of `size`; a last batch of one joins the one before it.

    Batch norm cannot estimate a variance from a single value, and dropping the image would lose it.
    """
    cut = list(order.split(size)) if len(order) else []
    if len(cut) > 1 and len(cut[-1]) == 1:
        cut[-2:] = [torch.cat(cut[-2:])]
    yield from cut


def paired(
    labelled: int, total: int, size: int, shuffle: torch.Generator, device: torch.device
) -> Iterator[Tensor]:
    """One epoch of mini-batches that each hold both kinds of images, labelled ones first.

    Images 0 ... labelled - 1 have labels, the others up to `total` have none; there are both. Each
    part gives min(size, its length) images a step; the larger part is seen once, the other as often
    as it takes.
    """
    lengths = (labelled, total - labelled)
    steps = -(-max(lengths) // size)
    parts = []
    for start, length in zip((0, labelled), lengths, strict=True):
        take = min(size, length)
        rounds = -(-steps * take // length)
        order = torch.cat([torch.randperm(length, generator=shuffle) for _ in range(rounds)])
        parts.append((order[: steps * take] + start).to(device, non_blocking=True).split(take))
    yield from map(torch.cat, zip(*parts, strict=True))


def train(
    model: ResNet9,
    images: Tensor,
    targets: Tensor,
    labelled: int,
    normalise: Normalise,
    settings: TrainSettings,
    epochs: int,
    shuffle: torch.Generator,
) -> float:
    """Train in place on soft targets (Eqs. 1 to 5); return the mean loss, 0 without training.

    images: uint8 [n, c, h, w]; targets: float32 [n, C], one-hot for the first `labelled` images,
    soft pseudo-labels for the others; both on the model's device. Dropout draws from torch's global
    generator: call it inside `rng.seeded`. A site with a single image keeps batch norm in eval
    mode (see `batches`).
    """
    count, size = len(images), settings.batch_size
    in_pairs = settings.batches == "paired" and 0 < labelled < count
    mu, border = labelled / max(count, 1), min(labelled, size)

    def loss_of(batch: Tensor) -> Tensor:
        logits, wanted = model(normalise(images[batch])), targets[batch]
        if not in_pairs:
            return soft_target_loss(logits, wanted)
        loss_s = soft_target_loss(logits[:border], wanted[:border])
        loss_u = soft_target_loss(logits[border:], wanted[border:])
        return mu * loss_s + (1 - mu) * loss_u

    def steps() -> Iterator[Step]:
        for _ in range(epochs if count else 0):
            if in_pairs:
                epoch = paired(labelled, count, size, shuffle, images.device)
            else:
                order = torch.randperm(count, generator=shuffle)
                epoch = batches(order.to(images.device, non_blocking=True), size)
            yield from (partial(loss_of, batch) for batch in epoch)

    model.train()
    if count == 1:
        freeze_batch_norm(model)
    return descend(model, steps(), settings) or 0.0


def descend(
    model: ResNet9,
    steps: Iterable[Step],
    settings: TrainSettings,
    penalty: Callable[[], Tensor] | None = None,
) -> float | None:
    """Minimise each step's loss, plus `penalty`, in place by SGD with momentum.

    Returns the mean loss over the steps without the penalty, None without steps. Dropout draws from
    torch's global generator: call it inside `rng.seeded`.
    """
    parameters = list(model.parameters())
    fused = parameters[0].is_cuda
    optimiser = torch.optim.SGD(parameters, settings.learning_rate, settings.momentum, fused=fused)
    losses = []
    for step in steps:
        loss = step()
        losses.append(loss.detach())
        optimiser.zero_grad(set_to_none=True)
        (loss if penalty is None else loss + penalty()).backward()
        optimiser.step()
    return torch.stack(losses).mean().item() if losses else None  # the only sync


def freeze_batch_norm(model: nn.Module) -> None:
    """Put every batch norm in eval mode: it uses its running statistics and leaves them alone."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eval()


@torch.no_grad()
def recalibrate(model: ResNet9, images: Tensor, normalise: Normalise) -> None:
    """Recompute every batch norm's running statistics on these images, in place; no labels needed.

    The statistics become the plain mean over the batches. Fewer than two images: left as they are.
    """
    if len(images) < 2:
        return
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    before = [(norm, norm.momentum, norm.num_batches_tracked) for norm in norms]
    model.eval()
    for norm in norms:
        norm.num_batches_tracked = torch.zeros((), dtype=torch.int64, device=images.device)
        norm.momentum = None  # torch's word for a cumulative mean
        norm.train()
    for batch in batches(torch.arange(len(images), device=images.device), SCORING_BATCH):
        model(normalise(images[batch]))
    for norm, momentum, tracked in before:
        norm.momentum, norm.num_batches_tracked = momentum, tracked
    model.eval()
