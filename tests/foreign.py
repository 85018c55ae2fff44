"""Some 600 files as other people's programs, faulty disks and attackers make them, seeds fixed.

Of each it is known by construction what must come of it: the right answer, or one line.
"""

import io
import json
import os
import shutil
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as arrow
import pyarrow.parquet as parquet
from numpy.typing import NDArray
from PIL import Image
from pydicom.uid import JPEG2000Lossless, RLELossless

from fedapp.core.errors import ConfigError, DataError, FedAppError
from fedapp.data.folder import read_stored
from fedapp.data.own import list_own
from fedapp.experiment.config import load_experiment
from fedapp.learn.params import digest_of
from fedapp.models.listing import list_images
from fedapp.models.model import load_model
from fedapp.site.terms import read_terms
from tests.imagefiles import dicom, raster, tiff
from tests.models.made import CPU, written

REFUSED = "refused"
"""What must come of a file that nobody can read rightly."""
CLASSES = ("normal", "tumour")
RNG = np.random.default_rng(26)


class Case(NamedTuple):
    """A file, how it is read, and what must come of it.

    wanted: the answer, or REFUSED. either: a damaged file may give it or be refused.
    """

    path: Path
    read: Callable[[Path], Any]
    wanted: Any
    either: bool = False


def outcome(case: Case) -> str:
    """Return "right", "refused", or what went wrong, in words."""
    try:
        found = case.read(case.path)
    except FedAppError as error:
        # A ConfigError has a line for each fault.
        lines = error.problems if isinstance(error, ConfigError) else [error]
        for line in map(str, lines):
            if not line.isprintable() or len(line) > 2000:
                return f"not one short line: {line[:300]!r}"
        refused = case.either or same(case.wanted, REFUSED)
        return "refused" if refused else f"wrong: refused ({error})"
    except BaseException as error:  # a panic of Rust too
        return f"traceback: {type(error).__name__}: {str(error)[:200]}"
    if same(case.wanted, REFUSED) or not same(found, case.wanted):
        return f"wrong: {str(found)[:200]}"
    return "right"


def same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.shape == other.shape and bool((one == other).all())
    return type(one) is type(other) and not isinstance(one, np.ndarray) and bool(one == other)


def every_case(root: Path) -> Iterator[Case]:
    """Write every file and yield it."""
    for kind in (images_of, dicoms, vectors, tables, presets, terms, models):
        yield from kind(root / kind.__name__)


# --- images ---------------------------------------------------------------------------------------

GREY = RNG.integers(0, 256, (40, 36)).astype(np.uint8)
RGB = RNG.integers(0, 256, (40, 36, 3)).astype(np.uint8)
DEEP = RNG.integers(0, 2**16, (40, 36)).astype(np.uint16)


def values(path: Path) -> NDArray[Any]:
    return read_stored(path).values


def saved(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def damaged(whole: Path, wanted: Any, read: Callable[[Path], Any]) -> Iterator[Case]:
    """Yield a file cut off at places, with other bytes in front, behind, and of nothing."""
    content = whole.read_bytes()
    stem, end = whole.stem, whole.suffix
    for share in (0.02, 0.1, 0.3, 0.6, 0.9, 0.99):
        cut = content[: int(len(content) * share)]
        yield Case(saved(whole.with_name(f"{stem}-cut{share}{end}"), cut), read, wanted, True)
    for name, other in (
        ("empty", b""), ("nul", bytes(4096)), ("noise", RNG.bytes(4096)),
        ("magic", b"XXXX" + content[4:]), ("before", b"\n" + content),
    ):  # fmt: skip
        either = name in ("magic", "before")
        refused = wanted if either else REFUSED
        yield Case(saved(whole.with_name(f"{stem}-{name}{end}"), other), read, refused, either)
    behind = whole.with_name(f"{stem}-behind{end}")
    yield Case(saved(behind, content + RNG.bytes(99)), read, wanted, True)


def chunk(kind: bytes, content: bytes) -> bytes:
    whole = kind + content
    return struct.pack(">I", len(content)) + whole + struct.pack(">I", zlib.crc32(whole))


def png(
    path: Path, width: int, height: int, bits: int, colour: int, rows: bytes, *more: bytes
) -> Path:
    """Write a PNG, whatever its parts say."""
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0))
    body = b"".join(more) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return saved(path, b"\x89PNG\r\n\x1a\n" + head + body)


