"""Loaders of published sets, on small files of the real formats that the tests write."""

import errno
import functools
import gzip
import hashlib
import http.server
import io
import os
import pickle
import struct
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import medmnist
import numpy as np
import pytest
import scipy.io
import torch
from torchvision.datasets import CIFAR10, MNIST, STL10, SVHN, FashionMNIST

from fedapp.core.errors import ConfigError, DataError
from fedapp.core.settings import DataSettings
from fedapp.data import published
from fedapp.data.datasets import NAMES, data_root, load_dataset
from fedapp.data.inputs import UNKNOWN, DataSet

Write = Callable[[Path, pytest.MonkeyPatch], None]
DRAW = np.random.default_rng(0)


def noise(*shape: int) -> np.ndarray:
    return DRAW.integers(0, 256, shape, np.uint8)


def md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">I{array.ndim}I", 0x800 + array.ndim, *array.shape) + array.tobytes()


IDX = {
    "train-images-idx3-ubyte": idx(noise(30, 28, 28)),
    "train-labels-idx1-ubyte": idx(np.arange(30, dtype=np.uint8) % 10),
    "t10k-images-idx3-ubyte": idx(noise(10, 28, 28)),
    "t10k-labels-idx1-ubyte": idx(np.arange(10, dtype=np.uint8)),
}


def write_mnist(root: Path, patch: pytest.MonkeyPatch, name: str = "MNIST") -> None:
    (root / name / "raw").mkdir(parents=True)
    for file, data in IDX.items():
        (root / name / "raw" / file).write_bytes(data)


def write_fashion(root: Path, patch: pytest.MonkeyPatch) -> None:
    write_mnist(root, patch, "FashionMNIST")


def write_cifar(root: Path, patch: pytest.MonkeyPatch) -> None:
    folder = root / CIFAR10.base_folder
    folder.mkdir(parents=True)
    for listing in ("train_list", "test_list"):
        entries = []
        for name, _ in getattr(CIFAR10, listing):
            batch = {"data": noise(4, 3072), "labels": [0, 3, 9, 1]}
            (folder / name).write_bytes(pickle.dumps(batch))
            entries.append([name, md5(folder / name)])
        patch.setattr(CIFAR10, listing, entries)
    meta = folder / CIFAR10.meta["filename"]
    meta.write_bytes(pickle.dumps({"label_names": [str(i) for i in range(10)]}))
    patch.setattr(CIFAR10, "meta", {**CIFAR10.meta, "md5": md5(meta)})


def write_svhn(root: Path, patch: pytest.MonkeyPatch) -> None:
    root.mkdir(exist_ok=True)
    entries = {}
    for part, count in (("train", 12), ("test", 6)):
        url, name, _ = SVHN.split_list[part]
        labels = (np.arange(count) % 10 + 1).astype(np.uint8)[:, None]
        scipy.io.savemat(root / name, {"X": noise(32, 32, 3, count), "y": labels})
        entries[part] = [url, name, md5(root / name)]
    patch.setattr(SVHN, "split_list", entries)


def write_stl(root: Path, patch: pytest.MonkeyPatch, whole: bool = False) -> None:
    folder = root / STL10.base_folder
    folder.mkdir(parents=True)
    for part, count in (("train", 5), ("test", 8)):
        noise(count, 3, 96, 96).tofile(folder / f"{part}_X.bin")
        (np.arange(count) % 10 + 1).astype(np.uint8).tofile(folder / f"{part}_y.bin")
        entries = [[f"{part}_{x}.bin", md5(folder / f"{part}_{x}.bin")] for x in "Xy"]
        if part == "train" and whole:
            noise(7, 3, 96, 96).tofile(folder / "unlabeled_X.bin")
            entries.append(["unlabeled_X.bin", md5(folder / "unlabeled_X.bin")])
        patch.setattr(STL10, f"{part}_list", entries)


def write_medmnist(name: str) -> Write:
    def write(root: Path, patch: pytest.MonkeyPatch) -> None:
        info = medmnist.INFO[name]
        shape = (28, 28) if info["n_channels"] == 1 else (28, 28, 3)
        arrays = {}
        for part, count in (("train", 12), ("val", 3), ("test", 5)):
            arrays[f"{part}_images"] = noise(count, *shape)
            arrays[f"{part}_labels"] = (np.arange(count) % len(info["label"]))[:, None]
        root.mkdir(exist_ok=True)
        np.savez_compressed(root / f"{name}.npz", **arrays)

    return write


