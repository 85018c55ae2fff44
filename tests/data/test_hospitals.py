"""Four hospitals' patients: a row by hand, gaps, what is refused, and the split that stays put."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedapp.core.errors import ConfigError, DataError
from fedapp.core.settings import DataSettings, SplitSettings
from fedapp.data import published
from fedapp.data.hospitals import (
    CLASSES,
    NAMES,
    SCALES,
    files,
    flamby_test,
    read_centre,
    read_flamby,
    read_heart,
)
from fedapp.data.inputs import DataSet, NaturalSites
from fedapp.data.split.manifest import TEST, TRAIN, VAL
from fedapp.data.split.natural import deal_naturally, only_sites
from fedapp.experiment.config import load_experiment
from fedapp.protocol.messages import SiteFacts
from fedapp.server.checks import preset_mismatch
from fedapp.simulation.loopback import run_loopback

ROW = "63,1,2,145,0,1,2,150,0,2.0,3,?,-9,2"
"""A man of 63: his cholesterol, vessels and thallium scan are missing, each written otherwise."""


def written(root, **rows):
    """Write the four files: by name the lines of one; others have 24 patients, half of them ill."""
    for number, file in enumerate(files()):
        lines = [
            f"{40 + k + number},{k % 2},1,120,200,0,0,150,0,1.5,1,0,3,{k % 2}" for k in range(24)
        ]
        path = root / file
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(rows.get(path.stem, lines)) + "\n")
    return root


def test_a_patient_by_hand(tmp_path):
    data = read_heart(written(tmp_path, cleveland=[ROW]))
    assert data.inputs.shape == (1 + 3 * 24, 31) and data.classes == CLASSES
    age, pressure = (63 - SCALES["age"][0]) / SCALES["age"][1], (145 - 132) / 19
    pulse, oldpeak = (150 - 138) / 26, (2.0 - 0.9) / 1.1
    expected = [
        *(age, 0), *(1, 0), *(1, 0, 0, 0), *(pressure, 0), *(0, 1), *(1, 0), *(0, 1, 0),
        *(pulse, 0), *(0, 0), *(oldpeak, 0), *(0, 1, 0), *(0, 1), *(0, 0, 1),
    ]  # fmt: skip
    torch.testing.assert_close(data.inputs[0], torch.tensor(expected, dtype=torch.float32))
    assert data.labels[0] == 1 and data.sites is not None
    assert (
        data.sites.names == NAMES
        and data.sites.owner.tolist() == [0] + [1] * 24 + [2] * 24 + [3] * 24
    )


def test_a_pressure_of_nought_is_missing_and_for_flamby_it_is_not(tmp_path):
    line = ROW.replace("145", "0")
    path = written(tmp_path, va=[line]) / files()[3]
    assert np.isnan(read_centre(path).numbers[0, 3:5]).all()
    assert read_centre(path, zeros_missing=False).numbers[0, 3:5].tolist() == [0, 0]


@pytest.mark.parametrize(("line", "said"), [
    ("63,1,2,145,0,1,2,150,0,2.0,3,?,-9", "13 columns, must be 14"),
    ("age" + ROW[2:], "'age' is no number"),
    (ROW.replace("145", "inf"), "'inf' is no number"),
    (ROW.replace("63,1,", "63,3,"), "sex is 3, must be one of 0, 1"),
    (ROW.replace("1,2,145", "1,5,145"), "cp is 5, must be one of 1, 2, 3, 4"),
    (ROW[:-1] + "7", "diagnosis is 7, must be one of 0, 1, 2, 3, 4"),
    (ROW[:-1] + "?", "diagnosis is missing, must be one of 0, 1"),
    ("4900" + ROW[2:], "age is 4900, must be between 1 and 120"),
    (ROW.replace("145", "1e300"), r"trestbps is 1e\+300, must be between 0 and 300"),
    (ROW.replace("145", "-1"), "trestbps is -1, must be between"),
])  # fmt: skip
def test_what_is_no_patient_is_refused_by_line(tmp_path, line, said):
    root = written(tmp_path, hungarian=[ROW, "", line])
    with pytest.raises(DataError, match=f"hungarian.csv, line 3: .*{said}"):
        read_heart(root)


def test_every_way_to_write_a_gap_means_the_same(tmp_path):
    found = [
        read_heart(written(tmp_path, cleveland=[ROW.replace("-9", gap)])).inputs[0]
        for gap in ("-9", "-9.0", "?", "")
    ]
    assert all(torch.equal(one, found[0]) for one in found)


def test_no_other_hospitals_file_is_read_or_fetched(tmp_path, monkeypatch):
    """One that has left may delete its file; `only_sites` refuses names that nobody knows."""
    names, fetched = ("long_beach", "cleveland"), []
    written(tmp_path, hungarian=["no table"])
    (tmp_path / files()[2]).unlink()
    for name in ("heart", "heart_flamby"):
        data = published.read(name, tmp_path, download=False, sites=names)
        assert data.sites.names == NAMES and data.sites.owner.tolist() == [0] * 24 + [3] * 24
    with pytest.raises(
        DataError,
        match=r"download is off: put there \S+/switzerland\.csv \(each is http\S+/processed",
    ):
        published.read("heart", tmp_path, download=False)
    monkeypatch.setattr(
        "torchvision.datasets.utils.download_url", lambda *_, filename: fetched.append(filename)
    )
    published.source("heart", names).fetch(tmp_path)
    assert fetched == ["cleveland.csv", "va.csv"]


def test_a_hospital_of_one_diagnosis_and_patients_alike_are_no_fault(tmp_path, capsys):
    """A run says how many test patients equal one that is learned from."""
    root = written(tmp_path, hungarian=[ROW] * 12)
    over = {"data.root": str(root), "runtime.out": str(root / "runs"), "runtime.device": "cpu"}
    row, _ = run_loopback(load_experiment("heart", over))
    assert row["sites"] == 4 and row["mean_test_accuracy"]["final"] > 0.25
    said = capsys.readouterr().out
    assert row["test_inputs_learned_from"] >= 4  # of Hungary's 12: all that are tested
    assert "test inputs have the same numbers as one that is learned from" in said
    assert "Classes untested    at sites hungarian: 1 of 2" in said


def test_an_empty_file_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"switzerland\.csv: no patient in it"):
        read_heart(written(tmp_path, switzerland=[""]))


def test_flamby_drops_gaps_scales_each_hospital_by_its_training_and_fixes_the_test(tmp_path):
    data = read_flamby(written(tmp_path, cleveland=[ROW, ROW.replace("145", "?")] * 12))
    sites = data.sites
    assert data.inputs.shape == (12 + 3 * 24, 13) and sites is not None and sites.test is not None
    for site in range(1, 4):
        here = sites.owner == site
        assert (here & sites.test).sum() == round(24 * 0.34 + 0.5)  # scikit-learn rounds up
        training = data.inputs[torch.from_numpy(here & ~sites.test)].double()
        torch.testing.assert_close(training.mean(0), torch.zeros(13).double(), atol=1e-6, rtol=0)
        spread = training.std(0, correction=0)
        assert ((spread - 1).abs() < 1e-6).logical_or(spread == 0).all()  # a constant column stays
    with pytest.raises(DataError, match=r"va\.csv: 2 patients whose .* must be 3 or more to split"):
        read_flamby(written(tmp_path, va=[ROW, ROW]))
    again = flamby_test(data.labels[torch.from_numpy(sites.owner == 1)].numpy())
    assert again.tolist() == sites.test[sites.owner == 1].tolist()


# --- the split ------------------------------------------------------------------------------------


def hospitals(seed=0):
    """Three places of 40, 20 and 60 inputs of two classes."""
    draw = np.random.default_rng(seed)
    owner = draw.permutation(np.repeat(np.arange(3), (40, 20, 60)))
    inputs = torch.from_numpy(draw.normal(size=(120, 2)).astype(np.float32))
    labels = torch.from_numpy(draw.integers(0, 2, 120))
    sites = NaturalSites(("a", "b", "c"), owner)
    return DataSet(inputs, labels, ("no", "yes"), (0.0, 0.0), (1.0, 1.0), sites=sites)


SETTINGS = SplitSettings(
    num_clients=3, deal="natural", train_share=0.5, val_share=0.25, label_share=0.4
)


def test_each_class_of_each_place_is_cut_by_the_shares():
    data = hospitals()
    split, visible = deal_naturally(data.labels.numpy(), data.sites, SETTINGS, 7)
    for site in range(3):
        for label in (0, 1):
            here = (data.sites.owner == site) & (data.labels.numpy() == label)
            count = here.sum()
            assert (here & (split == TRAIN)).sum() == round(count * 0.5)
            assert (here & (split == TEST)).sum() == count - round(count * 0.75)
        training = (data.sites.owner == site) & (split == TRAIN)
        assert (training & visible).sum() == round(training.sum() * 0.4)
    assert visible[split != TRAIN].all()


def test_fewer_labels_are_a_part_of_more():
    data = hospitals()
    few, more = (
        deal_naturally(data.labels.numpy(), data.sites, replace(SETTINGS, label_share=share), 7)[1]
        for share in (0.2, 0.8)
    )
    assert (few <= more).all() and few.sum() < more.sum()


@pytest.mark.parametrize("names", [("a", "c"), ("c", "a"), ("b",)])
def test_who_else_takes_part_moves_nothing_at_a_site(names):
    """So a run without a hospital is one that never had it, patient by patient."""
    data = hospitals()
    split, visible = deal_naturally(data.labels.numpy(), data.sites, SETTINGS, 7)
    some = only_sites(data, names, "these")
    less, seen = deal_naturally(some.labels.numpy(), some.sites, SETTINGS, 7)
    for number, name in enumerate(names):
        before = data.sites.owner == data.sites.names.index(name)
        now = some.sites.owner == number
        assert torch.equal(
            data.inputs[torch.from_numpy(before)], some.inputs[torch.from_numpy(now)]
        )
        assert split[before].tolist() == less[now].tolist()
        assert visible[before].tolist() == seen[now].tolist()


def test_an_agreed_test_part_stands_and_validation_comes_from_the_rest():
    data = hospitals()
    test = np.arange(120) % 3 == 0
    sites = replace(data.sites, test=test)
    split, _ = deal_naturally(data.labels.numpy(), sites, SETTINGS, 7)
    assert ((split == TEST) == test).all()
    here = (sites.owner == 2) & (data.labels.numpy() == 1)
    assert (here & (split == VAL)).sum() == round(here.sum() * 0.25)


def test_a_place_that_the_data_do_not_know_is_named():
    with pytest.raises(ConfigError, match="these has no 'd'"):
        only_sites(hospitals(), ("a", "d"), "these")
    with pytest.raises(ConfigError, match="digits does not say where its inputs come from"):
        only_sites(replace(hospitals(), sites=None), (), "digits")


@pytest.mark.parametrize(("site", "name", "why"), [
    (0, "cleveland", ""),
    (1, "va", ""),
    (1, "cleveland", "its name is 'cleveland', the preset says 'va'"),
    (0, "", "its name is '', the preset says 'cleveland'"),
    (2, "berlin", "it has a name, 'berlin', data of its own"),
])  # fmt: skip
def test_a_site_that_says_it_is_another_hospital_is_left_out(site, name, why):
    settings = DataSettings(name="heart", sites="cleveland, va")
    facts = SiteFacts(site, (31,), CLASSES, 1, 0, 1, 1, "0" * 64, name=name)
    assert preset_mismatch(facts, settings) == why
