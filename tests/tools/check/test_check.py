"""`fedapp check` says what a site's administrator must mend, and how, and its code says whether."""

import io
import re
import socket
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from rich.console import Console
from typer.testing import CliRunner

from fedapp.cli import app
from fedapp.core.errors import ConfigError
from fedapp.core.settings import PrivacySettings
from fedapp.learn.networks import build_model
from fedapp.learn.networks.encoder import EncoderSettings
from fedapp.learn.networks.mlp import MLPSettings
from fedapp.methods import method_class
from fedapp.site.terms import TermError, Terms
from fedapp.tools.check import machine
from fedapp.tools.check.check import Options, _refused, check
from fedapp.tools.check.inputs import encoder_hint
from fedapp.tools.check.remarks import SHOWN
from tests.own import CLASSES, agreed, experiment, image, table, text, three_sites


@pytest.fixture(autouse=True)
def roomy(monkeypatch):
    """A machine with a GPU's notes out of the way and a disk of known size."""
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda path: SimpleNamespace(free=10**10))
    monkeypatch.setattr(machine, "gpu", lambda device: ("a GPU", []))


def said(data: Path, **options) -> tuple[int, str]:
    options = {"experiment": experiment(data), "site_name": "north", **options}
    screen = io.StringIO()
    code = check(data, Options(**options), Console(file=screen, width=100))
    return code, screen.getvalue()


def findings(output: str, kind: str = "fault") -> list[str]:
    """Each finding as one line: what, then the remedy."""
    lines = output.splitlines()
    return [
        f"{line.removeprefix(kind).strip()} | {lines[number + 1].strip()}"
        for number, line in enumerate(lines)
        if line.startswith(f"{kind} ") and lines[number + 1].startswith("      ")
    ]


def row(output: str, name: str) -> list[str]:
    [line] = [line for line in output.splitlines() if line.startswith(f"│ {name} ")]
    return [cell.strip() for cell in line.strip("│").split("│")][1:]


def test_a_fit_site(tmp_path):
    code, output = said(three_sites(tmp_path) / "west", site_name="west")
    assert code == 0 and findings(output) == []
    rare = "class 'nought': no training images | give it some in the column split"
    few, *rest = findings(output, "note")
    assert few.startswith("labels are too few to tell whether nearly all images are of class 'two'")
    assert rest == [rare]
    assert "no fault: this site can join" in output
    assert row(output, "all")[1:3] == ["15", "30"]
    assert "8 x 8 pixels" in output and "10.0 GB free" in output and "a GPU" in output


def test_counts_are_what_a_run_deals(tmp_path):
    from fedapp.site.federation import federation_of

    three_sites(tmp_path)
    data = federation_of(experiment(tmp_path)).dealt.site(1)
    _, output = said(tmp_path / "north")
    dealt = [len(data.labels) + len(data.unlabelled), len(data.val), len(data.test)]
    assert row(output, "all")[:3] == [str(count) for count in dealt]
    assert row(output, "(no label)")[0] == str(len(data.unlabelled))


def test_small_counts_are_hidden_and_cannot_be_computed(tmp_path):
    lines = [f"{k}.png,{'one' if k < 9 else 'two'},train" for k in range(12)]
    table(tmp_path, *lines, "v.png,one,val", "t.png,one,test", header="path,label,split")
    _, output = said(tmp_path, hide_below=5)
    assert row(output, "one") == ["9", "< 5", "< 5", "-"]
    assert row(output, "two") == ["< 5", "0", "0", "-"]
    assert row(output, "all") == ["-", "-", "-", "-"]
    assert row(said(tmp_path)[1], "all") == ["12", "1", "1", "14"]


