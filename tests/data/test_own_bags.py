"""A site's own bags: how they are written down, read, and what is said where they are wrong."""

import pytest

from fedapp.core.errors import ConfigError
from fedapp.core.settings import SplitSettings
from fedapp.data.own import Kind, OwnDataError, list_own
from fedapp.data.sites import Bags
from fedapp.experiment.config import load_experiment
from fedapp.site.federation import federation_of
from tests.flower.results import loopback, rows
from tests.own import CLASSES, NAMES, agreed, experiment, read_site, table, three_sites

LINES = ("a.png,mon", "b.png,mon", "c.png,tue", "d.png,wed")
SHARES = "bag,nought,one,two\nmon,0.5,0.5,0\ntue,0,1,0\nwed,0,0.25,0.75\n"


def site(folder, shares=SHARES, lines=LINES):
    table(folder, *lines, header="path,bag")
    if shares is not None:
        (folder / "bags.csv").write_text(shares)
    return folder


def read(folder):
    return read_site(folder, agreed(), "east", split=SplitSettings(num_clients=3))


def bags_of(data):
    known = data.parts["bags"].supervision
    assert isinstance(known, Bags)
    return known


def test_a_table_of_bags_and_one_of_their_proportions(tmp_path):
    listing = list_own(site(tmp_path), CLASSES)
    assert listing.faults == ()
    assert [(entry.name, entry.bag) for entry in listing.entries] == [
        ("a.png", "mon"), ("b.png", "mon"), ("c.png", "tue"), ("d.png", "wed"),
    ]  # fmt: skip
    assert listing.bags == {"mon": (0.5, 0.5, 0), "tue": (0, 1, 0), "wed": (0, 0.25, 0.75)}


def test_classes_may_stand_in_another_order_and_proportions_are_rounded(tmp_path):
    shares = "bag,two,nought,one\nmon,.333,.333,.333\ntue,0,0,1\nwed,1,0,0\n"
    listing = list_own(site(tmp_path, shares), CLASSES)
    assert listing.faults == ()
    assert listing.bags["wed"] == (0, 0, 1)
    assert listing.bags["mon"] == pytest.approx((1 / 3,) * 3, rel=1e-12)


def test_two_digits_of_each_proportion_are_enough_and_no_more_is_forgiven(tmp_path):
    """2/3, 1/6, 1/6 sum to 1.01; three classes may miss 1 by 0.015."""
    shares = SHARES.replace("mon,0.5,0.5,0", "mon,0.67,0.17,0.17")
    listing = list_own(site(tmp_path, shares), CLASSES)
    assert listing.faults == () and sum(listing.bags["mon"]) == pytest.approx(1, abs=1e-12)
    for total, faults in ((0.985, 0), (1.015, 0), (0.984, 1), (1.016, 1)):
        shares = SHARES.replace("mon,0.5,0.5,0", f"mon,0.5,{total - 0.5:.3f},0")
        assert len(list_own(site(tmp_path, shares), CLASSES).faults) == faults, total


