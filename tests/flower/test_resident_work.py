"""With a resident worker or without: the same answers; and the message's process needs no torch."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from flwr.app import Context, RecordDict

from client_app import app as client
from client_app.answering import SiteWork, answer
from client_app.resident.caller import NoWorker
from client_app.resident.frames import Frame
from client_app.resident.inputs import inputs_of, stamp_of
from fedapp.learn.networks import initial_params
from fedapp.learn.params import digest_of, to_bytes
from fedapp.protocol import flower_records
from fedapp.protocol.codec import decode_answer, encode
from fedapp.protocol.messages import Hello, ModelRef, Refusal, Reply, SiteFacts, Task
from tests.flower.grids import asked, origin_of, preset
from tests.small import small

ROOT = Path(__file__).parents[2]


@pytest.fixture
def experiment(tmp_path):
    return small(runtime__out=str(tmp_path / "runs"))


@pytest.fixture
def context(experiment, tmp_path):
    """Return the context of site 2, its store in a folder of this name."""
    file = preset(experiment, tmp_path)

    def of(store):
        node = {"partition-id": 2, "store-path": str(tmp_path / store), "no-terms": True}
        return Context(1, 7, node, RecordDict(), {"preset": file})

    return of


def warm_up(experiment):
    blob = to_bytes(initial_params(experiment.model, (1, 8, 8), 10, experiment.seed))
    return Task(2, 0, "warmup", ModelRef(2, 0, digest_of(blob)))


def frame(context, experiment, request, **changes):
    head = {"run_config": context.run_config, "node_config": context.node_config}
    origin = replace(origin_of(experiment), **changes)
    return Frame(head, {"origin": encode(origin), "message": encode(request)})


def test_a_worker_answers_as_a_process_of_its_own_does(context, experiment):
    work = SiteWork()
    for request, kind in ((Hello(), SiteFacts), (warm_up(experiment), Reply)):
        node = context("alone")
        alone = answer(node.run_config, node.node_config, origin_of(experiment), request, {})
        found, well = work.answer(frame(context("worker"), experiment, request))
        blobs = dict(found.blobs)
        assert well and isinstance(alone.answer, kind)
        assert blobs.pop("message") == encode(alone.answer)
        assert blobs == alone.payloads
        assert work.stale() == ""
    assert len(blobs) == 1  # a trained model


def test_a_refusal_is_a_workers_last_answer(context, experiment):
    for bad in (frame(context("a"), experiment, Hello(), code="0" * 16), Frame({}, {})):
        found, well = SiteWork().answer(bad)
        assert isinstance(decode_answer(found.blobs["message"]), Refusal)
        assert not well


def test_settings_that_changed_on_the_disk_make_a_worker_stale(context, experiment, tmp_path):
    work = SiteWork()
    work.answer(frame(context("a"), experiment, Hello()))
    file = Path(preset(experiment, tmp_path))
    os.utime(file, ns=(0, 0))
    assert work.stale() == "data or settings on the disk changed"


def handled(experiment, context, request):
    records = flower_records.write_request(origin_of(experiment), request, {})
    return asked(lambda message: client.handle(message, context), records, "train.task")


def test_where_the_worker_fails_the_same_answer_comes_without_it(
    context, experiment, monkeypatch, caplog
):
    def fail(*_):
        raise NoWorker("the resident worker (process 5) failed: it was killed")

    plain = handled(experiment, context("a"), warm_up(experiment))
    monkeypatch.setattr(client, "worker_for", lambda context: object())
    monkeypatch.setattr(client, "ask", fail)
    with caplog.at_level("WARNING", "flwr"):
        rescued = handled(experiment, context("b"), warm_up(experiment))
    assert isinstance(plain.answer, Reply) and rescued == plain
    assert "answered without a resident worker" in caplog.text


TORCHLESS = """
import os, sys, tempfile
from dataclasses import replace
from flwr.app import Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
for name in ("_task_id", "_run_id", "_node_id"):
    setattr(TaskIdentity, name, 1)
