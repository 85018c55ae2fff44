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
from typing import Any

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
        self._tensors = tuple(tensors_of(self.network).values())
        self._modules = list(self.network.modules())
        self.parameters = list(self.network.parameters())

    def __call__(self, inputs: Sequence[Tensor]) -> Tensor:
        """Return all members' answers [size, n, C], each to inputs of its own [n, ...]."""
        return self._apart(self.network(torch.cat(list(inputs), dim=1)))

    def answers(self, inputs: Sequence[Tensor], rows: Sequence[int]) -> list[Tensor]:
        """Return all members' answers to sets of so many inputs each, [size, rows, C] a set.

        What is in front of the first dropout sees the sets together, the rest each set alone.
        """
        features = self.network.trunk(torch.cat(list(inputs), dim=1))
        # Each in memory of its own: on some CPUs a product's last bits depend on where that starts.
        parts = [[one.clone() for one in part.split(list(rows))] for part in features]
        return [self._apart(self.network.tail(each)) for each in zip(*parts, strict=True)]

    def _apart(self, logits: Tensor) -> Tensor:
        return logits.view(len(logits), self.size, -1).transpose(0, 1)

    @torch.no_grad()
    def load(self, members: Sequence[Sequence[Tensor]]) -> None:
        """Take the members' weights, `size` of them or fewer; the last one's fill the rest.

        Of each all tensors, in the order of `tensors_of`.
        """
        every = [*members, *[members[-1]] * (self.size - len(members))]
        own = [part for tensor in self._tensors for part in tensor.unbind(0)]
        torch._foreach_copy_(own, [one for each in zip(*every, strict=True) for one in each])

    @torch.no_grad()
    def give(self, members: Sequence[Sequence[Tensor]]) -> None:
        """Copy the weights back to the members' tensors."""
        own = [part for tensor in self._tensors for part in tensor[: len(members)].unbind(0)]
        torch._foreach_copy_([one for each in zip(*members, strict=True) for one in each], own)

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
        kind, weight, bias = x.device.type, self.weight, self.bias
        if torch.is_autocast_enabled(kind):  # it knows no functions of one's own
            half = torch.get_autocast_dtype(kind)
            x, weight, bias = x.to(half), weight.to(half), None if bias is None else bias.to(half)
        out: Tensor = _Products.apply(x, weight)  # type: ignore[no-untyped-call]
        if bias is not None:
            out = _Sums.apply(out, bias)  # type: ignore[no-untyped-call]
        return out


class _Products(torch.autograd.Function):
    """Each network's x w^T: inputs [n, size d], weights [size, o, d] -> [n, size o].

    A library chooses its kernels by how far rows lie apart and by where a matrix begins. So each
    network's matrices lie in one piece and begin at a border of `BORDER`, whoever else is there.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        each, weight = _bordered(_apart(x, len(weight))), _bordered(weight)
        ctx.save_for_backward(each, weight)
        return _side_by_side(_product(each, weight.mT))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None]:
        each, weight = ctx.saved_tensors
        along = _bordered(_apart(gradients[0], len(weight)))
        of_x, of_weight = ctx.needs_input_grad
        return (
            _side_by_side(_product(along, weight)) if of_x else None,
            _product(along.mT, each) if of_weight else None,
        )


class _Sums(torch.autograd.Function):
    """Each network's x + b: [n, size o] and [size, o]; a column's sum goes by its own place."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor) -> Tensor:
        ctx.size = len(bias)
        return x + bias.flatten()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor | None]:
        [along] = gradients
        each = _bordered(_apart(along, ctx.size)) if ctx.needs_input_grad[1] else None
        return along, None if each is None else each.sum(1)


BORDER = 16
"""Floats: 64 bytes, a line of a CPU's cache."""


def _apart(x: Tensor, size: int) -> Tensor:
    """[n, size d] -> [size, n, d]."""
    return x.reshape(len(x), size, -1).transpose(0, 1)


def _side_by_side(each: Tensor) -> Tensor:
    """[size, n, d] -> [n, size d]."""
    return each.transpose(0, 1).reshape(each.shape[1], -1)


def _product(one: Tensor, other: Tensor) -> Tensor:
    """[size, n, d] and [size, d, o] -> [size, n, o], each beginning at a border."""
    out = _room(one, len(one), one.shape[1], other.shape[2])
    return torch.bmm(one, other, out=out)


def _bordered(each: Tensor) -> Tensor:
    """Return the matrices so that each lies in one piece and begins at a border."""
    size, rows, columns = each.shape
    in_one_piece = each.stride()[1:] == (columns, 1) and each.stride(0) % BORDER == 0
    if in_one_piece and each.storage_offset() % BORDER == 0:
        return each
    return _room(each, size, rows, columns).copy_(each)


def _room(like: Tensor, size: int, rows: int, columns: int) -> Tensor:
    whole = -(-rows * columns // BORDER) * BORDER
    return like.new_empty(size, whole)[:, : rows * columns].view(size, rows, columns)


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
    both.load([tuple(tensors_of(one).values()) for one in (network, other)])
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
