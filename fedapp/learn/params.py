"""A model as named tensors: its bytes, its digest, its validation, and means of models."""

import hashlib
import json
import math
import zlib
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from itertools import groupby
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from fedapp.core.errors import ProtocolError
from fedapp.core.settings import TransportSettings

Params = dict[str, Tensor]
"""A state dict on the CPU: parameters and buffers by name."""

Schema = Mapping[str, tuple[tuple[int, ...], torch.dtype]]
"""Shape and dtype of every tensor of a model, by name."""

UNCOMPRESSED = TransportSettings()
"""The default transport: float32, not compressed."""

_HEADER_BYTES_PER_TENSOR = 512
"""An upper bound of what safetensors' JSON header needs for one tensor. It bounds the size of any
honest content.
"""


def schema_of(params: Mapping[str, Tensor]) -> Schema:
    """Return the shape and dtype of every tensor."""
    return {name: (tuple(t.shape), t.dtype) for name, t in params.items()}


def to_bytes(params: Mapping[str, Tensor], transport: TransportSettings = UNCOMPRESSED) -> bytes:
    """Serialise to safetensors. Equal tensors under equal names give equal bytes."""
    tensors = {}
    for name in sorted(params):
        tensor = params[name]
        kind = _stored_dtype(tuple(tensor.shape), tensor.dtype, transport)
        if tensor.requires_grad or tensor.dtype != kind or not tensor.is_contiguous():
            tensor = tensor.detach().to(kind).contiguous()
        tensors[name] = tensor.cpu()
    header, order = _layout(tuple((n, tuple(t.shape), t.dtype) for n, t in tensors.items()))
    blob = b"".join((header, *(tensors[name].numpy().data for name in order)))
    return blob if transport.compression == "none" else _deflate(blob, transport)


