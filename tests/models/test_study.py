"""How unsure a model is: its plain answer, contradictions, draws; and that it is built whole."""

import pytest
import torch

from fedapp.learn.uncertainty import entropy
from fedapp.models.model import SiteModel
from fedapp.models.predict import answer_batch
from tests.models.made import CPU, MIXTURE, SMALL, model_of, pictures, recipe_of

SURE = {**SMALL, "dropout": 0.0}


@pytest.mark.parametrize("weights", [None, MIXTURE])
def test_the_answer_is_the_models_own_to_the_bit(weights):
    model, images = model_of(weights=weights), pictures(40)
    assert torch.equal(answer_batch(model, images, 2, 0).probabilities, model.probabilities(images))


def test_a_network_without_dropout_has_no_doubt_of_itself():
    model, images = model_of(network=SURE), pictures(6)
    found = answer_batch(model, images, 3, 0)
    assert found.mutual_information.max() < 1e-9
    torch.testing.assert_close(found.entropy, entropy(model.probabilities(images).double()))


def test_networks_that_contradict_each_other_are_doubt_of_the_model():
    model, images = model_of(network=SURE, weights=MIXTURE), pictures(6)
    found = answer_batch(model, images, 3, 0)
    torch.testing.assert_close(
        found.entropy, entropy(model.probabilities(images).double()), atol=1e-5, rtol=0
    )
    assert found.mutual_information.min() > 1e-4
    alone = model_of(network=SURE, weights={"common": 1.0, "tuned": 0.0})
    assert answer_batch(alone, images, 3, 0).mutual_information.max() < 1e-9


def test_draws_are_keyed_by_the_batch():
    model, images = model_of(), pictures(6)
    first, again, other = (answer_batch(model, images, 3, batch) for batch in (0, 0, 1))
    assert torch.equal(first.mutual_information, again.mutual_information)
    assert not torch.equal(first.mutual_information, other.mutual_information)


# --- built to be given tensors: no first weights are drawn ---------------------------------------

NETWORKS = [(SMALL, (1, 8, 8)), ({"name": "resnet18"}, (3, 8, 8)), ({"name": "mlp"}, (6,))]


@pytest.mark.parametrize(("network", "inputs"), NETWORKS)
def test_building_draws_nothing(network, inputs):
    recipe, _ = recipe_of(network=network, inputs=inputs, images=len(inputs) == 3)
    torch.manual_seed(0)
    recipe.build()
    after = torch.rand(4)
    torch.manual_seed(0)
    assert torch.equal(after, torch.rand(4))


@pytest.mark.parametrize(("network", "inputs"), NETWORKS)
def test_every_tensor_is_the_models_own(network, inputs):
    images = len(inputs) == 3
    recipe, blob = recipe_of(network=network, inputs=inputs, images=images)
    [(built, predictor)] = SiteModel(recipe, blob, CPU).predictors
    held = dict(built.named_parameters()) | dict(built.named_buffers())
    assert held.keys() == predictor.params.keys()
    for name, tensor in held.items():
        torch.testing.assert_close(tensor.detach(), predictor.params[name], rtol=0, atol=0)
    x = pictures(5, inputs) if images else torch.randn(5, *inputs)
    answers = SiteModel(recipe, blob, CPU).probabilities(x)
    assert answers.isfinite().all()
