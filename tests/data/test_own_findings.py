"""A column for each finding: what is read, how it is dealt, and what is said of every fault."""

import io
import json

import pytest
from rich.console import Console

from fedapp.core.errors import ConfigError
from fedapp.core.settings import SplitSettings
from fedapp.data.own import OwnDataError, list_own
from fedapp.data.own.train_test_split import TEST, TRAIN, deal
from fedapp.experiment.config import load_experiment
from fedapp.tools.check.check import Options, check
from tests.flower.results import loopback
from tests.own import agreed, experiment, image, read_site, table

FINDINGS = ("Effusion", "mass")
HEADER = "path,effusion,mass"
AGREED = agreed(classes="", findings="Effusion, mass")


def listed(folder, *lines, header=HEADER):
    table(folder, *lines, header=header)
    return list_own(folder, (), findings=FINDINGS)


def said(folder, *lines, header=HEADER):
    return [str(fault) for fault in listed(folder, *lines, header=header).faults]


def test_one_nought_and_nothing(tmp_path):
    found = listed(tmp_path, "a.png,1,0", "b.png,0.0,", "c.png,,1.0", "d.png,,", "e.png,1,1")
    assert found.faults == ()
    assert [entry.findings for entry in found.entries] == [
        (1, 0),
        (0, -1),
        (-1, 1),
        (-1, -1),
        (1, 1),
    ]
    labels = [entry.label for entry in found.entries]
    assert labels == ["Effusion", "none of them", "mass", "", "Effusion + mass"]


def test_a_sites_parts_hold_rows_of_findings(tmp_path):
    lines = ["a.png,1,0,train", "b.png,,1,val", "c.png,0,0,test", "d.png,,,"]
    table(tmp_path, *lines, header=f"{HEADER},split")
    data = read_site(tmp_path, AGREED)
    assert data.finds and data.num_classes == 2
    assert data.labels.tolist() == [[1, 0]]
    assert data.val_labels.tolist() == [[-1, 1]] and data.test_labels.tolist() == [[0, 0]]
    assert len(data.unlabelled) == 1


def test_a_site_without_labels_has_rows_of_none(tmp_path):
    table(tmp_path, "a.png,,", header=HEADER)
    data = read_site(tmp_path, AGREED)
    assert data.labels.shape == (0, 2) and data.finds


def test_images_are_dealt_by_what_they_show(tmp_path):
    rows = [f"{k}.png,{int(k % 3 == 0)},{int(k % 5 == 0)}" for k in range(60)]
    entries = listed(tmp_path, *rows).entries
    parts = deal(entries, SplitSettings(), 0, "east")
    both = [part for entry, part in zip(entries, parts, strict=True) if entry.findings == (1, 1)]
    assert len(both) == 4 and {TRAIN, TEST} <= set(both)


@pytest.mark.parametrize(("header", "line", "expected"), [
    ("path,effusion", "a.png,1",
     "line 1: no column of finding 'mass': add it, with nothing where it was not read"),
    ("path,effusion,mas", "a.png,1,0", "no column of finding 'mass'"),
    ("path,effusion,mass,oedema", "a.png,1,0,1", "column 'oedema': remove it; columns must be"),
    ("path,label,effusion,mass", "a.png,x,1,0", "column 'label'"),
    (HEADER, "a.png,-1,0",
     "labels.csv, line 2: '-1' of finding 'Effusion': write 1 (there), 0 (not there) or nothing"),
    (HEADER, "a.png,nan,0", "'nan' of finding 'Effusion'"),
    (HEADER, "a.png,yes,0", "'yes' of finding 'Effusion'"),
    (f"{HEADER},split", "a.png,,,test", "split 'test' of an image without a label"),
    ("effusion,mass", "1,0", "no column 'path'"),
])  # fmt: skip
def test_what_is_wrong_is_said_in_a_line(tmp_path, header, line, expected):
    image(tmp_path / "a.png")
    (tmp_path / "labels.csv").write_text(f"{header}\n{line}\n")
    [fault] = list_own(tmp_path, (), findings=FINDINGS).faults
    assert expected in str(fault) and len(str(fault).splitlines()) == 1


def test_folders_cannot_say_findings(tmp_path):
    image(tmp_path / "labelled" / "mass" / "a.png")
    [fault] = list_own(tmp_path, (), findings=FINDINGS).faults
    assert "no labels.csv: write one: path,Effusion,mass, and 1, 0 or nothing" in str(fault)


def test_the_server_is_told_of_no_file(tmp_path):
    table(tmp_path, "a.png,2,0", header=HEADER)
    with pytest.raises(OwnDataError) as error:
        read_site(tmp_path, AGREED)
    assert "a.png" not in error.value.for_server and "data.findings" in error.value.for_server


@pytest.mark.parametrize(("changes", "rule"), [
    ({"data.classes": "a, b"}, "has no effect beside findings"),
    ({"data.classes": "", "data.findings": "mass, mass"}, "'mass' stands twice"),
    ({"data.classes": "", "data.findings": "mass, Path"}, "'Path' is a column of its own"),
    ({"data.classes": "", "data.findings": "mass, Mass"}, "is a column of its own"),
    ({"data.classes": "", "method.preset": "um_pfssl"}, "cannot learn findings"),
])  # fmt: skip
def test_settings_that_do_not_go_together_are_refused(changes, rule):
    with pytest.raises(ConfigError, match=rule):
        load_experiment("own_data", {"data.findings": "effusion, mass", **changes})


def test_findings_of_a_published_set_are_refused():
    with pytest.raises(ConfigError, match="each image has one class: drop it"):
        load_experiment("digits_demo", {"method.preset": "fedavg", "data.findings": "a"})


def three(root):
    """Write three sites: dark images show a mass, and images of two halves an effusion."""
    for site in ("east", "north", "west"):
        rows = []
        for k in range(36):
            image(root / site / f"{k}.png", 40 + 30 * (k % 2) + k)
            rows.append(f"{k}.png,{'' if k % 7 == 0 else int(k % 3 == 0)},{k % 2}")
        (root / site / "labels.csv").write_text("\n".join([HEADER, *rows]) + "\n")
    return root


def test_a_run_on_own_findings_and_its_check(tmp_path):
    wanted = experiment(
        three(tmp_path / "sites"),
        data=agreed(classes="", findings="Effusion, mass", root=str(tmp_path / "sites")),
        method=load_experiment("digits_demo", {"method.preset": "fedavg"}).method,
        runtime__out=str(tmp_path / "runs"),
    )
    summary = json.loads((loopback(wanted) / "summary.json").read_text())
    assert [row["class"] for row in summary["by_class"]] == ["Effusion", "mass"]
    assert all(0 < row["read"] for row in summary["by_class"])
    out = io.StringIO()
    options = Options(experiment=wanted, site_name="east", store_path=tmp_path)
    assert check(tmp_path / "sites" / "east", options, Console(file=out, width=120)) == 0
    text = out.getvalue()
    assert "no Effusion" in text and "no mass" in text and "this site can join" in text
    (tmp_path / "sites" / "east" / "labels.csv").write_text("path,effusion\n1.png,1\n")
    assert check(tmp_path / "sites" / "east", options, Console(file=out, width=120)) == 1
    assert "no column of finding 'mass'" in out.getvalue()
