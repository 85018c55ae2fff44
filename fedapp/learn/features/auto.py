"""The feature map that suits the inputs.

Grey images get histograms of gradients; images in colour get these and learned filters; other
inputs get their own numbers. docs/research/features.md says what each is worth. Where the network
has pretrained weights, its own features take this place when a preset is read (`suited_to`).
"""

from typing import ClassVar

from fedapp.learn.features.base import FeatureMap
from fedapp.learn.features.both import Both
from fedapp.learn.features.hog import Hog
from fedapp.learn.features.plain import Plain
from fedapp.learn.networks.base import Network


class Auto(FeatureMap):
    """Stands for one of the other maps. No instance of this class is ever created."""

    name: ClassVar[str] = "auto"

    @classmethod
    def build(cls, inputs: tuple[int, ...], seed: int, network: Network | None) -> FeatureMap:
        """Build the map that suits the inputs."""
        if Hog.misfit(inputs):
            return Plain.build(inputs, seed, network)
        return (Hog if inputs[0] == 1 else Both).build(inputs, seed, network)


FEATURES = Auto
