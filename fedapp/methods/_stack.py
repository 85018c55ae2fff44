"""A network's answer and the closed form's, multiplied: how far to trust each is fitted by sums.

The logits of both are added, each times a weight, with one number for each class; weights and
numbers maximise the likelihood of the labels of all sites' validation images (`learn.calibration`).
They err on other images, so that the product is better than either (docs/research/one_round.md).
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedapp.learn.calibration import Fit
from fedapp.learn.overfeatures import HEAD_BIAS, HEAD_WEIGHT, SCALE, Form, OverFeatures
from fedapp.learn.params import Params, Schema, tensors_of
from fedapp.learn.uncertainty import SCORING_BATCH, features_of
from fedapp.messages.protocol import ModelRef, Reply, Task
from fedapp.methods._answers import deciding
from fedapp.methods._closed import SOLUTION, ClosedSite
from fedapp.methods.base import Round, SiteContext

STACK, FITTED = "stack", "fitted"
"""Roles: the weights that the server sends, and the sums that sites answer with."""
FIT = "fit"
"""Action of a task that asks for them."""
WEIGHTS, BIAS, NUMBERS = "weights", "bias", "numbers"
START = (0.5, 0.5)
"""Weights before anything is fitted, and what the penalty pulls to: network, closed form."""
FIRST_STEPS = 3
"""Newton's steps in round 0; one in each later round, from where the last one ended."""
MOST_CLASSES = 100
"""Above these there are no numbers for each class: curvature grows with their square."""


@dataclass(frozen=True)
class Stack:
    """weights: of the network's logits and of the closed form's. bias: one a class, or none."""

    weights: tuple[float, ...] = START
    bias: tuple[float, ...] = ()

    def to_params(self, classes: int) -> Params:
        """Return it as it travels."""
        bias = self.bias or (0.0,) * classes
        return {WEIGHTS: torch.tensor(self.weights), BIAS: torch.tensor(bias)}


def stack_schemas(classes: int) -> dict[str, Schema]:
    """Return the schemas of all that travels, by role."""
    size = len(START) + classes
    return {
        STACK: {WEIGHTS: ((len(START),), torch.float32), BIAS: ((classes,), torch.float32)},
        FITTED: {NUMBERS: ((3 + size + size * size,), torch.float64)},
    }


def fitted(
    rnd: Round, stack: Stack, classes: int, network: ModelRef, solution: ModelRef
) -> Generator[Sequence[Task], Sequence[Reply], Stack]:
    """Take Newton's steps from a stack, for the newest network; return the next one."""
    for _ in range(1 if rnd.number else FIRST_STEPS):
        ref = rnd.pool.put(stack.to_params(classes), STACK)
        models = {"server": [network], SOLUTION: [solution], STACK: [ref]}
        replies = yield [rnd.task(site, FIT, **models) for site in rnd.sites]
        sent = (rnd.pool.read(rnd.pool.latest(r.site, FITTED))[NUMBERS] for r in replies)
        every = [Fit.from_numbers(numbers) for numbers in sent]
        if sum(fit.images for fit in every):
            bias = torch.tensor(stack.bias or (0.0,) * classes, dtype=torch.float64)
            weights = torch.tensor(stack.weights, dtype=torch.float64)
            start = torch.tensor(START, dtype=torch.float64)
            weights, bias = sum(every[1:], every[0]).step(weights, bias, start)
            bias = bias if classes <= MOST_CLASSES else torch.zeros_like(bias)
            # As they travel: what the server knows and what sites use are the same numbers.
            stack = Stack(*(tuple(t.float().tolist()) for t in (weights, bias)))
    return stack


@dataclass(frozen=True, eq=False)
class Stacked:
    """A site's network and closed form, ready to answer together; the network is the context's.

    form: of what they are together.
    """

    closed: ClosedSite
    form: Form
    network: OverFeatures

    @classmethod
    def of(cls, features: str, task: Task, site: SiteContext) -> "Stacked":
        """Load what a task names: the server's network, the solution and the stack."""
        closed = ClosedSite.of(features, task, site)
        stack = site.contents(task.models[STACK][0])
        solution = closed.solution(task)
        weight, bias = solution.head(*closed.known(), solution.own_weight)
        form = Form(features, beside=True)
        site.load(task.models["server"][0])
        joint = OverFeatures(closed.map, site.data.num_classes, site.model).to(site.device)
        ours = tensors_of(joint)
        with torch.no_grad():
            ours[SCALE].copy_(stack[WEIGHTS][0])
            ours[HEAD_WEIGHT].copy_(stack[WEIGHTS][1] * weight)
            ours[HEAD_BIAS].copy_(stack[WEIGHTS][1] * bias + stack[BIAS])
        return cls(closed, form, joint)

    def params(self) -> Params:
        """Return all its tensors, on the CPU."""
        return {name: t.detach().cpu().clone() for name, t in tensors_of(self.network).items()}


@torch.inference_mode()
def fit_of(features: str, task: Task, site: SiteContext) -> Params:
    """Return a site's sums at the stack that the task names, as they travel."""
    closed = ClosedSite.of(features, task, site)
    stack, solution = site.contents(task.models[STACK][0]), closed.solution(task)
    weight, bias = solution.head(*closed.known(), solution.own_weight)
    chosen = deciding(site)
    images = site.data.val[chosen.to(site.device)]
    labels, mix = site.data.val_labels.cpu()[chosen], closed.mix_alone()
    other = closed.features(images).cpu() @ weight.T + bias
    site.load(task.models["server"][0])
    fit = Fit.of([_logits(site, images), other], labels, mix, stack[WEIGHTS], stack[BIAS])
    return {NUMBERS: fit.to_numbers()}


def _logits(site: SiteContext, images: Tensor) -> Tensor:
    """Return the context's model's logits, float32 [n, C], on the CPU."""
    model = site.model.eval()
    batches = images.split(SCORING_BATCH) if len(images) else ()
    found = [model.tail(features_of(model, batch, site.normalise)).cpu() for batch in batches]
    return torch.cat([torch.empty(0, site.data.num_classes), *found])