def test_every_fault_has_its_line_and_its_remedy(tmp_path):
    lines = [f"{k}.png,one" for k in range(20)]
    file = table(tmp_path, *lines)
    (tmp_path / "3.png").write_bytes(b"no image")
    image(tmp_path / "4.png", 4, size=(10, 12))
    with file.open("a") as more:
        more.write("gone.png,two\nx.png,tow\n")
    image(tmp_path / "x.png", 99)
    code, output = said(tmp_path)
    assert code == 1 and "3 faults: this site cannot join yet" in output
    strange, gone, damaged = sorted(findings(output), key=lambda line: "tow" not in line)
    assert strange == (
        "labels.csv, line 23: label 'tow' is not in data.classes (nought, one, two) | "
        "did you mean 'two'?"
    )
    assert gone.startswith("labels.csv, line 22: gone.png: no such file | correct the path")
    assert damaged.startswith("3.png: damaged or not an image | ")
    assert damaged.endswith("| replace it by a whole copy or remove it")


HEADER = "path,label,split,group"


@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        (["a.png,one,train,", "b.png,two,train,"],
         "the same image, labelled 'one' and 'two': a.png, b.png | keep the one with the right "
         "label"),
        (["a.png,one,train,", "b.png,one,test,"],
         "the same image in test and train: a.png, b.png | keep one, or give all of them one "
         "split: the column split is taken as it is"),
        (["a.png,,train,", "b.png,one,test,"],
         "the same image in test and train: a.png, b.png | keep one, or give all of them one "
         "split: the column split is taken as it is"),
    ],
)  # fmt: skip
def test_images_that_are_there_twice(tmp_path, lines, fault):
    table(tmp_path, "v.png,one,val,", "t.png,one,test,", "r.png,one,train,", *lines, header=HEADER)
    (tmp_path / "b.png").write_bytes((tmp_path / "a.png").read_bytes())
    code, output = said(tmp_path)
    assert code == 1 and findings(output) == [fault]


def test_copies_in_one_part_of_the_sites_own_split_are_noted(tmp_path):
    table(tmp_path, *(f"{n}.png,one,{n}" for n in ("train", "val", "test")), "b.png,one,train",
          header="path,label,split")  # fmt: skip
    (tmp_path / "b.png").write_bytes((tmp_path / "train.png").read_bytes())
    code, output = said(tmp_path)
    assert code == 0
    assert (
        "2 of 4 images have an equal copy among them | (b.png, train.png); every copy counts; "
        "remove those that you do not want"
    ) in findings(output, "note")


def test_copies_are_dealt_together_and_counted(tmp_path):
    """Three equal images of two patients, one saved anew; the table shows them in one part."""
    lines = [f"{k}.png,one,p{k}" for k in range(20)]
    table(tmp_path, *lines, "x.png,two,q0", "y.png,two,q1", "z.png,two,q1",
          header="path,label,group")  # fmt: skip
    with Image.open(tmp_path / "x.png") as opened:
        opened.save(tmp_path / "y.png", compress_level=0)
        opened.save(tmp_path / "z.png", compress_level=0)
    code, output = said(tmp_path)
    notes = findings(output, "note")
    assert code == 0
    assert (
        "3 of 23 images have an equal copy among them | equal images are dealt together, to one "
        "part; every copy counts; remove those that you do not want"
    ) in notes
    assert (
        "the same image in 2 groups: x.png, y.png, z.png | they are dealt as one group; keep one "
        "image if they are one patient's"
    ) in notes
    assert sorted(row(output, "two")) == ["0", "0", "3", "3"]
    assert "< 5 of 23 images have an equal copy" in said(tmp_path, hide_below=5)[1]


def test_a_class_that_is_not_in_every_part_is_named(tmp_path):
    table(tmp_path, *(f"{k}.png,one" for k in range(60)), "x.png,two", "y.png,two")
    _, output = said(tmp_path)
    [rare] = [note for note in findings(output, "note") if note.startswith("class 'two'")]
    assert rare == (
        "class 'two': no validation images | it has 2 groups (patients, or images without one), "
        "and needs 3 that are mostly of this class; label more"
    )
    assert "no labelled images of class 'nought'" in output
    hidden = said(tmp_path, hide_below=5)[1]
    assert "it has < 5 groups" in hidden