WRITERS: dict[str, Write] = {
    "mnist": write_mnist,
    "fashion_mnist": write_fashion,
    "cifar10": write_cifar,
    "svhn": write_svhn,
    "stl10": write_stl,
    "stl10_unlabelled": functools.partial(write_stl, whole=True),
    **{name: write_medmnist(name) for name in published.MEDMNIST},
}
FILES = {
    "mnist": "MNIST/raw/t10k-images-idx3-ubyte",
    "fashion_mnist": "FashionMNIST/raw/train-labels-idx1-ubyte",
    "cifar10": "cifar-10-batches-py/data_batch_3",
    "svhn": "test_32x32.mat",
    "stl10": "stl10_binary/train_X.bin",
    "stl10_unlabelled": "stl10_binary/unlabeled_X.bin",
    "pathmnist": "pathmnist.npz",
    "organamnist": "organamnist.npz",
}


def load(name: str, root: Path, **more: object) -> DataSet:
    settings = {"name": name, "root": str(root), "download": False} | more
    return load_dataset(DataSettings(**settings), 0)  # type: ignore[arg-type]


def test_names_are_complete() -> None:
    single = {
        name
        for name, info in medmnist.INFO.items()
        if not name.endswith("3d") and info["task"] != "multi-label, binary-class"
    }
    assert set(published.MEDMNIST) == single
    assert set(NAMES) == {"digits", "folder", "own"} | set(WRITERS)
    assert len(set(NAMES)) == len(NAMES)


def test_digits() -> None:
    images = load("digits", Path("/nowhere"))
    assert images.inputs.shape == (1797, 1, 8, 8)
    assert images.inputs.min() == 0 and images.inputs.max() == 255
    assert images.classes == tuple("0123456789")
    assert images.labels[:10].tolist() == list(range(10))
    assert images.inputs[0, 0, 0].tolist() == [0, 0, 80, 207, 143, 16, 0, 0]  # 0 0 5 13 9 1 0 0
    assert images.mean == pytest.approx((0.30531,), abs=1e-4)
    assert images.std == pytest.approx((0.3760,), abs=1e-3)


SHAPES = {
    "mnist": (40, 1, 28, 28),
    "fashion_mnist": (40, 1, 28, 28),
    "cifar10": (24, 3, 32, 32),
    "svhn": (18, 3, 32, 32),
    "stl10": (13, 3, 96, 96),
    "stl10_unlabelled": (20, 3, 96, 96),
    "pathmnist": (20, 3, 28, 28),
    "organamnist": (20, 1, 28, 28),
}


