"""What the conformance tests of methods share: toy federations, and every byte that is sent.

A federation is three sites with digits of 8 x 8 pixels and a ResNet-9 of width 2, dealt by hand, so
that a test knows how many images each site learns from. Sites have disks of their own here, so that
contents really travel and can be looked at.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from safetensors.torch import load
from torch import Tensor, nn

from fedapp.core.progress import Progress
from fedapp.core.settings import (
    DataSettings,
    RoundSettings,
    RuntimeSettings,
    SplitSettings,
    TrainSettings,
)
from fedapp.data.sites import Part, SiteData
from fedapp.data.split.manifest import TEST, TRAIN, VAL, Manifest
from fedapp.experiment.experiment import Experiment
from fedapp.experiment.resume import open_run
from fedapp.experiment.run_folder import RunFolder
from fedapp.learn.networks import NetworkSettings, build_model, initial_params
from fedapp.learn.networks.resnet9 import ResNet9Settings
from fedapp.learn.params import digest_of, to_bytes
from fedapp.methods.base import Method, SiteContext
from fedapp.protocol.codec import encode
from fedapp.protocol.messages import (
    EVALUATE,
    MODEL,
    SERVER_SITE,
    Incoming,
    ModelRef,
    Refusal,
    Reply,
    Task,
)
from fedapp.protocol.store import ModelStore
from fedapp.protocol.traffic import Ledger
from fedapp.server.engine import Engine
from fedapp.server.pool import ModelPool
from fedapp.simulation.in_process import Loopback, carried
from fedapp.site.federation import LoadedSites, federation_of
from fedapp.site.private_state import MEMORY, SALT

CPU = torch.device("cpu")


def named(methods: Sequence[Method]) -> pytest.MarkDecorator:
    """Run a test for each of these methods."""
    return pytest.mark.parametrize("method", methods, ids=lambda method: method.name)


class Deal(NamedTuple):
    """How many images of each kind a site is dealt."""

    labelled: int
    unlabelled: int
    val: int = 4
    test: int = 6


UNEQUAL = (Deal(9, 12), Deal(20, 3), Deal(5, 0))
"""Three sites of different sizes; the third has no unlabelled images."""
ODD = (Deal(8, 5), Deal(0, 7), Deal(0, 0, 0, 3), Deal(1, 0), Deal(0, 1), Deal(6, 6, 0, 0))
"""Sites that lack something: labels, training images, all but one image, images to measure on."""

SMALL = ResNet9Settings(width=2)


def toy(
    method: Any,
    folder: Path,
    deals: Sequence[Deal] = UNEQUAL,
    name: str = "run",
    model: NetworkSettings = SMALL,
    **changes: Any,
) -> Experiment:
    """Return an experiment of a second or less whose sites hold just what they are dealt.

    The warm-up is one common round. changes: as `group__key=value`.
    """
    experiment = Experiment(
        name="toy",
        method=method,
        seed=3,
        data=DataSettings(name="digits", subset=sum(map(sum, deals))),
        split=SplitSettings(num_clients=len(deals), manifest=str(_manifest(folder, deals))),
        model=model,
        training=TrainSettings(
            local_epochs=1, warmup_epochs=1, warmup_rounds=1, batch_size=8, learning_rate=0.05
        ),
        rounds=RoundSettings(num_rounds=2, sample_rate=1.0, deadline_s=60.0),
        runtime=RuntimeSettings(device="cpu", out=str(folder), run_name=name),
    )
    for key, value in changes.items():
        group, _, inner = key.partition("__")
        experiment = replace(
            experiment, **{group: replace(getattr(experiment, group), **{inner: value})}
        )
    return experiment


def _manifest(folder: Path, deals: Sequence[Deal]) -> Path:
    kinds = ((TRAIN, True), (TRAIN, False), (VAL, True), (TEST, True))
    rows = [
        (site, split, visible)
        for site, deal in enumerate(deals)
        for count, (split, visible) in zip(deal, kinds, strict=True)
        for _ in range(count)
    ]
    site, split, visible = zip(*rows, strict=True)
    path = folder / "deal.safetensors"
    Manifest(
        dataset="digits",
        num_clients=len(deals),
        num_classes=10,
        seed=3,
        site=np.array(site, np.int32),
        split=np.array(split, np.uint8),
        visible=np.array(visible, np.bool_),
    ).save(path)
    return path


@dataclass
class Exchange:
    """One task and all that was sent for it: contents down, answer and contents up.

    heads: task and answer as written. private: the site's part that the answer names by digest,
    read from the site's own disk; empty where it has none yet.
    """

    task: Task
    down: dict[str, bytes]
    incoming: Incoming
    heads: tuple[bytes, bytes]
    private: bytes = b""

    @property
    def reply(self) -> Reply:
        assert isinstance(self.incoming.answer, Reply), self.incoming.answer
        return self.incoming.answer.with_repeats()

    @property
    def upload(self) -> dict[str, Tensor]:
        """The tensors of the site's new model, as they came."""
        payloads = self.incoming.payloads
        if self.reply.model in payloads:  # other contents may have come beside it
            return load(payloads[self.reply.model])
        [blob] = payloads.values()
        return load(blob)


