"""SGD with momentum: the bits of torch's own, and parameters without a gradient."""

import pytest
import torch
from torch import Tensor, nn

from fedapp.learn.optimisers import Sgd


def parameters(*values):
    return [nn.Parameter(torch.tensor([value])) for value in values]


@pytest.mark.parametrize("decay", [0.0, 0.01])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_as_torchs_to_the_bit(momentum, decay):
    stream = torch.Generator().manual_seed(0)
    shapes = ((3, 4), (7,), (2, 3, 5, 5), ())
    start = [torch.randn(shape, generator=stream) for shape in shapes]
    ours, theirs = ([nn.Parameter(t.clone()) for t in start] for _ in range(2))
    sgd = Sgd(ours, 0.03, momentum, decay)
    reference = torch.optim.SGD(theirs, 0.03, momentum, weight_decay=decay)
    for step in range(4):
        # Of some steps a parameter has no part, the first among them.
        gradients: list[Tensor | None] = [torch.randn(s, generator=stream) for s in shapes]
        gradients[step % 2] = None
        for each in (ours, theirs):
            for parameter, gradient in zip(each, gradients, strict=True):
                parameter.grad = None if gradient is None else gradient.clone()
        sgd.step()
        reference.step()
        assert all(parameter.grad is None for parameter in ours)
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_without_a_gradient_nothing_moves():
    w, still = parameters(1.0, 2.0)
    sgd = Sgd([w, still], rate=0.1, momentum=0.9)
    sgd.step()
    assert (w.item(), still.item()) == (1.0, 2.0)
    w.grad = torch.tensor([1.0])
    sgd.step()
    assert w.item() == pytest.approx(0.9)
    assert still.item() == 2.0
    w.grad = torch.tensor([1.0])
    sgd.zero_grad()
    sgd.step()
    assert w.item() == pytest.approx(0.9)
