"""Models for use without a run: networks of arbitrary weights, and mixtures of them."""

from pathlib import Path

import torch

from fedapp.core.disk import write_atomic
from fedapp.core.rng import seeded
from fedapp.data.inputs import normalise
from fedapp.evaluation.model_selection import USED
from fedapp.learn.networks import build_model, network_settings
from fedapp.learn.networks.base import Network
from fedapp.learn.params import digest_of
from fedapp.learn.predictors import Predictor, by_prototypes
from fedapp.learn.prototypes import Prototypes
from fedapp.models.conformal import Calibration
from fedapp.models.description import (
    DESCRIPTION,
    FORMAT_VERSION,
    TENSORS,
    Description,
    MeasuredAccuracy,
    ModelChoice,
    Origin,
    Recipe,
    Results,
)
from fedapp.models.model import SiteModel, pack_networks

CPU = torch.device("cpu")
MIXTURE = {"common": 0.5, "tuned": 0.3, "alone": 0.2}
"""The networks of the recommended method's answer, by name, and weights for them."""
SMALL = {"name": "resnet9", "width": 4}


def pictures(count, inputs=(1, 8, 8), seed=0):
    source = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, *inputs), dtype=torch.uint8, generator=source)


def recipe_of(
    network=SMALL,
    inputs=(1, 8, 8),
    classes=4,
    weights=None,
    images=True,
    dtype="float32",
    window="",
    distance=None,
) -> tuple[Recipe, bytes]:
    """One network, or one for each of `weights`, of which all but the last have a class mix.

    distance: they answer by it to prototypes; of the last class there is none.
    """
    weights = weights or {"own": 1.0}
    channels, names = inputs[0], list(weights)
    mean, std = (0.4,) * channels, (0.3,) * channels
    mix = torch.arange(1.0, classes + 1, dtype=torch.float64)
    mix /= mix.sum()
    predictors = {}
    for number, (name, weight) in enumerate(weights.items()):
        with seeded(CPU, number, "made"):
            one = build_model(network_settings(network["name"], {
                key: of for key, of in network.items() if key != "name"
            }), inputs, classes)  # fmt: skip
            _settle(one, inputs, images, mean, std)
        used = None if len(names) == 1 or name == names[-1] else mix
        tensors = one.state_dict()
        if distance:
            known = torch.arange(classes) < classes - 1
            centres = torch.linspace(0, 1, classes * one.features).view(classes, -1)
            with by_prototypes(one, Prototypes(centres * known[:, None], known), distance):
                tensors = one.state_dict()
        predictors[name] = Predictor(tensors, weight, used, distance)
    blob, parts = pack_networks(predictors)
    recipe = Recipe(
        network=dict(network), classes=tuple(f"class {c}" for c in range(classes)), inputs=inputs,
        images=images, mean=mean, std=std, precision=dtype, parts=parts, sha256=digest_of(blob),
        window=window,
    )  # fmt: skip
    return recipe, blob


def _settle(network: Network, inputs, images, mean, std) -> None:
    """Give batch norms statistics, as after some training: those of a new one are 0 and 1."""
    given = pictures(16, inputs, 9) if images else torch.randn(16, *inputs)
    network.train()
    with torch.no_grad():
        for _ in range(30):
            network(normalise(given, mean, std))


def model_of(**choices) -> SiteModel:
    recipe, blob = recipe_of(**choices)
    return SiteModel(recipe, blob, CPU)


def written(folder: Path, calibration: Calibration | None = None, **choices) -> Path:
    """Write a model's folder."""
    recipe, blob = recipe_of(**choices)
    nothing = MeasuredAccuracy(0, 0, None, (0.0, 1.0), None)
    origin = Origin("made", "made", "made", 3, 0, 0, "north", 9, 0, "", "", {})
    description = Description(
        FORMAT_VERSION,
        recipe,
        origin,
        Results(None, "", nothing, nothing),
        ModelChoice(USED, "made", None, ()),
        calibration or Calibration(),
    )
    write_atomic(folder / TENSORS, blob, durable=False)
    write_atomic(folder / DESCRIPTION, description.to_json().encode(), durable=False)
    return folder
