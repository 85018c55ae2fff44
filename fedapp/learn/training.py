"""Local training and batch-norm recalibration."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fedapp.core.settings import TrainSettings
from fedapp.learn.losses import joint_loss, soft_target_loss
from fedapp.learn.networks.base import Network
from fedapp.learn.optimisers import Penalty, Sgd, clip_gradients
from fedapp.learn.steps import Step, View, batches, paired, repeated
from fedapp.learn.uncertainty import Normalise, inputs_per_pass
from fedapp.learn.work_counter import count_work

RMSPROP_DECAY, RMSPROP_EPSILON = 0.9, 1e-7
"""RMSprop as in Keras: decay of the running squares, and what is added to their root."""


def train(
    model: Network,
    images: Tensor,
    targets: Tensor,
    labelled: int,
    normalise: Normalise,
    settings: TrainSettings,
    epochs: int,
    shuffle: torch.Generator,
    view: View = lambda images: images,
) -> float:
    """Train in place on soft targets (Eqs. 1 to 5). Return the mean loss, 0 without any step.

    images: uint8 [n, c, h, w]. targets: float32 [n, C], one-hot for the first `labelled` images,
        soft pseudo-labels for the others. Both are on the model's device.

    Dropout draws from torch's global generator, so call this inside `rng.seeded`. At a site with a
    single image, batch norm stays in evaluation mode (see `batches`).
    """
    count, size = len(images), settings.batch_size
    in_pairs = settings.batches == "paired" and 0 < labelled < count
    mu = labelled / max(count, 1)

    def paired_loss(network: nn.Module, inputs: Tensor, wanted: Tensor, border: int) -> Tensor:
        logits = network(inputs)
        loss_s = soft_target_loss(logits[:border], wanted[:border])
        loss_u = soft_target_loss(logits[border:], wanted[border:])
        return mu * loss_s + (1 - mu) * loss_u

    def seen(batch: Tensor) -> tuple[Tensor, Tensor]:
        return normalise(view(images[batch])), targets[batch]

    def epoch() -> Iterator[Step]:
        if in_pairs:
            for known, other in paired(labelled, count, size, shuffle, images.device):
                yield Step(paired_loss, (*seen(torch.cat([known, other])), len(known)))
        else:
            order = torch.randperm(count, generator=shuffle)
            cut = batches(order.to(images.device, non_blocking=True), size)
            yield from (Step(joint_loss, seen(batch), mean=True) for batch in cut)

    model.train()
    if count == 1:
        freeze_batch_norm(model)
    return descend(model, repeated(epoch, epochs, settings.steps(epochs)), settings) or 0.0


def descend(
    model: nn.Module,
    steps: Iterable[Step],
    settings: TrainSettings,
    penalty: Penalty | None = None,
    squares: Mapping[str, Tensor] = MappingProxyType({}),
) -> float | None:
    """Minimise each step's loss plus `penalty`, in place, with `settings.optimiser`.

    squares: running squares by parameter name from which RMSprop continues, updated in place; where
        there are none, it begins at 0.

    Gradients are clipped to `MAX_GRADIENT_NORM`. Returns the mean loss over the steps, without the
    penalty; None if there was no step. Dropout draws from torch's global generator, so call this
    inside `rng.seeded`.
    """
    parameters = list(model.parameters())
    optimiser = optimiser_of(parameters, settings)
    if isinstance(optimiser, torch.optim.RMSprop):
        for name, parameter in model.named_parameters():
            if name in squares:
                state = {"step": torch.tensor(0.0), "square_avg": squares[name]}
                optimiser.state[parameter] = state
    take = partial(_take, model, parameters, optimiser, penalty)
    if settings.at_once:
        take = partial(_in_pieces, model, parameters, optimiser, penalty, settings.at_once)
    losses = []
    for step in steps:
        count_work(steps=1)
        losses.append(take(step))
    return torch.stack(losses).mean().item() if losses else None  # the only sync


def _take(
    model: nn.Module,
    parameters: Sequence[nn.Parameter],
    optimiser: Optimizer | Sgd,
    penalty: Penalty | None,
    step: Step,
) -> Tensor:
    """Take one optimiser step. Return its loss without the penalty, detached from its graph."""
    loss = step(model)
    optimiser.zero_grad()
    (loss if penalty is None else loss + penalty(parameters)).backward()
    clip_gradients(parameters)
    optimiser.step()
    return loss.detach()


def _in_pieces(
    model: nn.Module,
    parameters: Sequence[nn.Parameter],
    optimiser: Optimizer | Sgd,
    penalty: Penalty | None,
    most: int,
    step: Step,
) -> Tensor:
    """Take one optimiser step as `_take` does, with at most `most` images in the network at a time.

    The gradients of the pieces are accumulated, so the memory needed is that of one piece.
    """
    optimiser.zero_grad()
    total = torch.zeros((), device=parameters[0].device)
    for share, piece in step.pieces(most):
        loss = share * piece(model)
        loss.backward()
        total += loss.detach()
    if penalty is not None:
        penalty(parameters).backward()
    clip_gradients(parameters)
    optimiser.step()
    return total


def optimiser_of(parameters: Sequence[Tensor], settings: TrainSettings) -> Optimizer | Sgd:
    """Return a new optimiser, as `training.optimiser` says, of these leaf tensors."""
    rate, decay = settings.learning_rate, settings.weight_decay
    if settings.optimiser == "rmsprop":
        return torch.optim.RMSprop(
            parameters, rate, RMSPROP_DECAY, eps=RMSPROP_EPSILON, weight_decay=decay
        )
    fused = parameters[0].is_cuda  # a step is then one kernel
    if settings.optimiser == "adam":
        return torch.optim.Adam(parameters, rate, weight_decay=decay, fused=fused)
    if fused:
        return torch.optim.SGD(parameters, rate, settings.momentum, weight_decay=decay, fused=True)
    return Sgd(parameters, rate, settings.momentum, decay)


def freeze_batch_norm(model: nn.Module) -> None:
    """Put every batch norm into evaluation mode.

    It then uses its running statistics and does not update them.
    """
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eval()


@torch.no_grad()
def recalibrate(model: Network, images: Tensor, normalise: Normalise) -> None:
    """Recompute the running statistics of every batch norm on these images, in place.

    Labels are not needed.

    The statistics become the plain mean over the batches. With fewer than two images nothing
    changes.
    """
    if len(images) < 2:
        return
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    before = [(norm, norm.momentum, norm.num_batches_tracked) for norm in norms]
    model.eval()
    for norm in norms:
        norm.num_batches_tracked = torch.zeros((), dtype=torch.int64, device=images.device)
        norm.momentum = None  # torch's value for a cumulative mean
        norm.train()
    size = inputs_per_pass(images.shape[1:])
    for batch in batches(torch.arange(len(images), device=images.device), size):
        model(normalise(images[batch]))
    for norm, momentum, tracked in before:
        norm.momentum, norm.num_batches_tracked = momentum, tracked
    model.eval()
