"""Malformed requests at a site: the real ClientApp, which must answer each, and do nothing wrong.

The method's own work is left out: what is fuzzed is everything before and after it.
"""

import math
import re
from dataclasses import asdict, replace

import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from fedapp.experiment.config import shared_settings
from fedapp.experiment.run_folder import IDENTITY_FILE
from fedapp.learn.networks import initial_params
from fedapp.learn.params import digest_of, schema_of, to_bytes
from fedapp.methods.base import SiteReport
from fedapp.methods.um_pfssl.method import UmPfssl
from fedapp.protocol import flower_records
from fedapp.protocol.codec import decode_origin, decode_request, encode
from fedapp.protocol.messages import Hello, Missing, ModelRef, Refusal, Reply, SiteFacts, Task
from fedapp.site.federation import federation_of
from tests.flower.grids import node, origin_of, preset
from tests.security.mutations import (
    BYTES,
    HEAD_CASES,
    HEADS,
    RECORDS,
    counts,
    damaged,
    fuzz,
    odd_records,
    spoilt_head,
)
from tests.small import small

COUNTS = counts(300)
ME = 2


class Asked:
    """Site 2 of a run, apart from the server."""

    def __init__(self, root, patch):
        self.root = root
        patch.setenv("FEDAPP_SITES", str(root / "sites"))
        patch.setattr(UmPfssl, "site_round", self.look)
        self.experiment = small(runtime__out=str(root), data__subset=60, model__width=1)
        self.node = node({"preset": preset(self.experiment, root)}, **{"partition-id": ME})
        self.origin = replace(origin_of(self.experiment), identity="ab" * 32)
        params = initial_params(self.experiment.model, (1, 8, 8), 10, self.experiment.seed)
        self.schema = schema_of(params)
        self.first = ModelRef(ME, 0, digest_of(to_bytes(params)))
        params["head.bias"] += 1
        self.blob = to_bytes(params)
        self.helper = ModelRef(1, 3, digest_of(self.blob))
        models = {"helpers": (self.helper,), "newcomers": ()}
        told = {"sure_right": 3.0, "sure_total": 4.5}
        self.task = Task(ME, 5, "train", self.first, models, phase=2, numbers=told)
        self.facts = federation_of(self.experiment).manifest.digest()
        self.worked = 0

    def look(self, task, site):
        """Stands for a method: see that every model and number of the task is there and whole."""
        assert task.when == (f"{task.round}.{task.phase}" if task.phase else task.round)
        assert 0 <= task.phase < 2**53 and len(task.numbers) <= 32
        assert all(math.isfinite(number) for number in task.numbers.values())
        for ref in task.refs():
            assert schema_of(site.contents(ref)) == self.schema
        self.worked += 1
        return SiteReport()

    def ask(self, records):
        message = Message(records, dst_node_id=7, message_type="train.task", ttl=60.0)
        reply = self.node(message)
        assert isinstance(reply, Message) and not reply.has_error()
        return flower_records.read_answer(reply.content).answer

    def refused(self, records):
        """Ask; return whether the site refused. Whatever it does, it must be what was asked."""
        worked = self.worked
        answer = self.ask(records)
        if isinstance(answer, Refusal):
            assert answer.reason.isprintable() and answer.site in (-1, ME)
            assert "AssertionError" not in answer.reason
            return True
        origin, request, _ = flower_records.read_request(records)
        self.judge(origin, request, answer)
        if isinstance(answer, Reply):
            assert self.worked == worked + 1
        else:
            assert self.worked == worked
        return False

    def judge(self, origin, request, answer):
        """See that what was not refused is what was asked, from this server, of this site."""
        assert (
            decode_origin(encode(origin)) == origin and decode_request(encode(request)) == request
        )
        assert origin.code == self.origin.code and origin.experiment == self.origin.experiment
        if isinstance(request, Hello):
            assert isinstance(answer, SiteFacts)
            assert (answer.site, answer.split_digest, answer.pool_key) == (ME, self.facts, "")
            return
        assert request.site == ME and (answer.site, answer.round) == (ME, request.round)
        if isinstance(answer, Missing):
            assert set(answer.digests) <= {ref.digest for ref in request.refs()}
        else:
            assert isinstance(answer, Reply)
            assert answer.model == request.own.digest and answer.held == (request.own.digest,)

    def nothing_strays(self):
        """Every file lies in this site's folder of some run, and holds what it is named after.

        Or in its folder of models for use, of some run too.
        """
        for path in (self.root / "sites").rglob("*"):
            parts = path.relative_to(self.root / "sites").parts
            if parts[-1] == IDENTITY_FILE:
                assert len(parts) == 2 + (parts[0] == "models")
                assert re.fullmatch("[0-9a-f]{64}", path.read_text())
                continue
            if parts[0] == "models":
                assert parts[2:3] in {(), (str(ME),)}
                continue
            assert parts[1:3] == ("sites", f"site-{ME}")[: len(parts) - 1]
            assert not path.name.startswith(".") or path.name == ".keep"
            if path.suffix == ".safetensors" and "models" in parts:
                assert digest_of(path.read_bytes()) == path.stem


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    patch = pytest.MonkeyPatch()
    yield Asked(tmp_path_factory.mktemp("site"), patch)
    patch.undo()


