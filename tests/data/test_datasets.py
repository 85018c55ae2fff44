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
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import medmnist
import numpy as np
import pytest
import scipy.io
import torch
from torchvision.datasets import CIFAR10, MNIST, STL10, SVHN, FashionMNIST

from fedapp.core.errors import ConfigError, DataError
from fedapp.core.settings import NATURAL, DataSettings
from fedapp.data import published
from fedapp.data.datasets import NAMES, data_root, load_dataset
from fedapp.data.inputs import UNKNOWN

Write = Callable[[Path, pytest.MonkeyPatch], None]
DRAW = np.random.default_rng(0)


def noise(*shape):
    return DRAW.integers(0, 256, shape, np.uint8)


def md5(path):
    return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()


def idx(array):
    return struct.pack(f">I{array.ndim}I", 0x800 + array.ndim, *array.shape) + array.tobytes()


IDX = {
    "train-images-idx3-ubyte": idx(noise(30, 28, 28)),
    "train-labels-idx1-ubyte": idx(np.arange(30, dtype=np.uint8) % 10),
    "t10k-images-idx3-ubyte": idx(noise(10, 28, 28)),
    "t10k-labels-idx1-ubyte": idx(np.arange(10, dtype=np.uint8)),
}


def write_mnist(root, patch, name="MNIST"):
    (root / name / "raw").mkdir(parents=True)
    for file, data in IDX.items():
        (root / name / "raw" / file).write_bytes(data)


def write_fashion(root, patch):
    write_mnist(root, patch, "FashionMNIST")


def write_cifar(root, patch):
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


def write_svhn(root, patch):
    root.mkdir(exist_ok=True)
    entries = {}
    for part, count in (("train", 12), ("test", 6)):
        url, name, _ = SVHN.split_list[part]
        labels = (np.arange(count) % 10 + 1).astype(np.uint8)[:, None]
        scipy.io.savemat(root / name, {"X": noise(32, 32, 3, count), "y": labels})
        entries[part] = [url, name, md5(root / name)]
    patch.setattr(SVHN, "split_list", entries)


def write_stl(root, patch, whole=False):
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


def write_medmnist(name):
    def write(root, patch):
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


def load(name, root, **more):
    settings = {"name": name, "root": str(root), "download": False} | more
    return load_dataset(DataSettings(**settings), 0)


def test_names_are_complete():
    single = {
        name
        for name, info in medmnist.INFO.items()
        if not name.endswith("3d") and info["task"] != "multi-label, binary-class"
    }
    assert set(published.MEDMNIST) == single
    assert set(NAMES) == {"digits", "folder", "own", *NATURAL} | set(WRITERS)
    assert len(set(NAMES)) == len(NAMES)


def test_digits():
    images = load("digits", Path("/nowhere"))
    assert images.inputs.shape == (1797, 1, 8, 8)
    assert images.inputs.min() == 0 and images.inputs.max() == 255
    assert images.classes == tuple("0123456789")
    assert images.labels[:10].tolist() == list(range(10))
    assert images.inputs[0, 0, 0].tolist() == [0, 0, 80, 207, 143, 16, 0, 0]  # 0 0 5 13 9 1 0 0
    assert images.mean == pytest.approx((0.30531,), abs=1e-4)
    assert images.std == pytest.approx((0.3760,), abs=1e-3)


@pytest.mark.parametrize("name", published.MEDMNIST)
def test_every_medmnist_set_is_pooled(name, tmp_path, monkeypatch):
    WRITERS[name](tmp_path, monkeypatch)
    images = load(name, tmp_path)
    assert images.inputs.is_contiguous()
    assert images.inputs.shape == (20, medmnist.INFO[name]["n_channels"], 28, 28)
    assert len(set(images.classes)) == len(images.classes) >= 2
    small = load(name, tmp_path, subset=9, image_size=16)
    assert small.inputs.shape == (9, images.inputs.shape[1], 16, 16)


def of_idx(root):
    return np.frombuffer(IDX["t10k-images-idx3-ubyte"], np.uint8, 784, 16 + 784).reshape(1, 28, 28)


def of_cifar(root):
    second = pickle.loads((root / "cifar-10-batches-py/data_batch_2").read_bytes())
    return second["data"][1].reshape(3, 32, 32)


def of_svhn(root):
    return scipy.io.loadmat(root / "train_32x32.mat")["X"][:, :, :, 7].transpose(2, 0, 1)


def of_stl(root, part="test", row=2):
    stored = np.fromfile(root / f"stl10_binary/{part}_X.bin", np.uint8)
    return stored.reshape(-1, 3, 96, 96)[row].swapaxes(1, 2)  # stored by columns


def of_medmnist(root):
    with np.load(root / "pathmnist.npz") as stored:
        return stored["val_images"][1].transpose(2, 0, 1)