Tamper = Callable[[Task, Incoming], Incoming | None]
"""Changes an answer on its way; None: it is lost."""


class Wire(Loopback):
    """Sites with disks of their own below `root`; notes every exchange in `seen`."""

    def __init__(self, experiment: Experiment, root: Path, tamper: Tamper | None = None) -> None:
        federation = federation_of(experiment)
        self.sites = {
            k: federation.site(
                k,
                experiment,
                ModelStore(root / f"site-{k}" / "models"),
                root / f"site-{k}",
            )
            for k in range(experiment.split.num_clients)
        }
        self._tamper = tamper or (lambda task, incoming: incoming)
        self.seen: list[Exchange] = []

    def exchange(self, outbox, fetch, deadline_s):  # type: ignore[no-untyped-def]
        for out in outbox:
            down = {digest: fetch(digest) for digest in out.attach}
            incoming = self.sites[out.task.site].handle(out.task, down)
            heads = encode(out.task), encode(incoming.answer)
            private = self._private(out.task.site, incoming.answer)
            self.seen.append(Exchange(out.task, down, incoming, heads, private))
            changed = self._tamper(out.task, incoming)
            if changed is not None:
                yield out.task.site, carried(changed)

    def _private(self, site: int, answer: object) -> bytes:
        """What the site keeps, without the secret that its digest is of too."""
        digest = answer.private if isinstance(answer, Reply) else ""
        if not digest:
            return b""
        kept = load(self.sites[site].private_parts._store.get(digest))
        return to_bytes({name: tensor for name, tensor in kept.items() if name != SALT})


