"""How far two networks differ in each layer (FedSiam, Eq. 10)."""

import pytest
import torch

from fedapp.methods.two_networks._target import divergences


def found(target, online, trained=None):
    values = divergences(target, online, online.keys() if trained is None else trained)
    return {layer: value.item() for layer, value in values.items()}


def test_the_metric_by_hand():
    """2 / sqrt 5, over weight and bias together; statistics do not count."""
    target = {"a.weight": torch.tensor([[1.0, 2.0]]), "a.bias": torch.tensor([2.0])}
    online = {"a.weight": torch.tensor([[1.0, 0.0]]), "a.bias": torch.tensor([2.0])}
    assert found(target, online) == {"a": pytest.approx(0.8944, abs=5e-5)}
    target |= {"a.running_mean": torch.tensor([9.0]), "b.count": torch.tensor(4)}
    online |= {"a.running_mean": torch.tensor([0.0]), "b.count": torch.tensor(1)}
    values = found(target, online, {"a.weight", "a.bias"})
    assert values == {"a": pytest.approx(0.8944, abs=5e-5), "b": 0.0}


def test_equal_networks_differ_by_nothing_and_any_number_is_finite():
    some = {"a.weight": torch.randn(3, 2), "b.weight": torch.zeros(2)}
    assert set(found(some, some).values()) == {0.0}
    from_nothing = found({"b.weight": torch.ones(2)}, {"b.weight": torch.zeros(2)})
    assert 1e6 < from_nothing["b"] < float("inf")


def test_the_metric_goes_by_length_and_not_by_scale():
    target, online = torch.randn(4), torch.randn(4)
    one = found({"a.w": target}, {"a.w": online})["a"]
    assert found({"a.w": 10 * target}, {"a.w": 10 * online})["a"] == pytest.approx(one, rel=1e-5)
    assert found({"a.w": 3 * online}, {"a.w": online})["a"] == pytest.approx(2.0, rel=1e-5)
