"""Answers with parts of models and with contents of other roles, spoilt in every way.

What the server believes is a content of its schema under its own digest; the rest is refused.
"""

from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load

import fedapp.methods
from fedapp.experiment.runfolder import open_run
from fedapp.ground.errors import ProtocolError
from fedapp.learn.params import digest_of, from_bytes, to_bytes
from fedapp.messages.codec import decode_answer, encode
from fedapp.messages.protocol import MODEL, SERVER_SITE, Incoming, Part, Reply, SiteFacts, Task
from fedapp.messages.store import ModelStore
from fedapp.methods import method_class
from fedapp.server.engine import Engine
from tests.methods.test_toys import TOYS
from tests.security.mutations import BYTES, HEAD_CASES, counts, damaged, fuzz, spoilt_head
from tests.small import small

CLASSES = ("null", "eins")
NAMES = ("toy_layers", "toy_means", "flexproto")
FACTS = SiteFacts(
    0, (1, 8, 8), CLASSES, labelled=3, unlabelled=4, val=2, test=3, split_digest="0" * 64
)


class Server:
    """The server of a run of one site, and an honest answer to its task."""

    def __init__(self, root, name):
        method = method_class(name)()
        experiment = small(
            runtime__out=str(root), split__num_clients=1, model__width=1, method=method
        )
        folder, quiet = open_run(experiment), SimpleNamespace(note=lambda text: None)
        self.transport = experiment.transport
        self.engine = Engine(experiment, None, folder, ModelStore(folder.pool_root), quiet)
        self.state = self.engine._prepare([FACTS])
        pool = self.engine._pool
        w_0 = pool.latest(SERVER_SITE)
        self.task = Task(0, 1, "train", pool.latest(0), {"server": (w_0,)})
        schema = self.engine._schemas[MODEL]
        if name == "toy_layers":
            first = from_bytes(pool.get(w_0.digest), schema, "w_0")
            sent = {"head.bias": torch.tensor([1.0, 2.0])}
            whole, blob = to_bytes({**first, **sent}), to_bytes(sent)
            part = Part(w_0.digest, digest_of(blob))
            self.reply = Reply(0, 1, digest_of(whole), part=part, learned=True)
        else:
            [self.role] = self.engine._schemas.keys() - {MODEL}
            content = self.engine._schemas[self.role].items()
            blob = to_bytes({n: torch.ones(shape, dtype=of) for n, (shape, of) in content})
            contents = {self.role: digest_of(blob)}
            self.reply = Reply(0, 1, w_0.digest, contents=contents, learned=True)
        self.blob, self.before = blob, dict(pool._records)

    def refuses(self, head, blob):
        """Give it this answer; check what it believes; return whether it refused."""
        pool = self.engine._pool
        pool._records = dict(self.before)
        try:
            answer = decode_answer(head)
            incoming = Incoming(answer, {digest_of(blob): blob})
            self.engine._phases.accept(self.task, incoming)
        except ProtocolError:
            assert pool._records == self.before
            return True
        for (site, role), record in pool._records.items():
            assert role in self.engine._schemas and site in (-2, -1, 0)
            stored = pool.get(record.digest)
            assert digest_of(stored) == record.digest
            content = from_bytes(stored, self.engine._schemas[role], "x", self.transport)
            if role != MODEL:
                self.engine.experiment.method.check_content(role, content, FACTS)
        others = {key: record for key, record in pool._records.items() if key[0] != 0}
        assert others == {key: record for key, record in self.before.items() if key[0] != 0}
        return False


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.setattr(fedapp.methods, "__path__", [*fedapp.methods.__path__, str(TOYS)])
    monkeypatch.setattr("os.fsync", lambda descriptor: None)
    return lambda name: Server(tmp_path, name)


@pytest.mark.parametrize("examples", counts(200))
@pytest.mark.parametrize("name", NAMES)
def test_malformed_heads(server, name, examples):
    served = server(name)
    assert not served.refuses(encode(served.reply), served.blob)
    plausible = [
        0, 1, "means", "prototypes", MODEL, "psi", served.reply.model, served.task.own.digest,
        "f" * 64, None, True, {}, digest_of(served.blob), {"means": "f" * 64},
        asdict(Part("f" * 64, "e" * 64)),
        {"model": digest_of(served.blob)}, asdict(served.reply),
    ]  # fmt: skip
    cases = HEAD_CASES.filter(lambda case: case[0] != "records")
    fuzz(
        f"{name}, head", examples, cases,
        lambda case: spoilt_head(case, encode(served.reply), plausible),
        lambda head: served.refuses(head, served.blob),
    )  # fmt: skip


@pytest.mark.parametrize("examples", counts(200))
@pytest.mark.parametrize("name", NAMES)
def test_malformed_contents(server, name, examples):
    """Under their true digest: only the content is wrong."""
    served = server(name)

    def named(blob):
        if served.reply.part:
            return replace(served.reply, part=replace(served.reply.part, digest=digest_of(blob)))
        return replace(served.reply, contents={served.role: digest_of(blob)})

    fuzz(
        f"{name}, content", examples, BYTES,
        lambda edits: damaged(served.blob, edits),
        lambda blob: served.refuses(encode(named(blob)), blob),
    )  # fmt: skip


def test_a_part_that_does_not_make_the_model_it_names_is_refused(server):
    served = server("toy_layers")
    other = to_bytes({"head.bias": torch.tensor([3.0, 2.0])})
    part = replace(served.reply.part, digest=digest_of(other))
    assert served.refuses(encode(replace(served.reply, part=part)), other)
    strange = to_bytes({"head.other": torch.tensor([3.0, 2.0])})
    part = replace(served.reply.part, digest=digest_of(strange))
    assert served.refuses(encode(replace(served.reply, part=part)), strange)


@pytest.mark.parametrize("spoil", [
    lambda content: {"centres": content["centres"][:, :-1].clone()},
    lambda content: {"centres": content["centres"][:1].clone()},
    lambda content: {"centres": torch.full_like(content["centres"], torch.nan)},
    lambda content: {"centres": torch.full_like(content["centres"], torch.inf)},
    lambda content: {"centres": torch.full_like(content["centres"], 1e30)},
    lambda content: {"mask": torch.tensor([1, 255], dtype=torch.uint8)},
    lambda content: {"mask": torch.tensor([1, 0], dtype=torch.uint8)},
    lambda content: {"mask": content["mask"].float()},
    lambda content: {"third": content["mask"].clone()},
])  # fmt: skip
def test_prototypes_that_cannot_be_true_are_refused(server, spoil):
    served = server("flexproto")
    content = load(served.blob)
    blob = to_bytes({**content, **spoil(content)})
    contents = {"prototypes": digest_of(blob)}
    assert served.refuses(encode(replace(served.reply, contents=contents)), blob)


def test_prototypes_of_more_classes_than_labelled_images_are_refused(server):
    served = server("flexproto")
    standing = served.state.standings.sites[0]
    served.state.standings.sites[0] = replace(standing, facts=replace(FACTS, labelled=1))
    assert served.refuses(encode(served.reply), served.blob)
