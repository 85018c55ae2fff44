"""Malformed requests at a site: the real ClientApp, which must answer each, and do nothing wrong.

The method's own work is left out: what is fuzzed is everything before and after it.
"""

import json
from dataclasses import asdict

import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from hypothesis import strategies as st

from fedapp import wire
from fedapp.codec import decode_origin, decode_request, encode
from fedapp.federation import federation_of
from fedapp.methods.base import SiteReport
from fedapp.methods.um_pfssl import UmPfssl
from fedapp.models import initial_params
from fedapp.params import digest_of, schema_of, to_bytes
from fedapp.protocol import Hello, Missing, ModelRef, Refusal, Reply, SiteFacts, Task
from tests.flower.grids import node, origin_of, preset
from tests.security.mutations import BYTES, JSON, SLOW, damaged, fuzz, odd_records, twisted
from tests.small import small

COUNTS = [300, pytest.param(SLOW, marks=pytest.mark.slow)]
ME = 2


class Asked:
    """Site 2 of a run, apart from the server."""

    def __init__(self, root, patch):
        self.root = root
        for name in ("_task_id", "_run_id", "_node_id"):
            patch.setattr(TaskIdentity, name, 1)
        patch.setenv("FEDAPP_SITES", str(root / "sites"))
        patch.setattr(UmPfssl, "site_round", self.look)
        self.experiment = small(runtime__out=str(root), data__subset=60, model__width=1)
        self.node = node({"preset": preset(self.experiment, root)}, **{"partition-id": ME})
        self.origin = origin_of(self.experiment)
        params = initial_params(self.experiment.model, 1, 10, self.experiment.seed)
        self.schema = schema_of(params)
        self.first = ModelRef(ME, 0, digest_of(to_bytes(params)))
        params["head.bias"] += 1
        self.blob = to_bytes(params)
        self.helper = ModelRef(1, 3, digest_of(self.blob))
        models = {"helpers": (self.helper,), "newcomers": ()}
        self.task = Task(ME, 5, "train", self.first, models)
        self.facts = federation_of(self.experiment).manifest.digest()
        self.worked = 0

    def look(self, task, site):
        """Stands for a method: see that every model of the task is there and whole."""
        for ref in task.refs():
            assert schema_of(site.contents(ref)) == self.schema
        self.worked += 1
        return SiteReport()

    def ask(self, records):
        message = Message(records, dst_node_id=7, message_type="train.task", ttl=60.0)
        reply = self.node(message)
        assert isinstance(reply, Message) and not reply.has_error()
        return wire.read_answer(reply.content).answer

    def refused(self, records):
        """Ask; return whether the site refused. Whatever it does, it must be what was asked."""
        worked = self.worked
        answer = self.ask(records)
        if isinstance(answer, Refusal):
            assert answer.reason.isprintable() and answer.site in (-1, ME)
            assert "AssertionError" not in answer.reason
            return True
        origin, request, _ = wire.read_request(records)
        assert (
            decode_origin(encode(origin)) == origin and decode_request(encode(request)) == request
        )
        assert origin.code == self.origin.code and origin.experiment == self.origin.experiment
        if isinstance(request, Hello):
            assert isinstance(answer, SiteFacts)
            assert (answer.site, answer.manifest, answer.pool_key) == (ME, self.facts, "")
            return False
        assert request.site == ME and (answer.site, answer.round) == (ME, request.round)
        if isinstance(answer, Missing):
            assert self.worked == worked
            assert set(answer.digests) <= {ref.digest for ref in request.refs()}
        else:
            assert isinstance(answer, Reply) and self.worked == worked + 1
            assert answer.model == request.own.digest and answer.held == (request.own.digest,)
        return False

    def nothing_strays(self):
        """Every file lies in this site's folder of some run, and holds what it is named after."""
        for path in (self.root / "sites").rglob("*"):
            parts = path.relative_to(self.root / "sites").parts
            assert parts[1:3] == ("sites", f"site-{ME}")[: len(parts) - 1]
            assert not path.name.startswith(".") or path.name == ".keep"
            if path.suffix == ".safetensors" and "models" in parts:
                assert digest_of(path.read_bytes()) == path.stem


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    patch = pytest.MonkeyPatch()
    yield Asked(tmp_path_factory.mktemp("site"), patch)
    patch.undo()


PARTS = st.sampled_from(["message", "message", "message", "origin"])
CASES = st.one_of(
    st.tuples(PARTS, st.just("bytes"), BYTES.filter(len)),
    st.tuples(PARTS, st.just("json"), JSON),
    st.tuples(PARTS, st.just("json"), JSON),
    st.tuples(PARTS, st.just("records"), st.tuples(st.integers(0, 20), st.integers(0, 2**12))),
    st.tuples(PARTS, st.just("model"), BYTES.filter(len)),
)


@pytest.mark.parametrize("examples", COUNTS)
@pytest.mark.parametrize("kind", ["Hello", "Task"])
def test_malformed_requests(site, kind, examples):
    request = site.task if kind == "Task" else Hello()
    payloads = {site.helper.digest: site.blob} if kind == "Task" else {}
    plausible = [
        0, 1, ME, 5, "helpers", "newcomers", "server", "train", "search", "evaluate", "warmup",
        "dance", site.helper.digest, site.first.digest, "ab" * 32, asdict(site.helper),
        [asdict(site.helper)] * 3, asdict(site.first), [], "", "other-run", "..", "Task", "Hello",
        "Reply", {}, [asdict(ModelRef(k, 1, f"{k:064x}")) for k in range(200)],
    ]  # fmt: skip

    def check(case):
        part, level, edits = case
        records = wire.write_request(site.origin, request, payloads)
        if level == "records":
            return site.refused(odd_records(records, *edits))
        if level == "model":
            blob = damaged(site.blob, edits)
            digest = digest_of(blob) if edits[0][1] % 2 else site.helper.digest
            return site.refused(wire.write_request(site.origin, request, {digest: blob}))
        heads = dict(records["heads"])
        head = heads[part]
        change = damaged if level == "bytes" else twisted
        more = () if level == "bytes" else (plausible,)
        heads[part] = change(head if level == "bytes" else json.loads(head), edits, *more)
        arrays = records.get("models", ArrayRecord())
        return site.refused(RecordDict({"heads": ConfigRecord(heads), "models": arrays}))

    assert not site.refused(wire.write_request(site.origin, request, payloads))
    ran, refused = fuzz(examples, CASES, check)
    site.nothing_strays()
    print(f"{kind}: {ran} messages, {refused} refused")
    assert ran >= examples and refused >= examples * 2 // 3
    assert not site.refused(wire.write_request(site.origin, request, payloads))
