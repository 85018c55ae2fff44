"""One network with the weights of many: what trains tiny sites as one batch.

A convolution of S networks is one convolution in S groups, a linear layer one product of batches of
matrices, a norm over c channels one over S c. So the network's own code runs unchanged on inputs
whose channels are those of S sites, one site after the other; its answers lie side by side too. A
site's numbers are the same to the bit in every group of two and more, whoever else is in it; a
group of one takes other kernels, and is filled up to two.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedapp.learn.networks.base import Network
from fedapp.learn.params import tensors_of

LEAST = 2
"""Networks of a group: of one, other kernels would do the work."""


class Grouped:
    """A network of `size` members, at least `LEAST`.

    network: one of them; it is copied, its modes too. draws: a generator of each member's, which
    dropout draws from. Raises TypeError for a network with a layer that cannot be grouped.
    """

    def __init__(self, network: Network, size: int) -> None:
        assert size >= LEAST
        self.size, self.draws = size, list[torch.Generator]()
        self.network = copy.deepcopy(network)
        self.network.grouped = False
        layers: dict[int, nn.Module] = {}  # a layer that stands in two places stays one
        for name, module in list(self.network.named_modules(remove_duplicate=False)):
            if next(module.children(), None) is None:
                where, _, last = name.rpartition(".")
                made = layers.setdefault(id(module), self._layer(module))
                setattr(self.network.get_submodule(where), last, made)
            elif module._parameters:
                raise TypeError(f"{type(module).__name__} has weights outside of its layers")
        self._tensors = tensors_of(self.network)
        self._modules = list(self.network.modules())
        self.parameters = list(self.network.parameters())

    def __call__(self, inputs: Sequence[Tensor]) -> Tensor:
        """Return all members' answers [size, n, C], each to inputs of its own [n, ...]."""
        logits: Tensor = self.network(torch.cat(list(inputs), dim=1))
        return logits.view(len(logits), self.size, -1).transpose(0, 1)

    @torch.no_grad()
    def load(self, members: Sequence[Network]) -> None:
        """Take the members' weights, `size` of them or fewer; the last one's fill the rest."""
        every = [tensors_of(member) for member in members]
        every += every[-1:] * (self.size - len(every))
        own = [part for tensor in self._tensors.values() for part in tensor.unbind(0)]
        torch._foreach_copy_(own, [each[name] for name in self._tensors for each in every])

    @torch.no_grad()
    def give(self, members: Sequence[Network]) -> None:
        """Copy the weights back to the members."""
        every = [tensors_of(member) for member in members]
        own = [part for tensor in self._tensors.values() for part in tensor[: len(every)].unbind(0)]
        torch._foreach_copy_([each[name] for name in self._tensors for each in every], own)

    def modes(self, modes: Sequence[bool]) -> None:
        """Set the mode of each module, in the order of the network's own."""
        for module, training in zip(self._modules, modes, strict=True):
            module.training = training

    def _layer(self, module: nn.Module) -> nn.Module:
        kind = type(module)
        if isinstance(module, nn.Dropout | nn.Dropout2d):
            return _Dropout(module, self.size, self.draws)
        if kind in _GROUPED:
            return _GROUPED[kind](module, self.size)
        if kind not in _PLAIN:
            raise TypeError(f"a layer of {kind.__name__} cannot be grouped")
        return module


class _Layer(nn.Module):
    """A layer's weights of `size` networks, each [size, ...] and empty at first."""

    weight: Tensor
    bias: Tensor | None

    def __init__(self, one: nn.Module, size: int) -> None:
        super().__init__()
        self.size, self.training = size, one.training
        for name, weight in one._parameters.items():
            of = None if weight is None else nn.Parameter(_many(weight.detach(), size))
            self.register_parameter(name, of)
        for name, buffer in one._buffers.items():
            self.register_buffer(name, None if buffer is None else _many(buffer, size))


def _many(tensor: Tensor, size: int) -> Tensor:
    """Return room for so many of a tensor; kernels lie as convolutions take them."""
    if tensor.ndim != 4:
        return tensor.new_empty(size, *tensor.shape)
    out, channels, height, width = tensor.shape
    return tensor.new_empty(size, out, height, width, channels).permute(0, 1, 4, 2, 3)