@pytest.mark.parametrize(("others", "hide_below", "noted"), [
    (0, 0, True), (10, 0, True), (10, 20, False), (30, 0, False),
])  # fmt: skip
def test_a_site_of_nearly_one_class_is_told_what_to_compare(tmp_path, others, hide_below, noted):
    """With 10 of 100 images of other classes the commoner one is hard to beat; with 30 it is not.

    Where the others must be hidden nothing is said of them.
    """
    rows = [f"{k}.png,{'two' if k < others else 'one'}" for k in range(100)]
    table(tmp_path, *rows)
    output = said(tmp_path, hide_below=hide_below)[1]
    assert ("nearly all labelled training images are of class 'one'" in output) == noted


@pytest.mark.parametrize(("ones", "others", "noted"), [(3, 1, True), (14, 6, True), (12, 8, False)])
def test_with_few_labels_a_site_is_told_that_they_cannot_tell(tmp_path, ones, others, noted):
    """Wilson's interval of 3 of 4 ends at 95 %, of 14 of 20 at 85.5, of 12 of 20 at 78.

    85 % count as nearly all. All these labels are for training, by a column split.
    """
    rows = [f"{k}.png,{'one' if k < ones else 'two'},train" for k in range(ones + others)]
    table(tmp_path, *rows, header="path,label,split")
    output = said(tmp_path)[1]
    assert ("labels are too few to tell whether nearly all images are" in output) == noted


@pytest.mark.parametrize(
    ("hide_below", "says"), [(0, "it has 1 group ("), (5, "it has < 5 groups (")]
)
def test_one_group_is_one_and_a_hidden_one_is_not_told_apart(tmp_path, hide_below, says):
    table(tmp_path, *(f"{k}.png,one" for k in range(60)), "x.png,two")
    assert says in said(tmp_path, hide_below=hide_below)[1]


def test_how_sure_an_accuracy_will_be(tmp_path):
    """60 images of one class: 12 for testing; Wilson's interval of 10 of 12 is 55.2 to 95.3 %."""
    table(tmp_path, *(f"{k}.png,one" for k in range(60)))
    _, output = said(tmp_path)
    assert "of 12 test images; 10 right would mean 55 to 95 % (95 % interval)" in output
    assert "fewer than 20 test images" in output
    assert "test images;" in said(tmp_path, hide_below=12)[1]
    assert "test images;" not in said(tmp_path, hide_below=13)[1]


def test_classes_with_few_test_images_are_named(tmp_path):
    """Of 60, 20 and 5 images 12, 4 and 1 are for testing; Wilson's interval of 4 of 4 is 51 %."""
    names = ["one"] * 60 + ["two"] * 20 + ["nought"] * 5
    table(tmp_path, *(f"{k}.png,{name}" for k, name in enumerate(names)))
    few = [note for note in findings(said(tmp_path)[1], "note") if "test images of" in note]
    assert few == [
        "fewer than 5 test images of class 'nought', 'two' | nothing can be said of these by "
        "themselves: 4 of 4 right is 51 to 100 %; label more"
    ]
    hidden = said(tmp_path, hide_below=20)[1]
    assert "fewer than 20 test images of class 'nought', 'one', 'two'" in hidden


def test_with_enough_of_every_class_nothing_is_said(tmp_path):
    """The degenerate identity: 20 test images, 40 of each class, no copies."""
    lines = [f"{k}.png,{CLASSES[k % 3]}" for k in range(120)]
    table(tmp_path, *lines)
    code, output = said(tmp_path, experiment=experiment(tmp_path, data=agreed(image_size=8)))
    said_of = [note for note in findings(output, "note") if "longer than wide" not in note]
    assert code == 0 and said_of == []


@pytest.mark.parametrize(
    ("lines", "code", "words"),
    [
        (["a.png,one"], 1, "fault no test images"),
        (["a.png,one", "b.png,one"], 1, "fault no validation images"),
        (["a.png,", "b.png,"], 0, "note  no labels: no validation and no test images"),
    ],
)
def test_splits_that_would_be_empty(tmp_path, lines, code, words):
    table(tmp_path, *lines)
    found, output = said(tmp_path)
    assert found == code and words in output