def images_of(root: Path) -> Iterator[Case]:
    """PNG, JPEG and TIFF."""
    flat = np.full((40, 36), 77, np.uint8)
    whole = {
        "grey.png": GREY, "rgb.png": RGB, "deep.png": DEEP, "flat.jpg": flat,
        "grey.tif": GREY, "rgb.tiff": RGB, "deep.tif": DEEP,
    }  # fmt: skip
    for name, pixels in whole.items():
        file = raster(root / name, pixels)
        yield Case(file, values, pixels)
        yield from damaged(file, pixels, values)
    shutil.copy(root / "grey.png", root / "named.jpg")
    shutil.copy(root / "grey.png", root / "named.TIFF")
    yield Case(root / "named.jpg", values, GREY)
    yield Case(root / "named.TIFF", values, GREY)
    for kind in ("gif", "bmp", "webp", "eps", "ico", "ppm"):
        Image.fromarray(GREY).save(root / f"a.{kind}")
        yield Case((root / f"a.{kind}").rename(root / f"{kind}.png"), values, REFUSED)
    row = b"\0" + bytes(range(36))
    for bits, colour in (
        (8, 1),
        (8, 5),
        (8, 9),
        (3, 0),
        (16, 3),
        (0, 0),
        (32, 0),
        (16, 2),
        (16, 6),
    ):
        yield Case(
            png(root / f"{bits}-{colour}.png", 36, 40, bits, colour, row * 40), values, REFUSED
        )
    for width, height in ((0, 40), (36, 0), (10**9, 10**9), (60_000, 60_000), (2**31 - 1, 1)):
        yield Case(png(root / f"{width}x{height}.png", width, height, 8, 0, row), values, REFUSED)
    text = chunk(b"zTXt", b"note\0\0" + zlib.compress(bytes(10**8)))
    yield Case(png(root / "bomb.png", 36, 40, 8, 0, row * 40, text), values,
               np.tile(np.arange(36, dtype=np.uint8), (40, 1)), True)  # fmt: skip
    for broken in (b"", b"Exif\0\0", b"II*\0" + b"\xff" * 20, bytes(30), RNG.bytes(200)):
        more = chunk(b"eXIf", broken)
        yield Case(png(root / f"exif{len(broken)}.png", 36, 40, 8, 0, row * 40, more), values,
                   np.tile(np.arange(36, dtype=np.uint8), (40, 1)), True)  # fmt: skip
    tags: dict[int, list[list[int]]] = {
        256: [[0], [35], [37], [2**31]], 257: [[0], [41], [2**31]], 258: [[0], [1, 2], [7], [99]],
        259: [[0], [7], [50_000]], 262: [[4], [7], [99]], 273: [[2**31]],
        277: [[0], [2], [9]], 278: [[0]], 279: [[0], [1], [2**31]], 284: [[0], [3]],
        339: [[0], [4], [5], [9]], 274: [[0], [9], [99]], 317: [[9]],
    }  # fmt: skip
    harmless = {273, 274, 278, 279, 284, 317, 277}
    for tag, wrong in tags.items():
        for number, said in enumerate(wrong):
            for order in "<>":
                file = root / f"tag{tag}-{number}-{'le' if order == '<' else 'be'}.tif"
                tiff(file, DEEP, order=order, tags={tag: said})
                wanted = DEEP if tag in harmless and tag != 273 else REFUSED
                yield Case(file, values, wanted, wanted is DEEP)
    loop = tiff(root / "loop.tif", GREY).read_bytes()
    places = 8 + 2 + 12 * struct.unpack_from("<H", loop, 8)[0]
    yield Case(saved(root / "loop.tif", loop[:places] + struct.pack("<I",
    8) + loop[places + 4 :]),
               values, GREY, True)  # fmt: skip


