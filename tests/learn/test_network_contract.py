"""What every network keeps to (docs/extend/networks.md): those of the registry, and one's own."""

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fedapp.core.errors import ConfigError
from fedapp.core.rng import seeded
from fedapp.data.augment import VIEWS
from fedapp.learn.networks import (
    build_model,
    encoder_bank,
    initial_params,
    network_class,
    network_names,
    network_settings,
)
from fedapp.learn.networks.parts import batch_norm_names, head_names
from fedapp.learn.params import digest_of, from_bytes, schema_of, tensors_of, to_bytes
from fedapp.learn.uncertainty import mc_probabilities
from tests.encoders import bank, encoder_fields

CPU = torch.device("cpu")
CASES = [
    ("resnet9", {"width": 2}, (1, 8, 8)),
    ("resnet9", {"width": 2, "norm": "group"}, (3, 9, 8)),
    ("fedsiam_mnist", {}, (1, 16, 17)),
    ("fedsiam_cifar", {"dropout": 0.5, "channel_dropout": 0.5}, (3, 8, 9)),
    ("fedul_mnist", {"dropout": 0.5}, (3, 8, 9)),
    ("mlp", {"hidden": "9, 8"}, (12,)),
    ("mlp", {"hidden": "32"}, (1, 8, 8)),
    ("resnet18", {}, (3, 32, 32)),
    ("resnet18", {}, (1, 8, 8)),
    ("encoder", {}, (3, 32, 32)),
    ("encoder", {"trained": "last", "size": 40}, (1, 32, 33)),
    ("encoder_bank", {}, (1,)),
    ("tests.learn.own_network:small", {"units": 7}, (4, 3)),
]
CLASSES = 3
every = pytest.mark.parametrize(
    ("name", "fields", "inputs"), CASES, ids=lambda value: str(value).replace(" ", "")
)


def settings_of(name, fields):
    own = encoder_fields() if name.startswith("encoder") else {}
    return network_settings(name, fields | own)


@pytest.fixture(autouse=True)
def a_bank(monkeypatch):
    body = settings_of("encoder", {}).body_for()
    monkeypatch.setattr(encoder_bank, "_BANKS", [bank(body)])


def built(name, fields, inputs, compute=torch.float32):
    settings = settings_of(name, fields)
    with seeded(CPU, 0, "test model"):
        return build_model(settings, inputs, CLASSES, compute)


def noise(count, inputs):
    if inputs == (1,):  # places in a bank of three images
        return (torch.arange(count) % (3 * VIEWS)).float()[:, None]
    return torch.rand(count, *inputs, generator=torch.Generator().manual_seed(1))


def scale(images):
    return images.float() / 255


def keep(x, p):
    return x


