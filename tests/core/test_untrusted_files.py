"""Files that others wrote: every reader ends in a value or in one line, whatever the file holds."""

import hashlib
import io
import json
import random
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save

from fedapp.core.errors import FedAppError
from fedapp.core.untrusted_files import (
    MAX_DEPTH,
    PickledArrayError,
    UntrustedFileError,
    parse_json,
    parse_yaml,
    read_npz_arrays,
    read_safetensors_metadata,
)
from fedapp.data.own.vectors import read_rows
from fedapp.data.split.manifest import Manifest
from fedapp.experiment.config import load_experiment, parse_overrides
from fedapp.experiment.resume import differences
from fedapp.experiment.run_folder import RunFolder
from fedapp.learn.networks._weights import read_record
from fedapp.models.description import read_description
from fedapp.models.evidence import evidence_path, read_evidence
from fedapp.reports.comparison.record import read_comparison
from fedapp.tools.compare.grid import read_grid
from fedapp.tools.node.status import health

LAUGHS = "a: &a [1,1,1,1,1,1,1,1,1]\n" + "\n".join(
    f"{chr(98 + n)}: &{chr(98 + n)} [{','.join([f'*{chr(97 + n)}'] * 9)}]" for n in range(12)
)
"""Ten lines that mean billions of values."""


def safetensors(header: bytes, rest: bytes = b"") -> bytes:
    return struct.pack("<Q", len(header)) + header + rest


