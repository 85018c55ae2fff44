"""Vectors of three sites, from the check to the answers of a kept model."""

import io
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from rich.console import Console
from sklearn.datasets import load_breast_cancer

from fedapp.core.errors import FedAppError
from fedapp.core.settings import DataSettings
from fedapp.data.in_memory import GivenSites, register
from fedapp.data.own import OwnSites, simulated_places
from fedapp.models.model import load_model
from fedapp.server.finished_run import finished_run
from fedapp.tools.check.check import Options, check
from fedapp.tools.check.inputs import _codes
from fedapp.tools.site_models import checked_models
from tests.flower.results import loopback, results
from tests.own import image
from tests.tools.commands import invoked, rows
from tests.vectors import (
    CLASSES,
    ENCODER,
    NAMES,
    SIZE,
    agreed,
    arrays,
    experiment,
    three_sites,
    write,
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    root = tmp_path_factory.mktemp("vectors")
    three_sites(root / "data")
    folder = loopback(experiment(root / "data", runtime__out=str(root / "runs")))
    checked_models(finished_run(folder))
    return folder


@pytest.fixture
def model(run):
    return run / "models" / "north"


def test_a_run_on_files_is_the_run_on_the_same_arrays_bit_for_bit(run, tmp_path):
    root = run.parents[1] / "data"
    wanted = experiment(root, runtime__out=str(tmp_path))
    places = simulated_places(root, wanted.data, len(NAMES))
    read = OwnSites(places, wanted.data, wanted.split, wanted.seed, torch.device("cpu"))
    sites = GivenSites(tuple(read.site(k) for k in range(len(NAMES))), CLASSES, are_images=False)
    name, kept = register(sites)
    same = loopback(replace(wanted, data=DataSettings(name=name)))
    files, memory = results(run), results(same)
    assert kept.sites and files["rows"] == memory["rows"] and files["traffic"] == memory["traffic"]
    assert files["rows"][-1]["mean_test_accuracy"] > 0.8  # chance is 1/3


def said(data, **options):
    screen = io.StringIO()
    known = {"experiment": experiment(data), "site_name": "north", **options}
    return check(data, Options(**known), Console(file=screen, width=110)), screen.getvalue()


def test_a_site_checks_its_vectors(tmp_path):
    three_sites(tmp_path)
    code, text = said(tmp_path / "north")
    assert code == 0 and "no fault: this site can join" in text
    assert f"{SIZE} numbers each, mean 0.3" in text and "standard deviation 0.3" in text
    assert "one value in all rows: f0" in text and "kinds" not in text
    write(tmp_path / "north", **{**arrays(1), "encoder": np.array("another")})
    code, text = said(tmp_path / "north")
    assert code == 1 and f"encoder 'another', must be {ENCODER!r}" in text


def test_a_code_for_a_missing_number_is_noted(tmp_path):
    random = np.random.default_rng(0)
    usual = {
        "age": random.normal(54, 9, 120).round(),
        "chol": random.normal(240, 50, 120).round(),
        "slope": random.integers(1, 4, 120),
        "ill": random.integers(0, 2, 120),
        "drinks": random.poisson(4, 120),
    }
    rows = np.stack(list(usual.values()), 1)
    assert _codes(torch.tensor(rows)) == ({}, [])
    rows[:9, 1], rows[9:12, 1], rows[:3, 2], rows[:2, 3], rows[5:9, 4] = -9, 0, -9, -9, 999
    nothing_else, found = _codes(torch.tensor(rows))
    assert found == ["-9 and 0 in f1", "-9 in f2", "-9 in f3", "999 in f4"] and not nothing_else
    padded = np.pad(rows.astype(np.float32), ((0, 0), (0, SIZE - rows.shape[1])))
    given = {"ids": np.arange(120), "vectors": padded, "encoder": np.array(ENCODER)}
    given["labels"] = np.array(CLASSES)[np.arange(120) % len(CLASSES)]
    write(tmp_path / "north", **given)
    code, text = said(tmp_path / "north")
    assert code == 0 and f"a code for a missing number? {', '.join(found)} (f0 is" in text
    assert "one value in all rows: f5, f6" in text and f"and {SIZE - 5 - 8} more" in text


@pytest.mark.parametrize(
    ("kinds", "code"),
    [
        ({-9: 56, 0: 1, **{90 + n: 3 for n in range(48)}}, "-9"),  # one 0 beside the pressures
        ({-9: 102, 1: 2, 2: 60, 3: 36}, "-9"),  # a kind that stands in two rows
        ({-9: 198, 0: 2}, "-9"),
        ({-9: 118, 1: 4, 2: 1}, "-9"),
        ({-9: 6, -2.6: 1, **{n / 10: 3 for n in range(40)}}, "-9"),
        ({-9: 1, 0: 60, 1: 60}, "-9"),
        ({-9: 4, -99: 7, 0: 60, 1: 60}, "-99 and -9"),
        ({999: 3, **{100 + n: 1 for n in range(300)}}, "999"),
        ({99: 1, 1: 4, 2: 100}, "99"),
        ({98: 40, 99: 60}, ""),  # a saturation in %
        ({99: 1, **{n: 2 for n in range(30, 80)}}, ""),  # an age
        ({-9: 2, **{n: 2 for n in range(-30, 25)}}, ""),  # a temperature in degrees C
        ({3: 160, 6: 18, 7: 117}, ""),  # coded so by its makers
        ({-1: 30, 0: 30, 1: 30}, ""),
    ],
)
def test_a_usual_code_is_found_whatever_else_its_column_has(kinds, code):
    values = [kind for kind, rows in kinds.items() for _ in range(rows)]
    found = _codes(torch.tensor(values, dtype=torch.float64)[:, None])
    assert found == ({}, [f"{code} in f0"] if code else [])


def test_a_column_of_nothing_but_a_code_is_named_as_that(tmp_path):
    given = arrays(1)
    given["vectors"][:, 3], given["vectors"][:, 5], given["vectors"][::2, 5] = -9, 999, 99
    given["vectors"][:, 7] = 0.5
    write(tmp_path / "north", **given)
    code, text = said(tmp_path / "north")
    named = "nothing but a usual code for a missing number: -9 in f3, 99 and 999 in f5\n"
    assert code == 0 and named in text and "one value in all rows: f0, f7," in text


def test_every_column_with_a_code_is_named(tmp_path):
    given = arrays(1)
    given["vectors"][:3, :40] = -9
    write(tmp_path / "north", **given)
    assert "-9 in f39 (f0 is the first column)" in said(tmp_path / "north")[1]


def test_usual_columns_hold_a_code_by_chance_once_in_a_thousand():
    # Each is drawn a thousand times, by a fixed seed: rarely chance puts three values far away.
    random = np.random.default_rng(0)
    normal = random.normal(size=(120, 1000))
    drawn = {
        "normal": normal,
        "half normal": np.maximum(normal, 0),
        "three kinds": random.integers(0, 3, (120, 1000)),
        "yes or no": random.random((120, 1000)) < 0.3,
        "grey": random.integers(0, 256, (120, 1000)),
        "counts": random.poisson(1, (120, 1000)),
        "more counts": random.poisson(8, (120, 1000)),
        "days": random.exponential(5, (120, 1000)).round(),
        "long tails": random.standard_t(2, (120, 1000)).round(1),
    }
    for name, values in drawn.items():
        assert len(_codes(torch.tensor(values).double())[1]) <= 1, name
    assert _codes(torch.tensor(load_breast_cancer().data)) == ({}, [])


def test_a_site_without_an_agreement_is_told_what_its_vectors_are(tmp_path):
    three_sites(tmp_path)
    code, text = said(tmp_path / "east" / "vectors.npz", experiment=None)
    assert code == 0 and "no preset named" in text and "64 numbers each" in text


@pytest.mark.parametrize(
    ("turn", "note"),
    [
        (lambda v: 1000 * v + 5, "agreed are data.mean = 0.3 and data.std = 0.4"),
        (lambda v: v * np.geomspace(1, 1e6, SIZE, dtype=np.float32), "standard deviations from"),
    ],
)
def test_numbers_of_another_scale_are_noted(turn, note, tmp_path):
    write(tmp_path, **{**arrays(1), "vectors": turn(arrays(1)["vectors"])})
    code, text = said(tmp_path)
    assert code == 0 and note in text


def test_a_site_that_forgot_to_scale_is_told_to_scale_and_not_to_change_the_others(tmp_path):
    given = arrays(1)
    write(tmp_path, **{**given, "vectors": 160 * given["vectors"]})
    text = said(tmp_path)[1]
    remedy = text[text.index("your numbers have mean ") :].splitlines()[1]
    assert "apply the agreed rules (minimum, maximum, fill) to them" in remedy
    assert remedy.endswith("have both settings changed only if every site sees this")


def test_the_kept_model_answers_a_file_as_it_answers_the_tensors(model, tmp_path):
    given = arrays(1)
    path = write(tmp_path, ids=given["ids"], vectors=given["vectors"], encoder=given["encoder"])
    done = invoked("predict", model, path)
    assert done.exit_code == 0, done.output
    found = rows(done.stdout)
    wanted = load_model(model, torch.device("cpu"))[0].probabilities(
        torch.from_numpy(given["vectors"])
    )
    assert [row["file"] for row in found] == given["ids"].tolist()
    assert [row["class"] for row in found] == [CLASSES[c] for c in wanted.argmax(1).tolist()]
    top = np.array([float(row["probability"]) for row in found])
    assert np.abs(top - wanted.max(1).values.numpy()).max() < 1e-6


def test_labels_in_the_file_are_counted(run, model):
    done = invoked("predict", model, run.parents[1] / "data" / "north")
    assert done.exit_code == 0 and "images with a label: right" in done.output


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"encoder": np.array("another")}, f"encoder 'another', must be '{ENCODER}'"),
        ({"vectors": np.zeros((120, 5))}, "vectors of 5 numbers, must have 64"),
    ],
)
def test_vectors_that_the_model_does_not_know_are_refused(changes, said, model, tmp_path):
    done = invoked("predict", model, write(tmp_path, **{**arrays(1), **changes}))
    assert isinstance(done.exception, FedAppError) and said in str(done.exception)