# --- DICOM ----------------------------------------------------------------------------------------

CELLS = RNG.integers(0, 4096, (40, 36)).astype(np.uint16)


def dicoms(root: Path) -> Iterator[Case]:
    for number, syntax in enumerate(("", RLELossless, JPEG2000Lossless)):
        for bits, pixels in ((12, CELLS), (8, GREY), (16, CELLS.astype(np.int16) - 2000), (8, RGB)):
            name = f"{number}-{bits}-{pixels.dtype}-{pixels.ndim}"
            file = dicom(root / f"{name}.dcm", pixels, bits, syntax)
            yield Case(file, values, pixels)
            if bits == 12:
                yield from damaged(file, pixels, values)
    wrong: dict[str, list[Any]] = {
        "Rows": [0, 39, 41, 65535, None], "Columns": [0, 35, 37, 65535, None],
        "BitsAllocated": [0, 1, 8, 12, 32, 64, 65535, None], "BitsStored": [0, 17, 65535, None],
        "HighBit": [0, 10, 16, 65535], "PixelRepresentation": [2, 65535, None],
        "SamplesPerPixel": [0, 2, 3, 4, None],
        "PhotometricInterpretation": ["RGB", "PALETTE COLOR", "", "X" * 16, "YBR_FULL", None],
        "NumberOfFrames": [0, 2, 2**31 - 1], "RescaleSlope": [0], "PixelData": [b"", b"xx", None],
    }  # fmt: skip
    for field, values_of in wrong.items():
        for number, value in enumerate(values_of):
            file = dicom(root / f"{field}{number}.dcm", CELLS, 12, **{field: value})
            yield Case(file, values, REFUSED)
    harmless: dict[str, list[Any]] = {
        "HighBit": [None], "WindowWidth": [0, -5], "WindowCenter": [[1, 2, 3]],
        "VOILUTFunction": ["NONSENSE"], "PlanarConfiguration": [7],
        "RescaleSlope": [1], "RescaleIntercept": [0],
    }  # fmt: skip
    for field, values_of in harmless.items():
        for number, value in enumerate(values_of):
            file = dicom(root / f"odd-{field}{number}.dcm", CELLS, 12, **{field: value})
            yield Case(file, values, CELLS, True)
    nested = dicom(root / "deep.dcm", CELLS, 12).read_bytes()
    place = nested.index(b"\x28\0\x02\0")
    item = b"\x08\0\x40\x11SQ\0\0\xff\xff\xff\xff\xfe\xff\0\xe0\xff\xff\xff\xff"
    yield Case(saved(root / "nested.dcm", nested[:place] + item * 5000 + nested[place:]),
               values, REFUSED)  # fmt: skip
    huge = bytearray(nested)
    at = huge.index(b"\xe0\x7f\x10\0OW") + 8
    for length in (2**32 - 2, 2**31, 10, 2**32 - 1):  # all that there is, or too little
        struct.pack_into("<I", huge, at, length)
        yield Case(saved(root / f"length{length}.dcm", bytes(huge)), values, CELLS, True)
    for name in ("IM0001", "1.2.840.1", "a b.DCM"):
        yield Case(dicom(root / name, CELLS, 12), values, CELLS)


# --- vectors --------------------------------------------------------------------------------------

VECTORS = RNG.standard_normal((9, 5)).astype(np.float32)
IDS = [f"v{number}" for number in range(9)]
LABELS = [CLASSES[number % 2] for number in range(9)]


class Faulty(FedAppError):
    """A listing has faults, which a site sees as lines."""