def npy(header: str) -> bytes:
    """An npz file with an array of which only the header is as it is said."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        told = header.encode().ljust(117) + b"\n"
        file.writestr("vectors.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", 118) + told)
        file.writestr("ids.npy", b"junk")
    return packed.getvalue()


JUNK = {
    "empty": b"",
    "zeros": b"\0" * 64,
    "noise": random.Random(0).randbytes(4096),
    "utf-16": '{"a": 1}'.encode("utf-16"),
    "latin-1": "{\"a\": \"caf\xe9\"}".encode("latin-1"),
    "deep JSON": b"[" * 100_000,
    "deep, whole": b"[" * 900 + b"]" * 900,
    "deep YAML": b"a: " + b"[" * 3_000,
    "5,000 digits": b'{"seed": ' + b"9" * 5_000 + b"}",
    "a list": b"[1, 2]",
    "a number": b"3",
    "a text": b'"a"',
    "null": b"null",
    "an empty object": b"{}",
    "values of other types": b'{"format": [], "model": 3, "data": [1], "seeds": {}, "round": "x"}',
    "NaN": b'{"mean": NaN, "round": Infinity}',
    "a date that is none": b"seed: 2020-13-45\n",
    "aliases": LAUGHS.encode(),
    "itself": b"a: &a [*a]\n",
    "a tag": b"a: !!python/object/apply:os.system ['touch RAN']\n",
    "a Python tuple": b"? [1, 2]\n: 3\n",
    "cut": b'{"format": 1, "model": {"cla',
    "a header of 2^60 bytes": b"\xff" * 8 + b"{}",
    "a header that is none": safetensors(b"[" * 5_000),
    "metadata of numbers": safetensors(b'{"__metadata__": {"mean": 3}}'),
    "a shape of 2^62": safetensors(
        b'{"site": {"dtype": "I32", "shape": [4611686018427387904], "data_offsets": [0, 4]}}',
        b"1234",
    ),
    "bfloat16": safetensors(
        json.dumps({
            "__metadata__": {"format": "um-pfssl-manifest-1"},
            **{name: {"dtype": "BF16", "shape": [1], "data_offsets": [2 * i, 2 * i + 2]}
               for i, name in enumerate(("site", "split", "visible", "labels", "learned"))},
        }).encode(), b"\0" * 10
    ),
    "an array of 2^61": npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2**61,)}".replace(
        "2**61", str(2**61))),
    "an array of code": npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}"),
    "no header of an array": npy("(" * 110),
}  # fmt: skip


def changes(file):
    """Read a checkpoint whose file of changes is this one."""
    file.write_bytes(file.read_bytes() + b"\n")
    file.with_name("checkpoint.json").write_bytes(b'{"round": 1}')
    return RunFolder(file.parent).load_checkpoint()


def beside_weights(file):
    known = hashlib.sha256(file.read_bytes()).hexdigest()
    return read_record("resnet18", str(file.with_name("w.pth")), "0" * 64, known)


READERS = {
    "preset": ("mine.yaml", lambda file: load_experiment(str(file))),
    "grid": ("grid.yaml", lambda file: read_grid(str(file))),
    "manifest": ("m.safetensors", Manifest.load),
    "npz": ("vectors.npz", read_rows),
    "parquet": ("vectors.parquet", read_rows),
    "model": ("model.json", lambda file: read_description(file.parent)),
    "evidence": (evidence_path(Path("model")).name, lambda f: read_evidence(f.with_name("model"))),
    "summary": ("s.json", lambda file: RunFolder(file.parent).read_json("s.json")),
    "checkpoint": ("checkpoint.json", lambda file: RunFolder(file.parent).load_checkpoint()),
    "changes": ("changes.jsonl", changes),
    "config of a run": ("config.yaml", lambda file: differences(file.parent, {})),
    "comparison": ("comparison.json", lambda file: read_comparison(file.parent)),
    "a node's state": ("n.json", health),
    "record beside weights": ("w.json", beside_weights),
    "record in weights": (
        "w.safetensors", lambda file: read_record("resnet18", str(file), "0" * 64, "")
    ),
}  # fmt: skip
"""For each kind of file its name and its reader."""


@pytest.mark.parametrize("junk", JUNK)
@pytest.mark.parametrize("reader", READERS)
def test_no_file_ends_in_a_traceback(reader, junk, tmp_path):
    """Of errors only ours, each in one line for each fault, and short."""
    name, read = READERS[reader]
    (tmp_path / name).write_bytes(JUNK[junk])
    try:
        read(tmp_path / name)
    except FedAppError as error:
        lines = str(error).splitlines()
        assert lines and all(len(line) < 1_000 and line.isprintable() for line in lines)
    assert not Path("RAN").exists() and not (tmp_path / "RAN").exists()


def test_metadata_that_are_no_json(tmp_path):
    """As in real files: `mean: '0.485, 0.456, 0.406'`."""
    tensors = {"a": np.zeros(1, np.float32)}
    path = tmp_path / "w.safetensors"
    path.write_bytes(save(tensors, {"mean": "0.485, 0.456, 0.406"}))
    with pytest.raises(
        FedAppError, match=r"w.safetensors': is no record of pixels .*metadata: not"
    ):
        read_record("resnet18", str(path), "0" * 64, "")


def test_what_is_read_and_what_is_bounded():
    assert parse_json('{"a": [1, 2.5, null]}') == {"a": [1, 2.5, None]}
    assert parse_yaml("a: [1, x]\nb: &b {c: 1}\nd: *b\n") == {
        "a": [1, "x"],
        "b": {"c": 1},
        "d": {"c": 1},
    }
    assert parse_json("[" * MAX_DEPTH + "]" * MAX_DEPTH) is not None
    with pytest.raises(UntrustedFileError, match=f"nested deeper than {MAX_DEPTH} levels"):
        parse_json("[" * (MAX_DEPTH + 2) + "]" * (MAX_DEPTH + 2))
    with pytest.raises(UntrustedFileError, match="says more than 1000000 values"):
        parse_yaml(LAUGHS)
    with pytest.raises(UntrustedFileError, match="expected") as error:
        parse_yaml("a: 1\nb: [1,\nc: }")
    assert error.value.line == 3


def test_arrays_are_read_and_objects_are_not(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, a=np.arange(3))
    assert read_npz_arrays(path)["a"].tolist() == [0, 1, 2]
    np.savez(path, a=np.array([{}], dtype=object))
    with pytest.raises(
        PickledArrayError, match="array 'a' holds Python objects, which are not unpick"
    ):
        read_npz_arrays(path)
    torch.save({"a": torch.zeros(2)}, path)  # a zip file of another kind
    with pytest.raises(UntrustedFileError):
        read_npz_arrays(path)
    with pytest.raises(UntrustedFileError):
        read_safetensors_metadata(path)


def test_a_number_of_too_many_digits_is_refused_as_a_setting():
    with pytest.raises(FedAppError, match="seed = '9"):
        load_experiment("digits_demo", parse_overrides(["seed=" + "9" * 5_000]))
