"""What a file of weights says of the images that its network was trained on."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from fedapp.ground.errors import ConfigError, one_line
from fedapp.ground.extras import needs
from fedapp.ground.foreign import ForeignError, header_of, json_of
from fedapp.ground.settings import CLOSED
from fedapp.learn.networks._body import TIMM
from fedapp.learn.networks._weights import read_file

_FORM = '{"mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5], "size": 224}'
_Mean = Annotated[float, Field(ge=-10, le=10)]
_Std = Annotated[float, Field(gt=0, le=10)]


@dataclass(frozen=True, config=CLOSED)
class Record:
    """mean, std: of red, green and blue, pixels / 255. size: height and width, pixels."""

    mean: tuple[_Mean, _Mean, _Mean]
    std: tuple[_Std, _Std, _Std]
    size: Annotated[int, Field(ge=1, le=1024)]


def read_record(network: str, file: str, sha256: str, record_sha256: str) -> Record:
    """Return the record of a file of weights, whose SHA-256 was checked.

    record_sha256: of FILE.json beside it; empty: the record is in the file's own metadata
    (safetensors), or torchvision's or timm's of this file. Raises ConfigError where there is none.
    """
    if record_sha256:
        beside = str(record_beside(file))
        return _parsed(read_file(beside, record_sha256, "model.record_sha256"), beside)
    said = _metadata(Path(file).expanduser()) or _published(network, sha256)
    if not said:
        name = record_beside(file).name
        raise ConfigError(
            f"model.weights = {file!r}: does not say for which pixels; write {_FORM} into {name} "
            "beside it, and its SHA-256 to model.record_sha256"
        )
    return _parsed(json.dumps(dict(said)), file)


def record_beside(file: str) -> Path:
    """Return where the record of a file of weights lies, if it is no part of it."""
    return Path(file).with_suffix(".json")


def _parsed(text: str | bytes, file: str) -> Record:
    try:
        found = json_of(text)
        found = found.get("pretrained_cfg", found)  # as timm's config.json
        sides = found.get("input_size", [found.get("size")])
        fields = {"mean": found.get("mean"), "std": found.get("std"), "size": sides[-1]}
        return TypeAdapter(Record).validate_json(json.dumps(fields))
    except (ValueError, AttributeError, LookupError, TypeError) as error:
        why = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
        raise ConfigError(
            f"{file!r}: is no record of pixels ({one_line(why, 100)}); write it as {_FORM}"
        ) from error


def _metadata(file: Path) -> Mapping[str, Any]:
    """Return the record in a safetensors file's header; empty: there is none."""
    if file.suffix != ".safetensors":
        return {}
    try:
        said = header_of(file)
        return {key: json_of(said[key]) for key in ("mean", "std", "size") if key in said}
    except ForeignError as error:
        raise ConfigError(
            f"{str(file)!r}: is no record of pixels (its metadata: {error}); write each value as "
            f"JSON, as in {_FORM}"
        ) from error


def _published(network: str, sha256: str) -> Mapping[str, Any]:
    """Return what torchvision says of its file with this SHA-256, or timm of this network."""
    if network.startswith(TIMM):
        pixels = needs("timm", "timm").get_pretrained_cfg(network.removeprefix(TIMM))
        sides = {"mean": pixels.mean, "std": pixels.std, "size": pixels.input_size[-1]}
        return sides if pixels.mean else {}
    from torchvision.models import get_model_weights

    for weights in get_model_weights(network):
        if weights.url.endswith(f"-{sha256[:8]}.pth"):  # so they are named
            pixels = weights.transforms()
            return {"mean": pixels.mean, "std": pixels.std, "size": pixels.crop_size[0]}
    return {}
