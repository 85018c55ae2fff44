"""Learning beside a mean teacher (Tarvainen, Valpola 2017), as RSCFed's sites do.

The teacher is a moving average of the network in training. It sees one weak view of an unlabelled
image, the network another; the network is to answer as the teacher does, but more surely.
"""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from fedapp.learn.networks.base import Network
from fedapp.learn.objectives import Work, labelled_loss, pairs
from fedapp.learn.prototypes import sharpened
from fedapp.learn.training import Step, View, freeze_batch_norm


def taught_squares(teacher: Tensor, student: Tensor, temperature: float) -> Tensor:
    """Return the mean over images of ||softmax(student) - sharpened softmax(teacher)||^2, >= 0.

    teacher, student: logits [n, C]; 0 without images. No gradient flows into the teacher.
    """
    if not len(student):
        return student.sum()
    target = sharpened(torch.softmax(teacher.detach(), 1), temperature)
    return (torch.softmax(student, 1) - target).square().sum(1).mean()


def mean_teacher(
    work: Work,
    teacher: Network,
    weak: View,
    temperature: float,
    weight: float,
    after: Callable[[], None],
) -> Iterator[Step]:
    """CE(D_s, weak views) + weight * `taught_squares` of two weak views of D_u.

    teacher: another network than `work.model`. after: called once each step is taken; it is to
    bring the teacher along. Steps and epochs are those of `objectives.two_views`.
    """
    data, student = work.data, work.model
    work.begin(len(data.labels) + len(data.unlabelled))
    teacher.train()
    if len(data.unlabelled) == 1:
        freeze_batch_norm(teacher)

    def loss(x: Tensor, y: Tensor, seen: Tensor) -> Tensor:
        logits, count = student(x), len(y)
        total = labelled_loss(logits[:count], y)
        if not len(seen):
            return total
        with torch.no_grad():
            wanted = teacher(seen)
        return total + weight * taught_squares(wanted, logits[count:], temperature)

    def epoch() -> Iterator[Step]:
        for labelled, unlabelled in pairs(work):
            x_u = data.unlabelled[unlabelled]
            x = work.normalise(torch.cat([weak(data.labelled[labelled]), weak(x_u)]))
            yield partial(loss, x, data.labels[labelled], work.normalise(weak(x_u)))

    for step in work.passes(epoch):
        yield step
        after()