@dataclass
class Played:
    """A run that came to its end."""

    experiment: Experiment
    summary: dict[str, Any]
    folder: RunFolder
    seen: list[Exchange]
    engine: Engine

    def rows(self) -> list[dict[str, Any]]:
        """metrics.jsonl without the clock and the traffic, which a repair adds to."""
        return [_settled(row) for row in self.folder.metrics()]

    def records(self) -> dict[str, Any]:
        """Digests of all models and private parts, and every site's evaluations at the end."""
        checkpoint = self.folder.load_checkpoint()
        assert checkpoint is not None
        state = checkpoint["state"]
        sites = state["standings"]["sites"]
        return {"pool": checkpoint["pool"], "private": state["private"], "sites": sites}

    def of(self, round_number: int, action: str) -> list[Exchange]:
        """The exchanges of one phase that ended in a reply, in site order."""
        wanted = (round_number, action)
        phase = [e for e in self.seen if (e.task.round, e.task.action) == wanted]
        return [e for e in phase if isinstance(e.incoming.answer, Reply)]

    def server(self, exchange: Exchange) -> dict[str, Tensor]:
        """The server's model that a task named: w_0, or one that was sent to some site."""
        [ref] = exchange.task.models["server"]
        sent = {digest: blob for e in self.seen for digest, blob in e.down.items()}
        sent |= {digest: blob for e in self.seen for digest, blob in e.incoming.payloads.items()}
        if ref.digest in sent:
            return load(sent[ref.digest])
        assert ref.version == 0
        return {n: t for n, t in self.w_0().items() if n not in self.kept()}

    def w_0(self) -> dict[str, Tensor]:
        return initial_params(self.experiment.model, (1, 8, 8), 10, self.experiment.seed)

    def kept(self) -> frozenset[str]:
        """Names of the tensors that the method keeps at home."""
        kept: frozenset[str] = self.experiment.method.kept_private(
            build_model(self.experiment.model, (1, 8, 8), 10)
        )
        return kept

    def private(self, digest: str) -> dict[str, Tensor]:
        """A version of a site's private part; w_0's where the digest is empty."""
        if not digest:
            return {n: t for n, t in self.w_0().items() if n in self.kept()}
        versions = {e.reply.private: e.private for e in self.seen if e.private}
        return load(versions[digest])

    def pool(self) -> ModelPool:
        """The pool as the run left it."""
        store = ModelStore(self.folder.pool_root)
        return ModelPool.from_plain(store, self.folder.load_checkpoint()["pool"])

    def newest(self, role: str, site: int = SERVER_SITE) -> dict[str, Tensor]:
        """The newest content of a role."""
        pool = self.pool()
        return load(pool.store.get(pool.latest(site, role).digest))

    def at_the_end(self, site: int) -> tuple[Task, SiteContext]:
        """A task to measure what the run ended with, and the site that has it."""
        pool = self.pool()
        models = {
            "server" if role == MODEL else role: (pool.latest(SERVER_SITE, role),)
            for whose, role in pool.contents
            if whose == SERVER_SITE
        }
        task = Task(site, 3, EVALUATE, pool.latest(site), models)
        federation = federation_of(self.experiment)
        sites = Loopback(self.experiment, federation, pool.store, self.folder.sites_root).sites
        return task, sites[site].context(task)[0]

    def model(self, exchange: Exchange) -> dict[str, Tensor]:
        """What the site had in its network when the task began."""
        return self.server(exchange) | self.private(exchange.task.private)


def draw_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what is trained alone draw as all other training does, so that the two compare."""
    stream, drawing = SiteContext.stream, SiteContext.drawing
    monkeypatch.setattr(
        SiteContext,
        "stream",
        lambda site, purpose, task: stream(site, purpose.removeprefix("alone-"), task),
    )
    monkeypatch.setattr(SiteContext, "drawing", lambda site, task, _="": drawing(site, task))


def _settled(row: dict[str, Any]) -> dict[str, Any]:
    traffic = ("wall_seconds", "models_", "bytes_")
    return {name: value for name, value in row.items() if not name.startswith(traffic)}


Carrier = Callable[[LoadedSites, RunFolder, ModelStore], Loopback]
"""Makes what carries a run's messages."""


def run_on(experiment: Experiment, carrier: Carrier) -> Played:
    """Run an experiment to its end."""
    federation = federation_of(experiment)
    folder = open_run(experiment, federation.manifest)
    store = ModelStore(folder.pool_root)
    transport = carrier(federation, folder, store)
    with Progress() as progress:
        engine = Engine(experiment, transport, folder, store, progress, Ledger())
        summary = engine.run()
    return Played(experiment, summary, folder, getattr(transport, "seen", []), engine)


def play(experiment: Experiment, tamper: Tamper | None = None) -> Played:
    """Run an experiment over `Wire` to its end."""
    return run_on(
        experiment, lambda _, folder, __: Wire(experiment, folder.path / "remote", tamper)
    )


def play_in_one_store(experiment: Experiment, kind: Callable[..., Loopback] = Loopback) -> Played:
    """Run an experiment in the loopback driver itself, where sites share the server's pool."""
    return run_on(experiment, lambda *of: kind(experiment, of[0], of[2], of[1].sites_root))


def site_data(experiment: Experiment, site: int) -> SiteData:
    return federation_of(experiment).dealt.site(site)


def correct_by_hand(
    experiment: Experiment, params: dict[str, Tensor], images: Tensor, labels: Tensor
) -> int:
    """How many images a model names rightly, one image at a time."""
    model = build_model(experiment.model, (1, 8, 8), 10)
    model.load_state_dict(params)
    model.eval()
    scaled = pixels(experiment, images)
    with torch.no_grad():
        named = [int(model(image[None])[0].argmax()) for image in scaled]
    return sum(a == b for a, b in zip(named, labels.tolist(), strict=True))


