"""FedAvg as a bare PyTorch loop: what an engineer writes who needs no framework.

Images are normalised once and lie ready, site by site; one network is trained in place, in the
memory layout that the others have; the average is a running sum. Nothing is checked, written,
counted or sent. The order of a site's images is drawn as a site here draws it, so that the models
can be compared.
"""

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.peers.probes import Mark
from bench.peers.problem import SEED, Problem
from fedapp.core.rng import torch_stream
from fedapp.data.split.manifest import TEST, TRAIN, VAL

EVALUATED_AT_ONCE = 500
"""Number of images in a batch of the evaluation."""

Images = tuple[Tensor, Tensor]
"""Normalised images [n, c, h, w] and labels [n]."""


def run(problem: Problem, mark: Mark) -> None:
    """Run the rounds, with the accuracies of the common and the sites' models if asked for."""
    setting, network = problem.setting, problem.network()
    sites = range(setting.sites)
    train = {k: problem.part(k, TRAIN) for k in sites}
    held_out = {k: _joined([problem.part(k, VAL), problem.part(k, TEST)]) for k in sites}
    every = _joined(list(held_out.values()))
    owner = torch.repeat_interleave(torch.tensor([len(held_out[k][1]) for k in sites]))
    counts = torch.bincount(owner)
    own = torch.zeros(setting.sites)
    accuracies: list[tuple[Tensor, Tensor]] = []  # of each site's own and of the common model

    def learn(k: int, shuffle: torch.Generator) -> int:
        _train(network, train[k], problem, shuffle)
        if problem.evaluate:
            own[k] = _right(network, held_out[k]).float().mean()
        return len(train[k][1])

    def measure() -> None:
        right = torch.bincount(owner, _right(network, every))
        accuracies.append((own.clone(), right / counts))

    rounds(problem, network, mark, learn, measure)


def rounds(
    problem: Problem,
    network: nn.Module,
    mark: Mark,
    learn: Callable[[int, torch.Generator], int],
    measure: Callable[[], None],
) -> None:
    """Run the rounds of FedAvg.

    learn: trains the network, which has the weights of the common model, at a site, with images in
    the order that the generator draws; returns the number of images. measure: evaluates; it is
    called after each round if the problem asks for it, when the network has the new common model.
    """
    state = network.state_dict()  # the network's own tensors
    common = {name: tensor.clone() for name, tensor in state.items()}
    mark(lambda: common)
    for number, cohort in enumerate(problem.cohorts, 1):
        total = len(cohort) * problem.setting.train
        mean = {n: torch.zeros_like(t) for n, t in common.items() if t.is_floating_point()}
        for k in cohort:
            copy(common, state)
            images = learn(k, torch_stream(SEED, "shuffle", number, k))
            with torch.no_grad():
                for name, summed in mean.items():
                    summed.add_(state[name], alpha=images / total)
        common.update(mean)
        if problem.evaluate:
            copy(common, state)
            measure()
        mark(lambda: common)


@torch.no_grad()
def copy(source: Mapping[str, Tensor], target: Mapping[str, Tensor]) -> None:
    """Copy a model's tensors into another one's."""
    for name, tensor in target.items():
        tensor.copy_(source[name])


def _train(network: nn.Module, images: Images, problem: Problem, shuffle: torch.Generator) -> None:
    setting, (x, y) = problem.setting, images
    optimiser = torch.optim.SGD(network.parameters(), setting.learning_rate, setting.momentum)
    network.train()
    for _ in range(setting.epochs):
        for batch in torch.randperm(len(y), generator=shuffle).split(setting.batch_size):
            loss = F.cross_entropy(network(x[batch]), y[batch])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()


@torch.inference_mode()
def _right(network: nn.Module, images: Images) -> Tensor:
    """Return whether each image is classified correctly: bool [n]."""
    network.eval()
    parts = zip(*(part.split(EVALUATED_AT_ONCE) for part in images), strict=True)
    return torch.cat([network(x).argmax(1) == y for x, y in parts])


def _joined(parts: list[Images]) -> Images:
    images, labels = zip(*parts, strict=True)
    return torch.cat(images), torch.cat(labels)
