"""A step of many sites, one after the other, recorded, and as groups of more and more of them."""

from collections.abc import Callable
from functools import partial

import torch.nn.functional as F

from bench.gpu.speed import Operators
from bench.measure import Times, side_by_side
from bench.record import Row
from bench.throughput import on_device
from bench.workload import Workload
from fedapp.experiment.experiment import Experiment
from fedapp.ground.devices import draws_of, pick_device, torch_threads
from fedapp.ground.settings import TrainSettings
from fedapp.learn.graphs import USED_BEFORE, graphs_on
from fedapp.learn.grouped import Grouped
from fedapp.learn.losses import cross_entropy
from fedapp.learn.networks import Network
from fedapp.learn.params import tensors_of
from fedapp.learn.sgd import Sgd
from fedapp.learn.steps import Step
from fedapp.learn.training import descend

IMAGES = (14, 61)
"""Of a step: of a tiny site, and of a site of the paper's setting with a tenth of its labels."""
MEMBERS = (4, 16, 64, 128)
SETTINGS = TrainSettings()


def rows(
    experiment: Experiment, widths: tuple[int, ...], members: tuple[int, ...], repetitions: int
) -> list[Row]:
    """Return a row for each way, microseconds a site; ratio: over one after the other.

    members: sites of a group.

    operators: of PyTorch's, that the processor starts for a site's step.
    """
    device = pick_device(experiment.runtime.device)
    found: list[Row] = []
    with torch_threads(experiment.runtime.threads):
        for width in widths:
            for images in IMAGES:
                work = on_device(width, images, device)
                ways = ways_of(work, members)
                times = side_by_side(
                    {name: way for name, (_, way) in ways.items()},
                    repetitions,
                    warmups=USED_BEFORE + 2,
                    device=device,
                )
                for name, (sites, way) in ways.items():
                    with Operators() as counted:
                        way()
                    one = Times(tuple(s / sites for s in times[name].seconds))
                    found.append(
                        {
                            "width": width,
                            "images a site": images,
                            "what": name,
                            **one.row("us", 1e6),
                            **one.over(times["one after the other"]),
                            "operators": round(counted.number / sites, 1),
                        }
                    )
    return found


def ways_of(work: Workload, sizes: tuple[int, ...]) -> dict[str, tuple[int, Callable[[], object]]]:
    """Return the ways by name: how many sites a call has, and the call."""
    plain, recorded = work.model().train(), work.model().train()
    recorded.graphs = graphs_on(work.images.device)
    ways: dict[str, tuple[int, Callable[[], object]]] = {
        "one after the other": (1, partial(_alone, plain, work)),
        "one after the other, recorded": (1, partial(_alone, recorded, work)),
    }
    for members in sizes:
        group = Grouped(plain, members)
        group.load([tuple(tensors_of(plain).values())])
        group.draws[:] = [draws_of(work.images.device).clone_state() for _ in range(members)]
        ways[f"{members} as one"] = members, partial(_together, group, work)
    return ways


def _alone(network: Network, work: Workload) -> None:
    step = Step(cross_entropy, (work.normalise(work.images), work.labels), recordable=True)
    descend(network, [step], SETTINGS)


def _together(group: Grouped, work: Workload) -> None:
    logits = group([work.normalise(work.images) for _ in range(group.size)])
    labels = work.labels.repeat(group.size)
    losses = F.cross_entropy(logits.flatten(0, 1), labels, reduction="none")
    optimiser = Sgd(group.parameters, SETTINGS.learning_rate, SETTINGS.momentum)
    losses.view(group.size, -1).mean(1).sum().backward()
    optimiser.step()
