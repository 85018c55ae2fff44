"""DP-SGD with Opacus: steps of gradient descent that protect single images or patients.

In each step every image takes part with probability q, independently and in secret (Poisson
sampling, as the accountant assumes). Its gradient is clipped to the norm C. The sum over the images
gets Gaussian noise of standard deviation z C and is divided by q n, where n, the number of images,
is public (Abadi et al. 2016). If it is known whose the images are, a patient takes the place of an
image: all images of a patient take part or none, and the sum of their gradients is clipped to C
(McMahan et al. 2018, "Learning Differentially Private Recurrent Language Models").

Opacus computes and clips the gradient of each image. Sampling and noise are our own: they are keyed
by the site's secret, so that a task that is repeated shows the same noise and not a second sample.

Nothing else is random: there is no dropout and no random augmentation (the settings refuse them).
Such draws follow from the experiment's seed, which is public, and from an image's position among
the others: one more image would change the gradients of all images after it.

Whoever sends the weights can choose them so that numbers overflow for one image only. Gradients
that are NaN or infinite are therefore replaced by 0 before clipping: such an image or patient
changes the sum by at most C, like any other, and no error reveals it.
"""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedapp.core.errors import ConfigError
from fedapp.core.optional_dependencies import needs
from fedapp.privacy.noise import normal, uniform

IMAGES_AT_ONCE = 64
"""Images whose gradients are held in memory at a time."""


@dataclass(frozen=True)
class DPSGD:
    """The parameters of DP-SGD.

    count: number of steps. rate: q. clip: C. multiplier: z; 0: the noise is added elsewhere, such
    as to a masked sum. learning_rate, momentum, weight_decay: those of SGD, whose momentum starts
    at 0. secret: maps a text to 32 secret bytes, which key the draws of that name.
    """

    count: int
    rate: float
    clip: float
    multiplier: float
    learning_rate: float
    momentum: float
    weight_decay: float
    secret: Callable[[bytes], bytes]

    def train(
        self,
        model: nn.Module,
        images: Tensor,
        labels: Tensor,
        as_input: Callable[[Tensor], Tensor],
        patients: Tensor | None = None,
    ) -> None:
        """Train a model in place by `count` steps on the cross entropy of n >= 1 labelled images.

        images: [n, ...]. labels: int64 [n]. as_input: turns images into the network's input.
        patients: int64 [n], the patient of each image; None: each image is protected by itself. The
        owner of an image, below, is its patient, or the image itself. Raises NotInstalled, and
        ConfigError if the network mixes the images of a batch (batch norm).
        """
        owners = torch.arange(len(images))
        if patients is not None:
            owners = patients.cpu().unique(return_inverse=True)[1]
        num_owners = int(owners.max()) + 1
        if any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in model.modules()):
            raise ConfigError(
                "privacy.epsilon: this network has batch norm, which mixes images: set "
                "model.norm=group or choose another network"
            )
        samples, optimizers = (
            needs("privacy", f"opacus.{name}") for name in ("grad_sample", "optimizers")
        )
        parameters: list[Any] = list(model.parameters())  # Opacus adds attributes to them
        sgd = torch.optim.SGD(
            parameters, self.learning_rate, self.momentum, weight_decay=self.weight_decay
        )
        per_sample_model = samples.GradSampleModule(model, loss_reduction="sum")
        clipping = optimizers.DPOptimizer(
            sgd,
            noise_multiplier=0.0,
            max_grad_norm=self.clip,
            expected_batch_size=1,
            loss_reduction="sum",
        )
        per_sample_model.train()
        for part in model.modules():
            if next(part.parameters(), None) is None:
                part.eval()  # switches dropout off: see the module's docstring
        try:
            for step in range(self.count):
                drawn = uniform(self.secret(b"sampled %d" % step), num_owners) < self.rate
                sums = [torch.zeros_like(one) for one in parameters]
                for block in _blocks(owners, torch.from_numpy(drawn)):
                    # Row i of each gradient is the sum over the images of the block's owner i.
                    gradients = [one.new_zeros(len(block), *one.shape) for one in parameters]
                    rows = torch.arange(len(block)).repeat_interleave(
                        torch.tensor([len(indices) for indices in block])
                    )
                    pieces = zip(
                        torch.cat(block).split(IMAGES_AT_ONCE),
                        rows.split(IMAGES_AT_ONCE),
                        strict=True,
                    )
                    for indices, their_rows in pieces:
                        clipping.zero_grad()
                        here = indices.to(images.device)
                        logits = per_sample_model(as_input(images[here]))
                        # PyTorch warns that the images themselves need no gradient.
                        with warnings.catch_warnings():
                            warnings.filterwarnings("ignore", "Full backward hook is firing")
                            F.cross_entropy(logits, labels[here], reduction="sum").backward()
                        for one, gradient in zip(parameters, gradients, strict=True):
                            gradient.index_add_(0, their_rows.to(gradient.device), one.grad_sample)
                    clipping.zero_grad()
                    # To Opacus each owner is now one sample, which it clips to the norm C.
                    for one, gradient in zip(parameters, gradients, strict=True):
                        one.grad_sample = torch.nan_to_num(gradient, 0.0, 0.0, 0.0)
                    clipping.clip_and_accumulate()
                    clipped = zip(clipping.params, sums, strict=True)
                    sums = [total + one.summed_grad for one, total in clipped]
                self._set_gradients(parameters, sums, self.rate * len(images), step)
                sgd.step()
        finally:
            clipping.zero_grad()
            per_sample_model.to_standard_module()

    def _set_gradients(
        self, parameters: list[nn.Parameter], sums: list[Tensor], expected: float, step: int
    ) -> None:
        """Set each parameter's gradient to the noisy mean: (sum + noise) / expected images."""
        size = sum(one.numel() for one in sums)
        noise = torch.zeros(size, dtype=torch.float64)
        if self.multiplier:
            drawn = torch.from_numpy(normal(self.secret(b"noise %d" % step), size))
            noise = self.multiplier * self.clip * drawn
        parts = noise.split([one.numel() for one in sums])
        for parameter, total, part in zip(parameters, sums, parts, strict=True):
            noisy = total.double().cpu() + part.reshape(total.shape)
            parameter.grad = (noisy / expected).to(parameter)


def _blocks(owners: Tensor, drawn: Tensor) -> Iterator[list[Tensor]]:
    """Yield blocks of drawn owners, each owner as the indices of all its images.

    owners: int64 [n], the owner of each image, numbered from 0. drawn: bool [owners]. A block has
    at most `IMAGES_AT_ONCE` images, or is one owner alone.
    """
    chosen = drawn[owners].nonzero().flatten()
    order = chosen[owners[chosen].argsort(stable=True)]
    sizes = owners[order].unique_consecutive(return_counts=True)[1].tolist()
    block: list[Tensor] = []
    images = 0
    for indices in order.split(sizes):
        if block and images + len(indices) > IMAGES_AT_ONCE:
            yield block
            block, images = [], 0
        block.append(indices)
        images += len(indices)
    if block:
        yield block
