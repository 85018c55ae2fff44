"""Weights from a file of this machine; nothing is ever fetched."""

import hashlib
from collections.abc import Collection
from io import BytesIO
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor, nn

from fedapp.ground.errors import ConfigError
from fedapp.learn.params import Params


def read_file(file: str, sha256: str, key: str = "model.weights_sha256") -> bytes:
    """Return a file's bytes. key: the setting that has its SHA-256.

    Raises ConfigError where it is not here, or is another one.
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
            "right file, or write its SHA-256 there"
        )
    return blob


def read_weights(file: str, sha256: str, names: Collection[str]) -> Params:
    """Return the tensors of a safetensors file or of a .pth file that holds a state dict.

    names: of the network's own tensors; where the file has none of them, what `_WRAPPERS` stand for
    is dropped from the front of all its names.

    Of a .pth file torch reads tensors and plain containers only: no code in it is run. Raises
    ConfigError where the file is not here, is another one, or holds anything else.
    """
    blob = read_file(file, sha256)
    try:
        if file.endswith(".safetensors"):
            tensors = safetensors.torch.load(blob)
        else:
            tensors = torch.load(BytesIO(blob), map_location="cpu", weights_only=True)
    except Exception as error:  # of either library's own; torch's text advises unsafe loading
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


_WRAPPERS = ("module.", "_orig_mod.", "encoder.", "backbone.", "model.")
"""What programs put in front of every name: DataParallel, torch.compile, and networks of parts."""


def _unwrapped(found: Params, names: Collection[str]) -> Params:
    """Return a file's tensors without what stands in front of all of their names, if it must go."""
    body = found
    while body and not any(name in names for name in body):
        front = next((w for w in _WRAPPERS if all(name.startswith(w) for name in body)), "")
        if not front:
            return found
        body = {name.removeprefix(front): tensor for name, tensor in body.items()}
    return body


def load_body(network: nn.Module, body: Params, file: str, own: str = "") -> None:
    """Load a file's tensors into a network, in place.

    own: how the names of its tensors begin that stay as they are. file: names it in errors. A batch
    norm's counter of batches may be absent, as in torchvision's files. Raises ConfigError on other
    names, shapes or numbers that are not finite.
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
