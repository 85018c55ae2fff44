"""Sites with data of their own: no file, patient or label of theirs is in what the server gets."""

import logging

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict

from client_app import refusals
from client_app.answering import SiteWork
from client_app.resident.frames import Frame
from fedapp.data.own import Place
from fedapp.protocol import flower_records
from fedapp.protocol.codec import encode
from fedapp.protocol.messages import Hello, Refusal
from fedapp.site import federation
from tests.flower.grids import MemoryGrid, node, origin_of, preset, serve
from tests.own import NAMES, agreed, experiment, text, three_sites

PATIENTS = tuple(f"patient{number}" for number in range(10))
NEVER = (".png", *PATIENTS, "scans", "labels.csv", "labelled/", "hospital-data")
"""Parts of file names and paths, and the names of patients."""


@pytest.fixture
def logged(caplog):
    """What is logged, also by Flower's logger, which passes nothing on to the others."""
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.DEBUG, "flwr")
    logging.getLogger("flwr").addHandler(caplog.handler)
    yield caplog
    logging.getLogger("flwr").removeHandler(caplog.handler)


@pytest.fixture
def sites(tmp_path):
    """Return the preset's experiment, where its sites' data lie, and how to make a node of one."""
    federation.forget()
    refusals._say_once.cache_clear()  # each reason is logged once a process
    data = three_sites(tmp_path / "hospital-data")
    wanted = experiment(tmp_path, data=agreed(), runtime__out=str(tmp_path / "runs"))
    run_config = {"preset": preset(wanted, tmp_path)}

    def config(name):
        store = str(tmp_path / "stores" / name)
        own = {"site-name": name, "data-path": str(data / name), "store-path": store}
        return {**own, "no-terms": True}

    yield wanted, data, run_config, config
    federation.forget()


def said_in(records):
    """Return the bytes of a message's records."""
    parts = [value for value in records["heads"].values()]
    return b"".join([*parts, *(array.data for array in records.get("models", {}).values())])


def pixels(wanted, data):
    """Yield each image of the sites as bytes and as floats."""
    places = {k: Place(name, data / name) for k, name in enumerate(NAMES)}
    for k in places:
        site = federation.federation_of(wanted, places).dealt.site(k)
        for images in (site.labelled, site.unlabelled, site.val, site.test):
            for image in images.numpy():
                yield image.tobytes()
                yield (image.astype(np.float32) / 255).tobytes()


def test_a_whole_run(sites, capfd, logged):
    wanted, data, run_config, config = sites
    answers = []

    def listening(answer):
        def listen(message):
            reply = answer(message)
            answers.append(said_in(reply.content))
            return reply

        return listen

    nodes = {100 + k: listening(node(run_config, **config(n))) for k, n in enumerate(NAMES)}
    _, folder = serve(wanted, MemoryGrid(nodes))
    files = [path.read_bytes() for path in folder.path.rglob("*") if path.is_file()]
    shown = "".join(capfd.readouterr()).encode()
    assert len(answers) > 6 and len(files) > 8 and logged.text
    never = [part.encode() for part in NEVER] + list(pixels(wanted, data))
    assert len(never) > 600
    for blob in (*answers, *files, logged.text.encode(), shown):
        assert not any(part in blob for part in never)


def damage(folder, what):
    """Spoil a site's data; return a word that only the site may hear."""
    lines = (folder / "labels.csv").read_text().splitlines()
    if what == "an image":
        (folder / "scans" / "jane-doe.png").write_bytes(b"no image")
        lines.append("scans/jane-doe.png,one,patient-jane-doe")
    if what == "a label":
        lines[1] = "scans/0.png,jane-doe,patient0"
    if what == "a file":
        lines.append("scans/jane-doe.png,one,patient0")
    if what == "a split":
        lines = ["path,label,split,group", "scans/0.png,one,train,jane-doe",
                 "scans/3.png,one,test,jane-doe"]  # fmt: skip
    text(folder, "\n".join(lines) + "\n")
    return "jane-doe"


def alone(config, run_config, wanted):
    """Ask a node whose message's process does the work itself; return the answer's records."""
    message = Message(
        flower_records.write_request(origin_of(wanted), Hello(), {}), 7, "query.hello"
    )
    return node(run_config, **config)(message).content


def by_worker(config, run_config, wanted):
    """Ask a resident worker's work; return the answer's records."""
    context = Context(1, 7, config, RecordDict(), run_config)
    head = {name: value for name, value in vars(context).items() if name != "state"}
    blobs = {"origin": encode(origin_of(wanted)), "message": encode(Hello())}
    answer, _ = SiteWork().answer(Frame(head, blobs))
    assert answer.blobs.keys() == {"message"}
    return flower_records.pack_answer(answer.blobs["message"], {})


@pytest.mark.parametrize("ask", [alone, by_worker])
@pytest.mark.parametrize("what", ["an image", "a label", "a file", "a split"])
def test_a_site_whose_data_are_wrong_says_where_to_itself_alone(sites, logged, what, ask):
    wanted, data, run_config, config = sites
    secret = damage(data / "north", what)
    records = ask(config("north"), run_config, wanted)
    refusal = flower_records.read_answer(records).answer
    assert isinstance(refusal, Refusal)
    assert "site 'north' cannot use its data" in refusal.reason
    assert not any(part in refusal.reason for part in {*NEVER, secret} - {"labels.csv"})
    assert secret in logged.text


def test_a_disk_that_refuses_is_told_without_its_place(sites, logged, tmp_path):
    wanted, _, run_config, config = sites
    (tmp_path / "stores").write_text("a file where the folder should be")
    refusal = flower_records.read_answer(alone(config("north"), run_config, wanted)).answer
    assert isinstance(refusal, Refusal) and "cannot be" in refusal.reason
    assert str(tmp_path) not in refusal.reason and str(tmp_path) in logged.text
