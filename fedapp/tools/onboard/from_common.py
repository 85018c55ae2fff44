"""A new site with what the server of a finished run made: each of its answers."""

from dataclasses import asdict, dataclass
from typing import Any

from fedapp.ground.devices import torch_threads
from fedapp.learn.metrics import predict
from fedapp.messages.protocol import EVALUATE, Task
from fedapp.tools.onboard.measure import MODEL, Ended, Gained, accuracy

COMMON = "common.safetensors"
"""The common model, as the finished run made it."""


@dataclass(frozen=True)
class FromCommon:
    """Accuracies on the new site's labelled test images, in [0, 1]; None where it has none.

    own: the answer that the site uses, a mixture of those that it has. common: the common model's
    answer times the site's class mix. common_as_is: without. tuned: the model that it trained from
    the common one, times the class mix; None where it learned from nothing. labels_alone: the model
    that it trained alone; None where it has no labels, or the method has none. class_mix: how often
    each class occurs at the site, as it estimates; sums to 1.
    """

    own: float | None
    common: float | None
    common_as_is: float | None
    tuned: float | None
    labels_alone: float | None
    class_mix: tuple[float, ...]

    def table(self) -> list[tuple[str, float | None]]:
        """Return what a person reads, a line each."""
        return [
            ("the site's answer after onboarding", self.own),
            ("common model times the site's class mix, no training", self.common),
            ("common model as it is", self.common_as_is),
            ("common model tuned at the site, times its class mix", self.tuned),
            ("own labelled images alone", self.labels_alone),
        ]

    def notes(self) -> list[str]:
        """Nothing: there are no peers to name."""
        return []

    def to_plain(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        return asdict(self)


def measured(end: Ended) -> Gained:
    """Read off the run what its answers are worth; measure the common one without a class mix."""
    own, method = end.pool.latest(end.data.site), end.experiment.method
    site = end.context()
    task = Task(own.site, 0, EVALUATE, own, models=end.pool.made_here())
    with torch_threads(end.experiment.runtime.threads):
        [common] = method.single("common", task, site).values()
        network = common.load_into(end.network()).to(site.device)
        plain = predict(network, site.data.test, site.normalise)
    assert common.class_mix is not None
    comparison = FromCommon(
        own=end.row["final_accuracy"],
        common=end.row["common_accuracy"],
        common_as_is=accuracy(plain, end.data.test_labels.cpu()),
        tuned=end.row.get("tuned_accuracy"),
        labels_alone=end.row.get("alone_accuracy"),
        class_mix=tuple(common.class_mix.tolist()),
    )
    trained = {MODEL: end.params(own)} if own.version else {}  # else it is w_0: worth nothing
    return Gained(comparison, trained | {COMMON: common.params})