def pixels(experiment: Experiment, images: Tensor) -> Tensor:
    data = site_data(experiment, 0)
    mean, std = (torch.tensor(v).view(-1, 1, 1) for v in (data.mean, data.std))
    return (images.float() / 255 - mean) / std


def descent_by_hand(
    experiment: Experiment,
    params: dict[str, Tensor],
    images: Tensor,
    labels: Tensor,
    steps: int,
    pull: Callable[[dict[str, Tensor], dict[str, Tensor]], dict[str, Tensor]] | None = None,
) -> dict[str, Tensor]:
    """`steps` steps of SGD with momentum on all images at once, written out; returns all tensors.

    Needs a network without dropout. pull: of weights now and at the start, added to the gradient.
    """
    rate, momentum = experiment.training.learning_rate, experiment.training.momentum
    model = build_model(experiment.model, (1, 8, 8), 10)
    model.load_state_dict(params)
    model.train()
    weights = dict(model.named_parameters())
    start = {name: w.detach().clone() for name, w in weights.items()}
    velocity = {name: torch.zeros_like(w) for name, w in weights.items()}
    scaled = pixels(experiment, images)
    for _ in range(steps):
        log_p = torch.log_softmax(model(scaled), dim=1)
        loss = -log_p[torch.arange(len(labels)), labels].mean()
        gradients = torch.autograd.grad(loss, list(weights.values()))
        with torch.no_grad():
            extra = pull(weights, start) if pull else {}
            for (name, weight), gradient in zip(weights.items(), gradients, strict=True):
                gradient = gradient + extra.get(name, 0.0)
                velocity[name] = momentum * velocity[name] + gradient
                weight -= rate * velocity[name]
    return state_of(model)


def mean_by_hand(models: Sequence[dict[str, Tensor]], counts: Sequence[float]) -> dict[str, Tensor]:
    """sum_k n_k w_k / sum_k n_k in double precision, of floating tensors."""
    floating = [name for name, tensor in models[0].items() if tensor.is_floating_point()]
    return {
        name: sum(n * m[name].double() for n, m in zip(counts, models, strict=True)) / sum(counts)
        for name in floating
    }


def assert_close(
    params: dict[str, Tensor], expected: dict[str, Tensor], atol: float = 1e-6
) -> None:
    """Every expected tensor of floating point is there with its value."""
    for name, tensor in expected.items():
        if not tensor.is_floating_point():
            continue
        found = params[name].double()
        torch.testing.assert_close(
            found, tensor.double(), rtol=1e-4, atol=atol, msg=lambda m, n=name: f"{n}: {m}"
        )


