"""Writes a site's model as one ONNX graph, and checks that it answers as the model does."""

import json
import warnings
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from fedapp.core.errors import RunError, one_line
from fedapp.core.optional_dependencies import needs
from fedapp.core.rng import torch_stream
from fedapp.experiment.code_hash import versions
from fedapp.models.model import Answer, SiteModel

TOLERANCE: Final = 1e-4
"""Largest difference allowed between a probability under onnxruntime and one under torch."""
INPUT, OUTPUT = "pixels", "probabilities"


def to_onnx(model: SiteModel) -> bytes:
    """Return the model's whole answer (`Answer`) as an ONNX file for batches of any size.

    model: in float32, on the CPU. Raises ConfigError if the extra `onnx` is not installed, RunError
    if the network has a layer that ONNX lacks.
    """
    onnx = needs("onnx", "onnx")
    needs("onnx", "onnxscript")
    example, batch = made_up(model, 2), torch.export.Dim("batch")
    try:
        with warnings.catch_warnings():
            # torch's exporter warns of coming changes in torch itself.
            warnings.simplefilter("ignore")
            graph = torch.export.export(
                Answer(model), (example,), dynamic_shapes={"inputs": {0: batch}}
            ).run_decompositions({torch.ops.aten.adaptive_max_pool2d.default: _global_max})
            program: Any = torch.onnx.export(
                graph, (example,), dynamo=True, verbose=False,
                input_names=[INPUT], output_names=[OUTPUT],
            )  # fmt: skip
    except Exception as error:  # torch has many kinds, and a user's own network may raise anything
        raise RunError(
            f"the network cannot be written as ONNX ({type(error).__name__}: "
            f"{one_line(error, 200)}): use --to safetensors, or layers that ONNX has"
        ) from error
    found = program.model_proto
    recipe = model.recipe
    onnx.helper.set_model_props(found, {
        "classes": json.dumps(recipe.classes, ensure_ascii=False),
        "inputs": f"{'uint8' if recipe.images else 'float32'} [n, {_shape(recipe.inputs)}]",
        "fedapp": versions().get("fedapp", ""),
        "sha256": recipe.sha256,
    })  # fmt: skip
    onnx.checker.check_model(found, full_check=True)
    blob: bytes = found.SerializeToString()
    return blob


def difference(blob: bytes, model: SiteModel, given: Sequence[Tensor]) -> float:
    """Return the largest difference of a probability between an ONNX file and the model.

    given: batches of real inputs, which are checked beside random batches of one, two and seven.
    Raises RunError if it exceeds `TOLERANCE`; a probability that is NaN counts as 1 apart.
    """
    runtime = needs("onnx", "onnxruntime")
    session = runtime.InferenceSession(blob, providers=["CPUExecutionProvider"])
    worst = 0.0
    for batch in (*(made_up(model, count) for count in (1, 2, 7)), *given):
        [found] = session.run([OUTPUT], {INPUT: batch.numpy()})
        apart = np.abs(found - model.probabilities(batch).numpy())
        worst = max(worst, float(np.nan_to_num(apart, nan=1.0).max()))
    if worst > TOLERANCE:
        raise RunError(
            f"the ONNX file answers otherwise than the model: a probability differs by {worst:.1g},"
            f" at most {TOLERANCE:g} is allowed: nothing was written; use --to safetensors"
        )
    return worst


def made_up(model: SiteModel, count: int) -> Tensor:
    """Return random inputs for a model, [count, *inputs]: uint8 pixels, or float32 numbers."""
    stream = torch_stream(0, "made-up inputs", count)
    shape = (count, *model.recipe.inputs)
    if model.recipe.images:
        return torch.randint(0, 256, shape, dtype=torch.uint8, generator=stream)
    return torch.randn(shape, generator=stream)


def _global_max(x: Tensor, size: list[int]) -> tuple[Tensor, Tensor]:
    """Replace adaptive max pooling to size 1 x 1, which ONNX lacks; the indices are not used."""
    if list(size) != [1, 1]:
        raise ValueError(f"adaptive max pooling to {list(size)} places")
    out = x.amax((2, 3), keepdim=True)
    return out, torch.zeros_like(out, dtype=torch.int64)


def _shape(inputs: tuple[int, ...]) -> str:
    return ", ".join(map(str, inputs))
