"""The ClientApp answers every message, whatever is in it and whatever goes wrong at the site."""

import errno
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from client_app.app import app
from fedapp.learn.networks import initial_params
from fedapp.learn.params import digest_of, to_bytes
from fedapp.protocol import flower_records
from fedapp.protocol.codec import encode
from fedapp.protocol.messages import (
    SCHEMA,
    Hello,
    Missing,
    ModelRef,
    Refusal,
    Reply,
    SiteFacts,
    Task,
)
from tests.flower.grids import asked, node, origin_of, preset
from tests.small import small


@pytest.fixture
def experiment(tmp_path):
    return small(runtime__out=str(tmp_path / "runs"))


@pytest.fixture
def ask(tmp_path):
    """Send records to a node of an experiment; return its answer. It must always be a message."""

    def go(experiment, records, kind="train.task", **node_config):
        answer = node({"preset": preset(experiment, tmp_path)}, **node_config)
        return asked(answer, records, kind).answer

    return go


def me(number=2):
    return {"partition-id": number}


def hello(experiment, /, **changes):
    return flower_records.write_request(replace(origin_of(experiment), **changes), Hello(), {})


def warm_up(experiment, site=2):
    blob = to_bytes(initial_params(experiment.model, (1, 8, 8), 10, experiment.seed))
    return Task(site, 0, "warmup", ModelRef(site, 0, digest_of(blob)))


def task(experiment, site=2):
    return flower_records.write_request(origin_of(experiment), warm_up(experiment, site), {})


def test_the_handlers_are_registered_under_all_message_types():
    assert sorted(app._registered_funcs) == ["query.hello", "train.lot", "train.task"]


def test_an_honest_hello_and_an_honest_task(ask, experiment, tmp_path):
    facts = ask(experiment, hello(experiment), "query.hello", **me())
    assert isinstance(facts, SiteFacts) and facts.site == 2
    reply = ask(experiment, task(experiment), **me())
    assert isinstance(reply, Reply) and (reply.site, reply.round) == (2, 0)
    assert list((tmp_path / "runs/run/sites/site-2/models").glob(f"*/{reply.model}.safetensors"))


def heads(**values):
    return RecordDict({"heads": ConfigRecord(values)})


def other_schema(experiment):
    head = json.loads(encode(warm_up(experiment))) | {"schema": SCHEMA + 1}
    return heads(origin=encode(origin_of(experiment)), message=json.dumps(head).encode())


def with_models(arrays):
    def records(experiment):
        return RecordDict({**task(experiment), "models": ArrayRecord(arrays)})

    return records


def test_a_site_without_the_gpu_that_is_asked_for_says_so_in_a_line(
    ask, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    wanted = small(runtime__out=str(tmp_path / "runs"), runtime__device="cuda")
    refusal = ask(wanted, hello(wanted), "query.hello", **me())
    assert refusal.reason.startswith("runtime.device = 'cuda': PyTorch finds no GPU")
    assert all(record.exc_info is None for record in caplog.records)


GARBAGE = {
    "nothing": (lambda e: RecordDict(), "message holds records"),
    "other records": (lambda e: RecordDict({"a": MetricRecord({"b": 1})}), "message holds records"),
    "no JSON": (
        lambda e: heads(origin=encode(origin_of(e)), message=b"\xff\x00"),
        "message head is not JSON",
    ),
    "deep JSON": (
        lambda e: heads(origin=encode(origin_of(e)), message=b"[" * 10_000),
        "message head is not JSON",
    ),
    "huge head": (
        lambda e: heads(origin=encode(origin_of(e)), message=b" " * (29 * 2**20)),
        "message head of 30408704 bytes",
    ),
    "another schema": (other_schema, "install one version of fedapp on both sides"),
    "a run name that leaves the folder": (
        lambda e: hello(e, run="../../elsewhere"),
        "Origin message: run",
    ),
    "a model that is not what it names": (
        with_models({"0" * 64: Array("uint8", (3,), "safetensors", b"abc")}),
        "content 000000000000 from the server is not what it names",
    ),
    "other code": (lambda e: hello(e, code="0" * 16), "install the same version on both"),
    "another experiment": (
        lambda e: hello(e, experiment="0" * 64),
        "this site's settings differ from the server's",
    ),
    "a task for another site": (lambda e: task(e, 3), "for site 3, but this node is site 2 now"),
}


@pytest.mark.parametrize("name", GARBAGE)
def test_what_is_not_right_is_refused_with_the_reason(ask, experiment, name):
    records, reason = GARBAGE[name]
    answer = ask(experiment, records(experiment), **me())
    assert isinstance(answer, Refusal)
    assert reason in answer.reason


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (None, "node config has no partition-id"),
        ("2", "node config has no partition-id"),
        (2.0, "node config has no partition-id"),
        (5, "partition-id 5: the preset has 5 sites"),
        (-1, "partition-id -1: the preset has 5 sites"),
        (2**40, "raise split.num_clients or start fewer nodes"),
    ],
)
def test_a_node_without_a_usable_number_refuses(ask, experiment, number, reason):
    config = {} if number is None else me(number)
    answer = ask(experiment, hello(experiment), "query.hello", **config)
    assert isinstance(answer, Refusal)
    assert reason in answer.reason