@pytest.mark.parametrize("name", WRITERS)
def test_every_set_is_pooled(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    WRITERS[name](tmp_path, monkeypatch)
    images = load(name, tmp_path)
    assert images.inputs.is_contiguous()
    if name in SHAPES:
        assert images.inputs.shape == SHAPES[name]
    else:
        assert images.inputs.shape == (20, medmnist.INFO[name]["n_channels"], 28, 28)
    assert len(set(images.classes)) == len(images.classes) >= 2
    small = load(name, tmp_path, subset=9, image_size=16)
    assert small.inputs.shape == (9, images.inputs.shape[1], 16, 16)


def test_pixels_and_labels_of_idx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_mnist(tmp_path, monkeypatch)
    images = load("mnist", tmp_path)
    assert (
        images.inputs[3].numpy().tobytes() == IDX["train-images-idx3-ubyte"][16:][3 * 784 : 4 * 784]
    )
    assert images.inputs[31].numpy().tobytes() == IDX["t10k-images-idx3-ubyte"][16:][784 : 2 * 784]
    assert images.labels.tolist() == [*range(10)] * 4


def test_pixels_and_labels_of_cifar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_cifar(tmp_path, monkeypatch)
    images = load("cifar10", tmp_path)
    second = pickle.loads((tmp_path / "cifar-10-batches-py/data_batch_2").read_bytes())
    assert torch.equal(images.inputs[5].flatten(), torch.from_numpy(second["data"][1]))
    assert images.labels.tolist() == [0, 3, 9, 1] * 6
    assert images.classes[3] == "cat"


def test_pixels_and_labels_of_svhn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_svhn(tmp_path, monkeypatch)
    images = load("svhn", tmp_path)
    stored = scipy.io.loadmat(tmp_path / "train_32x32.mat")["X"]
    assert np.array_equal(images.inputs[7].numpy(), stored[:, :, :, 7].transpose(2, 0, 1))
    assert images.labels[:11].tolist() == [*range(1, 10), 0, 1]  # "10" is the digit 0


def test_pixels_and_labels_of_stl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_stl(tmp_path, monkeypatch)
    images = load("stl10", tmp_path)
    stored = np.fromfile(tmp_path / "stl10_binary/test_X.bin", np.uint8).reshape(8, 3, 96, 96)
    assert np.array_equal(images.inputs[5 + 2].numpy(), stored[2].swapaxes(1, 2))  # by columns
    assert images.labels.tolist() == [*range(5), *range(8)]


def test_stl_with_its_unlabelled_images_says_that_their_classes_are_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_stl(tmp_path, monkeypatch, whole=True)
    images = load("stl10_unlabelled", tmp_path)
    stored = np.fromfile(tmp_path / "stl10_binary/unlabeled_X.bin", np.uint8)
    last = stored.reshape(7, 3, 96, 96)[6]
    assert np.array_equal(images.inputs[19].numpy(), last.swapaxes(1, 2))
    assert images.labels.tolist() == [*range(5), *range(8), *[UNKNOWN] * 7]


def test_pixels_and_labels_of_medmnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_medmnist("pathmnist")(tmp_path, monkeypatch)
    images = load("pathmnist", tmp_path)
    with np.load(tmp_path / "pathmnist.npz") as stored:
        assert np.array_equal(images.inputs[13].numpy(), stored["val_images"][1].transpose(2, 0, 1))
    assert images.labels.tolist() == [*range(9), 0, 1, 2, *range(3), *range(5)]
    assert images.classes[0] == "adipose"


@pytest.mark.parametrize("name", FILES)
def test_absent_files_are_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data\.download is off") as caught:
        load(name, tmp_path)
    message = str(caught.value)
    assert str(tmp_path / FILES[name]) in message and "\n" not in message
    for remedy in ("data.root", "FEDAPP_DATA", "data.download"):
        assert remedy in message
    assert not list(tmp_path.iterdir())


def test_only_the_absent_files_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_mnist(tmp_path, monkeypatch)
    (tmp_path / "MNIST/raw/t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(DataError, match="t10k-labels-idx1-ubyte") as caught:
        load("mnist", tmp_path)
    assert "train-images" not in str(caught.value)


@pytest.mark.parametrize("keep", [0, 3, 0.5, -1])
@pytest.mark.parametrize("name", FILES)
def test_truncated_files_are_named(
    name: str, keep: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    WRITERS[name](tmp_path, monkeypatch)
    path = tmp_path / FILES[name]
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep) if keep == 0.5 else int(keep)])
    with pytest.raises(DataError, match="damaged") as caught:
        load(name, tmp_path, download=True)  # files that are there are never replaced
    message = str(caught.value)
    assert str(path) in message and "\n" not in message and "delete it" in message


