"""Malformed answers at the server: whole phases of the engine over Flower's strategy.

Site 0 answers with what is left of a valid message after some damage, site 1 honestly. Whatever
comes, the phase ends, site 1 is believed, and what is believed of site 0 could be true.
"""

import json
import zlib
from dataclasses import asdict, replace
from types import SimpleNamespace

import numpy as np
import pytest
import safetensors.numpy
import torch
from flwr.app import ConfigRecord, Message, RecordDict
from hypothesis import strategies as st

from fedapp.core.errors import FedAppError
from fedapp.core.progress import Progress
from fedapp.core.rng import torch_stream
from fedapp.core.settings import TransportSettings
from fedapp.experiment.resume import open_run
from fedapp.learn.metrics import CALIBRATION_BINS, evaluation
from fedapp.learn.networks import initial_params
from fedapp.learn.params import UNCOMPRESSED, _deflate, digest_of, from_bytes, to_bytes
from fedapp.protocol import flower_records
from fedapp.protocol.codec import decode_answer, encode
from fedapp.protocol.messages import (
    MODEL,
    Incoming,
    Missing,
    Refusal,
    Reply,
    ScoredRef,
    SiteFacts,
    Task,
)
from fedapp.protocol.store import ModelStore
from fedapp.server.assembly import Assembly
from fedapp.server.checks import agreeing_sites
from fedapp.server.engine import Engine
from server_app.carrier import GridCarrier
from tests.flower.grids import MemoryGrid, origin_of
from tests.security.mutations import (
    BYTES,
    HEAD_CASES,
    HEADS,
    JSON,
    RECORDS,
    counts,
    damaged,
    fuzz,
    odd_records,
    spoilt_head,
    twisted,
)
from tests.small import small

COUNTS = counts(400)
TEST = evaluation(torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]]), torch.tensor([0, 1, 1]))
VAL = evaluation(torch.tensor([[0.9, 0.1], [0.2, 0.8]]), torch.tensor([0, 1]))
CLASSES = ("null", "eins")
FACTS = SiteFacts(
    0, (1, 8, 8), CLASSES, labelled=3, unlabelled=4, val=2, test=3, split_digest="0" * 64
)