def assert_same(params: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """The same tensors, bit for bit."""
    assert params.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(params[name], tensor), name


# --- what every method bears ----------------------------------------------------------------------

WARM_UP = {"training__warmup_rounds": 3, "training__warmup_epochs": 3}
"""Several phases of round 0."""


class Stop(Exception):
    """Stands for a power cut."""


def cut_at(number: int, action: str, answers: int) -> Tamper:
    """Stop after so many answers of a phase."""
    return _stop_at(lambda task: (task.round, task.action) == (number, action), answers)


def _stop_at(counts: Callable[[Task], bool], answers: int) -> Tamper:
    seen = Counter[bool]()

    def tamper(task: Task, incoming: Incoming) -> Incoming:
        seen[counts(task)] += 1
        if counts(task) and seen[True] == answers:
            raise Stop
        return incoming

    return tamper


def check_method(make: Callable[[str], Experiment]) -> Played:
    """Check what must hold of every method, as for estimators elsewhere; return the whole run.

    make: an experiment of a name, of three sites and two rounds.

    - All sites take part in every phase that they are asked in.
    - In one store, as in a simulation, the numbers are the same, and what is counted as sent.
    - A run that is cut, early or late, and resumed ends in the same bits, private parts included.
    - A site that refuses a round is left out of it, and is there again in the next.
    """
    whole = play(make("whole"))
    assert [row["skipped"] for row in whole.rows()] == [{}] * 3
    together = play_in_one_store(make("together"))
    assert together.rows() == whole.rows() and together.records() == whole.records()
    traffic = [(run.folder.path / "traffic.csv").read_text() for run in (whole, together)]
    assert traffic[0] == traffic[1]
    for answers in (2, len(whole.seen) // 2, len(whole.seen) - 1):
        experiment = make(f"cut-{answers}")
        with pytest.raises(Stop):
            play(experiment, _stop_at(lambda task: True, answers))
        resumed = play(replace(experiment, runtime=replace(experiment.runtime, resume=True)))
        assert resumed.rows() == whole.rows(), answers
        assert resumed.records() == whole.records(), answers
    _check_a_site_that_refuses(make("refused"))
    return whole


def _check_a_site_that_refuses(experiment: Experiment) -> None:
    def refuse(task: Task, incoming: Incoming) -> Incoming:
        if (task.site, task.round) == (1, 1):
            return Incoming(Refusal(1, 1, "out of paper"))
        return incoming

    played = play(experiment, refuse)
    asked = {(e.task.round, e.task.site) for e in played.seen}
    reason = {"1": "the site refused: out of paper"} if (1, 1) in asked else {}
    assert [row["skipped"] for row in played.rows()] == [{}, reason, {}]
    assert ((2, 1) in asked) == ((2, 0) in asked)


# --- private parts --------------------------------------------------------------------------------


def assert_private_never_travels(played: Played, kept: frozenset[str]) -> None:
    """No message holds a tensor of these names, nor the bytes of one that a site has trained."""
    assert kept == played.kept() and kept
    w_0, secrets = played.w_0(), set()
    for exchange in played.seen:
        if exchange.private:
            part = load(exchange.private)
            assert part.keys() == kept
            secrets |= _bytes_of(t for n, t in part.items() if not torch.equal(t, w_0[n]))
    assert len(secrets) >= 2 * len(kept) > 0  # of two rounds at least, or the check is empty
    _assert_never_sent(played, secrets, w_0.keys() - kept)


def beside_of(exchange: Exchange) -> dict[str, Tensor]:
    """What the site has beside what it shares, after this exchange."""
    return {name.removeprefix(MEMORY): t for name, t in load(exchange.private).items()}


def assert_beside_never_travels(played: Played, names: frozenset[str]) -> None:
    """No message holds the bytes of what a site has beside what it shares; whole models travel."""
    secrets: set[bytes] = set()
    for exchange in played.seen:
        if exchange.task.action != EVALUATE and exchange.private:
            part, shared = beside_of(exchange), exchange.upload
            assert part.keys() == names
            # Statistics of the first layer's first step are alike in both: both begin at w_0.
            secrets |= _bytes_of(t for n, t in part.items() if not torch.equal(t, shared[n]))
    assert len(secrets) >= 2 * len(names & {"head.weight", "head.bias"}) > 0
    _assert_never_sent(played, secrets, played.w_0().keys())


def _bytes_of(tensors: Iterable[Tensor]) -> set[bytes]:
    return {tensor.numpy().tobytes() for tensor in tensors if tensor.is_floating_point()}


def _assert_never_sent(played: Played, secrets: set[bytes], names: Set[str]) -> None:
    """What is sent, both ways, has tensors of just these names, and none of these bytes."""
    sent = {"down": 0, "up": 0}
    for exchange in played.seen:
        for way, blobs in (("down", exchange.down), ("up", exchange.incoming.payloads)):
            sent[way] += len(blobs)
            for digest, blob in blobs.items():
                assert digest_of(blob) == digest and load(blob).keys() == names
        messages = [*exchange.down.values(), *exchange.incoming.payloads.values(), *exchange.heads]
        assert not any(secret in message for message in messages for secret in secrets)
    assert min(sent.values()) > 0


def assert_descent_with_private_by_hand(played: Played) -> None:
    """Every site learns from the server's part and its own, and sends and keeps what it learned."""
    training = played.experiment.training
    for exchange in played.seen:
        if exchange.task.action == EVALUATE:
            continue
        data = site_data(played.experiment, exchange.task.site)
        steps = training.local_epochs if exchange.task.round else training.warmup_epochs
        by_hand = descent_by_hand(
            played.experiment, played.model(exchange), data.labelled, data.labels, steps
        )
        learned = exchange.upload | played.private(exchange.reply.private)
        floats = {n: t for n, t in by_hand.items() if t.is_floating_point()}
        assert_close(learned, floats, atol=1e-4)


def assert_measured_by_hand(played: Played) -> None:
    """After each round every site measures the server's newest part with its own newest part."""
    for exchange in played.seen:
        if exchange.task.action != EVALUATE:
            continue
        site, number = exchange.task.site, exchange.task.round
        learned = [
            e.reply.private
            for e in played.seen
            if e.task.site == site and e.task.round <= number and e.task.action != EVALUATE
        ]
        assert exchange.task.private == exchange.reply.private == learned[-1]
        data = site_data(played.experiment, site)
        for part, images, labels in (
            ("test", data.test, data.test_labels),
            ("val", data.val, data.val_labels),
        ):
            right = correct_by_hand(played.experiment, played.model(exchange), images, labels)
            assert exchange.reply.evaluations[part].correct == right


def assert_shared_is_mean(played: Played, counts: Sequence[int]) -> None:
    """What sites share is averaged as FedAvg averages the whole."""
    for number in range(played.experiment.rounds.num_rounds + 1):
        learners = played.of(number, "train" if number else "warmup")
        mean = mean_by_hand([e.upload for e in learners], counts)
        for exchange in played.of(number, EVALUATE):
            assert_close(played.server(exchange), mean)


# --- one site's rule, without server or messages --------------------------------------------------

PIXELS = ResNet9Settings(width=2, dropout=0.0)
START, OTHER = (initial_params(PIXELS, (1, 8, 8), 3, seed=seed) for seed in (0, 1))
"""Two networks for images of three classes."""
SERVER = ModelRef(SERVER_SITE, 1, "a" * 64)
TASK = Task(0, 1, "train", ModelRef(0, 1, "b" * 64), {"server": (SERVER,)})
MEASURE = replace(TASK, action=EVALUATE)
"""What a site of a method that averages is asked to do."""


def digits_like(count: int, seed: int) -> Tensor:
    stream = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, 1, 8, 8), dtype=torch.uint8, generator=stream)