def test_a_raw_table_is_refused_by_what_the_model_takes(model, tmp_path):
    (tmp_path / "raw.csv").write_text("age,sex\n63,1\n")
    done = invoked("predict", model, tmp_path / "raw.csv")
    assert isinstance(done.exception, FedAppError)
    assert "raw.csv: the model takes vectors of 64 numbers" in str(done.exception)
    assert "docs/OWN_DATA.md" in str(done.exception)


def test_images_are_refused_and_so_is_a_persons_labelling(run, model, tmp_path):
    image(tmp_path / "a.png")
    done = invoked("predict", model, tmp_path)
    assert "the model takes vectors of 64 numbers: name an .npz or .parquet" in str(done.exception)
    done = invoked(
        "next-to-label", model, run.parents[1] / "data" / "north", "--out", tmp_path / "o.csv"
    )
    assert "the model takes no images" in str(done.exception)


def test_a_model_of_images_takes_no_vectors(tmp_path):
    from fedapp.models.description import Recipe
    from fedapp.models.listing import list_images
    from fedapp.models.predict import batches
    from tests.models.made import recipe_of

    listed = list_images(write(tmp_path, **arrays(1)))
    recipe: Recipe = recipe_of()[0]
    with pytest.raises(FedAppError, match="vectors, but the model takes images"):
        next(batches(listed, recipe))


def test_a_model_goes_out_as_onnx_checked_with_real_vectors(run, model, tmp_path):
    pytest.importorskip("onnxruntime")
    shutil.copytree(model, tmp_path / "model")
    done = invoked(
        "export", tmp_path / "model", "--to", "onnx", "--out", tmp_path / "out",
        "--images", run.parents[1] / "data" / "north",
    )  # fmt: skip
    assert done.exit_code == 0 and "64 real inputs" in done.output, done.output


def test_random_views_of_vectors_are_refused(tmp_path):
    three_sites(tmp_path / "data")
    with pytest.raises(FedAppError, match="no images"):
        loopback(
            experiment(tmp_path / "data", training__augment="weak", runtime__out=str(tmp_path))
        )
    assert agreed().inputs == (SIZE,)
