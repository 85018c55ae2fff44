"""Recorded work: the rules of recording by a stand-in on a CPU, and CUDA graphs on a GPU."""

from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from functools import partial
from weakref import WeakSet

import pytest
import torch
from torch import nn

from fedapp.data.inputs import normalise
from fedapp.data.parts import Part
from fedapp.data.sites import SiteData
from fedapp.ground.rng import seeded, torch_stream
from fedapp.ground.settings import TrainSettings
from fedapp.learn.graphs import USED_BEFORE, CudaRecorder, Graphs, graphs_on, state_of
from fedapp.learn.losses import cross_entropy
from fedapp.learn.networks.resnet9 import ResNet9
from fedapp.learn.objectives import Work, fixmatch, supervised, two_views
from fedapp.learn.params import assign
from fedapp.learn.steps import Step
from fedapp.learn.training import descend, train
from fedapp.learn.uncertainty import SCORING_BATCH, mc_probabilities, on_a_gpu
from fedapp.methods.averaging.fixmatch_global import taught
from fedapp.methods.recommended._corrected import corrected

CPU = torch.device("cpu")
SCALE = partial(normalise, mean=(0.3,), std=(0.35,))


class StandIn:
    """Records as CUDA does: nothing is done then; later the same call writes to the same tensor.

    model: a graph does what this network did in the mode in which it was recorded.
    """

    def __init__(self, model=None):
        self.recorded = self.replayed = self.inside = 0
        self.model = model or nn.Module()

    @contextmanager
    def aside(self):
        self.inside += 1
        yield
        self.inside -= 1

    def record(self, work):
        assert self.inside, "recorded on the stream of the others"
        self.recorded += 1
        out, mode = torch.empty(0), modes(self.model)

        def replay():
            assert self.inside
            self.replayed += 1
            now = modes(self.model)
            set_modes(self.model, mode)
            done = work()
            set_modes(self.model, now)
            out.resize_as_(done).copy_(done)
            return out

        return replay


def modes(model):
    return [module.training for module in model.modules()]


def set_modes(model, wanted):
    for module, training in zip(model.modules(), wanted, strict=True):
        module.training = training


def network(device=CPU, width=4):
    with seeded(CPU, 0, "test model"):
        return ResNet9(1, 3, width=width, dropout=0.5).to(device)


def pictures(count, device=CPU):
    shape, stream = (count, 1, 8, 8), torch.Generator().manual_seed(count)
    images = torch.randint(256, shape, dtype=torch.uint8, generator=stream)
    targets = torch.rand((count, 3), generator=stream).softmax(1)
    return images.to(device), targets.to(device)


def rounds(model, counts, device=CPU, **settings):
    """Train from the same weights at sites of so many images; return losses and last weights."""
    start = {n: t.clone() for n, t in model.state_dict().items()}
    settings = TrainSettings(**{"batch_size": 8, "learning_rate": 0.05, **settings})
    losses = []
    for site, count in enumerate(counts):
        assign(model, start)
        images, targets = pictures(count, device)
        with seeded(device, 1, "train", site):
            shuffle = torch_stream(1, "shuffle", site)
            loss = train(model, images, targets, count, SCALE, settings, 3, shuffle)
        losses.append(loss)
    return losses, {n: t.clone() for n, t in model.state_dict().items()}


# --- recording ------------------------------------------------------------------------------------


def test_work_is_recorded_after_its_first_uses_and_its_results_stay():
    recorder = StandIn()
    graphs, results = Graphs(recorder), []
    with graphs.aside():
        for value in range(USED_BEFORE + 3):
            results.append(graphs.run("double", lambda x: 2 * x, [torch.tensor([float(value)])]))
    assert [r.item() for r in results] == [2.0 * v for v in range(USED_BEFORE + 3)]
    assert (recorder.recorded, recorder.replayed, len(graphs)) == (1, 3, 1)


def test_another_shape_or_key_is_other_work():
    recorder = StandIn()
    graphs = Graphs(recorder)
    with graphs.aside():
        for _ in range(USED_BEFORE + 1):
            for size in (1, 2):
                graphs.run("sum", lambda x: x.sum(), [torch.ones(size)])
            assert graphs.run("less", lambda x: -x.sum(), [torch.ones(2)]).item() == -2
    assert recorder.recorded == 3


def test_the_last_used_graphs_are_kept_and_one_let_go_begins_anew():
    recorder = StandIn()
    graphs = Graphs(recorder, kept=2)
    with graphs.aside():
        for size in (1, 2, 3, 1):
            for _ in range(USED_BEFORE + 1):
                assert graphs.run("sum", torch.sum, [torch.ones(size)]).item() == size
    assert (recorder.recorded, len(graphs)) == (4, 2)


def test_a_copied_network_shares_no_graph():
    model = network()
    model.graphs = Graphs(StandIn())
    with model.graphs.aside():
        for _ in range(USED_BEFORE + 1):
            model.graphs.run("sum", torch.sum, [torch.ones(1)])
    assert (len(model.graphs), len(deepcopy(model).graphs)) == (1, 0)


