"""Steps of gradient descent that protect single images: DP-SGD (Abadi et al. 2016), by Opacus.

In each step every image takes part with probability q, by itself and in secret (Poisson sampling,
as the account presumes). Its gradient is cut to the norm C; the sum over the images gets Gaussian
noise of standard deviation z C and is divided by q n, n being the number of images, which everybody
knows. Opacus finds each image's gradient and cuts it. Sampling and noise are ours: keyed by the
site's secret, so that a task that is done again is no second look.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedapp.ground.errors import ConfigError
from fedapp.ground.extras import needs
from fedapp.learn.privacy.draws import normal, uniform

AT_ONCE = 64
"""Images whose gradients are held at a time."""


@dataclass(frozen=True)
class NoisySteps:
    """How a network takes them.

    count: number of steps. rate: q. clip: C. multiplier: z; 0: the noise is added elsewhere.
    learning_rate, momentum, weight_decay: of SGD, which begins anew. secret: text -> 32 bytes.
    """

    count: int
    rate: float
    clip: float
    multiplier: float
    learning_rate: float
    momentum: float
    weight_decay: float
    secret: Callable[[bytes], bytes]

    def take(
        self, model: nn.Module, images: Tensor, labels: Tensor, seen: Callable[[Tensor], Tensor]
    ) -> None:
        """Descend on the cross entropy of images [n, ...] with labels int64 [n], in place; n >= 1.

        seen: some of the images -> what the network takes of them. Raises NotInstalled, and
        ConfigError where the network mixes the images of a batch.
        """
        if any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in model.modules()):
            raise ConfigError(
                "privacy.epsilon: this network has batch norm, which mixes images: set "
                "model.norm=group or choose another network"
            )
        samples, optimizers = (
            needs("privacy", f"opacus.{name}") for name in ("grad_sample", "optimizers")
        )
        parameters = list(model.parameters())
        sgd = torch.optim.SGD(
            parameters, self.learning_rate, self.momentum, weight_decay=self.weight_decay
        )
        wrapped = samples.GradSampleModule(model, loss_reduction="sum")
        cutting = optimizers.DPOptimizer(
            sgd,
            noise_multiplier=0.0,
            max_grad_norm=self.clip,
            expected_batch_size=1,
            loss_reduction="sum",
        )
        wrapped.train()
        try:
            for step in range(self.count):
                drawn = uniform(self.secret(b"sampled %d" % step), len(images)) < self.rate
                chosen = torch.from_numpy(drawn).nonzero().flatten().to(images.device)
                sums = [torch.zeros_like(one) for one in parameters]
                for some in chosen.split(AT_ONCE) if len(chosen) else ():
                    cutting.zero_grad()
                    logits = wrapped(seen(images[some]))
                    with warnings.catch_warnings():  # that images themselves need no gradient
                        warnings.filterwarnings("ignore", "Full backward hook is firing")
                        F.cross_entropy(logits, labels[some], reduction="sum").backward()
                    cutting.clip_and_accumulate()
                    cut = cutting.params, sums
                    sums = [total + one.summed_grad for one, total in zip(*cut, strict=True)]
                self._set(parameters, sums, self.rate * len(images), step)
                sgd.step()
        finally:
            cutting.zero_grad()
            wrapped.to_standard_module()

    def _set(
        self, parameters: list[nn.Parameter], sums: list[Tensor], expected: float, step: int
    ) -> None:
        """Make the noisy mean the gradient of each parameter."""
        size = sum(one.numel() for one in sums)
        noise = torch.zeros(size, dtype=torch.float64)
        if self.multiplier:
            drawn = torch.from_numpy(normal(self.secret(b"noise %d" % step), size))
            noise = self.multiplier * self.clip * drawn
        parts = noise.split([one.numel() for one in sums])
        for parameter, total, part in zip(parameters, sums, parts, strict=True):
            noisy = total.double().cpu() + part.reshape(total.shape)
            parameter.grad = (noisy / expected).to(parameter)
