"""A head over fixed features as a network, by itself and beside another; kept, exported."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from fedapp.core.errors import RunError
from fedapp.data.inputs import normalise
from fedapp.learn.features import build_features
from fedapp.learn.linear_head import FeatureHead, answers_from_features, compute_features
from fedapp.learn.metrics import predict
from fedapp.learn.networks import build_model, network_settings
from fedapp.learn.predictors import Predictor, answer_of
from fedapp.models.description import DESCRIPTION, TENSORS
from fedapp.models.model import Answer, SiteModel, load_model, pack_networks
from tests.models.made import CPU, pictures, recipe_of, written

SHAPE = (1, 8, 8)
NETWORKS = {"resnet9": {"width": 2}, "mlp": {"hidden": "20, 9"}}
MIX = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64)


def scaled(images):
    return normalise(images, (0.4,), (0.3,))


def network(name="resnet9", seed=0):
    torch.manual_seed(seed)
    return build_model(network_settings(name, NETWORKS[name]), SHAPE, 4).eval()


def head_of(size, seed=0):
    stream = torch.Generator().manual_seed(seed)
    return torch.randn(4, size, generator=stream), torch.randn(4, generator=stream)


def over(form, name="resnet9", scale=1.0):
    """A network of this form, with a head of its own."""
    model = form.build(network(name)).eval()
    tensors = model.state_dict()
    tensors["head.weight"], tensors["head.bias"] = head_of(model.head.in_features)
    if form.beside:
        tensors["scale"] = torch.tensor(scale)
    model.load_state_dict(tensors)
    return model


@pytest.mark.parametrize("scale", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("features", ["hog", "network"])
def test_beside_a_network_their_logits_are_added(features, scale):
    """So the answer is the product of both, the network's to a power, and normalised."""
    model, x = over(FeatureHead(features, beside=True), scale=scale), scaled(pictures(9))
    weight, bias = head_of(model.map.size)
    with torch.no_grad():
        mine, other, both = model.map(x) @ weight.T + bias, network()(x), model(x)
    torch.testing.assert_close(both, mine + scale * other)
    product = F.softmax(mine, 1) * F.softmax(other, 1) ** scale
    torch.testing.assert_close(F.softmax(both, 1), product / product.sum(1, keepdim=True))


def test_the_networks_dropout_goes_on():
    """What draws models by dropout draws those of the network beside."""
    model, x = over(FeatureHead("hog", beside=True)), scaled(pictures(9))
    features = model.trunk(x)
    kept = model.embed(features, lambda values, p: values)
    dropped = model.embed(features, lambda values, p: values * 0)
    size = model.map.size
    assert torch.equal(kept[:, :size], dropped[:, :size])
    assert not torch.equal(kept[:, size:], dropped[:, size:])


@pytest.mark.parametrize("counts", [(0,), (1, 2), (70, 3, 501)])
@pytest.mark.parametrize(
    "form", [FeatureHead("hog"), FeatureHead("patches"), FeatureHead("network")], ids=str
)
@pytest.mark.parametrize("name", NETWORKS)
def test_answers_over_features_are_the_whole_networks_to_the_bit(form, counts, name):
    """Also where a frozen network ends in products of matrices, as `mlp` does."""
    model = over(form, name)
    sets = [pictures(count, seed=count) for count in counts]
    given = [compute_features(model.map, images, scaled) for images in sets]
    found = answers_from_features(head_of(model.map.size), given)
    for images, answers in zip(sets, found, strict=True):
        assert torch.equal(answers, predict(model, images, scaled))


def test_a_frozen_network_is_a_copy_of_its_own():
    """Training the network that it was made from, or beside which it answers, does not move it."""
    source = network()
    for form in (FeatureHead("network"), FeatureHead("network", beside=True)):
        model, x = form.build(source), scaled(pictures(5))
        before = model.map(x)
        with torch.no_grad():
            for tensor in source.parameters():
                tensor.mul_(3)
        assert torch.equal(model.map(x), before)
        assert not any(tensor.requires_grad for tensor in model.map.parameters())
    model.train()
    assert not any(module.training for module in model.map.modules())


