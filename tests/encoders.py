"""Files of weights as people have them, of small networks with weights drawn at random."""

import atexit
import hashlib
import json
import shutil
import tempfile
from functools import lru_cache
from pathlib import Path

import torch
from safetensors.torch import save_file
from torchvision.models import get_model

from fedapp.learn.networks.encoder_bank import Bank

BODY = "shufflenet_v2_x0_5"
"""torchvision's smallest with a linear head."""
RECORD = {"mean": [0.2, 0.3, 0.4], "std": [0.1, 0.2, 0.3], "size": 32}


def drawn(body=BODY):
    torch.manual_seed(3)
    return get_model(body, weights=None).state_dict()


def written(path, tensors, record=RECORD):
    """A file with its record, where it has a place for one; return the network's settings."""
    if path.suffix == ".safetensors":
        said = {key: json.dumps(value) for key, value in (record or {}).items()}
        save_file(tensors, path, metadata={"format": "pt", **said})
    else:
        torch.save(tensors, path)
    return {"body": BODY, "weights": str(path), "weights_sha256": sha256(path)}


def sha256(path):
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


@lru_cache
def folder():
    """A folder that is kept for as long as the process lives."""
    made = Path(tempfile.mkdtemp(prefix="encoder"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


@lru_cache
def encoder_fields():
    """Settings of an encoder with a file of weights."""
    return written(folder() / "w.safetensors", drawn())


def bank(body):
    """A bank of three images in a folder of its own."""
    images = torch.randint(256, (3, 1, 8, 8), dtype=torch.uint8)
    return Bank(images, False, body, body.width, Path(tempfile.mkdtemp(dir=folder())))