def test_modes_and_frozen_weights_are_part_of_what_is_recorded():
    model = network()
    seen = {state_of(model)}
    seen.add(state_of(model.eval()))
    model.head.weight.requires_grad_(False)
    seen.add(state_of(model))
    assert len(seen) == 3 and state_of(deepcopy(model)) in seen


def test_on_a_cpu_nothing_is_recorded():
    assert graphs_on(CPU) is None and network().graphs is None


# --- training and scoring -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        {"momentum": 0.9},
        {"momentum": 0.0},
        {"momentum": 0.9, "weight_decay": 0.1},
        {"optimiser": "adam", "learning_rate": 0.001},
        {"optimiser": "adam", "learning_rate": 0.001, "weight_decay": 0.1},
        {"batches": "paired"},
    ],
    ids=str,
)
def test_recorded_training_gives_the_bits_of_plain_training(settings):
    """Sites of 16, 21, 1 and 16 images: whole batches, unequal ones, one image, and once more."""
    counts, recorder = (16, 21, 1, 16), StandIn()
    losses, weights = rounds(network(), counts, **settings)
    model = network()
    model.graphs = Graphs(recorder)
    again, recorded = rounds(model, counts, **settings)
    assert recorder.replayed > recorder.recorded > 0
    assert losses == again
    assert all(torch.equal(weights[name], recorded[name]) for name in weights)


def learned(model, objective):
    """Descend along an objective at three sites; return losses and last weights."""
    start = {n: t.clone() for n, t in model.state_dict().items()}
    settings, losses = TrainSettings(batch_size=8, learning_rate=0.05), []
    for site, (labelled, unlabelled) in enumerate([(16, 20), (16, 20), (9, 0)]):
        assign(model, start)
        (known, targets), (others, _) = pictures(labelled), pictures(unlabelled)
        labels, nothing = targets.argmax(1), Part(known[:0], targets[:0].argmax(1))
        parts = {"labelled": Part(known, labels), "unlabelled": Part(others)}
        data = SiteData(site, {**parts, "val": nothing, "test": nothing}, 3, (0.3,), (0.35,), None)
        work = Work(model, data, SCALE, 8, 4, torch_stream(1, "shuffle", site))
        with seeded(CPU, 1, "train", site):
            losses.append(descend(model, objective(work), settings))
    return losses, {n: t.clone() for n, t in model.state_dict().items()}


def mirrored(images):
    return images.flip(-1)


def given_labels(work):
    labels = torch.arange(len(work.data.unlabelled)) % 3
    return taught(work, mirrored, mirrored, labels, labels > 0, 0.5)