def test_a_site_may_have_labels_for_testing_alone(tmp_path):
    table(tmp_path, "a.png,one,test", "b.png,,train", header="path,label,split")
    code, output = said(tmp_path)
    assert code == 0 and findings(output) == []
    notes = [note.partition(" | ")[0] for note in findings(output, "note")]
    assert {"no labelled training images", "no validation images"} <= {*notes}


def test_no_training_images(tmp_path):
    table(tmp_path, "a.png,one,test", "b.png,one,val", header="path,label,split")
    code, output = said(tmp_path)
    assert code == 1
    assert findings(output) == ["no training images | add images, or change the column split"]


def test_odd_images_are_noted(tmp_path):
    for k in range(3):
        image(tmp_path / "unlabelled" / f"{k}.png", k, "RGB", (40, 8 + k))
    (tmp_path / "unlabelled" / "scan.nii").touch()
    wanted = experiment(tmp_path, data=agreed(image_size=32))
    code, output = said(tmp_path, experiment=wanted)
    assert code == 0
    notes = [note.partition(" | ")[0] for note in findings(output, "note")]
    assert notes[:3] == [
        "all images are in colour",
        "all images are smaller than 32 x 32 pixels",
        "all images are longer than wide or wider than long by over 10 %",
    ]
    assert "1 file ignored, by ending: .nii (1)" in notes
    assert "3 sizes from 40 x 8 to 40 x 10 pixels" in output


@pytest.mark.parametrize(("images", "says"), [
    ([(32, False)] * 2 + [(8, True)], "images in colour"),
    ([(31, False)], ""),
    ([(64, True), (64, False)], "large grey images"),
    ([(28, True)] * 9 + [(900, True)], ""),  # hog is ahead there
    ([], ""),
])  # fmt: skip
def test_for_which_images_an_encoder_is_hinted_at(images, says):
    found = encoder_hint(images)
    assert (found is not None) == bool(says)
    assert found is None or (found[0].startswith(says) and "fedapp[encoder]" in found[1])


def test_photographs_are_told_of_an_encoder_with_a_preset_or_without(tmp_path):
    for k in range(3):
        image(tmp_path / "unlabelled" / f"{k}.png", k, "RGB", (40, 40))
    for wanted in (None, experiment(tmp_path, data=agreed(image_size=32, channels=3))):
        assert "try a network trained on photographs first" in said(tmp_path, experiment=wanted)[1]


def test_many_faults_of_a_kind_are_cut_short(tmp_path):
    text(tmp_path, "path,label\n" + "".join(f"{k}.png,one\n" for k in range(SHOWN + 7)))
    code, output = said(tmp_path)
    assert code == 1 and len(findings(output)) == SHOWN + 1
    assert findings(output)[-1].startswith("7 more: it has images that are absent")


def test_a_class_may_look_like_markup(tmp_path):
    image(tmp_path / "labelled" / "[red]" / "a.png")
    _, output = said(tmp_path, experiment=None)
    assert row(output, "[red]")[3] == "1"
    assert "no preset named" in output


def test_without_its_name_a_site_is_told_that_the_split_is_another(tmp_path):
    three_sites(tmp_path)
    assert "no site named" in said(tmp_path / "north", site_name="")[1]
    assert "no site named" not in said(tmp_path / "west", site_name="")[1]  # has its own split


# --- the machine ----------------------------------------------------------------------------------


def test_a_small_disk(tmp_path, monkeypatch):
    three_sites(tmp_path)
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda path: SimpleNamespace(free=5))
    code, output = said(tmp_path / "west", store_path=tmp_path / "new" / "store")
    assert code == 1
    [found] = findings(output)
    assert found.startswith(f"{tmp_path}: 5 B free, ") and "store-path" in found


def test_noise_needs_a_library(tmp_path, monkeypatch):
    three_sites(tmp_path)
    noisy = experiment(tmp_path / "west", privacy=PrivacySettings(epsilon=1.0, delta=1e-5))
    options = {"site_name": "west", "experiment": noisy}
    code, output = said(tmp_path / "west", **options)
    assert "accounted for by dp_accounting" in output and "not installed" not in output
    monkeypatch.setitem(sys.modules, "dp_accounting", None)  # as if it were not there
    code, output = said(tmp_path / "west", **options)
    assert code == 1
    assert any("dp_accounting is not installed" in line and "pip install" in line
               for line in findings(output))  # fmt: skip