@pytest.fixture(autouse=True, scope="module")
def fast_disk():
    """Do not wait for the disk ten thousand times."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda descriptor: None)
        yield


class Server:
    """The server of a run with two sites on nodes 100 and 101, ready for a phase of round 5."""

    def __init__(self, root, transport=UNCOMPRESSED):
        self.experiment = small(
            runtime__out=str(root),
            runtime__run_name=f"{transport.precision}-{transport.compression}",
            split__num_clients=2,
            model__width=1,
            rounds__min_reply_share=0.0,
            rounds__join_wait_s=0.0,
            transport=transport,
        )
        self.folder = open_run(self.experiment)
        self.grid = MemoryGrid({100: None, 101: None})
        self.log = []
        quiet = SimpleNamespace(
            note=self.log.append, phase=lambda *a: None, started=lambda *a: None
        )
        store = ModelStore(self.folder.pool_root)
        self.run = Assembly(self.experiment, self.folder, store, quiet)
        carrier = self.carrier()
        self.engine = Engine(self.experiment, carrier, self.folder, store, quiet)
        self.facts = [replace(FACTS, site=k) for k in range(2)]
        self.begin([self.message(facts) for facts in self.facts])
        self.blobs = [self.model(k) for k in range(4)]
        pool = self.engine.pool
        for k in range(2):
            pool.upload(k, digest_of(self.blobs[k]), self.blobs[k], 4)
        other = pool.latest(1)
        self.task = Task(0, 5, "train", pool.latest(0), {"helpers": (other,), "newcomers": ()})
        self.honest = Task(1, 5, "train", other, {"helpers": (), "newcomers": ()})
        new = digest_of(self.blobs[2])
        self.reply = Reply(
            site=0,
            round=5,
            model=new,
            helpers=(ScoredRef(other, 0.5),),
            held=(new, other.digest),
            metrics={
                "pseudo_wrong": 1.0, "pseudo_total": 4.0, "loss": 0.3,
                "sure_right": 1.0, "sure_total": 2.0,
            },
            evaluations={"test": TEST, "test_before": TEST, "val": VAL, "val_common": VAL},
            equal={"test_tuned": "test"},
        )  # fmt: skip
        self.good = self.message(Reply(1, 5, digest_of(self.blobs[3])), self.blobs[3])
        self.before = dict(pool.contents)

    def model(self, number):
        params = initial_params(self.experiment.model, (1, 8, 8), len(CLASSES), 0)
        stream = torch_stream(0, "model", number)
        for tensor in params.values():
            if tensor.is_floating_point():
                tensor += torch.rand(tensor.shape, generator=stream)
        return to_bytes(params, self.experiment.transport)

    def message(self, answer, *blobs):
        return flower_records.write_answer(
            Incoming(answer, {digest_of(blob): blob for blob in blobs})
        )

    def carrier(self):
        origin = origin_of(self.experiment, self.folder.path.name)
        return GridCarrier(self.grid, origin, self.run)

    def begin(self, answers):
        """Introduce the two nodes, which answer so; return what the engine will believe."""
        for node, records in zip((100, 101), answers, strict=True):
            self.grid.nodes[node] = lambda message, r=records: Message(r, reply_to=message)
        self.engine.carrier = self.carrier()
        introduced = self.engine.carrier.introduce()
        misfit = self.experiment.model.misfit
        facts = agreeing_sites(introduced, 2, self.experiment.data, self.log.append, misfit)
        self.state = self.engine.prepare(facts)
        return facts

    def phase(self, records):
        """Run a phase in which site 0 answers so; return the replies that were believed."""
        self.engine.pool._records = dict(self.before)
        for node, answer in zip((100, 101), (records, self.good), strict=True):
            self.grid.nodes[node] = lambda message, r=answer: Message(r, reply_to=message)
        self.state.round, self.state.held, skipped = 5, {0: [], 1: []}, {}
        replies = self.engine.phases.run([self.task, self.honest], skipped)
        assert {r.site for r in replies} | skipped.keys() == {0, 1}
        assert skipped.keys() <= {0}  # the honest site is always believed
        assert all(len(reason) < 2100 and reason.isprintable() for reason in skipped.values())
        others = {k: record for k, record in self.before.items() if k[0] not in (0, 1)}
        after = dict(self.engine.pool.contents)
        mine, good = after.pop((0, MODEL)), after.pop((1, MODEL))
        assert after == others and good.digest == digest_of(self.blobs[3])
        if skipped:
            assert mine == self.before[0, MODEL]
        else:
            self.could_be_true(replies[0], mine)
        return [reply for reply in replies if reply.site == 0]

    def could_be_true(self, reply, record):
        """Say again, in other words than fedapp.server.checks, what an accepted reply must keep."""
        assert decode_answer(encode(reply)) == reply
        assert (reply.site, reply.round, reply.model) == (0, 5, record.digest)
        assert not reply.equal  # spelled out
        assert [h.model for h in reply.helpers] in ([], [self.task.models["helpers"][0]])
        assert all(0 <= h.score <= 1000 for h in reply.helpers)
        # What it says it holds may be untrue: it costs the site itself a second trip.
        assert len(reply.held) <= 3 and len(reply.metrics) <= 32
        wrong, total = (reply.metrics.get(f"pseudo_{n}", 0) for n in ("wrong", "total"))
        assert 0 <= wrong <= total <= 4 and all(np.isfinite(list(reply.metrics.values())))
        # Counts of another method are numbers that nobody reads.
        for part, result in reply.evaluations.items():
            matrix = np.array(result.confusion)
            assert matrix.shape == (2, 2) and matrix.min() >= 0
            of, _, answer = part.partition("_")
            assert answer in ("", "common", "tuned", "alone") or part == "test_before"
            assert matrix.sum() == {"val": 2, "test": 3}[of]
            count, correct = np.array(result.bin_count), np.array(result.bin_correct)
            assert len(count) == CALIBRATION_BINS and count.sum() == matrix.sum()
            assert correct.sum() == matrix.trace() and (correct <= count).all()
            assert 0 <= sum(result.bin_confidence) <= matrix.sum() * 1.001
        blob = self.engine.pool.get(record.digest)
        self.is_a_model(blob)

    def is_a_model(self, blob):
        schema = self.engine.schemas[MODEL]
        plain = from_bytes(blob, schema, "x", self.experiment.transport)
        shapes = {n: torch.Size(shape) for n, (shape, _) in schema.items()}
        assert {n: t.shape for n, t in plain.items()} == shapes
        assert all(bool(t.isfinite().all()) for t in plain.values())
        if self.experiment.transport == TransportSettings():
            again = safetensors.numpy.load(blob)
            assert again.keys() == plain.keys()
            assert all(np.isfinite(array).all() for array in again.values())
        known = to_bytes(plain, self.experiment.transport)
        known = from_bytes(known, schema, "x", self.experiment.transport)
        assert all(torch.equal(known[n], t) for n, t in plain.items())


@pytest.fixture(scope="module")
def server(tmp_path_factory, fast_disk):
    return Server(tmp_path_factory.mktemp("server"))


def spoilt(case, answer, blobs, plausible):
    """Return the records of an answer after a case's damage."""
    level, edits = case
    records = flower_records.write_answer(
        Incoming(answer, {digest_of(blob): blob for blob in blobs})
    )
    if level == "records":
        return odd_records(records, *edits)
    head = records["heads"]["message"]
    data = spoilt_head(case, head, plausible)
    rest = {"models": records["models"]} if blobs else {}
    return RecordDict({"heads": ConfigRecord({"message": data}), **rest})


