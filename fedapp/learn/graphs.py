"""CUDA graphs: a fixed piece of GPU work, recorded once and started as a whole from then on.

A training step starts some 125 small kernels; the processor takes longer to start them than a fast
GPU to run them. A graph is started by one call.

What PyTorch asks of work that is recorded (its notes on CUDA, "CUDA Graphs") and how it is met:

- Addresses stay: inputs are copied into tensors of the graph's own; weights are loaded in place
  (`params.assign`), and the optimiser's state is kept and set to zero in place.
- Shapes stay: each shape is a graph of its own. One that is seen seldom is never recorded.
- Work runs a few times before it is recorded, on the stream that records. These are the first uses.
- Nothing waits for the GPU inside: the work reads no number back.
- Draws: PyTorch's CUDA generator hands a graph its seed and offset at every start, and moves on by
  what the graph draws. So a graph draws what the same calls would have drawn without it. Both lie
  in tensors that the first graph makes; made under `inference_mode`, no training could be recorded.
- The optimiser has its state before it is recorded. A step makes it; the weights are put back.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fedapp.ground.errors import RunError, one_line
from fedapp.learn.steps import Step

USED_BEFORE = 3
"""Uses of a shape before it is recorded: libraries set themselves up in them."""
KEPT = 256
"""Graphs kept, the last used; a site's number of images is a shape of scoring."""

Work = Callable[..., Tensor]


class Recorder(Protocol):
    """Records work; `CudaRecorder`, and a stand-in where tests have no GPU."""

    def aside(self) -> AbstractContextManager[None]:
        """Enter the stream on which all recorded work runs, in step with the one outside."""

    def record(self, work: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Record the work without doing it; return what does it.

        That returns the same tensor each time, which the next call, of any recorded work, may
        overwrite.
        """


class CudaRecorder:
    """CUDA graphs on one stream of a device, in one pool of memory.

    Graphs may share a pool because they run one after the other and what one leaves is copied
    before the next begins.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()
        with torch.inference_mode(False):  # kept: without a graph the next would make them anew
            self._first = self.record(lambda: torch.zeros(1, device=device))

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Enter the stream on which all recorded work runs, in step with the one outside."""
        outside = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(outside)
        with torch.cuda.stream(self._stream):
            yield
        outside.wait_stream(self._stream)

    def record(self, work: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Record the work without doing it; return what does it.

        Raises RunError where CUDA refuses; nothing else should be tried on the device then.
        """
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                out = work()
        except RuntimeError as error:
            raise RunError(
                f"a GPU's work cannot be recorded ({one_line(error)}); set runtime.graphs to false "
                "and start the program again"
            ) from error

        def replay() -> Tensor:
            graph.replay()
            return out

        return replay


class Graphs:
    """The recorded work of one network, and the optimisers whose state that work holds on to.

    The network's tensors must stay where they are. A copy of the network has other tensors: its
    `Graphs` begin empty.
    """

    def __init__(self, recorder: Recorder, kept: int = KEPT) -> None:
        self._recorder, self._kept = recorder, kept
        self._used: Counter[Hashable] = Counter()
        self._recorded: OrderedDict[Hashable, tuple[list[Tensor], Callable[[], Tensor]]]
        self._recorded = OrderedDict()
        self._optimisers: dict[Hashable, Optimizer] = {}

    def __deepcopy__(self, memo: object) -> "Graphs":
        return Graphs(self._recorder, self._kept)

    def __len__(self) -> int:
        """Return how many graphs there are now."""
        return len(self._recorded)

    def aside(self) -> AbstractContextManager[None]:
        """Enter the stream on which all recorded work runs: call `run` inside."""
        return self._recorder.aside()

    def run(self, key: Hashable, work: Work, inputs: Sequence[Tensor]) -> Tensor:
        """Return `work(*inputs)`, a tensor of the caller's own.

        key: equal keys mean work that does the same with inputs of the same shapes; the first that
        comes is recorded, with what it holds on to. work: changes nothing but tensors in place.
        """
        key = key, *((tuple(each.shape), each.dtype) for each in inputs)
        if key not in self._recorded:
            self._used[key] += 1
            if self._used[key] <= USED_BEFORE:
                return work(*inputs)
            own = [torch.empty_like(each) for each in inputs]
            self._recorded[key] = own, self._recorder.record(lambda: work(*own))
            if len(self._recorded) > self._kept:
                del self._used[self._recorded.popitem(last=False)[0]]
        self._recorded.move_to_end(key)
        own, replay = self._recorded[key]
        for mine, given in zip(own, inputs, strict=True):
            mine.copy_(given)
        return replay().clone()

    def optimiser(self, key: Hashable, make: Callable[[], Optimizer]) -> Optimizer:
        """Return the optimiser of this key as if it had just been made.

        Its state is in the same tensors each time. All zero is the state that SGD and Adam begin
        with: a momentum of 0 takes in the first gradient whole.
        """
        if key not in self._optimisers:
            self._optimisers[key] = _with_state(make())
        optimiser = self._optimisers[key]
        states = [each for state in optimiser.state.values() for each in state.values()]
        for tensor in filter(torch.is_tensor, states):
            tensor.zero_()
        return optimiser


def graphs_on(device: torch.device) -> Graphs | None:
    """Return where work on a network of this device is recorded; None where it cannot be."""
    return Graphs(CudaRecorder(device)) if device.type == "cuda" else None


def recorded(
    graphs: Graphs,
    key: Callable[[], Hashable],
    take: Callable[[Step], Tensor],
    steps: Iterable[Step],
) -> Iterator[Tensor]:
    """Take the steps, each as `take` does, and yield its losses; what can be is recorded.

    key: what `take` depends on beside the step; asked when the step is there, since an objective
    sets the network's mode when its first step is asked for.
    """
    for step in steps:
        if step.recordable:
            loss = step.loss

            def work(*batch: Tensor, loss: Callable[..., Tensor] = loss) -> Tensor:
                return take(Step(loss, batch))

            yield graphs.run((key(), loss), work, step.batch)
        else:
            yield take(step)


def state_of(model: nn.Module) -> Hashable:
    """Return what decides which kernels a step of the model starts, beside its inputs' shapes."""
    modes = tuple(module.training for module in model.modules())
    return modes, tuple(parameter.requires_grad for parameter in model.parameters())


@torch.no_grad()
def _with_state(optimiser: Optimizer) -> Optimizer:
    """Have the optimiser make its state by a step; weights, which decay moves, are put back."""
    weights = [weight for group in optimiser.param_groups for weight in group["params"]]
    before = [weight.clone() for weight in weights]
    for weight in weights:
        weight.grad = torch.zeros_like(weight)
    optimiser.step()
    optimiser.zero_grad(set_to_none=True)
    for weight, value in zip(weights, before, strict=True):
        weight.copy_(value)
    return optimiser
