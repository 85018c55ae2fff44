"""A semi-supervised loss of one's own: two views of an unlabelled image should agree.

CE of the labelled images + lambda mean_x ||softmax(strong(x)) - softmax(weak(x))||^2, without a
gradient through the weak view (as the Pi-model has it: Laine and Aila 2017).
"""

from typing import ClassVar

from pydantic.dataclasses import dataclass

from fedapp.core.settings import CLOSED
from fedapp.learn.objectives import two_views
from fedapp.methods.averaging.base import WithPseudoLabels, work_of


def agreement(inputs, weak, strong):  # logits [n, C], n >= 0
    apart = strong.softmax(1) - weak.detach().softmax(1)
    return apart.square().sum() / max(len(weak), 1)


@dataclass(frozen=True, config=CLOSED)
class Agreement(WithPseudoLabels):
    name: ClassVar[str] = "lab.agreement:Agreement"

    def steps(self, task, site):
        return two_views(
            work_of(task, site), *self.views(task, site), agreement, self.unlabelled_weight
        )
