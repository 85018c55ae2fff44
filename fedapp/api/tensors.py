"""Checks tensors, arrays and PyTorch data sets of a program, and returns them as tensors."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from fedapp.core.errors import DataError
from fedapp.data.inputs import channel_stats, check_inputs, number_stats
from fedapp.protocol.messages import MAX_FINDINGS

Inputs = Tensor | NDArray[Any]
"""Inputs [n, ...]: uint8 [n, C, H, W] are images; floating point [n, D], [n, C, L] or [n, C, H, W]
are numbers, and become float32."""
Labelled = tuple[Inputs, Inputs | Sequence[int]] | Dataset[Any]
"""Inputs and their labels: an integer from 0 for each, or a row of findings. Or a data set of such
pairs."""
Unlabelled = Inputs | Dataset[Any]
"""Inputs, or a data set of inputs, or of pairs whose labels are ignored."""


def as_inputs(given: object, what: str) -> Tensor:
    """Return inputs as uint8 or float32 [n, ...], on the CPU; `what` names them in errors.

    The result may share its memory with `given`. Raises DataError where `given` is neither a tensor
    nor an array, or is of another type.
    """
    if isinstance(given, np.ndarray) and given.dtype.kind in "uif" and given.itemsize <= 8:
        given = torch.from_numpy(np.ascontiguousarray(given, given.dtype.newbyteorder("=")))
    if isinstance(given, Tensor) and given.dtype == torch.uint8:
        return given.detach().cpu().contiguous()
    if isinstance(given, Tensor) and given.is_floating_point():
        return given.detach().cpu().float().contiguous()
    kind = getattr(given, "dtype", type(given).__name__)
    raise DataError(f"{what}: {kind}, must be a tensor or array of uint8 or floats: convert it")


def labelled(given: object, what: str) -> tuple[Tensor, Tensor]:
    """Return a copy of checked inputs and their labels. Raises DataError.

    Labels are int64 [n] of classes, or [n, F] of findings, as `Site` describes them.
    """
    if isinstance(given, Dataset):
        pairs = [_pair(item, what) for item in _items(given, what)]
        given = (_stacked([one for one, _ in pairs], what), [label for _, label in pairs])
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise DataError(
            f"{what}: must be inputs and labels, or a data set of such pairs: give both"
        )
    inputs = _checked(as_inputs(given[0], f"{what}: inputs"), what)
    try:
        labels = torch.as_tensor(given[1]).cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"{what}: labels must be integers, one per input: convert them") from error
    whole = not (labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool)
    if whole and labels.ndim == 2 and 0 < labels.shape[1] <= MAX_FINDINGS:
        column = labels.shape[1] == 1 and labels.numel() and int(labels.max()) > 1
        if column:
            raise DataError(f"{what}: labels are [n, 1], must be [n]: give labels.ravel()")
        if labels.numel() and not -1 <= int(labels.min()) <= int(labels.max()) <= 1:
            raise DataError(
                f"{what}: findings are {int(labels.min())} to {int(labels.max())}, must be 1 "
                "(there), 0 (not) or -1 (not read): correct them"
            )
        whole = len(labels) == len(inputs)
    else:
        whole = whole and labels.shape == inputs.shape[:1]
    if not whole:
        raise DataError(
            f"{what}: labels are {labels.dtype} {list(labels.shape)}, must be integers "
            f"[{len(inputs)}], one per input, or [{len(inputs)}, F] of F findings, at most "
            f"{MAX_FINDINGS}: correct them"
        )
    return inputs, labels.to(torch.int64, copy=True)


def unlabelled(given: object, what: str) -> Tensor:
    """Return a copy of checked inputs, which have no labels. Raises DataError."""
    if isinstance(given, Dataset):
        items = _items(given, what)
        given = _stacked([i[0] if isinstance(i, tuple | list) else i for i in items], what)
    return _checked(as_inputs(given, what), what)


def stats(inputs: Sequence[Tensor]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation by channel over all inputs, as `normalise` takes them."""
    pool = torch.cat(list(inputs))
    return channel_stats(pool) if pool.dtype == torch.uint8 else number_stats(pool)


def _items(data: Dataset[Any], what: str) -> list[Any]:
    of: Any = data
    # Indexed where it has a length: iterating over such a data set need not come to an end.
    items = [of[k] for k in range(len(of))] if hasattr(of, "__len__") else list(of)
    if not items:
        raise DataError(f"{what}: the data set is empty: leave it out")
    return items


def _pair(item: Any, what: str) -> tuple[object, Any]:
    try:
        one, label = item
        row = getattr(label, "ndim", 0) == 1 or isinstance(label, list | tuple)
        return one, ([int(each) for each in label] if row else int(label))
    except (TypeError, ValueError) as error:
        raise DataError(f"{what}: a data set's items must be (input, label): correct it") from error


def _stacked(items: Iterable[object], what: str) -> Tensor:
    try:
        return torch.stack([_one(item, what) for item in items])
    except RuntimeError as error:
        raise DataError(f"{what}: the inputs differ in shape or type: make them alike") from error


def _one(item: object, what: str) -> Tensor:
    if not isinstance(item, Image.Image):
        return as_inputs(item, f"{what}: an input")
    if item.mode not in ("L", "RGB"):
        raise DataError(f"{what}: an image of mode {item.mode}, must be L or RGB: convert it")
    pixels = torch.from_numpy(np.array(item))
    return pixels[None] if item.mode == "L" else pixels.permute(2, 0, 1)


def _checked(inputs: Tensor, what: str) -> Tensor:
    """Return a checked copy. Data are identified by their content, so nobody may change them."""
    try:
        check_inputs(inputs)
    except DataError as error:
        raise DataError(f"{what}: {error}") from error
    return inputs.clone()
