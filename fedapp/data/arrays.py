"""A user's own data set: `data.name = package.module:function`, a function that returns arrays."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedapp.core.errors import ConfigError, DataError
from fedapp.core.plugins import load_function
from fedapp.data.inputs import DataSet, channel_stats, check_inputs, number_stats
from fedapp.data.split.groups import patient_numbers
from fedapp.protocol.messages import MAX_CLASSES

_KEYS = {"inputs", "labels", "classes", "patients"}


def read_arrays(name: str) -> DataSet:
    """Call the function and return its result as a data set, with statistics for `normalise`.

    name: `package.module:function`. The function is called without arguments and returns a dict:

    inputs: NumPy array, uint8 [N, C, H, W] (images) or float32 [N, D], [N, C, L] or [N, C, H, W],
        with N >= 1.
    labels: NumPy array of integers [N], in [0, C), or -1 where the class is unknown.
    patients (optional): a name or number of the patient of each input, [N].
    classes (optional): the names of the C classes; by default the numbers from 0 to the highest
        label.

    Raises ConfigError where there is no such function, DataError where it fails or where its result
    breaks a rule. Both name the function.
    """
    try:
        function = load_function(name)
    except ConfigError as error:
        raise ConfigError(f"data.name = {name!r}: {error}") from error
    try:
        given = function()
    except Exception as error:  # a user's function may raise and quote anything
        raise DataError(
            f"{name}: failed with {type(error).__name__}: call it by itself to see where"
        ) from error
    try:
        return _data_set(given)
    except DataError as error:
        raise DataError(f"{name}: {error}") from error


def _data_set(given: object) -> DataSet:
    if not isinstance(given, Mapping) or not {"inputs", "labels"} <= given.keys() <= _KEYS:
        got = sorted(map(str, given)) if isinstance(given, Mapping) else type(given).__name__
        raise DataError(
            f"returned {got}, must be a dict of 'inputs', 'labels' and, if wanted, 'classes', "
            "'patients': return that"
        )
    inputs, labels = _array(given, "inputs"), _array(given, "labels")
    if inputs.dtype not in (np.uint8, np.float32):
        raise DataError(
            f"inputs are {inputs.dtype}, must be uint8 (images) or float32: convert them"
        )
    if not np.issubdtype(labels.dtype, np.integer) or labels.shape != inputs.shape[:1]:
        raise DataError(
            f"labels are {labels.dtype} {list(labels.shape)}, must be integers "
            f"{list(inputs.shape[:1])}, one per input: correct them"
        )
    pool = torch.from_numpy(np.array(inputs, order="C"))
    check_inputs(pool)
    if (highest := int(labels.max())) >= MAX_CLASSES:
        raise DataError(
            f"labels go up to {highest}, must be below {MAX_CLASSES}: number the classes from 0"
        )
    classes = given.get("classes", list(range(highest + 1)))
    if not isinstance(classes, list | tuple):
        raise DataError(
            f"classes are {type(classes).__name__}, must be a list of the classes' names: convert "
            "them"
        )
    names = tuple(map(str, classes))
    if len(set(names)) < len(names):
        raise DataError("classes name one class twice, must all differ: rename it")
    stats = channel_stats if inputs.dtype == np.uint8 else number_stats
    known = torch.from_numpy(labels.astype(np.int64))
    whose = given.get("patients")
    if whose is not None and not isinstance(whose, list | tuple | np.ndarray):
        raise DataError(f"patients are {type(whose).__name__}, must be a list: convert them")
    patients = None if whose is None else torch.from_numpy(patient_numbers(list(whose), len(known)))
    return DataSet(pool, known, names, *stats(pool), patients)


def _array(given: Mapping[str, object], key: str) -> NDArray[Any]:
    found = given[key]
    if not isinstance(found, np.ndarray):
        raise DataError(f"{key} are {type(found).__name__}, must be a NumPy array: convert them")
    return found