@pytest.mark.parametrize("name", ["cifar10", "svhn", "stl10", "pathmnist"])
def test_changed_files_are_named(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    WRITERS[name](tmp_path, monkeypatch)
    path = tmp_path / FILES[name]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(DataError, match="damaged") as caught:
        load(name, tmp_path)
    assert str(path) in str(caught.value)


def test_a_foreign_pickle_is_never_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
            return (pytest.fail, ("a pickle was run",))

    write_cifar(tmp_path, monkeypatch)
    (tmp_path / "cifar-10-batches-py/data_batch_1").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(DataError, match="its MD5"):
        load("cifar10", tmp_path)


def test_an_npz_of_pickled_objects_is_never_loaded(tmp_path: Path) -> None:
    arrays = {
        f"{p}_{k}": np.array([None]) for p in ("train", "val", "test") for k in ("images", "labels")
    }
    np.savez(tmp_path / "pathmnist.npz", **arrays)
    with pytest.raises(DataError, match="allow_pickle"):
        load("pathmnist", tmp_path)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"val_images": np.zeros((3, 28, 28, 3))}, "float64"),
        ({"val_labels": np.full((3, 1), 9)}, r"labels outside \[0, 8\]"),
        ({"val_labels": np.zeros((4, 1), int)}, "do not match"),
        ({"val_images": np.zeros((3, 32, 32, 3), np.uint8)}, r"\(3, 32, 32\)"),
        ({"val_images": None}, "KeyError"),
    ],
)
def test_npz_with_wrong_content(
    tmp_path: Path, changes: dict[str, np.ndarray | None], says: str
) -> None:
    arrays: dict[str, np.ndarray | None] = {}
    for part in ("train", "val", "test"):
        arrays[f"{part}_images"] = noise(3, 28, 28, 3)
        arrays[f"{part}_labels"] = np.zeros((3, 1), int)
    kept = {key: value for key, value in (arrays | changes).items() if value is not None}
    np.savez(tmp_path / "pathmnist.npz", **kept)  # type: ignore[arg-type]
    with pytest.raises(DataError, match=says) as caught:
        load("pathmnist", tmp_path)
    assert str(tmp_path / "pathmnist.npz") in str(caught.value)


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """Serve the folder `server` on this machine; yield its address."""
    handler = functools.partial(Quiet, directory=str(tmp_path / "server"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as serving:
        thread = threading.Thread(target=serving.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{serving.server_port}/"
        serving.shutdown()
        thread.join()


def serve_fashion(folder: Path, address: str, patch: pytest.MonkeyPatch) -> None:
    """Let torchvision find the packed files in the served folder."""
    folder.mkdir()
    resources = []
    for file, data in IDX.items():
        packed = folder / f"{file}.gz"
        packed.write_bytes(gzip.compress(data))
        resources.append((packed.name, md5(packed)))
    patch.setattr(FashionMNIST, "resources", resources)
    patch.setattr(FashionMNIST, "mirrors", [address])


def test_absent_files_are_downloaded(
    tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve_fashion(tmp_path / "server", server, monkeypatch)
    root = tmp_path / "data"
    assert load("fashion_mnist", root, download=True).inputs.shape == (40, 1, 28, 28)
    assert {p.name for p in (root / "FashionMNIST/raw").iterdir()} == set(IDX)
    assert not list(root.glob(".download-*"))  # no packed files, no folder left behind
    assert load("fashion_mnist", root).labels.shape == (40,)


def test_of_several_that_lack_the_files_one_downloads(
    tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve_fashion(tmp_path / "server", server, monkeypatch)
    download, calls = FashionMNIST.download, []

    def slow(self: FashionMNIST) -> None:
        calls.append(self.root)
        time.sleep(0.2)  # long enough for the others to find the files absent
        download(self)

    monkeypatch.setattr(FashionMNIST, "download", slow)
    with ThreadPoolExecutor(3) as pool:
        loads = [pool.submit(load, "fashion_mnist", tmp_path, download=True) for _ in range(3)]
    assert [len(future.result().labels) for future in loads] == [40] * 3
    assert len(calls) == 1


def test_a_download_keeps_files_that_are_there(
    tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve_fashion(tmp_path / "server", server, monkeypatch)
    write_fashion(tmp_path, monkeypatch)
    raw = tmp_path / "FashionMNIST/raw"
    own = idx(np.full(30, 4, np.uint8))
    (raw / "train-labels-idx1-ubyte").write_bytes(own)
    (raw / "t10k-labels-idx1-ubyte").unlink()
    load("fashion_mnist", tmp_path, download=True)
    assert (raw / "train-labels-idx1-ubyte").read_bytes() == own


def test_a_broken_download_leaves_nothing(
    tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve_fashion(tmp_path / "server", server, monkeypatch)
    packed = tmp_path / "server" / "t10k-labels-idx1-ubyte.gz"
    packed.write_bytes(packed.read_bytes()[:-3])
    root = tmp_path / "data"
    with pytest.raises(DataError, match="the download failed") as caught:
        load("fashion_mnist", root, download=True)
    assert "\n" not in str(caught.value)
    assert not (root / "FashionMNIST").exists()


@pytest.mark.parametrize("name", ["mnist", "cifar10", "svhn", "stl10", "pathmnist"])
def test_no_network_is_one_clear_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = "http://127.0.0.1:9/"  # the discard port: refused at once
    monkeypatch.setattr(MNIST, "mirrors", [nowhere])
    monkeypatch.setattr(CIFAR10, "url", nowhere)
    monkeypatch.setattr(STL10, "url", nowhere)
    monkeypatch.setattr(
        SVHN, "split_list", {k: [nowhere, *v[1:]] for k, v in SVHN.split_list.items()}
    )
    monkeypatch.setitem(medmnist.INFO["pathmnist"], "url", nowhere)
    with pytest.raises(DataError, match="the download failed") as caught:
        load(name, tmp_path, download=True)
    message = str(caught.value)
    assert str(tmp_path / FILES[name]) in message and "\n" not in message
    assert "data.root" in message and "FEDAPP_DATA" in message


def test_archives_are_downloaded_and_unpacked(
    tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_cifar(tmp_path / "server", monkeypatch)
    archive = tmp_path / "server" / CIFAR10.filename
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(tmp_path / "server" / CIFAR10.base_folder, CIFAR10.base_folder)
        readme = tarfile.TarInfo(f"{CIFAR10.base_folder}/readme.html")
        tar.addfile(readme, io.BytesIO())
    monkeypatch.setattr(CIFAR10, "url", f"{server}{CIFAR10.filename}")
    monkeypatch.setattr(CIFAR10, "tgz_md5", md5(archive))
    assert len(load("cifar10", tmp_path / "data", download=True).labels) == 24


def test_a_root_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(DataError, match=r"cannot be written to \(Not a directory\)"):
        load("mnist", tmp_path / "file" / "data", download=True)


@pytest.mark.parametrize(
    ("name", "says"),
    [("cifar", "did you mean 'cifar10'"), ("zzz", "choose"), ("chestmnist", "no such")],
)
def test_unknown_names_are_refused(name: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=says):
        load(name, tmp_path)


def test_a_subset_is_drawn_by_seed() -> None:
    def digits(seed: int, subset: int = 100) -> DataSet:
        return load_dataset(DataSettings(subset=subset), seed)

    assert torch.equal(digits(1).inputs, digits(1).inputs)
    assert not torch.equal(digits(1).inputs, digits(2).inputs)
    whole = load_dataset(DataSettings(), 0)
    rows = {
        tuple(
            image.flatten().tolist(),
        )
        for image in whole.inputs
    }
    assert all(tuple(image.flatten().tolist()) in rows for image in digits(3).inputs)
    assert torch.equal(digits(0, 1797).inputs, whole.inputs)
    assert (digits(1).mean, digits(1).std) == (whole.mean, whole.std)
    with pytest.raises(ConfigError, match="digits has 1797 inputs"):
        digits(0, 1798)


def test_the_root_is_the_setting_then_the_variable_then_the_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FEDAPP_DATA", str(tmp_path / "variable"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert data_root(str(tmp_path)) == tmp_path
    assert data_root("") == tmp_path / "variable"
    assert data_root("~/x") == tmp_path / "home" / "x"
    monkeypatch.setenv("FEDAPP_DATA", "")
    assert data_root("") == tmp_path / "home" / ".cache" / "fedapp"
    assert data_root("relative").is_absolute()


def test_a_folder_that_cannot_be_written_to_is_said_and_not_taken_for_the_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(
        DataError, match=r"cannot be written to .*make it a folder that can be"
    ) as e:
        load("fashion_mnist", tmp_path / "file", download=True)
    assert "network" not in str(e.value) and "\n" not in str(e.value)

    def read_only(dir: Path) -> None:
        raise PermissionError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(tempfile, "TemporaryFile", read_only)
    with pytest.raises(DataError, match=r"cannot be written to \(Read-only file system\)"):
        load("fashion_mnist", tmp_path, download=True)
    assert {path.name for path in tmp_path.iterdir()} == {"file"}  # no lock file


def test_nothing_but_the_data_stays_in_the_folder(
    tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve_fashion(tmp_path / "server", server, monkeypatch)
    load("fashion_mnist", tmp_path / "data", download=True)
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["FashionMNIST"]