@lru_cache(maxsize=16)
def _layout(
    tensors: tuple[tuple[str, tuple[int, ...], torch.dtype], ...],
) -> tuple[bytes, tuple[str, ...]]:
    """Return the header that safetensors writes for these tensors, and the tensors' order.

    It is cached, because models of one network differ in their numbers only, and
    `safetensors.torch.save` takes three times as long.
    """
    blob = save({name: torch.zeros(shape, dtype=dtype) for name, shape, dtype in tensors})
    length = int.from_bytes(blob[:8], "little")
    places = json.loads(blob[8 : 8 + length])
    return blob[: 8 + length], tuple(sorted(places, key=lambda n: places[n]["data_offsets"]))


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Return a network's own tensors, parameters and buffers, under their names in `state_dict`.

    `state_dict` itself takes seven times as long, because it makes a view of each tensor for hooks
    that are not used here.
    """
    found: dict[str, Tensor] = {}

    def add(module: nn.Module, prefix: str) -> None:
        for name, parameter in module._parameters.items():
            if parameter is not None:
                found[prefix + name] = parameter
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                found[prefix + name] = buffer
        for name, child in module._modules.items():
            if child is not None:
                add(child, f"{prefix}{name}.")

    add(model, "")
    return found


@torch.no_grad()
def assign(model: nn.Module, params: Params) -> None:
    """Copy all tensors of a model into a network; `params` is left unchanged.

    This does what `load_state_dict` does in a fraction of its time: a round loads thousands of
    models. Raises ValueError where the names differ.
    """
    own = tensors_of(model)
    if own.keys() != params.keys():
        raise ValueError(f"tensor names differ: {sorted(own.keys() ^ params.keys())}")
    torch._foreach_copy_(list(own.values()), [params[name] for name in own])


def copied_to_cpu(tensors: Mapping[str, Tensor]) -> tuple[Params, bool]:
    """Return contiguous copies on the CPU, and whether a fast check found all floats finite.

    A result of False means that a slower check must decide. Floats are copied as one block of
    memory, so that small networks are copied and checked in a fraction of the time.
    """
    floats = {n: t.detach() for n, t in tensors.items() if t.dtype == torch.float32}
    listed = list(floats.values())
    whole = torch._C._nn.flatten_dense_tensors(listed).cpu() if floats else torch.empty(0)
    rows = zip(floats, torch._C._nn.unflatten_dense_tensors(whole, listed), strict=True)
    # The sum of squares is infinite or NaN if any number is. It also overflows for huge numbers.
    sure = math.isfinite(torch.dot(whole, whole).item())
    known = dict(rows)
    return {
        n: known[n] if n in known else t.detach().cpu().clone() for n, t in tensors.items()
    }, sure


def all_finite(tensor: Tensor) -> bool:
    """Whether a tensor on the CPU holds neither NaN nor infinity.

    By NumPy, which takes at most a quarter of torch's time: every model and every answer is
    checked.
    """
    return bool(np.isfinite(tensor.detach().numpy()).all())


def without(params: Params, names: Collection[str]) -> Params:
    """Return all tensors except those with these names."""
    return {name: tensor for name, tensor in params.items() if name not in names}


def digest_of(blob: bytes) -> str:
    """Return the SHA-256 of the bytes, in hex. It is the name of the content everywhere."""
    return hashlib.sha256(blob).hexdigest()


def from_bytes(
    blob: bytes, schema: Schema, owner: str, transport: TransportSettings = UNCOMPRESSED
) -> Params:
    """Parse and validate bytes from outside: names, shapes, dtypes, size and finiteness.

    Returns the tensors in the schema's dtypes. owner: names the content in errors, such as "site
    3's upload". Raises ProtocolError naming the tensor and the rule.
    """
    if transport.compression == "none" and (params := _parse_canonical(blob, schema, transport)):
        return params
    return _checked(_loaded(blob, schema, owner, transport), schema, owner, transport)


def _parse_canonical(blob: bytes, schema: Schema, transport: TransportSettings) -> Params | None:
    """Return the tensors of a content that is exactly as `to_bytes` writes it; None for any other.

    Its header equals the schema's to the byte, and so names, shapes and dtypes are right; the
    numbers of each dtype are checked together. A content that is refused here may still be valid,
    or may have a fault that must be named: `_checked` decides.
    """
    header, parts, length = _canonical_layout(tuple(schema.items()), transport)
    if len(blob) != length or not blob.startswith(header):
        return None
    data, params = bytearray(memoryview(blob)[len(header) :]), {}
    for dtype, kind, start, count, names in parts:
        numbers = np.frombuffer(data, kind, count, start)
        if dtype.is_floating_point and not np.isfinite(numbers).all():
            return None
        for name, shape, wanted, at in names:
            array = np.ndarray(shape, kind, data, at)  # each tensor has memory of its own
            if name.endswith("running_var") and bool((array < 0).any()):
                return None
            tensor = torch.from_numpy(array)
            params[name] = tensor if wanted == dtype else tensor.to(wanted)
    return params


_Names = list[tuple[str, tuple[int, ...], torch.dtype, int]]


_Schema = tuple[tuple[str, tuple[tuple[int, ...], torch.dtype]], ...]


@lru_cache(maxsize=16)
def _canonical_layout(
    schema: _Schema, transport: TransportSettings
) -> tuple[bytes, list[tuple[torch.dtype, np.dtype[Any], int, int, _Names]], int]:
    """Return how `to_bytes` writes a content: its header, the tensors behind it, its length.

    Tensors are grouped by stored dtype: the byte at which the group begins, how many numbers it
    has, and for each tensor its name, shape, dtype and the byte at which it begins. The length -1,
    which no content has, marks a schema with an empty tensor: `_checked` must validate it.
    """
    of = dict(schema)
    stored = {name: _stored_dtype(*of[name], transport) for name in sorted(of)}
    header, order = _layout(tuple((n, of[n][0], dtype) for n, dtype in stored.items()))
    parts: list[tuple[torch.dtype, np.dtype[Any], int, int, _Names]] = []
    at, empty = 0, False
    for dtype, group in groupby(order, key=stored.__getitem__):
        listed: _Names = []
        start = at
        for name in group:
            listed.append((name, *of[name], at))
            at += math.prod(of[name][0]) * dtype.itemsize
            empty |= not math.prod(of[name][0])
        kind = torch.empty(0, dtype=dtype).numpy().dtype
        parts.append((dtype, kind, start, (at - start) // dtype.itemsize, listed))
    return header, parts, -1 if empty or not parts else len(header) + at


def part_from_bytes(
    blob: bytes, schema: Schema, owner: str, transport: TransportSettings = UNCOMPRESSED
) -> Params:
    """Parse some of a model's tensors, at least one, and validate them as `from_bytes` does."""
    params = _loaded(blob, schema, owner, transport)
    if not params:
        raise ProtocolError(
            f"{owner}: a part without tensors; send what was asked, or leave the part out"
        )
    if extra := sorted(params.keys() - schema):
        raise ProtocolError(
            f"{owner}: unexpected tensors {extra}; "
            "build the same network, and run the same version, on both sides"
        )
    return _checked(params, {name: schema[name] for name in params}, owner, transport)


def _loaded(blob: bytes, schema: Schema, owner: str, transport: TransportSettings) -> Params:
    limit = max_bytes(schema)
    if len(blob) > limit:
        raise ProtocolError(f"{owner}: {len(blob)} bytes, but this model has at most {limit}")
    try:
        data = blob if transport.compression == "none" else _inflate(blob, limit, transport)
        # Check the header before it is parsed: half a million empty tensors would fit into an
        # upload, and would need a GB of memory.
        header, most = int.from_bytes(data[:8], "little"), _most_header(schema)
        if header > most:
            raise ValueError(f"its header has {header} bytes, at most {most} are allowed")
        return load(data)
    except Exception as error:  # shapes such as [0, 2**63] fail in torch, not in safetensors
        raise ProtocolError(
            f"{owner}: not a safetensors model ({error}); upload it again"
        ) from error