from client_app import app
from client_app.resident import caller as resident
from fedapp.protocol import flower_records
from fedapp.protocol.messages import Missing, ModelRef, Origin, Task
resident.launcher = os.getpid
resident.lease_of = lambda pid: [os.pidfd_open(pid)]
tempfile.tempdir = sys.argv[1]
command = [sys.executable, "-P", "-m", "tests.flower.standin"]
app.worker_for = lambda context: replace(resident.worker_for(context), command=command)
task = Task(0, 1, "work", ModelRef(0, 0, "0" * 64))
asking = Origin("run", "0" * 16, "0" * 64)
records = flower_records.write_request(asking, task, {"a" * 64: b"model"})
message = Message(records, dst_node_id=1, message_type="train.task", ttl=120.0)
message.metadata.__dict__["_message_id"] = "asked"
reply = app.app(message, Context(1, 1, {"partition-id": 0}, RecordDict(), {}))
found = flower_records.read_answer(reply.content)
assert isinstance(found.answer, Missing) and found.payloads == {"a" * 64: b"model"}, found
print(sorted({"torch", "torchvision", "scipy", "sklearn", "ray"} & sys.modules.keys()))
"""


def test_the_process_of_a_message_does_not_import_torch(tmp_path_factory):
    short = tmp_path_factory.mktemp("um")
    done = subprocess.run(
        [sys.executable, "-c", TORCHLESS, str(short)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "[]")


# --- what a worker has read -----------------------------------------------------------------------


def test_a_stamp_tells_every_change_of_a_folder(tmp_path):
    folder, file = tmp_path / "cats", tmp_path / "cats" / "a.png"
    seen = [stamp_of([folder])]  # absent

    def note():
        seen.append(stamp_of([folder]))
        assert seen[-1] == stamp_of([folder])

    folder.mkdir()
    file.write_bytes(b"1")
    note()
    file.write_bytes(b"22")
    note()
    os.utime(file, ns=(0, 0))
    note()
    (folder / "b.png").touch()
    note()
    file.rename(folder / "c.png")
    note()
    (folder / "c.png").unlink()
    note()
    assert len({*seen}) == len(seen)


def test_what_a_site_reads_is_named(tmp_path):
    said = f"data.root={tmp_path} split.manifest={tmp_path / 'split.json'}"
    given = {"preset": "fashion_mnist_small", "set": said}
    preset_file, split, *files = inputs_of({}, given)
    assert preset_file.name == "fashion_mnist_small.yaml" and split == tmp_path / "split.json"
    assert files and all(path.is_relative_to(tmp_path) for path in files)
    own = {"data-path": str(tmp_path / "own")}
    assert inputs_of(own, {"preset": "digits_demo"})[1:] == [tmp_path / "own"]
    table = {"data-path": str(tmp_path / "own" / "labels.csv")}
    assert inputs_of(table, {"preset": "digits_demo"})[1:] == [tmp_path / "own"]
    folder = {"preset": "digits_demo", "set": f"data.name=folder data.root={tmp_path}"}
    assert inputs_of({}, folder)[1:] == [tmp_path]
    method = {"preset": "digits_demo", "set": "method.preset=fixbn"}
    assert [path.stem for path in inputs_of({}, method)] == ["digits_demo", "fixbn"]


def test_a_network_of_ones_own_that_is_changed_is_read_anew(tmp_path, monkeypatch):
    text = (
        "from fedapp.learn.networks.base import Network\n"
        "def small(inputs: tuple[int, ...], num_classes: int) -> Network: ...\n"
    )
    code = tmp_path / "changed_nets.py"
    code.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    given = {"preset": "digits_demo", "set": "model.name=changed_nets:small"}
    before = stamp_of(read := inputs_of({}, given))
    assert code in read
    code.write_text(text + "# better\n")
    assert stamp_of(read) != before


def test_the_code_of_a_method_of_ones_own_is_among_what_a_site_reads():
    given = {"preset": "digits_demo", "set": "method.name=tests.methods.own_method:Shy"}
    assert Path(__file__).parents[1] in inputs_of({}, given)