def data_of(labelled: int = 6, unlabelled: int = 0) -> SiteData:
    """Random images of three classes."""
    return SiteData(
        site=0,
        parts={
            "labelled": Part(digits_like(labelled, 1), torch.arange(labelled) % 3),
            "unlabelled": Part(digits_like(unlabelled, 2)),
            "val": Part(digits_like(3, 3), torch.tensor([0, 1, 2])),
            "test": Part(digits_like(4, 4), torch.tensor([0, 1, 2, 0])),
        },
        num_classes=3,
        mean=(0.5,),
        std=(0.25,),
        audit=None,
    )


@dataclass(frozen=True)
class Measured(SiteContext):
    """Notes the weights that are measured."""

    measured: list[dict[str, Tensor]] = field(default_factory=list)

    def evaluate(self, *parts: str, answer: str = ""):  # type: ignore[no-untyped-def]
        self.measured.append(state_of(self.model))
        return super().evaluate(*parts, answer=answer)


def context(
    data: SiteData,
    w_t: dict[str, Tensor],
    private: dict[str, Tensor] | None = None,
    settings: NetworkSettings = PIXELS,
    memory: dict[str, Tensor] | None = None,
    **training: Any,
) -> Measured:
    """A site whose server model is `w_t`; one step a round unless `training` says otherwise."""
    usual = {"batch_size": 64, "local_epochs": 1, "learning_rate": 0.1, "momentum": 0.0}
    return Measured(
        data=data,
        model=build_model(settings, (1, 8, 8), data.num_classes),
        contents=lambda ref: w_t,
        kept=private or {},
        memory=memory or {},
        training=TrainSettings(**{**usual, **training}),
        seed=5,
        device=CPU,
    )


def state_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def trainable(model: nn.Module) -> list[str]:
    return [name for name, _ in model.named_parameters()]