def test_a_heads_tensors_make_the_network():
    features = build_features("patches", SHAPE)
    features.mean += 1
    params = FeatureHead("patches").params(head_of(features.size), features)
    model = Predictor(params, form=FeatureHead("patches")).load_into(network())
    assert torch.equal(model.map.mean, features.mean)
    x = scaled(pictures(4))
    wanted = answers_from_features(head_of(features.size), [features.of(x)])[0]
    assert torch.equal(predict(model, pictures(4), scaled), wanted)


# --- kept, read back, exported --------------------------------------------------------------------

FORMS = [
    {"closed": FeatureHead("hog")},
    {"closed": FeatureHead("patches")},
    {"closed": FeatureHead("network")},
    {"common": FeatureHead("hog", beside=True), "tuned": None},
    {"common": FeatureHead("network", beside=True), "tuned": FeatureHead("hog")},
]


def predictors_of(forms):
    found = {}
    for name, form in forms.items():
        model = network(seed=1) if form is None else over(form, scale=0.7)
        params = {key: of.clone() for key, of in model.state_dict().items()}
        found[name] = Predictor(params, 1 / len(forms), MIX, form=form)
    return found


def kept(forms):
    found = predictors_of(forms)
    blob, parts = pack_networks(found)
    network_of = {"name": "resnet9", **NETWORKS["resnet9"]}
    recipe, _ = recipe_of(network=network_of)
    return found, replace(recipe, parts=parts), blob


@pytest.mark.parametrize("forms", FORMS, ids=lambda forms: "-".join(forms))
def test_a_kept_model_answers_as_it_did_to_the_bit(forms):
    found, recipe, blob = kept(forms)
    model, images = SiteModel(recipe, blob, CPU), pictures(70)
    assert [part.form for part in recipe.parts] == list(forms.values())
    built = [(one.load_into(recipe.build()), one) for one in found.values()]
    wanted = answer_of(built, images, scaled)
    assert torch.equal(model.probabilities(images), wanted)
    torch.testing.assert_close(wanted.sum(1), torch.ones(70))


@pytest.mark.parametrize("forms", FORMS, ids=lambda forms: "-".join(forms))
def test_the_graph_and_onnx_give_its_probabilities(forms):
    _, recipe, blob = kept(forms)
    model, images = SiteModel(recipe, blob, CPU), pictures(11)
    with torch.no_grad():
        found = Answer(model)(images)
    torch.testing.assert_close(found, model.probabilities(images), atol=1e-6, rtol=0)


@pytest.mark.parametrize("forms", FORMS[4:], ids=lambda forms: "-".join(forms))
def test_onnx_gives_its_probabilities(forms):
    pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    from fedapp.tools.use import onnx_file

    _, recipe, blob = kept(forms)
    model = SiteModel(recipe, blob, CPU)
    session = runtime.InferenceSession(onnx_file.to_onnx(model), providers=["CPUExecutionProvider"])
    for count in (1, 5):
        images = pictures(count, seed=count)
        [found] = session.run(None, {"pixels": images.numpy()})
        wanted = model.probabilities(images).numpy()
        assert np.abs(found - wanted).max() < onnx_file.TOLERANCE


@pytest.mark.parametrize(("form", "says"), [
    ({"features": "nonsense"}, "no such features"),
    ({"features": "hog", "beside": 3}, "beside"),
    ({"features": 7}, "features"),
    ({"features": "hog", "beside": True}, TENSORS),  # its tensors are another form's
], ids=["unknown", "wrong", "number", "another"])  # fmt: skip
def test_a_damaged_form_is_named(tmp_path, form, says):
    folder = written(tmp_path / "model")
    path = folder / DESCRIPTION
    plain = json.loads(path.read_text())
    plain["model"]["parts"][0]["form"] = form
    path.write_text(json.dumps(plain))
    with pytest.raises(RunError, match=says) as found:
        load_model(folder, CPU)
    assert "\n" not in str(found.value)
