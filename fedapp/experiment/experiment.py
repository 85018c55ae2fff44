"""One run, wholly described."""

from dataclasses import field
from typing import Any

from pydantic import InstanceOf
from pydantic.dataclasses import dataclass

from fedapp.ground.settings import (
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
from fedapp.privacy.accountant import Protection


@dataclass(frozen=True, config=CLOSED)
class Experiment:
    """Its method and network are built by name; everything else is checked here."""

    name: str
    """Preset's name."""
    method: InstanceOf[Method[Any]]
    """With its hyper-parameters (`fedapp.methods.method_class`)."""
    model: InstanceOf[NetworkSettings]
    """With its settings (`fedapp.learn.networks.network_settings`)."""
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
        """Return how single images are protected; None: they are not."""
        if not self.privacy.epsilon:
            return None
        plan = self.method.plan(self.training, self.rounds, self.privacy)
        return Protection(self.privacy, plan)

    def misfit(self, inputs: tuple[int, ...]) -> str:
        """Return why network or method cannot take inputs of this shape; empty: both can."""
        return self.model.misfit(inputs) or self.method.misfit(inputs)
