"""Local training and batch-norm recalibration."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from fedapp.losses import soft_target_loss
from fedapp.models.resnet9 import ResNet9
from fedapp.settings import TrainSettings
from fedapp.uncertainty import SCORING_BATCH, Normalise


def batches(order: Tensor, size: int) -> Iterator[Tensor]:
    """Split indices [n] into batches of `size`; a last batch of one joins the one before it.

    Batch norm cannot estimate a variance from a single value, and dropping the image would lose it.
    """
    cut = list(order.split(size)) if len(order) else []
    if len(cut) > 1 and len(cut[-1]) == 1:
        cut[-2:] = [torch.cat(cut[-2:])]
    yield from cut


def train(
    model: ResNet9,
    images: Tensor,
    targets: Tensor,
    normalise: Normalise,
    settings: TrainSettings,
    epochs: int,
    shuffle: torch.Generator,
) -> float:
    """Train in place by SGD with momentum; return the last epoch's mean loss, 0 without training.

    images: uint8 [n, c, h, w]; targets: float32 [n, C], one-hot for labelled images, soft
    pseudo-labels for the others; both on the model's device. Dropout draws from torch's global
    generator: call it inside `rng.seeded`. A site with a single image keeps batch norm in eval
    mode (see `batches`).
    """
    total = torch.zeros((), device=images.device)
    if not len(images) or not epochs:
        return 0.0
    model.train()
    if len(images) == 1:
        freeze_batch_norm(model)
    optimiser = torch.optim.SGD(model.parameters(), settings.learning_rate, settings.momentum)
    for _ in range(epochs):
        total.zero_()
        order = torch.randperm(len(images), generator=shuffle).to(images.device)
        for batch in batches(order, settings.batch_size):
            loss = soft_target_loss(model(normalise(images[batch])), targets[batch])
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
            total += loss.detach() * len(batch)
    return (total / len(images)).item()  # the only sync


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