class _Conv(_Layer):
    def __init__(self, one: nn.Conv2d, size: int) -> None:
        super().__init__(one, size)
        self.one, self.groups = (one.stride, one.padding, one.dilation), one.groups * size
        if one.padding_mode != "zeros":
            raise TypeError(f"a convolution with a rim of {one.padding_mode} cannot be grouped")

    def forward(self, x: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.flatten()
        x = x.contiguous(memory_format=torch.channels_last)
        stride, padding, dilation = self.one
        weight = self.weight.flatten(0, 1)
        return F.conv2d(x, weight, bias, stride, padding, dilation, self.groups)


class _Linear(_Layer):
    def forward(self, x: Tensor) -> Tensor:
        # Copied: how far rows lie apart may not depend on the group, since kernels choose by it.
        each = x.reshape(len(x), self.size, -1).transpose(0, 1).contiguous()
        weights = self.weight.mT
        if self.bias is None:
            out = torch.bmm(each, weights)
        else:
            out = torch.baddbmm(self.bias.unsqueeze(1), each, weights)
        return out.transpose(0, 1).reshape(len(x), -1)


class _BatchNorm(_Layer):
    num_batches_tracked: Tensor
    running_mean: Tensor
    running_var: Tensor

    def __init__(self, one: nn.modules.batchnorm._BatchNorm, size: int) -> None:
        super().__init__(one, size)
        if one.momentum is None or one.running_mean is None or not one.affine:
            raise TypeError("a batch norm without momentum, statistics or weights is not grouped")
        self.momentum, self.eps = one.momentum, one.eps

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.num_batches_tracked.add_(1)
        mean, variance = self.running_mean.view(-1), self.running_var.view(-1)
        bias = None if self.bias is None else self.bias.flatten()
        rest = self.training, self.momentum, self.eps
        return F.batch_norm(x, mean, variance, self.weight.flatten(), bias, *rest)


class _GroupNorm(_Layer):
    def __init__(self, one: nn.GroupNorm, size: int) -> None:
        super().__init__(one, size)
        self.groups, self.eps = one.num_groups * size, one.eps
        if not one.affine:
            raise TypeError("a group norm without weights is not grouped")

    def forward(self, x: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.flatten()
        return F.group_norm(x, self.groups, self.weight.flatten(), bias, self.eps)


class _Dropout(nn.Module):
    """Each network drops by draws of its own."""

    def __init__(
        self, one: nn.Dropout | nn.Dropout2d, size: int, draws: list[torch.Generator]
    ) -> None:
        super().__init__()
        self.p, self.size, self.training, self._draws = one.p, size, one.training, draws
        self._channels = isinstance(one, nn.Dropout2d)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not self.p:
            return x
        places = [1] * (x.ndim - 2) if self._channels else x.shape[2:]
        kept = torch.empty(self.size, len(x), x.shape[1] // self.size, *places, device=x.device)
        for mine, draw in zip(kept, self._draws, strict=True):
            mine.uniform_(generator=draw)
        kept = kept.ge_(self.p).div_(1 - self.p).to(x.dtype)
        return x * kept.transpose(0, 1).flatten(1, 2)


_GROUPED: Mapping[type[nn.Module], Callable[..., nn.Module]] = MappingProxyType(
    {
        nn.Conv2d: _Conv,
        nn.Linear: _Linear,
        nn.BatchNorm1d: _BatchNorm,
        nn.BatchNorm2d: _BatchNorm,
        nn.GroupNorm: _GroupNorm,
    }
)
_PLAIN = frozenset({nn.Identity, nn.ReLU, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d})
"""What does the same to every channel."""


def why_not(network: Network) -> str:
    """Return why networks of this kind cannot be grouped; empty: they can.

    Asked of a trial too: its own code may mix channels of different networks.
    """
    if not any(isinstance(module, nn.Conv2d) for module in network.modules()):
        return "without convolutions a group is slower than a loop"
    try:
        both = Grouped(network, LEAST)
    except TypeError as error:
        return str(error)
    other = copy.deepcopy(network)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(0.5)
    both.load([network, other])
    both.modes([False] * len(list(network.modules())))
    draw = torch.Generator().manual_seed(0)
    x = [
        torch.randn(3, *network.inputs, generator=draw).to(both.parameters[0].device) for _ in "12"
    ]
    with torch.no_grad():
        try:
            found = both(x)
        except (RuntimeError, TypeError, AttributeError, IndexError) as error:
            return f"as a group it does not run ({error})"
        for one, inputs, answer in zip((network, other), x, found, strict=True):
            before = [module.training for module in one.modules()]
            alone = one.eval()(inputs)
            for module, training in zip(one.modules(), before, strict=True):
                module.training = training
            if not torch.allclose(alone, answer, rtol=1e-3, atol=1e-3):
                return "as a group it answers something else: it mixes the channels of a batch"
    return ""