def listed(path: Path) -> Any:
    """Return what a site's data are taken for: names, labels, parts, and numbers of vectors."""
    found = list_own(path, CLASSES)
    if found.faults:
        for fault in found.faults:
            assert str(fault).isprintable(), str(fault)[:200]
        raise Faulty(str(found.faults[0]))
    said = [(one.name, one.label, one.part, one.group) for one in found.entries]
    return said if found.values is None else (said, found.values.tolist())


def npz(path: Path, **arrays: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return path


def vectors(root: Path) -> Iterator[Case]:
    wanted = [(name, label, "", "") for name, label in zip(IDS, LABELS, strict=True)]
    arrays = {"ids": np.array(IDS), "vectors": VECTORS, "labels": np.array(LABELS)}
    file = npz(root / "whole.npz", **arrays)
    yield Case(file, listed, (wanted, VECTORS.tolist()))
    yield from damaged(file, (wanted, VECTORS.tolist()), listed)
    for kind in ("f2", ">f4", "f8", "i4", "u1"):
        numbers = (VECTORS * 10).round().clip(0).astype(kind)
        yield Case(npz(root / f"kind{kind[-2:]}.npz", **{**arrays, "vectors": numbers}), listed,
                   (wanted, numbers.astype(np.float32).tolist()))  # fmt: skip
    nan, endless = VECTORS.copy(), VECTORS.astype(np.float64)
    nan[3, 2], endless[3, 2] = np.nan, 1e300
    odd: dict[str, dict[str, Any]] = {
        "nan": {"vectors": nan}, "endless": {"vectors": endless}, "flat": {"vectors": VECTORS[:,
        0]},
        "none": {"vectors": VECTORS[:0]}, "fewer": {"vectors": VECTORS[:8]},
        "complex": {"vectors": VECTORS.astype(np.complex64)},
        "text": {"vectors": VECTORS.astype(str)},
        "bool": {"vectors": VECTORS > 0}, "dates": {"vectors": VECTORS.astype("M8[s]")},
        "objects": {"vectors": VECTORS.astype(object)}, "cube": {"vectors": VECTORS[None]},
        "no-ids": {"ids": None}, "one-id": {"ids": np.array("v0")},
        "twice": {"ids": np.array(["v0"] * 9)},
        "formula": {"ids": np.array([f"={name}" for name in IDS])},
        "nul": {"ids": np.array([f"v\0{n}x" for n in IDS])}, "float-ids": {"ids": VECTORS[:, 0]},
        "number-labels": {"labels": np.arange(9)}, "strange": {"labels": np.array(["zebra"] * 9)},
        "more": {"weights": VECTORS}, "split": {"split": np.array(["dev"] * 9)},
        "newline": {"ids": np.array([f"v\n{n}" for n in IDS])},
    }  # fmt: skip
    for name, change in odd.items():
        yield Case(npz(root / f"{name}.npz", **{**arrays, **change}), listed, REFUSED)
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        head, {"descr": "<f4", "fortran_order": False, "shape": (10**12, 5)}
    )
    for name, content in (
        ("lies", head.getvalue()),
        ("garbage", b"\x93NUMPY\1\0\xff\xff{"),
        ("nothing", b""),
    ):
        with zipfile.ZipFile(root / f"{name}.npz", "w", zipfile.ZIP_DEFLATED) as packed:
            packed.writestr("vectors.npy", content)
            packed.write(npz(root / "ids.npz", ids=np.array(IDS)), "ids.npy")
        yield Case(root / f"{name}.npz", listed, REFUSED)
    with zipfile.ZipFile(root / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as packed:
        head = io.BytesIO()
        np.lib.format.write_array_header_1_0(
            head, {"descr": "|u1", "fortran_order": False, "shape": (2**20, 300)}
        )
        with packed.open("vectors.npy", "w", force_zip64=True) as inner:
            inner.write(head.getvalue())
            for _ in range(300):
                inner.write(bytes(2**20))
    yield Case(root / "bomb.npz", listed, REFUSED)
    table = arrow.table({"id": IDS, "label": LABELS, "vector": VECTORS.tolist()})
    parquet.write_table(table, file := root / "whole.parquet")
    numbers = VECTORS.astype(np.float64).astype(np.float32).tolist()
    yield Case(file, listed, (wanted, numbers))
    yield from damaged(file, (wanted, numbers), listed)
    columns: dict[str, dict[str, Any]] = {
        "no-id": {"vector": VECTORS.tolist()}, "no-vector": {"id": IDS},
        "uneven": {"id": IDS, "vector": [[1.0] * (1 + n % 2) for n in range(9)]},
        "null": {"id": IDS, "vector": [None, *VECTORS.tolist()[1:]]},
        "gap": {"id": IDS, "f0": VECTORS[:, 0], "f2": VECTORS[:, 1]},
        "texts": {"id": IDS, "f0": LABELS}, "other": {"id": IDS, "f0": VECTORS[:, 0], "age": IDS},
        "both": {"id": IDS, "f0": VECTORS[:, 0], "vector": VECTORS.tolist()},
        "null-id": {"id": [None, *IDS[1:]], "f0": VECTORS[:, 0]},
        "nan": {"id": IDS, "f0": np.full(9, np.nan)}, "empty": {"id": arrow.array([], "string"),
        "f0": []},
        "struct": {"id": IDS, "vector": [{"a": 1}] * 9}, "nested": {"id": IDS,
        "vector": [[[1.0]]] * 9},
        "bool": {"id": IDS, "f0": [True] * 9}, "label-number": {"id": IDS, "f0": VECTORS[:, 0],
        "label": range(9)},
    }  # fmt: skip
    for name, said in columns.items():
        plain = {
            key: arrow.array(list(v) if not isinstance(v, arrow.Array) else v)
            for key, v in said.items()
        }
        parquet.write_table(arrow.table(plain), root / f"{name}.parquet")
        yield Case(root / f"{name}.parquet", listed, REFUSED)
    with parquet.ParquetWriter(
        root / "bomb.parquet", arrow.schema([("id", "string"), ("f0", "float64")])
    ) as writer:
        row = arrow.table({"id": ["a"] * 2**20, "f0": [0.0] * 2**20})
        for _ in range(20):
            writer.write_table(row)
    yield Case(root / "bomb.parquet", listed, REFUSED)


# --- tables of images -----------------------------------------------------------------------------


def of_listing(path: Path) -> Any:
    found = list_images(path)
    if not any(os.path.isfile(one.path) for one in found):  # each is then refused by its name
        raise DataError(f"{path}: none of its images is there")
    return [(one.name, one.label) for one in found]


def tables(root: Path) -> Iterator[Case]:
    """CSV, as `fedapp check` and as `fedapp predict` read it."""
    raster(root / "a.png", GREY)
    raster(root / "b,c.png", GREY)
    raster(root / "=d.png", GREY)
    two = 'path,label\na.png,normal\n"b,c.png",tumour\n'
    right = [("a.png", "normal"), ("b,c.png", "tumour")]
    good = {
        "plain": two.encode(), "bom": b"\xef\xbb\xbf" + two.encode(), "crlf": two.replace("\n",
        "\r\n").encode(),
        "cr": two.replace("\n", "\r").encode(), "blank": two.replace("\n", "\n\n").encode(),
        "spaces": two.replace("\na", "\n  a").encode(), "upper": two.replace("path,label",
        "Path, LABEL").encode(),
        "no-end": two.strip().encode(),
    }  # fmt: skip
    bad = {
        "empty": b"", "nul": b"path,label\na\0.png,normal\n", "utf16": two.encode("utf-16"),
        "latin": "path,label\na.png,drüse\n".encode("latin-1"), "binary": bytes(range(256)) * 8,
        "open": b'path,label\n"a.png,normal\n', "fields": b"path,label\na.png\n",
        "more": b"path,label\na.png,normal,3\n", "strange": b"path,label,age\na.png,normal,3\n",
        "none": b"label\nnormal\n", "gone": b"path,label\nz.png,normal\n",
        "up": b"path,label\n../../etc/passwd.png,normal\n",
        "root": b"path,label\n/etc/passwd.png,normal\n",
        "long": b"path,label\n" + b"a" * 5000 + b".png,normal\n",
        "field": b"path,label\n" + b"a" * 200_000,
        "header": b"path,path\na.png,a.png\n", "data": b"a.png,normal\n",
        "escape": b"path,label\na\x1b[2J.png,normal\n",
        "rtl": "path,label\na\u202egnp.png,normal\n".encode(),
        "folder": b"path,label\n.,normal\n",
    }  # fmt: skip
    for name, content in good.items():
        file = saved(root / f"{name}.csv", content)
        yield Case(file, listed, [(image, label, "", "") for image, label in right])
        yield Case(file, of_listing, right, name in ("spaces", "upper", "cr"))
    for name, content in bad.items():
        file = saved(root / f"{name}.csv", content)
        yield Case(file, listed, REFUSED)
        if name in ("empty", "utf16", "latin", "binary", "none", "gone", "long", "nul", "escape"):
            yield Case(file, of_listing, REFUSED)
    for name, between in (("semicolon", ";"), ("tab", "\t"), ("pipe", "|")):
        file = saved(
            root / f"{name}.csv",
            b"path,label\na.png,normal\n".replace(b",", between.encode()),
        )
        yield Case(file, listed, [("a.png", "normal", "", "")], True)
        yield Case(file, of_listing, [("a.png", "normal")], True)
    for name, words in (("links", "link.png"), ("pipes", "pipe.png")):
        (root / name).mkdir()
        if name == "links":
            (root / name / words).symlink_to("/etc/passwd")
        else:
            os.mkfifo(root / name / words)
        saved(root / name / "labels.csv", f"path,label\n{words},normal\n".encode())
        yield Case(root / name, listed, REFUSED)


# --- settings, terms, models, JSON ----------------------------------------------------------------

ENDLESS = "[" * 100_000
LAUGHS = "a0: &a0 [lol]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)
)
PRESET = "data:\n  name: digits\nsplit:\n  num_clients: 4\nmethod:\n  name: fedavg\nseed: 3\n"
YAMLS = {
    "empty": b"", "list": b"- a\n- b\n", "text": b"hello\n", "number": b"3\n", "nul": b"data: \0\n",
    "utf16": PRESET.encode("utf-16"), "latin": "data: {name: drüse}\n".encode("latin-1"),
    "tab": b"data:\n\tname: digits\n",
    "endless": ENDLESS.encode(), "maps": b"{a: " * 20_000, "laughs": LAUGHS.encode(),
    "loop": b"&a [*a]\n",
    "self": b"data: &a\n  name: *a\n", "python": b"data: !!python/object/apply:os.system [id]\n",
    "tag": b"data: !strange {}\n", "twice": PRESET.encode() + b"seed: 4\n",
    "key": b"? [a, b]\n: 3\n",
    "number-key": b"3: 4\n", "null-key": b"~: 4\n", "unknown": PRESET.encode() + b"sede: 4\n",
    "type": PRESET.replace("seed: 3", "seed: three").encode(), "huge": PRESET.replace("seed: 3",
    f"seed: {10**400}").encode(),
    "digits": PRESET.replace("seed: 3", "seed: " + "9" * 6000).encode(),
    "nan": PRESET.replace("num_clients: 4", "num_clients: .nan").encode(),
    "two": PRESET.encode() + b"---\n" + PRESET.encode(),
    "binary": bytes(range(256)), "anchor": b"data: *nowhere\n", "date": PRESET.replace("seed: 3",
    "seed: 2026-13-45").encode(),
    "merge": b"<<: 3\n", "merged": b"data: {<<: [1, 2]}\n",
    "control": "data: {name: \x85\u2028}\n".encode(),
    "sixty": PRESET.replace("seed: 3", "seed: 1:2:3").encode(),
}  # fmt: skip


