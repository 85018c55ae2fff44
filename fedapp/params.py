"""A model as named tensors: its bytes, its digest, its checks, its mean."""

import hashlib
from collections.abc import Iterable, Mapping

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fedapp.errors import ProtocolError

Params = dict[str, Tensor]
"""A state dict on the CPU: parameters and buffers by name."""

Schema = Mapping[str, tuple[tuple[int, ...], torch.dtype]]
"""Shape and dtype of every tensor of a model, by name."""

_HEADER_BYTES_PER_TENSOR = 512
"""More than safetensors' JSON header needs for one tensor; bounds the size of honest content."""


def schema_of(params: Mapping[str, Tensor]) -> Schema:
    """Return the shape and dtype of every tensor."""
    return {name: (tuple(t.shape), t.dtype) for name, t in params.items()}


def to_bytes(params: Mapping[str, Tensor]) -> bytes:
    """Serialise to safetensors; equal tensors under equal names give equal bytes."""
    return save({name: params[name].detach().cpu().contiguous() for name in sorted(params)})


def digest_of(blob: bytes) -> str:
    """Return the SHA-256 of the bytes, in hex: the content's name everywhere."""
    return hashlib.sha256(blob).hexdigest()


def from_bytes(blob: bytes, schema: Schema, owner: str) -> Params:
    """Parse and check bytes from outside: names, shapes, dtypes, size and finiteness.

    owner names the content in errors, such as "site 3's upload".
    Raises ProtocolError naming the tensor and the rule.
    """
    limit = max_bytes(schema)
    if len(blob) > limit:
        raise ProtocolError(f"{owner}: {len(blob)} bytes, but this model has at most {limit}")
    try:
        params = load(blob)
    except (SafetensorError, ValueError, KeyError) as error:
        raise ProtocolError(
            f"{owner}: not a safetensors model ({error}); upload it again"
        ) from error
    if params.keys() != schema.keys():
        missing, extra = sorted(schema.keys() - params), sorted(params.keys() - schema)
        raise ProtocolError(f"{owner}: missing tensors {missing}, unexpected tensors {extra}")
    for name, (shape, dtype) in schema.items():
        tensor = params[name]
        if tuple(tensor.shape) != shape or tensor.dtype != dtype:
            raise ProtocolError(
                f"{owner}: tensor {name} is {tensor.dtype} {tuple(tensor.shape)}, "
                f"must be {dtype} {shape}"
            )
        if dtype.is_floating_point and not bool(torch.isfinite(tensor).all()):
            raise ProtocolError(f"{owner}: tensor {name} holds NaN or infinity; training diverged")
        if name.endswith("running_var") and bool((tensor < 0).any()):
            raise ProtocolError(f"{owner}: tensor {name} is negative; a variance cannot be")
    return params


def max_bytes(schema: Schema) -> int:
    """Return an upper bound on the size of any honest serialisation under this schema."""
    data = sum(torch.Size(shape).numel() * dtype.itemsize for shape, dtype in schema.values())
    return data + _HEADER_BYTES_PER_TENSOR * (len(schema) + 1)


def weighted_mean(models: Iterable[tuple[float, Params]], own: Params) -> Params:
    """Return sum_j a_j w_j / sum_j a_j by tensor name (Alg. 1, line 18).

    Floating tensors, batch-norm buffers included, are averaged; integer buffers are `own`'s.
    Weights must be finite and >= 0; where they sum to 0 (nobody is related) the result is `own`.
    The models are streamed: no more than the running sum and one model are held.
    """
    total = 0.0
    mean: Params = {n: torch.zeros_like(t) for n, t in own.items() if t.is_floating_point()}
    for weight, params in models:
        if params.keys() != own.keys():
            raise ProtocolError(f"tensor names differ: {sorted(params.keys() ^ own.keys())}")
        total += weight
        for name, tensor in mean.items():
            if params[name].shape != tensor.shape:  # never broadcast
                raise ProtocolError(f"tensor {name}: shapes {params[name].shape}, {tensor.shape}")
            tensor.add_(params[name], alpha=weight)
    if total <= 0:
        return {name: tensor.clone() for name, tensor in own.items()}
    return {n: mean[n].div_(total) if n in mean else t.clone() for n, t in own.items()}