def test_the_request_decides_not_the_message_type(ask, experiment):
    assert isinstance(ask(experiment, hello(experiment), "train.task", **me()), SiteFacts)
    assert isinstance(ask(experiment, task(experiment), "query.hello", **me()), Reply)


def test_a_task_on_models_that_are_not_there_asks_for_them(ask, experiment):
    lost = ModelRef(2, 4, "ab" * 32)
    request = flower_records.write_request(origin_of(experiment), Task(2, 5, "train", lost), {})
    assert ask(experiment, request, **me()) == Missing(2, 5, (lost.digest,))


def test_an_action_of_another_method_is_refused(ask, experiment):
    request = replace(warm_up(experiment), action="dance")
    answer = ask(
        experiment, flower_records.write_request(origin_of(experiment), request, {}), **me()
    )
    assert isinstance(answer, Refusal)


def test_absent_data_are_named(ask, tmp_path):
    experiment = small(runtime__out=str(tmp_path), data__name="fashion_mnist", data__download=False)
    for records, kind in ((hello(experiment), "query.hello"), (task(experiment), "train.task")):
        answer = ask(experiment, records, kind, **me())
        assert isinstance(answer, Refusal)
        assert "fashion_mnist" in answer.reason and "data.root" in answer.reason
        assert "\n" not in answer.reason


def test_settings_that_are_wrong_at_the_node_are_named(experiment):
    for run_config, reason in (
        ({}, "preset = ''"),
        ({"preset": "absent"}, "preset 'absent': no such preset"),
        ({"preset": "digits_demo", "set": "method.confidence=9.0"}, "confidence = 9.0"),
    ):
        answer = asked(node(run_config, **me()), hello(experiment)).answer
        assert isinstance(answer, Refusal)
        assert reason in answer.reason


@pytest.mark.parametrize("epochs", [1, 3])
def test_training_that_diverges_is_answered(ask, experiment, epochs):
    """After one epoch the loss may still be finite and the model already useless."""
    experiment = replace(
        experiment,
        training=replace(experiment.training, learning_rate=1e6, warmup_epochs=epochs),
    )
    answers = [ask(experiment, task(experiment, k), **me(k)) for k in range(5)]
    refusals = [answer for answer in answers if isinstance(answer, Refusal)]
    assert refusals
    if epochs == 3:
        assert all("lower training.learning_rate" in refusal.reason for refusal in refusals)


def test_a_full_disk_at_the_site_is_named_and_the_next_task_works(ask, experiment, monkeypatch):
    whole = os.replace

    def full(part, target):
        if Path(part).parent.parent.name == "models":
            raise OSError(errno.ENOSPC, "No space left on device")
        return whole(part, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        answer = ask(experiment, task(experiment), **me())
    assert isinstance(answer, Refusal)
    assert "No space left on device" in answer.reason and "free space there" in answer.reason
    assert isinstance(ask(experiment, task(experiment), **me()), Reply)


def test_a_store_folder_that_cannot_be_made_is_answered(ask, experiment, tmp_path):
    (tmp_path / "file").touch()
    store = {"store-path": str(tmp_path / "file")}
    answer = ask(experiment, hello(experiment), "query.hello", **me(), **store)
    assert isinstance(answer, Refusal)
    assert "a file is in the way" in answer.reason and str(tmp_path) not in answer.reason


def test_a_node_keeps_its_store_where_it_is_told(ask, experiment, tmp_path, monkeypatch):
    ask(experiment, task(experiment), **me(), **{"store-path": str(tmp_path / "mine")})
    assert list((tmp_path / "mine/run/sites/site-2/models").iterdir())
    monkeypatch.setenv("FEDAPP_SITES", str(tmp_path / "env"))
    ask(experiment, task(experiment), **me())
    assert list((tmp_path / "env/run/sites/site-2/models").iterdir())
    assert not (tmp_path / "runs").exists()


def test_a_site_does_not_work_under_flowers_secure_aggregation(ask, experiment, monkeypatch):
    """Its mod would let the messages pass unmasked."""

    def secaggplus_mod(message, context, call_next):
        return call_next(message, context)

    monkeypatch.setattr("client_app.app.app._mods", [secaggplus_mod])
    answer = ask(experiment, task(experiment), **me())
    assert isinstance(answer, Refusal)
    assert "secaggplus_mod" in answer.reason and "privacy.sums=masked" in answer.reason
