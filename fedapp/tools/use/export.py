"""`fedapp export`: writes a site's model for other programs."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from fedapp.core.disk import write_atomic
from fedapp.core.errors import ConfigError
from fedapp.core.progress import slow_work_notice
from fedapp.models.card import CARD, model_card
from fedapp.models.description import ENCODER_STEM, TENSORS, Description
from fedapp.models.folder import add_network_files, read_consistent
from fedapp.models.listing import list_images
from fedapp.models.model import SiteModel, build_site_model, load_model
from fedapp.models.predict import batches
from fedapp.tools.use.monai_bundle import write_bundle
from fedapp.tools.use.onnx_file import TOLERANCE, difference, to_onnx

Form = Literal["onnx", "monai", "safetensors"]
CONFIG = "config.json"
CHECKED = 64
"""How many real images the ONNX file is checked with at most."""


def export(folder: Path, form: Form, out: Path, images: Path | None) -> list[str]:
    """Write a model as ONNX, a MONAI bundle or safetensors; return the lines to print.

    images: a folder or CSV file; the ONNX file is checked with its first images as well as with
    random ones.

    Raises ConfigError if the extra `onnx` is not installed, or if a bundle cannot express the
    model: one of vectors or findings, or one that reads images by a window. Raises RunError if the
    ONNX file answers otherwise than the model, and what `load_model` raises.
    """
    load_model(folder, torch.device("cpu"))  # a model that cannot be used here is not exported
    description, blob = read_consistent(folder)
    claim = [description.claim] if description.claim else []
    if form == "safetensors":
        add_network_files(out, [str(path) for path in sorted(folder.glob(f"{ENCODER_STEM}.*"))])
        write_atomic(out / TENSORS, blob, durable=False)
        text = json.dumps(config(description), indent=2, ensure_ascii=False) + "\n"
        write_atomic(out / CONFIG, text.encode(), durable=False)
        write_atomic(out / CARD, model_card(description).encode(), durable=False)
        return [f"{out}: {TENSORS}, {CONFIG}, {CARD}", *claim]
    # A graph has one number format. bfloat16 would be for speed on a GPU.
    recipe = replace(description.model, precision="float32")
    model = build_site_model(folder, recipe, blob, torch.device("cpu"))
    if form == "monai" and not recipe.images:
        raise ConfigError("--to monai: the model takes numbers, no images: use --to onnx")
    if form == "monai" and recipe.finds:
        raise ConfigError("--to monai: a bundle names one class, the model findings: use --to onnx")
    if form == "monai" and recipe.window:
        raise ConfigError(
            f"--to monai: the model reads images by a window ({recipe.window}), a bundle PNG and "
            "JPEG of 8 bits only: use --to onnx, and bring images to 256 levels by that window"
        )
    given = _some(model, images)
    with slow_work_notice("writing the network as ONNX, and comparing its answers"):
        onnx = to_onnx(model)
        worst = difference(onnx, model, given)
    if form == "onnx":
        write_atomic(out / "model.onnx", onnx, durable=False)
        write_atomic(out / CARD, model_card(description).encode(), durable=False)
    else:
        write_bundle(out, model, description, onnx)
    real = f" and {sum(map(len, given))} real" if given else ""
    return [
        f"{out}: {'model.onnx' if form == 'onnx' else 'configs/, models/, docs/'}",
        f"checked under onnxruntime with 10 made-up{real} inputs: largest difference of a "
        f"probability {worst:.1g} (allowed {TOLERANCE:g})",
        *claim,
    ]


def config(description: Description) -> dict[str, Any]:
    """Return config.json, with names as timm and transformers use them, and how the parts mix."""
    recipe = description.model
    return {
        "model_type": "fedapp",
        "network": recipe.network,
        "num_classes": len(recipe.classes),
        **({"problem_type": "multi_label_classification"} if recipe.finds else {}),
        "id2label": {str(number): name for number, name in enumerate(recipe.classes)},
        "label2id": {name: number for number, name in enumerate(recipe.classes)},
        "input_size": list(recipe.inputs),
        "rescale_factor": 1 / 255 if recipe.images else 1.0,
        "image_mean": list(recipe.mean),
        "image_std": list(recipe.std),
        "parts": [
            {
                "prefix": one.prefix,
                "weight": one.weight,
                "class_mix": one.class_mix,
                "distance": one.distance,
            }
            for one in recipe.parts
        ],
    }


def _some(model: SiteModel, images: Path | None) -> Sequence[Tensor]:
    """Return batches of real images to check with, at most `CHECKED` images."""
    if images is None:
        return ()
    chosen = list_images(images)[:CHECKED]
    return [batch.pixels for batch in batches(chosen, model.recipe) if len(batch.read)]
