"""A site's whole answer as one module, from pixels to probabilities: what is exported."""

import torch
from torch import Tensor, nn

from fedapp.models.model import SiteModel


class Answer(nn.Module):
    """`SiteModel.probabilities` in float32: normalisation, networks, class mixes and weights.

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
