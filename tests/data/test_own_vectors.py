"""A site's vectors: what a file may say, and what is said of every one that cannot be used."""

import numpy as np
import pytest
import torch

from fedapp.core import optional_dependencies
from fedapp.core.errors import ConfigError
from fedapp.data.own import Kind, OwnDataError, list_own
from fedapp.data.own.listing import list_agreed
from tests.own import read_site
from tests.vectors import CLASSES, ENCODER, SIZE, agreed, arrays, three_sites, write

CPU = torch.device("cpu")
SMALL = {
    "ids": np.array(["b", "a", "d", "c"]),
    "vectors": np.arange(12, dtype=np.float64).reshape(4, 3),
    "labels": np.array(["one", "two", "", "one"]),
}


def site(data, name="east", number=0, **changes):
    return read_site(data, agreed(**changes), name, number)


def faults(tmp_path, settings=None, **changes):
    """What is said of SMALL with other arrays."""
    write(tmp_path, **{**SMALL, **changes})
    listing = list_agreed(tmp_path, settings) if settings else list_own(tmp_path, CLASSES)
    return [str(fault) for fault in listing.faults]


# --- what a file may say --------------------------------------------------------------------------


def test_vectors_and_labels_belong_together_by_id(tmp_path):
    listing = list_own(write(tmp_path, **SMALL), CLASSES)
    assert listing.faults == ()
    assert [(e.name, e.label) for e in listing.entries] == [
        ("a", "two"), ("b", "one"), ("c", "one"), ("d", ""),
    ]  # fmt: skip
    wanted = torch.tensor([[3.0, 4, 5], [0, 1, 2], [9, 10, 11], [6, 7, 8]])
    assert listing.values.dtype == torch.float32 and torch.equal(listing.values, wanted)


def test_a_sites_data_are_its_files_rows(tmp_path):
    """Every vector is where its split says, with its label; nothing is scaled before a network."""
    three_sites(tmp_path)
    given = arrays(1)
    data = site(tmp_path / "north", "north", 1)
    assert (data.mean, data.std) == ((0.3,) * SIZE, (0.4,) * SIZE)
    for part, known in (
        ("test", data.test_labels),
        ("val", data.val_labels),
        ("train", data.labels),
    ):
        chosen = (given["split"] == part) & (given["labels"] != "")
        wanted = torch.from_numpy(given["vectors"][chosen])
        found = data.labelled if part == "train" else getattr(data, part)
        assert torch.equal(found, wanted)  # the ids ascend with the rows
        assert [CLASSES[c] for c in known.tolist()] == given["labels"][chosen].tolist()
    assert torch.equal(data.unlabelled, torch.from_numpy(given["vectors"][given["labels"] == ""]))


def test_the_rows_order_and_the_files_format_change_nothing(tmp_path):
    pq, pa = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    given = arrays(0)
    one = site(write(tmp_path, **given))
    turned = {k: v[::-1] if v.ndim else v for k, v in given.items()}
    assert site(write(tmp_path / "turned", **turned)).digest == one.digest
    texts = {
        "id": given["ids"], "label": [label or None for label in given["labels"].tolist()],
        "split": given["split"], "encoder": [ENCODER] * len(given["ids"]),
    }  # fmt: skip
    columns = {f"f{k}": given["vectors"][:, k] for k in range(SIZE)}
    for name, numbers in (("wide", columns), ("lists", {"vector": given["vectors"].tolist()})):
        path = tmp_path / f"{name}.parquet"
        pq.write_table(pa.table({**texts, **numbers}), path)
        assert site(path).digest == one.digest, name


