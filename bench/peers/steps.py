"""The bare loop with this project's training steps: a round without what a federation adds to it.

Images stay uint8 and are normalised in each mini-batch, gradients are clipped, and after a round
every site evaluates the common model on its validation and test images, and its own if it has just
trained.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.peers.loop import copy, rounds
from bench.peers.probes import Mark
from bench.peers.problem import Problem
from fedapp.data.inputs import normalise
from fedapp.data.split.manifest import TEST, TRAIN, VAL
from fedapp.learn.optimisers import MAX_GRADIENT_NORM
from fedapp.learn.params import Params


def run(problem: Problem, mark: Mark) -> None:
    """Run the rounds, with the accuracies of the common and the sites' models if asked for."""
    setting, pool, network = problem.setting, problem.pool, problem.network()
    state = network.state_dict()  # the network's own tensors
    parts = {
        (k, part): torch.from_numpy(problem.manifest.indices(k, part))
        for k in range(setting.sites)
        for part in (TRAIN, VAL, TEST)
    }
    images = {of: (pool.inputs[chosen], pool.labels[chosen]) for of, chosen in parts.items()}
    own: dict[int, Params] = {}
    accuracies: dict[tuple[str, int, int], float] = {}

    def scaled(inputs: Tensor) -> Tensor:
        return normalise(inputs, pool.mean, pool.std)

    def learn(k: int, shuffle: torch.Generator) -> int:
        x, y = images[k, TRAIN]
        optimiser = torch.optim.SGD(network.parameters(), setting.learning_rate, setting.momentum)
        network.train()
        for _ in range(setting.epochs):
            for batch in torch.randperm(len(y), generator=shuffle).split(setting.batch_size):
                loss = F.cross_entropy(network(scaled(x[batch])), y[batch])
                optimiser.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(network.parameters(), MAX_GRADIENT_NORM)
                optimiser.step()
        if problem.evaluate:
            own[k] = {name: tensor.clone() for name, tensor in state.items()}
        return len(y)

    @torch.inference_mode()
    def answer(k: int, whose: str) -> None:
        network.eval()
        for part in (VAL, TEST):
            x, y = images[k, part]
            right = network(scaled(x)).argmax(1) == y
            accuracies[whose, k, part] = right.float().mean().item()

    def measure() -> None:
        for k in range(setting.sites):
            answer(k, "common")
        for k, model in own.items():
            copy(model, state)
            answer(k, "own")
        own.clear()

    rounds(problem, network, mark, learn, measure)
