"""Answers with parts of models and with contents of other roles, spoilt in every way.

What the server believes is a content of its schema under its own digest; the rest is refused.
"""

from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load

import fedapp.methods
from fedapp.core.errors import ProtocolError
from fedapp.experiment.resume import open_run
from fedapp.learn.networks.parts import layers_of
from fedapp.learn.params import digest_of, from_bytes, to_bytes
from fedapp.methods import method_class
from fedapp.methods.prototypes._prototypes import PROTOTYPES, read
from fedapp.protocol.codec import decode_answer, encode
from fedapp.protocol.messages import MODEL, SERVER_SITE, Incoming, PartSent, Reply, Task
from fedapp.protocol.store import ModelStore
from fedapp.server.engine import Engine
from tests.methods.test_toys import TOYS
from tests.security.mutations import BYTES, HEAD_CASES, counts, damaged, fuzz, spoilt_head
from tests.security.test_fuzz_server import FACTS
from tests.small import small

NAMES = ("toy_layers", "toy_means", "fedsiam_d", "flexproto")
TOLD = {"share": 0.5, "boundary": 0.25}
"""What FedSiam-D's server tells: it wants the layers that differ by 0.25 at least."""


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
        self.state = self.engine.prepare([FACTS])
        pool = self.engine.pool
        w_0 = pool.latest(SERVER_SITE)
        self.task = Task(0, 1, "train", pool.latest(0), {"server": (w_0,)}, numbers=TOLD)
        first = from_bytes(pool.get(w_0.digest), self.engine.schemas[MODEL], "w_0")
        answer = {"toy_layers": self._layers, "fedsiam_d": self._two}.get(name, self._beside)
        self.reply, self.blob, *others = answer(w_0, first)
        self.others, self.before = others, dict(pool.contents)

    def _layers(self, w_0, first):
        sent = {"head.bias": torch.tensor([1.0, 2.0])}
        whole, blob = to_bytes({**first, **sent}), to_bytes(sent)
        part = PartSent(w_0.digest, digest_of(blob))
        return Reply(0, 1, digest_of(whole), parts={MODEL: part}, learned=True), blob

    def _beside(self, w_0, first):
        """A content of the method's one role beside the model."""
        [role] = self.engine.schemas.keys() - {MODEL}
        schema = self.engine.schemas[role].items()
        blob = to_bytes({n: torch.ones(shape, dtype=of) for n, (shape, of) in schema})
        contents = {role: digest_of(blob)}
        return Reply(0, 1, w_0.digest, contents=contents, learned=True), blob

    def _two(self, w_0, first):
        """A target, of the online network the head alone, and by how much each layer differs."""
        target = to_bytes({**first, "head.bias": torch.tensor([1.0, 2.0])})
        head = {"head.bias": torch.tensor([3.0, 2.0]), "head.weight": first["head.weight"] + 1}
        blob, differs = to_bytes(head), self.engine.schemas["divergence"]
        numbers = to_bytes({n: torch.tensor(0.5 if n == "head" else 0.1) for n in differs})
        contents = {
            "online": digest_of(to_bytes({**first, **head})),
            "divergence": digest_of(numbers),
        }
        parts = {"online": PartSent(digest_of(target), digest_of(blob))}
        reply = Reply(0, 1, digest_of(target), contents=contents, parts=parts, learned=True)
        return reply, blob, target, numbers

    def renamed(self, blob):
        """The reply with another digest for what came in the place of `blob`."""
        if self.reply.parts:
            [(role, part)] = self.reply.parts.items()
            return replace(self.reply, parts={role: replace(part, digest=digest_of(blob))})
        [role] = self.reply.contents
        return replace(self.reply, contents={role: digest_of(blob)})

    def refuses(self, head, blob):
        """Give it this answer; check what it believes; return whether it refused."""
        pool = self.engine.pool
        pool._records = dict(self.before)
        try:
            answer = decode_answer(head)
            blobs = (blob, *self.others)
            incoming = Incoming(answer, {digest_of(one): one for one in blobs})
            self.engine.phases.accept(self.task, incoming)
        except ProtocolError:
            assert pool.contents == self.before
            return True
        for (site, role), record in pool.contents.items():
            assert role in self.engine.schemas and site in (-2, -1, 0)
            stored = pool.get(record.digest)
            assert digest_of(stored) == record.digest
            content = from_bytes(stored, self.engine.schemas[role], "x", self.transport)
            if role == PROTOTYPES:
                assert 0 < read(content).known.sum() <= FACTS.labelled
        others = {key: record for key, record in pool.contents.items() if key[0] != 0}
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
        asdict(PartSent("f" * 64, "e" * 64)),
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
    fuzz(
        f"{name}, content", examples, BYTES,
        lambda edits: damaged(served.blob, edits),
        lambda blob: served.refuses(encode(served.renamed(blob)), blob),
    )  # fmt: skip


def test_a_part_that_does_not_make_the_model_it_names_is_refused(server):
    served = server("toy_layers")
    for name in ("head.bias", "head.other"):
        other = to_bytes({name: torch.tensor([3.0, 2.0])})
        assert served.refuses(encode(served.renamed(other)), other)


def test_fewer_layers_than_asked_or_others_are_refused(server):
    """Each makes the content that it names: only what was asked for is another."""
    served = server("fedsiam_d")
    target = load(served.others[0])
    for names in (["head.bias"], next(iter(layers_of(target).values())), sorted(target)):
        sent = {name: target[name] + 1 for name in names}
        blob, whole = to_bytes(sent), to_bytes({**target, **sent})
        reply = served.renamed(blob)
        reply = replace(reply, contents={**reply.contents, "online": digest_of(whole)})
        assert served.refuses(encode(reply), blob)