class Started(TorchDispatchMode):
    """Notes which operators of PyTorch run inside, backwards too."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def test_every_network_of_the_registry_is_a_case():
    assert {name for name, *_ in CASES if ":" not in name} == set(network_names())


@every
def test_the_pieces_make_up_the_whole(name, fields, inputs):
    model, x = built(name, fields, inputs), noise(4, inputs)
    features = model.trunk(x)
    assert isinstance(features, tuple) and all(len(f) == 4 for f in features)
    embedding, logits = model.embed(features), model(x)
    assert embedding.shape == (4, model.features)
    assert logits.shape == (4, CLASSES) and logits.dtype == torch.float32
    assert (model.head.in_features, model.head.out_features) == (model.features, CLASSES)
    assert model.eval()(x[:0]).shape == (0, CLASSES)
    features, whole = model.trunk(x), model(x)
    assert torch.equal(model.tail(features), whole)
    assert torch.equal(model.classify(model.embed(features)), whole)
    assert torch.equal(model.tail(features, keep), whole)


@every
def test_a_step_has_algorithms_with_equal_bits_on_a_gpu(name, fields, inputs):
    """Under `runtime.deterministic` PyTorch refuses, on a GPU, the gradients of these operators."""
    refused = {
        f"{pool}{size}d_backward"
        for pool in ("adaptive_max_pool", "_adaptive_avg_pool", "fractional_max_pool", "avg_pool")
        for size in (2, 3)
    } - {"avg_pool2d_backward"}
    with Started() as started:
        built(name, fields, inputs).train()(noise(4, inputs)).logsumexp(1).sum().backward()
    assert len(started.names) > 3 and not started.names & refused


@every
def test_nothing_is_dropped_in_front_of_the_tail(name, fields, inputs):
    """Not even a random number is drawn there, in training mode either."""
    model, x = built(name, fields, inputs).train(), noise(4, inputs)
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first, again = model.trunk(x), model.trunk(x)
    assert all(map(torch.equal, first, again))
    assert torch.equal(before, torch.get_rng_state())
    model.embed(first)
    assert not torch.equal(before, torch.get_rng_state())


@every
def test_the_tail_drops_by_what_it_is_given_at_the_networks_rates(name, fields, inputs):
    model, rates = built(name, fields, inputs).eval(), []

    def noted(x, p):
        rates.append(p)
        return torch.zeros_like(x)

    features = model.trunk(noise(4, inputs))
    dropped = model.embed(features, noted)
    assert rates[-1] == model.dropout.p == 0.5 and all(0 <= p < 1 for p in rates)
    assert not torch.equal(dropped, model.embed(features))


@every
def test_the_head_is_the_heads_tensors(name, fields, inputs):
    model = built(name, fields, inputs)
    assert head_names(model) == {"head.weight", "head.bias"}
    assert head_names(model) | batch_norm_names(model) <= model.state_dict().keys()
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.copy_(torch.arange(CLASSES))
    assert torch.equal(model(noise(2, inputs)), torch.arange(CLASSES).float().expand(2, -1))


@every
def test_every_tensor_can_be_sent(name, fields, inputs):
    network = built(name, fields, inputs)
    own, state = tensors_of(network), network.state_dict()
    assert list(own) == list(state)
    assert all(own[name].data_ptr() == state[name].data_ptr() for name in state)
    assert {t.dtype for t in state.values()} <= {torch.float32, torch.int64}
    assert all(bool(t.isfinite().all()) for t in state.values())
    again = from_bytes(to_bytes(state), schema_of(state), "test")
    assert again.keys() == state.keys() and all(torch.equal(again[n], state[n]) for n in state)


@every
def test_a_mode_reaches_every_module(name, fields, inputs):
    network = built(name, fields, inputs)
    for mode in (False, False, True, True, False):
        assert network.train(mode) is network
        assert {module.training for module in network.modules()} == {mode}
        network.head.train(not mode)  # as batch norms are frozen apart from the rest
        network.train(mode)
        assert network.head.training == mode


@every
def test_w_0_depends_on_the_seed_alone(name, fields, inputs):
    settings, state = settings_of(name, fields), torch.get_rng_state()
    first, again, other = (
        digest_of(to_bytes(initial_params(settings, inputs, CLASSES, seed))) for seed in (0, 0, 1)
    )
    assert first == again != other
    assert torch.equal(state, torch.get_rng_state())


@every
def test_an_input_has_the_same_answer_in_any_company(name, fields, inputs):
    """But for rounding: a CPU's library may choose another kernel for another size."""
    model, x = built(name, fields, inputs).eval(), noise(5, inputs)
    alone = torch.cat([model(one[None]) for one in x])
    torch.testing.assert_close(model(x), alone, rtol=1e-4, atol=1e-5)


@every
def test_every_weight_learns(name, fields, inputs):
    model = built(name, fields, inputs).train()
    torch.manual_seed(0)
    model(noise(6, inputs)).logsumexp(1).sum().backward()
    assert all(weight.grad is not None for weight in model.parameters())


@every
def test_mc_dropout_works(name, fields, inputs):
    model = built(name, fields, inputs)
    images, as_floats = (255 * noise(5, inputs)).byte(), scale
    if inputs == (1,):  # places are floats from the beginning
        images, as_floats = noise(5, inputs), Tensor.float

    def draw(passes, seed):
        with seeded(CPU, seed, "mc"):
            return mc_probabilities(model, images, passes, as_floats)

    torch.testing.assert_close(draw(2, 0).sum(1), torch.ones(5))
    assert torch.equal(draw(2, 0), draw(2, 0)) and not torch.equal(draw(1, 0), draw(1, 1))
    for module in model.modules():
        if isinstance(module, torch.nn.modules.dropout._DropoutNd):
            module.p = 0.0
    torch.testing.assert_close(draw(3, 0), torch.softmax(model(as_floats(images)), 1))