def presets(root: Path) -> Iterator[Case]:
    def read(path: Path) -> Any:
        found = load_experiment(str(path))
        return found.seed, found.split.num_clients, found.data.name

    yield Case(saved(root / "good.yaml", PRESET.encode()), read, (3, 4, "digits"))
    crlf = PRESET.replace("\n", "\r\n").encode()
    yield Case(saved(root / "crlf.yaml", crlf), read, (3, 4, "digits"))
    for name, content in YAMLS.items():
        wanted = (10**400, 4, "digits") if name == "huge" else REFUSED  # no seed is too large
        yield Case(saved(root / f"{name}.yaml", content), read, wanted)


def terms(root: Path) -> Iterator[Case]:
    def read(path: Path) -> Any:
        return read_terms(path).rounds_at_most

    good = saved(root / "good" / "site.yaml", b"rounds_at_most: 7\n")
    yield Case(good, read, 7)
    for name, content in YAMLS.items():
        yield Case(saved(root / name / "site.yaml", content), read, REFUSED)


JSONS = {
    "empty": b"", "list": b"[]", "text": b'"hello"', "number": b"3", "null": b"null", "nan": b"NaN",
    "endless": ENDLESS.encode(), "maps": b'{"a":' * 50_000,
    "utf16": '{"format": 1}'.encode("utf-16"),
    "binary": bytes(range(256)), "digits": b'{"format": ' + b"9" * 6000 + b"}",
    "format": b'{"format": 2}',
    "alone": b'{"format": 1}', "surrogate": b'{"format": "\\ud800"}', "cut": b'{"format": 1, "mod',
    "twice": b'{"format": 1, "format": 1}', "behind": b'{"format": 1} x', "lists": b"[[[]]]",
    "nested": b'[{"data": 3}]',
}  # fmt: skip