def test_a_server_that_answers_and_one_that_does_not(tmp_path):
    three_sites(tmp_path)
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
        closed = said(tmp_path / "west", server=f"127.0.0.1:{port}")
        server.listen()
        opened = said(tmp_path / "west", server=f"127.0.0.1:{port}")
    assert opened[0] == 0 and f"127.0.0.1:{port} answers" in opened[1]
    assert closed[0] == 1
    assert findings(closed[1]) == [
        f"server 127.0.0.1:{port}: nothing listens there | check the port, and that the server runs"
    ]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (socket.gaierror(), "no such host name"),
        (TimeoutError(), "silent for 5 s"),
        (OSError(101, "Network is unreachable"), "Network is unreachable"),
    ],
)
def test_a_server_that_cannot_be_reached(monkeypatch, error, words):
    def refuse(*arguments):
        raise error

    monkeypatch.setattr(machine.socket, "create_connection", refuse)
    _, [found] = machine.reach("a.example:9092")
    assert found.fault and found.what == f"server a.example:9092: {words}" and found.remedy


@pytest.mark.parametrize("server", ["host", "host:", ":1", "host:x", "host:0", "host:70000", "h:²"])
def test_a_server_must_be_host_and_port(server):
    with pytest.raises(ConfigError, match="must be host:port"):
        machine.reach(server)


# --- as a command ---------------------------------------------------------------------------------


def test_as_a_command(tmp_path):
    three_sites(tmp_path)
    words = ["check", str(tmp_path / "west"), "--preset", "own_data", "--site-name", "west"]
    agreed_upon = ["data.image_size=8", "data.classes=nought,one,two"]
    result = CliRunner().invoke(app, [*words, *agreed_upon])
    assert result.exit_code == 0, result.output
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 1 and "is not in data.classes" in result.output
    (tmp_path / "site.yaml").write_text("networks: [mlp]\n")
    with_terms = [*words, *agreed_upon, "--site-folder", str(tmp_path)]
    result = CliRunner().invoke(app, with_terms)
    assert (
        result.exit_code == 1
        and "(networks): model.name = 'resnet9' is none of mlp" in result.output
    )
    (tmp_path / "site.yaml").write_text("networks: [resnet9]\n")
    assert CliRunner().invoke(app, with_terms).exit_code == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--preset", "digits_demo"], "its images are not the sites' own"),
        (["--preset", "own_data", "--site-name", "nroth"], "not in the preset's data.sites"),
    ],
)
def test_misuse_is_told_at_once(tmp_path, words, said):
    result = CliRunner().invoke(app, ["check", str(tmp_path), *words])
    assert isinstance(result.exception, ConfigError) and said in str(result.exception)


# --- the site's own terms -------------------------------------------------------------------------


def refusal(broken: Terms, agreed_upon) -> str:
    """What a run of these settings is told at run time."""
    with pytest.raises(TermError) as told:
        broken.check_run(agreed_upon, "mine")
    return str(told.value)


def test_what_the_terms_would_refuse_of_the_preset_is_a_fault_in_the_words_of_a_run(tmp_path):
    """A network that the site does not allow; without terms, and with terms that allow it, none."""
    data = three_sites(tmp_path) / "west"
    broken = Terms(networks=["mlp"])
    code, output = said(data, site_name="west", terms=broken)
    [line] = findings(output)
    told = refusal(broken, experiment(data))
    assert told == "this site's terms (networks): model.name = 'resnet9' is none of mlp"
    assert code == 1 and line.startswith(f"{told} | the site would refuse every run of this preset")
    for kind in (None, Terms(), Terms(networks=["resnet9"], runs=["a*"], hours="00:00-00:01")):
        assert said(data, site_name="west", terms=kind)[0] == 0


