"""What the measurements at a new site have in common, whichever way its method goes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from fedapp.data.augment import flips
from fedapp.data.sites import SiteData
from fedapp.experiment.experiment import Experiment
from fedapp.ground.devices import pick_device, pick_dtype
from fedapp.learn.metrics import predict
from fedapp.learn.networks import Network, build_model
from fedapp.learn.params import Params, from_bytes, schema_of
from fedapp.learn.scores import ScoreStore
from fedapp.messages.protocol import ModelRef
from fedapp.methods.base import SiteContext
from fedapp.server.peers import Finished
from fedapp.server.pool import ModelPool

MODEL = "model.safetensors"
"""The model that the new site trained."""


class Compared(Protocol):
    """What a new site has gained, beside what it could have had without."""

    def table(self) -> list[tuple[str, float | None]]:
        """Return what a person reads, a line each: accuracies in [0, 1]."""

    def notes(self) -> list[str]:
        """Return what is said below the table."""

    def to_plain(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""


@dataclass(frozen=True)
class Gained:
    """What came of a new site's run. models: those that it is left with, by file name."""

    comparison: Compared
    models: Mapping[str, Params]


@dataclass(frozen=True)
class Ended:
    """A new site's run at its end.

    run: the finished one that it began from. pool: of the new run. row: the site's of per_site.csv.
    """

    experiment: Experiment
    run: Finished
    data: SiteData
    pool: ModelPool
    row: Mapping[str, Any]

    def network(self) -> Network:
        """Return the run's network, its weights arbitrary."""
        return build_model(self.experiment.model, self.data.inputs, self.data.num_classes)

    def params(self, ref: ModelRef) -> Params:
        """Return a content of the pool. Raises StoreError or ProtocolError: it is not whole."""
        blob, owner = self.pool.get(ref.digest), f"{ref.role} of site {ref.site}"
        network, method = self.network(), self.experiment.method
        # A whole model: what a method keeps private is in the peers' models too.
        schema = method.roles(network).get(ref.role) or schema_of(network.state_dict())
        return from_bytes(blob, schema, owner, self.experiment.transport)

    def context(self) -> SiteContext:
        """Return the new site, ready to use any model of the pool."""
        experiment, data = self.experiment, self.data
        device = pick_device(experiment.runtime.device)
        dtype = pick_dtype(experiment.runtime.precision, device)
        inputs, classes = data.inputs, data.num_classes
        return SiteContext(
            data=data.to(device),
            model=build_model(experiment.model, inputs, classes, dtype).to(device),
            contents=self.params,
            kept={},
            scores=ScoreStore(),
            training=experiment.training,
            seed=experiment.seed,
            device=device,
            flip=flips(experiment.data.name),
        )


def answers(site: SiteContext, params: Params) -> Tensor:
    """Return a model's probabilities [n, C] of the site's test images; NaN is possible."""
    site.model.load_state_dict(params)
    return predict(site.model, site.data.test, site.normalise)


def accuracy(probabilities: Tensor, labels: Tensor) -> float | None:
    """Share of right answers: probabilities [n, C], labels int64 [n]; None where n is 0."""
    return (probabilities.argmax(1) == labels).double().mean().item() if len(labels) else None