@pytest.mark.parametrize("examples", COUNTS)
@pytest.mark.parametrize("kind", ["Reply", "Missing", "Refusal"])
def test_malformed_answers_to_a_task(server, kind, examples):
    other = server.honest.own
    answer, blobs = {
        "Reply": (server.reply, [server.blobs[2]]),
        "Missing": (Missing(0, 5, (server.task.own.digest, other.digest)), []),
        "Refusal": (Refusal(0, 5, "out of paper"), []),
    }[kind]
    plausible = [
        0, 1, 2, 5, 4, 0.5, 0.0, server.task.own.digest, other.digest, server.reply.model,
        asdict(other), asdict(replace(other, site=0)), asdict(ScoredRef(other, 2000.0)), "test",
        "test_alone", "val_tuned", "val_before", "val_mixture", "sure_total",
        "train", asdict(TEST), asdict(VAL), kind, "Reply", "Missing", "SiteFacts", "pseudo_total",
        asdict(answer),
    ]  # fmt: skip

    def refuses(records):
        replies = server.phase(records)
        assert kind == "Reply" or not replies
        return not replies and (kind == "Reply" or "unreadable" in server.log[-1])

    assert len(server.phase(server.message(server.reply, server.blobs[2]))) == 1
    fuzz(kind, examples, HEAD_CASES, lambda case: spoilt(case, answer, blobs, plausible), refuses)


@pytest.mark.parametrize("examples", COUNTS)
@pytest.mark.parametrize("kind", ["bytes", "records"])
def test_answers_of_no_kind(server, kind, examples):
    """Bytes where the JSON belongs, and whatever records Flower carries."""
    models = server.message(server.reply, server.blobs[2])["models"]

    def build(case):
        if kind == "records":
            return case
        return RecordDict({"heads": ConfigRecord({"message": case}), "models": models})

    fuzz(
        f"answer, {kind}",
        examples,
        RECORDS if kind == "records" else HEADS,
        build,
        lambda records: not server.phase(records) and "unreadable" in server.log[-1],
    )