def models(root: Path) -> Iterator[Case]:
    """A model's folder: its description, JSON, and its tensors."""

    def read(path: Path) -> Any:
        return load_model(path, CPU)[0].recipe.classes

    whole = written(root / "whole")
    classes = tuple(f"class {number}" for number in range(4))
    yield Case(whole, read, classes)
    files = {file.name: file.read_bytes() for file in whole.iterdir()}
    for name, content in JSONS.items():
        folder = root / name
        for file, bytes_of in files.items():
            saved(folder / file, content if file.endswith(".json") else bytes_of)
        yield Case(folder, read, REFUSED)
    described = next(name for name in files if name.endswith(".json"))
    tensors = next(name for name in files if not name.endswith(".json"))
    plain = json.loads(files[described])
    for place in (
        "network",
        "classes",
        "inputs",
        "mean",
        "std",
        "precision",
        "parts",
        "sha256",
        "window",
    ):
        for number, value in enumerate((None, 3, "x", [], [[]], {}, -1, 1e400)):
            changed = json.loads(files[described])
            changed["model"][place] = value
            folder = root / f"{place}{number}"
            saved(folder / described, json.dumps(changed).encode())
            saved(folder / tensors, files[tensors])
            free = value == plain["model"][place]
            yield Case(folder, read, classes if free else REFUSED)
    for name, blob in (
        ("no-bytes", b""), ("length", b"\xff" * 8 + files[tensors][8:]), ("half",
        files[tensors][:500]),
        ("behind", files[tensors] + b"x"), ("noise", RNG.bytes(5000)), ("header",
        b"\2\0\0\0\0\0\0\0{}"),
        ("json", struct.pack("<Q", 100_000) + ENDLESS.encode()),
    ):  # fmt: skip
        for honest in (False, True):  # a SHA-256 that is the other's, and one that fits
            changed = json.loads(files[described])
            changed["model"]["sha256"] = digest_of(blob) if honest else changed["model"]["sha256"]
            folder = root / f"tensors-{name}-{honest}"
            saved(folder / described, json.dumps(changed).encode())
            saved(folder / tensors, blob)
            yield Case(folder, read, REFUSED)
