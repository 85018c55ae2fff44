"""Writes a site's model as a MONAI bundle, without needing MONAI.

Its `inference.json` runs the ONNX file, so that a user of the bundle needs MONAI, onnxruntime and
Pillow, but not this project.
"""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedapp.core.disk import write_atomic
from fedapp.core.names import csv_cell
from fedapp.experiment.code_hash import versions
from fedapp.models.card import model_card
from fedapp.models.description import Description
from fedapp.models.model import Answer, SiteModel
from fedapp.tools.use.onnx_file import INPUT, OUTPUT

SCHEMA = (
    "https://github.com/Project-MONAI/MONAI-extra-test-data/releases/download/0.8.1/"
    "meta_schema_20240725.json"
)
MONAI = "1.5.0"
"""The version of MONAI whose specification the bundle follows."""


def write_bundle(folder: Path, model: SiteModel, description: Description, onnx: bytes) -> None:
    """Write configs/, models/ and docs/. model: takes images, and reads them without a window."""
    state = io.BytesIO()
    torch.save(Answer(model).state_dict(), state)
    for name, data in {
        "models/model.pt": state.getvalue(),
        "models/model.onnx": onnx,
        "configs/metadata.json": _json(metadata(description)),
        "configs/inference.json": _json(inference(description)),
        "configs/classes.json": _json([csv_cell(name) for name in description.model.classes]),
        "docs/README.md": model_card(description).encode(),
    }.items():
        write_atomic(folder / name, data, durable=False)


def metadata(description: Description) -> dict[str, Any]:
    """Return metadata.json: inputs, outputs, and the versions that the bundle was made with."""
    recipe, origin = description.model, description.origin
    channels, *sides = recipe.inputs
    colours = ("grey",) if channels == 1 else ("red", "green", "blue")
    version = versions().get("fedapp", "0.0.0")
    return {
        "schema": SCHEMA,
        "version": version,
        "changelog": {version: f"round {origin.round} of {origin.run}"},
        "monai_version": MONAI,
        "pytorch_version": torch.__version__.partition("+")[0],
        "numpy_version": np.__version__,
        "required_packages_version": {"onnxruntime": "1.23.0", "pillow": "11.0.0"},
        "name": f"fedapp {origin.called}",
        "task": f"Classification of images into {len(recipe.classes)} classes",
        "description": (
            f"A model of site {origin.called}, trained by federated learning ({origin.method}). "
            "models/model.onnx is the site's whole answer; model.pt has the tensors of the same "
            "graph."
        ),
        "authors": "to be filled in by the people who answer for this model",
        "copyright": "to be filled in by the people who answer for this model",
        "intended_use": "to be filled in by the people who answer for this model",
        "network_data_format": {
            "inputs": {
                "image": {
                    "type": "image",
                    "format": "magnitude",
                    "modality": "n/a",
                    "num_channels": channels,
                    "spatial_shape": sides,
                    "dtype": "uint8",
                    "value_range": [0, 255],
                    "is_patch_data": False,
                    "channel_def": {str(c): name for c, name in enumerate(colours)},
                }
            },
            "outputs": {
                "pred": {
                    "type": "probabilities",
                    "format": "classes",
                    "num_channels": len(recipe.classes),
                    "spatial_shape": [],
                    "dtype": "float32",
                    "value_range": [0, 1],
                    "is_patch_data": False,
                    "channel_def": {str(c): name for c, name in enumerate(recipe.classes)},
                }
            },
        },
    }


def inference(description: Description) -> dict[str, Any]:
    """Return inference.json, which turns a folder of images into a CSV of file, class, probability.

    It is for 8-bit images: Pillow's `convert` would clip deeper ones.
    """
    channels, height, width = description.model.inputs
    mode = "L" if channels == 1 else "RGB"
    upright = "ImageOps.exif_transpose(Image.open(f))"  # as `fedapp.data.image_files` reads them
    pixels = f"np.asarray({upright}.convert(@mode).resize(@size, Image.BILINEAR))"
    return {
        "imports": [
            "$import csv",
            "$import glob",
            "$import json",
            "$import pathlib",
            "$import numpy as np",
            "$import onnxruntime",
            "$from PIL import Image, ImageOps",
        ],
        "bundle_root": ".",
        "dataset_dir": "$@bundle_root + '/images'",
        "output_file": "$@bundle_root + '/predictions.csv'",
        # Class names are untrusted. MONAI evaluates the texts in this file, so they are in another.
        "classes": "$json.loads(pathlib.Path(@bundle_root + '/configs/classes.json')"
        ".read_text('utf-8'))",
        "mode": mode,
        "size": [width, height],
        "files": "$sorted(f for f in glob.glob(@dataset_dir + '/**', recursive=True) "
        "if f.lower().endswith(('.png', '.jpg', '.jpeg')))",
        "session": "$onnxruntime.InferenceSession(@bundle_root + '/models/model.onnx', "
        "providers=onnxruntime.get_available_providers())",
        "read": f"$lambda f: {pixels}.reshape(@size[1], @size[0], -1).transpose(2, 0, 1)[None]",
        "ask": f"$lambda f: @session.run(['{OUTPUT}'], {{'{INPUT}': @read(f)}})[0][0]",
        "rows": "$[(f, @classes[int(p.argmax())], float(p.max())) "
        "for f, p in ((f, @ask(f)) for f in @files)]",
        "run": [
            "$csv.writer(open(@output_file, 'w', newline='')).writerows("
            "[('file', 'class', 'probability'), *@rows])"
        ],
    }


def _json(content: object) -> bytes:
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()