def test_a_byte_order_mark_and_windows_line_ends_are_read(tmp_path):
    plain = list_own(site(tmp_path), CLASSES)
    for name in ("labels.csv", "bags.csv"):
        text = (tmp_path / name).read_text().replace("\n", "\r\n")
        (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert list_own(tmp_path, CLASSES) == plain


def test_a_class_may_be_called_bag(tmp_path):
    site(tmp_path, "bag,bag,shoe\nmon,0,1\ntue,1,0\nwed,0.5,0.5\n")
    listing = list_own(tmp_path, ("shoe", "bag"))
    assert listing.faults == () and listing.bags["mon"] == (1, 0)


def test_what_a_site_then_has(tmp_path):
    """Bags by name; labelled images beside them are for training, validation and testing."""
    lines = [*(f"{name},,{bag}" for name, bag in (line.split(",") for line in LINES))]
    lines += [f"{name}{k}.png,{name}," for name in CLASSES for k in range(5)]
    table(tmp_path, *lines, "u.png,,", header="path,label,bag")
    (tmp_path / "bags.csv").write_text(SHARES)
    data = read(tmp_path)
    assert bags_of(data).bag.tolist() == [0, 0, 1, 2]
    assert bags_of(data).proportions.tolist() == [[0.5, 0.5, 0], [0, 1, 0], [0, 0.25, 0.75]]
    assert len(data.unlabelled) == 1 and len(data.labels) and len(data.test)
    assert len(data.labels) + len(data.val) + len(data.test) == 15
    assert data.audit is None


@pytest.mark.parametrize(("shares", "said"), [
    (None, "names bags, but there is no bags.csv beside it: write it, and begin it with the line"),
    ("", "bags.csv: empty: begin it with the line bag,nought,one,two"),
    ("name,nought,one,two\n", "line 1: no column 'bag' in the first place: begin the first line"),
    (SHARES.replace("two", "to", 1), "line 1: class 'to' is not in data.classes (nought, one,"),
    (SHARES.replace(",two", ""), "line 1: no column of class 'two': add it, with 0 where a bag"),
    (SHARES.replace("one", "two"), "bags.csv, line 1: no column of class 'one': add it"),
    (SHARES.replace("bag,", "bag,one,"), "bags.csv, line 1: class 'one' stands twice: keep one"),
    (SHARES.replace("0.25", "0.15"), "line 4: the proportions of bag 'wed' sum to 0.9, must sum"),
    (SHARES.replace("0.25", "few"), "line 4: proportion 'few' of class 'one': write a number from"),
    (SHARES.replace("0.25", "nan"), "bags.csv, line 4: proportion 'nan' of class 'one': write"),
    (SHARES.replace("0.5,0.5,0", "1.5,-0.5,0"), "bags.csv, line 2: proportion '1.5' of class"),
    (SHARES.replace("0.25", ""), "bags.csv, line 4: proportion '' of class 'one': write a number"),
    (SHARES.replace(",0.75", ""), "bags.csv, line 4: 3 fields, the header has 4: write one for"),
    (SHARES + "thu,1,0,0\n", "line 5: bag 'thu' has no images: name them in the column bag of"),
    (SHARES + ",1,0,0\n", "line 5: a bag without a name: name it in the first field, or remove"),
    (SHARES.replace(",", ";"), "line 1: fields are separated by ';': save the file with commas"),
    (SHARES + "mon,1,0,0\n", "bags.csv, line 5: bag 'mon' stands twice: keep one line"),
    (SHARES.replace("tue", "Tue"), "bags.csv, line 3: bag 'Tue' has no images: name them"),
    (SHARES[:-16], "labels.csv: bag 'wed' is not in bags.csv: add a line with its proportions"),
    (SHARES.replace("0,1,0", "0.5,0.5,0"), "its 3 bags do not tell 3 classes apart: some have the "
     "proportions of others, or of others mixed ('mon' and 'tue' have the same): give more bags"),
    # The third bag is half of each of the others; in float32 that is lost in rounding.
    ("bag,nought,one,two\nmon,.7,.2,.1\ntue,.1,.2,.7\nwed,.4,.2,.4\n", "of others mixed: give"),
])  # fmt: skip
def test_what_the_proportions_may_not_be(tmp_path, shares, said):
    faults = list_own(site(tmp_path, shares), CLASSES).faults
    assert said in str(faults[0]) and "\n" not in str(faults[0])
    assert len(faults) == 1 + ("Tue" in said or "3 fields" in said)  # the bag lacks its line, too
    with pytest.raises(OwnDataError) as caught:
        read(tmp_path)
    assert "mon" not in caught.value.for_server and "bags.csv" not in caught.value.for_server


def test_fewer_bags_than_classes(tmp_path):
    site(tmp_path, "bag,nought,one,two\nmon,.2,.2,.6\ntue,.6,.2,.2\n", LINES[:3])
    [fault] = list_own(tmp_path, CLASSES).faults
    assert fault.kind == Kind.BAGS
    assert str(fault) == (
        "bags.csv: there are 2 bags, but 3 classes in them: make at least as many bags as classes, "
        "with different proportions"
    )


def test_an_image_has_a_label_or_a_bag(tmp_path):
    table(tmp_path, "a.png,one,mon", header="path,label,bag")
    [fault] = list_own(tmp_path, CLASSES).faults
    assert str(fault) == (
        "labels.csv, line 2: both a label and a bag: clear one of them: an image in a bag counts "
        "in its proportions alone"
    )


# --- a federation ---------------------------------------------------------------------------------


def bagged_sites(root):
    """Make of `three_sites` one with labels, one of whose images lie in bags, one with neither.

    north: its labels for training become bags of eight images, three of four of one class.
    """
    three_sites(root)
    north = root / "north"
    lines = [line.split(",") for line in (north / "labels.csv").read_text().splitlines()[1:]]
    known, shares = ["path,label,bag,split"], ["bag,nought,one,two"]
    by_class = {name: [path for path, label, _ in lines if label == name] for name in CLASSES}
    for name, paths in by_class.items():
        parts = zip(paths[:8], ["val", "test"] * 4, strict=True)
        known += [f"{path},{name},,{part}" for path, part in parts]
    rest = {name: paths[8:] for name, paths in by_class.items()}
    for number, name in enumerate(CLASSES * 2):
        inside = [rest[name].pop() for _ in range(6)]
        inside += [rest[other].pop() for other in CLASSES if other != name]
        known += [f"{path},,bag{number}," for path in inside]
        shares.append(f"bag{number}," + ",".join("0.75" if c == name else "0.125" for c in CLASSES))
    (north / "labels.csv").write_text("\n".join(known) + "\n")
    (north / "bags.csv").write_text("\n".join(shares) + "\n")
    return root


def test_sites_with_labels_and_with_bags_learn_together(tmp_path):
    root = bagged_sites(tmp_path / "images")
    changes = {
        "method.name": "fedul", "data.root": str(root), "data.classes": ", ".join(CLASSES),
        "data.sites": ", ".join(NAMES), "data.image_size": 8, "split.num_clients": 3,
        "model.width": 4, "model.dropout": 0.0, "training.warmup_epochs": 4,
        "training.batch_size": 16, "training.optimiser": "adam", "training.learning_rate": 0.01,
        "rounds.num_rounds": 4, "runtime.out": str(tmp_path / "runs"), "runtime.device": "cpu",
    }  # fmt: skip
    last = rows(loopback(load_experiment("own_data", changes)))[-1]
    assert last["skipped"] == {} and last["mean_test_accuracy"] > 0.6  # chance 1/3


def test_a_method_that_is_not_made_for_bags_says_so(tmp_path):
    wanted = experiment(bagged_sites(tmp_path))
    federation = federation_of(wanted)
    with pytest.raises(ConfigError, match=r"site 1 \(north\) has images in bags, .*: choose"):
        federation.site(1, wanted, None, None)
