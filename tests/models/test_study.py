"""How unsure a model is: identities with its plain answer, contradiction of networks, draws."""

import pytest
import torch

from fedapp.learn.uncertainty import entropy
from fedapp.models.predict import answer_batch
from tests.models.made import MIXTURE, SMALL, model_of, pictures

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