KINDS = {"Hello": HEAD_CASES, "Task": HEAD_CASES, "Origin": HEAD_CASES, "model": BYTES,
         "bytes": HEADS, "records": RECORDS}  # fmt: skip


@pytest.mark.parametrize("examples", COUNTS)
@pytest.mark.parametrize("kind", KINDS)
def test_malformed_requests(site, kind, examples):
    request = Hello(shared_settings(site.experiment)) if kind == "Hello" else site.task
    payloads = {} if kind == "Hello" else {site.helper.digest: site.blob}
    whole = flower_records.write_request(site.origin, request, payloads)
    plausible = [
        0, 1, ME, 5, "helpers", "newcomers", "server", "train", "search", "evaluate", "warmup",
        "dance", "sure_total", 2**53 - 1, {"sure_right": 1e308},
        {f"n{'x' * k}": 0 for k in range(40)}, "ab" * 32,
        site.helper.digest, site.first.digest, asdict(site.helper),
        [asdict(site.helper)] * 3, asdict(site.first), [], "", "other-run", "..", "Task", "Hello",
        "Reply", {}, [asdict(ModelRef(k, 1, f"{k:064x}")) for k in range(200)],
        {f"key{k}": 0 for k in range(257)}, "x" * 2**16, "x" * (2**16 + 1),
    ]  # fmt: skip

    def with_head(part, data):
        heads = ConfigRecord({**whole["heads"], part: data})
        return RecordDict({"heads": heads, "models": whole.get("models", ArrayRecord())})

    def build(case):
        if kind == "records":
            return case
        if kind == "bytes":
            return with_head("message", case)
        if kind == "model":
            blob = damaged(site.blob, case)
            digest = digest_of(blob) if case[0][1] % 2 else site.helper.digest
            return flower_records.write_request(site.origin, request, {digest: blob})
        part = "origin" if kind == "Origin" else "message"
        level, edits = case
        if level == "records":
            return odd_records(whole, *edits)
        return with_head(part, spoilt_head(case, whole["heads"][part], plausible))

    assert not site.refused(whole)
    fuzz(f"request, {kind}", examples, KINDS[kind], build, site.refused)
    site.nothing_strays()
    assert not site.refused(whole)


def test_settings_that_are_not_those_of_the_digest_are_refused(site):
    other = replace(site.experiment, seed=7)
    for settings, refused in ((shared_settings(site.experiment), False), ({"seed": 7}, True),
                              (shared_settings(other), True), ({}, False)):  # fmt: skip
        records = flower_records.write_request(site.origin, Hello(settings), {})
        assert site.refused(records) == refused


def test_a_task_that_is_refused_is_in_the_sites_own_log(site, caplog):
    payloads = {site.helper.digest: b"no model"}
    assert site.refused(flower_records.write_request(site.origin, site.task, payloads))
    assert f"site {ME}, round 5: content {site.helper.digest[:12]} from the server" in caplog.text