@pytest.mark.parametrize("examples", COUNTS)
def test_malformed_introductions(server, examples):
    """The liar's node is asked first; who says that it is another's number gets that number."""
    honest = server.message(server.facts[1])
    plausible = [0, 1, 2, 3, 1000, "null", list(CLASSES), [], "0" * 64, "", "0" * 32, "SiteFacts"]

    def refuses(records):
        facts = server.begin([records, honest])
        assert len({f.site for f in facts}) == len(facts) <= 2 and facts
        for found in facts:
            assert 0 <= found.site < 2 and 1 <= len(found.inputs) <= 3
            assert all(1 <= side <= 2**16 for side in found.inputs)
            assert 1 <= len(found.classes) <= 1000
            assert max(found.labelled, found.unlabelled, found.val, found.test) < 2**31
            assert found.pool_key == "" and decode_answer(encode(found)) == found
        assert not server.engine.carrier.sites.sharing_pool
        return 100 not in map(server.engine.carrier.sites.nodes.get, (0, 1))

    try:
        fuzz(
            "SiteFacts",
            examples,
            HEAD_CASES,
            lambda case: spoilt(case, server.facts[0], [], plausible),
            refuses,
        )
    finally:
        server.begin([server.message(facts) for facts in server.facts])


HEADER = st.tuples(st.just("header"), JSON)
BLOBS = st.one_of(st.tuples(st.just("bytes"), BYTES), HEADER)


@pytest.mark.parametrize("examples", COUNTS)
@pytest.mark.parametrize("kind", ["float32", "float16", "zlib"])
def test_malformed_models(tmp_path, kind, examples):
    """Under their true digest: only the content is wrong, in its bytes or in its header."""
    transport = {
        "float32": TransportSettings(),
        "float16": TransportSettings(precision="float16"),
        "zlib": TransportSettings(compression="zlib"),
    }[kind]
    server = Server(tmp_path, transport)
    good, whole = server.blobs[2], server.blobs[2]
    if kind == "zlib":
        whole = to_bytes(from_bytes(good, server.engine.schemas[MODEL], "x", transport))
    size = int.from_bytes(whole[:8], "little")
    header, data = json.loads(whole[8 : 8 + size]), whole[8 + size :]
    plausible = [0, 4, len(data), 2**62, [2**63, 0], [0, 2**63], [0, 2**33, 2**33], [1], [],
                 "F32", "F16", "BF16", "F64", "I64", "F4", "F8_E8M0", "head.bias", "stem.norm.bias",
                 "__metadata__", {"a": "b"}]  # fmt: skip

    def build(case):
        level, edits = case
        if level == "bytes":
            blob = damaged(good, edits)
        else:
            text = twisted(header, edits, plausible)
            blob = len(text).to_bytes(8, "little") + text + data
            blob = _deflate(blob, transport) if kind == "zlib" else blob
        reply = Reply(0, 5, digest_of(blob))
        return flower_records.write_answer(Incoming(reply, {reply.model: blob}))

    fuzz(f"model, {kind}", examples, BLOBS, build, lambda records: not server.phase(records))


def test_a_content_that_inflates_without_end_is_cut_off():
    schema = {"a": ((2,), torch.float32)}
    bomb = zlib.compress(bytes(10**7))
    with pytest.raises(FedAppError, match="at most"):
        from_bytes(bomb[: 10**4], schema, "x", TransportSettings(compression="zlib"))


def test_progress_can_say_whatever_was_refused(server, capsys):
    with Progress() as progress:
        progress.note("site 0 skipped: " + "\x1b[2J\n" * 3)
    assert capsys.readouterr().out.count("\n") == 1
