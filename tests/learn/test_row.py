"""A plain row of layers as a network: the same answers, cut where MC dropout needs it."""

import pytest
import torch
from torch import nn

from fedapp.ground.errors import ConfigError
from fedapp.ground.functions import function_of, give
from fedapp.learn.networks import build_model, network_settings
from fedapp.learn.networks._own import InRow, ends_in_head


def row(inputs: tuple[int, ...], num_classes: int, units: int = 6) -> nn.Sequential:
    hidden = nn.Linear(inputs[0], units)
    return nn.Sequential(hidden, nn.ReLU(), nn.Dropout(0.5), nn.Linear(units, num_classes))


def headless(inputs: tuple[int, ...], num_classes: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs[0], num_classes))


def drops_twice(inputs: tuple[int, ...], num_classes: int) -> nn.Sequential:
    head = nn.Linear(inputs[0], num_classes)
    return nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.5), head)


def test_it_answers_as_the_row_does():
    layers = row((4,), 3).eval()
    x = torch.randn(5, 4)
    network = InRow(layers).eval()
    assert torch.equal(network(x), layers(x))
    assert torch.equal(network.tail(network.trunk(x)), layers(x))
    assert (network.features, network.dropout.p) == (6, 0.5)


def test_its_parameters_are_settings():
    network = build_model(network_settings(give(row), {"units": 9}), (4,), 3)
    assert (network.features, network.head.out_features) == (9, 3)


def test_a_head_alone_is_a_row_too():
    layers = nn.Sequential(nn.Dropout(0.1), nn.Linear(4, 3)).eval()
    assert ends_in_head(layers) and not ends_in_head(nn.Sequential())
    assert torch.equal(InRow(layers).eval()(torch.ones(2, 4)), layers(torch.ones(2, 4)))


@pytest.mark.parametrize(("function", "says"), [
    (headless, "must return a row that ends in Dropout and Linear"),
    (drops_twice, "trunk: gives other answers each time"),
])  # fmt: skip
def test_what_cannot_be_cut_is_refused_in_a_line(function, says):
    with pytest.raises(ConfigError, match=says) as error:
        build_model(network_settings(give(function), {}), (4,), 3)
    assert len(str(error.value).splitlines()) == 1


def test_a_function_that_was_given_is_found_and_the_last_one_counts():
    def nested():
        """Nobody could import it."""

    first = nested
    name = give(first)
    assert function_of(name) is first

    def nested():
        """Of the same name."""

    assert give(nested) == name and function_of(name) is nested
    for wrong in (3, lambda: None, nn.Linear):
        with pytest.raises(ConfigError, match="write it with `def`"):
            give(wrong)