def test_every_broken_term_is_named_once_and_none_without_a_preset(tmp_path):
    data = three_sites(tmp_path) / "west"
    broken = Terms(methods=["fedavg"], networks=["mlp"], leaves=["numbers"], rounds_at_most=1,
                   masked_only=True, epsilon_at_most=3)  # fmt: skip
    _, output = said(data, site_name="west", terms=broken, said={"data.root": "/elsewhere"})
    terms = re.findall(r"terms \((\w+)\)", " ".join(findings(output)))
    assert terms == ["folders", "methods", "networks", "rounds_at_most", "masked_only",
                     "epsilon_at_most", "leaves"]  # fmt: skip
    assert "terms" not in said(data, experiment=None, terms=broken)[1]


@pytest.mark.parametrize(("delta", "images", "says"), [
    (1e-5, 100_000, ""), (1e-5, 100_001, "more than one in the number of images here"),
    (0.1, 5, "is more than 1e-05"),
])  # fmt: skip
def test_a_delta_is_compared_with_the_number_of_the_sites_images(delta, images, says):
    noisy = experiment(Path(), privacy=PrivacySettings(epsilon=1.0, delta=delta))
    network = build_model(noisy.model, noisy.data.inputs, len(noisy.data.names))
    found = [one.what for one in _refused(Terms(epsilon_at_most=3), noisy, network, {}, images)]
    assert len(found) == bool(says) and all(says in what for what in found)


# --- bags -----------------------------------------------------------------------------------------


def bags(folder: Path, *shares: str) -> Path:
    """Write two bags of three images, and one of one class."""
    lines = [f"{bag}{n}.png,,{bag}," for bag in ("mon", "tue") for n in range(3)]
    lines += [*(f"wed{n}.png,,wed," for n in range(2)), "a.png,one,,val", "b.png,two,,test"]
    table(folder, *lines, header="path,label,bag,split")
    wanted = shares or ("mon,0.5,0.5,0", "tue,0.2,0,0.8", "wed,0,1,0")
    (folder / "bags.csv").write_text("\n".join(("bag,nought,one,two", *wanted)) + "\n")
    return folder


def with_method(data: Path, name: str) -> dict[str, object]:
    return {"experiment": experiment(data, method=method_class(name)())}


def test_a_site_with_bags(tmp_path):
    code, output = said(bags(tmp_path), **with_method(tmp_path, "fedul"))
    assert code == 0 and findings(output) == []
    assert row(output, "(in a bag)") == ["8", "0", "0", "8"]
    assert "3 of 2 to 3 images; condition number 2.73" in output


def test_bags_that_are_wrong(tmp_path):
    code, output = said(bags(tmp_path, "mon,0.5,0.5,0.5"), **with_method(tmp_path, "fedul"))
    assert code == 1
    assert findings(output)[0] == (
        "bags.csv, line 2: the proportions of bag 'mon' sum to 1.5, must sum to 1 | divide the "
        "number of images of each class by that of all images in the bag"
    )


def test_a_method_that_does_not_use_bags_and_bags_that_are_alike(tmp_path):
    alike = ("mon,0.334,0.333,0.333", "tue,0.333,0.334,0.333", "wed,0.3,0.3,0.4")
    code, output = said(bags(tmp_path, *alike))
    assert code == 1
    assert findings(output) == [
        "images in bags, but method.name = 'um_pfssl' does not use them | have the preset's method "
        "changed to fedllp or fedpl or fedul"
    ]
    assert any("much alike" in line for line in findings(output, "note"))


def test_a_bag_whose_images_are_set_aside_teaches_nothing(tmp_path):
    """All of wed's images are of a patient who is tested; so are all labelled ones."""
    lines = [f"{bag}{n}.png,,{bag}," for bag in ("mon", "tue") for n in range(3)]
    lines += [f"wed{n}.png,,wed,ann" for n in range(2)] + [f"a{n}.png,one,,ann" for n in range(3)]
    table(tmp_path, *lines, header="path,label,bag,group")
    shares = ("bag,nought,one,two", "mon,0.5,0.5,0", "tue,0.2,0,0.8", "wed,0,1,0")
    (tmp_path / "bags.csv").write_text("\n".join(shares) + "\n")
    whole = with_method(tmp_path, "fedul")["experiment"]
    split = replace(whole.split, train_share=0.01, val_share=0.01)
    _, output = said(tmp_path, experiment=replace(whole, split=split))
    assert (
        "where a patient is tested, images in bags are set aside; then there are 2 bags, but 3 "
        "classes in them | keep patients who are tested out of the bags"
    ) in findings(output)