def _checked(params: Params, schema: Schema, owner: str, transport: TransportSettings) -> Params:
    if params.keys() != schema.keys():
        missing, extra = sorted(schema.keys() - params), sorted(params.keys() - schema)
        raise ProtocolError(f"{owner}: missing tensors {missing}, unexpected tensors {extra}")
    for name, (shape, dtype) in schema.items():
        tensor, stored = params[name], _stored_dtype(shape, dtype, transport)
        if tuple(tensor.shape) != shape or tensor.dtype != stored:
            raise ProtocolError(
                f"{owner}: tensor {name} is {tensor.dtype} {tuple(tensor.shape)}, "
                f"must be {stored} {shape}"
            )
        if dtype.is_floating_point and not all_finite(tensor):
            raise ProtocolError(f"{owner}: tensor {name} holds NaN or infinity; training diverged")
        if name.endswith("running_var") and bool((tensor.numpy() < 0).any()):
            raise ProtocolError(f"{owner}: tensor {name} is negative; a variance cannot be")
        params[name] = tensor.to(dtype)
    return params


def max_bytes(schema: Schema) -> int:
    """Return an upper bound of the size of any honest serialisation under this schema."""
    data = sum(torch.Size(shape).numel() * dtype.itemsize for shape, dtype in schema.values())
    return data + _most_header(schema)


def _most_header(schema: Schema) -> int:
    return _HEADER_BYTES_PER_TENSOR * (len(schema) + 1)


class WeightedSum:
    """Computes sum_j a_j w_j of models that are added one by one, holding only the sum.

    own: the model whose names, shapes and dtypes all others must have. It is not changed.
    """

    def __init__(self, own: Params) -> None:
        self._own, self._weight = own, 0.0
        self._sum: Params = {
            n: torch.zeros_like(t) for n, t in own.items() if t.is_floating_point()
        }

    def add(self, weight: float, params: Params) -> None:
        """Add a model. weight: finite, >= 0. Raises ProtocolError if names or shapes differ."""
        own = self._own
        if params.keys() != own.keys():
            raise ProtocolError(f"tensor names differ: {sorted(params.keys() ^ own.keys())}")
        self._weight += weight
        for name, tensor in self._sum.items():
            if params[name].shape != tensor.shape:  # never broadcast
                raise ProtocolError(f"tensor {name}: shapes {params[name].shape}, {tensor.shape}")
            tensor.add_(params[name], alpha=weight)

    def mean(self) -> Params:
        """Return sum_j a_j w_j / sum_j a_j.

        It reuses the memory of the sum, so nothing can be added later.

        Floating-point tensors, including the buffers of batch norms, are averaged; integer buffers
        are those of `own`. Where the weights sum to 0 (no other model is related), the result is a
        copy of `own`.
        """
        own = self._own
        if self._weight <= 0:
            return {name: tensor.clone() for name, tensor in own.items()}
        return {
            n: self._sum[n].div_(self._weight) if n in self._sum else t.clone()
            for n, t in own.items()
        }


def weighted_mean(models: Iterable[tuple[float, Params]], own: Params) -> Params:
    """Return sum_j a_j w_j / sum_j a_j by tensor name (Alg. 1, line 18), as `WeightedSum` does.

    The models are streamed: at any time only the running sum and one model are in memory.
    """
    total = WeightedSum(own)
    for weight, params in models:
        total.add(weight, params)
    return total.mean()


def _stored_dtype(
    shape: tuple[int, ...], dtype: torch.dtype, transport: TransportSettings
) -> torch.dtype:
    """Return the dtype in which a tensor is sent. Weights may be sent as float16; vectors are not.

    Vectors (biases, batch norms) are small, and they need the range of float32.
    """
    half = transport.precision == "float16" and dtype == torch.float32 and len(shape) > 1
    return torch.float16 if half else dtype


def _deflate(blob: bytes, transport: TransportSettings) -> bytes:
    """Compress bytes after grouping those of equal rank in each number: signs and exponents first.

    The mantissas of trained weights are noise, so level 1 finds all redundancy
    (docs/PERFORMANCE.md).
    """
    return zlib.compress(_grouped_by_byte_rank(blob, _bytes_per_number(transport)), level=1)


def _inflate(blob: bytes, limit: int, transport: TransportSettings) -> bytes:
    """Undo `_deflate`, producing at most `limit` bytes. Raises ValueError and zlib.error."""
    stream = zlib.decompressobj()
    data = stream.decompress(blob, limit + 1)
    if len(data) > limit or not stream.eof or stream.unused_data:
        raise ValueError(f"must be one zlib stream of at most {limit} bytes")
    word = _bytes_per_number(transport)
    whole = len(data) // word * word
    columns = np.frombuffer(data[:whole], np.uint8).reshape(word, -1)
    return columns.T.tobytes() + data[whole:]


def _grouped_by_byte_rank(data: bytes, word: int) -> bytes:
    whole = len(data) // word * word
    rows = np.frombuffer(data[:whole], np.uint8).reshape(-1, word)
    return rows.T.tobytes() + data[whole:]


def _bytes_per_number(transport: TransportSettings) -> int:
    return 2 if transport.precision == "float16" else 4