@pytest.mark.parametrize(("name", "place", "pixels", "labels"), [
    ("mnist", 31, of_idx, [*range(10)] * 4),
    ("cifar10", 5, of_cifar, [0, 3, 9, 1] * 6),
    ("svhn", 7, of_svhn, [*range(1, 10), 0, 1, 2, *range(1, 7)]),  # "10" is the digit 0
    ("stl10", 5 + 2, of_stl, [*range(5), *range(8)]),
    ("stl10_unlabelled", 19, functools.partial(of_stl, part="unlabeled", row=6),
     [*range(5), *range(8), *[UNKNOWN] * 7]),
    ("pathmnist", 13, of_medmnist, [*range(9), 0, 1, 2, *range(3), *range(5)]),
])  # fmt: skip
def test_an_image_is_as_its_file_has_it(tmp_path, monkeypatch, name, place, pixels, labels):
    WRITERS[name](tmp_path, monkeypatch)
    images = load(name, tmp_path)
    assert np.array_equal(images.inputs[place].numpy(), pixels(tmp_path))
    assert images.labels.tolist() == labels


@pytest.mark.parametrize("name", FILES)
def test_only_the_absent_files_are_named(name, tmp_path, monkeypatch):
    WRITERS[name](tmp_path, monkeypatch)
    (tmp_path / FILES[name]).unlink()
    with pytest.raises(DataError, match=r"data\.download is off") as caught:
        load(name, tmp_path)
    message = str(caught.value)
    assert f"put there {tmp_path / FILES[name]}, or set" in message and "\n" not in message
    for remedy in ("data.root", "FEDAPP_DATA", "data.download"):
        assert remedy in message


@pytest.mark.parametrize("keep", [0, 3, 0.5, -1])
@pytest.mark.parametrize("name", FILES)
def test_truncated_files_are_named(name, keep, tmp_path, monkeypatch):
    WRITERS[name](tmp_path, monkeypatch)
    path = tmp_path / FILES[name]
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep) if keep == 0.5 else int(keep)])
    with pytest.raises(DataError, match="damaged") as caught:
        load(name, tmp_path, download=True)  # files that are there are never replaced
    message = str(caught.value)
    assert str(path) in message and "\n" not in message and "delete it" in message


def test_a_foreign_pickle_is_never_loaded(tmp_path, monkeypatch):
    class Bomb:
        def __reduce__(self):
            return (pytest.fail, ("a pickle was run",))

    write_cifar(tmp_path, monkeypatch)
    (tmp_path / "cifar-10-batches-py/data_batch_1").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(DataError, match="its MD5"):
        load("cifar10", tmp_path)


def test_an_npz_of_pickled_objects_is_never_loaded(tmp_path):
    arrays = {
        f"{p}_{k}": np.array([None]) for p in ("train", "val", "test") for k in ("images", "labels")
    }
    np.savez(tmp_path / "pathmnist.npz", **arrays)
    with pytest.raises(DataError, match="allow_pickle"):
        load("pathmnist", tmp_path)


@pytest.mark.parametrize(("changes", "says"), [
    ({"val_images": np.zeros((3, 28, 28, 3))}, "float64"),
    ({"val_labels": np.full((3, 1), 9)}, r"labels outside \[0, 8\]"),
    ({"val_labels": np.zeros((4, 1), int)}, "do not match"),
    ({"val_images": np.zeros((3, 32, 32, 3), np.uint8)}, r"\(3, 32, 32\)"),
    ({"val_images": None}, "KeyError"),
])  # fmt: skip
def test_npz_with_wrong_content(tmp_path, changes, says):
    arrays: dict[str, np.ndarray | None] = {}
    for part in ("train", "val", "test"):
        arrays[f"{part}_images"] = noise(3, 28, 28, 3)
        arrays[f"{part}_labels"] = np.zeros((3, 1), int)
    kept = {key: value for key, value in (arrays | changes).items() if value is not None}
    np.savez(tmp_path / "pathmnist.npz", **kept)
    with pytest.raises(DataError, match=says) as caught:
        load("pathmnist", tmp_path)
    assert str(tmp_path / "pathmnist.npz") in str(caught.value)


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format, *args):
        pass


