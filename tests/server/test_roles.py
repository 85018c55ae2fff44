"""What the server makes of contents of several roles, of parts of models, and of its own site."""

import time
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
from safetensors.torch import load

from fedapp.core.errors import ProtocolError, RunError
from fedapp.experiment.resume import open_run
from fedapp.learn.params import digest_of, to_bytes
from fedapp.methods.averaging.local_only import LocalOnly
from fedapp.protocol.messages import (
    MODEL,
    SERVER_SITE,
    Incoming,
    Missing,
    ModelRef,
    PartSent,
    Refusal,
    Reply,
    SiteFacts,
    Task,
)
from fedapp.protocol.store import ModelStore
from fedapp.server.engine import Engine
from tests.small import small

CLASSES = ("null", "eins")
FACTS = SiteFacts(
    0, (1, 8, 8), CLASSES, labelled=3, unlabelled=4, val=2, test=3, split_digest="0" * 64
)
SCHEMA = {"numbers": ((2,), torch.float32)}


@dataclass(frozen=True)
class TwoRoles(LocalOnly):
    """Sends two contents of one form beside the model."""

    name: ClassVar[str] = "two_roles"

    def roles(self, model):
        return {"means": SCHEMA, "spreads": SCHEMA}


@pytest.fixture
def served(tmp_path):
    """Return a server of one site before its first round."""

    def go(carrier=None, local_site=None, **changes):
        experiment = small(
            runtime__out=str(tmp_path), split__num_clients=1, model__width=1, method=TwoRoles(),
            **changes,
        )  # fmt: skip
        folder = open_run(experiment)
        quiet = SimpleNamespace(note=lambda text: None, phase=lambda *counts: None)
        store = ModelStore(folder.pool_root)
        engine = Engine(experiment, carrier, folder, store, quiet, local_site=local_site)
        engine.prepare([FACTS])
        return engine

    return go


def content(number):
    return to_bytes({"numbers": torch.full((2,), float(number))})


def accept(engine, contents, *blobs):
    own = engine.pool.latest(0)
    digests = {role: digest_of(blob) for role, blob in contents.items()}
    reply = Reply(0, 1, own.digest, contents=digests)
    payloads = dict(zip(digests.values(), blobs or contents.values(), strict=False))
    return engine.phases.accept(Task(0, 1, "train", own), Incoming(reply, payloads))


def test_equal_contents_of_two_roles_come_along_once_and_are_both_taken_in(served):
    engine = served()
    accept(engine, {"means": content(0), "spreads": content(0)})
    means, spreads = (engine.pool.latest(0, role) for role in ("means", "spreads"))
    assert means.digest == spreads.digest == digest_of(content(0))


@pytest.mark.parametrize("blobs", [(content(1), content(3)), (content(3), content(2))])
def test_of_an_answer_with_one_wrong_content_none_counts(served, blobs):
    engine = served()
    before = engine.pool.to_plain()
    with pytest.raises(ProtocolError, match="not the content it names"):
        accept(engine, {"means": content(1), "spreads": content(2)}, *blobs)
    assert engine.pool.to_plain() == before


def test_a_phase_has_one_task_for_a_site(served):
    engine = served()
    task = Task(0, 1, "train", engine.pool.latest(0))
    with pytest.raises(ValueError, match="two tasks for one site"):
        engine.phases.run([task, replace(task, phase=1)], {})


def test_a_part_of_a_model_that_the_pool_lost_fails_its_site_alone(served):
    engine = served()
    lost, part = ModelRef(3, 4, "c" * 64), to_bytes({"head.bias": torch.tensor([1.0, 2.0])})
    task = Task(0, 1, "train", engine.pool.latest(0), {"helpers": (lost,)})
    reply = Reply(0, 1, "d" * 64, parts={MODEL: PartSent(lost.digest, digest_of(part))})
    with pytest.raises(ProtocolError, match="the server lost the model its part belongs to"):
        engine.phases.accept(task, Incoming(reply, {digest_of(part): part}))


def test_the_newest_uploads_are_those_of_the_latest_round_that_the_pool_knows_of(served):
    engine = served()
    for site, number in ((5, 1), (6, 2), (7, 2)):
        engine.pool.join(site)
        engine.pool.upload(site, digest_of(content(site)), content(site), number)
    refs = {engine.pool.latest(site) for site in (5, 6, 7)}
    assert engine.phases._newest_sites(refs | {ModelRef(8, 9, "c" * 64)}) == {6, 7}


@pytest.mark.parametrize("of_new", [False, True])
def test_a_part_belongs_to_the_content_it_names_and_not_to_whatever_came_along(served, of_new):
    """A site sends a new model and, of another content, the tensor in which it differs from one."""
    engine = served()
    engine.phases.schemas["means"] = engine.phases.schemas[MODEL]
    own = engine.pool.latest(0)
    old = load(engine.pool.get(own.digest))
    model = {name: tensor + 1 for name, tensor in old.items()}
    base = model if of_new else old
    part = {"head.bias": base["head.bias"] + 2}
    blobs = [to_bytes(tensors) for tensors in (model, {**base, **part}, part)]
    new, whole, sent = map(digest_of, blobs)
    parts = {"means": PartSent(new if of_new else own.digest, sent)}
    reply = Reply(0, 1, new, contents={"means": whole}, parts=parts)
    task = Task(0, 1, "train", own)
    engine.phases.accept(task, Incoming(reply, {new: blobs[0], sent: blobs[2]}))
    assert engine.pool.latest(0, "means").digest == whole


class LocalServerSite:
    """The server's own site, which takes half a second for what it does."""

    def __init__(self, **changes):
        self._facts = replace(FACTS, site=SERVER_SITE, **changes)

    def facts(self):
        return self._facts

    def handle(self, task, payloads):
        time.sleep(0.5)
        return Incoming(Reply(SERVER_SITE, task.round, task.own.digest))


def test_where_the_pool_lost_what_the_server_learns_from_the_run_ends(served):
    """Silence would leave the server out of the average, and nobody told."""

    class Lacking(LocalServerSite):
        def handle(self, task, payloads):
            return Incoming(Missing(SERVER_SITE, task.round, (task.own.digest,)))

    engine = served(Patient(), Lacking())
    task = Task(SERVER_SITE, 1, "train", engine.pool.latest(SERVER_SITE))
    with pytest.raises(RunError, match="own training failed: the pool lost a model it needs"):
        engine.phases.run([task], {})


class Patient:
    """Takes note of how long the sites have."""

    def exchange(self, outbox, fetch, deadline_s):
        self.left = deadline_s
        return [(out.task.site, Incoming(Refusal(0, 1, "no"))) for out in outbox]


def test_what_the_server_trains_takes_nothing_of_the_sites_time(served):
    carrier = Patient()
    engine = served(carrier, LocalServerSite(), rounds__deadline_s=0.6)
    pool = engine.pool
    tasks = [Task(site, 1, "train", pool.latest(site)) for site in (SERVER_SITE, 0)]
    engine.phases.run(tasks, {})
    assert carrier.left > 0.4


@pytest.mark.parametrize(("changes", "says"), [
    ({"split_digest": "1" * 64}, "split digest is '1111"),
    ({"classes": ("one",)}, "classes is"),
    ({"inputs": (64,)}, "input shape is"),
])  # fmt: skip
def test_the_servers_own_images_are_of_the_sites_split(served, changes, says):
    with pytest.raises(RunError, match=f"the server's own images: their {says}.* give the server"):
        served(local_site=LocalServerSite(**changes))
