"""The value that describes one run completely."""

from dataclasses import field
from typing import Any

from pydantic import InstanceOf
from pydantic.dataclasses import dataclass

from fedapp.core.errors import Incompatibility
from fedapp.core.settings import (
    CLOSED,
    DataSettings,
    NonNegative,
    PrivacySettings,
    RoundSettings,
    RuntimeSettings,
    SplitSettings,
    TrainSettings,
    TransportSettings,
)
from fedapp.learn.networks import NetworkSettings
from fedapp.methods.base import Method
from fedapp.methods.incompatibilities import Conditions
from fedapp.privacy.accountant import Plan, Protection


@dataclass(frozen=True, config=CLOSED)
class Experiment:
    """All settings of a run.

    The types check single values. What contradicts each other is checked in `experiment.config`.
    """

    name: str
    """Name of the preset."""
    method: InstanceOf[Method[Any]]
    """The method with its hyper-parameters (`fedapp.methods.method_class`)."""
    model: InstanceOf[NetworkSettings]
    """The network's settings (`fedapp.learn.networks.network_settings`)."""
    seed: NonNegative = 0
    data: DataSettings = field(default_factory=DataSettings)
    split: SplitSettings = field(default_factory=SplitSettings)
    training: TrainSettings = field(default_factory=TrainSettings)
    rounds: RoundSettings = field(default_factory=RoundSettings)
    transport: TransportSettings = field(default_factory=TransportSettings)
    privacy: PrivacySettings = field(default_factory=PrivacySettings)
    runtime: RuntimeSettings = field(default_factory=RuntimeSettings)

    @property
    def protection(self) -> Protection | None:
        """How single images are protected by differential privacy; None: they are not."""
        if not self.privacy.epsilon:
            return None
        image_level, plan = self.method.image_level, Plan()
        if image_level is not None:
            plan = image_level.plan(self.training, self.rounds, self.privacy)
        return Protection(self.privacy, plan)

    def incompatibilities(self, *settings: str, **known: Any) -> list[Incompatibility]:
        """Return the settings with which the method cannot run.

        settings: which settings to ask about; none: all. known: what is known of the data, by the
        names of fields of `Conditions`.
        """
        groups = (self.data, self.split, self.training, self.rounds, self.privacy, self.model)
        found = self.method.incompatibilities(Conditions(*groups, **known))
        return [one for one in found if not settings or one.setting in settings]

    def misfit(self, inputs: tuple[int, ...]) -> str:
        """Return why the network or the method takes no inputs of this shape; empty: both do."""
        found = self.incompatibilities("data.image_size", "data.vector_size", inputs=inputs)
        return self.model.misfit(inputs) or "".join(one.reason for one in found)