def soft_labels_of_some(work):
    """At a site of its own: pseudo-labels of another worth and number, under another class mix."""
    site, others = work.data.site, len(work.data.unlabelled)
    soft = torch.eye(3).repeat(others, 1)[: others - others // 4]
    mix, worth = torch.tensor([0.2, 0.3, 0.5]), torch.tensor(0.5 + site)
    return corrected(work, torch.arange(len(soft)), soft, worth, mix)


def own_unlabelled_loss(work):
    return two_views(work, mirrored, mirrored, lambda _, a, b: (a - b).square().sum(), 0.1)


OBJECTIVES = {
    "supervised": (supervised, True),
    "fixmatch": (lambda work: fixmatch(work, mirrored, mirrored, 0.4, 1.0), True),
    "taught": (given_labels, True),
    "corrected": (soft_labels_of_some, True),
    "a loss of a method's own": (own_unlabelled_loss, False),
    "another loss of labels": (
        lambda work: supervised(work, lambda *given: cross_entropy(*given)),
        False,
    ),
}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_recorded_objectives_give_the_bits_of_plain_ones(name):
    objective, recordable = OBJECTIVES[name]
    losses, weights = learned(network(), objective)
    model, recorder = network(), StandIn()
    model.graphs = Graphs(recorder)
    again, recorded = learned(model, objective)
    assert bool(recorder.replayed) == recordable
    assert losses == again
    assert all(torch.equal(weights[each], recorded[each]) for each in weights)


def test_a_graph_is_for_the_mode_that_its_objective_sets():
    """Three sites whose steps have one shape; batch norm of the one with one image stands still.

    An objective sets the mode when its first step is asked for.
    """

    def after(model):
        start = {n: t.clone() for n, t in model.state_dict().items()}
        for site, labelled in enumerate([4, 1, 4]):
            assign(model, start)
            known, targets = pictures(labelled)
            none = Part(known[:0], targets[:0].argmax(1))
            parts = {"labelled": Part(known, targets.argmax(1)), "unlabelled": none}
            data = SiteData(site, {**parts, "val": none, "test": none}, 3, (0.3,), (0.35,), None)
            work = Work(model, data, SCALE, 4, 6, torch_stream(1, "shuffle", site))
            work = replace(work, labelled_repeat=4 // labelled)
            with seeded(CPU, 1, "train", site):
                descend(model, supervised(work), TrainSettings(learning_rate=0.05))
            yield {n: t.clone() for n, t in model.state_dict().items()}

    model = network()
    recorder = StandIn(model)
    model.graphs = Graphs(recorder)
    for plain, recorded in zip(after(network()), after(model), strict=True):
        assert all(torch.equal(plain[each], recorded[each]) for each in plain)
    assert recorder.recorded == 2


def test_recorded_scoring_gives_the_bits_of_plain_scoring():
    """At two sites, one of them larger than a batch."""
    model, recorder = network().eval(), StandIn()

    def scores():
        for count in (SCORING_BATCH + 7, 20) * (USED_BEFORE + 2):
            with seeded(CPU, count, "score"), torch.inference_mode():
                yield on_a_gpu(model, pictures(count)[0], 3, SCALE)

    plain = list(scores())
    model.graphs = Graphs(recorder)
    assert all(map(torch.equal, plain, scores()))
    assert recorder.recorded == 3 and recorder.replayed == 6


def test_a_penalty_is_never_recorded():
    recorder, model = StandIn(), network()
    model.graphs = Graphs(recorder)
    steps = [Step(lambda network: network.head.weight.square().sum(), (), recordable=True)] * 9
    descend(model, steps, TrainSettings(), lambda weights: weights[-1].abs().sum())
    assert recorder.recorded == 0


class Graph:
    """Is alive while somebody holds on to it."""

    def replay(self):
        pass


class Generator:
    """PyTorch's CUDA generator: where no graph is alive, the next one makes its state's tensor."""

    def __init__(self):
        self.graphs = WeakSet()

    @contextmanager
    def captured(self, graph, pool=None, stream=None):
        if not self.graphs:
            self.state = torch.zeros(1)
        self.graphs.add(graph)
        yield
        self.state.fill_(1)


def test_what_scoring_recorded_first_does_not_keep_training_from_being_recorded(monkeypatch):
    """A tensor made under inference mode cannot be changed outside it."""
    generator = Generator()
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", generator.captured)
    with torch.inference_mode():
        recorder = CudaRecorder(CPU)
        scoring = recorder.record(lambda: torch.ones(1))
    training = recorder.record(lambda: 2 * torch.ones(1))
    assert (scoring().item(), training().item()) == (1, 2)


# --- a GPU ----------------------------------------------------------------------------------------


@pytest.mark.cuda
@pytest.mark.parametrize("compute", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("settings", [{"momentum": 0.9}, {"optimiser": "adam"}], ids=str)
def test_a_cuda_graph_trains_as_eager_steps_do(settings, compute):
    """The weights end within 2 % (bfloat16: 10 %) of the way that training moved them.

    The draws are the same, but kernels may add up in another order from one run to the next. With
    other draws, or a step left out, they end tens of percent apart.
    """
    device, counts = torch.device("cuda"), (32, 21, 32, 1, 32)
    eager, model = network(device, width=16), network(device, width=16)
    eager.compute = model.compute = compute
    model.graphs = Graphs(CudaRecorder(device))
    before = torch.cat([p.detach().flatten() for p in eager.parameters()])
    losses, _ = rounds(eager, counts, device, learning_rate=0.001, **settings)
    again, _ = rounds(model, counts, device, learning_rate=0.001, **settings)
    assert len(model.graphs) > 0
    after, recorded = (
        torch.cat([p.detach().flatten() for p in m.parameters()]) for m in (eager, model)
    )
    share = 0.02 if compute is torch.float32 else 0.1
    assert (recorded - after).norm() < share * (after - before).norm()
    assert again == pytest.approx(losses, rel=share)


@pytest.mark.cuda
def test_a_cuda_graph_scores_as_eager_passes_do_and_heeds_the_key_of_its_draws():
    device = torch.device("cuda")
    model, (images, _) = network(device, width=16), pictures(50, device)

    def score(seed):
        with seeded(device, seed, "score"):
            return mc_probabilities(model, images, 10, SCALE)

    eager = [score(seed) for seed in range(8)]
    model.graphs = Graphs(CudaRecorder(device))
    for seed, expected in enumerate(eager):
        torch.testing.assert_close(score(seed), expected, rtol=0, atol=1e-3)
    assert len(model.graphs) == 1
    assert not torch.allclose(eager[0], eager[1], atol=1e-2)


@pytest.mark.cuda
def test_weights_that_are_loaded_are_those_that_a_graph_works_with():
    device = torch.device("cuda")
    model, (images, _) = network(device), pictures(20, device)
    model.graphs = Graphs(CudaRecorder(device))
    for _ in range(USED_BEFORE + 1):
        with seeded(device, 0, "score"):
            before = mc_probabilities(model, images, 2, SCALE)
    assign(model, {n: torch.zeros_like(t) for n, t in model.state_dict().items()})
    with seeded(device, 0, "score"):
        after = mc_probabilities(model, images, 2, SCALE)
    torch.testing.assert_close(after, torch.full_like(after, 1 / 3))
    assert not torch.allclose(before, after)