@pytest.fixture
def server(tmp_path):
    """Serve the folder `server` on this machine; yield its address."""
    handler = functools.partial(Quiet, directory=str(tmp_path / "server"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as serving:
        thread = threading.Thread(target=serving.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{serving.server_port}/"
        serving.shutdown()
        thread.join()


def serve_fashion(folder, address, patch):
    """Let torchvision find the packed files in the served folder."""
    folder.mkdir()
    resources = []
    for file, data in IDX.items():
        packed = folder / f"{file}.gz"
        packed.write_bytes(gzip.compress(data))
        resources.append((packed.name, md5(packed)))
    patch.setattr(FashionMNIST, "resources", resources)
    patch.setattr(FashionMNIST, "mirrors", [address])


def test_absent_files_are_downloaded(tmp_path, server, monkeypatch):
    serve_fashion(tmp_path / "server", server, monkeypatch)
    root = tmp_path / "data"
    assert load("fashion_mnist", root, download=True).inputs.shape == (40, 1, 28, 28)
    assert {p.name for p in (root / "FashionMNIST/raw").iterdir()} == set(IDX)
    assert [path.name for path in root.iterdir()] == ["FashionMNIST"]  # no packed files
    assert load("fashion_mnist", root).labels.shape == (40,)


def test_of_several_that_lack_the_files_one_downloads(tmp_path, server, monkeypatch):
    serve_fashion(tmp_path / "server", server, monkeypatch)
    download, calls = FashionMNIST.download, []

    def slow(self):
        calls.append(self.root)
        time.sleep(0.2)  # long enough for the others to find the files absent
        download(self)

    monkeypatch.setattr(FashionMNIST, "download", slow)
    with ThreadPoolExecutor(3) as pool:
        loads = [pool.submit(load, "fashion_mnist", tmp_path, download=True) for _ in range(3)]
    assert [len(future.result().labels) for future in loads] == [40] * 3
    assert len(calls) == 1


def test_a_download_keeps_files_that_are_there(tmp_path, server, monkeypatch):
    serve_fashion(tmp_path / "server", server, monkeypatch)
    write_fashion(tmp_path, monkeypatch)
    raw = tmp_path / "FashionMNIST/raw"
    own = idx(np.full(30, 4, np.uint8))
    (raw / "train-labels-idx1-ubyte").write_bytes(own)
    (raw / "t10k-labels-idx1-ubyte").unlink()
    load("fashion_mnist", tmp_path, download=True)
    assert (raw / "train-labels-idx1-ubyte").read_bytes() == own


def test_a_broken_download_leaves_nothing(tmp_path, server, monkeypatch):
    serve_fashion(tmp_path / "server", server, monkeypatch)
    packed = tmp_path / "server" / "t10k-labels-idx1-ubyte.gz"
    packed.write_bytes(packed.read_bytes()[:-3])
    root = tmp_path / "data"
    with pytest.raises(DataError, match="the download failed") as caught:
        load("fashion_mnist", root, download=True)
    assert "\n" not in str(caught.value)
    assert not (root / "FashionMNIST").exists()


@pytest.mark.parametrize("name", ["mnist", "cifar10", "svhn", "stl10", "pathmnist"])
def test_no_network_is_one_clear_line(name, tmp_path, monkeypatch):
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


def test_archives_are_downloaded_and_unpacked(tmp_path, server, monkeypatch):
    write_cifar(tmp_path / "server", monkeypatch)
    archive = tmp_path / "server" / CIFAR10.filename
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(tmp_path / "server" / CIFAR10.base_folder, CIFAR10.base_folder)
        readme = tarfile.TarInfo(f"{CIFAR10.base_folder}/readme.html")
        tar.addfile(readme, io.BytesIO())
    monkeypatch.setattr(CIFAR10, "url", f"{server}{CIFAR10.filename}")
    monkeypatch.setattr(CIFAR10, "tgz_md5", md5(archive))
    assert len(load("cifar10", tmp_path / "data", download=True).labels) == 24


@pytest.mark.parametrize(
    ("name", "says"),
    [("cifar", "did you mean 'cifar10'"), ("zzz", "choose"), ("chestmnist", "no such")],
)
def test_unknown_names_are_refused(name, says, tmp_path):
    with pytest.raises(ConfigError, match=says):
        load(name, tmp_path)


def test_a_subset_is_drawn_by_seed():
    def digits(seed, subset=100):
        return load_dataset(DataSettings(subset=subset), seed)

    assert torch.equal(digits(1).inputs, digits(1).inputs)
    assert not torch.equal(digits(1).inputs, digits(2).inputs)
    whole = load_dataset(DataSettings(), 0)
    rows = {tuple(image.flatten().tolist()) for image in whole.inputs}
    assert all(tuple(image.flatten().tolist()) in rows for image in digits(3).inputs)
    assert torch.equal(digits(0, 1797).inputs, whole.inputs)
    assert (digits(1).mean, digits(1).std) == (whole.mean, whole.std)
    with pytest.raises(ConfigError, match="digits has 1797 inputs"):
        digits(0, 1798)


def test_the_root_is_the_setting_then_the_variable_then_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDAPP_DATA", str(tmp_path / "variable"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert data_root(str(tmp_path)) == tmp_path
    assert data_root("") == tmp_path / "variable"
    assert data_root("~/x") == tmp_path / "home" / "x"
    monkeypatch.setenv("FEDAPP_DATA", "")
    assert data_root("") == tmp_path / "home" / ".cache" / "fedapp"
    assert data_root("relative").is_absolute()


def test_a_folder_that_cannot_be_written_to_is_said_and_not_taken_for_the_network(
    tmp_path, monkeypatch
):
    (tmp_path / "file").touch()
    with pytest.raises(
        DataError, match=r"cannot be written to .*make it a folder that can be"
    ) as e:
        load("fashion_mnist", tmp_path / "file", download=True)
    assert "network" not in str(e.value) and "\n" not in str(e.value)

    def read_only(dir):
        raise PermissionError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(tempfile, "TemporaryFile", read_only)
    with pytest.raises(DataError, match=r"cannot be written to \(Read-only file system\)"):
        load("fashion_mnist", tmp_path, download=True)
    assert {path.name for path in tmp_path.iterdir()} == {"file"}  # no lock file
