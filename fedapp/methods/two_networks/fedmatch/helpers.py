"""Who helps whom in FedMatch: whose models answer most alike."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedapp.ground.rng import torch_stream

PROBE_MEAN = PROBE_DEVIATION = 125.0
"""Of the normal distribution, cut to [0, 255], that the probe's pixels are drawn from."""


def probe(shape: Sequence[int], seed: int) -> Tensor:
    """Return the one random image by whose answers models are compared, uint8 [1, *shape]."""
    ends = torch.tensor([0.0, 255.0], dtype=torch.float64)
    low, high = torch.special.ndtr((ends - PROBE_MEAN) / PROBE_DEVIATION)
    drawn = torch.rand(
        (1, *shape), generator=torch_stream(seed, "fedmatch-probe"), dtype=torch.float64
    )
    pixels: Tensor = PROBE_MEAN + PROBE_DEVIATION * torch.special.ndtri(low + (high - low) * drawn)
    return pixels.round().clamp(0, 255).to(torch.uint8)


def nearest(site: int, answers: Mapping[int, Tensor], count: int) -> tuple[int, ...]:
    """Return the sites whose answers [C] are nearest to a site's, the nearest first.

    By Euclidean distance, the lower number first where two are equal; the site itself is none of
    them, and one that has given no answer has nobody.
    """
    if site not in answers:
        return ()
    far = {k: float((a - answers[site]).norm()) for k, a in answers.items() if k != site}
    return tuple(sorted(far, key=lambda k: (far[k], k))[:count])