def test_without_a_split_equal_vectors_and_a_patients_are_in_one_part(tmp_path):
    count = 60
    values = np.repeat(np.arange(count // 2), 2)[:, None] * np.ones(3)  # each is there twice
    patient = np.arange(count) // 4
    labels = np.array(CLASSES)[patient % 3]
    ids = np.arange(count)
    path = write(tmp_path, ids=ids, vectors=values, labels=labels, patient=patient)
    data = site(path, vector_size=3, encoder="")
    held = [{int(v) for v in t[:, 0]} for t in (data.labelled, data.val, data.test)]
    assert all(held) and len(set.union(*held)) == sum(map(len, held)) == count // 2
    assert data.test_groups is not None
    assert data.test_groups.bincount().tolist() == [4] * (len(held[2]) // 2)


def test_whole_numbers_and_halves_are_taken(tmp_path):
    for kind in (np.int64, np.float16, np.uint8):
        listing = list_own(
            write(tmp_path, **{**SMALL, "vectors": SMALL["vectors"].astype(kind)}), ()
        )
        assert listing.faults == () and listing.values[1].tolist() == [0, 1, 2]


# --- what it may not ------------------------------------------------------------------------------


@pytest.mark.parametrize(("changes", "said"), [
    ({"ids": np.array(["a", "b", "a", "a"])},
     "vectors.npz: id 'a' stands twice: keep one vector of each id"),
    ({"ids": np.array(["a", "", "=1", "c"])}, "id '' (and 1 more): write 1 to 200"),
    ({"ids": np.array(["a", "\x1b[31m", "b", "c"])}, "id '\\x1b[31m': write 1 to 200"),
    ({"ids": None}, "vectors.npz: no array 'ids': write ids, vectors, labels"),
    ({"ids": np.array(["a", "b"])}, "vectors.npz: 4 vectors, but 2 of ids: write one for each"),
    ({"ids": np.array([0.5, 1, 2, 3])}, "ids are float64 [4], must be text: write it as text"),
    ({"vectors": np.array([[0.0, np.nan]] + 3 * [[1, 2]])},
     "the vector of id 'b' holds NaN or an infinite number: fill it in, or leave the line out"),
    ({"vectors": np.array(2 * [[0.0, np.inf]] + 2 * [[1, 2]])},
     "the vector of id 'a' holds NaN or an infinite number (and 1 more): fill it in"),
    ({"vectors": np.full((4, 2), 1e300)}, "holds NaN or an infinite number (and 3 more)"),
    ({"vectors": np.arange(4.0)}, "vectors are float64 [4], must be numbers [n, D]"),
    ({"vectors": np.zeros((4, 0))}, "vectors are float64 [4, 0], must be numbers [n, D]"),
    ({"vectors": np.full((4, 2), "1.5")}, "must be numbers [n, D]: write one row of D numbers"),
    ({"vectors": np.array([[1, 2], [3], [4], [5]], dtype=object)},
     "array 'vectors' holds Python objects, which are not unpickled: write numbers"),
    ({"labels": np.array(["one", "two", None, "one"], dtype=object)},
     "array 'labels' holds Python objects, which are not unpickled"),
    ({"labels": np.array([0, 1, 2, 1])},
     "vectors.npz: labels are int64 [4], must be text: write the names of data.classes"),
    ({"labels": np.array(["one", "tow", "tow", ""])},
     "id 'a': label 'tow' is not in data.classes (nought, one, two): did you mean 'two'?"),
    ({"lables": SMALL["labels"]}, "array 'lables': leave it out; only ids, vectors"),
    ({"encoder": np.array(["x", "y", "x", "x"])},
     "embeddings of 2 encoders, 'x' and 'y': compute all of them with one"),
    ({"split": np.array(["train", "test", "test", "val"])},
     "id 'd': split 'test' of an image without a label: write train, val or test"),
    ({"split": np.array(["train", "", "train", "val"])}, "id_a: labelled, but without a split"),
    ({"patient": np.array(["p", "q", "", "p"])}, "id 'd': the column patient is empty"),
    ({"patient": np.array(["p"] * 4)}, "patient 'p': all 3 labelled images are of this one"),
])  # fmt: skip
def test_a_file_that_cannot_be_used_is_refused_in_a_line(changes, said, tmp_path):
    [first, *rest] = faults(tmp_path, **changes)
    assert said.replace("id_a", "vectors.npz: a") in first and "\n" not in first and len(rest) < 2


@pytest.mark.parametrize(("agreement", "said"), [
    ({"vector_size": 4}, "vectors of 3 numbers, must have 4 (data.vector_size): make them by"),
    ({"encoder": "vit"}, "encoder '', must be 'vit' (data.encoder): compute the vectors with"),
])  # fmt: skip
def test_what_was_not_agreed_upon_is_refused(agreement, said, tmp_path):
    [fault] = faults(tmp_path, agreed(**{"vector_size": 3, "encoder": "", **agreement}))
    assert said in fault
    made = faults(tmp_path, agreed(vector_size=3, encoder=""), encoder=np.array("vit"))
    assert "encoder 'vit', must be '' (data.encoder)" in made[0]


def test_no_pickle_is_ever_run(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (open, (str(tmp_path / "gone off"), "w"))

    [fault] = faults(tmp_path, labels=np.array([Bomb()] * 4, dtype=object))
    assert "not unpickled" in fault and not (tmp_path / "gone off").exists()


def test_images_and_vectors_are_not_taken_for_each_other(tmp_path):
    from tests.own import agreed as of_images
    from tests.own import image

    write(tmp_path / "v", **SMALL)
    image(tmp_path / "i" / "unlabelled" / "a.png")
    [fault] = list_agreed(tmp_path / "v", of_images()).faults
    assert "vectors, but images are agreed upon" in str(fault)
    [fault] = list_agreed(tmp_path / "i", agreed()).faults
    assert "no vectors.npz and no vectors.parquet" in str(fault)
    image(tmp_path / "v" / "unlabelled" / "a.png")
    [fault] = list_agreed(tmp_path / "v", agreed()).faults
    assert "holds both vectors.npz and unlabelled: keep one, or name vectors.npz" in str(fault)
    assert list_agreed(tmp_path / "v" / "vectors.npz", agreed()).faults[0].kind == Kind.VECTORS


def test_the_server_is_told_no_id(tmp_path):
    with pytest.raises(OwnDataError) as caught:
        site(write(tmp_path, **{**SMALL, "ids": np.array(["Doe", "Doe", "a", "b"])}))
    assert "'Doe' stands twice" in str(caught.value) and "Doe" not in caught.value.for_server
    assert "its vectors are not those" in caught.value.for_server


# --- Parquet --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("columns", "said"), [
    ({"f0": [1.0, 2]}, "no column 'id': name each vector in it"),
    ({"id": ["a", "b"]}, "neither f0 to fN and vector: write the numbers one way"),
    ({"id": ["a", "b"], "f0": [1.0, 2], "f2": [1.0, 2]}, "no column 'f1', but 2 are numbered"),
    ({"id": ["a", "b"], "f0": [1.0, None]}, "the vector of id 'b' holds NaN"),
    ({"id": ["a", "b"], "f0": ["x", "y"]}, "f0 holds string, no numbers: write numbers"),
    ({"id": ["a", "b"], "f0": [1.0, 2], "age": [3, 4]}, "column 'age': leave it out; only id,"),
    ({"id": ["a", "b"], "f0": [1.0, 2], "label": [0, 1]}, "label are int64, must be text"),
    ({"id": ["a", None], "f0": [1.0, 2]}, "id '': write 1 to 200 characters"),
    ({"id": ["a", "b"], "vector": [[1.0], [2.0, 3.0]]}, "vectors of 1 and of 2 numbers"),
    ({"id": ["a", "b"], "vector": [[1.0], None]}, "1 of 2 rows have no vector"),
    ({"id": ["a", "b"], "vector": [1.0, 2.0]}, "vector is double, no list"),
    ({"id": ["a", "b"], "vector": [[1.0], [None]]}, "the vector of id 'b' holds NaN"),
])  # fmt: skip
def test_a_table_that_cannot_be_used_is_refused_in_a_line(columns, said, tmp_path):
    pq, pa = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    pq.write_table(pa.table(columns), tmp_path / "vectors.parquet")
    [fault] = list_own(tmp_path, CLASSES).faults
    assert said in str(fault) and "\n" not in str(fault)


def test_a_damaged_table_and_one_without_its_library(tmp_path, monkeypatch):
    pytest.importorskip("pyarrow")
    (tmp_path / "vectors.parquet").write_bytes(b"PAR1" + b"\0" * 50)
    [fault] = list_own(tmp_path, ()).faults
    assert "vectors.parquet: cannot be read as Parquet" in str(fault)

    def absent(name):
        raise ModuleNotFoundError(name=name)

    monkeypatch.setattr(optional_dependencies, "import_module", absent)
    [fault] = list_own(tmp_path, ()).faults
    assert "pyarrow is not installed: pip install 'fedapp[parquet]'" in str(fault)


# --- settings -------------------------------------------------------------------------------------


def test_a_network_of_images_is_refused_before_a_run():
    from fedapp.experiment.config import load_experiment

    with pytest.raises(ConfigError, match=r"data.vector_size = 512: resnet9 takes images"):
        load_experiment("own_vectors", {"model.name": "resnet9"})
