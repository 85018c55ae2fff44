"""A site's model: written as one file of tensors, read back, and exported as one torch module.

A model is one network or a weighted mixture of several (`learn.predictors.Predictor`).
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from fedapp.core.errors import ConfigError, ProtocolError, RunError
from fedapp.data.inputs import normalise
from fedapp.learn.networks import Network
from fedapp.learn.params import from_bytes, schema_of, to_bytes
from fedapp.learn.predictors import Predictor, answer_of
from fedapp.models.description import (
    DESCRIPTION,
    TENSORS,
    Description,
    ModelPart,
    Recipe,
    damaged_model,
)
from fedapp.models.folder import read_consistent


class SiteModel:
    """A model that answers: built from its recipe and the bytes of its file of tensors.

    predictors: the networks with their weights loaded, on `device`, each with its predictor.
    weights: as for `Recipe.build`.

    Raises ConfigError where a network cannot be built, and ProtocolError where the tensors do not
    have the names, shapes and dtypes of the networks.
    """

    def __init__(
        self, recipe: Recipe, blob: bytes, device: torch.device, weights: str = ""
    ) -> None:
        self.recipe, self.device = recipe, device
        empty = [_empty(part, recipe.finds) for part in recipe.parts]
        networks = [one.shape(recipe.build(weights)) for one in empty]
        schemas = [schema_of(network.state_dict()) for network in networks]
        both = list(zip(recipe.parts, schemas, strict=True))
        whole = {f"{part.prefix}{name}": of for part, one in both for name, of in one.items()}
        tensors = from_bytes(blob, whole, TENSORS)
        self.predictors: list[tuple[Network, Predictor]] = []
        for (part, one), network, form in zip(both, networks, empty, strict=True):
            params = {name: tensors[f"{part.prefix}{name}"] for name in one}
            network.load_state_dict(params)
            self.predictors.append((network.to(device), replace(form, params=params)))

    def probabilities(self, images: Tensor) -> Tensor:
        """Return the probability of each class, float32 [n, C], on the CPU.

        Rows sum to 1; for findings each probability stands by itself. images: [n, *inputs], n >= 0,
        as for `normalise`. Raises RunError where a probability is NaN or infinite.
        """
        answers = answer_of(self.predictors, images.to(self.device), self.normalise)
        if not bool(answers.isfinite().all()):
            raise RunError("the model answers NaN: use one of another round or site")
        return answers

    def normalise(self, images: Tensor) -> Tensor:
        """Return images [n, *inputs] standardised as in training, float32, on their device."""
        return normalise(images, self.recipe.mean, self.recipe.std)


def _empty(part: ModelPart, finds: bool) -> Predictor:
    """Return the predictor of a part, without its tensors."""
    mix = None
    if part.class_mix is not None:
        mix = torch.tensor(part.class_mix, dtype=torch.float64)
        mix = mix.view(-1, 2) if finds else mix
    return Predictor({}, part.weight, mix, part.distance, part.form)


def build_site_model(folder: Path, recipe: Recipe, blob: bytes, device: torch.device) -> SiteModel:
    """Return the model of a folder from its recipe and tensors, which were read; see `SiteModel`.

    The file that the network cannot be built without lies in the folder too.
    """
    name = Path(str(recipe.network.get("weights", ""))).name
    return SiteModel(recipe, blob, device, str(folder / name) if name else "")


def load_model(folder: Path, device: torch.device) -> tuple[SiteModel, Description]:
    """Return a model and its description. Raises RunError where the folder is none, or damaged."""
    description, blob = read_consistent(folder)
    try:
        return build_site_model(folder, description.model, blob, device), description
    except ConfigError as error:
        raise RunError(f"{folder / DESCRIPTION}: model.network: {error}") from error
    except ProtocolError as error:
        raise damaged_model(folder / TENSORS, str(error)) from error


def pack_networks(predictors: Mapping[str, Predictor]) -> tuple[bytes, tuple[ModelPart, ...]]:
    """Return the bytes of a model's file of tensors, and the part of each network in it.

    Of a single network the tensors keep their names; of several, each name begins with that of the
    network.
    """
    parts = tuple(
        ModelPart(
            name=name,
            prefix=f"{name}." if len(predictors) > 1 else "",
            weight=one.weight,
            class_mix=None if one.class_mix is None else tuple(one.class_mix.flatten().tolist()),
            distance=one.distance,
            form=one.form,
        )
        for name, one in predictors.items()
    )
    tensors = {
        f"{part.prefix}{name}": tensor
        for part in parts
        for name, tensor in predictors[part.name].params.items()
    }
    return to_bytes(tensors), parts


class Answer(nn.Module):
    """A site's whole answer as one module, from pixels to probabilities: what is exported.

    `SiteModel.probabilities` in float32: normalisation, networks, class mixes and weights.

    Pixels uint8 [n, C, H, W] in [0, 255], or numbers float32 [n, *inputs] as they are -> float32
    [n, classes], rows sum to 1 (of findings not). It is in eval mode: no dropout.
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, model: SiteModel) -> None:
        super().__init__()
        recipe = model.recipe
        self.finds = recipe.finds
        self.networks = nn.ModuleList(network for network, _ in model.predictors)
        self.weights = [one.weight for _, one in model.predictors]
        shape = (-1, *[1] * (len(recipe.inputs) - 1))
        mean, std = (torch.tensor(v, dtype=torch.float64) for v in (recipe.mean, recipe.std))
        unit = 255 if recipe.images else 1
        self.register_buffer("scale", (1 / (unit * std)).float().view(shape))
        self.register_buffer("shift", (-mean / std).float().view(shape))
        for place, (_, one) in enumerate(model.predictors):
            mix = None if one.class_mix is None else one.class_mix.float()
            self.register_buffer(f"mix{place}", mix)
        self.eval()

    def forward(self, inputs: Tensor) -> Tensor:
        """Inputs [n, *inputs] -> probabilities [n, classes]."""
        x = inputs.float() * self.scale + self.shift
        answer = torch.zeros(())
        for place, (network, weight) in enumerate(zip(self.networks, self.weights, strict=True)):
            logits = network(x)
            one = torch.sigmoid(logits) if self.finds else torch.softmax(logits, dim=1)
            mix = getattr(self, f"mix{place}")
            if mix is not None and self.finds:
                there = one * mix[:, 1]
                one = there / (there + (1 - one) * mix[:, 0])
            elif mix is not None:
                one = one * mix
                one = one / one.sum(1, keepdim=True)
            answer = answer + weight * one
        return answer
