"""A model's answers to images, and how unsure it is of each: MC dropout over all its networks."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedapp.ground.errors import RunError
from fedapp.ground.rng import seeded
from fedapp.learn.predictors import combined
from fedapp.learn.uncertainty import decomposed, dropout_sample, features_of
from fedapp.models.model import SiteModel

PASSES = 20
"""Dropout samples of a network for one image."""


@dataclass(frozen=True, eq=False)
class Study:
    """What a model says of n images.

    probabilities: float32 [n, C], the plain answer, as of `SiteModel.probabilities`. entropy,
    mutual_information: float64 [n], nats (`decomposed`).
    """

    probabilities: Tensor
    entropy: Tensor
    mutual_information: Tensor


@torch.inference_mode()
def study(model: SiteModel, images: Tensor, passes: int, batch: int) -> Study:
    """Ask a model about a batch of images.

    images: as of `SiteModel.probabilities`, n >= 1, at most `at_once`. passes: dropout
    samples of each network, >= 1. batch: the batch's number, by which the draws are keyed: the same
    batch of the same model has the same numbers every time.

    A drawn model is one of the networks, by its weight in the answer, with a dropout sample: where
    networks contradict each other, that is doubt of the model as well. Raises RunError where an
    answer is NaN.
    """
    images = images.to(model.device)
    plain, samples, weights = [], [], []
    with seeded(model.device, 0, "study", model.recipe.sha256, batch):
        for network, one in model.predictors:
            features = features_of(network.eval(), images, model.normalise)
            plain.append(torch.softmax(network.tail(features), dim=1).cpu())
            for _ in range(passes):
                drawn = torch.softmax(network.tail(features, dropout_sample), dim=1)
                samples.append(one.times_mix(drawn.cpu()))
                weights.append(one.weight / passes)
    answer = combined([one for _, one in model.predictors], plain)
    if not bool(answer.isfinite().all()):
        raise RunError("the model answers NaN: use one of another round or site")
    return Study(answer, *decomposed(torch.stack(samples), torch.tensor(weights).double()))
