"""Frozen networks with less work for the same answers, up to rounding.

A batch norm in evaluation mode multiplies and adds by fixed numbers, which the convolution before
it can do at no cost: w' = w gamma / sqrt(var + eps), b' = (b - mean) gamma / sqrt(var + eps) + beta
(Jacob et al. 2018, section 3.2).
"""

from collections import Counter
from copy import deepcopy

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

FOLDING = "folded 2"
"""Of how networks are computed here: answers kept on disk by another way are made anew."""
SAME_PADDING = "timm.Conv2dSame"
"""timm's convolution that pads as TensorFlow does."""
_CONVOLUTIONS = ("torch.Conv2d", SAME_PADDING)
_NORMS = ("torch.BatchNorm2d", "timm.BatchNormAct2d")
"""Classes that are known to compute what their weights say; a class derived from them may not."""


def folded(body: nn.Module) -> nn.Module:
    """Return a network in evaluation mode as it is best computed; the body itself is not changed.

    Each batch norm that takes the output of one convolution, which goes nowhere else, is folded
    into it. It is the same object where nothing can be folded, or where torch cannot trace it. Only
    for networks of torchvision and timm: a user's own may read its layers' weights, or call a layer
    by another name, which a trace does not show.
    """
    pairs = _pairs(body)
    if not pairs:
        return body
    made = deepcopy(body)
    for conv, norm in pairs:
        first, old = made.get_submodule(conv), made.get_submodule(norm)
        assert isinstance(first, nn.Conv2d)
        assert isinstance(old, nn.BatchNorm2d)
        one = fuse_conv_bn_eval(first, old)
        _put(made, conv, PaddedOnce(one) if _pads_same(one) else one)
        _put(made, norm, _rest_of(old))
    return made


class PaddedOnce(nn.Module):
    """A convolution of stride 2 with TensorFlow's padding, without a padded copy of its input.

    For an input of even size TensorFlow pads one row and column more behind than before. As many
    on both sides do the same, with a kernel that has a row and a column of zeros before its own.
    """

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        self.wider: Tensor
        self._conv, self._pad = conv, (conv.kernel_size[0] - 1) // 2
        wider = F.pad(conv.weight.detach(), (1, 0, 1, 0))
        self.register_buffer("wider", wider.contiguous(memory_format=torch.channels_last))

    def forward(self, x: Tensor) -> Tensor:
        """Map float32 [n, c, h, w] to float32 [n, d, ceil(h / 2), ceil(w / 2)]."""
        if x.shape[2] % 2 or x.shape[3] % 2:
            out: Tensor = self._conv(x)
            return out
        bias, groups = self._conv.bias, self._conv.groups
        return F.conv2d(x, self.wider, bias, stride=2, padding=self._pad, groups=groups)


def _pads_same(conv: nn.Conv2d) -> bool:
    odd = conv.kernel_size in ((3, 3), (5, 5), (7, 7))
    plain = conv.stride == (2, 2) and conv.dilation == (1, 1)
    return _kind(conv) == SAME_PADDING and odd and plain


def _rest_of(norm: nn.BatchNorm2d) -> nn.Module:
    """Return what a batch norm does after it has normalised."""
    if type(norm) is nn.BatchNorm2d:
        return nn.Identity()
    return nn.Sequential(norm.get_submodule("drop"), norm.get_submodule("act"))


def _kind(module: nn.Module) -> str:
    """Return the library and the class of a layer; empty where something else changes it, too."""
    changed = module._forward_hooks or module._forward_pre_hooks or module.training
    library = type(module).__module__.partition(".")[0]
    return "" if changed else f"{library}.{type(module).__name__}"


def _pairs(body: nn.Module) -> list[tuple[str, str]]:
    """Return the names of each convolution and the batch norm that alone takes its output."""
    if not any(_kind(module) in _NORMS for module in body.modules()):
        return []
    traced = deepcopy(body)  # a network may remember what went through it
    try:
        graph = _Tracer().trace(traced)
    except Exception:  # branches on values, and the like; it then works as it is
        return []
    modules = dict(traced.named_modules(remove_duplicate=False))
    calls = [node for node in graph.nodes if node.op == "call_module"]
    times = Counter(id(modules[node.target]) for node in calls)
    found = []
    for node in calls:
        before = node.args[0] if node.args else None
        if not (isinstance(before, fx.Node) and before.op == "call_module"):
            continue
        conv, norm = modules[before.target], modules[node.target]
        alone = len(before.users) == times[id(conv)] == times[id(norm)] == 1
        known = _kind(conv) in _CONVOLUTIONS and _kind(norm) in _NORMS
        if alone and known and norm.running_var is not None:
            found.append((str(before.target), str(node.target)))
    return found


class _Tracer(fx.Tracer):
    """Does not look into convolutions and batch norms, also where timm has its own."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        layers = (nn.Conv2d, nn.BatchNorm2d)
        return isinstance(m, layers) or super().is_leaf_module(m, module_qualified_name)


def _put(network: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, child = name.rpartition(".")
    setattr(network.get_submodule(parent), child, module)
