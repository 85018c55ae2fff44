"""What a site with a dozen images does once a round, beside the libraries' own way.

`python -m bench.tiny [--quick]`, on one CPU thread, the network of FedSiam on MNIST. Both ways take
turns; times are processor time of one use; a ratio, ours over theirs, is taken within a turn.
"""

import time
from collections.abc import Callable
from functools import partial

import torch
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from bench.command import Quick, carry_out
from bench.measure import Times, in_turns
from bench.record import Row, save
from fedapp.learn.limits import LONGEST_GRADIENT, shorten
from fedapp.learn.metrics import predict, predict_each
from fedapp.learn.networks import build_model, network_settings
from fedapp.learn.params import all_finite, to_bytes
from fedapp.learn.sgd import Sgd

INPUTS, CLASSES = (1, 28, 28), 10
VAL, TEST = 2, 4
"""Images of a site to measure on."""
RATE, MOMENTUM = 1e-6, 0.9

Ways = tuple[Callable[[], object], Callable[[], object]]


def main(quick: Quick = False) -> None:
    """Measure and save the table."""
    torch.set_num_threads(1)
    turns, uses = (1, 2) if quick else (7, 200)
    rows = [row_of(name, *ways, turns, uses) for name, ways in pieces().items()]
    save("tiny", rows, quick=quick)


def pieces() -> dict[str, Ways]:
    """Return what is compared: theirs, ours."""
    model = build_model(network_settings("fedsiam_mnist", {}), INPUTS, CLASSES)
    params = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    weights = list(model.parameters())
    gradients = [torch.ones_like(weight) / weight.numel() for weight in weights]
    val, test = (torch.randint(256, (n, *INPUTS), dtype=torch.uint8) for n in (VAL, TEST))

    def scaled(images: Tensor) -> Tensor:
        return images / 255

    def given() -> None:
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.grad = gradient.clone()

    def torchs_step() -> None:
        given()
        nn.utils.clip_grad_norm_(weights, LONGEST_GRADIENT)
        torch.optim.SGD(weights, RATE, MOMENTUM).step()

    def own_step() -> None:
        given()
        shorten(weights)
        Sgd(weights, RATE, MOMENTUM).step()

    return {
        "gradient limited, first step of SGD": (torchs_step, own_step),
        "a model as bytes": (lambda: save_tensors(params), lambda: to_bytes(params)),
        "whether it is finite": (
            lambda: all(bool(tensor.isfinite().all()) for tensor in params.values()),
            lambda: all(map(all_finite, params.values())),
        ),
        f"answers to {VAL} and {TEST} images": (
            lambda: [predict(model, images, scaled) for images in (val, test)],
            lambda: predict_each(model, [val, test], scaled),
        ),
    }


def row_of(
    name: str, theirs: Callable[[], object], ours: Callable[[], object], turns: int, uses: int
) -> Row:
    """Let both take turns; return their times in microseconds and the ratio."""

    def timed(way: Callable[[], object]) -> float:
        began = time.process_time()
        for _ in range(uses):
            way()
        return (time.process_time() - began) / uses

    cases = {way: partial(timed, way) for way in (theirs, ours)}
    taken = in_turns(cases, turns, warmups=1)
    before, now = (Times(tuple(taken[way])) for way in (theirs, ours))
    return {
        "what": name,
        "n": turns,
        "theirs_us": round(1e6 * before.median, 1),
        "ours_us": round(1e6 * now.median, 1),
        **now.over(before),
    }


if __name__ == "__main__":
    carry_out(main)