@every
def test_half_precision_gives_nearly_the_same_logits_in_float32(name, fields, inputs):
    half, whole = (built(name, fields, inputs, c).eval() for c in (torch.bfloat16, torch.float32))
    assert all(t.dtype in (torch.float32, torch.int64) for t in half.state_dict().values())
    x = noise(3, inputs)
    assert half(x).dtype == torch.float32
    torch.testing.assert_close(half(x), whole(x), rtol=0.1, atol=0.1)


@pytest.mark.parametrize(("name", "inputs", "weights"), [
    ("fedsiam_mnist", (1, 28, 28), 21_840),
    ("fedsiam_cifar", (3, 32, 32), 5_852_170),
    ("fedul_mnist", (3, 28, 28), 14_219_210),
    ("resnet9", (3, 32, 32), 6_573_130),
    ("resnet18", (3, 32, 32), 11_689_512 - 1000 * 513 + 10 * 513),  # torchvision's, another head
    ("mlp", (784,), 199_210),  # McMahan et al. 2017, Sec. 3: the 2NN
])  # fmt: skip
def test_exact_numbers_of_parameters(name, inputs, weights):
    """Of the papers, for ten classes."""
    model = build_model(network_settings(name, {}), inputs, 10)
    assert sum(p.numel() for p in model.parameters()) == weights


def test_fedsiams_network_has_the_papers_number_of_entries():
    state = build_model(network_settings("fedsiam_cifar", {}), (3, 32, 32), 10).state_dict()
    assert (len(state), sum(t.numel() for t in state.values())) == (33, 5_853_005)


def test_resnet_18_is_torchvisions():
    from torchvision.models import resnet18

    model = built("resnet18", {}, (3, 64, 64)).eval()
    theirs = resnet18(num_classes=CLASSES).eval()
    state = model.state_dict()
    theirs.load_state_dict({n.replace("head.", "fc."): t for n, t in state.items()})
    x = noise(2, (3, 64, 64))
    torch.testing.assert_close(model(x), theirs(x))


@pytest.mark.parametrize(("name", "inputs", "says"), [
    ("resnet9", (1, 7, 8), "resnet9 takes images of 8 to 96 pixels a side; change data.image_size"),
    ("resnet9", (3, 96, 97), "resnet9 takes images of 8 to 96 pixels"),
    ("fedsiam_mnist", (1, 15, 28), "fedsiam_mnist takes images of 16 to 96 pixels"),
    ("resnet18", (3, 513, 224), "resnet18 takes images of 8 to 512 pixels"),
    ("resnet9", (64,), "resnet9 takes images of 1 to 16 channels; use model.name=mlp"),
    ("resnet9", (17, 8, 8), "resnet9 takes images of 1 to 16 channels"),
    ("mlp", (2**10, 2**10, 2), "one input has at most 1,048,576 numbers"),
])  # fmt: skip
def test_inputs_that_a_network_cannot_take_are_refused(name, inputs, says):
    with pytest.raises(ConfigError) as error:
        build_model(network_settings(name, {}), inputs, 2)
    assert says in str(error.value) and str(list(inputs)) in str(error.value)


@pytest.mark.parametrize(("channels", "groups"), [(16, 1), (64, 4), (512, 32), (8, 1), (20, 1)])
def test_group_norm_has_groups_of_16_channels_or_one(channels, groups):
    from fedapp.learn.networks.resnet9 import norm_of

    norm = norm_of("group", channels)
    assert (norm.num_groups, norm.num_channels) == (groups, channels)


def test_with_group_norm_there_is_no_batch_norm_and_no_statistics():
    model = built("resnet9", {"width": 2, "norm": "group"}, (1, 8, 8))
    assert batch_norm_names(model) == frozenset()
    plain = built("resnet9", {"width": 2}, (1, 8, 8))
    trained = {name: p.shape for name, p in plain.named_parameters()}
    assert {name: t.shape for name, t in model.state_dict().items()} == trained


@pytest.mark.parametrize("hidden", ["", "a", "8,", "0", "-1", "1.5", "65537", "8 8"])
def test_hidden_layers_that_are_none_are_refused(hidden):
    with pytest.raises(ValueError, match="hidden must be numbers in"):
        network_settings("mlp", {"hidden": hidden})


def test_an_unknown_network_names_the_nearest():
    with pytest.raises(ConfigError, match="no such network; did you mean 'resnet18'"):
        network_class("resnet_18")
