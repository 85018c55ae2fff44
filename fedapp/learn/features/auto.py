"""What fits the inputs: histograms of oriented gradients of images, an input's own numbers else."""

from typing import ClassVar

from fedapp.learn.features.base import FeatureMap
from fedapp.learn.features.hog import Hog
from fedapp.learn.features.plain import Plain
from fedapp.learn.networks.base import Network


class Auto(FeatureMap):
    """Stands for the one or the other; nothing of this class is ever made."""

    name: ClassVar[str] = "auto"

    @classmethod
    def build(cls, inputs: tuple[int, ...], seed: int, network: Network | None) -> FeatureMap:
        """Build the one that fits."""
        kind = Plain if Hog.misfit(inputs) else Hog
        return kind.build(inputs, seed, network)

    @classmethod
    def misfit(cls, inputs: tuple[int, ...]) -> str:
        """Return nothing: one of the two fits."""
        return ""


FEATURES = Auto