def test_sizes_of_bags_are_hidden_as_other_counts(tmp_path):
    _, output = said(bags(tmp_path), hide_below=5, **with_method(tmp_path, "fedul"))
    assert "3 of < 5 images; condition" in output


def test_two_rows_of_a_table_may_have_the_same_numbers(tmp_path):
    """Two patients with equal values: a fault kept the hospital out. Of embeddings it is one."""
    rows = np.random.default_rng(0).normal(size=(12, 3)).astype(np.float32)
    rows[0] = rows[2]  # in train and in val
    part = np.array(["train", "test", "val", "train"] * 3)
    labels = np.array(["one", "two"] * 6)
    for encoder, code in (("", 0), ("ink", 1)):
        arrays = {"ids": np.arange(12), "vectors": rows, "labels": labels, "split": part}
        if encoder:
            arrays["encoder"] = np.array(encoder)
        np.savez(tmp_path / "vectors.npz", **arrays)
        settings = agreed(
            classes="one, two", image_size=0, channels=0, vector_size=3, encoder=encoder
        )
        found, output = said(
            tmp_path, experiment=experiment(tmp_path, data=settings, model=MLPSettings())
        )
        assert found == code, output
        line = "the same numbers in train and val: 0, 2" if not code else "the same image in train"
        kind = "fault" if code else "note"
        assert any(one.startswith(line) for one in findings(output, kind))


def test_equal_rows_are_named_unless_their_count_is_hidden(tmp_path):
    rows = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    rows[7], rows[21] = rows[4], rows[20]
    ids = np.array([f"line {n + 2}" for n in range(40)])
    labels = np.array(["one", "one", "two", "two"] * 10)
    labels[7], labels[21] = labels[4], labels[20]
    np.savez(tmp_path / "vectors.npz", ids=ids, vectors=rows, labels=labels)
    settings = agreed(classes="one, two", image_size=0, channels=0, vector_size=3)
    options = {"experiment": experiment(tmp_path, data=settings, model=MLPSettings())}
    named = "(line 22, line 23), (line 6, line 9); equal rows are dealt together"
    assert f"4 of 40 rows have an equal copy among them | {named}" in " ".join(
        findings(said(tmp_path, **options)[1], "note")
    )
    assert "line 9" not in said(tmp_path, hide_below=5, **options)[1]


def test_missing_weights_are_one_fault_and_the_data_are_still_looked_at(tmp_path):
    three_sites(tmp_path)
    (tmp_path / "east" / "labelled" / "x").mkdir(parents=True)
    image(tmp_path / "east" / "labelled" / "x" / "odd.png")
    lacking = EncoderSettings(weights="none.safetensors", weights_sha256="0" * 64)
    preset = experiment(tmp_path, model=lacking)
    code, output = said(tmp_path / "east", site_name="east", experiment=preset, terms=Terms())
    faults = " ".join(findings(output))
    assert code == 1 and "images of class" in output and "label 'x' is not in" in faults
    assert "model.weights = 'none.safetensors': cannot be read" in faults


def test_a_server_may_be_given_as_a_web_address(monkeypatch):
    asked = []
    monkeypatch.setattr(
        machine.socket, "create_connection", lambda to, _: asked.append(to) or io.StringIO()
    )
    for server in (
        "fl.example.org:8443",
        "https://fl.example.org:8443",
        "https://fl.example.org:8443/",
    ):
        said, found = machine.reach(server)
        assert said.startswith("fl.example.org:8443 answers") and not found
    assert set(asked) == {("fl.example.org", 8443)}
